//! IPv6 header: 40 bytes (RFC 8200).
//!
//! ```text
//!  byte   0..3                      4..5     6           7           8..23    24..39
//!       +-------------------------+--------+-----------+-----------+--------+--------+
//!       | Ver traffic-class label | length | next hdr  | hop limit |  src   |  dst   |
//!       +-------------------------+--------+-----------+-----------+--------+--------+
//!         4   8             20      16       8           8           128      128 bits
//! ```

use core::fmt;
use core::net::Ipv6Addr;

use crate::error::head;
use crate::{Gid, Grh, ParseError};

/// IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// Flow label, 20 bits; larger values are masked.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_length: u16,
    /// Protocol that follows.
    pub next_header: u8,
    /// Routers that may still forward.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Bytes on the wire.
    pub const LEN: usize = 40;
    /// The version.
    const VERSION: u8 = 6;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] where the version is not 6.
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head::<{ Self::LEN }>(bytes) {
            Ok(head) if head[0] >> 4 == Self::VERSION => Ok(Self::from_bytes(head)),
            Ok(head) => {
                Err(ParseError::Field { field: "IPv6 version", value: (head[0] >> 4) as u16 })
            }
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes; the version is not looked at.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        // A GRH is an IPv6 header by other names.
        let grh = Grh::from_bytes(b);
        Self {
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            payload_length: grh.payload_length,
            next_header: grh.next_header,
            hop_limit: grh.hop_limit,
            src: Ipv6Addr::from_bits(u128::from_be_bytes(grh.sgid.0)),
            dst: Ipv6Addr::from_bits(u128::from_be_bytes(grh.dgid.0)),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let grh = Grh {
            version: Self::VERSION,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            payload_length: self.payload_length,
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            sgid: Gid(self.src.octets()),
            dgid: Gid(self.dst.octets()),
        };
        grh.emit(buf);
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} len={}", self.src, self.dst, self.payload_length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Ipv6::LEN] = core::array::from_fn(|i| 0x60 + i as u8);
        let ip = Ipv6::parse(&bytes).unwrap();
        assert_eq!((ip.traffic_class, ip.flow_label), (0x06, 0x1_6263));
        assert_eq!((ip.payload_length, ip.next_header, ip.hop_limit), (0x6465, 0x66, 0x67));
        assert_eq!((ip.src.octets()[0], ip.dst.octets()[0]), (0x68, 0x78));
        let mut out = [0; Ipv6::LEN];
        ip.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn thirty_nine_bytes_are_truncated_and_another_version_is_named() {
        let error = ParseError::Truncated { need: 40, have: 39 };
        assert_eq!(Ipv6::parse(&[0x60; 39]), Err(error));
        let error = ParseError::Field { field: "IPv6 version", value: 4 };
        assert_eq!(Ipv6::parse(&[0x45; 40]), Err(error));
    }
}
