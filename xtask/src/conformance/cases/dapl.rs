//! Programs of uDAPL, an interface of its own over rdma_cm and verbs: dapl2-utils.

use super::manager::{TCP, pair};
use super::{Case, Cast, Output, Place, Ready, Troupe};

const PROGRAM: &str = "conformance/dapl.sh";

/// Through memory, by packets within a host, and between hosts.
pub(super) const PLACES: [Place; 3] = [Place::Memory, Place::Loopback, Place::Ipv4];

const SERVER: &str = "serve OWN target/conformance/dapl";
const CLIENT: &str = "ask OWN target/conformance/dapl SERVER";

/// The cases of a place.
pub(super) fn cases(place: Place) -> Vec<Case> {
    // The first meet over TCP, the others by rdma_cm alone.
    let by_tcp = pair(SERVER, CLIENT, Ready::Tcp(15_828));
    let by_cm = pair(SERVER, CLIENT, Ready::Service(TCP, 45_248));
    let served = pair(SERVER, CLIENT, Ready::Service(TCP, 62_000));
    let passed: &[&str] = &["DAPL Test Complete. PASSED"];
    let exited: &[&str] = &["End of Work -- Client Exiting"];
    // The share of CI everywhere, the rest in full runs.
    let rows = [
        ("dtest -b 65536 -B 20", by_tcp, passed, true),
        ("dtest -c -b 4096 -B 20", by_tcp, passed, false),
        ("dtest -p -b 4096 -B 20", by_tcp, passed, false),
        ("dtest", by_tcp, passed, false),
        ("dtestx", by_tcp, &["immed/atomic test PASSED"], true),
        ("dtestcm -c 50", by_tcp, &["Num=50"], true),
        ("dtestsrq -c 4", by_cm, &["ALL 4 CONNECTED", "Test Complete"], false),
        ("dapltest -T T -i 100 -t 2 -w 2 -V client SR 4096 server SR 4096", served, exited, true),
        (
            "dapltest -T T -i 100 -V client RW 4096 server RR 65536 client SR 256 server SR 256",
            served,
            exited,
            false,
        ),
        (
            "dapltest -T T -i 100 -V -P client SR 1024 3 -f server SR 1536 2 -f server RR 4096",
            served,
            exited,
            false,
        ),
        ("dapltest -T P -i 500 RW 65536 2", served, exited, false),
    ];
    let row = |(options, troupe, client, in_ci): (&str, Troupe, &'static [&'static str], bool)| {
        let output = Output::Said { server: &[], client };
        case(options, Cast::Troupe(troupe), output, place, in_ci)
    };
    let mut cases: Vec<Case> = rows.map(row).into();
    if place == Place::Loopback {
        let options = "alone 127.0.0.1 target/conformance/dapl dapltest -T L -m 20 -w 2 \
                       limit_ia limit_pz limit_cno limit_evd limit_ep limit_psp limit_lmr";
        cases.push(case(
            options,
            Cast::Alone,
            Output::Listing(&["LMRs created: 20"]),
            place,
            false,
        ));
    }
    cases
}

fn case(options: &str, cast: Cast, output: Output, place: Place, in_ci: bool) -> Case {
    Case {
        variables: "",
        program: PROGRAM,
        service: "",
        options: options.into(),
        around: "",
        cast,
        place,
        output,
        in_ci,
        limit_s: 60,
    }
}
