//! Private data of connections between interfaces of IPoIB: 8 bytes of REQ, REP and REJ (RFC 4755,
//! section 6).
//!
//! ```text
//!  byte   0          1..3     4..7
//!       +----------+--------+-------------+
//!       | reserved | UD QPN | receive MTU |
//!       +----------+--------+-------------+
//!         8          24       32 bits
//! ```

use core::fmt;

use crate::cm::ServiceId;
use crate::error::head;
use crate::{ParseError, Qpn};

/// First byte of the service ids that the IETF gives out.
const IETF: u64 = 1;

/// Returns the service that an interface with that queue pair of datagrams listens for (RFC 4755,
/// section 3.5).
pub const fn service_id(qpn: Qpn) -> ServiceId {
    ServiceId(IETF << 56 | qpn.value() as u64)
}

/// Private data of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectedData {
    /// Reserved, 0 when sent, ignored when received.
    pub reserved: u8,
    /// The sender's queue pair of datagrams.
    pub qpn: Qpn,
    /// The longest message that the sender takes, encapsulation included.
    pub receive_mtu: u32,
}

impl ConnectedData {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the data at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the data from their bytes.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved: b[0],
            qpn: Qpn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])),
            receive_mtu: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
    /// Returns the bytes of the data.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.emit(&mut bytes);
        bytes
    }
    /// Writes the data at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let first = u32::from(self.reserved) << 24 | self.qpn.value();
        buf[..4].copy_from_slice(&first.to_be_bytes());
        buf[4..Self::LEN].copy_from_slice(&self.receive_mtu.to_be_bytes());
    }
}

impl fmt::Display for ConnectedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipoib qpn={} receive-mtu={}", self.qpn, self.receive_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let data = ConnectedData::parse(&bytes).unwrap();
        assert_eq!((data.reserved, data.qpn), (1, Qpn::new(0x02_0304)));
        assert_eq!(data.receive_mtu, 0x0506_0708);
        assert_eq!(data.to_bytes(), bytes);
    }

    #[test]
    fn seven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 8, have: 7 };
        assert_eq!(ConnectedData::parse(&[0; 7]), Err(error));
    }

    #[test]
    fn the_service_names_the_queue_pair() {
        assert_eq!(service_id(Qpn::new(0x12_3456)), ServiceId(0x0100_0000_0012_3456));
    }
}
