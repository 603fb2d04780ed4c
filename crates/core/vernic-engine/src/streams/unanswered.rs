//! Connections that a peer was asked for, and that were given up here before the peer's reply came.
//!
//! The reply may be on its way. A peer that has accepted may not be prepared for the end of the
//! connection before it gets the initiator's ready-to-receive indication. So the reply is waited
//! for: for a second, which is far longer than a reply travels. If the peer's application has not
//! decided by then, waiting longer gives no certainty either. An orphan (`orphan.rs`) owns the
//! start-up and sends what follows from the reply.

use vernic_proto::Time;
use vernic_proto::iwarp::{Agreed, Startup, StartupState, StreamEnd};

/// Nanoseconds that a reply is waited for.
const REPLY_NANOS: u64 = 1_000_000_000;

/// The state of the peer's reply.
pub(super) enum Answer {
    NotYet,
    /// The reply did not come in time, or rejects the connection.
    Never,
    /// The reply asks for something that this end cannot do; the bytes tell the peer so.
    Refused(Vec<u8>),
    Accepted(Agreed),
}

/// A start-up whose request was sent and not answered.
pub(crate) struct Unanswered {
    startup: Startup,
    until: Time,
}

impl Unanswered {
    /// Wraps an initiator's start-up that waits and has nothing more to send; `None` for any other.
    pub(crate) fn new(startup: Startup, now: Time) -> Option<Self> {
        let waits = startup.is_initiator() && startup.state() == StartupState::Waiting;
        let until = now + REPLY_NANOS;
        (waits && startup.transmit().is_empty()).then_some(Self { startup, until })
    }

    pub(super) fn deadline(&self) -> Time {
        self.until
    }

    /// Takes the bytes that came, and whether the stream has ended. A peer sends nothing behind its
    /// reply before it gets the ready-to-receive indication.
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
