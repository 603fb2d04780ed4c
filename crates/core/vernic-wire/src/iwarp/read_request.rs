//! RDMA READ request header: 28 bytes, where data comes from and where it goes (RFC 5040, 4.4).
//!
//! ```text
//!  byte   0..3        4..11         12..15   16..19        20..27
//!       +-----------+-------------+--------+-------------+---------------+
//!       | sink STag | sink offset | size   | source STag | source offset |
//!       +-----------+-------------+--------+-------------+---------------+
//!         32          64            32       32            64 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

/// RDMA READ request header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadRequest {
    /// Where the requester wants the data: "MUST be copied, without interpretation, from the RDMA
    /// Read Request into the corresponding RDMA Read Response" (RFC 5040, 4.4).
    pub sink_stag: Rkey,
    /// Offset that goes with it.
    pub sink_offset: u64,
    /// Bytes asked for, 0 to 2^32 - 1.
    pub size: u32,
    /// Key of the memory that is read.
    pub source_stag: Rkey,
    /// First byte that is read.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

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
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            sink_stag: Rkey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            sink_offset: u64::from_be_bytes([b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11]]),
            size: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            source_stag: Rkey(u32::from_be_bytes([b[16], b[17], b[18], b[19]])),
            source_offset: u64::from_be_bytes([
                b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27],
            ]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.sink_stag.0.to_be_bytes());
        buf[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        buf[12..16].copy_from_slice(&self.size.to_be_bytes());
        buf[16..20].copy_from_slice(&self.source_stag.0.to_be_bytes());
        buf[20..Self::LEN].copy_from_slice(&self.source_offset.to_be_bytes());
    }
}

impl fmt::Display for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sink_stag, sink_offset, size, source_stag, source_offset } = self;
        write!(
            f,
            "size={size} source={source_stag}+{source_offset:#x} sink={sink_stag}+{sink_offset:#x}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; ReadRequest::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let header = ReadRequest::parse(&bytes).unwrap();
        assert_eq!(header.sink_stag, Rkey(0x0102_0304));
        assert_eq!(header.sink_offset, 0x0506_0708_090A_0B0C);
        assert_eq!(header.size, 0x0D0E_0F10);
        assert_eq!(header.source_stag, Rkey(0x1112_1314));
        assert_eq!(header.source_offset, 0x1516_1718_191A_1B1C);
        let mut out = [0; ReadRequest::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn twenty_seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 28, have: 27 };
        assert_eq!(ReadRequest::parse(&[0; 27]), Err(error));
    }
}
