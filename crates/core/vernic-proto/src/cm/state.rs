//! States of a connection, and what each message does in each: the table at the head of the module.

use vernic_wire::cm::CmAttribute;

/// State of a connection, or of an exchange of SIDR messages (IBTA 12.9.5, 12.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Active: the REQ is under way.
    ReqSent,
    /// Active: the peer needs time to answer it.
    MraReqRcvd,
    /// Active: the REP is here, the owner brings its queue pair up.
    RepRcvd,
    /// Active: and we asked for time.
    MraRepSent,
    /// Passive: the REQ is here, the owner has not answered it.
    ReqRcvd,
    /// Passive: and we asked for time.
    MraReqSent,
    /// Passive: the REP is under way.
    RepSent,
    /// Passive: the peer needs time to answer it.
    MraRepRcvd,
    /// Up.
    Established,
    /// Our DREQ is under way.
    DreqSent,
    /// A DREQ is here, the owner has not answered it.
    DreqRcvd,
    /// Down; packets may still be under way. Also a connection that was rejected, and is remembered
    /// for duplicates of what was rejected.
    Timewait,
    /// Client: the SIDR_REQ is under way.
    SidrReqSent,
    /// Server: the SIDR_REQ is here, the owner has not answered it.
    SidrReqRcvd,
    /// Server: answered, and remembered for duplicates.
    SidrDone,
}

/// Which limit counts the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// A request that the owner has not answered, or whose peer has not answered that.
    HalfOpen,
    /// Anything else that is alive.
    Live,
    /// Over, and remembered.
    Remembered,
}

impl State {
    #[cfg(test)]
    pub(super) const ALL: [Self; 15] = [
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::Established,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::Timewait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
        Self::SidrDone,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ReqSent => "REQ sent",
            Self::MraReqRcvd => "MRA of REQ received",
            Self::RepRcvd => "REP received",
            Self::MraRepSent => "MRA of REP sent",
            Self::ReqRcvd => "REQ received",
            Self::MraReqSent => "MRA of REQ sent",
            Self::RepSent => "REP sent",
            Self::MraRepRcvd => "MRA of REP received",
            Self::Established => "Established",
            Self::DreqSent => "DREQ sent",
            Self::DreqRcvd => "DREQ received",
            Self::Timewait => "TIMEWAIT",
            Self::SidrReqSent => "SIDR_REQ sent",
            Self::SidrReqRcvd => "SIDR_REQ received",
            Self::SidrDone => "SIDR_REP sent",
        }
    }

    /// Whether the peer's queue pair may have sent packets, or is about to, so that TIMEWAIT is for
    /// it too. Before that a peer may use it for its next REQ at once.
    pub(super) const fn holds_qp(self) -> bool {
        !matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::RepRcvd | Self::MraRepSent)
    }

    /// Whether it is a request that the owner has not answered.
    pub(super) const fn is_unanswered(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::SidrReqRcvd)
    }

    /// Whether the peer asked, and may not have heard our id.
    pub(super) const fn may_be_unheard(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::RepSent | Self::MraRepRcvd)
    }

    pub(super) const fn group(self) -> Group {
        match self {
            Self::ReqRcvd
            | Self::MraReqSent
            | Self::SidrReqRcvd
            | Self::RepSent
            | Self::MraRepRcvd => Group::HalfOpen,
            Self::Timewait | Self::SidrDone => Group::Remembered,
            _ => Group::Live,
        }
    }
}

/// What to do with a message of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// It moves the connection on.
    Take,
    /// It has come before; send what answered it again.
    Repeat,
    /// It has come before and the owner has not answered it; send an MRA.
    AskForTime,
    /// It has come before, and needs no answer.
    Duplicate,
    /// It makes no sense.
    Wrong,
}

