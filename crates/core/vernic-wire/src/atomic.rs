//! Atomic Extended Transport Header (AtomicETH): 28 bytes, operands of COMPARE & SWAP and
//! FETCH & ADD (IBTA 9.3.4).
//!
//! ```text
//!  byte   0..7              8..11   12..19        20..27
//!       +-----------------+-------+-------------+---------+
//!       | virtual address | R_Key | swap or add | compare |
//!       +-----------------+-------+-------------+---------+
//!         64                32      64            64 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

/// Atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Remote address of the 8-byte operand; must be a multiple of 8.
    pub addr: u64,
    /// Key of the region or window that holds the operand.
    pub rkey: Rkey,
    /// The new value of COMPARE & SWAP; the addend of FETCH & ADD.
    pub swap_or_add: u64,
    /// What COMPARE & SWAP compares with; without meaning for FETCH & ADD.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

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
            swap_or_add: u64::from_be_bytes([
                b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19],
            ]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
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
        buf[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        buf[20..Self::LEN].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "addr={:#x} rkey={} swap_or_add={:#x} compare={:#x}",
            self.addr, self.rkey, self.swap_or_add, self.compare
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; AtomicEth::LEN] = core::array::from_fn(|i| i as u8);
        let atomic = AtomicEth::parse(&bytes).unwrap();
        assert_eq!(atomic.addr, 0x0001_0203_0405_0607);
        assert_eq!(atomic.rkey, Rkey(0x0809_0A0B));
        assert_eq!(atomic.swap_or_add, 0x0C0D_0E0F_1011_1213);
        assert_eq!(atomic.compare, 0x1415_1617_1819_1A1B);
        let mut out = [0; AtomicEth::LEN];
        atomic.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn twenty_seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 28, have: 27 };
        assert_eq!(AtomicEth::parse(&[0; 27]), Err(error));
    }
}
