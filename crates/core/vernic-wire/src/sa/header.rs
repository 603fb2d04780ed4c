//! SA header: 20 bytes behind the RMPP header (IBTA 15.2.1).
//!
//! ```text
//!  byte   0..7     8..9               10..11     12..19
//!       +--------+------------------+----------+----------------+
//!       | SM_Key | attribute offset | reserved | component mask |
//!       +--------+------------------+----------+----------------+
//! ```

use core::fmt;

use super::{be16, be64};
use crate::ParseError;
use crate::error::head;

/// Header of subnet administration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SaHeader {
    /// Proves that the requester is trusted; 0 of all who are not.
    pub sm_key: u64,
    /// Distance from one record of a table to the next, in units of 8 bytes.
    pub attribute_offset: u16,
    /// Reserved, 0 when sent.
    pub reserved: u16,
    /// Which components of the record in a request count, by a bit for each.
    pub component_mask: u64,
}

impl SaHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Returns the attribute offset of records of `len` bytes: rounded up to units of 8. Lengths
    /// beyond 524,280 give the largest offset.
    pub const fn offset_of(len: usize) -> u16 {
        crate::error::saturate(len.div_ceil(8))
    }
    /// Returns the distance from one record of a table to the next, in bytes.
    pub const fn record_distance(&self) -> usize {
        self.attribute_offset as usize * 8
    }
    /// Returns the records of `table`, which is the data of all segments of an answer without their
    /// SA headers. Each is as long as the distance, the last as long as the table; no record if the
    /// distance is 0.
    pub fn records<'a>(&self, table: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (distance, table) = match self.record_distance() {
            0 => (1, &[][..]),
            distance => (distance, table),
        };
        table.chunks(distance)
    }
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the header from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            sm_key: be64(b, 0),
            attribute_offset: be16(b, 8),
            reserved: be16(b, 10),
            component_mask: be64(b, 12),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.sm_key.to_be_bytes());
        buf[8..10].copy_from_slice(&self.attribute_offset.to_be_bytes());
        buf[10..12].copy_from_slice(&self.reserved.to_be_bytes());
        buf[12..Self::LEN].copy_from_slice(&self.component_mask.to_be_bytes());
    }
}

impl fmt::Display for SaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mask={:#x}", self.component_mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; SaHeader::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let header = SaHeader::parse(&bytes).unwrap();
        assert_eq!(header.sm_key, 0x0102_0304_0506_0708);
        assert_eq!((header.attribute_offset, header.reserved), (0x090A, 0x0B0C));
        assert_eq!(header.component_mask, 0x0D0E_0F10_1112_1314);
        let mut out = [0; SaHeader::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn nineteen_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 20, have: 19 };
        assert_eq!(SaHeader::parse(&[0; 19]), Err(error));
    }

    #[test]
    fn records_begin_at_multiples_of_eight_bytes() {
        assert_eq!([52, 56, 60, 64, 108].map(SaHeader::offset_of), [7, 7, 8, 8, 14]);
        assert_eq!(SaHeader::offset_of(usize::MAX), u16::MAX);
        let header = SaHeader { attribute_offset: 7, ..SaHeader::default() };
        assert_eq!(header.record_distance(), 56);
    }

    #[test]
    fn a_table_is_cut_into_records_of_which_the_last_may_lack_its_padding() {
        let header = SaHeader { attribute_offset: 1, ..SaHeader::default() };
        let table: [u8; 20] = core::array::from_fn(|i| i as u8);
        let mut records = header.records(&table);
        assert_eq!((records.next(), records.next()), (Some(&table[..8]), Some(&table[8..16])));
        assert_eq!((records.next(), records.next()), (Some(&table[16..]), None));
        assert_eq!(SaHeader::default().records(&table).count(), 0);
    }
}
