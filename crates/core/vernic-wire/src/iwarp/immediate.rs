//! Immediate data header: 8 bytes (RFC 7306, 6.2).
//!
//! ```text
//!  byte   0..3             4..7
//!       +----------------+----------------+
//!       | immediate data                  |   verbs' 32 bits are the first four bytes,
//!       +----------------+----------------+   the others 0
//!         64 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Immediate data header: "8 bytes of data transferred from the Data Source to an untagged Buffer
/// at the Data Sink" (RFC 7306, 6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Immediate {
    /// The data, as one number.
    pub data: u64,
}

impl Immediate {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The verbs' 32 bits. RFC 7306 does not say where they go; what hardware does is put them
    /// first.
    pub const fn of_verbs(imm: u32) -> Self {
        Self { data: (imm as u64) << 32 }
    }
    /// The verbs' 32 bits.
    pub const fn verbs(self) -> u32 {
        (self.data >> 32) as u32
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
        Self { data: u64::from_be_bytes(*b) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.data.to_be_bytes());
    }
}

impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm={:#018x}", self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let header = Immediate::parse(&bytes).unwrap();
        assert_eq!(header.data, 0x0102_0304_0506_0708);
        assert_eq!(header.verbs(), 0x0102_0304);
        let mut out = [0; 8];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        Immediate::of_verbs(0x0A0B_0C0D).emit(&mut out);
        assert_eq!(out, [0x0A, 0x0B, 0x0C, 0x0D, 0, 0, 0, 0]);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        assert_eq!(Immediate::parse(&[0; 7]), Err(ParseError::Truncated { need: 8, have: 7 }));
    }
}
