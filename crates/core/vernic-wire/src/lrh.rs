//! Local Route Header (LRH): 8 bytes, first of every packet on an InfiniBand link (IBTA 7.7).
//!
//! ```text
//!  byte   0          1               2..3   4..5                6..7
//!       +----------+---------------+------+-------------------+------+
//!       | VL LVer  | SL rsv2 LNH   | DLID | rsv5 PktLen       | SLID |
//!       +----------+---------------+------+-------------------+------+
//!         4  4       4  2    2       16     5    11             16 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;
use crate::num::Lid;

/// Local route header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lrh {
    /// Virtual lane, 4 bits. Masked out of the ICRC.
    pub virtual_lane: u8,
    /// Link version, 4 bits; only 0 is defined.
    pub version: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Two reserved bits, 0 when sent.
    pub reserved2: u8,
    /// What follows, 2 bits: [`Lrh::NEXT_BTH`] or [`Lrh::NEXT_GRH`] for IB transport packets.
    pub next_header: u8,
    /// Destination.
    pub dlid: u16,
    /// Five reserved bits, 0 when sent.
    pub reserved5: u8,
    /// Length in units of 4 bytes, 11 bits, from the LRH to the ICRC, the VCRC not counted.
    pub packet_length: u16,
    /// Source.
    pub slid: u16,
}

impl Lrh {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Next header: BTH (local packet).
    pub const NEXT_BTH: u8 = 2;
    /// Next header: GRH (global packet).
    pub const NEXT_GRH: u8 = 3;

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
        let length = u16::from_be_bytes([b[4], b[5]]);
        Self {
            virtual_lane: b[0] >> 4,
            version: b[0] & 0x0F,
            service_level: b[1] >> 4,
            reserved2: b[1] >> 2 & 3,
            next_header: b[1] & 3,
            dlid: u16::from_be_bytes([b[2], b[3]]),
            reserved5: (length >> 11) as u8,
            packet_length: length & 0x7FF,
            slid: u16::from_be_bytes([b[6], b[7]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let length = u16::from(self.reserved5) << 11 | self.packet_length & 0x7FF;
        buf[0] = self.virtual_lane << 4 | self.version & 0x0F;
        buf[1] = self.service_level << 4 | (self.reserved2 & 3) << 2 | self.next_header & 3;
        buf[2..4].copy_from_slice(&self.dlid.to_be_bytes());
        buf[4..6].copy_from_slice(&length.to_be_bytes());
        buf[6..Self::LEN].copy_from_slice(&self.slid.to_be_bytes());
    }
}

impl fmt::Display for Lrh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lid {:#x} > {:#x} sl={} words={}",
            self.slid, self.dlid, self.service_level, self.packet_length
        )
    }
}

/// What the LRH of a received packet says of its way (IBTA 7.7).
///
/// As large as a number of 4 bytes, and aligned like one: completions carry it.
#[repr(C, align(4))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalRoute {
    /// The source; reserved where packets have no LRH.
    pub slid: Lid,
    /// The service level. For RoCEv2 datagrams the packet type: 0xA for IPv4, 0x9 for IPv6.
    pub service_level: u8,
    /// The low bits of the destination, which the port's LMC leaves free.
    pub path_bits: u8,
}

impl LocalRoute {
    /// No LRH.
    pub const NONE: Self = Self { slid: Lid::RESERVED, service_level: 0, path_bits: 0 };

    /// Whether there is an LRH.
    #[inline]
    pub const fn is_some(&self) -> bool {
        self.slid.value() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [0x12, 0x3E, 5, 6, 0xF7, 8, 9, 10];
        let header = Lrh::parse(&bytes).unwrap();
        assert_eq!((header.virtual_lane, header.version), (1, 2));
        assert_eq!((header.service_level, header.reserved2), (3, 3));
        assert_eq!(header.next_header, 2);
        assert_eq!((header.dlid, header.slid), (0x0506, 0x090A));
        assert_eq!((header.reserved5, header.packet_length), (0x1E, 0x708));
        let mut out = [0; Lrh::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(Lrh::parse(&[0; 7]), Err(error));
    }
}
