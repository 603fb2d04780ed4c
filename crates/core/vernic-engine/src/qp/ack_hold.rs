//! What a queue pair learns about its acknowledgements: whether waiting with them is right.

use vernic_proto::Time;

/// Bursts acknowledged at once after waiting turned out wrong: so one more try costs 20 ns per
/// message.
const PROMPT_BURSTS: u16 = 1024;

/// Times in a row that waiting may be for nothing: the peer's process may just not have run.
const MISSES: u8 = 3;

/// What a queue pair knows about its acknowledgements. Under its core's lock.
#[derive(Debug, Default)]
pub(crate) struct AckHold {
    /// In the list.
    pub(crate) listed: bool,
    /// More requests came since it was put there.
    pub(crate) more: bool,
    pub(crate) due: Time,
    /// Times in a row that waiting was for nothing.
    pub(crate) misses: u8,
    /// Bursts that are still acknowledged at once.
    pub(crate) prompt: u16,
}

impl AckHold {
    /// An ACK has waited as long as it may: was it worth it?
    pub(crate) fn learn(&mut self) {
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
    pub(crate) fn meanwhile(&mut self, requests: bool) {
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
