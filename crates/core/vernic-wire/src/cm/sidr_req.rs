//! SIDR_REQ: service id resolution request: which datagram queue pair has a service (IBTA 12.11.1,
//! table 119): 232 bytes.
//!
//! ```text
//!  byte   0..3         4..5    6..7       8..15        16..231
//!       +------------+-------+----------+------------+--------------+
//!       | request id | P_Key | reserved | service id | private data |
//!       +------------+-------+----------+------------+--------------+
//! ```

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, ServiceId, be16, be32, be64};
use crate::error::head;
use crate::{ParseError, Pkey};

/// Service id resolution request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SidrReq {
    /// The sender's name of the exchange.
    pub request_id: CommId,
    /// Partition of the queue pairs.
    pub pkey: Pkey,
    /// Reserved, 0 when sent.
    pub reserved6: u16,
    /// What is asked for.
    pub service_id: ServiceId,
    /// The application's; of rdma_cm, a [`CmaHeader`](super::CmaHeader) first.
    pub private_data: PrivateData<216>,
}

impl SidrReq {
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
            pkey: Pkey(be16(b, 4)),
            reserved6: be16(b, 6),
            service_id: ServiceId(be64(b, 8)),
            private_data: PrivateData::from_tail(&b[16..]),
        }
    }
    /// Writes the message at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.request_id.0.to_be_bytes());
        buf[4..6].copy_from_slice(&self.pkey.0.to_be_bytes());
        buf[6..8].copy_from_slice(&self.reserved6.to_be_bytes());
        buf[8..16].copy_from_slice(&self.service_id.0.to_be_bytes());
        buf[16..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR_REQ request_id={} service={}", self.request_id, self.service_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; SidrReq::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let req = SidrReq::parse(&bytes).unwrap();
        assert_eq!(req.request_id, CommId(0x0102_0304));
        assert_eq!((req.pkey, req.reserved6), (Pkey(0x0506), 0x0708));
        assert_eq!(req.service_id, ServiceId(0x090A_0B0C_0D0E_0F10));
        assert_eq!(req.private_data.as_bytes()[..], bytes[16..]);
        let mut out = [0; SidrReq::LEN];
        req.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(SidrReq::parse(&[0; 231]), Err(error));
    }
}
