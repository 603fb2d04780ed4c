//! RDMA Extended Transport Header (RETH): 16 bytes, names remote memory (IBTA 9.3.3).
//!
//! ```text
//!  byte   0..7              8..11    12..15
//!       +-----------------+--------+------------+
//!       | virtual address | R_Key  | DMA length |
//!       +-----------------+--------+------------+
//!         64                32       32 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

/// RDMA extended transport header: the remote range of a WRITE, READ, FLUSH or ATOMIC WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// First byte of the range, in the responder's address space or from 0 in a zero-based region.
    pub addr: u64,
    /// Key of the region or window that holds the range.
    pub rkey: Rkey,
    /// Bytes in the range; a message carries at most 2^31.
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

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
        Self {
            addr: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: Rkey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            length: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.addr.to_be_bytes());
        buf[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        buf[12..Self::LEN].copy_from_slice(&self.length.to_be_bytes());
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "addr={:#x} rkey={} len={}", self.addr, self.rkey, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Reth::LEN] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

    #[test]
    fn every_field_is_where_the_picture_says() {
        let reth = Reth::parse(&BYTES).unwrap();
        assert_eq!(reth.addr, 0x0102_0304_0506_0708);
        assert_eq!(reth.rkey, Rkey(0x090A_0B0C));
        assert_eq!(reth.length, 0x0D0E_0F10);
        let mut out = [0; Reth::LEN];
        reth.emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn fifteen_bytes_are_truncated() {
        assert_eq!(Reth::parse(&BYTES[..15]), Err(ParseError::Truncated { need: 16, have: 15 }));
    }
}
