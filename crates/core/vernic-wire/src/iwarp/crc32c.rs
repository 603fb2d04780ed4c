//! CRC32c: the check value at the end of every FPDU (RFC 5044, 4.4).
//!
//! "the CRC field in the MPA FPDU MUST be computed using the CRC32c polynomial in the manner
//! described in the iSCSI Protocol document for Header and Data Digests" (RFC 5044, 4.4):
//! reflected, start and end inverted, stored with its low byte first. Calls `crc-fast`.

use core::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// The state of a CRC32c between bytes.
///
/// A value, not a machine: it can be kept, copied, and taken up again where the bytes go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Before the first byte.
    pub const START: Self = Self(!0);

    /// The CRC of `bytes`, as it goes on the wire.
    #[inline]
    pub fn of(bytes: &[u8]) -> [u8; 4] {
        Self::START.update(bytes).finish()
    }
    /// After `bytes` too.
    #[inline]
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        Self(digest.get_state() as u32)
    }
    /// The bytes of the CRC field.
    #[inline]
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::START
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:#010x})", !self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digests_of_the_iscsi_specification_come_out() {
        // RFC 3720, B.4.
        assert_eq!(Crc32c::of(&[0; 32]), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(Crc32c::of(&[0xFF; 32]), [0x43, 0xAB, 0xA8, 0x62]);
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(Crc32c::of(&ascending), [0x4E, 0x79, 0xDD, 0x46]);
    }

    #[test]
    fn a_crc_taken_in_pieces_is_that_of_the_whole() {
        let bytes: [u8; 300] = core::array::from_fn(|i| (i * 7) as u8);
        for cut in [0, 1, 15, 16, 64, 255, 300] {
            let pieces = Crc32c::START.update(&bytes[..cut]).update(&bytes[cut..]);
            assert_eq!(pieces.finish(), Crc32c::of(&bytes), "cut at {cut}");
        }
    }
}
