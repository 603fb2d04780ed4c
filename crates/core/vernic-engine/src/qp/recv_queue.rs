//! Receive queues: a bounded ring of posted receives, owned by a queue pair or shared (SRQ).
//!
//! The application posts receives, and the responder of a queue pair takes them. The scatter list
//! of a receive is copied into the queue when the receive is posted, and out of it when the receive
//! is taken. So the application may reuse its list at once, and a taken entry is free for the next
//! post, even in a queue that several queue pairs share.
//!
//! Limits: as many receives as the queue was created with. Neither posting nor taking allocates.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vernic_mem::{SgCursor, Sge};
use vernic_proto::{QpState, RecvWqe};
use vernic_wire::Lkey;

use crate::error::ORPHAN;
use crate::support::events::{AsyncEvent, EventQueue, SrqId, lock};

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The number by which the application knows the receive. The completion returns it.
    pub wr_id: u64,
    /// The memory that the message is written to. An empty list receives messages without payload.
    pub sges: &'a [Sge],
}

/// The reasons for which a receive is refused. A refused receive was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvRefusal {
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The queue pair takes no receives in its present state.
    #[error("queue pair is in {0:?}: receives are taken from Init on")]
    State(QpState),
    /// The queue is full.
    #[error("receive queue full: {0} receives are posted; raise max_recv_wr")]
    Full(u32),
    /// The receive has more scatter/gather entries than the queue was created for.
    #[error("{given} scatter/gather entries, the queue was created for {max}")]
    TooManySges {
        /// Entries of the receive.
        given: usize,
        /// Entries that the queue was created for.
        max: u32,
    },
    /// The queue pair receives from a shared receive queue; receives are posted there.
    #[error("this queue pair receives from a shared receive queue: post there")]
    Shared,
    /// The queue pair is of XRC, which has no receive queue of its own.
    #[error(
        "an XRC queue pair has no receive queue: post to the shared receive queues of its domain"
    )]
    NoQueue,
    /// The queue was destroyed.
    #[error("the queue was destroyed")]
    Destroyed,
}

/// A refused receive in a list of receives. The receives before it were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receive {index} of the list: {source}")]
pub struct PostRecvError {
    /// Index of the refused receive in the list, which is also the number of receives that were
    /// queued.
    pub index: usize,
    /// The reason for which the receive was refused.
    pub source: RecvRefusal,
}

/// The receive that a responder is writing a message to.
#[derive(Debug, Default)]
pub(crate) struct CurrentRecv {
    sges: Vec<Sge>,
    cursor: SgCursor,
}

impl CurrentRecv {
    /// Returns an empty list with capacity for the longest list in the queue, so that taking a
    /// receive never allocates.
    pub(crate) fn with_sges(max_sge: u32) -> Self {
        Self { sges: Vec::with_capacity(max_sge as usize), cursor: SgCursor::default() }
    }

    #[inline]
    pub(super) fn list(&mut self) -> (&[Sge], &mut SgCursor) {
        (&self.sges, &mut self.cursor)
    }
}

/// A receive that was taken from the queue.
pub(crate) struct Taken {
    pub(super) wqe: RecvWqe,
    /// Whether fewer receives than the limit remain now. The limit is disarmed then, so the event
    /// is raised once.
    pub(super) limit_reached: bool,
}

/// A ring of receives with a lock for those that post, and none for the one that takes.
///
/// A slot is `2 + 2 * max_sge` words: `wr_id`, the number of entries, and two words for each entry.
/// The words of a slot are written before `posted` passes it (Release), and read after (Acquire);
/// they are read before `taken` passes it, and written again after. At most one thread takes at a
/// time: of a queue pair's own queue the one that holds the queue pair's core, of a shared queue
/// the one that runs the lane.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    words: Box<[AtomicU64]>,
    max_wr: u32,
    max_sge: u32,
    /// The slot of the next post.
    next_post: Mutex<u32>,
    /// The slot of the next receive to be taken. Written by the thread that takes.
    next_take: AtomicU32,
    /// The number of receives posted so far, modulo 2^32.
    posted: AtomicU32,
    /// The number of receives taken so far, modulo 2^32.
    taken: AtomicU32,
    /// The limit of `ibv_modify_srq`: an event is raised when fewer receives than this remain; 0
    /// means that no event is wanted.
    limit: AtomicU32,
}

