//! MPA marker: 4 bytes in the stream at every 512th, where the receiver asked for them (RFC 5044,
//! 4.2, 4.3).
//!
//! ```text
//!  byte   0..1         2..3
//!       +------------+--------------+     FPDU pointer: bytes from the FPDU's length field to this
//!       | reserved   | FPDU pointer |     marker, other markers counted; 0 between two FPDUs
//!       +------------+--------------+
//!         16           16 bits
//! ```
//! "the MPA Markers MUST be inserted immediately preceding the first FPDU of Full Operation Phase,
//! and at every 512th octet of the TCP octet stream thereafter" (RFC 5044, 4.3). FPDUs and markers
//! are multiples of 4, so a marker never cuts the length field or the CRC, and one that falls on
//! the border of two FPDUs belongs to the second.

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Bytes of the stream from one marker to the next.
pub const INTERVAL: u32 = 512;

/// Markers among the next `len` bytes of FPDUs, when the last marker began `since` bytes of the
/// stream ago (modulo [`INTERVAL`]; 0 means that one is due now). A marker that would follow the
/// last of these bytes is not counted: it belongs to what comes behind.
#[inline]
pub const fn markers_in(since: u32, len: u32) -> u32 {
    let before_next = since.wrapping_neg() % INTERVAL;
    if len <= before_next {
        return 0;
    }
    1 + (len - before_next - 1) / (INTERVAL - Marker::LEN as u32)
}

/// MPA marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marker {
    /// Reserved, 0 when sent.
    pub reserved: u16,
    /// Where the FPDU began, as bytes back; its two low bits are taken as 0.
    pub fpdu_ptr: u16,
}

impl Marker {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// The marker `distance` bytes behind its FPDU's length field; 0 is one just before it.
    pub const fn new(distance: u16) -> Self {
        Self { reserved: 0, fpdu_ptr: distance }
    }
    /// Reads the marker at the start of `bytes`.
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
    /// Reads the marker from its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved: u16::from_be_bytes([b[0], b[1]]),
            fpdu_ptr: u16::from_be_bytes([b[2], b[3]]),
        }
    }
    /// Writes the marker at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.reserved.to_be_bytes());
        buf[2..Self::LEN].copy_from_slice(&self.fpdu_ptr.to_be_bytes());
    }
    /// Bytes back to the FPDU's length field: "receivers MUST always treat these [two bits] as zero
    /// for calculations" (RFC 5044, 4.2).
    #[inline]
    pub const fn distance(&self) -> u16 {
        self.fpdu_ptr & !3
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "marker fpdu_ptr={:#06x}", self.fpdu_ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let marker = Marker::parse(&[1, 2, 3, 7]).unwrap();
        assert_eq!((marker.reserved, marker.fpdu_ptr, marker.distance()), (0x0102, 0x0307, 0x0304));
        let mut out = [0; 4];
        marker.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 7]);
    }

    #[test]
    fn three_bytes_are_truncated() {
        assert_eq!(Marker::parse(&[0; 3]), Err(ParseError::Truncated { need: 4, have: 3 }));
    }

    #[test]
    fn markers_are_counted_as_laying_the_bytes_out_one_by_one_counts_them() {
        // Miri takes a minute for what the machine does in a millisecond.
        let step = if cfg!(miri) { 124 } else { 4 };
        for since in (0..INTERVAL).step_by(step) {
            for len in (0..2100).step_by(step) {
                let (mut position, mut markers) = (since, 0);
                for _ in 0..len {
                    if position % INTERVAL == 0 {
                        markers += 1;
                        position += 4;
                    }
                    position += 1;
                }
                assert_eq!(markers_in(since, len), markers, "{len} bytes at {since}");
            }
        }
    }
}
