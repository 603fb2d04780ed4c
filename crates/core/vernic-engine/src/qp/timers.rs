//! Timers of queue pairs, and the list of those that have something to send.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::qp::state::{QpCore, QpInner};
use crate::support::wheel::Wheel;

/// The wheel, and when it must be looked at next.
pub(crate) struct Timers {
    wheel: Wheel,
    next: Option<Time>,
}

impl Timers {
    pub(crate) fn new(now: Time) -> Self {
        Self { wheel: Wheel::new(now), next: None }
    }

    /// When the wheel must be looked at.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// Takes the next entry that is due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Entries were taken: plans the next look.
    pub(crate) fn plan(&mut self) {
        self.next = self.wheel.next();
    }

    /// Makes sure that an entry fires at the queue pair's deadline or before. Entries are never
    /// moved: an earlier one that fires for nothing finds the later deadline.
    #[inline]
    pub(crate) fn arm(&mut self, qpn: Qpn, core: &mut QpCore) {
        let Some(deadline) = core.machine.next_deadline() else { return };
        if core.side.timer.needs(deadline) {
            self.wheel.insert(deadline, qpn.value());
            self.next = self.wheel.next();
        }
    }
}

/// Puts a queue pair on the ready list unless it is there or in the doorbells.
#[inline]
pub(crate) fn make_ready(ready: &mut VecDeque<Arc<QpInner>>, qp: &Arc<QpInner>) {
    if !qp.queued.load(Ordering::Relaxed) && !qp.queued.swap(true, Ordering::AcqRel) {
        ready.push_back(qp.clone());
    }
}
