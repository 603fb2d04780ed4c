//! Send work requests as applications write them, and why one is refused.
//!
//! Plain descriptions that borrow everything; `qp.rs` turns them into the protocol's form and
//! `send_slots.rs` keeps their bytes.

use vernic_mem::{HostList, Sge};
use vernic_proto::{PostError, SendFlags, SendOp};
use vernic_wire::{Qkey, Qpn, Srqn};

use crate::error::ORPHAN;
use crate::verbs::ah::Ah;

/// The local bytes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, read when packets are built; where a READ or atomic puts its result.
    /// Empty is allowed.
    Sges(&'a [Sge]),
    /// Copied now: the memory may be used again at once. All pieces together are at most the
    /// `max_inline` of the queue pair.
    Inline(&'a [&'a [u8]]),
    /// As [`Payload::Inline`], of one piece.
    InlineBytes(&'a [u8]),
    /// As [`Payload::Inline`], of memory that others may change meanwhile.
    InlineList(HostList<'a>),
    /// None, and this many bytes of the peer's memory are meant: for FLUSH.
    Range(u32),
}

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

/// Why a send was refused. It was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefusal {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// State, room, operation or length.
    #[error(transparent)]
    Protocol(#[from] PostError),
    /// More scatter/gather entries than the queue pair was created for.
    #[error("{given} scatter/gather entries, the queue pair was created for {max}")]
    TooManySges {
        /// Given.
        given: usize,
        /// Most.
        max: u32,
    },
    /// More inline data than the queue pair was created for, or inline data for an operation that
    /// stores a result.
    #[error("{given} bytes inline, this request takes at most {max}")]
    Inline {
        /// Given.
        given: usize,
        /// Most.
        max: u32,
    },
    /// Longer than a message can be.
    #[error("message of {length} bytes, at most {limit}")]
    Length {
        /// Given.
        length: u64,
        /// Most.
        limit: u32,
    },
    /// An atomic whose local memory does not hold the 8 bytes.
    #[error("{given} bytes of local memory for an 8-byte atomic")]
    AtomicLength {
        /// Given.
        given: u64,
    },
    /// The address handle belongs to another protection domain (IBTA 11.4.1.1).
    #[error("the address handle belongs to another protection domain")]
    WrongPd,
    /// The object was destroyed.
    #[error("the queue pair was destroyed")]
    Destroyed,
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
