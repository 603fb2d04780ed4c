//! Packets that wait for a link, by virtual lane.
//!
//! Owns a batch for each lane of the link. Called by the engine: queue pairs write into the batch
//! of their path's lane, and [`TxLanes::send`] hands the batches to the link one by one. A lane
//! that the link has no room for (InfiniBand: no credits) keeps its own packets and no others.
//!
//! Limits: [`MAX_LANES`]; each lane has a whole batch, since packets of a blocked lane stay in it.

use crate::batch::{LinkLimits, TxBatch};
use crate::link::{Link, Nanos, SendReport};

/// The most virtual lanes of a link: as many as InfiniBand has for data, and the one for
/// management.
pub const MAX_LANES: u8 = 16;

/// The batches of a link, one for each of its virtual lanes.
#[derive(Debug)]
pub struct TxLanes {
    first: TxBatch,
    others: Box<[TxBatch]>,
    /// One bit for each lane, set if the link had no room for the lane at the last send.
    blocked: u32,
}

impl TxLanes {
    /// Makes empty batches for a link with these limits. Allocates; the data path never does again.
    pub fn new(limits: &LinkLimits) -> Self {
        let others = (1..limits.lanes.min(MAX_LANES)).map(|_| TxBatch::new(limits)).collect();
        Self { first: TxBatch::new(limits), others, blocked: 0 }
    }

    /// Returns the batch of the first lane, which service level 0 has: for management datagrams.
    #[inline]
    pub fn first(&mut self) -> &mut TxBatch {
        &mut self.first
    }

    /// Returns the batch of a lane; `None` if no packet can be written to it now. A link with one
    /// lane always returns its batch: ask [`has_room`](Self::has_room) first.
    #[inline]
    pub fn of(&mut self, lane: u8) -> Option<&mut TxBatch> {
        if self.others.is_empty() {
            return Some(&mut self.first);
        }
        self.open(lane)
    }

    fn open(&mut self, lane: u8) -> Option<&mut TxBatch> {
        let batch = match lane {
            0 => &mut self.first,
            _ => self.others.get_mut(usize::from(lane) - 1)?,
        };
        (self.blocked >> lane & 1 == 0 && !batch.is_full()).then_some(batch)
    }

    /// Whether a packet can be written to any lane.
    #[inline]
    pub fn has_room(&self) -> bool {
        let first = self.blocked & 1 == 0 && !self.first.is_full();
        first || self.others_have_room()
    }

    fn others_have_room(&self) -> bool {
        let mut others = self.others.iter().zip(1..);
        others.any(|(batch, lane)| self.blocked >> lane & 1 == 0 && !batch.is_full())
    }

    /// Whether no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.iter().all(TxBatch::is_empty)
    }

    /// Returns the number of packets that wait.
    #[inline]
    pub fn packets(&self) -> usize {
        self.first.packets() + self.others.iter().map(TxBatch::packets).sum::<usize>()
    }

    /// Whether a batch ends in a run of `packets` packets or more, of `bytes` bytes at most.
    #[inline]
    pub fn has_small_run(&self, packets: usize, bytes: usize) -> bool {
        self.first.has_small_run(packets, bytes)
            || self.others.iter().any(|batch| batch.has_small_run(packets, bytes))
    }

    /// Returns the bytes that wait, ICRCs included.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.first.bytes() + self.others.iter().map(TxBatch::bytes).sum::<usize>()
    }

    /// Whether the link had no room for some lane at the last send.
    #[inline]
    pub fn is_any_blocked(&self) -> bool {
        self.blocked != 0
    }

    /// Whether the link had no room for any lane.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.is_any_blocked() && self.blocked.count_ones() as usize > self.others.len()
    }

    /// Notes that the link has no room for a lane.
    pub fn block(&mut self, lane: u8) {
        self.blocked |= 1 << lane;
    }

    /// Removes the waiting packets.
    pub fn clear(&mut self) {
        self.first.clear();
        self.others.iter_mut().for_each(TxBatch::clear);
        self.blocked = 0;
    }

    /// Hands the waiting packets to the link, lane by lane, and reports refusals to `refused`. True
    /// if on any lane there were packets and all of them left: more may follow.
    #[inline]
    pub fn send(
        &mut self,
        link: &mut dyn Link,
        now: Nanos,
        mut refused: impl FnMut(&SendReport),
    ) -> bool {
        let Self { first, others, blocked } = self;
        let mut lanes = Sending { link, now, blocked, refused: &mut refused };
        let mut more = lanes.send(first, 0);
        for (batch, lane) in others.iter_mut().zip(1..) {
            more |= lanes.send(batch, lane);
        }
        more
    }
}

/// The state of one [`TxLanes::send`].
struct Sending<'a, F> {
    link: &'a mut dyn Link,
    now: Nanos,
    blocked: &'a mut u32,
    refused: F,
}

impl<F: FnMut(&SendReport)> Sending<'_, F> {
    #[inline]
    fn send(&mut self, batch: &mut TxBatch, lane: u8) -> bool {
        *self.blocked &= !(1 << lane);
        if batch.is_empty() {
            return false;
        }
        let report = self.link.send(self.now, batch);
        if report.failure.is_some() {
            (self.refused)(&report);
        }
        *self.blocked |= u32::from(report.blocked) << lane;
        !report.blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemoryLink, path};

    fn lanes(lanes: u8) -> TxLanes {
        TxLanes::new(&LinkLimits { lanes, ..LinkLimits::default() })
    }

    #[test]
    fn a_blocked_lane_leaves_the_others_their_room() {
        let mut tx = lanes(3);
        tx.block(1);
        assert!(tx.of(1).is_none() && tx.of(0).is_some() && tx.of(2).is_some());
        assert!(tx.has_room() && tx.is_any_blocked() && !tx.is_blocked());
        tx.block(0);
        tx.block(2);
        assert!(!tx.has_room() && tx.is_blocked());
        assert!(tx.of(3).is_none(), "there is no such lane");
    }

    #[test]
    fn a_full_lane_leaves_the_others_their_room() {
        let mut tx = lanes(2);
        while let Some(batch) = tx.of(1) {
            assert!(batch.push_copy(&path().with_lane(1), &[0; 4100]));
        }
        assert!(tx.has_room() && tx.of(0).is_some());
        let (mut link, sent) = MemoryLink::boxed();
        let waiting = tx.packets();
        assert!(tx.send(link.as_mut(), Nanos(0), |_| ()));
        assert_eq!((sent.lock().unwrap().len(), tx.packets()), (waiting, 0));
        assert!(tx.of(1).is_some() && !tx.send(link.as_mut(), Nanos(0), |_| ()));
    }

    #[test]
    fn a_link_of_one_lane_has_one_batch() {
        let mut tx = lanes(1);
        assert!(tx.of(0).is_some() && !tx.is_blocked());
        tx.block(0);
        assert!(tx.is_blocked() && !tx.has_room());
        tx.clear();
        assert!(tx.has_room() && tx.is_empty());
    }
}
