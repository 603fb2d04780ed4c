//! What XRC connections add: two shared receive queues on each node, their numbers, and which end
//! is what.
//!
//! Side A of an XRC connection is the initiator, side B the target. Each message is for one of the
//! two queues of B's node; the first of them is also the one that other services share.

use vernic_proto::QpType;
use vernic_wire::{Service, Srqn};

use crate::flow::Bad;

/// Shared receive queues of a node.
pub(crate) const QUEUES: usize = 2;
/// Where a receive's name holds the number of its shared queue.
const QUEUE_SHIFT: u32 = 48;
/// A number that no queue has, and one of a queue of another XRC domain.
const UNKNOWN: Srqn = Srqn::new(0xFF_FFFF);
pub(crate) const FOREIGN: Srqn = Srqn::new(0x77);

/// Whether the service has acknowledgements, order and retries.
pub(crate) fn is_reliable(service: Service) -> bool {
    matches!(service, Service::Rc | Service::Xrc)
}

/// The type of a side's queue pair.
pub(crate) fn qp_type(service: Service, side: usize) -> QpType {
    match (service, side) {
        (Service::Uc, _) => QpType::Uc,
        (Service::Ud, _) => QpType::Ud,
        (Service::Xrc, 0) => QpType::XrcIni,
        (Service::Xrc, _) => QpType::XrcTgt,
        _ => QpType::Rc,
    }
}

/// The number that a request for a queue carries; a wrong one if that is its mistake.
pub(crate) fn srqn(queue: usize, bad: Bad) -> Srqn {
    match bad {
        Bad::UnknownSrq => UNKNOWN,
        Bad::ForeignSrq => FOREIGN,
        _ => Srqn::new(1 + queue as u32),
    }
}

/// The queue that has the number.
pub(crate) fn queue_of(srqn: Srqn) -> Option<usize> {
    let queue = (srqn.value() as usize).checked_sub(1)?;
    (queue < QUEUES).then_some(queue)
}

/// The part of a shared receive's name that says which queue it was posted to.
pub(crate) fn recv_name(queue: usize) -> u64 {
    (queue as u64) << QUEUE_SHIFT
}

/// The queue that a shared receive was posted to.
pub(crate) fn queue_of_recv(wr_id: u64) -> usize {
    (wr_id >> QUEUE_SHIFT & 0xFF) as usize
}
