//! DREQ: request to disconnect, from either side (IBTA 12.6.10, table 112): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8..10        11         12..231
//!       +---------------+----------------+------------+----------+--------------+
//!       | local comm id | remote comm id | remote QPN | reserved | private data |
//!       +---------------+----------------+------------+----------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, be24, be32, put24};
use crate::error::head;
use crate::{ParseError, Qpn};

/// Request to disconnect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dreq {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Reserved, 0 when sent.
    pub reserved11: u8,
    /// The application's.
    pub private_data: PrivateData<220>,
}

impl Dreq {
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
            remote_qpn: Qpn::new(be24(b, 8)),
            reserved11: b[11],
            private_data: PrivateData::from_tail(&b[12..]),
        }
    }
    /// Writes the message at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        put24(buf, 8, self.remote_qpn.value(), self.reserved11);
        buf[12..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        write!(f, "DREQ comm_id={local} remote={remote} remote_qpn={}", self.remote_qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Dreq::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let dreq = Dreq::parse(&bytes).unwrap();
        assert_eq!(dreq.local_comm_id, CommId(0x0102_0304));
        assert_eq!(dreq.remote_comm_id, CommId(0x0506_0708));
        assert_eq!((dreq.remote_qpn, dreq.reserved11), (Qpn::new(0x09_0A0B), 0x0C));
        assert_eq!(dreq.private_data.as_bytes()[..], bytes[12..]);
        let mut out = [0; Dreq::LEN];
        dreq.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Dreq::parse(&[0; 231]), Err(error));
    }
}
