//! Encapsulation header: 4 bytes, first of all that an interface of IPoIB sends (RFC 4391, section
//! 6).
//!
//! ```text
//!  byte   0..1     2..3
//!       +--------+----------+
//!       | type   | reserved |
//!       +--------+----------+
//!         16       16 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;
use crate::net::EtherType;

/// Encapsulation header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encapsulation {
    /// What follows, by the numbers of Ethernet.
    pub ethertype: EtherType,
    /// Reserved, 0 when sent, ignored when received.
    pub reserved: u16,
}

impl Encapsulation {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Returns the header of what the number says.
    pub const fn new(ethertype: EtherType) -> Self {
        Self { ethertype, reserved: 0 }
    }
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
            ethertype: EtherType(u16::from_be_bytes([b[0], b[1]])),
            reserved: u16::from_be_bytes([b[2], b[3]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.ethertype.0.to_be_bytes());
        buf[2..Self::LEN].copy_from_slice(&self.reserved.to_be_bytes());
    }
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipoib type={:#06x}", self.ethertype.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [8, 6, 3, 4];
        let header = Encapsulation::parse(&bytes).unwrap();
        assert_eq!((header.ethertype, header.reserved), (EtherType::ARP, 0x0304));
        let mut out = [0; Encapsulation::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 4, have: 3 };
        assert_eq!(Encapsulation::parse(&[0; 3]), Err(error));
    }
}
