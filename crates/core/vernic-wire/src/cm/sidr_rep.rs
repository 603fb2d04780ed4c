//! SIDR_REP: service id resolution response (IBTA 12.11.2, table 120): 232 bytes.
//!
//! ```text
//!  byte   0..3         4        5          6..7       8..10   11         12..19       20..23
//!       +------------+--------+----------+----------+-------+----------+------------+-------+
//!       | request id | status | info len | reserved | QPN   | reserved | service id | Q_Key |
//!       +------------+--------+----------+----------+-------+----------+------------+-------+
//!  byte   24..95   96..231
//!       +--------+--------------+
//!       | info   | private data |
//!       +--------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, Info, PrivateData, ServiceId, be16, be24, be32, be64, put24};
use crate::error::head;
use crate::{ParseError, Qkey, Qpn};

/// What a SIDR_REP says. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The QPN and the Q_Key are valid.
    pub const SUCCESS: Self = Self(0);
    /// Nobody listens on the service.
    pub const UNSUPPORTED_SERVICE: Self = Self(1);
    /// The application rejected the request.
    pub const REJECTED: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QP: Self = Self(3);
    /// Ask the port that the information names.
    pub const REDIRECT: Self = Self(4);
    /// The service has another version.
    pub const UNSUPPORTED_VERSION: Self = Self(5);

    /// What the status says.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::UNSUPPORTED_SERVICE => "nobody listens on that service there",
            Self::REJECTED => "the application there rejected the request",
            Self::NO_QP => "no queue pair is available there",
            Self::REDIRECT => "ask the port that it names instead",
            Self::UNSUPPORTED_VERSION => "the service has another version there",
            _ => "no standard defines this status",
        }
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.meaning())
    }
}
impl fmt::Debug for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Service id resolution response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SidrRep {
    /// The receiver's name of the exchange.
    pub request_id: CommId,
    /// What it says.
    pub status: SidrStatus,
    /// Reserved, 0 when sent.
    pub reserved6: u16,
    /// The queue pair that has the service.
    pub qpn: Qpn,
    /// Reserved, 0 when sent.
    pub reserved11: u8,
    /// What was asked for.
    pub service_id: ServiceId,
    /// Q_Key of the queue pair.
    pub qkey: Qkey,
    /// Additional information.
    pub info: Info,
    /// The application's.
    pub private_data: PrivateData<136>,
}

impl SidrRep {
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
            request_id: CommId(be32(b, 0)),
            status: SidrStatus(b[4]),
            reserved6: be16(b, 6),
            qpn: Qpn::new(be24(b, 8)),
            reserved11: b[11],
            service_id: ServiceId(be64(b, 12)),
            qkey: Qkey(be32(b, 20)),
            info: Info { len: b[5], field: core::array::from_fn(|i| b[24 + i]) },
            private_data: PrivateData::from_tail(&b[96..]),
        }
    }
    /// Writes the message at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.request_id.0.to_be_bytes());
        buf[4] = self.status.0;
        buf[5] = self.info.len;
        buf[6..8].copy_from_slice(&self.reserved6.to_be_bytes());
        put24(buf, 8, self.qpn.value(), self.reserved11);
        buf[12..20].copy_from_slice(&self.service_id.0.to_be_bytes());
        buf[20..24].copy_from_slice(&self.qkey.0.to_be_bytes());
        buf[24..96].copy_from_slice(&self.info.field);
        buf[96..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, service, status) = (self.request_id, self.service_id, self.status);
        write!(f, "SIDR_REP request_id={id} service={service} status={status} qpn={}", self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; SidrRep::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let rep = SidrRep::parse(&bytes).unwrap();
        assert_eq!((rep.request_id, rep.status), (CommId(0x0102_0304), SidrStatus(5)));
        assert_eq!((rep.info.len, rep.reserved6), (6, 0x0708));
        assert_eq!((rep.qpn, rep.reserved11), (Qpn::new(0x09_0A0B), 0x0C));
        assert_eq!(rep.service_id, ServiceId(0x0D0E_0F10_1112_1314));
        assert_eq!(rep.qkey, Qkey(0x1516_1718));
        assert_eq!((rep.info.as_slice(), &rep.info.field[..]), (&bytes[24..30], &bytes[24..96]));
        assert_eq!(rep.private_data.as_bytes()[..], bytes[96..]);
        let mut out = [0; SidrRep::LEN];
        rep.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(SidrRep::parse(&[0; 231]), Err(error));
    }
}
