//! Atomic operation response header: 12 bytes (RFC 7306, 5.2.2).
//!
//! ```text
//!  byte   0..3                  4..11
//!       +---------------------+-----------------------+
//!       | original request id | original remote value |
//!       +---------------------+-----------------------+
//!         32                    64 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Atomic operation response header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicResponse {
    /// The request's own identifier.
    pub request_id: u32,
    /// What was there before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

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
        Self {
            request_id: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            original: u64::from_be_bytes([b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.request_id.to_be_bytes());
        buf[4..Self::LEN].copy_from_slice(&self.original.to_be_bytes());
    }
}

impl fmt::Display for AtomicResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id={} original={:#x}", self.request_id, self.original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; AtomicResponse::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let header = AtomicResponse::parse(&bytes).unwrap();
        assert_eq!(header.request_id, 0x0102_0304);
        assert_eq!(header.original, 0x0506_0708_090A_0B0C);
        let mut out = [0; AtomicResponse::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn eleven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 12, have: 11 };
        assert_eq!(AtomicResponse::parse(&[0; 11]), Err(error));
    }
}
