//! The standing of a queue pair, which is its state in the scheduler, and the function that returns
//! the next standing after an event.

/// The state of a queue pair in the scheduler. For each state but [`Idle`](Self::Idle) there is a
/// list, on which the queue pair then is; for [`WaitsForWindow`](Self::WaitsForWindow), one for
/// each destination window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing is to be done until an event or a post comes.
    #[default]
    Idle,
    /// The queue pair has its turn as soon as the ready queue pairs before it have had theirs.
    Ready,
    /// The queue pair has more to send, but its receiver has no room. The next call that makes
    /// progress gives it a turn again.
    Backpressured,
    /// The queue pair has requests to send, but they wait until their destination window has room.
    WaitsForWindow,
    /// The queue pair has only an ACK to send, which waits a moment for more requests to
    /// acknowledge.
    AckDelayed,
}

/// The result of a queue pair's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// Packets were written.
    Wrote,
    /// There was nothing to write, or the batch had no room.
    Nothing,
    /// More is to be written, but the receiver has no room.
    Backpressured,
}

impl TurnResult {
    /// Combines the results of the two parts of a turn, requests and responses. If the receiver had
    /// no room for one part, the queue pair gets another turn, in which both parts are tried again.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Backpressured, _) | (_, Self::Backpressured) => Self::Backpressured,
            (Self::Wrote, _) | (_, Self::Wrote) => Self::Wrote,
            _ => Self::Nothing,
        }
    }

    pub(crate) fn written(written: bool) -> Self {
        if written { Self::Wrote } else { Self::Nothing }
    }
}

/// An event of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A turn of the queue pair is over.
    Turn(TurnResult),
    /// Packets for the queue pair were handled. `requests` says whether requests were among them.
    Packets { requests: bool },
    /// The timer fired, the peer is gone, or the state was changed.
    Changed,
    /// A turn of the queue pair's iWARP connection is over. `again` says whether the connection
    /// needs another turn.
    Stream { again: bool },
}

/// What a queue pair has to send. The methods are called only where their results matter, because
/// they cost time.
pub(crate) trait Wants {
    fn requests(&self) -> bool;
    fn responses(&self) -> bool;
}

