//! Programs of sockets: those of rdmacm-utils that use rsockets, and programs that know TCP alone,
//! over `librspreload.so`.

use super::manager::{TCP, pair};
use super::{Case, Cast, Output, Place, Ready, Troupe};

/// A program that knows TCP alone shall not fall back to it.
const OVER_RDMA: &str = "--rsockets=only";

/// The cases of a place.
pub(super) fn cases(place: Place) -> Vec<Case> {
    let mut cases = rsockets(place);
    cases.extend(preloaded(place));
    cases
}

/// A program, its options, its processes, what the client says, and whether CI runs it.
type Row = (&'static str, &'static str, Troupe, &'static [&'static str], bool);

fn case(place: Place, around: &'static str, row: Row) -> Case {
    let (program, options, troupe, client, in_ci) = row;
    Case {
        variables: "",
        program,
        service: "",
        options: options.into(),
        around,
        cast: Cast::Troupe(troupe),
        place,
        output: Output::Said { server: &[], client },
        in_ci,
        limit_s: 60,
    }
}

/// rdmacm-utils.
fn rsockets(place: Place) -> Vec<Case> {
    let rstream = pair("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471));
    let riostream = pair("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471));
    let rcopy = Troupe {
        endless: true,
        client_program: Some("conformance/rcopy.sh"),
        ..pair("", "SERVER", Ready::Service(TCP, 7427))
    };
    let udpong = Troupe { endless: true, ..pair("-b SERVER", "-s SERVER", Ready::Udp(7174)) };
    let once = place == Place::Loopback;
    let row: &[&str] = &["custom"];
    let mut rows: Vec<Row> = vec![
        ("rstream", "-T v -S 65536 -C 100 -I 5", rstream, row, true),
        ("rstream", "-T a -S 65536 -C 100 -I 5", rstream, row, once),
        ("rstream", "-T b -S 65536 -C 100 -I 5", rstream, row, once),
        ("rstream", "-T n -S 65536 -C 100 -I 5", rstream, row, false),
        ("rstream", "-T r -S 65536 -C 100 -I 5", rstream, row, false),
        ("rstream", "-S 64 -I 500", rstream, row, once),
        ("rstream", "-i 0 -S 16 -C 500", rstream, row, false),
        ("rstream", "-B 4096 -S 100000 -C 20", rstream, row, false),
        // It waits by looking at its memory and calls nobody, so each message waits for the
        // device's thread. Where others keep the processors busy that takes milliseconds, and the
        // 200,000 of the tool's own choice take minutes.
        ("riostream", "-T v -S 4096 -C 10 -I 10", riostream, row, true),
        ("riostream", "-T a -S 65536 -C 10 -I 10", riostream, row, false),
        ("riostream", "-S 64 -I 100", riostream, row, false),
    ];
    if once {
        // The tool's own choice of sizes and counts, half a million messages.
        rows.push(("rstream", "", rstream, &["64_lat", "1m_lat", "64_bw", "1m_bw"], false));
        rows.push(("rstream", "-S all", rstream, &["64_lat", "1m_lat", "64_bw", "1m_bw"], false));
    }
    // It takes a colon for the end of an address.
    if place != Place::Ipv6 {
        rows.push(("rcopy", "", rcopy, &["the copy is the same"], true));
    }
    // Nothing is sent again, and a test ends when all has come.
    if place != Place::Loss {
        rows.push(("udpong", "-C 50 -S 1000", udpong, row, true));
        rows.push(("udpong", "-T e -C 50 -S 1000", udpong, row, false));
        rows.push(("udpong", "-T b -C 50 -S 1000", udpong, row, false));
    }
    rows.into_iter().map(|row| case(place, "", row)).collect()
}

/// Programs that know TCP alone.
fn preloaded(place: Place) -> Vec<Case> {
    let rstream = pair("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471));
    let nc = pair("listen SERVER 5001", "connect SERVER 5001", Ready::Service(TCP, 5001));
    let script = "conformance/echo.py";
    let python = pair("serve SERVER 5002", "ask SERVER 5002", Ready::Service(TCP, 5002));
    let iperf = Troupe {
        clients_only: true,
        ..pair("-s -1 -B SERVER", "-c SERVER -n 20M", Ready::Service(TCP, 5201))
    };
    let redis = Troupe {
        endless: true,
        clients_only: true,
        client_program: Some("redis-benchmark"),
        // No file of what it holds, no file of what it says.
        ..pair(
            "--bind SERVER --port 7777 --protected-mode no --save 9999 999999999 --logfile /dev/null",
            "-h SERVER -p 7777 -q",
            Ready::Service(TCP, 7777),
        )
    };
    let once = place == Place::Loopback;
    let same: &[&str] = &["bytes came as they were sent"];
    let echoed: &[&str] = &["9716375 bytes came back as they were sent"];
    let rows: [Row; 9] = [
        ("conformance/nc.sh", "", nc, same, true),
        (script, "", python, echoed, true),
        ("iperf3", "", iperf, &["iperf Done."], true),
        ("iperf3", "-R", iperf, &["iperf Done."], once),
        ("iperf3", "-P 4", iperf, &["iperf Done."], false),
        ("iperf3", "--bidir", iperf, &["iperf Done."], false),
        ("redis-server", "-t set,get -n 5000 -c 20", redis, &["SET: ", "GET: "], true),
        ("rstream", "-T s -S 65536 -C 100", rstream, &["custom"], once),
        ("rstream", "-T s -T a -S 65536 -C 100", rstream, &["custom"], false),
    ];
    rows.into_iter().map(|row| case(place, OVER_RDMA, row)).collect()
}
