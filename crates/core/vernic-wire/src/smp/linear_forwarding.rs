//! LinearForwardingTable: ports that packets to 64 LIDs leave a switch by (IBTA
//! 14.2.5.10): 64 bytes.
//!
//! ```text
//!  byte   0          1                63
//!       +----------+----------+-----+-----------+
//!       | of LID 0 | of LID 1 | ... | of LID 63 |
//!       +----------+----------+-----+-----------+
//! ```
//! The modifier is the number of the block: LIDs from 64 times it on. Port 255 discards.

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Ports that packets to 64 LIDs leave a switch by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearForwardingTable {
    /// Port of each LID; 255 discards.
    pub ports: [u8; LinearForwardingTable::LEN],
}

impl LinearForwardingTable {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { ports: *b }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.ports);
    }
}

impl fmt::Display for LinearForwardingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinearForwardingTable {} {} ...", self.ports[0], self.ports[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; LinearForwardingTable::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = LinearForwardingTable::parse(&bytes).unwrap();
        assert_eq!(read.ports, bytes);
        let mut out = [0; LinearForwardingTable::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(LinearForwardingTable::parse(&[0; 63]), Err(error));
    }
}
