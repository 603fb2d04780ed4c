//! Atomic operation request header: 52 bytes (RFC 7306, 5.2.1).
//!
//! ```text
//!  byte   0..3                 4..7         8..11         12..19
//!       +--------------------+------------+-------------+-----------------+
//!       | reserved28 | code4 | request id | remote STag | remote offset   |
//!       +--------------------+------------+-------------+-----------------+
//!       | add or swap data 20..27         | add or swap mask 28..35       |
//!       +---------------------------------+-------------------------------+
//!       | compare data 36..43             | compare mask 44..51           |
//!       +---------------------------------+-------------------------------+
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

/// Atomic operation code: 4 bits (RFC 7306, 5.2.1, figure 5). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicCode(pub u8);

impl AtomicCode {
    /// Add, and return what was there.
    pub const FETCH_ADD: Self = Self(0);
    /// Compare, swap if equal, and return what was there.
    pub const CMP_SWAP: Self = Self(2);
}

impl fmt::Display for AtomicCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FETCH_ADD => f.pad("fetch_add"),
            Self::CMP_SWAP => f.pad("cmp_swap"),
            Self(other) => write!(f, "reserved atomic code {other}"),
        }
    }
}

/// Atomic operation request header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicRequest {
    /// Reserved bits, 28 of them, 0 when sent; larger values are masked.
    pub reserved: u32,
    /// What to do.
    pub code: AtomicCode,
    /// Chosen by the requester, and returned with the answer.
    pub request_id: u32,
    /// Key of the memory.
    pub stag: Rkey,
    /// The 8 bytes there, which must be aligned.
    pub offset: u64,
    /// What is added, or swapped in.
    pub data: u64,
    /// FETCH_ADD: a 1 at the top bit of each field, 0 for one field of 64 bits. CMP_SWAP: the bits
    /// that are swapped.
    pub mask: u64,
    /// CMP_SWAP: what must be there.
    pub compare: u64,
    /// CMP_SWAP: the bits that are compared.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 52;

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
        const fn u32_at(b: &[u8; AtomicRequest::LEN], at: usize) -> u32 {
            u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
        }
        const fn u64_at(b: &[u8; AtomicRequest::LEN], at: usize) -> u64 {
            (u32_at(b, at) as u64) << 32 | u32_at(b, at + 4) as u64
        }
        let first = u32_at(b, 0);
        Self {
            reserved: first >> 4,
            code: AtomicCode(first as u8 & 0x0F),
            request_id: u32_at(b, 4),
            stag: Rkey(u32_at(b, 8)),
            offset: u64_at(b, 12),
            data: u64_at(b, 20),
            mask: u64_at(b, 28),
            compare: u64_at(b, 36),
            compare_mask: u64_at(b, 44),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let first = self.reserved << 4 | u32::from(self.code.0 & 0x0F);
        buf[..4].copy_from_slice(&first.to_be_bytes());
        buf[4..8].copy_from_slice(&self.request_id.to_be_bytes());
        buf[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        let words = [self.offset, self.data, self.mask, self.compare, self.compare_mask];
        for (chunk, word) in buf[12..Self::LEN].chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
    }
}

impl fmt::Display for AtomicRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, request_id, stag, offset, data, compare, .. } = self;
        write!(
            f,
            "{code} id={request_id} stag={stag} to={offset:#x} data={data:#x} compare={compare:#x}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; AtomicRequest::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let header = AtomicRequest::parse(&bytes).unwrap();
        assert_eq!((header.reserved, header.code), (0x010_2030, AtomicCode(4)));
        assert_eq!((header.request_id, header.stag), (0x0506_0708, Rkey(0x090A_0B0C)));
        assert_eq!(header.offset, 0x0D0E_0F10_1112_1314);
        assert_eq!(header.data, 0x1516_1718_191A_1B1C);
        assert_eq!(header.mask, 0x1D1E_1F20_2122_2324);
        assert_eq!(header.compare, 0x2526_2728_292A_2B2C);
        assert_eq!(header.compare_mask, 0x2D2E_2F30_3132_3334);
        let mut out = [0; AtomicRequest::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn fifty_one_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 52, have: 51 };
        assert_eq!(AtomicRequest::parse(&[0; 51]), Err(error));
    }
}
