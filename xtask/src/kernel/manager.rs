//! Programs that connect by IP address (`rdma_cm`): rdmacm-utils, rsockets among them, and perftest
//! with `-R`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::case::{Agreed, Case, Expected, Fault, Place, Program, Roles};
use crate::conformance::{Output, Ready};

/// The port spaces of rdma_cm.
pub(super) const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// Groups that nothing else on these links uses.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 77, 3, 1));
const GROUP6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x77, 0x301));

/// What `rcopy` copies: a file that both ends have.
pub(super) const COPIED: &str = "/usr/bin/ib_send_bw";

/// Where it arrives, in the folder where the server runs.
pub(super) const COPY: &str = "copy";

/// One server and one client, by the options of each.
const fn roles(server: &'static str, client: &'static str, ready: Ready) -> Roles {
    Roles { server, client, client_program: None, ready, is_endless: false }
}

pub(super) const RPING: Roles = roles("-s -a SERVER", "-c -a SERVER", Ready::Service(TCP, 7174));
pub(super) const UCMATOSE: Roles = roles("-b SERVER", "-s SERVER", Ready::Service(TCP, 7471));

/// Collects the cases of a place.
pub(super) struct Rows {
    pub(super) place: Place,
    pub(super) cases: Vec<Case>,
}

impl Rows {
    /// Adds a case that CI runs in its turn.
    pub(super) fn add(
        &mut self,
        program: &'static str,
        options: &str,
        roles: Roles,
        expected: Expected,
    ) -> &mut Case {
        self.cases.push(Case {
            program,
            kind: Program::Manager(roles),
            service: "",
            options: options.into(),
            fault: Fault::None,
            agreed: Agreed::Crc,
            place: self.place,
            expected,
            in_ci: true,
            limit_s: 60,
        });
        self.cases.last_mut().expect("just pushed")
    }

    /// The same, and only `--full` runs it.
    fn add_full(&mut self, program: &'static str, options: &str, roles: Roles, expected: Expected) {
        self.add(program, options, roles, expected).in_ci = false;
    }
}

/// What server and client say at least.
pub(super) const fn said(
    server: &'static [&'static str],
    client: &'static [&'static str],
) -> Expected {
    Expected::Output(Output::Said { server, client })
}

/// All of them in one place.
pub(super) fn all(place: Place) -> Vec<Case> {
    let is_iwarp = place.is_iwarp();
    let mut rows = Rows { place, cases: Vec::new() };
    rping(&mut rows);
    failures(&mut rows);
    utilities(&mut rows);
    if !is_iwarp {
        multicast(&mut rows);
    }
    hello(&mut rows);
    streams(&mut rows);
    if !place.is_ipv6 {
        ipv4(&mut rows);
    }
    if !is_iwarp {
        datagrams(&mut rows);
    }
    rows.cases
}

/// What is done to packets; those of TCP are the system's, so Vernic cannot lose them on purpose.
fn faults(place: Place) -> &'static [Fault] {
    if place.is_iwarp() { &[Fault::Link] } else { &[Fault::Loss, Fault::Link] }
}

/// WRITEs, READs and SENDs whose every byte is compared (`-V`); the client says so by its exit
/// status.
fn rping(rows: &mut Rows) {
    let end = said(&["DISCONNECT EVENT"], &[]);
    let shown = said(&["rdma-ping-19", "DISCONNECT EVENT"], &["rdma-ping-19"]);
    rows.add("rping", "-v -V -C 20", RPING, shown);
    rows.add_full("rping", "-V -C 20 -S 65535", RPING, end.clone());
    rows.add_full("rping", "-V -C 20 -S 1025", RPING, end.clone());
    // The program brings its queue pair to each state itself.
    rows.add_full("rping", "-q -V -C 20", RPING, end.clone());
    // A server for many clients, with a thread for each.
    let many = Roles { server: "-s -P -a SERVER", is_endless: true, ..RPING };
    rows.add_full("rping", "-V -C 19", many, said(&[], &[]));
    for fault in faults(rows.place) {
        rows.add("rping", "-V -C 20 -S 20000", RPING, end.clone()).fault = *fault;
    }
}

