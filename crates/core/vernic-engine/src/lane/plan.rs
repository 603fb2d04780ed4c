//! The plan of a turn: which parts it has, in which order, and what becomes of its requests.
//!
//! Pure: what the functions say follows from their arguments, and the tests are their tables.

use crate::qp::state::QpInner;

/// A part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Requests,
    /// The packets alone, of the requests, that ask a silent peer.
    Probe,
    Answers,
}

/// What a queue pair writes first in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The application's next message is not kept waiting by an ACK.
    RequestsFirst,
    /// Where applications sleep for their completions, an ACK costs little beside the wake-up. It
    /// goes ahead of the reply, as from hardware: the peer's send completes before the reply
    /// arrives, and programs that wait for one event of either kind count on that (perftest's do).
    AnswersFirst,
}

impl Order {
    pub(super) fn of(qp: &QpInner) -> Self {
        let sleeps = qp.cqs().any(|cq| cq.has_channel());
        if sleeps { Self::AnswersFirst } else { Self::RequestsFirst }
    }

    fn parts(self) -> &'static [Part] {
        match self {
            Self::RequestsFirst => &[Part::Requests, Part::Answers],
            Self::AnswersFirst => &[Part::Answers, Part::Requests],
        }
    }
}

/// The parts of a turn. Requests need the window of their destination (`admitted`); answers of one
/// that was posted to may be left for later (`requests_alone`).
#[inline]
pub(super) fn parts(order: Order, admitted: bool, requests_alone: bool) -> &'static [Part] {
    match (admitted, requests_alone) {
        (false, _) => &[Part::Answers],
        (true, true) => &[Part::Requests],
        (true, false) => order.parts(),
    }
}

/// What came of requests that need no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// What comes next takes packets.
    Packets,
    /// What comes next waits for acknowledgements, which make the queue pair ready.
    Waits,
    /// Some were carried out, and there may be more.
    Did,
}

/// Which packets the requests of a turn become. A queue pair that `switches` from the link to
/// memory lets its peer acknowledge first; where that waits, or an acknowledgement is waited for,
/// the probe that finds out what was lost leaves all the same.
#[inline]
pub(super) fn requests(direct: Direct, switches: bool, probing: bool) -> Option<Part> {
    match direct {
        Direct::Did => None,
        Direct::Packets if !switches => Some(Part::Requests),
        Direct::Packets | Direct::Waits => probing.then_some(Part::Probe),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_turn_are_those_of_the_table() {
        use Order::{AnswersFirst, RequestsFirst};
        let rows: [(Order, bool, bool, &[Part]); 6] = [
            (RequestsFirst, true, false, &[Part::Requests, Part::Answers]),
            (AnswersFirst, true, false, &[Part::Answers, Part::Requests]),
            (RequestsFirst, true, true, &[Part::Requests]),
            (AnswersFirst, true, true, &[Part::Requests]),
            // One that waits for a window answers all the same.
            (RequestsFirst, false, true, &[Part::Answers]),
            (AnswersFirst, false, false, &[Part::Answers]),
        ];
        for (order, admitted, alone, expected) in rows {
            assert_eq!(parts(order, admitted, alone), expected, "{order:?} {admitted} {alone}");
        }
    }

    #[test]
    fn requests_become_what_the_table_says() {
        let rows = [
            (Direct::Packets, false, false, Some(Part::Requests)),
            (Direct::Packets, false, true, Some(Part::Requests)),
            (Direct::Packets, true, false, None),
            (Direct::Packets, true, true, Some(Part::Probe)),
            (Direct::Waits, false, false, None),
            (Direct::Waits, false, true, Some(Part::Probe)),
            (Direct::Waits, true, true, Some(Part::Probe)),
            (Direct::Did, false, true, None),
            (Direct::Did, true, true, None),
        ];
        for (direct, switches, probing, expected) in rows {
            assert_eq!(requests(direct, switches, probing), expected, "{direct:?} {switches}");
        }
    }
}
