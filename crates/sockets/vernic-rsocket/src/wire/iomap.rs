//! A mapped buffer: 24 bytes in the peer's table, and the size of such a table in 8 bits.
//!
//! ```text
//!  byte   0..8     8..24
//!       +--------+-----------+
//!       | offset | RemoteSge |
//!       +--------+-----------+
//!         64       address, R_Key, length
//! ```
//!
//! Whoever maps a buffer writes its entry into the table of its peer, in the byte order of that
//! host. The peer's direct writes to `offset` and on go to the buffer.

use std::fmt;

use super::{ByteOrder, RemoteSge, WireError, field, head};

/// An entry of a table of mapped buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IomapEntry {
    /// The offset that stands for the buffer's first byte.
    pub offset: u64,
    /// The buffer.
    pub buffer: RemoteSge,
}

impl IomapEntry {
    /// Bytes in memory.
    pub const LEN: usize = 24;

    /// Reads the entry at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Result<Self, WireError> {
        let bytes: [u8; Self::LEN] = head("an entry of the mapped buffers", bytes)?;
        Ok(Self {
            offset: order.u64(field(&bytes, 0)),
            buffer: RemoteSge::from_bytes(&field(&bytes, 8), order),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.bytes_of_u64(self.offset));
        bytes[8..].copy_from_slice(&self.buffer.to_bytes(order));
        bytes
    }

    /// Bytes from `offset` to the buffer's end; none if `offset` is not in it.
    pub fn room_at(&self, offset: u64) -> Option<u32> {
        let inside = offset.checked_sub(self.offset)?;
        let room = u64::from(self.buffer.length).checked_sub(inside)?;
        (room > 0).then_some(room as u32)
    }
}

impl fmt::Display for IomapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {:#x}: {}", self.offset, self.buffer)
    }
}

/// The size of a table in 8 bits: up to 128 as it is, above in units of 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IomapScale(pub u8);

impl IomapScale {
    /// Values up to this are the number of entries itself.
    const EXACT: u8 = 1 << 7;
    /// Entries of the largest table.
    pub const MAX_ENTRIES: u16 = Self(u8::MAX).entries();

    /// The largest size that is not above `entries`; that of the largest table beyond it.
    pub const fn of(entries: u16) -> Self {
        let entries = if entries > Self::MAX_ENTRIES { Self::MAX_ENTRIES } else { entries };
        match entries {
            0..=128 => Self(entries as u8),
            129..=255 => Self(Self::EXACT),
            _ => Self(Self::EXACT | (entries >> 8) as u8),
        }
    }

    /// Entries of a table of this size.
    pub const fn entries(self) -> u16 {
        match self.0 {
            exact @ 0..=Self::EXACT => exact as u16,
            scaled => ((scaled & !Self::EXACT) as u16) << 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_wire::Rkey;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; 24] = std::array::from_fn(|i| i as u8);
        let entry = IomapEntry::parse(&bytes, ByteOrder::Big).unwrap();
        assert_eq!(entry.offset, 0x0001_0203_0405_0607);
        assert_eq!(entry.buffer.rkey, Rkey(0x1011_1213));
        assert_eq!(entry.to_bytes(ByteOrder::Big), bytes);
        let little = IomapEntry::parse(&bytes, ByteOrder::Little).unwrap();
        assert_eq!(little.to_bytes(ByteOrder::Little), bytes);
        assert!(IomapEntry::parse(&bytes[1..], ByteOrder::Big).is_err());
    }

    #[test]
    fn sizes_are_exact_up_to_128_and_then_multiples_of_256() {
        for (asked, granted) in
            [(0, 0), (1, 1), (128, 128), (129, 128), (256, 256), (300, 256), (512, 512)]
        {
            assert_eq!(IomapScale::of(asked).entries(), granted, "{asked}");
        }
        assert_eq!(IomapScale::of(u16::MAX).entries(), 127 * 256);
        assert!((0..=u16::MAX).all(|n| IomapScale::of(n).entries() <= n));
    }

    #[test]
    fn an_offset_is_in_a_buffer_or_not() {
        let buffer = RemoteSge { addr: 0, rkey: Rkey(0), length: 10 };
        let entry = IomapEntry { offset: 100, buffer };
        assert_eq!(entry.room_at(99), None);
        assert_eq!(entry.room_at(100), Some(10));
        assert_eq!(entry.room_at(109), Some(1));
        assert_eq!(entry.room_at(110), None);
        assert_eq!(IomapEntry { offset: u64::MAX, ..entry }.room_at(0), None);
    }
}
