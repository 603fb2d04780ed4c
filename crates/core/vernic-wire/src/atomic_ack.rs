//! Atomic ACK Extended Transport Header (AtomicAckETH): 8 bytes, the operand's old value
//! (IBTA 9.5.3).
//!
//! ```text
//!  byte   0..7
//!       +----------------------+
//!       | original remote data |
//!       +----------------------+
//!         64 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Atomic ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicAckEth {
    /// The operand before the operation, as a number in the responder's byte order.
    pub original: u64,
}

impl AtomicAckEth {
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
        Self { original: u64::from_be_bytes(*b) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.original.to_be_bytes());
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "original={:#x}", self.original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let header = AtomicAckEth::parse(&bytes).unwrap();
        assert_eq!(header.original, 0x0102_0304_0506_0708);
        let mut out = [0; AtomicAckEth::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(AtomicAckEth::parse(&[0; 7]), Err(error));
    }
}
