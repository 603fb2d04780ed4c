//! UDP header: 8 bytes (RFC 768).
//!
//! ```text
//!  byte   0..1          2..3               4..5     6..7
//!       +-------------+------------------+--------+----------+
//!       | source port | destination port | length | checksum |
//!       +-------------+------------------+--------+----------+
//!         16            16                 16       16 bits
//! ```

use core::fmt;
use core::net::Ipv6Addr;

use super::{PROTOCOL_UDP, fold, sum_words};
use crate::ParseError;
use crate::error::head;

/// UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port; for RoCEv2 any, chosen to spread flows over paths.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum as found; 0 = none, as RoCEv2 usually has it.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

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
        Self {
            sport: u16::from_be_bytes([b[0], b[1]]),
            dport: u16::from_be_bytes([b[2], b[3]]),
            length: u16::from_be_bytes([b[4], b[5]]),
            checksum: u16::from_be_bytes([b[6], b[7]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.sport.to_be_bytes());
        buf[2..4].copy_from_slice(&self.dport.to_be_bytes());
        buf[4..6].copy_from_slice(&self.length.to_be_bytes());
        buf[6..Self::LEN].copy_from_slice(&self.checksum.to_be_bytes());
    }
    /// The right checksum over IPv6 of this header and `payload` (RFC 8200, 8.1); never 0.
    pub fn computed_checksum(&self, src: Ipv6Addr, dst: Ipv6Addr, payload: &[u8]) -> u16 {
        let mut header = [0; Self::LEN];
        Self { checksum: 0, ..*self }.emit(&mut header);
        let pseudo_header = sum_words(&src.octets())
            + sum_words(&dst.octets())
            + u32::from(self.length)
            + u32::from(PROTOCOL_UDP);
        match fold(pseudo_header + sum_words(&header) + sum_words(payload)) {
            0 => 0xFFFF,
            checksum => checksum,
        }
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp {} > {} len={}", self.sport, self.dport, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let udp = Udp::parse(&bytes).unwrap();
        assert_eq!((udp.sport, udp.dport), (0x0102, 0x0304));
        assert_eq!((udp.length, udp.checksum), (0x0506, 0x0708));
        let mut out = [0; Udp::LEN];
        udp.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(Udp::parse(&[0; 7]), Err(error));
    }
}
