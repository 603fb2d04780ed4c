//! The rate that requests leave at: the application's limit and the static rate of the path. And
//! why a queue pair does not send as its owner would have it.
//!
//! The application's limit holds for packets, whichever way they go. Requests without packets would
//! evade it, so a queue pair that has one sends packets alone. A static rate is a property of a
//! path, so it holds for what goes by the link and for nothing else. If there are both, the smaller
//! one holds.

use bitflags::bitflags;

use super::Qp;
use super::machine::{Machine, each};
use crate::congestion::{Limit, rate_of_mbps};
use crate::state::QpAttr;
use crate::time::Time;
use crate::transport::Transport;

bitflags! {
    /// Why requests leave otherwise than their owner says; nothing, nearly always.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Needs: u8 {
        /// The application asked for Rearm since the reset: packets must leave.
        const PACKETS_TO_MIGRATE = 1;
        /// The application has limited the rate: packets must leave.
        const PACKETS_TO_PACE = 2;
        /// The path has a static rate: which way requests go matters.
        const WAY = 4;
    }
}

impl Needs {
    /// Whether packets alone may leave.
    #[inline]
    pub(super) fn packets(self) -> bool {
        self.intersects(Self::PACKETS_TO_MIGRATE.union(Self::PACKETS_TO_PACE))
    }
}

impl Qp {
    /// Sets the rate of the port in Mb/s: static rates that are not smaller are no limit. If never
    /// called, each is one. Holds for address vectors that are set afterwards.
    pub fn set_port_rate(&mut self, mbps: u32) {
        self.port_mbps = mbps;
    }

    /// Applies the limits that the attributes have.
    #[cold]
    pub(super) fn apply_limit(&mut self, now: Time) {
        let QpAttr { rate_limit, av, .. } = self.attr;
        let fixed = av.static_rate.mbps().filter(|mbps| *mbps < self.port_mbps).map(rate_of_mbps);
        let (asked, burst) = (rate_limit.rate(), rate_limit.burst_bytes);
        let rate = [asked, fixed].into_iter().flatten().min();
        self.needs.remove(Needs::PACKETS_TO_PACE | Needs::WAY);
        each!(&mut self.machine, m => m.set_exempt(false));
        each!(&mut self.machine, m => m.set_limit(rate.map(|rate| Limit { rate, burst }), now));
        if asked.is_some() {
            self.send_packets_alone(Needs::PACKETS_TO_PACE);
        } else if fixed.is_some() {
            self.needs.insert(Needs::WAY);
        }
    }

    /// Requests leave in packets from now on, also one that was begun without.
    #[cold]
    pub(super) fn send_packets_alone(&mut self, why: Needs) {
        self.refuse_direct();
        self.needs.insert(why);
        self.set_messages(false);
    }

    /// As [`set_messages`](Self::set_messages), where something may be in the way.
    #[cold]
    pub(super) fn set_messages_if_free(&mut self, are_sent: bool) {
        let may = are_sent && !self.needs.packets();
        let is_exempt = are_sent && !self.needs.contains(Needs::PACKETS_TO_PACE);
        each!(&mut self.machine, m => {
            m.set_messages(may);
            m.set_exempt(is_exempt);
        });
    }
}
