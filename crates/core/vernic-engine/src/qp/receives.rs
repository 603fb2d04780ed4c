//! The receives of a queue pair: where its responder takes them from, and the one that the
//! responder is filling.
//!
//! A queue pair has a receive queue of its own or shares one. An XRC target has neither: each
//! request names a shared queue of the target's domain, and is of that queue's protection domain.

use std::sync::Arc;

use vernic_mem::{PdId, SgCursor, Sge};
use vernic_proto::{RecvWqe, SrqFault};
use vernic_wire::Srqn;

use crate::qp::completions::{CqRing, Wc};
use crate::qp::recv_queue::{CurrentRecv, PostRecvError, RecvQueue, RecvWr, SharedRecv};
use crate::qp::xrc::{SrqTable, XrcSrq};
use crate::support::events::{AsyncEvent, EventQueue};

/// The queue that a queue pair takes its receives from. XRC queue pairs have none.
#[derive(Debug)]
pub(crate) struct Receives {
    /// The queue pair's own queue; of no size if the queue pair has none.
    queue: RecvQueue,
    shared: Option<SharedRecv>,
    /// The protection domain of the receives.
    pd: PdId,
    /// The completion queue of the receives.
    cq: Option<Arc<CqRing>>,
}

impl Receives {
    pub(crate) fn own(queue: RecvQueue, pd: PdId, cq: Option<Arc<CqRing>>) -> Self {
        Self { queue, shared: None, pd, cq }
    }

    pub(crate) fn shared(srq: SharedRecv, pd: PdId, cq: Option<Arc<CqRing>>) -> Self {
        Self { queue: RecvQueue::new(0, 0), shared: Some(srq), pd, cq }
    }

    /// Whether the queue pair receives from a shared queue.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn cq(&self) -> Option<&Arc<CqRing>> {
        self.cq.as_ref()
    }

    /// Queues receives in order until one is refused.
    pub(crate) fn post<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<usize, PostRecvError> {
        self.queue.post(wrs)
    }

    /// Returns how many receives the peer may count on; `None` where the queue is shared.
    #[inline]
    pub(crate) fn credits(&self) -> Option<u32> {
        if self.is_shared() { None } else { Some(self.queue.len()) }
    }

    /// Takes the oldest receive of the queue pair's own queue, and returns only its number, for a
    /// flush.
    pub(super) fn take_id(&self) -> Option<u64> {
        if self.is_shared() { None } else { self.queue.take_id() }
    }

    /// Forgets every receive of the queue pair's own queue.
    pub(super) fn clear(&self) {
        self.queue.clear();
    }
}

/// The receive that a responder is filling, and for an XRC target the queues that its requests
/// name. Protected by the lock of the queue pair's core.
#[derive(Debug)]
pub(crate) struct Filling {
    current: CurrentRecv,
    /// The queue of the request under way, on XRC.
    named: Option<Arc<XrcSrq>>,
    /// The queue of the receive being filled, on XRC.
    taken: Option<Arc<XrcSrq>>,
}

impl Filling {
    /// Returns a place for receives of at most `max_sge` entries: taking one never allocates.
    pub(crate) fn with_sges(max_sge: u32) -> Self {
        Self { current: CurrentRecv::with_sges(max_sge), named: None, taken: None }
    }

    /// Selects the shared receive queue that a request names, among `srqs`. It must be of the
    /// target's XRC domain.
    #[inline]
    pub(super) fn select(
        &mut self,
        srqn: Srqn,
        domain: Option<PdId>,
        srqs: Option<&SrqTable>,
    ) -> Result<(), SrqFault> {
        // Destroying a queue also removes it here.
        if self.named.as_ref().is_some_and(|srq| srq.number() == srqn) {
            return Ok(());
        }
        let srq = srqs.and_then(|srqs| srqs.find(srqn)).ok_or(SrqFault::Unknown)?;
        if Some(srq.domain()) != domain {
            return Err(SrqFault::WrongDomain);
        }
        self.named = Some(srq.clone());
        Ok(())
    }

    /// Takes the oldest receive of the queue that was selected, or of `own`.
    #[inline]
    pub(super) fn take(
        &mut self,
        own: &Receives,
        events: &EventQueue<AsyncEvent>,
    ) -> Option<RecvWqe> {
        if let Some(srq) = &self.named {
            let wqe = srq.receives().take(&mut self.current, events)?;
            self.taken = Some(srq.clone());
            return Some(wqe);
        }
        match &own.shared {
            Some(srq) => srq.take(&mut self.current, events),
            None => own.queue.take(&mut self.current).map(|taken| taken.wqe),
        }
    }

    /// Returns the domain that keys of the peer must be of: that of the queue which the request
    /// names on XRC, else the queue pair's `own`.
    #[inline]
    pub(super) fn remote_pd(&self, own: PdId) -> PdId {
        self.named.as_ref().map_or(own, |srq| srq.pd())
    }

    /// Returns the list of the receive, and the protection domain of the list.
    #[inline]
    pub(crate) fn list(&mut self, own: &Receives) -> (PdId, &[Sge], &mut SgCursor) {
        let pd = self.taken.as_ref().map_or(own.pd, |srq| srq.pd());
        let (sges, cursor) = self.current.list();
        (pd, sges, cursor)
    }

    /// Completes the receive; returns false if its completion queue is full.
    #[inline]
    pub(super) fn complete(&mut self, own: &Receives, completion: Wc) -> bool {
        // A receive of an XRC queue that was destroyed meanwhile completes nowhere.
        let taken = self.taken.take();
        let cq = taken.as_ref().map(|srq| srq.cq()).or(own.cq());
        cq.is_none_or(|cq| cq.push(completion))
    }

    /// Removes a shared receive queue that is destroyed; returns the references to it that the
    /// caller must drop.
    pub(crate) fn remove_queue(&mut self, number: Srqn) -> impl Iterator<Item = Arc<XrcSrq>> {
        [&mut self.named, &mut self.taken]
            .map(|place| place.take_if(|srq| srq.number() == number))
            .into_iter()
            .flatten()
    }

    /// Forgets the queues that requests have named, when the queue pair is reset.
    pub(super) fn reset(&mut self) {
        (self.named, self.taken) = (None, None);
    }
}
