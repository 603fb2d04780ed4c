//! Invalidate Extended Transport Header (IETH): 4 bytes, on SEND with invalidate (IBTA 9.3.7).
//!
//! ```text
//!  byte   0..3
//!       +-------+
//!       | R_Key |
//!       +-------+
//!         32 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

/// Invalidate extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ieth {
    /// Key that the responder shall invalidate before it completes the SEND.
    pub rkey: Rkey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

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
        Self { rkey: Rkey(u32::from_be_bytes(*b)) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.rkey.0.to_be_bytes());
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate={}", self.rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4];
        let header = Ieth::parse(&bytes).unwrap();
        assert_eq!(header.rkey, Rkey(0x0102_0304));
        let mut out = [0; Ieth::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 4, have: 3 };
        assert_eq!(Ieth::parse(&[0; 3]), Err(error));
    }
}
