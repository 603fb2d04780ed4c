//! MPA Request and Reply Frame: 20 bytes and private data, the first in each direction (RFC 5044,
//! 7.1.1; RFC 6581, 6).
//!
//! ```text
//!  byte   0..15                       16               17    18..19      20..
//!       +---------------------------+----------------+-----+-----------+--------------+
//!       | key: "MPA ID Req Frame"   | M C R S resvd4 | rev | PD length | private data |
//!       |   or "MPA ID Rep Frame"   |                |     |           |              |
//!       +---------------------------+----------------+-----+-----------+--------------+
//!         16 bytes                    8 bits           8     16          0 to 512 bytes
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Longest private data in bytes: "The Private Data field MUST be between 0 and 512 octets in
/// length" (RFC 5044, 7.1.1).
pub const MAX_PRIVATE_DATA: u16 = 512;

/// Which of the two frames: each has a key of its own, "to check for incorrect Initiator/Initiator
/// startups" (RFC 5044, 7.1.2 (8)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MpaKey {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl MpaKey {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// The bytes.
    pub const fn bytes(self) -> &'static [u8; Self::LEN] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
    /// Which key begins so, if one does; `bytes` may be fewer than a key has.
    ///
    /// What begins like neither is refused without waiting for more.
    pub fn may_begin(self, bytes: &[u8]) -> bool {
        let len = bytes.len().min(Self::LEN);
        bytes[..len] == self.bytes()[..len]
    }
}

/// MPA Request or Reply Frame, without its private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpaStart {
    /// Which frame.
    pub key: MpaKey,
    /// The sender requires markers in what it receives.
    pub markers: bool,
    /// The sender prefers CRCs; one of both is enough for both directions.
    pub crc: bool,
    /// Reply only: the connection is rejected.
    pub rejected: bool,
    /// The private data begins with [`MpaEnhanced`](super::MpaEnhanced) (RFC 6581, 6).
    pub enhanced: bool,
    /// Reserved, 4 bits: 0 when sent, not checked when received.
    pub reserved: u8,
    /// Revision of MPA: 1, or 2 with what RFC 6581 adds; 0 is the RDMA Consortium's.
    pub revision: u8,
    /// Bytes of private data that follow, enhanced data included.
    pub private_len: u16,
}

impl MpaStart {
    /// Bytes on the wire, private data not counted.
    pub const LEN: usize = 20;

    /// Reads the frame's head at the start of `bytes`. Whether the private data is too long is the
    /// caller's to judge: see [`MAX_PRIVATE_DATA`].
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] if the key is neither.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head(bytes)?;
        let key = match b.first_chunk() {
            Some(key) if key == MpaKey::Request.bytes() => MpaKey::Request,
            Some(key) if key == MpaKey::Reply.bytes() => MpaKey::Reply,
            _ => {
                let value = u16::from_be_bytes([b[0], b[1]]);
                return Err(ParseError::Field { field: "MPA key", value });
            }
        };
        Ok(Self {
            key,
            markers: b[16] & 0x80 != 0,
            crc: b[16] & 0x40 != 0,
            rejected: b[16] & 0x20 != 0,
            enhanced: b[16] & 0x10 != 0,
            reserved: b[16] & 0x0F,
            revision: b[17],
            private_len: u16::from_be_bytes([b[18], b[19]]),
        })
    }
    /// Writes the frame's head at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..MpaKey::LEN].copy_from_slice(self.key.bytes());
        buf[16] = u8::from(self.markers) << 7
            | u8::from(self.crc) << 6
            | u8::from(self.rejected) << 5
            | u8::from(self.enhanced) << 4
            | self.reserved & 0x0F;
        buf[17] = self.revision;
        buf[18..Self::LEN].copy_from_slice(&self.private_len.to_be_bytes());
    }
}

impl fmt::Display for MpaStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.key {
            MpaKey::Request => "request",
            MpaKey::Reply => "reply",
        };
        write!(f, "mpa {key} rev={}", self.revision)?;
        let flags = [
            (self.markers, " markers"),
            (self.crc, " crc"),
            (self.rejected, " rejected"),
            (self.enhanced, " enhanced"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, text)| f.write_str(text))?;
        write!(f, " pd_len={}", self.private_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8; MpaStart::LEN] = b"MPA ID Rep Frame\x95\x02\x01\x03";

    #[test]
    fn every_field_is_where_the_picture_says() {
        let start = MpaStart::parse(BYTES).unwrap();
        assert_eq!(start.key, MpaKey::Reply);
        assert_eq!((start.markers, start.crc, start.rejected), (true, false, false));
        assert_eq!((start.enhanced, start.reserved), (true, 5));
        assert_eq!((start.revision, start.private_len), (2, 0x0103));
        let mut out = [0; MpaStart::LEN];
        start.emit(&mut out);
        assert_eq!(&out, BYTES);
    }

    #[test]
    fn a_request_with_crc_and_a_rejecting_reply_have_their_own_bits() {
        let request = MpaStart::parse(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
        assert_eq!((request.key, request.crc, request.markers), (MpaKey::Request, true, false));
        let reply = MpaStart::parse(b"MPA ID Rep Frame\x20\x01\0\0").unwrap();
        assert_eq!((reply.key, reply.rejected, reply.crc), (MpaKey::Reply, true, false));
    }

    #[test]
    fn nineteen_bytes_are_truncated_and_another_key_is_named() {
        assert_eq!(
            MpaStart::parse(&BYTES[..19]),
            Err(ParseError::Truncated { need: 20, have: 19 })
        );
        let http = MpaStart::parse(b"GET / HTTP/1.1\r\nHost");
        assert_eq!(http, Err(ParseError::Field { field: "MPA key", value: 0x4745 }));
    }

    #[test]
    fn a_beginning_of_a_key_tells_the_frames_apart_at_the_tenth_byte() {
        for len in 0..=9 {
            assert!(MpaKey::Request.may_begin(&BYTES[..len]), "{len}");
        }
        assert!(!MpaKey::Request.may_begin(&BYTES[..10]));
        assert!(MpaKey::Reply.may_begin(&BYTES[..10]) && MpaKey::Reply.may_begin(BYTES));
    }
}
