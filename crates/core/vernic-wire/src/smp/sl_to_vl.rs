//! SLtoVLMappingTable: the lane of each service level (IBTA 14.2.5.8): 8 bytes.
//!
//! ```text
//!  byte   0           1                 7
//!       +-----+-----+-----+-----+-----+------+------+
//!       | SL0 | SL1 | SL2 | SL3 | ... | SL14 | SL15 |
//!       +-----+-----+-----+-----+-----+------+------+
//!         4     4     4     4           4      4 bits
//! ```
//! The modifier at a switch is `input port << 8 | output port`. Lane 15 discards.

use core::fmt;

use crate::error::head;
use crate::{ParseError, ServiceLevel, VirtualLane};

/// Lane of each service level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlToVlTable {
    /// Lane of each service level.
    pub lanes: [VirtualLane; ServiceLevel::COUNT],
}

impl SlToVlTable {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { lanes: core::array::from_fn(|i| VirtualLane::new(b[i / 2] >> (4 * (1 - i % 2)))) }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        for (out, lanes) in buf[..Self::LEN].iter_mut().zip(self.lanes.as_chunks::<2>().0) {
            *out = lanes[0].value() << 4 | lanes[1].value();
        }
    }
}

impl fmt::Display for SlToVlTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SLtoVLMappingTable")?;
        self.lanes.iter().try_for_each(|lane| write!(f, " {}", lane.value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; SlToVlTable::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = SlToVlTable::parse(&bytes).unwrap();
        assert_eq!((read.lanes[0].value(), read.lanes[1].value()), (0, 1));
        assert_eq!((read.lanes[14].value(), read.lanes[15].value()), (0, 8));
        let mut out = [0; SlToVlTable::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(SlToVlTable::parse(&[0; 7]), Err(error));
    }
}
