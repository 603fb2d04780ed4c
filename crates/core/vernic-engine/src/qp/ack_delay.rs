//! Delayed ACKs: how long the acknowledgement of a queue pair may wait.
//!
//! An ACK is a packet and, where nothing else goes to that peer, a system call; both cost as much
//! as a small message. IBTA lets a responder acknowledge many requests with one ACK (9.7.5.1.2). So
//! when a queue pair has nothing but an ACK to send, the ACK waits a moment: for more requests that
//! it can acknowledge, too, or until the application posts a request in the other direction, with
//! which it leaves in one system call. READ and atomic responses and NAKs never wait.
//!
//! Whether the delay pays depends on the peer. It does if the peer goes on sending without the ACK
//! (a ping-pong of messages, a stream). A peer that needs its completion before it goes on would
//! lose [`ACK_DELAY_NANOS`] each time.
//!
//! So each queue pair learns. If an ACK waited and no more requests came, the delay was in vain.
//! After a few such ACKs in a row, the queue pair delays no ACK for the next [`PROMPT_BURSTS`]
//! bursts (a burst is what one poll receives for a queue pair). These are acknowledged at the next
//! poll, or together with a request that the application posts first. After them, the queue pair
//! tries the delay again.
//!
//! Limits: an ACK waits [`ACK_DELAY_NANOS`] while the application calls into the device. If the
//! application does not call, the ACK waits until the background thread takes over. An ACK also
//! leaves when the lane has handled a certain number of packets since.

use vernic_proto::Time;

/// How long an ACK is delayed, in nanoseconds: about the round trip of a network. Between two
/// processes of a host that spin, an answer carries the ACK before that. As long as ACKs were
/// packets there, a ping-pong of 64 bytes took 2.55 us one way (p50) with a delay of 10 us, 2.35 us
/// with 20 us, and 2.36 us with 40 us.
const ACK_DELAY_NANOS: u64 = 20_000;

/// The number of bursts that are acknowledged without delay after delays were in vain. It is so
/// large that the next try of a delay, which may cost [`ACK_DELAY_NANOS`], adds only 20 ns per
/// message.
const PROMPT_BURSTS: u16 = 1024;

/// Delays in a row that may be in vain before the queue pair stops delaying. A few are allowed
/// because the peer's process may just not have been running.
const MISSES: u8 = 3;

/// The delayed ACK of one queue pair, and what the queue pair has learnt about delays. Protected by
/// the lock of the queue pair's core.
#[derive(Debug, Default)]
pub(crate) struct AckDelay {
    /// Whether an ACK is being delayed.
    listed: bool,
    /// Whether more requests have come since the ACK was delayed.
    more: bool,
    due: Time,
    /// Delays in a row that were in vain.
    misses: u8,
    /// Bursts that are still to be acknowledged without delay.
    prompt: u16,
}

impl AckDelay {
    /// Delays an ACK, and returns when the ACK must leave. Called when an ACK is all that the queue
    /// pair has to send in response: after a turn (`burst` is `None`), or after a burst of received
    /// packets, which had requests (`Some(true)`) or none (`Some(false)`).
    #[inline]
    pub(crate) fn delay(&mut self, burst: Option<bool>, now: Time) -> Time {
        if !self.listed {
            self.listed = true;
            self.more = false;
            self.prompt = self.prompt.saturating_sub(1);
            self.due = if self.prompt == 0 { now + ACK_DELAY_NANOS } else { now };
        } else if let Some(requests) = burst {
            self.meanwhile(requests);
        }
        self.due
    }

    /// Notes that the delayed ACK has left together with other packets.
    #[inline]
    pub(crate) fn left(&mut self) {
        self.listed = false;
    }

    /// Notes that the delayed ACK leaves now. `has_waited` says that it leaves because the delay is
    /// over.
    pub(crate) fn release(&mut self, has_waited: bool) {
        if has_waited && self.prompt == 0 {
            self.learn();
        }
        self.listed = false;
    }

    /// Learns whether a delay was in vain, from an ACK whose delay is over.
    fn learn(&mut self) {
        if self.more {
            self.misses = 0;
        } else {
            self.misses += 1;
            if self.misses > MISSES {
                // After the next [`PROMPT_BURSTS`] bursts, one more delay in vain is enough to stop
                // again.
                self.misses = MISSES;
                self.prompt = PROMPT_BURSTS;
            }
        }
    }

    /// Notes a burst of packets that came while an ACK was delayed. If `requests` is false, the
    /// burst has only ACKs of the peer, so the delayed ACK has nothing more to acknowledge.
    fn meanwhile(&mut self, requests: bool) {
        self.more |= requests;
    }

    /// Whether an ACK is being delayed.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether an ACK waits that is not to be delayed, and so should leave with a request that the
    /// application posts now.
    pub(crate) fn rides(&self) -> bool {
        self.listed && self.prompt != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_waits_for_its_ack_soon_gets_it_at_once_and_is_tried_again_later() {
        let mut delay = AckDelay::default();
        for _ in 0..MISSES {
            delay.learn();
            assert_eq!(delay.prompt, 0, "a few misses may be the scheduler's");
        }
        delay.learn();
        assert_eq!(delay.prompt, PROMPT_BURSTS);
        delay.listed = true;
        assert!(delay.rides());
        // The bursts whose ACKs are not delayed are over. After them, a single delay that gained
        // nothing ends the delays again.
        delay.prompt = 0;
        delay.learn();
        assert_eq!(delay.prompt, PROMPT_BURSTS);
    }

    #[test]
    fn the_peers_own_acks_are_no_reason_to_wait() {
        // A ping-pong with one request in flight: both ends delay an ACK, and the peer's ACK
        // comes first.
        let mut delay = AckDelay { listed: true, ..AckDelay::default() };
        for _ in 0..=MISSES {
            delay.more = false;
            delay.meanwhile(false);
            delay.learn();
        }
        assert!(delay.rides());
        delay.meanwhile(true);
        delay.meanwhile(false);
        delay.learn();
        assert_eq!(delay.misses, 0, "requests came");
    }

    #[test]
    fn a_peer_that_sends_on_without_the_ack_is_never_acknowledged_at_once() {
        let mut delay = AckDelay::default();
        for round in 0..100 {
            delay.more = round % (MISSES + 1) == 0;
            delay.learn();
            assert_eq!(delay.prompt, 0);
        }
    }
}
