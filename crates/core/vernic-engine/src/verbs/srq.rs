//! Shared receive queues (IBTA 10.2.9.2, 11.2.3): one queue of receives that many queue pairs use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vernic_wire::Srqn;

use crate::device::limits::{MAX_SGE, MAX_SRQ_WR};
use crate::error::check_limit;
use crate::error::{Busy, CreateError, ResizeError};
use crate::qp::recv_queue::{PostRecvError, RecvQueue, RecvRefusal, RecvWr, SharedRecv};
use crate::qp::xrc::XrcSrq;
use crate::support::events::{AsyncEvent, Element, SrqId};
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::xrc_domain::Domain;

/// The parameters of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// The number of receives that the queue holds at most, 1 to [`MAX_SRQ_WR`].
    pub max_wr: u32,
    /// The number of scatter/gather entries that a receive may have, 0 to [`MAX_SGE`].
    pub max_sge: u32,
    /// The limit: [`EventKind::SrqLimitReached`](crate::EventKind::SrqLimitReached) is raised when
    /// fewer receives than this remain. 0 means that no event is wanted.
    pub limit: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    id: SrqId,
    pd: Arc<Pd>,
    queue: Arc<RecvQueue>,
    users: AtomicU32,
    xrc: Option<Xrc>,
}

/// What a shared receive queue of an XRC domain has in addition.
#[derive(Debug)]
struct Xrc {
    number: Srqn,
    domain: Arc<Domain>,
    cq: Arc<Cq>,
    gone: AtomicBool,
}

impl Pd {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`CreateError::Limit`].
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, CreateError> {
        self.alive()?;
        Srq::new(self, init)
    }
}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, init: SrqInit) -> Result<Arc<Self>, CreateError> {
        let (id, queue) = Self::parts(pd, &init)?;
        Ok(Self::started(pd, id, queue, None, init.limit))
    }

    pub(crate) fn new_xrc(
        pd: &Arc<Pd>,
        init: SrqInit,
        domain: &Arc<Domain>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Self>, CreateError> {
        if !Arc::ptr_eq(cq.context(), pd.context()) {
            return Err(CreateError::OtherDevice { what: "completion queue" });
        }
        let (id, queue) = Self::parts(pd, &init)?;
        let domain = domain.clone();
        let entry = pd.context().engine().open_srq(|number| {
            let receives = SharedRecv::new(id, queue.clone());
            XrcSrq::new(number, domain.id(), pd.id(), cq.ring().clone(), receives)
        })?;
        domain.hold();
        cq.ring().hold();
        let (number, cq, gone) = (entry.number(), cq.clone(), AtomicBool::new(false));
        Ok(Self::started(pd, id, queue, Some(Xrc { number, domain, cq, gone }), init.limit))
    }

    fn parts(pd: &Arc<Pd>, init: &SrqInit) -> Result<(SrqId, Arc<RecvQueue>), CreateError> {
        check_limit("SRQ max_wr", init.max_wr, 1, MAX_SRQ_WR)?;
        check_limit("SRQ max_sge", init.max_sge, 0, MAX_SGE)?;
        check_limit("SRQ limit", init.limit, 0, init.max_wr)?;
        let queue = Arc::new(RecvQueue::new(init.max_wr, init.max_sge));
        Ok((SrqId(pd.context().next_id()), queue))
    }

    fn started(
        pd: &Arc<Pd>,
        id: SrqId,
        queue: Arc<RecvQueue>,
        xrc: Option<Xrc>,
        limit: u32,
    ) -> Arc<Self> {
        pd.hold();
        pd.context().engine().in_use().add_srq();
        let srq = Self { id, pd: pd.clone(), queue, users: AtomicU32::new(0), xrc };
        if limit != 0 {
            srq.arm(limit);
        }
        Arc::new(srq)
    }

    /// Returns the number by which requests of XRC initiators name the queue; `None` if the queue
    /// does not belong to an XRC domain.
    pub fn number(&self) -> Option<Srqn> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// Returns the completion queue of the receives; `None` if the queue does not belong to an XRC
    /// domain. Then a receive completes in the completion queue of the queue pair that takes it.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// Returns the id by which asynchronous events name the queue.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Returns the protection domain of the queue's scatter lists.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Queues receives in order, until one of them is refused.
    ///
    /// # Errors
    /// [`PostRecvError`] with the index of the receive that was refused. The receives before it are
    /// queued.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvError> {
        self.post_recv_from(wrs.iter().copied())
    }

    /// Queues receives as [`post_recv`](Self::post_recv) does, from an iterator, which runs under
    /// the queue's lock.
    ///
    /// # Errors
    /// [`PostRecvError`] with the index of the receive that was refused. The receives before it are
    /// queued.
    pub fn post_recv_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), PostRecvError> {
        if self.context().is_orphan() {
            return Err(PostRecvError { index: 0, source: RecvRefusal::Orphan });
        }
        self.queue.post(wrs).map(drop)
    }

    /// Arms the limit, or disarms it with 0. If fewer receives than the limit are queued already,
    /// the event is raised at once (IBTA 10.2.9.2).
    ///
    /// # Errors
    /// [`ResizeError::SrqLimit`] if the limit exceeds the number of receives that the queue holds.
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

    /// Returns the present attributes. `limit` is 0 if the event was raised since the limit was
    /// armed.
    pub fn query(&self) -> SrqInit {
        let (max_wr, max_sge) = (self.queue.max_wr(), self.queue.max_sge());
        let limit = if self.context().is_orphan() { 0 } else { self.queue.limit() };
        SrqInit { max_wr, max_sge, limit }
    }

    /// Checks that no queue pair uses the queue. No event of the queue is delivered after this.
    ///
    /// A queue of an XRC domain ends now: requests that name it are refused, and a message that is
    /// being written to one of its receives completes nowhere.
    ///
    /// # Errors
    /// [`Busy`] while queue pairs use the queue.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.users.load(Ordering::Acquire) {
            0 => {
                self.leave_domain();
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

    /// Returns the part of the queue that queue pairs refer to.
    pub(crate) fn shared(&self) -> SharedRecv {
        SharedRecv::new(self.id, self.queue.clone())
    }

    pub(crate) fn limit_event(&self) -> AsyncEvent {
        AsyncEvent::srq_limit(self.id)
    }

    /// Removes an XRC queue from the table of numbers, and from the targets that use it. Does
    /// nothing for a queue that is not of an XRC domain.
    fn leave_domain(&self) {
        let Some(xrc) = &self.xrc else { return };
        if self.context().is_orphan() {
            // In a child of `fork`: the domain is not freed, because another thread of the parent
            // may have been using it at the time of the fork.
            std::mem::forget(xrc.domain.clone());
        } else if !xrc.gone.swap(true, Ordering::AcqRel) {
            self.context().engine().close_srq(xrc.number);
            xrc.cq.ring().release();
            xrc.domain.release();
        }
    }

    fn arm(&self, limit: u32) {
        let context = self.context();
        // In a child of `fork`, nobody takes receives, and the lane may be locked for ever.
        let crossed = match context.is_orphan() {
            true => self.queue.arm_limit(limit),
            false => context.engine().with_lane(|_| self.queue.arm_limit(limit)),
        };
        if crossed {
            context.engine().events().push(self.limit_event());
        }
    }

    fn purge_events(&self) {
        if self.context().is_orphan() {
            return;
        }
        let element = Element::Srq(self.id);
        self.context().engine().events().purge(|event| event.element != element);
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.leave_domain();
        self.purge_events();
        self.context().engine().in_use().remove_srq();
        self.pd.release();
    }
}
