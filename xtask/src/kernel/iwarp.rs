//! What is particular to iWARP, whose peer is `siw`: what both ends agree on when a connection
//! begins.

use super::cases::{Case, Expected, Fault, Place, Program};
use super::manager::{self, RPING, Roles, Rows, TCP, UCMATOSE, said};
use super::scenarios::PROBE;
use crate::conformance::{Output, Ready};

/// What both ends are told to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreed {
    /// CRCs, since Vernic asks for them, as it does unless it is told otherwise; MPA revision 2.
    Crc,
    /// No CRCs.
    Plain,
    /// CRCs, for which siw alone asks.
    SiwCrc,
    /// MPA revision 1, without depths.
    Revision1,
    /// The peer-to-peer model, for which siw asks: a message of no bytes comes first.
    PeerToPeer,
    /// What siw asks its own kind for with a reserved bit: segments longer than TCP's.
    Gso,
}

/// A parameter of the guest's module.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
    /// What it is without being told.
    pub(super) default: &'static str,
}

impl Agreed {
    /// Every one but the default.
    pub(super) const SPECIAL: [Self; 5] =
        [Self::Plain, Self::SiwCrc, Self::Revision1, Self::PeerToPeer, Self::Gso];

    /// The word for it in names of cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crc => "crc",
            Self::Plain => "plain",
            Self::SiwCrc => "siw-crc",
            Self::Revision1 => "mpa1",
            Self::PeerToPeer => "peer-to-peer",
            Self::Gso => "gso",
        }
    }

    /// What it is, in words.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Crc => "Vernic asks for CRCs",
            Self::Plain => "neither end asks for CRCs",
            Self::SiwCrc => "siw alone asks for CRCs",
            Self::Revision1 => "siw asks by MPA revision 1, without CRCs",
            Self::PeerToPeer => "siw asks for the peer-to-peer model",
            Self::Gso => "siw says that it can take segments longer than TCP's",
        }
    }

    /// Options of `vernic run`.
    pub(super) fn around(self) -> &'static str {
        match self {
            Self::Crc | Self::PeerToPeer => "",
            Self::Plain | Self::SiwCrc | Self::Revision1 | Self::Gso => "--set iwarp_crc=off",
        }
    }

    /// What the guest's module is told. It heeds this only when it is the one that connects.
    pub(super) fn parameter(self) -> Option<Parameter> {
        let of = |name, value, default| Some(Parameter { name, value, default });
        match self {
            Self::Crc | Self::Plain => None,
            Self::SiwCrc => of("mpa_crc_required", "1", "0"),
            Self::Revision1 => of("mpa_version", "1", "2"),
            Self::PeerToPeer => of("peer_to_peer", "1", "0"),
            Self::Gso => of("try_gso", "1", "0"),
        }
    }
}

/// Nobody listens: what TCP says is in the event at Vernic, and is the result of the call at siw.
pub(super) fn refused(rows: &mut Rows) {
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

/// perftest with messages of one byte, and of many segments. A server in the guest takes seconds to
/// fill its buffers with noise, before it can be connected to the second time.
pub(super) fn sizes(rows: &mut Rows, roles: Roles) {
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
