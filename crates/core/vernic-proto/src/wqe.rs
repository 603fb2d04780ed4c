//! Work requests as the protocol sees them: what to do, not where the bytes lie.
//!
//! Scatter/gather lists and inline data stay with the caller, which keeps them beside the slot
//! number that [`Qp::post_send`](crate::Qp::post_send) returns; payload passes through
//! [`Host`](crate::Host).

use bitflags::bitflags;
use vernic_wire::{Lkey, Qkey, Qpn, Rkey, Srqn};

/// Longest message in bytes (IBTA 9.7.7.1): 2^31.
pub const MAX_MESSAGE: u32 = 1 << 31;

bitflags! {
    /// Flags of a send work request. Values are those of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Wait until all earlier READs and atomics of this queue are complete.
        const FENCE = 1;
        /// Produce a completion on success (failures always produce one).
        const SIGNALED = 2;
        /// Ask the receiver for a solicited event.
        const SOLICITED = 4;
        /// Payload was copied when the request was posted.
        const INLINE = 8;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with 32 bits of immediate data (big-endian number on the wire).
    SendImm(u32),
    /// SEND that invalidates a key of the receiver.
    SendInv(Rkey),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE that also consumes a receive and delivers immediate data.
    WriteImm(Remote, u32),
    /// RDMA READ.
    Read(Remote),
    /// RDMA READ that invalidates a local key when it is complete (iWARP only).
    ReadInv(Remote, Rkey),
    /// Compare and swap of 8 bytes.
    CmpSwap {
        /// Where.
        remote: Remote,
        /// Value expected there.
        compare: u64,
        /// Value stored if it is.
        swap: u64,
    },
    /// Fetch and add on 8 bytes.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// Addend, modulo 2^64.
        add: u64,
    },
    /// FLUSH of earlier WRITEs (IBTA A19).
    Flush {
        /// Start of the range.
        remote: Remote,
        /// Global visibility (1) and/or persistence (2).
        placement: u8,
        /// Range (0) or whole region (1).
        selectivity: u8,
    },
    /// ATOMIC WRITE of 8 bytes (IBTA A19).
    AtomicWrite(Remote),
    /// Invalidate a local key.
    LocalInv(Rkey),
    /// Bind a memory window.
    BindMw(MwBind),
}

impl SendOp {
    /// Returns the name of the operation, as the specification writes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm(_) => "SEND with immediate",
            Self::SendInv(_) => "SEND with invalidate",
            Self::Write(_) => "RDMA WRITE",
            Self::WriteImm(..) => "RDMA WRITE with immediate",
            Self::Read(_) => "RDMA READ",
            Self::ReadInv(..) => "RDMA READ with invalidate",
            Self::CmpSwap { .. } => "CmpSwap",
            Self::FetchAdd { .. } => "FetchAdd",
            Self::Flush { .. } => "FLUSH",
            Self::AtomicWrite(_) => "ATOMIC WRITE",
            Self::LocalInv(_) => "Local Invalidate",
            Self::BindMw(_) => "Bind Memory Window",
        }
    }
}

/// A remote address with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Virtual address at the peer.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
}

/// A memory window bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's current key.
    pub mw: Rkey,
    /// The key after the bind.
    pub new_rkey: Rkey,
    /// Key of the region under it.
    pub mr: Lkey,
    /// First byte.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// Rights, as `ibv_access_flags`.
    pub access: u32,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// The caller's address handle; the protocol only passes it on.
    pub ah: u32,
    /// Destination queue pair, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// Queue key; with the top bit set the QP's own is sent instead (IBTA 10.2.5).
    pub qkey: Qkey,
    /// Static rate in Mb/s that the datagram pays at, if it goes by the link; 0 for none.
    pub rate_mbps: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// The application's name for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Payload bytes, at most 2^31; for READ and FLUSH the bytes asked for; 8 for atomics.
    pub length: u32,
    /// Destination, for UD only.
    pub dest: Option<UdDest>,
    /// The peer's shared receive queue, for XRC only: it takes the message, and its protection
    /// domain holds the remote memory.
    pub srqn: Option<Srqn>,
}

/// A receive work request that the responder has taken off its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// The application's name for it.
    pub wr_id: u64,
    /// Bytes that its scatter list holds.
    pub capacity: u64,
}
