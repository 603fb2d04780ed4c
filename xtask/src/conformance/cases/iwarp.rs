//! Programs over iWARP devices: those that connect by IP address, which is all that can.

use super::manager::pair;
use super::{Case, Cast, Output, Place, Ready, Troupe};

/// The devices are iWARP's.
const IWARP: &str = "--iwarp";

/// A program, its options, its processes, what must come out, and whether CI runs it.
type Row = (&'static str, &'static str, Troupe, Output, bool);

/// The cases of a place. TCP repeats what is lost, so nothing is to be seen where packets are.
pub(super) fn cases(place: Place) -> Vec<Case> {
    if place == Place::Loss {
        return Vec::new();
    }
    let mut rows = by_address(place);
    rows.extend(streams(place));
    if place != Place::Ipv6 {
        rows.extend(perftest(place));
    }
    let case = |(program, options, troupe, output, in_ci): Row| Case {
        variables: "",
        program,
        service: "",
        options: options.to_owned(),
        around: IWARP,
        cast: Cast::Troupe(troupe),
        place,
        output,
        in_ci,
        limit_s: 60,
    };
    let mut cases: Vec<Case> = rows.into_iter().map(case).collect();
    if place == Place::Loopback {
        cases.push(Case {
            cast: Cast::Alone,
            output: Output::Listing(&["viw", "transport:\t\t\tiWARP (1)", "Ethernet"]),
            ..case(("ibv_devinfo", "-v", pair("", "", Ready::Tcp(1)), Output::Listing(&[]), true))
        });
    }
    cases
}

const fn said(server: &'static [&'static str], client: &'static [&'static str]) -> Output {
    Output::Said { server, client }
}

/// rdmacm-utils.
fn by_address(place: Place) -> Vec<Row> {
    let rping = pair("-s -a SERVER", "-c -a SERVER", Ready::Tcp(7174));
    let ucmatose = pair("-b SERVER", "-s SERVER", Ready::Tcp(7471));
    let hello = Troupe {
        client_program: Some("rdma_client"),
        ..pair("-s SERVER", "-s SERVER", Ready::Tcp(7471))
    };
    let cmtime = Troupe { endless: true, ..pair("-b SERVER", "-s SERVER", Ready::Tcp(7471)) };
    let status = said(&["return status 0"], &["return status 0"]);
    let once = place == Place::Loopback;
    vec![
        ("rping", "-v -V -C 20", rping, said(&["rdma-ping-19"], &["rdma-ping-19"]), true),
        ("rping", "-v -V -C 5 -S 65000", rping, said(&["rdma-ping-4"], &["rdma-ping-4"]), false),
        ("ucmatose", "-c 10", ucmatose, status.clone(), true),
        ("ucmatose", "-C 100 -S 65536", ucmatose, status, false),
        ("rdma_server", "", hello, said(&["end 0"], &["end 0"]), once),
        ("cmtime", "-c 200", cmtime, said(&[], &["us / conn"]), once),
    ]
}

/// rsockets.
fn streams(place: Place) -> Vec<Row> {
    let rstream = pair("-b SERVER", "-s SERVER", Ready::Tcp(7471));
    let rcopy = Troupe {
        endless: true,
        client_program: Some("conformance/rcopy.sh"),
        ..pair("", "SERVER", Ready::Tcp(7427))
    };
    let row = || said(&["custom"], &["custom"]);
    let once = place == Place::Loopback;
    let mut rows = vec![
        ("rstream", "-T v -S 65536 -C 100 -I 5", rstream, row(), true),
        ("rstream", "-T a -S 65536 -C 100 -I 5", rstream, row(), false),
        ("rstream", "-S 64 -I 500", rstream, row(), false),
        ("riostream", "-T v -S 4096 -C 10 -I 10", rstream, row(), once),
    ];
    // It takes a colon for the end of an address.
    if place != Place::Ipv6 {
        rows.push(("rcopy", "", rcopy, said(&[], &["the copy is the same"]), once));
    }
    rows
}

/// perftest, which takes IPv6 addresses in a way of its own.
fn perftest(place: Place) -> Vec<Row> {
    let troupe = pair("", "SERVER", Ready::Tcp(18_515));
    let table =
        |size, iterations| Output::Table { sizes: vec![size], iterations: Some(iterations) };
    let once = place == Place::Loopback;
    vec![
        ("ib_write_bw", "-F -R -n 500", troupe, table(65_536, 500), once),
        ("ib_write_bw", "-F -R -n 500 -s 1", troupe, table(1, 500), false),
        // Of larger ones the server is so long in making its buffers that the client, which
        // perftest lets connect twice, is refused, and crashes over what it has freed.
        ("ib_write_bw", "-F -R -n 5 -s 8388608", troupe, table(8 << 20, 5), false),
        ("ib_read_bw", "-F -R -n 500", troupe, table(65_536, 500), once),
        ("ib_read_bw", "-F -R -q 4 -n 500", troupe, table(65_536, 2_000), false),
        ("ib_send_bw", "-F -R -n 500", troupe, table(65_536, 500), true),
        ("ib_send_lat", "-F -R -n 500", troupe, table(2, 500), false),
        ("ib_send_lat", "-F -R -n 100 -s 1048576", troupe, table(1 << 20, 100), false),
    ]
}
