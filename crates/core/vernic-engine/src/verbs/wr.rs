//! Send work requests, as applications write them, and the error for a refused one.
//!
//! These types borrow everything from the application. `handle.rs` converts them to the protocol's
//! form, and `send_slots.rs` copies what must be kept.

use vernic_proto::{SendFlags, SendOp};
use vernic_wire::{Qkey, Qpn, Srqn};

use crate::qp::payload::{Payload, SendRefusal};
use crate::verbs::ah::Ah;

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Dest<'a> {
    /// The address handle, which leads to the destination's host.
    pub ah: &'a Ah,
    /// The queue pair at the destination, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// The queue key. If its highest bit is set, the queue pair sends its own key instead (IBTA
    /// 10.2.5).
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The number by which the application knows the request. The completion returns it.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags. `INLINE` follows from the kind of [`Payload`], whatever is given here.
    pub flags: SendFlags,
    /// The local memory of the request.
    pub payload: Payload<'a>,
    /// The destination, for UD only.
    pub dest: Option<Dest<'a>>,
    /// The peer's shared receive queue, for XRC only. The message takes a receive from this queue,
    /// and the remote memory must be in the queue's protection domain.
    pub srqn: Option<Srqn>,
}

/// A refused request in a list of send requests. The requests before it were queued and are being
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("send {index} of the list: {source}")]
pub struct PostSendError {
    /// Index of the refused request in the list, which is also the number of requests that were
    /// queued.
    pub index: usize,
    /// The reason for which the request was refused.
    pub source: SendRefusal,
}
