//! Programs of the connection manager: rdmacm-utils, and perftest with `-R`.

use std::net::{IpAddr, Ipv4Addr};

use super::{Case, Cast, Output, Place, Ready, Troupe};

/// The port spaces of rdma_cm.
pub(in crate::conformance) const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// What a side of several pairs says at its end.
const ENDED: &str = "all 6 have ended twice";

/// A group that nothing else on the machine uses.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 77, 2, 1));

/// One server and one client that is told where it is, by the options of each.
pub(super) const fn pair(server: &'static str, client: &'static str, ready: Ready) -> Troupe {
    Troupe {
        server,
        client,
        client_program: None,
        servers: 1,
        clients: 1,
        ready,
        endless: false,
        clients_only: false,
    }
}

/// The cases of a place.
pub(super) fn cases(place: Place) -> Vec<Case> {
    let rping = pair("-s -a SERVER", "-c -a SERVER", Ready::Service(TCP, 7174));
    let ucmatose = pair("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471));
    let udaddy = pair("-b SERVER", "-s SERVER", Ready::Service(UDP, 7174));
    let hello = Troupe {
        client_program: Some("rdma_client"),
        ..pair("-s SERVER", "-s SERVER", Ready::Service(TCP, 7471))
    };
    let cmtime =
        Troupe { endless: true, ..pair("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471)) };
    let receivers = Troupe {
        servers: 2,
        ..pair("-m 239.77.2.1 -b OWN", "-m 239.77.2.1 -b OWN -s", Ready::Group(GROUP))
    };
    let perftest = pair("", "SERVER", Ready::Service(TCP, 18_515));
    let table =
        |size, iterations| Output::Table { sizes: vec![size], iterations: Some(iterations) };
    let said = |server, client| Output::Said { server, client };
    // Neither sends again what was lost.
    let datagrams = place != Place::Loss;
    // perftest takes IPv6 addresses in a way of its own.
    let plain = place != Place::Ipv6;
    // IPv6 has no groups on `lo`, and these programs take one address of a group.
    let groups =
        matches!(place, Place::Loopback | Place::Ipv4 | Place::Ethernet | Place::InfiniBand);
    let rows = [
        ("rping", "-v -V -C 20", rping, said(&["rdma-ping-19"], &["rdma-ping-19"]), true),
        ("rping", "-v -V -C 5 -S 65000", rping, said(&["rdma-ping-4"], &["rdma-ping-4"]), true),
        ("ucmatose", "-c 10", ucmatose, said(&["return status 0"], &["return status 0"]), true),
        ("ucmatose", "-C 100 -S 65536", ucmatose, said(&["status 0"], &["status 0"]), true),
        ("udaddy", "-C 10", udaddy, said(&["return status 0"], &["return status 0"]), datagrams),
        ("rdma_server", "", hello, said(&["end 0"], &["end 0"]), true),
        ("cmtime", "-c 200", cmtime, said(&[], &["us / conn"]), true),
        ("mckey", "-C 10", receivers, said(&["return status 0"], &["return status 0"]), groups),
        ("ib_write_bw", "-F -R -n 500", perftest, table(65_536, 500), plain),
        ("ib_send_lat", "-F -R -n 500", perftest, table(2, 500), plain),
        ("ib_read_bw", "-F -R -q 4 -n 500", perftest, table(65_536, 2_000), plain),
    ];
    let rows = rows.into_iter().filter(|row| row.4);
    let rows = rows.map(|(program, options, troupe, output, _)| Case {
        variables: "",
        program,
        service: "",
        options: options.into(),
        around: "",
        cast: Cast::Troupe(troupe),
        place,
        output,
        in_ci: true,
        limit_s: 60,
    });
    rows.chain(ends(place)).collect()
}

/// Pairs that end at the same time: between hosts nothing but a DREQ tells a server that idles of
/// its client's end.
fn ends(place: Place) -> Vec<Case> {
    let between = matches!(place, Place::Ipv4 | Place::Ipv6);
    let troupe = pair("serve SERVER 6", "ask SERVER 6", Ready::Service(TCP, 7201));
    let case = |around| Case {
        variables: "",
        program: "conformance/pings.sh",
        service: "",
        options: String::new(),
        around,
        cast: Cast::Troupe(troupe),
        place,
        output: Output::Said { server: &[ENDED], client: &[ENDED] },
        in_ci: true,
        limit_s: 60,
    };
    ["", "--loss 0.1"].into_iter().filter(|_| between).map(case).collect()
}
