//! Flow-control packet: 6 bytes, how much one end of an InfiniBand link may send to the other (IBTA
//! 7.9.4). It has no LRH and is never forwarded.
//!
//! ```text
//!  byte   0..1            2..3          4..5
//!       +---------------+-------------+--------+
//!       | Op FCTBS      | VL FCCL     | LPCRC  |
//!       +---------------+-------------+--------+
//!         4  12           4  12         16 bits
//! ```
//! The LPCRC is the [`vcrc`] of the 4 bytes before it. Both counts are of blocks of 64 bytes,
//! modulo 4,096, since the link came up.

use core::fmt;

use crate::error::head;
use crate::{LinkError, VirtualLane, vcrc};

/// What a flow-control packet is for, 4 bits (IBTA 7.9.4.1). Any value is data; a receiver drops a
/// packet with another one than these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlowControlOp(pub u8);

impl FlowControlOp {
    /// Sent while the link carries data packets.
    pub const NORMAL: Self = Self(0);
    /// Sent while the link is being initialized.
    pub const INITIALIZE: Self = Self(1);

    /// Returns whether the value is defined.
    pub const fn is_known(self) -> bool {
        self.0 <= Self::INITIALIZE.0
    }
}

/// Flow-control packet of one virtual lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowControl {
    /// What the packet is for.
    pub op: FlowControlOp,
    /// Flow control total blocks sent (FCTBS), 12 bits: blocks that the sender of this packet has
    /// sent on the lane.
    pub total_sent: u16,
    /// The lane. Lane 15 has no flow control.
    pub virtual_lane: VirtualLane,
    /// Flow control credit limit (FCCL), 12 bits: the count up to which the receiver of this packet
    /// may send.
    pub credit_limit: u16,
}

impl FlowControl {
    /// Bytes on the wire.
    pub const LEN: usize = 6;
    /// Bytes of a block, the unit of both counts.
    pub const BLOCK_BYTES: u16 = 64;
    /// Both counts are modulo this.
    pub const MODULUS: u16 = 4096;

    /// Reads the packet that `bytes` are, and checks its LPCRC.
    ///
    /// # Errors
    /// [`LinkError::Truncated`] and [`LinkError::TooLong`] if `bytes` are not 6 bytes;
    /// [`LinkError::Crc`] if the LPCRC is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, LinkError> {
        let Ok(b) = head::<{ Self::LEN }>(bytes) else {
            return Err(LinkError::truncated(Self::LEN, bytes.len()));
        };
        if bytes.len() > Self::LEN {
            return Err(LinkError::too_long(Self::LEN, bytes.len()));
        }
        if !vcrc::check(b) {
            return Err(LinkError::Crc);
        }
        let (sent, limit) = (u16::from_be_bytes([b[0], b[1]]), u16::from_be_bytes([b[2], b[3]]));
        Ok(Self {
            op: FlowControlOp((sent >> 12) as u8),
            total_sent: sent % Self::MODULUS,
            virtual_lane: VirtualLane::new((limit >> 12) as u8),
            credit_limit: limit % Self::MODULUS,
        })
    }
    /// Writes the packet with its LPCRC at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let buf = &mut buf[..Self::LEN];
        let sent = u16::from(self.op.0) << 12 | (self.total_sent % Self::MODULUS);
        let limit =
            u16::from(self.virtual_lane.value()) << 12 | (self.credit_limit % Self::MODULUS);
        buf[..2].copy_from_slice(&sent.to_be_bytes());
        buf[2..4].copy_from_slice(&limit.to_be_bytes());
        vcrc::stamp(buf);
    }
}

impl fmt::Display for FlowControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, op) = (self.virtual_lane.value(), self.op.0);
        write!(f, "vl={lane} op={op} sent={} limit={}", self.total_sent, self.credit_limit)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    fn with_crc(covered: [u8; 4]) -> [u8; FlowControl::LEN] {
        let mut bytes = [0; FlowControl::LEN];
        bytes[..4].copy_from_slice(&covered);
        vcrc::stamp(&mut bytes);
        bytes
    }

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = with_crc([0x1A, 0xBC, 0x7D, 0xEF]);
        let packet = FlowControl::parse(&bytes).unwrap();
        assert_eq!((packet.op, packet.total_sent), (FlowControlOp::INITIALIZE, 0xABC));
        assert_eq!((packet.virtual_lane, packet.credit_limit), (VirtualLane::new(7), 0xDEF));
        assert_eq!(packet.to_string(), "vl=7 op=1 sent=2748 limit=3567");
        let mut out = [0; FlowControl::LEN];
        packet.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn undefined_operands_and_lanes_are_kept() {
        let bytes = with_crc([0xF0, 1, 0xF0, 2]);
        let packet = FlowControl::parse(&bytes).unwrap();
        assert!(!packet.op.is_known());
        assert!(packet.virtual_lane.is_management());
        let mut out = [0; FlowControl::LEN];
        packet.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn counts_are_cut_to_their_width() {
        let (total_sent, credit_limit) = (FlowControl::MODULUS + 3, 0xFFFF);
        let packet = FlowControl { total_sent, credit_limit, ..FlowControl::default() };
        let mut out = [0; FlowControl::LEN];
        packet.emit(&mut out);
        let packet = FlowControl::parse(&out).unwrap();
        assert_eq!((packet.total_sent, packet.credit_limit), (3, 0xFFF));
        assert_eq!(packet.op, FlowControlOp::NORMAL);
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let mut bytes = with_crc([0, 5, 0x10, 9]);
        for bit in 0..48 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FlowControl::parse(&bytes), Err(LinkError::Crc), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        let (short, long) = (LinkError::truncated(6, 5), LinkError::too_long(6, 7));
        assert_eq!(FlowControl::parse(&[0; 5]), Err(short));
        assert_eq!(FlowControl::parse(&[0; 7]), Err(long));
    }
}
