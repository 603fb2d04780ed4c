//! Timers of queue pairs: the timer wheel, and when it must be polled.

use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::qp::state::QpCore;
use crate::support::wheel::Wheel;

/// The timer wheel of a lane, and when it must be polled next.
#[derive(Debug)]
pub(crate) struct Timers {
    wheel: Wheel,
    next: Option<Time>,
}

impl Timers {
    pub(crate) fn new(now: Time) -> Self {
        Self { wheel: Wheel::new(now), next: None }
    }

    /// Returns when the wheel must be polled.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// Takes the next entry that is due, and returns its QPN.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Plans the next poll, after entries were taken.
    pub(crate) fn plan(&mut self) {
        self.next = self.wheel.next();
    }

    /// Makes sure that an entry of the queue pair fires at its deadline or earlier. Entries are
    /// never moved: when an entry fires before the deadline, the lane inserts one for the deadline
    /// then.
    #[inline(always)]
    pub(crate) fn arm(&mut self, qpn: Qpn, core: &mut QpCore) {
        let Some(deadline) = core.machine.next_deadline() else { return };
        if core.side.timer.needs(deadline) {
            self.wheel.insert(deadline, qpn.value());
            self.next = self.wheel.next();
        }
    }
}
