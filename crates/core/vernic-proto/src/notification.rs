//! Notification point: tells the sender of marked packets that a queue on the path from it is long
//! (IBTA A17.9.3, congestion notification packets).
//!
//! Owns when the last notification left and whether one is due. Called by [`Qp`](crate::Qp), for
//! the services that know their peer: a flow is a queue pair, and each has a notification point. It
//! reacts to marks alone, so a path that does not mark, or whose marks are bleached, costs nothing.

use vernic_wire::{Bth, Headers, Opcode, Psn};

use crate::cx::Cx;
use crate::time::Time;

/// Payload of a notification: 16 reserved bytes, all zero.
const RESERVED: usize = 16;

/// Least nanoseconds between two notifications of one queue pair, if nothing else is set: what
/// adapters have, and what DCQCN's parameters are made for.
pub(crate) const MIN_TIME_BETWEEN: u64 = 50_000;

/// The notification point of one queue pair.
#[derive(Debug)]
pub(crate) struct NotificationPoint {
    /// Least nanoseconds between two notifications.
    interval: u64,
    /// When marked packets made one due last. `None` before the first.
    last: Option<Time>,
    is_due: bool,
}

impl NotificationPoint {
    pub(crate) const fn new() -> Self {
        Self { interval: MIN_TIME_BETWEEN, last: None, is_due: false }
    }

    /// Sets the least time between two notifications.
    pub(crate) const fn set_interval(&mut self, nanos: u64) {
        self.interval = nanos;
    }

    /// Forgets the flow: the queue pair was reset, or can send no more.
    pub(crate) const fn reset(&mut self) {
        self.last = None;
        self.is_due = false;
    }

    /// A packet of the peer came with the mark.
    #[cold]
    pub(crate) fn on_mark(&mut self, now: Time) {
        if self.last.is_none_or(|last| now.since(last) >= self.interval) {
            self.last = Some(now);
            self.is_due = true;
        }
    }

    /// Whether a notification is to be sent.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Writes the notification that is due.
    #[cold]
    pub(crate) fn poll(&mut self, cx: &mut Cx<'_>, buf: &mut [u8]) -> usize {
        self.is_due = false;
        let bth = Bth::new(Opcode::CNP, cx.attr.dest_qpn, Psn::new(0));
        let bth = Bth { pkey: cx.pkey, becn: true, ..bth };
        let len = Headers::new(bth).emit(buf);
        buf[len..len + RESERVED].fill(0);
        cx.counters.cnps_sent += 1;
        len + RESERVED
    }
}
