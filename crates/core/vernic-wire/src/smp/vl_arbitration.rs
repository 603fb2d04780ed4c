//! VLArbitrationTable: half a table of arbitration among lanes (IBTA 14.2.5.9): 64 bytes.
//!
//! ```text
//!  byte   0            1               62            63
//!       +------------+----------+-----+------------+-----------+
//!       | resv4 lane | weight 0 | ... | resv4 lane | weight 31 |
//!       +------------+----------+-----+------------+-----------+
//! ```
//! The modifier is `block << 16 | port`: blocks 1 and 2 are of low priority, 3 and 4 of high.

use core::fmt;

use crate::error::head;
use crate::{ParseError, VirtualLane};

/// Half a table of arbitration among lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlArbitrationTable {
    /// Lane, with four reserved bits above it, and weight in units of 64 bytes; weight 0 skips.
    pub entries: [(u8, u8); VlArbitrationTable::ENTRIES],
}

impl VlArbitrationTable {
    /// Bytes on the wire.
    pub const LEN: usize = 64;
    /// Entries of a block.
    pub const ENTRIES: usize = 32;

    /// Lane of the entry, its reserved bits left out.
    ///
    /// # Panics
    /// If `entry` is 32 or more.
    pub const fn lane(&self, entry: usize) -> VirtualLane {
        VirtualLane::new(self.entries[entry].0)
    }
    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { entries: core::array::from_fn(|i| (b[2 * i], b[2 * i + 1])) }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        for (out, entry) in buf[..Self::LEN].as_chunks_mut::<2>().0.iter_mut().zip(self.entries) {
            *out = entry.into();
        }
    }
}

impl fmt::Display for VlArbitrationTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VLArbitrationTable")?;
        let mut used = self.entries.iter().filter(|(_, weight)| *weight > 0);
        used.try_for_each(|(lane, weight)| write!(f, " {}:{weight}", lane & 15))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; VlArbitrationTable::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = VlArbitrationTable::parse(&bytes).unwrap();
        assert_eq!((read.entries[0], read.entries[31]), ((1, 2), (63, 64)));
        assert_eq!(read.lane(31), VirtualLane::new(15));
        let mut out = [0; VlArbitrationTable::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(VlArbitrationTable::parse(&[0; 63]), Err(error));
    }
}
