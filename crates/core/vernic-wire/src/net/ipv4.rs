//! IPv4 header without options: 20 bytes (RFC 791).
//!
//! ```text
//! byte   0         1     2..3     4..5    6..7            8     9       10..11     12..15  16..19
//!      +---------+-----+--------+-------+---------------+-----+-------+----------+-------+-------+
//!      | Ver IHL | TOS | length | ident | flags3 offset | TTL | proto | checksum |  src  |  dst  |
//!      +---------+-----+--------+-------+---------------+-----+-------+----------+-------+-------+
//!        4   4     8     16       16      3      13       8     8       16         32      32 bits
//! ```

use core::fmt;
use core::net::Ipv4Addr;

use super::{fold, sum_words};
use crate::ParseError;
use crate::error::head;

/// IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// DSCP (upper six bits) and ECN (lower two).
    pub tos: u8,
    /// Bytes of the packet, this header included.
    pub total_length: u16,
    /// Identification.
    pub ident: u16,
    /// Flags (3 bits) and fragment offset (13 bits); see [`Ipv4::DF`].
    pub flags_and_offset: u16,
    /// Routers that may still forward.
    pub ttl: u8,
    /// Protocol that follows.
    pub protocol: u8,
    /// Header checksum as found; see [`Ipv4::computed_checksum`].
    pub checksum: u16,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Bytes on the wire.
    pub const LEN: usize = 20;
    /// Do not fragment, and offset 0: what RoCEv2 requires (IBTA A17.3.1.1).
    pub const DF: u16 = 0x4000;
    /// First byte of a header without options: version 4, length 5 words.
    const VERSION_AND_LENGTH: u8 = 0x45;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] where version and header length are not 4
    /// and 5.
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head::<{ Self::LEN }>(bytes) {
            Ok(head) if head[0] == Self::VERSION_AND_LENGTH => Ok(Self::from_bytes(head)),
            Ok(head) => {
                let field = "IPv4 version and header length";
                Err(ParseError::Field { field, value: head[0] as u16 })
            }
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes; version and header length are not looked at.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            tos: b[1],
            total_length: u16::from_be_bytes([b[2], b[3]]),
            ident: u16::from_be_bytes([b[4], b[5]]),
            flags_and_offset: u16::from_be_bytes([b[6], b[7]]),
            ttl: b[8],
            protocol: b[9],
            checksum: u16::from_be_bytes([b[10], b[11]]),
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = Self::VERSION_AND_LENGTH;
        buf[1] = self.tos;
        buf[2..4].copy_from_slice(&self.total_length.to_be_bytes());
        buf[4..6].copy_from_slice(&self.ident.to_be_bytes());
        buf[6..8].copy_from_slice(&self.flags_and_offset.to_be_bytes());
        buf[8] = self.ttl;
        buf[9] = self.protocol;
        buf[10..12].copy_from_slice(&self.checksum.to_be_bytes());
        buf[12..16].copy_from_slice(&self.src.octets());
        buf[16..Self::LEN].copy_from_slice(&self.dst.octets());
    }
    /// The right checksum of the header, whatever [`Ipv4::checksum`] says.
    pub fn computed_checksum(&self) -> u16 {
        let mut bytes = [0; Self::LEN];
        Self { checksum: 0, ..*self }.emit(&mut bytes);
        fold(sum_words(&bytes))
    }
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} len={} id={}", self.src, self.dst, self.total_length, self.ident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Ipv4::LEN] =
        [0x45, 2, 0x12, 0x34, 0x56, 0x78, 0x40, 0, 64, 17, 0xAB, 0xCD, 10, 1, 2, 3, 10, 4, 5, 6];

    #[test]
    fn every_field_is_where_the_picture_says() {
        let ip = Ipv4::parse(&BYTES).unwrap();
        assert_eq!((ip.tos, ip.total_length, ip.ident), (2, 0x1234, 0x5678));
        assert_eq!((ip.flags_and_offset, ip.ttl, ip.protocol), (Ipv4::DF, 64, 17));
        assert_eq!(ip.checksum, 0xABCD);
        assert_eq!(ip.src, Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(ip.dst, Ipv4Addr::new(10, 4, 5, 6));
        let mut out = [0; Ipv4::LEN];
        ip.emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn nineteen_bytes_are_truncated_and_options_are_named() {
        let error = ParseError::Truncated { need: 20, have: 19 };
        assert_eq!(Ipv4::parse(&BYTES[..19]), Err(error));
        let mut bytes = BYTES;
        bytes[0] = 0x46;
        let field = "IPv4 version and header length";
        assert_eq!(Ipv4::parse(&bytes), Err(ParseError::Field { field, value: 0x46 }));
    }

    #[test]
    fn a_header_with_its_computed_checksum_sums_to_zero() {
        let mut ip = Ipv4::from_bytes(&BYTES);
        ip.checksum = ip.computed_checksum();
        let mut out = [0; Ipv4::LEN];
        ip.emit(&mut out);
        assert_eq!(fold(sum_words(&out)), 0);
    }
}
