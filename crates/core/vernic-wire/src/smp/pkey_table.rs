//! P_KeyTable: a block of a port's partition keys (IBTA 14.2.5.7): 64 bytes.
//!
//! ```text
//!  byte   0..1      2..3            62..63
//!       +---------+---------+-----+----------+
//!       | P_Key 0 | P_Key 1 | ... | P_Key 31 |
//!       +---------+---------+-----+----------+
//! ```
//! The modifier is the number of the block; at a switch `port << 16 | block`.

use core::fmt;

use super::be16;
use crate::error::head;
use crate::{ParseError, Pkey};

/// Block of a port's partition keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PkeyTable {
    /// Partition keys; 0 is none.
    pub keys: [Pkey; PkeyTable::ENTRIES],
}

impl PkeyTable {
    /// Bytes on the wire.
    pub const LEN: usize = 64;
    /// Keys of a block.
    pub const ENTRIES: usize = 32;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { keys: core::array::from_fn(|i| Pkey(be16(b, 2 * i))) }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        for (out, key) in buf[..Self::LEN].as_chunks_mut::<2>().0.iter_mut().zip(self.keys) {
            *out = key.0.to_be_bytes();
        }
    }
}

impl fmt::Display for PkeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P_KeyTable {} {} ...", self.keys[0], self.keys[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; PkeyTable::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = PkeyTable::parse(&bytes).unwrap();
        assert_eq!((read.keys[0], read.keys[31]), (Pkey(0x0102), Pkey(0x3F40)));
        let mut out = [0; PkeyTable::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(PkeyTable::parse(&[0; 63]), Err(error));
    }
}
