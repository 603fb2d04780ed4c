//! Framed Protocol Data Unit (FPDU): 2 bytes before, 4 to 7 behind a ULPDU (RFC 5044, 4.1).
//!
//! ```text
//!  byte   0..1           2..                    ..
//!       +--------------+----------------------+----------+---------+
//!       | ULPDU length | ULPDU: a DDP segment | pad      | CRC32c  |   markers left out
//!       +--------------+----------------------+----------+---------+
//!         16 bits        length bytes           0 to 3     4 bytes
//! ```
//! The CRC covers length, ULPDU and pad, the markers among them, and the marker just before the
//! length if there is one (RFC 5044, 4.4). Where no CRC is agreed the field is there all the same,
//! and "MUST NOT be checked" (RFC 5044, 4.1).

use core::fmt;

use crate::ParseError;
use crate::error::head;

use super::marker::INTERVAL;

/// Bytes of the CRC field.
pub const CRC_LEN: usize = 4;

/// Smallest MULPDU, even where segments are shorter (RFC 5044, 4.5).
pub const MIN_MULPDU: u16 = 128;
/// Largest MULPDU: "The range of MULPDU values MUST be between 128 octets and 64768 octets,
/// inclusive" (RFC 5044, 3). A receiver takes whatever the length field can say.
pub const MAX_MULPDU: u16 = 64_768;

/// Zero bytes behind a ULPDU of this length: "so as to make the size of the FPDU an integral
/// multiple of four" (RFC 5044, 4.1).
#[inline]
pub const fn pad_of(ulpdu_len: usize) -> usize {
    (FpduHeader::LEN + ulpdu_len).wrapping_neg() & 3
}

/// The largest ULPDU whose FPDU fits a TCP segment of `emss` bytes (RFC 5044, 4.5):
///
/// - with markers, `EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)`,
/// - without, `EMSS - (6 + EMSS mod 4)`,
///
/// within [`MIN_MULPDU`] and [`MAX_MULPDU`].
pub const fn mulpdu(emss: u32, markers: bool) -> u16 {
    let marker_bytes = if markers { 4 * emss.div_ceil(INTERVAL) } else { 0 };
    let overhead = FpduHeader::LEN as u32 + CRC_LEN as u32 + marker_bytes + emss % 4;
    let fits = emss.saturating_sub(overhead);
    if fits < MIN_MULPDU as u32 {
        MIN_MULPDU
    } else if fits > MAX_MULPDU as u32 {
        MAX_MULPDU
    } else {
        fits as u16
    }
}

/// What stands before a ULPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FpduHeader {
    /// Bytes of the ULPDU; pad, CRC and markers not counted.
    pub ulpdu_len: u16,
}

impl FpduHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 2;

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
        Self { ulpdu_len: u16::from_be_bytes(*b) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.ulpdu_len.to_be_bytes());
    }
    /// Bytes of the whole FPDU, markers not counted: a multiple of 4.
    #[inline]
    pub const fn fpdu_len(&self) -> usize {
        let ulpdu_len = self.ulpdu_len as usize;
        Self::LEN + ulpdu_len + pad_of(ulpdu_len) + CRC_LEN
    }
}

impl fmt::Display for FpduHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ulpdu_len={}", self.ulpdu_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let header = FpduHeader::parse(&[0x12, 0x34, 9]).unwrap();
        assert_eq!(header.ulpdu_len, 0x1234);
        let mut out = [0; 2];
        header.emit(&mut out);
        assert_eq!(out, [0x12, 0x34]);
    }

    #[test]
    fn one_byte_is_truncated() {
        assert_eq!(FpduHeader::parse(&[0]), Err(ParseError::Truncated { need: 2, have: 1 }));
    }

    #[test]
    fn every_fpdu_is_a_multiple_of_four_with_at_most_three_bytes_of_pad() {
        for ulpdu_len in (0..=u16::MAX).step_by(if cfg!(miri) { 251 } else { 1 }) {
            let header = FpduHeader { ulpdu_len };
            assert_eq!(header.fpdu_len() % 4, 0);
            assert!(pad_of(usize::from(ulpdu_len)) < 4);
        }
        // RFC 5044, figures 4 and 5.
        assert_eq!((pad_of(16), pad_of(42)), (2, 0));
    }

    #[test]
    fn an_fpdu_of_the_largest_ulpdu_fits_its_segment() {
        for emss in (140..9000).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let without = FpduHeader { ulpdu_len: mulpdu(emss, false) }.fpdu_len();
            assert!(without <= emss as usize && emss as usize - without < 4, "{emss}");
            let with = FpduHeader { ulpdu_len: mulpdu(emss, true) }.fpdu_len();
            assert!(
                with + 4 * emss.div_ceil(512) as usize <= emss as usize || emss < 150,
                "{emss}"
            );
        }
        assert_eq!(mulpdu(1448, false), 1442);
        assert_eq!(mulpdu(1460, true), 1460 - (6 + 12));
    }

    #[test]
    fn the_mulpdu_stays_within_its_range() {
        assert_eq!((mulpdu(0, true), mulpdu(100, false)), (MIN_MULPDU, MIN_MULPDU));
        assert_eq!(mulpdu(u32::MAX, false), MAX_MULPDU);
        assert_eq!((mulpdu(64_776, false), mulpdu(64_772, false)), (MAX_MULPDU, 64_766));
    }
}
