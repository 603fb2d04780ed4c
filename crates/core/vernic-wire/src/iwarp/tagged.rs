//! DDP tagged buffer header: 14 bytes, names memory of the receiver (RFC 5041, 4.2).
//!
//! ```text
//!  byte   0..1      2..5     6..13
//!       +---------+--------+----------------+
//!       | control | STag   | tagged offset  |
//!       +---------+--------+----------------+
//!         16        32       64 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

use super::control::Control;

/// DDP header of an RDMA WRITE or READ response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// DDP and RDMAP control fields; the T bit is taken from here.
    pub control: Control,
    /// Steering Tag: the key of the buffer.
    pub stag: Rkey,
    /// Tagged Offset: where in the buffer the payload of this segment begins.
    pub offset: u64,
}

impl Tagged {
    /// Bytes on the wire.
    pub const LEN: usize = 14;

    /// Reads the header at the start of `bytes`, whatever its T bit is.
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
            control: Control::from_bytes(&[b[0], b[1]]),
            stag: Rkey(u32::from_be_bytes([b[2], b[3], b[4], b[5]])),
            offset: u64::from_be_bytes([b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        self.control.emit(buf);
        buf[2..6].copy_from_slice(&self.stag.0.to_be_bytes());
        buf[6..Self::LEN].copy_from_slice(&self.offset.to_be_bytes());
    }
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stag={} to={:#x}", self.control, self.stag, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::RdmapOpcode;

    const BYTES: [u8; Tagged::LEN] = [0xC1, 0x42, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

    #[test]
    fn every_field_is_where_the_picture_says() {
        let header = Tagged::parse(&BYTES).unwrap();
        assert_eq!(header.control, Control::new(RdmapOpcode::READ_RESPONSE, true));
        assert_eq!(header.stag, Rkey(0x0203_0405));
        assert_eq!(header.offset, 0x0607_0809_0A0B_0C0D);
        let mut out = [0; Tagged::LEN];
        header.emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn thirteen_bytes_are_truncated() {
        assert_eq!(Tagged::parse(&BYTES[..13]), Err(ParseError::Truncated { need: 14, have: 13 }));
    }
}
