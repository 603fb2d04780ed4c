//! Delayed ACKs: how long the acknowledgement of a queue pair may wait.
//!
//! An ACK is a packet and, where nothing else goes to that peer, a system call; both cost as much
//! as a small message. IBTA lets a responder acknowledge many requests with one ACK (9.7.5.1.2). So
//! an ACK that is all a queue pair has to send waits a moment: for more requests to acknowledge, or
//! for a reply that it can ride with. READ and atomic responses and NAKs never wait.
//!
//! Whether waiting is right depends on the peer. A peer that sends on without the ACK (a ping-pong
//! of messages, a stream) gains. A peer that needs its completion before it goes on would lose
//! [`HOLD_NANOS`] each time.
//!
//! So each queue pair learns. If no more requests came while an ACK waited, and that happens a few
//! times in a row, waiting is given up for the next [`PROMPT_BURSTS`] bursts. These are
//! acknowledged at the next poll, or with a reply if one is posted first. After them the queue pair
//! tries waiting again.
//!
//! Limits: an ACK waits [`HOLD_NANOS`] while the application calls into the device. If the
//! application does not call, the ACK waits until the background thread takes over. It also waits
//! no longer than so many packets of the lane.

use vernic_proto::Time;

/// How long an ACK waits, in nanoseconds: about the round trip of a network. Between spinning
/// processes it is four round trips of a small message, so a ping-pong sends one ACK for every four
/// messages. Measured (p50 one way, 64 bytes): 2.55 us with 10 us, 2.35 with 20, 2.36 with 40.
const HOLD_NANOS: u64 = 20_000;

/// Bursts acknowledged at once after waiting was in vain. With this number, one more try costs 20
/// ns per message.
const PROMPT_BURSTS: u16 = 1024;

/// Times in a row that waiting may be in vain: the peer's process may just not have run.
const MISSES: u8 = 3;

/// The state of a queue pair's acknowledgements. Protected by the lock of its core.
#[derive(Debug, Default)]
pub(crate) struct AckHold {
    /// Whether an ACK is delayed.
    listed: bool,
    /// Whether more requests came since.
    more: bool,
    due: Time,
    /// Times in a row that waiting was in vain.
    misses: u8,
    /// Bursts that are still acknowledged at once.
    prompt: u16,
}

impl AckHold {
    /// Delays an ACK, and returns when it must leave. Called when an ACK is the only response that
    /// there is, after a turn (`burst` is `None`) or a burst of packets, with requests (`true`) or
    /// without.
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

    /// Notes that the ACK has left with something else.
    #[inline]
    pub(crate) fn left(&mut self) {
        self.listed = false;
    }

    /// Notes that the ACK leaves now. If it `has_waited`, it leaves because it waited as long as it
    /// may.
    pub(crate) fn release(&mut self, has_waited: bool) {
        if has_waited && self.prompt == 0 {
            self.learn();
        }
        self.listed = false;
    }

    /// Learns from an ACK that has waited as long as it may whether the wait was worth it.
    fn learn(&mut self) {
        if self.more {
            self.misses = 0;
        } else {
            self.misses += 1;
            if self.misses > MISSES {
                // After the prompt bursts, one more miss is enough to be prompt again.
                self.misses = MISSES;
                self.prompt = PROMPT_BURSTS;
            }
        }
    }

    /// Notes a burst that came while an ACK waited. A burst without requests holds ACKs of the
    /// peer, and gave the waiting ACK nothing more to acknowledge.
    fn meanwhile(&mut self, requests: bool) {
        self.more |= requests;
    }

    /// Whether an ACK is delayed that should leave with a reply posted now.
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
        // The prompt bursts are over; one more miss is enough.
        hold.prompt = 0;
        hold.learn();
        assert_eq!(hold.prompt, PROMPT_BURSTS);
    }

    #[test]
    fn the_peers_own_acks_are_no_reason_to_wait() {
        // A ping-pong with one request in flight: both ends delay an ACK, and the peer's ACK
        // comes first.
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
