//! The plan of a turn: which parts it has, in which order, and what becomes of its requests.
//!
//! All functions are pure: their results follow from their arguments, and the tests are their
//! tables.

use crate::qp::state::QpInner;

/// Packets of each direction in one turn: one full GSO run.
pub(super) const TURN_PACKETS: usize = 64;

/// Bytes of requests after which a turn goes on to the responses: one full GSO run. A batch holds
/// four such runs, so responses leave within two turns of a queue pair, however many requests it
/// has.
pub(super) const TURN_BYTES: usize = 60 * 1024;

/// A part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnPart {
    Requests,
    /// Requests that probe a silent peer, and no others.
    Probe,
    Responses,
}

/// The part that a queue pair writes first in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnOrder {
    /// Requests: an ACK does not keep the application's next message waiting.
    RequestsFirst,
    /// Responses: where applications sleep for their completions, an ACK costs little beside the
    /// wake-up. The ACK goes ahead of the reply, as from hardware, so the peer's send completes
    /// before the reply arrives. Programs that wait for one event of either kind count on that
    /// (perftest's do).
    ResponsesFirst,
}

impl TurnOrder {
    pub(super) fn of(qp: &QpInner) -> Self {
        let sleeps = qp.cqs().any(|cq| cq.has_channel());
        if sleeps { Self::ResponsesFirst } else { Self::RequestsFirst }
    }

    fn parts(self) -> &'static [TurnPart] {
        match self {
            Self::RequestsFirst => &[TurnPart::Requests, TurnPart::Responses],
            Self::ResponsesFirst => &[TurnPart::Responses, TurnPart::Requests],
        }
    }
}

/// Returns the parts of a turn. Requests need room in the window of their destination (`admitted`).
/// Responses of a queue pair that was posted to may be left for later (`requests_alone`).
#[inline]
pub(super) fn parts(order: TurnOrder, admitted: bool, requests_alone: bool) -> &'static [TurnPart] {
    match (admitted, requests_alone) {
        (false, _) => &[TurnPart::Responses],
        (true, true) => &[TurnPart::Requests],
        (true, false) => order.parts(),
    }
}

/// The result of carrying out requests that need no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// The next request takes packets.
    Packets,
    /// The next request waits for acknowledgements, which make the queue pair ready.
    Waits,
    /// Some requests were carried out, and there may be more.
    Did,
}

/// Returns which packets the requests of a turn become. A queue pair that `switches` from the link
/// to memory lets its peer acknowledge first. While it waits for that, or for another
/// acknowledgement, the probe that finds out what was lost leaves all the same.
#[inline]
pub(super) fn requests(direct: Direct, switches: bool, probing: bool) -> Option<TurnPart> {
    match direct {
        Direct::Did => None,
        Direct::Packets if !switches => Some(TurnPart::Requests),
        Direct::Packets | Direct::Waits => probing.then_some(TurnPart::Probe),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_turn_are_those_of_the_table() {
        use TurnOrder::{RequestsFirst, ResponsesFirst};
        let rows: [(TurnOrder, bool, bool, &[TurnPart]); 6] = [
            (RequestsFirst, true, false, &[TurnPart::Requests, TurnPart::Responses]),
            (ResponsesFirst, true, false, &[TurnPart::Responses, TurnPart::Requests]),
            (RequestsFirst, true, true, &[TurnPart::Requests]),
            (ResponsesFirst, true, true, &[TurnPart::Requests]),
            // A queue pair that waits for a window responds all the same.
            (RequestsFirst, false, true, &[TurnPart::Responses]),
            (ResponsesFirst, false, false, &[TurnPart::Responses]),
        ];
        for (order, admitted, alone, expected) in rows {
            assert_eq!(parts(order, admitted, alone), expected, "{order:?} {admitted} {alone}");
        }
    }

    #[test]
    fn requests_become_what_the_table_says() {
        let rows = [
            (Direct::Packets, false, false, Some(TurnPart::Requests)),
            (Direct::Packets, false, true, Some(TurnPart::Requests)),
            (Direct::Packets, true, false, None),
            (Direct::Packets, true, true, Some(TurnPart::Probe)),
            (Direct::Waits, false, false, None),
            (Direct::Waits, false, true, Some(TurnPart::Probe)),
            (Direct::Waits, true, true, Some(TurnPart::Probe)),
            (Direct::Did, false, true, None),
            (Direct::Did, true, true, None),
        ];
        for (direct, switches, probing, expected) in rows {
            assert_eq!(requests(direct, switches, probing), expected, "{direct:?} {switches}");
        }
    }
}
