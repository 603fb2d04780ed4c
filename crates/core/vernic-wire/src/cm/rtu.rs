//! RTU: ready to use, from the active side: the connection is up (IBTA 12.6.9, table 111): 232
//! bytes.
//!
//! ```text
//!  byte   0..3            4..7             8..231
//!       +---------------+----------------+--------------+
//!       | local comm id | remote comm id | private data |
//!       +---------------+----------------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, be32};
use crate::ParseError;
use crate::error::head;

/// Ready to use: the answer to a REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtu {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// The application's.
    pub private_data: PrivateData<224>,
}

impl Rtu {
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
            private_data: PrivateData::from_tail(&b[8..]),
        }
    }
    /// Writes the message at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        buf[8..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTU comm_id={} remote={}", self.local_comm_id, self.remote_comm_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Rtu::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let rtu = Rtu::parse(&bytes).unwrap();
        assert_eq!(rtu.local_comm_id, CommId(0x0102_0304));
        assert_eq!(rtu.remote_comm_id, CommId(0x0506_0708));
        assert_eq!(rtu.private_data.as_bytes()[..], bytes[8..]);
        let mut out = [0; Rtu::LEN];
        rtu.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Rtu::parse(&[0; 231]), Err(error));
    }
}
