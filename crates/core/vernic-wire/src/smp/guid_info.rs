//! GUIDInfo: a block of a port's GUIDs (IBTA 14.2.5.5): 64 bytes.
//!
//! ```text
//!  byte   0..7     8..15           56..63
//!       +--------+--------+-----+--------+
//!       | GUID 0 | GUID 1 | ... | GUID 7 |
//!       +--------+--------+-----+--------+
//! ```
//! GUID 0 of block 0 is that of the port and cannot be written.

use core::fmt;

use super::be64;
use crate::error::head;
use crate::{Guid, ParseError};

/// Block of a port's GUIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuidInfo {
    /// GUIDs; 0 is none.
    pub guids: [Guid; 8],
}

impl GuidInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { guids: core::array::from_fn(|i| Guid(be64(b, 8 * i))) }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        for (out, guid) in buf[..Self::LEN].as_chunks_mut::<8>().0.iter_mut().zip(self.guids) {
            *out = guid.0.to_be_bytes();
        }
    }
}

impl fmt::Display for GuidInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GUIDInfo {} ...", self.guids[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; GuidInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = GuidInfo::parse(&bytes).unwrap();
        assert_eq!(read.guids[0], Guid(0x0102_0304_0506_0708));
        assert_eq!(read.guids[7], Guid(0x393A_3B3C_3D3E_3F40));
        let mut out = [0; GuidInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(GuidInfo::parse(&[0; 63]), Err(error));
    }
}