/// The table. A REQ or a SIDR_REQ is asked about only if it has come before; an MRA counts by the
/// message that it acknowledges, so it is not here.
pub(super) const fn reaction(message: CmAttribute, state: State) -> Reaction {
    use Reaction::{AskForTime, Duplicate, Repeat, Take, Wrong};
    use State as S;
    match message {
        CmAttribute::REQ => match state {
            S::ReqRcvd | S::MraReqSent => AskForTime,
            S::RepSent | S::Timewait => Repeat,
            _ => Duplicate,
        },
        CmAttribute::REP => match state {
            S::ReqSent | S::MraReqRcvd => Take,
            S::RepRcvd | S::MraRepSent => AskForTime,
            S::Established | S::Timewait => Repeat,
            S::DreqSent | S::DreqRcvd => Duplicate,
            _ => Wrong,
        },
        CmAttribute::RTU => match state {
            S::RepSent | S::MraRepRcvd => Take,
            S::Timewait => Repeat,
            S::Established | S::DreqSent | S::DreqRcvd => Duplicate,
            _ => Wrong,
        },
        CmAttribute::REJ => match state {
            S::SidrReqSent | S::SidrReqRcvd | S::SidrDone => Wrong,
            S::Timewait => Duplicate,
            _ => Take,
        },
        CmAttribute::DREQ => match state {
            S::RepSent | S::MraRepRcvd | S::Established | S::DreqSent => Take,
            S::RepRcvd | S::MraRepSent => Take,
            S::DreqRcvd => Duplicate,
            S::Timewait => Repeat,
            _ => Wrong,
        },
        CmAttribute::DREP => match state {
            S::DreqSent => Take,
            S::Timewait => Duplicate,
            _ => Wrong,
        },
        CmAttribute::SIDR_REQ => match state {
            S::SidrDone => Repeat,
            _ => Duplicate,
        },
        CmAttribute::SIDR_REP => match state {
            S::SidrReqSent => Take,
            _ => Wrong,
        },
        _ => Wrong,
    }
}

/// Whether `answer` is what a duplicate of `message` gets.
pub(super) const fn answers(answer: CmAttribute, message: CmAttribute) -> bool {
    match message {
        CmAttribute::REQ => {
            matches!(answer, CmAttribute::REP | CmAttribute::REJ)
        }
        CmAttribute::REP => {
            matches!(answer, CmAttribute::RTU | CmAttribute::REJ)
        }
        CmAttribute::RTU => matches!(answer, CmAttribute::REJ),
        CmAttribute::DREQ => matches!(answer, CmAttribute::DREP),
        CmAttribute::SIDR_REQ => matches!(answer, CmAttribute::SIDR_REP),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table at the head of the module, by state.
    fn documented() -> Vec<(State, Vec<&'static str>)> {
        let head = include_str!("mod.rs").lines().take_while(|line| line.starts_with("//!"));
        let rows = head.filter_map(|line| line.strip_prefix("//! | "));
        let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        let table = cells.skip_while(|cells| cells[0] != "state").skip(1);
        let mut documented = Vec::new();
        for cells in table.take_while(|cells| cells[0] != "no connection") {
            for name in cells[0].split(", ") {
                let state = State::ALL.into_iter().find(|state| state.name() == name);
                documented.push((state.unwrap(), cells[1..7].to_vec()));
            }
        }
        documented
    }

    #[test]
    fn the_table_in_the_documentation_is_the_one_in_the_code() {
        let columns = [
            CmAttribute::REQ,
            CmAttribute::REP,
            CmAttribute::RTU,
            CmAttribute::REJ,
            CmAttribute::DREQ,
            CmAttribute::DREP,
        ];
        let documented = documented();
        assert_eq!(documented.len(), 12, "all states but those of SIDR");
        for (state, cells) in documented {
            for (message, cell) in columns.into_iter().zip(cells) {
                let said = match reaction(message, state) {
                    Reaction::Take => cell.starts_with("take"),
                    Reaction::Repeat => cell.ends_with("again"),
                    Reaction::AskForTime => cell == "MRA",
                    Reaction::Duplicate | Reaction::Wrong => cell == "-" || cell.is_empty(),
                };
                assert!(said, "{message} in {}: {cell}", state.name());
            }
        }
    }
}
