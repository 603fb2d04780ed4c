//! Delayed ACKs: how long the acknowledgement of a queue pair may wait.
//!
//! An ACK is a packet and, where nothing else goes to that peer, a system call; both cost as much
//! as a small message. IBTA lets a responder acknowledge many requests with one ACK (9.7.5.1.2), so
//! an ACK that is all a queue pair has to send waits a moment: for more requests to acknowledge, or
//! for a reply that it can ride with. READ and atomic responses and NAKs never wait.
//!
//! Whether waiting is right depends on the peer. One that sends on without the ACK (a ping-pong of
//! messages, a stream) gains. One that needs its completion before it goes on would lose
//! [`HOLD_NANOS`] each time. So each queue pair learns: if no more requests came while an ACK
//! waited, and that happens a few times in a row, the next [`PROMPT_BURSTS`] bursts are
//! acknowledged at the next poll, or ride with a reply if one is posted first; after those it tries
//! waiting again.
//!
//! Limits: an ACK waits [`HOLD_NANOS`] while the application calls into the device, until the
//! background thread takes over if it does not; and no longer than so many packets of the
//! lane.

use vernic_proto::Time;

/// How long an ACK waits, in nanoseconds: four round trips of a small message between spinning
/// processes, so that a ping-pong sends one for every four messages; about the round trip of a
/// network. Measured (p50 one way, 64 bytes): 2.55 us with 10 us, 2.35 with 20, 2.36 with 40.
const HOLD_NANOS: u64 = 20_000;

/// Bursts acknowledged at once after waiting turned out wrong: so one more try costs 20 ns per
/// message.
const PROMPT_BURSTS: u16 = 1024;

/// Times in a row that waiting may be for nothing: the peer's process may just not have run.
const MISSES: u8 = 3;

/// What a queue pair knows about its acknowledgements. Under its core's lock.
#[derive(Debug, Default)]
pub(crate) struct AckHold {
    /// An ACK is delayed.
    listed: bool,
    /// More requests came since.
    more: bool,
    due: Time,
    /// Times in a row that waiting was for nothing.
    misses: u8,
    /// Bursts that are still acknowledged at once.
    prompt: u16,
}

impl AckHold {
    /// A burst of packets was handled, with requests among them or not, or a turn is over, and all
    /// responses that there are is an ACK. Returns when it must leave.
    #[inline]
    pub(crate) fn delay(&mut self, burst: Option<bool>, now: Time) -> Time {
        if !self.listed {
            self.listed = true;
            self.more = false;
            self.prompt = self.prompt.saturating_sub(1);
            self.due = if self.prompt == 0 { now + HOLD_NANOS } else { now };
        } else if let Some(requests) = burst {
            self.meanwhile(requests);
        }
        self.due
    }

    /// The ACK has left with something else.
    #[inline]
    pub(crate) fn left(&mut self) {
        self.listed = false;
    }

    /// The ACK leaves now: since it has waited as long as it may, if it `has_waited`.
    pub(crate) fn release(&mut self, has_waited: bool) {
        if has_waited && self.prompt == 0 {
            self.learn();
        }
        self.listed = false;
    }

    /// An ACK has waited as long as it may: was it worth it?
    fn learn(&mut self) {
        if self.more {
            self.misses = 0;
        } else {
            self.misses += 1;
            if self.misses > MISSES {
                // One more after the prompt ones is enough to be prompt again.
                self.misses = MISSES;
                self.prompt = PROMPT_BURSTS;
            }
        }
    }

    /// A burst came while an ACK waited. Without requests, which are ACKs of the peer then, it gave
    /// the ACK nothing more to acknowledge.
    fn meanwhile(&mut self, requests: bool) {
        self.more |= requests;
    }

    /// Whether an ACK is owed that should ride with a reply posted now.
    pub(crate) fn rides(&self) -> bool {
        self.listed && self.prompt != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_waits_for_its_ack_soon_gets_it_at_once_and_is_tried_again_later() {
        let mut hold = AckHold::default();
        for _ in 0..MISSES {
            hold.learn();
            assert_eq!(hold.prompt, 0, "a few misses may be the scheduler's");
        }
        hold.learn();
        assert_eq!(hold.prompt, PROMPT_BURSTS);
        hold.listed = true;
        assert!(hold.rides());
        // Its time is over; one more miss is enough.
        hold.prompt = 0;
        hold.learn();
        assert_eq!(hold.prompt, PROMPT_BURSTS);
    }

    #[test]
    fn the_peers_own_acks_are_no_reason_to_wait() {
        // A ping-pong with one request in flight: both ends hold an ACK, and the other's comes
        // first.
        let mut hold = AckHold { listed: true, ..AckHold::default() };
        for _ in 0..=MISSES {
            hold.more = false;
            hold.meanwhile(false);
            hold.learn();
        }
        assert!(hold.rides());
        hold.meanwhile(true);
        hold.meanwhile(false);
        hold.learn();
        assert_eq!(hold.misses, 0, "requests came");
    }

    #[test]
    fn a_peer_that_sends_on_without_the_ack_is_never_acknowledged_at_once() {
        let mut hold = AckHold::default();
        for round in 0..100 {
            hold.more = round % (MISSES + 1) == 0;
            hold.learn();
            assert_eq!(hold.prompt, 0);
        }
    }
}
