//! REQ: request for a connection, from the active side (IBTA 12.6.5, table 106): 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7       8..15        16..23     24..27     28..31
//!       +---------------+----------+------------+----------+----------+-------------+
//!       | local comm id | reserved | service id | CA GUID  | reserved | local Q_Key |
//!       +---------------+----------+------------+----------+----------+-------------+
//!  byte   32..34      35             36..38       39           40..42        43
//!       +-----------+--------------+------------+------------+-------------+------------+
//!       | local QPN | resp. resrcs | local EECN | init depth | remote EECN | T5 svc2 E1 |
//!       +-----------+--------------+------------+------------+-------------+------------+
//!  byte   44..46         47         48..49  50             51                52..95  96..139
//!       +--------------+----------+-------+--------------+-----------------+-------+-------+
//!       | starting PSN | T5 retry3| P_Key | mtu4 R1 rnr3 | cmretr4 S1 ext3 | prim. | alt.  |
//!       +--------------+----------+-------+--------------+-----------------+-------+-------+
//!  byte   140..231
//!       +--------------+
//!       | private data |
//!       +--------------+
//! ```
//! T is a CM response timeout (the receiver's at 43, the sender's at 47), E end-to-end flow
//! control, R says that a reliable datagram channel exists, S that the queue pair has a shared
//! receive queue.

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, ReqPath, ServiceId, be16, be24, be32, be64, put24};
use crate::error::head;
use crate::{ParseError, Pkey, Psn, Qkey, Qpn};

/// Transport service that a REQ asks for, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CmService(pub u8);

impl CmService {
    /// Reliable connection.
    pub const RC: Self = Self(0);
    /// Unreliable connection.
    pub const UC: Self = Self(1);
    /// Reliable datagram.
    pub const RD: Self = Self(2);
    /// As the extended transport type says: 1 is XRC.
    pub const EXTENDED: Self = Self(3);
}

impl fmt::Display for CmService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(["RC", "UC", "RD", "extended"][usize::from(self.0 & 3)])
    }
}

/// Request for a connection. "Local" is the sender's, "remote" the receiver's. Timeouts are
/// exponents ([`timeout_nanos`](super::timeout_nanos)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Req {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// Reserved, 0 when sent.
    pub reserved4: u32,
    /// What is asked for.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Reserved, 0 when sent.
    pub reserved24: u32,
    /// For reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender takes at once.
    pub responder_resources: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub local_eecn: u32,
    /// READs and atomics that the sender would have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub remote_eecn: u32,
    /// In this time the receiver's CM is to answer, 5 bits.
    pub remote_response_timeout: u8,
    /// Service.
    pub transport: CmService,
    /// The sender gives end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// First PSN that the receiver's queue pair is to send.
    pub starting_psn: Psn,
    /// In this time the sender's CM answers, 5 bits.
    pub local_response_timeout: u8,
    /// Retries of the receiver's queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition of the queue pairs.
    pub pkey: Pkey,
    /// Code of the path MTU, 4 bits.
    pub path_mtu: u8,
    /// For reliable datagrams.
    pub rdc_exists: bool,
    /// RNR retries of the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// How often a CM message is repeated, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Transport if the service is extended, 3 bits.
    pub ext_transport: u8,
    /// The path.
    pub primary: ReqPath,
    /// Another one to fall back on, or zeros.
    pub alternate: ReqPath,
    /// The application's; of rdma_cm, a [`CmaHeader`](super::CmaHeader) first.
    pub private_data: PrivateData<92>,
}

impl Req {
    /// Bytes on the wire.
    pub const LEN: usize = BODY_LEN;
    /// Extended transport type of XRC.
    pub const EXT_XRC: u8 = 1;