/// Nobody listens; one side is killed.
fn failures(rows: &mut Rows) {
    let elsewhere = Roles {
        server: "-s -a SERVER -p 7175",
        ready: Ready::Service(TCP, 7175),
        is_endless: true,
        ..RPING
    };
    if rows.place.is_iwarp() {
        refused(rows);
    } else {
        // IBTA 12.6.7.2, reason 8: no such service ID.
        let refused = Expected::Refused("cma event RDMA_CM_EVENT_REJECTED, error 8");
        rows.add("rping", "-C 1", elsewhere, refused);
    }
    for (side, survivor) in [(0, "client DISCONNECT EVENT..."), (1, "server DISCONNECT EVENT...")] {
        rows.add("rping", "-V", RPING, Expected::Killed { side, survivor }).limit_s = 20;
    }
}

/// Connections, and messages over them.
fn utilities(rows: &mut Rows) {
    let status = said(&["return status 0"], &["return status 0"]);
    rows.add("ucmatose", "-c 10", UCMATOSE, status.clone());
    rows.add_full("ucmatose", "-C 100 -S 65536", UCMATOSE, status.clone());
    rows.add_full("ucmatose", "-m -c 3", UCMATOSE, status.clone());
    // iWARP has no datagrams.
    if !rows.place.is_iwarp() {
        let udaddy = roles("-b SERVER", "-s SERVER", Ready::Service(UDP, 7174));
        rows.add("udaddy", "-C 10", udaddy, status.clone());
        rows.add_full("udaddy", "-c 10 -C 5 -S 1024", udaddy, status);
    }
    let cmtime = Roles { is_endless: true, ..UCMATOSE };
    // siw makes no hundred queue pairs at once.
    let options = if rows.place.is_iwarp() { "-c 50" } else { "-c 100" };
    rows.add("cmtime", options, cmtime, said(&[], &["us / conn"]));
}

/// Datagrams to a group: its address is the receiver's and the sender's.
fn multicast(rows: &mut Rows) {
    let end = said(&["return status 0"], &["return status 0"]);
    let (roles, options) = if rows.place.is_ipv6 {
        let ready = Ready::Group(GROUP6);
        (roles("-m ff0e::77:301 -b OWN", "-m ff0e::77:301 -b OWN -s", ready), "-C 10")
    } else {
        let ready = Ready::Group(GROUP);
        (roles("-m 239.77.3.1 -b OWN", "-m 239.77.3.1 -b OWN -s", ready), "-C 10")
    };
    rows.add("mckey", options, roles, end);
}

/// One message each way, by the synchronous calls.
fn hello(rows: &mut Rows) {
    let hello = Roles {
        client_program: Some("rdma_client"),
        ..roles("-s SERVER", "-s SERVER", Ready::Service(TCP, 7471))
    };
    rows.add("rdma_server", "", hello, said(&["end 0"], &["end 0"]));
}

/// rsockets of rdma-core at one end, ours at the other.
fn streams(rows: &mut Rows) {
    let stream = UCMATOSE;
    let table = || said(&["custom"], &["custom"]);
    rows.add("rstream", "-T v -S 65536 -C 10 -I 5", stream, table());
    rows.add("riostream", "-T v -S 65536 -C 5 -I 5", stream, table());
    for options in
        ["-T b -S 16384 -C 10 -I 10", "-T a -S 16384 -C 10 -I 10", "-T v -S 1 -C 20 -I 5"]
    {
        rows.add_full("riostream", options, stream, table());
    }
    for options in [
        "-T b -S 16384 -C 10 -I 10",
        "-T n -S 16384 -C 10 -I 10",
        "-T a -S 16384 -C 10 -I 10",
        "-T r -S 16384 -C 10 -I 10",
        "-T v -S 1 -C 100 -I 5",
        "-T v -S 1048576 -C 2 -I 2",
        "-i 0 -T v -S 1000 -C 20 -I 5",
    ] {
        rows.add_full("rstream", options, stream, table());
    }
    for fault in faults(rows.place) {
        let row = rows.add("rstream", "-T v -S 65536 -C 10 -I 2", stream, table());
        (row.fault, row.in_ci) = (*fault, false);
    }
}

/// Datagrams over rsockets.
fn datagrams(rows: &mut Rows) {
    let udpong = Roles { is_endless: true, ..roles("-b SERVER", "-s SERVER", Ready::Udp(7174)) };
    let end = said(&["custom"], &["custom"]);
    let case = rows.add("udpong", "-C 100 -S 1000", udpong, end);
    (case.in_ci, case.limit_s) = (false, 10);
}

