//! Global Route Header (GRH): 40 bytes, shaped like IPv6 (IBTA 8.3).
//!
//! ```text
//!  byte   0..3                    4..5         6        7         8..23      24..39
//!       +-----------------------+------------+--------+---------+----------+----------+
//!       | IPVer TClass FlowLabel| PayLen     | NxtHdr | HopLmt  | SGID     | DGID     |
//!       +-----------------------+------------+--------+---------+----------+----------+
//!         4     8      20         16           8        8         128        128 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{Gid, ParseError};

/// The first 16 bytes; callers pass at least 16.
const fn gid(bytes: &[u8]) -> Gid {
    match bytes.first_chunk() {
        Some(gid) => Gid(*gid),
        None => Gid::ZERO,
    }
}

/// Global route header: routes packets of InfiniBand and RoCEv1; also the first bytes of a UD
/// buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// 6.
    pub version: u8,
    /// Traffic class. Masked out of the ICRC.
    pub traffic_class: u8,
    /// Flow label, 20 bits; larger values are masked. Masked out of the ICRC.
    pub flow_label: u32,
    /// Bytes after the GRH, ICRC included.
    pub payload_length: u16,
    /// [`Grh::NEXT_HEADER_IBA`] where a BTH follows.
    pub next_header: u8,
    /// Routers that may still forward. Masked out of the ICRC.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Next-header value of an InfiniBand transport packet.
    pub const NEXT_HEADER_IBA: u8 = 0x1B;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        let (_, gids) = b.split_at(8);
        let (sgid, dgid) = gids.split_at(16);
        Self {
            version: b[0] >> 4,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xF_FFFF,
            payload_length: u16::from_be_bytes([b[4], b[5]]),
            next_header: b[6],
            hop_limit: b[7],
            sgid: gid(sgid),
            dgid: gid(dgid),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let word = u32::from(self.version) << 28
            | u32::from(self.traffic_class) << 20
            | self.flow_label & 0xF_FFFF;
        buf[..4].copy_from_slice(&word.to_be_bytes());
        buf[4..6].copy_from_slice(&self.payload_length.to_be_bytes());
        buf[6] = self.next_header;
        buf[7] = self.hop_limit;
        buf[8..24].copy_from_slice(&self.sgid.0);
        buf[24..Self::LEN].copy_from_slice(&self.dgid.0);
    }
}

impl fmt::Display for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} len={}", self.sgid, self.dgid, self.payload_length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Grh::LEN] = core::array::from_fn(|i| 0x60 + i as u8);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.version, grh.traffic_class, grh.flow_label), (6, 0x06, 0x1_6263));
        assert_eq!(grh.payload_length, 0x6465);
        assert_eq!((grh.next_header, grh.hop_limit), (0x66, 0x67));
        assert_eq!((grh.sgid.0[0], grh.sgid.0[15]), (0x68, 0x77));
        assert_eq!((grh.dgid.0[0], grh.dgid.0[15]), (0x78, 0x87));
        let mut out = [0; Grh::LEN];
        grh.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn thirty_nine_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 40, have: 39 };
        assert_eq!(Grh::parse(&[0; 39]), Err(error));
    }
}
