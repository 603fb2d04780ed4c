//! What is run: a program here, on Vernic, against the same program in the guest, on the kernel's
//! driver.
//!
//! A case's name is its command line and its place, and unique. Programs that connect by IP address
//! (`rdma_cm`) are in `manager.rs`.

use super::case::{Agreed, Case, Expected, Fault, Place, Program};
use super::iwarp;
use super::links::Driver;
use super::manager;
use super::scenarios;
use crate::conformance::Output;

/// Every case, in the order of running.
pub(super) fn all() -> Vec<Case> {
    let of_rxe: &[List] = &[ping_pongs, perftest, scenarios::all, manager::all];
    let of_siw: &[List] = &[iwarp::all];
    let mut cases = Vec::new();
    for (driver, lists, apart) in [(Driver::Rxe, of_rxe, 8), (Driver::Siw, of_siw, 4)] {
        for (number, place) in Place::of(driver).into_iter().enumerate() {
            for list in lists {
                let mut list = list(place);
                // CI runs each case in one place, or in two where they are fewer, and in each place
                // a share of all.
                for (index, case) in list.iter_mut().enumerate() {
                    case.in_ci = (index + number) % apart == 0 && case.in_ci;
                }
                cases.extend(list);
            }
        }
    }
    cases
}

/// The cases of a kind in one place.
type List = fn(Place) -> Vec<Case>;

/// The programs of ibverbs-utils. They check each byte with `-c`.
fn ping_pongs(place: Place) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |program: &'static str, options: &str, bytes: u64, fault| {
        cases.push(Case {
            program,
            kind: Program::PingPong,
            service: "",
            options: options.into(),
            fault,
            agreed: Agreed::Crc,
            place,
            expected: Expected::Output(Output::PingPong { bytes: Some(bytes) }),
            in_ci: true,
            limit_s: 60,
        });
    };
    for waits in ["-c", "-c -e"] {
        add("ibv_rc_pingpong", &format!("{waits} -n 500"), 2 * 4096 * 500, Fault::None);
        add("ibv_uc_pingpong", &format!("{waits} -n 500"), 2 * 4096 * 500, Fault::None);
        add("ibv_ud_pingpong", &format!("{waits} -s 1024 -n 500"), 2 * 1024 * 500, Fault::None);
        add("ibv_srq_pingpong", &format!("{waits} -n 500"), 2 * 4096 * 500, Fault::None);
    }
    add("ibv_rc_pingpong", "-c -s 1048576 -n 20", (2 * 20) << 20, Fault::None);
    for fault in [Fault::Loss, Fault::Corrupt, Fault::Link] {
        add("ibv_rc_pingpong", "-c -s 20000 -n 200", 2 * 20_000 * 200, fault);
    }
    cases
}

/// A program of perftest.
struct Tool {
    name: &'static str,
    services: &'static [&'static str],
    /// What it measures without `-s`, bytes.
    default_bytes: u64,
    /// Offers `-s`, `-a`.
    sizes: bool,
    /// Has two-sided messages: `-e`, `--use-srq`.
    sends: bool,
    /// Offers `-I`.
    inline: bool,
    /// Measures bandwidth: `-b`, `-q`.
    bandwidth: bool,
}

const TOOLS: [Tool; 8] = [
    tool("ib_write_bw", &["RC", "UC"]),
    tool("ib_write_lat", &["RC", "UC"]),
    tool("ib_read_bw", &["RC"]),
    tool("ib_read_lat", &["RC"]),
    tool("ib_send_bw", &["RC", "UC", "UD"]),
    tool("ib_send_lat", &["RC", "UC", "UD"]),
    tool("ib_atomic_bw", &["RC"]),
    tool("ib_atomic_lat", &["RC"]),
];