    /// Whether an XRC connection is asked for.
    pub fn is_xrc(&self) -> bool {
        self.transport == CmService::EXTENDED && self.ext_transport == Self::EXT_XRC
    }
    /// Reads the message at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the message from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let path = |at| ReqPath::from_bytes(&core::array::from_fn(|i| b[at + i]));
        Self {
            local_comm_id: CommId(be32(b, 0)),
            reserved4: be32(b, 4),
            service_id: ServiceId(be64(b, 8)),
            local_ca_guid: be64(b, 16),
            reserved24: be32(b, 24),
            local_qkey: Qkey(be32(b, 28)),
            local_qpn: Qpn::new(be24(b, 32)),
            responder_resources: b[35],
            local_eecn: be24(b, 36),
            initiator_depth: b[39],
            remote_eecn: be24(b, 40),
            remote_response_timeout: b[43] >> 3,
            transport: CmService(b[43] >> 1 & 3),
            end_to_end_flow_control: b[43] & 1 != 0,
            starting_psn: Psn::new(be24(b, 44)),
            local_response_timeout: b[47] >> 3,
            retry_count: b[47] & 7,
            pkey: Pkey(be16(b, 48)),
            path_mtu: b[50] >> 4,
            rdc_exists: b[50] & 8 != 0,
            rnr_retry_count: b[50] & 7,
            max_cm_retries: b[51] >> 4,
            srq: b[51] & 8 != 0,
            ext_transport: b[51] & 7,
            primary: path(52),
            alternate: path(96),
            private_data: PrivateData::from_tail(&b[140..]),
        }
    }
    /// Writes the message at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let service = (self.transport.0 & 3) << 1 | u8::from(self.end_to_end_flow_control);
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.reserved4.to_be_bytes());
        buf[8..16].copy_from_slice(&self.service_id.0.to_be_bytes());
        buf[16..24].copy_from_slice(&self.local_ca_guid.to_be_bytes());
        buf[24..28].copy_from_slice(&self.reserved24.to_be_bytes());
        buf[28..32].copy_from_slice(&self.local_qkey.0.to_be_bytes());
        put24(buf, 32, self.local_qpn.value(), self.responder_resources);
        put24(buf, 36, self.local_eecn, self.initiator_depth);
        put24(buf, 40, self.remote_eecn, self.remote_response_timeout << 3 | service);
        let retry = self.local_response_timeout << 3 | self.retry_count & 7;
        put24(buf, 44, self.starting_psn.value(), retry);
        buf[48..50].copy_from_slice(&self.pkey.0.to_be_bytes());
        buf[50] = self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        buf[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.ext_transport & 7;
        self.primary.emit(&mut buf[52..]);
        self.alternate.emit(&mut buf[96..]);
        buf[140..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ comm_id={} service={} {} qpn={} psn={} {}",
            self.local_comm_id,
            self.service_id,
            self.transport,
            self.local_qpn,
            self.starting_psn,
            self.primary
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Req::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let req = Req::parse(&bytes).unwrap();
        assert_eq!((req.local_comm_id, req.reserved4), (CommId(0x0102_0304), 0x0506_0708));
        assert_eq!(req.service_id, ServiceId(0x090A_0B0C_0D0E_0F10));
        assert_eq!(req.local_ca_guid, 0x1112_1314_1516_1718);
        assert_eq!((req.reserved24, req.local_qkey), (0x191A_1B1C, Qkey(0x1D1E_1F20)));
        assert_eq!((req.local_qpn, req.responder_resources), (Qpn::new(0x21_2223), 0x24));
        assert_eq!((req.local_eecn, req.initiator_depth), (0x25_2627, 0x28));
        // 0x2C: 00101 10 0
        assert_eq!((req.remote_eecn, req.remote_response_timeout), (0x29_2A2B, 5));
        assert_eq!((req.transport, req.end_to_end_flow_control), (CmService::RD, false));
        // 0x30: 00110 000
        assert_eq!(req.starting_psn, Psn::new(0x2D_2E2F));
        assert_eq!((req.local_response_timeout, req.retry_count), (6, 0));
        // 0x33: 0011 0 011, 0x34: 0011 0 100
        assert_eq!((req.pkey, req.path_mtu, req.rdc_exists), (Pkey(0x3132), 3, false));
        assert_eq!((req.rnr_retry_count, req.max_cm_retries), (3, 3));
        assert_eq!((req.srq, req.ext_transport), (false, 4));
        assert_eq!((req.primary.local_lid, req.alternate.local_lid), (0x3536, 0x6162));
        assert_eq!(req.private_data.as_bytes()[..], bytes[140..]);
        let mut out = [0; Req::LEN];
        req.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Req::parse(&[0; 231]), Err(error));
    }
}
