//! Enhanced RDMA connection establishment data: 4 bytes, first in the private data of an enhanced
//! MPA frame (RFC 6581, 9).
//!
//! ```text
//!  byte   0..1                        2..3
//!       +---+---+-------------------+---+---+-------------------+
//!       | A | B | IRD               | C | D | ORD               |
//!       +---+---+-------------------+---+---+-------------------+
//!         1   1   14 bits             1   1   14 bits
//!   A: peer-to-peer    RTR by a zero-length B: SEND, C: RDMA WRITE, D: RDMA READ
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// A queue depth of READs as the start-up carries it: 14 bits (RFC 6581, 9.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DepthCode(u16);

impl DepthCode {
    /// "An all ones value (0x3FFF) indicates that automatic negotiation of the IRD or ORD is not
    /// desired, and that the ULP will be responsible for it" (RFC 6581, 9.1).
    pub const NOT_NEGOTIATED: Self = Self(0x3FFF);

    /// The low 14 bits of `value`.
    pub const fn new(value: u16) -> Self {
        Self(value & 0x3FFF)
    }
    /// Of a depth; one that does not fit becomes the largest that does, 16,382.
    pub const fn of_depth(depth: u32) -> Self {
        if depth < 0x3FFF { Self(depth as u16) } else { Self(0x3FFE) }
    }
    /// The depth, or `None` where it is left to the applications.
    pub const fn depth(self) -> Option<u32> {
        if self.0 == Self::NOT_NEGOTIATED.0 { None } else { Some(self.0 as u32) }
    }
    /// The 14 bits.
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl fmt::Display for DepthCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.depth() {
            Some(depth) => write!(f, "{depth}"),
            None => f.pad("any"),
        }
    }
}

/// Enhanced RDMA connection establishment data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MpaEnhanced {
    /// Flag A: the peer-to-peer model, in which the initiator sends a ready-to-receive indication
    /// (RTR) first. Without it, the three flags below "MUST be ignored" (RFC 6581, 9.2).
    pub peer_to_peer: bool,
    /// Flag B: the RTR may be a SEND without payload.
    pub rtr_send: bool,
    /// Inbound RDMA READ queue depth: READs that the sender of this takes at once.
    pub ird: DepthCode,
    /// Flag C: the RTR may be an RDMA WRITE without payload.
    pub rtr_write: bool,
    /// Flag D: the RTR may be an RDMA READ without payload.
    pub rtr_read: bool,
    /// Outbound RDMA READ queue depth: READs that the sender of this has in flight at once.
    pub ord: DepthCode,
}

impl MpaEnhanced {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the data at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the data from its bytes.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            peer_to_peer: b[0] & 0x80 != 0,
            rtr_send: b[0] & 0x40 != 0,
            ird: DepthCode::new(u16::from_be_bytes([b[0], b[1]])),
            rtr_write: b[2] & 0x80 != 0,
            rtr_read: b[2] & 0x40 != 0,
            ord: DepthCode::new(u16::from_be_bytes([b[2], b[3]])),
        }
    }
    /// Writes the data at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let flags = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let first = flags(self.peer_to_peer, self.rtr_send) | self.ird.0;
        let second = flags(self.rtr_write, self.rtr_read) | self.ord.0;
        buf[..2].copy_from_slice(&first.to_be_bytes());
        buf[2..Self::LEN].copy_from_slice(&second.to_be_bytes());
    }
}

impl fmt::Display for MpaEnhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ird={} ord={}", self.ird, self.ord)?;
        let flags = [
            (self.peer_to_peer, " p2p"),
            (self.rtr_send, " rtr_send"),
            (self.rtr_write, " rtr_write"),
            (self.rtr_read, " rtr_read"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, text)| f.write_str(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [0x92, 0x34, 0x76, 0x54];
        let data = MpaEnhanced::parse(&bytes).unwrap();
        assert_eq!((data.peer_to_peer, data.rtr_send), (true, false));
        assert_eq!((data.rtr_write, data.rtr_read), (false, true));
        assert_eq!((data.ird.value(), data.ord.value()), (0x1234, 0x3654));
        let mut out = [0; 4];
        data.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn three_bytes_are_truncated() {
        assert_eq!(MpaEnhanced::parse(&[0; 3]), Err(ParseError::Truncated { need: 4, have: 3 }));
    }

    #[test]
    fn a_depth_is_never_taken_for_the_value_that_means_none() {
        assert_eq!(DepthCode::of_depth(128).depth(), Some(128));
        assert_eq!(DepthCode::of_depth(0x3FFF).depth(), Some(0x3FFE));
        assert_eq!(DepthCode::of_depth(u32::MAX).depth(), Some(0x3FFE));
        assert_eq!(DepthCode::NOT_NEGOTIATED.depth(), None);
        assert_eq!(DepthCode::new(0xFFFF), DepthCode::NOT_NEGOTIATED);
    }
}
