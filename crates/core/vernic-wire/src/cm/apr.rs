//! APR: alternate path response: what became of a LAP (IBTA 12.8.2, table 116): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8          9        10..11     12..83   84..231
//!       +---------------+----------------+----------+--------+----------+--------+--------------+
//!       | local comm id | remote comm id | info len | status | reserved | info   | private data |
//!       +---------------+----------------+----------+--------+----------+--------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, Info, PrivateData, be16, be32};
use crate::ParseError;
use crate::error::head;

/// What became of a LAP. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AprStatus(pub u8);

impl AprStatus {
    /// The path is loaded.
    pub const LOADED: Self = Self(0);
    /// There is no such connection.
    pub const INVALID_COMM_ID: Self = Self(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: Self = Self(2);
    /// This one is not acceptable.
    pub const REJECTED: Self = Self(3);
    /// Another port is to be asked.
    pub const REDIRECT: Self = Self(4);
    /// The connection has this alternate path already.
    pub const IS_CURRENT: Self = Self(5);
    /// The queue pair is not the connection's.
    pub const INVALID_QPN: Self = Self(6);
    /// A LID is no LID of the port, or unreachable.
    pub const INVALID_LID: Self = Self(7);
    /// A GID is no GID of the port, or unreachable; the right one may follow.
    pub const INVALID_GID: Self = Self(8);
    /// The flow label is not acceptable.
    pub const INVALID_FLOW_LABEL: Self = Self(9);
    /// The traffic class is not acceptable.
    pub const INVALID_TRAFFIC_CLASS: Self = Self(10);
    /// The hop limit is not acceptable.
    pub const INVALID_HOP_LIMIT: Self = Self(11);
    /// The packet rate is not acceptable.
    pub const INVALID_PACKET_RATE: Self = Self(12);
    /// The service level is not acceptable.
    pub const INVALID_SL: Self = Self(13);

    const NAMES: [&'static str; 14] = [
        "loaded",
        "no such connection",
        "alternate paths are not supported",
        "rejected",
        "another port is to be asked",
        "it is loaded already",
        "invalid queue pair",
        "invalid LID",
        "invalid GID",
        "invalid flow label",
        "invalid traffic class",
        "invalid hop limit",
        "invalid packet rate",
        "invalid service level",
    ];
}

impl fmt::Display for AprStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.get(usize::from(self.0)).unwrap_or(&"reserved");
        write!(f, "{} ({name})", self.0)
    }
}

/// Alternate path response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Apr {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// What became of the path.
    pub status: AprStatus,
    /// Reserved, 0 when sent.
    pub reserved10: u16,
    /// Additional information.
    pub info: Info,
    /// The application's.
    pub private_data: PrivateData<148>,
}

impl Apr {
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
            status: AprStatus(b[9]),
            reserved10: be16(b, 10),
            info: Info { len: b[8], field: core::array::from_fn(|i| b[12 + i]) },
            private_data: PrivateData::from_tail(&b[84..]),
        }
    }
    /// Writes the message at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        buf[8] = self.info.len;
        buf[9] = self.status.0;
        buf[10..12].copy_from_slice(&self.reserved10.to_be_bytes());
        buf[12..84].copy_from_slice(&self.info.field);
        buf[84..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        write!(f, "APR comm_id={local} remote={remote} status={}", self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Apr::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let apr = Apr::parse(&bytes).unwrap();
        assert_eq!(apr.local_comm_id, CommId(0x0102_0304));
        assert_eq!(apr.remote_comm_id, CommId(0x0506_0708));
        assert_eq!((apr.info.len, apr.status, apr.reserved10), (9, AprStatus(10), 0x0B0C));
        assert_eq!((apr.info.as_slice(), &apr.info.field[..]), (&bytes[12..21], &bytes[12..84]));
        assert_eq!(apr.private_data.as_bytes()[..], bytes[84..]);
        let mut out = [0; Apr::LEN];
        apr.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Apr::parse(&[0; 231]), Err(error));
    }
}
