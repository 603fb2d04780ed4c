//! ERF record: how a capture file holds a packet of an InfiniBand link (extensible record format of
//! Endace). A file is records and nothing else.
//!
//! ```text
//!  byte   0..7        8      9       10..11    12..13   14..15    16..
//!       +-----------+------+-------+---------+--------+---------+--------+------------+
//!       | timestamp | type | flags | rlen    | lctr   | wlen    | packet | pad 0..7   |
//!       +-----------+------+-------+---------+--------+---------+--------+------------+
//!         64 LE       8      8       16        16       16 bits
//! ```
//! The timestamp is seconds since 1970 in its upper half and 2^-32 seconds in its lower one, with
//! the low byte first; all other numbers have the high byte first. It is the one format of files in
//! which tshark (4.0) looks for an LRH.

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// What a record holds, 7 bits. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ErfType(pub u8);

impl ErfType {
    /// A data packet, LRH to VCRC ([`LinkPacket`](crate::LinkPacket)).
    pub const INFINIBAND: Self = Self(21);
    /// A packet of the link itself ([`FlowControl`](crate::FlowControl)).
    pub const INFINIBAND_LINK: Self = Self(25);
}

/// When a packet was captured: seconds since 1970 and, below, 2^-32 seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ErfTimestamp(pub u64);

impl ErfTimestamp {
    /// Returns the time that many nanoseconds after 1970 began, cut to the unit below. Seconds from
    /// 2^32 on, which begin in 2106, wrap.
    pub const fn from_nanos(nanos: u64) -> Self {
        let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        Self(seconds << 32 | ((rest << 32) / 1_000_000_000))
    }
    /// Returns the nanoseconds since 1970 began, rounded to the nearest.
    pub const fn nanos(self) -> u64 {
        let rest = (self.0 & 0xFFFF_FFFF) * 1_000_000_000;
        (self.0 >> 32) * 1_000_000_000 + ((rest + (1 << 31)) >> 32)
    }
}

/// Header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Erf {
    /// When the packet was captured.
    pub timestamp: ErfTimestamp,
    /// Whether extension headers follow this one; not in what [`Erf::new`] makes.
    pub extended: bool,
    /// What the record holds, 7 bits.
    pub kind: ErfType,
    /// Which interface the packet came by, 2 bits, and flags above.
    pub flags: u8,
    /// Bytes of the whole record, this header and pad included.
    pub record_len: u16,
    /// Packets that were lost before this one.
    pub lost: u16,
    /// Bytes of the packet as it was on the link; what [`Erf::new`] makes has at least 8.
    pub wire_len: u16,
}

impl Erf {
    /// Bytes on file.
    pub const LEN: usize = 16;
    /// Bytes of the longest packet that a record can hold.
    pub const MAX_PACKET: usize = u16::MAX as usize / 8 * 8 - Self::LEN;
    /// Bytes of the shortest packet that readers expect.
    const MIN_PACKET: usize = 8;
    /// Flag: records of the file have different lengths.
    pub const VARYING_LENGTH: u8 = 1 << 2;

