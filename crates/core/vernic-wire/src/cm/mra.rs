//! MRA: message receipt acknowledgement: a REQ, REP or LAP is here, and its answer takes longer
//! than the sender waits (IBTA 12.6.6, table 107): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8               9                10..231
//!       +---------------+----------------+---------------+----------------+--------------+
//!       | local comm id | remote comm id | message2 resv | timeout5 resv3 | private data |
//!       +---------------+----------------+---------------+----------------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, be32};
use crate::ParseError;
use crate::error::head;

/// Which message an MRA acknowledges, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AckedMessage(pub u8);

impl AckedMessage {
    /// A REQ.
    pub const REQ: Self = Self(0);
    /// A REP.
    pub const REP: Self = Self(1);
    /// A LAP.
    pub const LAP: Self = Self(2);
}

impl fmt::Display for AckedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(["REQ", "REP", "LAP", "reserved"][usize::from(self.0 & 3)])
    }
}

/// Message receipt acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mra {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// What it acknowledges.
    pub message: AckedMessage,
    /// Reserved, 6 bits.
    pub reserved8: u8,
    /// The answer comes within this time, 5 bits
    /// ([`timeout_nanos`](super::timeout_nanos)).
    pub service_timeout: u8,
    /// Reserved, 3 bits.
    pub reserved9: u8,
    /// The application's.
    pub private_data: PrivateData<222>,
}

impl Mra {
    /// Bytes on the wire.
    pub const LEN: usize = BODY_LEN;

    /// Reads the message at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the message from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            message: AckedMessage(b[8] >> 6),
            reserved8: b[8] & 0x3F,
            service_timeout: b[9] >> 3,
            reserved9: b[9] & 7,
            private_data: PrivateData::from_tail(&b[10..]),
        }
    }
    /// Writes the message at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        buf[8] = self.message.0 << 6 | self.reserved8 & 0x3F;
        buf[9] = self.service_timeout << 3 | self.reserved9 & 7;
        buf[10..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        write!(
            f,
            "MRA comm_id={local} remote={remote} of={} timeout={}",
            self.message, self.service_timeout
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Mra::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let mra = Mra::parse(&bytes).unwrap();
        assert_eq!(mra.local_comm_id, CommId(0x0102_0304));
        assert_eq!(mra.remote_comm_id, CommId(0x0506_0708));
        // 0x09: 00 001001, 0x0A: 00001 010
        assert_eq!((mra.message, mra.reserved8), (AckedMessage::REQ, 9));
        assert_eq!((mra.service_timeout, mra.reserved9), (1, 2));
        assert_eq!(mra.private_data.as_bytes()[..], bytes[10..]);
        let mut out = [0; Mra::LEN];
        mra.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Mra::parse(&[0; 231]), Err(error));
    }
}
