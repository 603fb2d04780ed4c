//! REP: reply to a REQ, from the passive side: the connection is accepted (IBTA 12.6.8, table 110):
//! 232 bytes.
//!
//! ```text
//!  byte   0..3            4..7             8..11         12..14      15
//!       +---------------+----------------+-------------+-----------+----------+
//!       | local comm id | remote comm id | local Q_Key | local QPN | reserved |
//!       +---------------+----------------+-------------+-----------+----------+
//!  byte   16..18       19         20..22         23
//!       +------------+----------+--------------+----------+
//!       | local EECN | reserved | starting PSN | reserved |
//!       +------------+----------+--------------+----------+
//!  byte   24             25           26           27              28..35          36..231
//!       +--------------+------------+------------+---------------+---------------+---------+
//!       | resp. resrcs | init depth | D5 fail2 E | rnr3 S1 resv4 | local CA GUID | private |
//!       +--------------+------------+------------+---------------+---------------+---------+
//! ```
//! D is the target ACK delay, E end-to-end flow control, S says that the queue pair has a shared
//! receive queue.

use core::fmt;

use super::{BODY_LEN, CommId, PrivateData, be24, be32, be64, put24};
use crate::error::head;
use crate::{ParseError, Psn, Qkey, Qpn};

/// What became of the alternate path of the REQ, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FailoverAccepted(pub u8);

impl FailoverAccepted {
    /// It is loaded; or there was none.
    pub const ACCEPTED: Self = Self(0);
    /// Alternate paths are not supported.
    pub const NOT_SUPPORTED: Self = Self(1);
    /// This one is not acceptable.
    pub const REJECTED: Self = Self(2);
}

/// Reply: the connection is accepted. "Local" is the sender's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rep {
    /// The sender's name of the connection.
    pub local_comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// For reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Reserved, 0 when sent.
    pub reserved15: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub local_eecn: u32,
    /// Reserved, 0 when sent.
    pub reserved19: u8,
    /// First PSN that the receiver's queue pair is to send.
    pub starting_psn: Psn,
    /// Reserved, 0 when sent.
    pub reserved23: u8,
    /// READs and atomics that the sender takes at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's queue pair takes to acknowledge at most, 5 bits
    /// ([`timeout_nanos`](super::timeout_nanos)).
    pub target_ack_delay: u8,
    /// What became of the alternate path.
    pub failover: FailoverAccepted,
    /// The sender gives end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// RNR retries of the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Reserved, 4 bits.
    pub reserved27: u8,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// The application's.
    pub private_data: PrivateData<196>,
}

impl Rep {
    /// Bytes on the wire.
    pub const LEN: usize = BODY_LEN;

    /// The sender's queue pair. Of an XRC target it is where the end-to-end context would be (IBTA
    /// annex A14).
    pub fn qpn(&self, xrc: bool) -> Qpn {
        if xrc { Qpn::new(self.local_eecn) } else { self.local_qpn }
    }
    /// Sets the sender's queue pair; of an XRC target also what follows from it: requests go to
    /// shared receive queues, and none come from it.
    pub fn set_qpn(&mut self, qpn: Qpn, xrc: bool) {
        if xrc {
            self.local_eecn = qpn.value();
            (self.srq, self.initiator_depth, self.end_to_end_flow_control) = (true, 0, false);
        } else {
            self.local_qpn = qpn;
        }
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
        Self {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            local_qkey: Qkey(be32(b, 8)),
            local_qpn: Qpn::new(be24(b, 12)),
            reserved15: b[15],
            local_eecn: be24(b, 16),
            reserved19: b[19],
            starting_psn: Psn::new(be24(b, 20)),
            reserved23: b[23],
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: b[26] >> 3,
            failover: FailoverAccepted(b[26] >> 1 & 3),
            end_to_end_flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            reserved27: b[27] & 15,
            local_ca_guid: be64(b, 28),
            private_data: PrivateData::from_tail(&b[36..]),
        }
    }
    /// Writes the message at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&self.local_comm_id.0.to_be_bytes());
        buf[4..8].copy_from_slice(&self.remote_comm_id.0.to_be_bytes());
        buf[8..12].copy_from_slice(&self.local_qkey.0.to_be_bytes());
        put24(buf, 12, self.local_qpn.value(), self.reserved15);
        put24(buf, 16, self.local_eecn, self.reserved19);
        put24(buf, 20, self.starting_psn.value(), self.reserved23);
        buf[24] = self.responder_resources;
        buf[25] = self.initiator_depth;
        let flow_control = u8::from(self.end_to_end_flow_control);
        buf[26] = self.target_ack_delay << 3 | (self.failover.0 & 3) << 1 | flow_control;
        buf[27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4 | self.reserved27 & 15;
        buf[28..36].copy_from_slice(&self.local_ca_guid.to_be_bytes());
        buf[36..Self::LEN].copy_from_slice(self.private_data.as_bytes());
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_comm_id, self.remote_comm_id);
        let (qpn, psn) = (self.local_qpn, self.starting_psn);
        write!(f, "REP comm_id={local} remote={remote} qpn={qpn} psn={psn}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; Rep::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let rep = Rep::parse(&bytes).unwrap();
        assert_eq!(rep.local_comm_id, CommId(0x0102_0304));
        assert_eq!(rep.remote_comm_id, CommId(0x0506_0708));
        assert_eq!(rep.local_qkey, Qkey(0x090A_0B0C));
        assert_eq!((rep.local_qpn, rep.reserved15), (Qpn::new(0x0D_0E0F), 0x10));
        assert_eq!((rep.local_eecn, rep.reserved19), (0x11_1213, 0x14));
        assert_eq!((rep.starting_psn, rep.reserved23), (Psn::new(0x15_1617), 0x18));
        assert_eq!((rep.responder_resources, rep.initiator_depth), (0x19, 0x1A));
        // 0x1B: 00011 01 1, 0x1C: 000 1 1100
        assert_eq!((rep.target_ack_delay, rep.failover), (3, FailoverAccepted::NOT_SUPPORTED));
        assert!(rep.end_to_end_flow_control && rep.srq);
        assert_eq!((rep.rnr_retry_count, rep.reserved27), (0, 12));
        assert_eq!(rep.local_ca_guid, 0x1D1E_1F20_2122_2324);
        assert_eq!(rep.private_data.as_bytes()[..], bytes[36..]);
        let mut out = [0; Rep::LEN];
        rep.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn the_queue_pair_of_an_xrc_target_is_where_a_context_would_be() {
        let mut rep = Rep { initiator_depth: 4, end_to_end_flow_control: true, ..Rep::default() };
        rep.set_qpn(Qpn::new(7), true);
        assert_eq!((rep.local_eecn, rep.local_qpn), (7, Qpn::new(0)));
        assert_eq!((rep.qpn(true), rep.srq, rep.initiator_depth), (Qpn::new(7), true, 0));
        assert!(!rep.end_to_end_flow_control);
        rep.set_qpn(Qpn::new(8), false);
        assert_eq!((rep.qpn(false), rep.qpn(true)), (Qpn::new(8), Qpn::new(7)));
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 232, have: 231 };
        assert_eq!(Rep::parse(&[0; 231]), Err(error));
    }
}
