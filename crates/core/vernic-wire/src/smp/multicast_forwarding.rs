//! MulticastForwardingTable: ports of 32 groups, 16 ports at a time (IBTA 14.2.5.12): 64 bytes.
//!
//! ```text
//!  byte   0..1         2..3               62..63
//!       +------------+------------+-----+-------------+
//!       | of group 0 | of group 1 | ... | of group 31 |
//!       +------------+------------+-----+-------------+
//! ```
//! The modifier is `position << 28 | block`: groups from LID 0xC000 plus 32 times the block on, and
//! ports from 16 times the position on, the lowest bit first.

use core::fmt;

use super::be16;
use crate::ParseError;
use crate::error::head;

/// Ports of 32 groups, 16 ports at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MulticastForwardingTable {
    /// Bit for each of 16 ports, of each group.
    pub ports: [u16; MulticastForwardingTable::ENTRIES],
}

impl MulticastForwardingTable {
    /// Bytes on the wire.
    pub const LEN: usize = 64;
    /// Groups of a block.
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
        Self { ports: core::array::from_fn(|i| be16(b, 2 * i)) }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        for (out, ports) in buf[..Self::LEN].as_chunks_mut::<2>().0.iter_mut().zip(self.ports) {
            *out = ports.to_be_bytes();
        }
    }
}

impl fmt::Display for MulticastForwardingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MulticastForwardingTable {:#06x} {:#06x} ...", self.ports[0], self.ports[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; MulticastForwardingTable::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = MulticastForwardingTable::parse(&bytes).unwrap();
        assert_eq!((read.ports[0], read.ports[31]), (0x0102, 0x3F40));
        let mut out = [0; MulticastForwardingTable::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(MulticastForwardingTable::parse(&[0; 63]), Err(error));
    }
}
