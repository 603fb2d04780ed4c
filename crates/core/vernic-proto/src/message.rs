//! Parts of messages, as they travel between two processes of one host.
//!
//! Two processes that share a ring need no packets for a SEND of a connection: nothing is lost in a
//! ring, and nothing comes out of it in another order. So a SEND travels as one [`MessagePart`], or
//! as some if it is long, without headers, checksums and the limits of a congestion window. A part
//! stands for the packets that would have brought its bytes, and takes their sequence numbers. So
//! the peer's acknowledgements, its NAKs and a change of the route mean what they always mean, and
//! what has to be sent again travels in packets.

use vernic_wire::{Aeth, Mtu, Psn, Srqn};

use crate::completion::Tag;
use crate::segment::packet_count;
use crate::wqe::{SendFlags, SendOp, SendWqe};

/// A part of a SEND of RC, XRC or UC, in place of the packets that would bring its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The sequence number of the first packet that it stands for.
    pub psn: Psn,
    /// The payload in bytes.
    pub length: u32,
    /// The sender's path MTU: how long the packets are that it stands for.
    pub mtu: Mtu,
    /// Whether the receiver copies the payload out of the sender's memory (a rendezvous). Otherwise
    /// the payload travels with the part.
    pub is_rendezvous: bool,
    /// Whether it is the first of its message.
    pub starts: bool,
    /// Whether it is the last of its message.
    pub ends: bool,
    /// Whether the receive's completion is a solicited event. Only of a last part.
    pub solicited: bool,
    /// Immediate data, or the key to be invalidated. Only of a last part.
    pub tag: Tag,
    /// The shared receive queue at the peer that it is for. Of XRC alone, and of each part.
    pub srqn: Option<Srqn>,
}

/// A positive acknowledgement that travels with a part in the other direction, in place of an ACK
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartAck {
    /// The last sequence number that it acknowledges.
    pub psn: Psn,
    /// What the packet would say: an ACK, with credits or without, and the responder's MSN.
    pub aeth: Aeth,
}

impl MessagePart {
    /// `length` bytes of the SEND `wqe` from `offset` on, which travel with the part, for no shared
    /// receive queue.
    #[inline]
    pub(crate) fn of(wqe: &SendWqe, psn: Psn, (offset, length): (u32, u32), mtu: Mtu) -> Self {
        let ends = offset + length == wqe.length;
        let tag = match wqe.op {
            SendOp::SendImm(imm) if ends => Tag::Imm(imm),
            SendOp::SendInv(rkey) if ends => Tag::Invalidated(rkey),
            _ => Tag::None,
        };
        Self {
            psn,
            length,
            mtu,
            is_rendezvous: false,
            starts: offset == 0,
            ends,
            solicited: ends && wqe.flags.contains(SendFlags::SOLICITED),
            tag,
            srqn: None,
        }
    }

    /// The packets that it stands for, and so the sequence numbers that it takes.
    pub(crate) fn packets(&self) -> u32 {
        packet_count(self.length, self.mtu.bytes())
    }

    /// Whether its length can be meant at the receiver's path MTU. Packets before the last of a
    /// message are full, and the last is not empty unless it is the only one (IBTA 9.7.4.1.6). A
    /// sender with another path MTU counts other packets, unless there is only one.
    pub(crate) fn has_fitting_length(&self, mtu: Mtu) -> bool {
        let is_full = self.length != 0 && self.length & (mtu.bytes() - 1) == 0;
        let is_meant = is_full || self.ends && (self.starts || self.length != 0);
        let counts_alike = mtu == self.mtu || self.length <= mtu.bytes().min(self.mtu.bytes());
        is_meant && counts_alike
    }
}

/// Bytes of the next part of a message of which `left` bytes are left, with `room` for its payload.
/// All packets but the last of the message are full.
#[inline]
pub(crate) fn part_length(left: u32, room: usize, mtu: Mtu) -> u32 {
    if u64::from(left) <= room as u64 { left } else { room as u32 & !(mtu.bytes() - 1) }
}

/// Which parts of SENDs may be copied by the receiver out of the sender's memory (a rendezvous).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// The shortest part in bytes. Shorter payload travels with its part.
    pub min_bytes: u32,
    /// The longest part in bytes.
    pub max_bytes: u32,
}
