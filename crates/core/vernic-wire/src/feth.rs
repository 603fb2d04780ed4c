//! FLUSH Extended Transport Header (FETH): 4 bytes, on FLUSH, before its RETH (IBTA annex A19).
//!
//! ```text
//!  byte   0..2        3
//!       +-----------+--------------------+      SEL: 0 range, 1 whole region
//!       | reserved26     | SEL2 | PLT4   |      PLT: bit 0 global visibility, bit 1 persistence
//!       +-----------+--------------------+
//!         bits 31..6       5..4   3..0
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

bitflags::bitflags! {
    /// Placement type: how far the data must have gone before the FLUSH is answered. Bits that have
    /// no name are reserved and kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Placement: u8 {
        /// Visible to every reader of the responder's memory.
        const GLOBAL = 1 << 0;
        /// Safe over a power failure.
        const PERSISTENT = 1 << 1;
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// Selectivity level: 2 bits; 2 and 3 are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Selectivity(pub u8);

impl Selectivity {
    /// The range of the RETH.
    pub const RANGE: Self = Self(0);
    /// The whole memory region or window of the RETH's key.
    pub const MR: Self = Self(1);
}

impl fmt::Display for Selectivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RANGE => f.pad("range"),
            Self::MR => f.pad("mr"),
            Self(other) => write!(f, "reserved selectivity {other}"),
        }
    }
}

/// FLUSH extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth {
    /// Reserved bits, 26 of them, 0 when sent; larger values are masked.
    pub reserved: u32,
    /// Whether the RETH's range or all of its region is flushed.
    pub selectivity: Selectivity,
    /// How far the data must have gone.
    pub placement: Placement,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// A header with the reserved bits 0.
    #[inline]
    pub const fn new(selectivity: Selectivity, placement: Placement) -> Self {
        Self { reserved: 0, selectivity, placement }
    }
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
        let word = u32::from_be_bytes(*b);
        Self {
            reserved: word >> 6,
            selectivity: Selectivity(b[3] >> 4 & 3),
            placement: Placement::from_bits_retain(b[3] & 0x0F),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let word = self.reserved << 6
            | u32::from(self.selectivity.0 & 3) << 4
            | u32::from(self.placement.bits() & 0x0F);
        buf[..Self::LEN].copy_from_slice(&word.to_be_bytes());
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.selectivity, self.placement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [0xAB, 0xCD, 0xEF, 0x5E];
        let header = Feth::parse(&bytes).unwrap();
        assert_eq!(header.reserved, 0x2AF_37BD);
        assert_eq!(header.selectivity, Selectivity::MR);
        assert_eq!(header.placement.bits(), 0xE);
        assert!(header.placement.contains(Placement::PERSISTENT));
        assert!(!header.placement.contains(Placement::GLOBAL));
        let mut out = [0; Feth::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 4, have: 3 };
        assert_eq!(Feth::parse(&[0; 3]), Err(error));
    }
}
