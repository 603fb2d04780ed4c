//! Connections that this end gave up after it had sent the start-up's request and before the peer
//! replied.
//!
//! The peer's reply may be on its way. A peer that has accepted may not be ready for the end of the
//! connection before it gets the initiator's ready-to-receive indication. So the connection waits
//! for the reply for a second, which is far longer than a reply travels. If the peer's application
//! has not decided by then, there is no point in waiting longer. A lingering connection
//! (`lingering.rs`) owns the start-up, and sends what has to be sent after the reply.

use vernic_proto::Time;
use vernic_proto::iwarp::{Agreed, Startup, StartupState, StreamEnd};

/// Time in nanoseconds for which a connection waits for the peer's reply.
const REPLY_NANOS: u64 = 1_000_000_000;

/// What is known of the peer's reply.
pub(super) enum Answer {
    NotYet,
    /// No reply came in time, or the peer rejects the connection.
    Never,
    /// The reply asks for something that this end cannot do. The bytes are the message that reports
    /// this to the peer.
    Refused(Vec<u8>),
    Accepted(Agreed),
}

/// A start-up with a request that was sent and not answered.
pub(crate) struct PendingStartup {
    startup: Startup,
    until: Time,
}

impl PendingStartup {
    /// Returns an initiator's start-up that only waits for the reply; `None` for any other
    /// start-up.
    pub(crate) fn new(startup: Startup, now: Time) -> Option<Self> {
        let waits = startup.is_initiator() && startup.state() == StartupState::Waiting;
        let until = now + REPLY_NANOS;
        (waits && startup.transmit().is_empty()).then_some(Self { startup, until })
    }

    pub(super) fn deadline(&self) -> Time {
        self.until
    }

    /// Handles bytes of the peer, and whether the stream has ended. All bytes belong to the reply,
    /// because a peer sends nothing after its reply before it gets the ready-to-receive indication.
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
