//! What a queue pair is created with, and what its parts may read while they handle something.

use vernic_wire::{Pkey, Qpn, Service};

use crate::host::QpCounters;
use crate::state::{QpAttr, QpType};
use crate::time::Time;

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Its number.
    pub qpn: Qpn,
    /// Its type.
    pub qp_type: QpType,
    /// Send requests that may be outstanding, at least 1 unless nothing is ever sent.
    pub max_send_wr: u32,
    /// Largest number of packets in flight on this queue pair (RC), 1 to 2^22.
    pub max_window: u32,
    /// The receive queue is shared: no end-to-end credits, no flush of receives. So it is for an
    /// XRC target, and an XRC initiator has none.
    pub shared_rq: bool,
}

/// What the parts of a queue pair may read while they handle something.
pub(crate) struct Cx<'a> {
    /// Own number.
    pub(crate) qpn: Qpn,
    /// Transport service.
    pub(crate) service: Service,
    /// Attributes as last modified.
    pub(crate) attr: &'a QpAttr,
    /// Partition key of the attribute's table row (see [`Qp::set_pkey`](crate::Qp::set_pkey)).
    pub(crate) pkey: Pkey,
    /// The ACK timer's floor, in nanoseconds.
    pub(crate) ack_floor: u64,
    /// Present.
    pub(crate) now: Time,
    /// Counters to count in.
    pub(crate) counters: &'a mut QpCounters,
}

impl Cx<'_> {
    /// How long an answer is waited for, in nanoseconds: what the attribute says, and not less than
    /// the floor. `None` for ever.
    pub(crate) fn ack_timeout(&self) -> Option<u64> {
        self.attr.timeout.nanos().map(|nanos| nanos.max(self.ack_floor))
    }
}