/// Returns the standing of a queue pair after an event. `only_ack` says that its only response is
/// an ACK that may be delayed. `waits` says that its requests wait for their destination window.
#[inline]
pub(crate) fn after(
    was: Standing,
    event: Event,
    wants: &impl Wants,
    only_ack: bool,
    waits: bool,
) -> Standing {
    if matches!(was, Standing::Ready | Standing::Backpressured) {
        // A turn is sure to come, and handles everything.
        return was;
    }
    match event {
        Event::Stream { again } => {
            if again {
                Standing::Ready
            } else {
                was
            }
        }
        Event::Turn(TurnResult::Backpressured) => Standing::Backpressured,
        Event::Turn(turn) => {
            let again = turn == TurnResult::Wrote;
            if again && !waits && wants.requests() {
                Standing::Ready
            } else if only_ack {
                Standing::AckDelayed
            } else if again && wants.responses() {
                Standing::Ready
            } else if waits {
                Standing::WaitsForWindow
            } else {
                Standing::Idle
            }
        }
        Event::Packets { .. } if only_ack => {
            if wants.requests() {
                Standing::Ready
            } else {
                Standing::AckDelayed
            }
        }
        Event::Packets { .. } | Event::Changed => {
            if wants.requests() || wants.responses() {
                Standing::Ready
            } else {
                was
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work of a queue pair: requests, responses, and whether an ACK is its only response.
    struct Has(bool, bool, bool);

    impl Wants for Has {
        fn requests(&self) -> bool {
            self.0
        }
        fn responses(&self) -> bool {
            self.1
        }
    }

    const NOTHING: Has = Has(false, false, false);
    const REQUESTS: Has = Has(true, false, false);
    const RESPONSES: Has = Has(false, true, false);
    const ACK: Has = Has(false, true, true);
    const REQUESTS_AND_ACK: Has = Has(true, true, true);

    const ALL: [Standing; 5] = [
        Standing::Idle,
        Standing::Ready,
        Standing::Backpressured,
        Standing::WaitsForWindow,
        Standing::AckDelayed,
    ];

    #[test]
    fn a_turn_leads_where_the_table_says() {
        use Standing::{AckDelayed, Backpressured, Idle, Ready, WaitsForWindow};
        use TurnResult::{Nothing, Wrote};
        let rows = [
            (Wrote, NOTHING, false, Idle),
            (Wrote, REQUESTS, false, Ready),
            (Wrote, REQUESTS, true, WaitsForWindow),
            (Wrote, RESPONSES, false, Ready),
            (Wrote, ACK, false, AckDelayed),
            (Wrote, REQUESTS_AND_ACK, false, Ready),
            (Wrote, REQUESTS_AND_ACK, true, AckDelayed),
            (Nothing, NOTHING, false, Idle),
            // The requests wait for an acknowledgement or for the timer, and that event then makes
            // the queue pair ready.
            (Nothing, REQUESTS, false, Idle),
            (Nothing, REQUESTS, true, WaitsForWindow),
            (Nothing, ACK, false, AckDelayed),
            (TurnResult::Backpressured, REQUESTS, false, Backpressured),
            (TurnResult::Backpressured, ACK, true, Backpressured),
        ];
        for (turn, wants, waits, expected) in rows {
            assert_eq!(
                after(Idle, Event::Turn(turn), &wants, wants.2, waits),
                expected,
                "{turn:?}"
            );
        }
    }

    #[test]
    fn packets_and_timers_lead_where_the_table_says() {
        use Standing::{AckDelayed, Idle, Ready, WaitsForWindow};
        let packets = Event::Packets { requests: true };
        let rows = [
            (Idle, packets, NOTHING, Idle),
            (Idle, packets, ACK, AckDelayed),
            (Idle, packets, RESPONSES, Ready),
            (Idle, packets, REQUESTS_AND_ACK, Ready),
            (AckDelayed, packets, ACK, AckDelayed),
            (WaitsForWindow, packets, NOTHING, WaitsForWindow),
            (WaitsForWindow, packets, REQUESTS_AND_ACK, Ready),
            (Idle, Event::Changed, NOTHING, Idle),
            (Idle, Event::Changed, ACK, Ready),
            (WaitsForWindow, Event::Changed, REQUESTS, Ready),
            (Idle, Event::Stream { again: true }, NOTHING, Ready),
            (Idle, Event::Stream { again: false }, REQUESTS, Idle),
        ];
        for (was, event, wants, expected) in rows {
            assert_eq!(after(was, event, &wants, wants.2, false), expected, "{was:?} {event:?}");
        }
    }

    #[test]
    fn a_turn_that_is_sure_to_come_is_never_given_up() {
        for was in [Standing::Ready, Standing::Backpressured] {
            for event in [
                Event::Turn(TurnResult::Nothing),
                Event::Changed,
                Event::Packets { requests: false },
            ] {
                assert_eq!(after(was, event, &NOTHING, false, false), was);
            }
        }
    }

    /// No queue pair that has written and has more to send is left idle, whatever else holds.
    #[test]
    fn nothing_that_could_be_sent_is_left_idle() {
        for was in ALL {
            for waits in [false, true] {
                for bits in 0..8 {
                    // An ACK alone is a response.
                    let wants = Has(bits & 1 != 0, bits & 6 != 0, bits & 4 != 0);
                    for event in [Event::Turn(TurnResult::Wrote), Event::Packets { requests: true }]
                    {
                        let then = after(was, event, &wants, wants.2, waits);
                        let has_work = wants.0 || wants.1;
                        assert!(!has_work || then != Standing::Idle, "{was:?} {event:?} {bits}");
                    }
                }
            }
        }
    }
}
