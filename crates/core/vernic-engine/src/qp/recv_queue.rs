//! Receive queues: a bounded ring of posted receives, owned by a queue pair or shared (SRQ).
//!
//! The application posts receives, and the responder of a queue pair takes them while it has the
//! lane. The scatter list of a receive is copied into the queue when the receive is posted, and out
//! of it when the receive is taken. So the application may reuse its list at once, and a taken
//! entry is free for the next post, even in a queue that several queue pairs share.
//!
//! Limits: as many receives as the queue was created with. Neither posting nor taking allocates.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use vernic_mem::{SgCursor, Sge, total_len};
use vernic_proto::{QpState, RecvWqe};

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

#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    wr_id: u64,
    sges: u32,
}

#[derive(Debug)]
struct Ring {
    posted: Box<[Posted]>,
    /// Scatter/gather entries: `max_sge` for each element of `posted`.
    sges: Box<[Sge]>,
    head: usize,
    len: usize,
    /// The limit of `ibv_modify_srq`: an event is raised when fewer receives than this remain; 0
    /// means that no event is wanted.
    limit: u32,
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

#[derive(Debug)]
pub(crate) struct RecvQueue {
    ring: Mutex<Ring>,
    max_wr: u32,
    max_sge: u32,
    /// The number of receives in the ring. Read without the ring's lock, to compute credits.
    held: AtomicU32,
}

impl RecvQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let ring = Ring {
            posted: vec![Posted::default(); max_wr as usize].into(),
            sges: vec![Sge::default(); max_wr as usize * max_sge as usize].into(),
            head: 0,
            len: 0,
            limit: 0,
        };
        Self { ring: Mutex::new(ring), max_wr, max_sge, held: AtomicU32::new(0) }
    }

    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn len(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }

    /// Queues receives in order until one of them is refused.
    pub(crate) fn post<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<usize, PostRecvError> {
        let mut ring = lock(&self.ring);
        let mut index = 0;
        let mut result = Ok(());
        for wr in wrs {
            result = self.post_one(&mut ring, &wr);
            if result.is_err() {
                break;
            }
            index += 1;
        }
        self.held.store(ring.len as u32, Ordering::Release);
        result.map(|()| index).map_err(|source| PostRecvError { index, source })
    }

    fn post_one(&self, ring: &mut Ring, wr: &RecvWr<'_>) -> Result<(), RecvRefusal> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(RecvRefusal::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        if ring.len >= self.max_wr as usize {
            return Err(RecvRefusal::Full(self.max_wr));
        }
        let mut slot = ring.head + ring.len;
        if slot >= self.max_wr as usize {
            slot -= self.max_wr as usize;
        }
        let at = slot * self.max_sge as usize;
        ring.sges[at..at + wr.sges.len()].copy_from_slice(wr.sges);
        ring.posted[slot] = Posted { wr_id: wr.wr_id, sges: wr.sges.len() as u32 };
        ring.len += 1;
        Ok(())
    }

    /// Takes the oldest receive and copies its scatter list into `current`.
    pub(crate) fn take(&self, current: &mut CurrentRecv) -> Option<Taken> {
        if self.len() == 0 {
            return None;
        }
        let mut ring = lock(&self.ring);
        if ring.len == 0 {
            return None;
        }
        let slot = ring.head;
        let posted = ring.posted[slot];
        let at = slot * self.max_sge as usize;
        current.sges.clear();
        current.sges.extend_from_slice(&ring.sges[at..at + posted.sges as usize]);
        current.cursor = SgCursor::default();
        ring.head = if slot + 1 == self.max_wr as usize { 0 } else { slot + 1 };
        ring.len -= 1;
        self.held.store(ring.len as u32, Ordering::Release);
        let limit_reached = ring.limit != 0 && (ring.len as u32) < ring.limit;
        if limit_reached {
            ring.limit = 0;
        }
        let wqe = RecvWqe { wr_id: posted.wr_id, capacity: total_len(&current.sges) };
        Some(Taken { wqe, limit_reached })
    }

    /// Takes the oldest receive and returns only its `wr_id`, to flush it.
    pub(crate) fn take_id(&self) -> Option<u64> {
        let mut ring = lock(&self.ring);
        if ring.len == 0 {
            return None;
        }
        let slot = ring.head;
        ring.head = if slot + 1 == self.max_wr as usize { 0 } else { slot + 1 };
        ring.len -= 1;
        self.held.store(ring.len as u32, Ordering::Release);
        Some(ring.posted[slot].wr_id)
    }

    /// Drops all receives. They get no completions.
    pub(crate) fn clear(&self) {
        let mut ring = lock(&self.ring);
        (ring.head, ring.len) = (0, 0);
        self.held.store(0, Ordering::Release);
    }

    /// Arms the limit, or disarms it with 0. Returns true if fewer receives than the limit are in
    /// the queue already; the limit is disarmed again then.
    pub(crate) fn arm_limit(&self, limit: u32) -> bool {
        let mut ring = lock(&self.ring);
        let crossed = limit != 0 && (ring.len as u32) < limit;
        ring.limit = if crossed { 0 } else { limit };
        crossed
    }

    /// Returns the armed limit; 0 if none is armed.
    pub(crate) fn limit(&self) -> u32 {
        lock(&self.ring).limit
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
