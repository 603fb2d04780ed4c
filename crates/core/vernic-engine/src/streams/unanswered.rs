//! Connections that a peer was asked for, and that nobody wants any more before its reply is here.
//!
//! The reply may be on its way, and a peer that has accepted may not be prepared for the end of the
//! connection before it has heard the initiator's first word. So the reply is waited for: for a
//! second, far longer than it is on its way, since of a peer whose application has not decided yet
//! nothing is known either then. Owned by an orphan (`orphan.rs`), which says what follows from it.

use vernic_proto::Time;
use vernic_proto::iwarp::{Agreed, Startup, StartupState, StreamEnd};

/// Nanoseconds that a reply is waited for.
const REPLY_NANOS: u64 = 1_000_000_000;

/// What is known of the reply.
pub(super) enum Answer {
    NotYet,
    /// It did not come in time, or says no.
    Never,
    /// It asks for what this end cannot do, and is told so in these words.
    Refused(Vec<u8>),
    Accepted(Agreed),
}

/// A start-up whose request was sent.
pub(crate) struct Unanswered {
    startup: Startup,
    until: Time,
}

impl Unanswered {
    /// Of an initiator's start-up that waits, and has nothing more to send; none of another.
    pub(crate) fn new(startup: Startup, now: Time) -> Option<Self> {
        let waits = startup.is_initiator() && startup.state() == StartupState::Waiting;
        let until = now + REPLY_NANOS;
        (waits && startup.transmit().is_empty()).then_some(Self { startup, until })
    }

    pub(super) fn deadline(&self) -> Time {
        self.until
    }

    /// Takes what came, and whether more can come. Behind its reply a peer says nothing before the
    /// first word.
    pub(super) fn hear(&mut self, bytes: &[u8], ended: bool, now: Time) -> Answer {
        let Self { startup, until } = self;
        startup.handle_bytes(bytes);
        if ended {
            startup.handle_end(StreamEnd::Closed);
        }
        match (startup.agreed(), startup.state()) {
            (Some(agreed), _) => Answer::Accepted(*agreed),
            (None, StartupState::Waiting) if now < *until => Answer::NotYet,
            (None, _) if startup.transmit().is_empty() => Answer::Never,
            (None, _) => Answer::Refused(startup.transmit().to_vec()),
        }
    }
}
