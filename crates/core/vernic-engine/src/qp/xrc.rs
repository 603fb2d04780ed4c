//! The shared receive queues of XRC domains by number (IBTA annex A14).
//!
//! Owned by the lane. An XRC target remembers the queue that the last request named, so that
//! further packets for the same queue need no lookup. Destroying a queue removes it from the table
//! and from all targets, while the caller has the lane.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_mem::PdId;
use vernic_wire::Srqn;

use super::completions::CqRing;
use super::recv_queue::SharedRecv;
use crate::device::limits::MAX_SRQ;
use crate::error::CreateError;

/// The number of freed queue numbers that are kept back before the oldest is used again. So late
/// requests for a destroyed queue find no queue, rather than a new one.
const FREED_NUMBERS: usize = 1024;

/// An XRC shared receive queue, as XRC targets see it.
#[derive(Debug)]
pub(crate) struct XrcSrq {
    number: Srqn,
    /// The XRC domain.
    domain: PdId,
    /// The protection domain of the queue's receives, and of the memory that requests naming this
    /// queue may access.
    pd: PdId,
    cq: Arc<CqRing>,
    receives: SharedRecv,
}

impl XrcSrq {
    /// Returns the queue of this number, in an XRC `domain`. `pd` is the protection domain of its
    /// receives, and of the memory that requests for it reach.
    pub(crate) fn new(
        number: Srqn,
        domain: PdId,
        pd: PdId,
        cq: Arc<CqRing>,
        receives: SharedRecv,
    ) -> Self {
        Self { number, domain, pd, cq, receives }
    }

    #[inline]
    pub(crate) fn number(&self) -> Srqn {
        self.number
    }

    #[inline]
    pub(super) fn domain(&self) -> PdId {
        self.domain
    }

    #[inline]
    pub(super) fn pd(&self) -> PdId {
        self.pd
    }

    #[inline]
    pub(super) fn cq(&self) -> &Arc<CqRing> {
        &self.cq
    }

    #[inline]
    pub(super) fn receives(&self) -> &SharedRecv {
        &self.receives
    }
}

/// The XRC shared receive queues of a device by number. Owned by the lane.
#[derive(Debug, Default)]
pub(crate) struct SrqTable {
    /// The queues; the first has number 1. No queue has number 0, because a program that forgot to
    /// query the number sends 0.
    queues: Vec<Option<Arc<XrcSrq>>>,
    freed: VecDeque<u32>,
}

impl SrqTable {
    #[inline]
    pub(crate) fn find(&self, number: Srqn) -> Option<&Arc<XrcSrq>> {
        let index = (number.value() as usize).checked_sub(1)?;
        self.queues.get(index)?.as_ref()
    }

    /// Chooses a free number and inserts the queue that `make` returns for it.
    pub(crate) fn insert(
        &mut self,
        make: impl FnOnce(Srqn) -> XrcSrq,
    ) -> Result<Arc<XrcSrq>, CreateError> {
        let full = self.queues.len() >= MAX_SRQ as usize;
        let reused =
            if full || self.freed.len() >= FREED_NUMBERS { self.freed.pop_front() } else { None };
        let index = match reused {
            Some(index) => index as usize,
            None if full => {
                let (what, max) = ("number of XRC shared receive queues", u64::from(MAX_SRQ));
                return Err(CreateError::Limit { what, value: max + 1, min: 0, max });
            }
            None => {
                self.queues.push(None);
                self.queues.len() - 1
            }
        };
        let srq = Arc::new(make(Srqn::new(index as u32 + 1)));
        self.queues[index] = Some(srq.clone());
        Ok(srq)
    }

    /// Removes a queue and frees its number.
    pub(crate) fn remove(&mut self, number: Srqn) -> Option<Arc<XrcSrq>> {
        let index = (number.value() as usize).checked_sub(1)?;
        let srq = self.queues.get_mut(index)?.take()?;
        self.freed.push_back(index as u32);
        Some(srq)
    }
}
