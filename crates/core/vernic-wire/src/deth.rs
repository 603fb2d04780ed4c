//! Datagram Extended Transport Header (DETH): 8 bytes, on UD and RD requests (IBTA 9.3.2).
//!
//! ```text
//!  byte   0..3    4          5..7
//!       +-------+----------+------------+
//!       | Q_Key | reserved | source QPN |
//!       +-------+----------+------------+
//!         32      8          24 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Qkey, Qpn};

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Key that the receiving queue pair must have too.
    pub qkey: Qkey,
    /// Reserved byte, 0 when sent.
    pub reserved: u8,
    /// Queue pair that sent the packet.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// A header with the reserved byte 0.
    #[inline]
    pub const fn new(qkey: Qkey, src_qpn: Qpn) -> Self {
        Self { qkey, reserved: 0, src_qpn }
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
            qkey: Qkey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            reserved: b[4],
            src_qpn: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let word = u32::from(self.reserved) << 24 | self.src_qpn.value();
        buf[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        buf[4..Self::LEN].copy_from_slice(&word.to_be_bytes());
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey={} src_qp={}", self.qkey, self.src_qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let header = Deth::parse(&bytes).unwrap();
        assert_eq!(header.qkey, Qkey(0x0102_0304));
        assert_eq!(header.reserved, 5);
        assert_eq!(header.src_qpn, Qpn::new(0x06_0708));
        let mut out = [0; Deth::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(Deth::parse(&[0; 7]), Err(error));
    }
}
