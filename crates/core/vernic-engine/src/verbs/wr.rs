//! Send work requests as applications write them, and why one is refused.
//!
//! Plain descriptions that borrow everything; `qp.rs` turns them into the protocol's form and
//! `send_slots.rs` keeps their bytes.

use vernic_proto::{SendFlags, SendOp};
use vernic_wire::{Qkey, Qpn, Srqn};

use crate::qp::payload::{Payload, SendRefusal};
use crate::verbs::ah::Ah;

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Dest<'a> {
    /// Where.
    pub ah: &'a Ah,
    /// Queue pair there, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// Queue key; with the top bit set, this queue pair's own is sent instead (IBTA 10.2.5).
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How. `INLINE` is set by [`Payload::Inline`], whatever is given here.
    pub flags: SendFlags,
    /// Local bytes.
    pub payload: Payload<'a>,
    /// Destination, for UD only.
    pub dest: Option<Dest<'a>>,
    /// The peer's shared receive queue, for XRC only: it takes the message, and its protection
    /// domain holds the remote memory.
    pub srqn: Option<Srqn>,
}

/// A refused send of a list: those before it were queued and are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("send {index} of the list: {source}")]
pub struct PostSendError {
    /// Its place in the list; so many were queued.
    pub index: usize,
    /// Why.
    pub source: SendRefusal,
}
