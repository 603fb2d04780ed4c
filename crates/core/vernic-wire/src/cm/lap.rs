//! LAP: load alternate path, from the active side (IBTA 12.8.1, table 115): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8..11      12..14       15               16..19
//!       +---------------+----------------+----------+------------+----------------+----------+
//!       | local comm id | remote comm id | reserved | remote QPN | timeout5 resv3 | reserved |
//!       +---------------+----------------+----------+------------+----------------+----------+
//!  byte   20..63           64..231
//!       +----------------+--------------+
//!       | alternate path | private data |
//!       +----------------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, ReqPath, be24, be32, put24};
use crate::error::head;
use crate::{ParseError, Qpn};

/// Load alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lap {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// Reserved, 0 when sent.
    pub reserved8: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// In this time the receiver's CM is to answer, 5 bits.
    pub remote_response_timeout: u8,
    /// Reserved, 3 bits.
    pub reserved15: u8,
    /// Reserved, 0 when sent.
    pub reserved16: u32,
    /// The path.
    pub alternate: ReqPath,
    /// The application's.
    pub private_data: PrivateData<168>,
}

impl Lap {
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
            reserved8: be32(b, 8),
            remote_qpn: Qpn::new(be24(b, 12)),
            remote_response_timeout: b[15] >> 3,
            reserved15: b[15] & 7,
            reserved16: be32(b, 16),
            alternate: ReqPath::from_lap_bytes(&core::array::from_fn(|i| b[20 + i])),
            private_data: PrivateData::from_tail(&b[64..]),
        }
    }
    /// Writes the message at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        buf[8..12].copy_from_slice(&self.reserved8.to_be_bytes());
        let timeout = self.remote_response_timeout << 3 | self.reserved15 & 7;
        put24(buf, 12, self.remote_qpn.value(), timeout);
        buf[16..20].copy_from_slice(&self.reserved16.to_be_bytes());
        self.alternate.emit_lap(&mut buf[20..64]);
        buf[64..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        write!(f, "LAP comm_id={local} remote={remote} {}", self.alternate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Lap::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let lap = Lap::parse(&bytes).unwrap();
        assert_eq!(lap.local_comm_id, CommId(0x0102_0304));
        assert_eq!(lap.remote_comm_id, CommId(0x0506_0708));
        assert_eq!((lap.reserved8, lap.reserved16), (0x090A_0B0C, 0x1112_1314));
        // 0x10: 00010 000
        assert_eq!(lap.remote_qpn, Qpn::new(0x0D_0E0F));
        assert_eq!((lap.remote_response_timeout, lap.reserved15), (2, 0));
        assert_eq!((lap.alternate.local_lid, lap.alternate.hop_limit), (0x1516, 61));
        assert_eq!(lap.private_data.as_bytes()[..], bytes[64..]);
        let mut out = [0; Lap::LEN];
        lap.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Lap::parse(&[0; 231]), Err(error));
    }
}
