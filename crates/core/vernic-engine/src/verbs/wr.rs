//! Send work requests as applications write them, and why one is refused.
//!
//! These are plain descriptions that borrow everything. `handle.rs` converts them into the
//! protocol's form, and `send_slots.rs` keeps their bytes.

use vernic_proto::{SendFlags, SendOp};
use vernic_wire::{Qkey, Qpn, Srqn};

use crate::qp::payload::{Payload, SendRefusal};
use crate::verbs::ah::Ah;

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Dest<'a> {
    /// The address handle.
    pub ah: &'a Ah,
    /// The queue pair there, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// The queue key. If its top bit is set, the sending queue pair's own key is sent instead (IBTA
    /// 10.2.5).
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's id of the request.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags. `INLINE` is set by [`Payload::Inline`], whatever is given here.
    pub flags: SendFlags,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// The destination, for UD only.
    pub dest: Option<Dest<'a>>,
    /// The peer's shared receive queue, for XRC only. It takes the message, and its protection
    /// domain contains the remote memory.
    pub srqn: Option<Srqn>,
}

/// A refused request of a list of sends. The requests before it were queued and are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("send {index} of the list: {source}")]
pub struct PostSendError {
    /// The index of the refused request in the list, and so the number of requests queued.
    pub index: usize,
    /// The reason.
    pub source: SendRefusal,
}