impl RecvQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let words = max_wr as usize * Self::stride(max_sge);
        Self {
            words: std::iter::repeat_with(AtomicU64::default).take(words).collect(),
            max_wr,
            max_sge,
            next_post: Mutex::new(0),
            next_take: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            limit: AtomicU32::new(0),
        }
    }

    /// Words of a slot.
    const fn stride(max_sge: u32) -> usize {
        2 + 2 * max_sge as usize
    }

    fn slot(&self, slot: u32) -> &[AtomicU64] {
        let stride = Self::stride(self.max_sge);
        &self.words[slot as usize * stride..][..stride]
    }

    fn behind(&self, slot: u32) -> u32 {
        if slot + 1 == self.max_wr { 0 } else { slot + 1 }
    }

    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the number of receives in the queue.
    pub(crate) fn len(&self) -> u32 {
        // In this order, so that the number is never negative.
        let taken = self.taken.load(Ordering::Acquire);
        self.posted.load(Ordering::Acquire).wrapping_sub(taken)
    }

    /// Queues receives in order until one of them is refused.
    pub(crate) fn post<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<usize, PostRecvError> {
        let mut next = lock(&self.next_post);
        let mut index = 0;
        for wr in wrs {
            if let Err(source) = self.post_one(&mut next, &wr) {
                return Err(PostRecvError { index, source });
            }
            index += 1;
        }
        Ok(index)
    }

    fn post_one(&self, next: &mut u32, wr: &RecvWr<'_>) -> Result<(), RecvRefusal> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(RecvRefusal::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        let posted = self.posted.load(Ordering::Relaxed);
        if posted.wrapping_sub(self.taken.load(Ordering::Acquire)) >= self.max_wr {
            return Err(RecvRefusal::Full(self.max_wr));
        }
        let [wr_id, count, entries @ ..] = self.slot(*next) else {
            return Err(RecvRefusal::Full(self.max_wr));
        };
        wr_id.store(wr.wr_id, Ordering::Relaxed);
        count.store(wr.sges.len() as u64, Ordering::Relaxed);
        for (pair, sge) in entries.chunks_exact(2).zip(wr.sges) {
            let second = u64::from(sge.length) | u64::from(sge.lkey.0) << 32;
            pair[0].store(sge.addr, Ordering::Relaxed);
            pair[1].store(second, Ordering::Relaxed);
        }
        *next = self.behind(*next);
        self.posted.store(posted.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the oldest receive and copies its scatter list into `current`.
    #[inline]
    pub(crate) fn take(&self, current: &mut CurrentRecv) -> Option<Taken> {
        let (slot, left) = self.oldest()?;
        let [wr_id, count, entries @ ..] = slot else { return None };
        let wr_id = wr_id.load(Ordering::Relaxed);
        let count = count.load(Ordering::Relaxed) as usize;
        current.sges.clear();
        let mut capacity = 0;
        for [first, second] in entries.as_chunks().0.iter().take(count) {
            let (addr, second) = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
            let length = second as u32;
            capacity += u64::from(length);
            current.sges.push(Sge { addr, length, lkey: Lkey((second >> 32) as u32) });
        }
        current.cursor = SgCursor::default();
        self.pass();
        let limit = self.limit.load(Ordering::Relaxed);
        let limit_reached = left < limit;
        if limit_reached {
            self.limit.store(0, Ordering::Relaxed);
        }
        let wqe = RecvWqe { wr_id, capacity };
        Some(Taken { wqe, limit_reached })
    }

    /// Takes the oldest receive and returns only its `wr_id`, to flush it.
    pub(crate) fn take_id(&self) -> Option<u64> {
        let (slot, _) = self.oldest()?;
        let wr_id = slot.first()?.load(Ordering::Relaxed);
        self.pass();
        Some(wr_id)
    }

    /// Returns the slot of the oldest receive, and how many receives are behind it.
    #[inline]
    fn oldest(&self) -> Option<(&[AtomicU64], u32)> {
        let taken = self.taken.load(Ordering::Relaxed);
        let left = self.posted.load(Ordering::Acquire).wrapping_sub(taken).checked_sub(1)?;
        Some((self.slot(self.next_take.load(Ordering::Relaxed)), left))
    }

    /// Passes the oldest receive, whose slot was read.
    #[inline]
    fn pass(&self) {
        let next = self.behind(self.next_take.load(Ordering::Relaxed));
        self.next_take.store(next, Ordering::Relaxed);
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Drops all receives. They get no completions.
    pub(crate) fn clear(&self) {
        let next = lock(&self.next_post);
        self.next_take.store(*next, Ordering::Relaxed);
        self.taken.store(self.posted.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Arms the limit, or disarms it with 0. Returns true if fewer receives than the limit are in
    /// the queue already; the limit is disarmed again then. Nothing may be taken meanwhile: the
    /// caller has the lane.
    pub(crate) fn arm_limit(&self, limit: u32) -> bool {
        let crossed = self.len() < limit;
        self.limit.store(if crossed { 0 } else { limit }, Ordering::Relaxed);
        crossed
    }

    /// Returns the armed limit; 0 if none is armed.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }
}

/// A shared receive queue, as queue pairs see it.
#[derive(Debug)]
pub(crate) struct SharedRecv {
    id: SrqId,
    queue: Arc<RecvQueue>,
}

impl SharedRecv {
    pub(crate) fn new(id: SrqId, queue: Arc<RecvQueue>) -> Self {
        Self { id, queue }
    }

    /// Takes the oldest receive and copies its list into `current`. If its limit is crossed, the
    /// queue reports that in `events`.
    #[inline]
    pub(super) fn take(
        &self,
        current: &mut CurrentRecv,
        events: &EventQueue<AsyncEvent>,
    ) -> Option<RecvWqe> {
        let taken = self.queue.take(current)?;
        if taken.limit_reached {
            events.push(AsyncEvent::srq_limit(self.id));
        }
        Some(taken.wqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_come_out_in_order_over_the_wrap_and_the_bound_holds() {
        let queue = RecvQueue::new(3, 1);
        let mut current = CurrentRecv::default();
        let sge = [Sge { addr: 16, length: 8, lkey: vernic_wire::Lkey(1) }];
        for round in 0..5u64 {
            let wrs = (0..4).map(|i| RecvWr { wr_id: round * 10 + i, sges: &sge });
            let error = queue.post(wrs).unwrap_err();
            assert_eq!((error.index, error.source), (3, RecvRefusal::Full(3)));
            for i in 0..3 {
                let taken = queue.take(&mut current).unwrap();
                assert_eq!(taken.wqe, RecvWqe { wr_id: round * 10 + i, capacity: 8 });
            }
            assert!(queue.take(&mut current).is_none());
            queue.post([RecvWr { wr_id: 0, sges: &[] }]).unwrap();
            assert_eq!(queue.take_id(), Some(0));
        }
        let two = [sge[0], sge[0]];
        let error = queue.post([RecvWr { wr_id: 0, sges: &two }]).unwrap_err();
        assert_eq!(error.source, RecvRefusal::TooManySges { given: 2, max: 1 });
    }

    #[test]
    fn the_limit_fires_once_when_fewer_remain() {
        let queue = RecvQueue::new(8, 0);
        assert!(queue.arm_limit(1), "an empty queue is below any limit");
        queue.post((0..4).map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
        assert!(!queue.arm_limit(3));
        let mut current = CurrentRecv::default();
        let fired: Vec<bool> =
            (0..4).map(|_| queue.take(&mut current).unwrap().limit_reached).collect();
        assert_eq!(fired, [false, true, false, false]);
    }
}