/// Which options a program has follows from its name: `ib_OPERATION_MEASURE`.
const fn tool(name: &'static str, services: &'static [&'static str]) -> Tool {
    let operation = name.as_bytes()[3];
    let bandwidth = name.as_bytes()[name.len() - 1] == b'w';
    let (sends, is_atomic) = (operation == b's', operation == b'a');
    Tool {
        name,
        services,
        default_bytes: if is_atomic {
            8
        } else if bandwidth {
            65_536
        } else {
            2
        },
        sizes: !is_atomic,
        sends,
        inline: sends || operation == b'w',
        bandwidth,
    }
}

/// The programs of perftest.
fn perftest(place: Place) -> Vec<Case> {
    let mut cases = Vec::new();
    for tool in &TOOLS {
        for service in tool.services.iter().copied() {
            cases.extend(of_tool(tool, service, place));
        }
    }
    cases
}

/// One program over one service.
fn of_tool(tool: &Tool, service: &'static str, place: Place) -> Vec<Case> {
    let largest = if service == "UD" { place.link.path_mtu } else { 1 << 23 };
    let default = tool.default_bytes.min(largest);
    let case = |options: &str, sizes: &[u64], iterations: u64, rows: u64| {
        let space = if options.is_empty() { "" } else { " " };
        let output = Output::Table { sizes: sizes.to_vec(), iterations: Some(rows) };
        Case {
            program: tool.name,
            kind: Program::Perftest,
            service,
            options: format!("-c {service}{space}{options} -n {iterations}"),
            fault: Fault::None,
            agreed: Agreed::Crc,
            place,
            expected: Expected::Output(output),
            in_ci: true,
            limit_s: 60,
        }
    };
    let mut cases = vec![case("", &[default], 200, 200)];
    if tool.sizes {
        cases.push(case("-s 1", &[1], 200, 200));
        let sizes: Vec<u64> =
            (1..).map(|shift| 1 << shift).take_while(|size| *size <= largest).collect();
        cases.push(match service {
            // Without flow control what is in flight must fit between here and the guest.
            "UC" => case("-s 1048576", &[1 << 20], 10, 10),
            _ => Case { limit_s: 200, in_ci: false, ..case("-a", &sizes, 5, 5) },
        });
    }
    if tool.sizes && service == "RC" {
        // Minutes, mostly for the guest to fill its buffers with noise.
        let large = case("-s 67108864", &[64 << 20], 5, 5);
        cases.push(Case { limit_s: 300, in_ci: false, ..large });
    }
    if tool.bandwidth {
        cases.push(case("-q 4", &[default], 50, 200));
        cases.push(case("-b", &[default], 100, 100));
    }
    if tool.inline {
        cases.push(case("-I 64 -s 64", &[64], 200, 200));
    }
    if tool.sends {
        cases.push(case("-e", &[default], 200, 200));
        cases.push(case("--use-srq", &[default], 200, 200));
    }
    if service == "RC" {
        let fault = case("", &[default], 200, 200);
        for fault_kind in [Fault::Loss, Fault::Link] {
            cases.push(Case { fault: fault_kind, ..fault.clone() });
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: Vec<String> = all().iter().map(Case::name).collect();
        let unique: BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn the_share_of_ci_has_every_program_service_and_place() {
        let mut cases = all();
        // Of perftest with `-R` two rows are enough, and one program passes nowhere.
        cases.retain(|case| !case.options.starts_with("-R") && case.program != "udpong");
        for key in [
            |case: &Case| format!("{} {}", case.program, case.service),
            |case: &Case| case.place.name(),
            |case: &Case| format!("{:?}", case.fault),
        ] {
            let every: BTreeSet<_> = cases.iter().map(key).collect();
            let in_ci: BTreeSet<_> = cases.iter().filter(|c| c.in_ci).map(key).collect();
            assert_eq!(every, in_ci);
        }
    }

    #[test]
    fn a_datagram_has_no_size_beyond_the_path_mtu() {
        for case in all().iter().filter(|case| case.service == "UD") {
            let Expected::Output(Output::Table { sizes, .. }) = &case.expected else { continue };
            let largest = case.place.link.path_mtu;
            assert!(sizes.iter().all(|size| *size <= largest), "{}", case.name());
        }
    }
}