/// perftest connects by rdma_cm with `-R`.
fn perftest(rows: &mut Rows) {
    let roles = roles("-F", "-F SERVER", Ready::Service(TCP, 18_515));
    if rows.place.is_iwarp() {
        sizes(rows, roles);
    }
    // A kernel's server is not back at once: perftest connects twice.
    let fault = match (rows.place.to_kernel, rows.place.is_iwarp()) {
        (false, _) => Fault::None,
        (true, false) => Fault::Late,
        (true, true) => Fault::Silent,
    };
    for (program, options, size, iterations) in [
        ("ib_write_bw", "-s 1 -n 100", 1, 100),
        ("ib_write_bw", "-s 1048576 -n 5", 1 << 20, 5),
        ("ib_write_bw", "-q 4 -n 50", 65_536, 200),
        ("ib_write_bw", "-n 100", 65_536, 100),
        ("ib_write_lat", "-n 50", 2, 50),
        ("ib_read_bw", "-n 100", 65_536, 100),
        ("ib_read_lat", "-n 50", 2, 50),
        ("ib_send_lat", "-s 4096 -n 50", 4096, 50),
        ("ib_send_bw", "-n 100", 65_536, 100),
        ("ib_atomic_bw", "-n 100", 8, 100),
        ("ib_atomic_lat", "-n 50", 8, 50),
    ] {
        // siw has none.
        if rows.place.is_iwarp() && program.starts_with("ib_atomic") {
            continue;
        }
        let output = Output::Table { sizes: vec![size], iterations: Some(iterations) };
        let case = rows.add(program, &format!("-R {options}"), roles, Expected::Output(output));
        case.fault = fault;
        // Two of them tell whether it works at all.
        case.in_ci = ["ib_write_bw -n 100", "ib_send_lat -s 4096 -n 50"]
            .contains(&format!("{program} {options}").as_str());
    }
}

/// Programs that know IPv4 only: what is not shared by all places comes last, or CI's shares were
/// others.
fn ipv4(rows: &mut Rows) {
    perftest(rows);
    // It listens on 0.0.0.0.
    let shared = Roles {
        client_program: Some("rdma_xclient"),
        ..roles("", "-s SERVER", Ready::Service(TCP, 7471))
    };
    rows.add("rdma_xserver", "", shared, said(&["end 0"], &["end 0"]));
    // It takes everything behind the first colon for the file's name.
    let rcopy = Roles { is_endless: true, ..roles("", "", Ready::Service(TCP, 7427)) };
    rows.add("rcopy", "", rcopy, Expected::Copied);
}

/// Over iWARP, nobody listens: what TCP says is in the event at Vernic, and is the result of the
/// call at siw.
fn refused(rows: &mut Rows) {
    let elsewhere = Roles {
        server: "-b SERVER -p 7475",
        ready: Ready::Service(TCP, 7475),
        is_endless: true,
        ..UCMATOSE
    };
    let line = if rows.place.to_kernel {
        "cmatose: event: RDMA_CM_EVENT_REJECTED, error: -111"
    } else {
        "cmatose: failure connecting: Connection refused"
    };
    rows.add("ucmatose", "-c 1", elsewhere, Expected::Refused(line));
}

/// Over iWARP, perftest with messages of one byte, and of many segments. A server in the guest
/// takes seconds to fill its buffers with noise, before it can be connected to the second time.
fn sizes(rows: &mut Rows, roles: Roles) {
    let fault = if rows.place.to_kernel { Fault::Silent } else { Fault::None };
    for (program, size) in [
        ("ib_read_bw", 1),
        ("ib_send_bw", 1),
        ("ib_write_bw", 8 << 20),
        ("ib_write_bw", 64 << 20),
        ("ib_read_bw", 64 << 20),
        ("ib_send_bw", 64 << 20),
    ] {
        let output = Output::Table { sizes: vec![size], iterations: Some(5) };
        let options = format!("-R -s {size} -n 5");
        let case = rows.add(program, &options, roles, Expected::Output(output));
        (case.fault, case.in_ci, case.limit_s) = (fault, false, 300);
    }
}
