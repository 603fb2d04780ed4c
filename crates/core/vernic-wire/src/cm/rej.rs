//! REJ: rejection, from either side (IBTA 12.6.7, tables 108 and 109): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8               9                10..11
//!       +---------------+----------------+---------------+----------------+--------+
//!       | local comm id | remote comm id | message2 resv | info len7 resv | reason |
//!       +---------------+----------------+---------------+----------------+--------+
//!  byte   12..83   84..231
//!       +--------+--------------+
//!       | info   | private data |
//!       +--------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, Info, PrivateData, RejReason, be16, be32};
use crate::ParseError;
use crate::error::head;

/// Which message is rejected, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RejectedMessage(pub u8);

impl RejectedMessage {
    /// A REQ.
    pub const REQ: Self = Self(0);
    /// A REP.
    pub const REP: Self = Self(1);
    /// None: what is rejected is that none came, or the connection itself.
    pub const OTHER: Self = Self(2);
}

impl fmt::Display for RejectedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(["REQ", "REP", "none", "reserved"][usize::from(self.0 & 3)])
    }
}

/// Rejection. The additional information depends on the reason: the GID that would be right, the
/// GUID of the sender whose REQ timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rej {
    /// The sender's name of the connection, 0 if it has none.
    pub local_comm_id: CommId,
    /// The receiver's name of it, 0 if the sender does not know.
    pub remote_comm_id: CommId,
    /// What is rejected.
    pub message: RejectedMessage,
    /// Reserved, 6 bits.
    pub reserved8: u8,
    /// Reserved, 1 bit.
    pub reserved9: bool,
    /// Why.
    pub reason: RejReason,
    /// Additional reject information.
    pub info: Info,
    /// The application's.
    pub private_data: PrivateData<148>,
}

impl Rej {
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
            message: RejectedMessage(b[8] >> 6),
            reserved8: b[8] & 0x3F,
            reserved9: b[9] & 1 != 0,
            reason: RejReason(be16(b, 10)),
            info: Info { len: b[9] >> 1, field: core::array::from_fn(|i| b[12 + i]) },
            private_data: PrivateData::from_tail(&b[84..]),
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
        buf[9] = self.info.len << 1 | u8::from(self.reserved9);
        buf[10..12].copy_from_slice(&self.reason.0.to_be_bytes());
        buf[12..84].copy_from_slice(&self.info.field);
        buf[84..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        write!(
            f,
            "REJ comm_id={local} remote={remote} of={} reason={:?}",
            self.message, self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Rej::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let rej = Rej::parse(&bytes).unwrap();
        assert_eq!(rej.local_comm_id, CommId(0x0102_0304));
        assert_eq!(rej.remote_comm_id, CommId(0x0506_0708));
        // 0x09: 00 001001, 0x0A: 0000101 0
        assert_eq!((rej.message, rej.reserved8), (RejectedMessage::REQ, 9));
        assert_eq!((rej.info.len, rej.reserved9), (5, false));
        assert_eq!((rej.reason, rej.info.as_slice()), (RejReason(0x0B0C), &bytes[12..17]));
        assert_eq!(rej.info.field[..], bytes[12..84]);
        assert_eq!(rej.private_data.as_bytes()[..], bytes[84..]);
        let mut out = [0; Rej::LEN];
        rej.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Rej::parse(&[0; 231]), Err(error));
    }
}
