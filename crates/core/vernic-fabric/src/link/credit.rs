//! Credits of one lane, at the sender and at the receiver (IBTA 7.9.4.2, 7.9.4.3).
//!
//! Both ends count blocks of 64 bytes since the link came up, modulo 4,096. The receiver tells up
//! to which count the sender may send. Neither count ever goes back; a peer that moves one back, or
//! further ahead than any buffer can be, is at fault, and its link is trained anew.

use vernic_wire::FlowControl;

/// Counts are modulo this.
const MODULUS: u16 = FlowControl::MODULUS;
/// The most blocks that can be granted at once.
pub(crate) const MOST: u16 = 2048;

/// A count that the other end of the link cannot have meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadCount;

/// A count of blocks modulo 4,096.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count(u16);

impl Count {
    /// Takes the low 12 bits.
    pub(crate) const fn new(value: u16) -> Self {
        Self(value % MODULUS)
    }
    /// Returns the count, 0 to 4,095.
    pub(crate) const fn value(self) -> u16 {
        self.0
    }
    /// Returns the count `blocks` further on.
    const fn add(self, blocks: u16) -> Self {
        Self((self.0 + blocks % MODULUS) % MODULUS)
    }
    /// Returns the steps forward from `origin`, 0 to 4,095.
    pub(crate) const fn since(self, origin: Self) -> u16 {
        (self.0 + MODULUS - origin.0) % MODULUS
    }
}

/// What the sender of a lane knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendCredits {
    /// Blocks sent (FCTBS).
    sent: Count,
    /// The count up to which it may send (FCCL); 0 until the other end has told it.
    limit: Count,
}

impl SendCredits {
    /// Returns the blocks sent.
    pub(crate) const fn sent(&self) -> Count {
        self.sent
    }
    /// Returns the blocks that may leave yet.
    pub(crate) const fn left(&self) -> u16 {
        self.limit.since(self.sent)
    }
    /// Returns whether a packet of so many blocks may leave.
    pub(crate) const fn may_send(&self, blocks: u16) -> bool {
        self.left() >= blocks
    }
    /// Counts a packet that leaves.
    pub(crate) fn take(&mut self, blocks: u16) {
        self.sent = self.sent.add(blocks);
    }
    /// Takes the limit of a flow-control packet. Returns whether it has grown.
    ///
    /// # Errors
    /// [`BadCount`] if less is granted than before, or more than can be granted.
    pub(crate) fn grant(&mut self, limit: Count) -> Result<bool, BadCount> {
        let (before, after) = (self.limit.since(self.sent), limit.since(self.sent));
        if after > MOST || after < before {
            return Err(BadCount);
        }
        self.limit = limit;
        Ok(after > before)
    }
}

/// What the receiver of a lane knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReceiveCredits {
    /// Blocks received, or lost on the way (ABR).
    received: Count,
}

impl ReceiveCredits {
    /// Returns the blocks received.
    pub(crate) const fn received(&self) -> Count {
        self.received
    }
    /// Counts a packet that arrived.
    pub(crate) fn add(&mut self, blocks: u16) {
        self.received = self.received.add(blocks);
    }
    /// Takes the sender's count, which is ahead of ours by what was lost.
    ///
    /// # Errors
    /// [`BadCount`] if the count is behind ours.
    pub(crate) fn resume(&mut self, sent: Count) -> Result<(), BadCount> {
        if sent.since(self.received) > MOST {
            return Err(BadCount);
        }
        self.received = sent;
        Ok(())
    }
    /// Returns the limit to tell, with so many blocks free.
    pub(crate) const fn limit(&self, free: u16) -> Count {
        self.received.add(if free < MOST { free } else { MOST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_without_a_grant_sends_nothing() {
        let mut credits = SendCredits::default();
        assert!(!credits.may_send(1));
        assert_eq!(credits.grant(Count::new(3)), Ok(true));
        assert!(credits.may_send(3) && !credits.may_send(4));
        credits.take(2);
        assert!(credits.may_send(1) && !credits.may_send(2));
    }

    #[test]
    fn counts_wrap_and_go_on() {
        let (mut sender, mut receiver) = (SendCredits::default(), ReceiveCredits::default());
        for _ in 0..1000 {
            assert_eq!(sender.grant(receiver.limit(70)), Ok(true));
            assert!(sender.may_send(70) && !sender.may_send(71));
            sender.take(70);
            receiver.add(70);
        }
        assert_eq!(sender.sent(), receiver.received());
        assert_eq!(sender.sent().value(), (70_000 % 4096) as u16);
    }

    #[test]
    fn a_limit_that_goes_back_or_too_far_is_refused() {
        let mut credits = SendCredits::default();
        assert_eq!(credits.grant(Count::new(2049)), Err(BadCount));
        assert_eq!(credits.grant(Count::new(2048)), Ok(true));
        assert_eq!(credits.grant(Count::new(2047)), Err(BadCount));
        credits.take(2000);
        assert_eq!(credits.grant(Count::new(1999)), Err(BadCount));
        assert_eq!(credits.grant(Count::new(2048)), Ok(false));
    }

    #[test]
    fn blocks_lost_on_the_way_are_granted_again() {
        let mut credits = ReceiveCredits::default();
        credits.add(10);
        assert_eq!(credits.resume(Count::new(15)), Ok(()));
        assert_eq!(credits.limit(100), Count::new(115));
        assert_eq!(credits.resume(Count::new(14)), Err(BadCount));
        assert_eq!(credits.limit(5000), Count::new(15 + 2048));
    }
}
