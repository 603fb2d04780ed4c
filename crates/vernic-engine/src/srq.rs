//! Shared receive queues (IBTA 10.2.9.2, 11.2.3): one queue of receives for many queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::context::Context;
use crate::error::{Busy, CreateError, ResizeError};
use crate::events::{AsyncEvent, Element, EventKind, SrqId};
use crate::limits::{MAX_SGE, MAX_SRQ_WR};
use crate::pd::{Pd, check_limit};
use crate::recv_queue::{PostRecvError, RecvQueue, RecvRefusal, RecvWr};

/// What a shared receive queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// Receives that it holds, 1 to [`MAX_SRQ_WR`].
    pub max_wr: u32,
    /// Scatter/gather entries of each, 0 to [`MAX_SGE`].
    pub max_sge: u32,
    /// Raise [`EventKind::SrqLimitReached`] once fewer receives remain; 0 is disarmed.
    pub limit: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    id: SrqId,
    pd: Arc<Pd>,
    pub(crate) queue: RecvQueue,
    users: AtomicU32,
}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, init: SrqInit) -> Result<Arc<Self>, CreateError> {
        check_limit("SRQ max_wr", init.max_wr, 1, MAX_SRQ_WR)?;
        check_limit("SRQ max_sge", init.max_sge, 0, MAX_SGE)?;
        check_limit("SRQ limit", init.limit, 0, init.max_wr)?;
        let queue = RecvQueue::new(init.max_wr, init.max_sge);
        let id = SrqId(pd.context().next_id());
        pd.hold();
        let srq = Self { id, pd: pd.clone(), queue, users: AtomicU32::new(0) };
        if init.limit != 0 {
            srq.arm(init.limit);
        }
        Ok(Arc::new(srq))
    }

    /// Its name in asynchronous events.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Its protection domain: that of every list posted to it.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Queues receives in order.
    ///
    /// # Errors
    /// [`PostRecvError`] with the place of the first that was refused; those before it are queued.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvError> {
        self.post_recv_from(wrs.iter().copied())
    }

    /// As [`post_recv`](Self::post_recv), from an iterator, which runs under the queue's lock.
    ///
    /// # Errors
    /// [`PostRecvError`] with the place of the first that was refused; those before it are queued.
    pub fn post_recv_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), PostRecvError> {
        if self.context().is_orphan() {
            return Err(PostRecvError { index: 0, source: RecvRefusal::Orphan });
        }
        self.queue.post(wrs).map(drop)
    }

    /// Arms the limit event, or disarms it with 0. If fewer receives are queued already, the event
    /// is raised at once (IBTA 10.2.9.2).
    ///
    /// # Errors
    /// [`ResizeError::SrqLimit`] if the limit exceeds the queue's size.
    pub fn arm_limit(&self, limit: u32) -> Result<(), ResizeError> {
        if self.context().is_orphan() {
            return Err(ResizeError::Orphan);
        }
        if limit > self.queue.max_wr() {
            return Err(ResizeError::SrqLimit { limit, size: self.queue.max_wr() });
        }
        self.arm(limit);
        Ok(())
    }

    /// Its present attributes; `limit` is 0 once the event was raised.
    pub fn query(&self) -> SrqInit {
        let (max_wr, max_sge) = (self.queue.max_wr(), self.queue.max_sge());
        let limit = if self.context().is_orphan() { 0 } else { self.queue.limit() };
        SrqInit { max_wr, max_sge, limit }
    }

    /// Checks that no queue pair uses it any more; later events of it are not delivered.
    ///
    /// # Errors
    /// [`Busy`] while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.users.load(Ordering::Acquire) {
            0 => {
                self.purge_events();
                Ok(())
            }
            _ if self.context().is_orphan() => Ok(()),
            users => Err(Busy { object: "shared receive queue", users, by: "queue pairs" }),
        }
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn limit_event(&self) -> AsyncEvent {
        AsyncEvent { kind: EventKind::SrqLimitReached, element: Element::Srq(self.id) }
    }

    fn arm(&self, limit: u32) {
        if self.queue.arm_limit(limit) {
            self.context().engine().events.push(self.limit_event());
        }
    }

    fn purge_events(&self) {
        if self.context().is_orphan() {
            return;
        }
        let element = Element::Srq(self.id);
        self.context().engine().events.purge(|event| event.element != element);
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.purge_events();
        self.pd.release();
    }
}
