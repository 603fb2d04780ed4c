//! XRC Extended Transport Header (XRCETH): 4 bytes, on XRC requests (IBTA annex A14).
//!
//! ```text
//!  byte   0          1..3
//!       +----------+------+
//!       | reserved | SRQN |
//!       +----------+------+
//!         8          24 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;
use crate::num::Srqn;

/// XRC extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Xrceth {
    /// Reserved byte, 0 when sent.
    pub reserved: u8,
    /// Shared receive queue that takes the message.
    pub srqn: Srqn,
}

impl Xrceth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// One with the reserved byte 0.
    #[inline]
    pub const fn new(srqn: Srqn) -> Self {
        Self { reserved: 0, srqn }
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
        Self { reserved: b[0], srqn: Srqn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let word = u32::from(self.reserved) << 24 | self.srqn.value();
        buf[..Self::LEN].copy_from_slice(&word.to_be_bytes());
    }
}

impl fmt::Display for Xrceth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srqn={}", self.srqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4];
        let header = Xrceth::parse(&bytes).unwrap();
        assert_eq!(header.reserved, 1);
        assert_eq!(header.srqn, Srqn::new(0x02_0304));
        let mut out = [0; Xrceth::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 4, have: 3 };
        assert_eq!(Xrceth::parse(&[0; 3]), Err(error));
    }
}
