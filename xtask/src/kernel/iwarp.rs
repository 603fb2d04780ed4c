//! What is particular to iWARP, whose peer is `siw`: what both ends agree on when a connection
//! begins.

use super::case::{Agreed, Case, Expected, Fault, Place, Program};
use super::manager::{self, RPING, Rows, said};
use super::scenarios::PROBE;

/// All cases of a place: what connects by IP address over RoCE too, and more.
pub(super) fn all(place: Place) -> Vec<Case> {
    let mut rows = Rows { place, cases: manager::all(place) };
    for agreed in Agreed::SPECIAL {
        if place.to_kernel && agreed.parameter().is_some() {
            continue;
        }
        let shown = said(&["rdma-ping-19", "DISCONNECT EVENT"], &["rdma-ping-19"]);
        rows.add("rping", "-v -V -C 20 -S 20000", RPING, shown).agreed = agreed;
    }
    rows.cases.extend(probes(place));
    rows.cases
}

/// A request that the other end refuses by a Terminate.
struct Refused {
    scenario: &'static str,
    /// What the server tells of it that is siw.
    siw: &'static str,
    /// What Vernic tells of it as the server.
    vernic: &'static str,
}

/// siw tells no event of a wrong key or of a receive that is missing, and flushes no receive when
/// it refuses a READ.
const REFUSED: &[Refused] = &[
    refused_access("iwarp-write-key", "receive: WR_FLUSH_ERR\nevent: none"),
    refused_access("iwarp-write-bounds", "receive: WR_FLUSH_ERR\nevent: QP_ACCESS_ERR"),
    refused_access("iwarp-write-right", "receive: WR_FLUSH_ERR\nevent: QP_ACCESS_ERR"),
    refused_access("iwarp-read-key", "receive: none\nevent: QP_REQ_ERR"),
    refused_access("iwarp-read-bounds", "receive: none\nevent: QP_REQ_ERR"),
    refused_access("iwarp-read-right", "receive: none\nevent: QP_REQ_ERR"),
    Refused {
        scenario: "iwarp-send-long",
        siw: "receive: LOC_LEN_ERR\nbehind it: WR_FLUSH_ERR\nevent: QP_FATAL",
        vernic: "receive: LOC_LEN_ERR\nbehind it: WR_FLUSH_ERR\nevent: QP_REQ_ERR",
    },
    Refused { scenario: "iwarp-no-receive", siw: "event: none", vernic: "event: QP_REQ_ERR" },
];

/// One that asks for memory.
const fn refused_access(scenario: &'static str, siw: &'static str) -> Refused {
    Refused { scenario, siw, vernic: "receive: WR_FLUSH_ERR\nevent: QP_ACCESS_ERR" }
}

/// Our judge: data, and both ends' news of a request that is refused. But for READs it is complete
/// when TCP has it, before it is refused.
fn probes(place: Place) -> Vec<Case> {
    let case = |options: &str, lines| Case {
        program: PROBE,
        kind: Program::Probe,
        service: "",
        options: options.into(),
        fault: Fault::None,
        agreed: Agreed::Crc,
        place,
        expected: Expected::Lines(lines),
        in_ci: true,
        limit_s: 90,
    };
    let mut cases =
        vec![case("iwarp-verify", ["16 sizes verified"; 2]), case("reads", ["reads verified"; 2])];
    cases.push(Case { agreed: Agreed::Plain, ..cases[0].clone() });
    // perftest with `-R` knows IPv4 alone.
    let whole = case("-x 67108864 iwarp-verify", ["17 sizes verified"; 2]);
    cases.push(Case { in_ci: false, limit_s: 600, ..whole });
    let expected = Expected::Reset(LOST);
    cases.push(Case { expected, limit_s: 60, ..case(FLOOD, LOST) });
    for (side, survivor) in [(0, "behind it: WR_FLUSH_ERR"), (1, "receive: WR_FLUSH_ERR")] {
        let expected = Expected::Killed { side, survivor };
        cases.push(Case { expected, limit_s: 60, ..case(FLOOD, LOST) });
    }
    for Refused { scenario, siw, vernic } in REFUSED {
        let server = if place.to_kernel { siw } else { vernic };
        let client = match (place.to_kernel, scenario.contains("read")) {
            (true, false) => "request: SUCCESS\nevent: QP_FATAL\nbehind it: WR_FLUSH_ERR",
            (true, true) => "request: WR_FLUSH_ERR\nevent: QP_FATAL\nbehind it: WR_FLUSH_ERR",
            (false, false) => "request: SUCCESS\nevent: none\nbehind it: none",
            (false, true) => "request: WR_FLUSH_ERR\nevent: none\nbehind it: none",
        };
        cases.push(case(scenario, [server, client]));
    }
    cases
}

/// WRITEs without end.
const FLOOD: &str = "iwarp-flood";

/// What both ends say of one whose connection is lost.
const LOST: [&str; 2] = ["running\nreceive: WR_FLUSH_ERR", "running\nbehind it: WR_FLUSH_ERR"];
