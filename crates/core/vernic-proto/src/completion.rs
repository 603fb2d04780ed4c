//! Completions of both queues (IBTA 11.4.2.1).

use vernic_wire::{LocalRoute, Qpn, Rkey};

use crate::error::WcStatus;

/// What completed. Values are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum WcOpcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CmpSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvWriteImm = 129,
}

/// The 32-bit extra of a receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tag {
    /// None.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// The key that a SEND WITH INVALIDATE invalidated.
    Invalidated(Rkey),
}

/// A completion of either queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's name.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What completed (undefined by IBTA on failure; here always what was posted or received).
    pub opcode: WcOpcode,
    /// Bytes received, read or swapped; for UD 40 bytes of GRH area included.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub tag: Tag,
    /// The queue pair.
    pub qpn: Qpn,
    /// Sender of a datagram, else the connected peer.
    pub src_qpn: Qpn,
    /// The packet asked for a solicited event.
    pub solicited: bool,
    /// The first 40 bytes of the receive buffer are a GRH area.
    pub grh: bool,
    /// The way of a datagram: LIDs on InfiniBand links, the packet type for RoCEv2.
    pub route: LocalRoute,
    /// Which check failed: [`Cause::vendor_err`](crate::Cause::vendor_err), 0 on success.
    pub vendor_err: u32,
}