    /// Returns the header of a record of `packet_len` bytes, whole and padded; `None` if they are
    /// more than [`Self::MAX_PACKET`].
    ///
    /// A packet of less than 8 bytes counts as one of 8 with zeros behind. Flow-control packets are
    /// read so: between its two delimiters such a packet takes 8 bytes of a link.
    pub const fn new(kind: ErfType, timestamp: ErfTimestamp, packet_len: usize) -> Option<Self> {
        if packet_len > Self::MAX_PACKET {
            return None;
        }
        let len = if packet_len < Self::MIN_PACKET { Self::MIN_PACKET } else { packet_len };
        Some(Self {
            timestamp,
            extended: false,
            kind,
            flags: Self::VARYING_LENGTH,
            record_len: (Self::LEN + len.next_multiple_of(8)) as u16,
            lost: 0,
            wire_len: len as u16,
        })
    }
    /// Writes the record with this header, `packet` and zeros up to its length at the start of
    /// `buf`, and returns its bytes. Of a packet that is longer than the record only the beginning
    /// is written.
    ///
    /// # Panics
    /// If `buf` is shorter than the record, or the record than its header: the caller's mistake.
    pub fn emit_record(&self, packet: &[u8], buf: &mut [u8]) -> usize {
        let record = &mut buf[..usize::from(self.record_len)];
        self.emit(record);
        let room = &mut record[Self::LEN..];
        let (held, pad) = room.split_at_mut(packet.len().min(room.len()));
        held.copy_from_slice(&packet[..held.len()]);
        pad.fill(0);
        record.len()
    }
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let timestamp = u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Self {
            timestamp: ErfTimestamp(timestamp),
            extended: b[8] >> 7 != 0,
            kind: ErfType(b[8] & 0x7F),
            flags: b[9],
            record_len: u16::from_be_bytes([b[10], b[11]]),
            lost: u16::from_be_bytes([b[12], b[13]]),
            wire_len: u16::from_be_bytes([b[14], b[15]]),
        }
    }
    /// Writes the header at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.timestamp.0.to_le_bytes());
        buf[8] = u8::from(self.extended) << 7 | self.kind.0 & 0x7F;
        buf[9] = self.flags;
        buf[10..12].copy_from_slice(&self.record_len.to_be_bytes());
        buf[12..14].copy_from_slice(&self.lost.to_be_bytes());
        buf[14..Self::LEN].copy_from_slice(&self.wire_len.to_be_bytes());
    }
}

impl fmt::Display for Erf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nanos, kind) = (self.timestamp.nanos(), self.kind.0);
        write!(f, "{nanos} ns type={kind} len={}", self.wire_len)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0x95, 10, 11, 12, 13, 14, 15, 16];
        let header = Erf::parse(&bytes).unwrap();
        assert_eq!(header.timestamp, ErfTimestamp(0x0807_0605_0403_0201));
        assert_eq!((header.extended, header.kind), (true, ErfType::INFINIBAND));
        assert_eq!((header.flags, header.record_len), (10, 0x0B0C));
        assert_eq!((header.lost, header.wire_len), (0x0D0E, 0x0F10));
        let mut out = [0; Erf::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn fifteen_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 16, have: 15 };
        assert_eq!(Erf::parse(&[0; 15]), Err(error));
    }

    #[test]
    fn nanoseconds_survive_the_way_through_binary_fractions() {
        assert_eq!(ErfTimestamp::from_nanos(1_500_000_000), ErfTimestamp(0x0001_8000_0000));
        for nanos in [0, 1, 7, 999_999_999, 1_234_567_891, 1_795_000_000_123_456_789] {
            assert_eq!(ErfTimestamp::from_nanos(nanos).nanos(), nanos);
        }
        assert_eq!(ErfTimestamp(u64::MAX).nanos(), (1 << 32) * 1_000_000_000);
    }

    #[test]
    fn records_are_padded_to_multiples_of_eight_bytes() {
        let header = Erf::new(ErfType::INFINIBAND_LINK, ErfTimestamp(0), 6).unwrap();
        let mut buf = [0xEE; 32];
        assert_eq!(header.emit_record(&[1, 2, 3, 4, 5, 6], &mut buf), 24);
        assert_eq!(buf[14..24], [0, 8, 1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(buf[24..], [0xEE; 8]);
        assert_eq!(header.to_string(), "0 ns type=25 len=8");
        let longer = Erf::new(ErfType::INFINIBAND, ErfTimestamp(0), 26).unwrap();
        assert_eq!((longer.record_len, longer.wire_len), (48, 26));
    }

    #[test]
    fn a_packet_that_is_longer_than_its_record_is_cut() {
        let header = Erf::new(ErfType::INFINIBAND, ErfTimestamp(0), 8).unwrap();
        let mut buf = [0xEE; 32];
        assert_eq!(header.emit_record(&[9; 12], &mut buf), 24);
        assert_eq!((buf[23], buf[24]), (9, 0xEE));
    }

    #[test]
    fn a_record_holds_no_more_than_its_length_can_say() {
        let of = |len| Erf::new(ErfType::INFINIBAND, ErfTimestamp(0), len);
        let longest = of(Erf::MAX_PACKET).unwrap();
        assert_eq!((longest.record_len, longest.wire_len), (65_528, 65_512));
        assert_eq!(of(Erf::MAX_PACKET + 1), None);
        assert_eq!(of(0).unwrap().record_len, 24);
    }
}
