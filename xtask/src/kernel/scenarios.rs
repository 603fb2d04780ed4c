//! What our own judge, `probe`, must say at both ends: data that arrives, and requests that fail
//! with the status that IBTA gives each end, whichever of the two is the kernel's.

use super::case::Agreed;
use super::case::{Case, Expected, Fault, Place, Program};

/// What our judge says at both ends once a scenario runs that ends by a fault.
pub(super) const RUNNING: &str = "running";

/// Where it listens for connections by address.
pub(super) const CM_PORT: u16 = 18_516;

/// The program, as it is called here and in the guest.
pub(super) const PROBE: &str = "probe";

/// Server and client agree.
const fn both(line: &'static str) -> [&'static str; 2] {
    [line, line]
}

/// A request that the responder refuses. Both queue pairs are in error then (IBTA 9.9.2.4.1,
/// 9.9.3), what waits in them is flushed (10.3.1).
const REFUSED: &str = "receive: WR_FLUSH_ERR\nstate: ERR";
const NO_ACCESS: &str = "request: REM_ACCESS_ERR\nbehind it: WR_FLUSH_ERR\nstate: ERR";
const NO_REQUEST: &str = "request: REM_INV_REQ_ERR\nbehind it: WR_FLUSH_ERR\nstate: ERR";

/// Options and scenarios, and what server and client print.
const SCENARIOS: &[(&str, [&str; 2])] = &[
    ("verify", both("15 sizes verified")),
    ("uc-verify", both("15 sizes verified")),
    ("-n 1000 stream", both("1000 messages verified")),
    ("reads", both("reads verified")),
    ("atomics", both("100 atomics of each kind verified")),
    ("datagrams", both("6 datagrams verified")),
    ("solicited", ["plain: asleep\nsolicited: woken", "sent"]),
    ("rnr-wait", both("10 messages waited for")),
    ("rnr-end", ["state: RTS", "request: RNR_RETRY_EXC_ERR\nstate: ERR"]),
    ("silence", ["state: RESET", "request: RETRY_EXC_ERR\nstate: ERR"]),
    ("write-index", [REFUSED, NO_ACCESS]),
    ("write-key", [REFUSED, NO_ACCESS]),
    ("write-bounds", [REFUSED, NO_ACCESS]),
    ("write-right", [REFUSED, NO_ACCESS]),
    ("write-disabled", [REFUSED, NO_REQUEST]),
    ("read-key", [REFUSED, NO_ACCESS]),
    ("read-bounds", [REFUSED, NO_ACCESS]),
    ("read-right", [REFUSED, NO_ACCESS]),
    ("read-disabled", [REFUSED, NO_REQUEST]),
    ("atomic-key", [REFUSED, NO_ACCESS]),
    ("atomic-bounds", [REFUSED, NO_ACCESS]),
    ("atomic-right", [REFUSED, NO_ACCESS]),
    ("atomic-disabled", [REFUSED, NO_REQUEST]),
    ("atomic-alignment", [REFUSED, NO_REQUEST]),
    ("send-long", ["receive: LOC_LEN_ERR\nstate: ERR", NO_REQUEST]),
    (
        "send-longer",
        ["receive: LOC_LEN_ERR\nstate: ERR\nreceive behind it: WR_FLUSH_ERR", NO_REQUEST],
    ),
    ("local-key", ["state: RTS", "request: LOC_PROT_ERR\nstate:"]),
    (
        "invalidate",
        [
            "invalidated: the window\nreceive: WR_FLUSH_ERR",
            "before: SUCCESS\nSEND: SUCCESS\nafter: REM_ACCESS_ERR",
        ],
    ),
];

/// Scenarios that show data when packets are lost or damaged.
const UNDER_FAULTS: &[(&str, [&str; 2])] = &[
    ("verify", both("15 sizes verified")),
    ("-n 1000 stream", both("1000 messages verified")),
    ("reads", both("reads verified")),
    ("atomics", both("100 atomics of each kind verified")),
    ("rnr-wait", both("10 messages waited for")),
];

/// Scenarios during which the server (0) or the client (1) is killed, and what the other says.
const KILLED: &[(&str, usize, &str)] = &[
    ("flood-write", 0, "request: RETRY_EXC_ERR"),
    ("flood-send", 0, "request: RETRY_EXC_ERR"),
    ("flood-write", 1, "the other end is gone"),
    ("flood-send", 1, "the other end is gone"),
];

/// All of them in one place.
pub(super) fn all(place: Place) -> Vec<Case> {
    let case = |options: String, fault, expected| Case {
        program: PROBE,
        kind: Program::Probe,
        service: "",
        options,
        fault,
        agreed: Agreed::Crc,
        place,
        expected,
        in_ci: true,
        limit_s: 90,
    };
    let mut cases = Vec::new();
    for (options, lines) in SCENARIOS {
        cases.push(case((*options).into(), Fault::None, Expected::Lines(*lines)));
    }
    let whole =
        case("-x 67108864 verify".into(), Fault::None, Expected::Lines(both("16 sizes verified")));
    cases.push(Case { in_ci: false, limit_s: 600, ..whole });
    for (options, lines) in UNDER_FAULTS {
        for fault in [Fault::Loss, Fault::Corrupt, Fault::Link] {
            cases.push(case((*options).into(), fault, Expected::Lines(*lines)));
        }
    }
    if !place.to_kernel {
        let forged = Expected::Forged(both("1000 messages verified"));
        cases.push(case("-n 1000 stream".into(), Fault::None, forged));
    }
    for (options, side, survivor) in KILLED {
        let killed = Expected::Killed { side: *side, survivor };
        cases.push(case((*options).into(), Fault::None, killed));
    }
    cases
}
