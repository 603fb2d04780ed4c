//! ClassPortInfo: what an agent of a class can do, and where to ask instead (IBTA 13.4.8.1): 72
//! bytes.
//!
//! ```text
//!  byte   0           1            2..3           4..7                8..23
//!       +-----------+------------+--------------+-------------------+---------------+
//!       | base vers | class vers | capabilities | capab.2 27 time5  | redirect GID  |
//!       +-----------+------------+--------------+-------------------+---------------+
//!  byte   24..27         28..29   30..31   32..35         36..39
//!       +--------------+--------+--------+--------------+--------+
//!       | TC8 SL4 FL20 | LID    | P_Key  | resv8 QPN24  | Q_Key  |
//!       +--------------+--------+--------+--------------+--------+
//!  byte   40..55     56..59         60..61   62..63   64..67              68..71
//!       +----------+--------------+--------+--------+-------------------+--------+
//!       | trap GID | TC8 SL4 FL20 | LID    | P_Key  | hop limit8 QPN24  | Q_Key  |
//!       +----------+--------------+--------+--------+-------------------+--------+
//! ```

use core::fmt;

use crate::error::head;
use crate::smp::{array, be16, be32};
use crate::{Gid, Lid, ParseError, Pkey, Qkey};

/// What an agent of a class can do, and where to ask instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassPortInfo {
    /// Version of management datagrams; 1.
    pub base_version: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Capabilities of the class; those of performance management are `PERFORMANCE_*`.
    pub capabilities: u16,
    /// More capabilities, 27 bits.
    pub capabilities2: u32,
    /// Longest time to an answer, 5 bits: 4.096 us times 2 to the power of this.
    pub response_time: u8,
    /// GID of the agent to ask instead.
    pub redirect_gid: Gid,
    /// Traffic class of the agent to ask instead.
    pub redirect_traffic_class: u8,
    /// Service level of the agent to ask instead, 4 bits.
    pub redirect_service_level: u8,
    /// Flow label of the agent to ask instead, 20 bits.
    pub redirect_flow_label: u32,
    /// LID of the agent to ask instead.
    pub redirect_lid: Lid,
    /// Partition key of the agent to ask instead.
    pub redirect_pkey: Pkey,
    /// Reserved, 0 when sent.
    pub reserved32: u8,
    /// Queue pair of the agent to ask instead, 24 bits.
    pub redirect_qpn: u32,
    /// Queue key of the agent to ask instead.
    pub redirect_qkey: Qkey,
    /// GID that traps go to.
    pub trap_gid: Gid,
    /// Traffic class that traps go to.
    pub trap_traffic_class: u8,
    /// Service level that traps go to, 4 bits.
    pub trap_service_level: u8,
    /// Flow label that traps go to, 20 bits.
    pub trap_flow_label: u32,
    /// LID that traps go to.
    pub trap_lid: Lid,
    /// Partition key that traps go to.
    pub trap_pkey: Pkey,
    /// Hop limit of traps.
    pub trap_hop_limit: u8,
    /// Queue pair that traps go to, 24 bits.
    pub trap_qpn: u32,
    /// Queue key of traps.
    pub trap_qkey: Qkey,
}

impl ClassPortInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 72;

    /// Capability of performance management: port 255 stands for all ports.
    pub const PERFORMANCE_ALL_PORTS: u16 = 1 << 8;
    /// Capability of performance management: PortCountersExtended.
    pub const PERFORMANCE_EXTENDED_WIDTH: u16 = 1 << 9;
    /// PortCountersExtended is there, without counters of unicast and multicast.
    pub const PERFORMANCE_EXTENDED_WIDTH_NO_IETF: u16 = 1 << 10;
    /// Capability of performance management: PortXmitWait in PortCounters.
    pub const PERFORMANCE_XMIT_WAIT: u16 = 1 << 12;
    /// Further capability of performance management: counters of errors in PortCountersExtended.
    pub const PERFORMANCE2_EXTENDED_ERRORS: u32 = 1 << 1;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: b[0],
            class_version: b[1],
            capabilities: be16(b, 2),
            capabilities2: be32(b, 4) >> 5,
            response_time: (be32(b, 4) & 0x1F) as u8,
            redirect_gid: Gid(array(b, 8)),
            redirect_traffic_class: (be32(b, 24) >> 24) as u8,
            redirect_service_level: (be32(b, 24) >> 20 & 15) as u8,
            redirect_flow_label: be32(b, 24) & 0xFFFFF,
            redirect_lid: Lid(be16(b, 28)),
            redirect_pkey: Pkey(be16(b, 30)),
            reserved32: (be32(b, 32) >> 24) as u8,
            redirect_qpn: be32(b, 32) & 0xFFFFFF,
            redirect_qkey: Qkey(be32(b, 36)),
            trap_gid: Gid(array(b, 40)),
            trap_traffic_class: (be32(b, 56) >> 24) as u8,
            trap_service_level: (be32(b, 56) >> 20 & 15) as u8,
            trap_flow_label: be32(b, 56) & 0xFFFFF,
            trap_lid: Lid(be16(b, 60)),
            trap_pkey: Pkey(be16(b, 62)),
            trap_hop_limit: (be32(b, 64) >> 24) as u8,
            trap_qpn: be32(b, 64) & 0xFFFFFF,
            trap_qkey: Qkey(be32(b, 68)),
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = self.base_version;
        buf[1] = self.class_version;
        buf[2..4].copy_from_slice(&self.capabilities.to_be_bytes());
        let word = self.capabilities2 << 5 | u32::from(self.response_time) & 0x1F;
        buf[4..8].copy_from_slice(&word.to_be_bytes());
        buf[8..24].copy_from_slice(&self.redirect_gid.0);
        let word = u32::from(self.redirect_traffic_class) << 24
            | (u32::from(self.redirect_service_level) & 15) << 20
            | self.redirect_flow_label & 0xFFFFF;
        buf[24..28].copy_from_slice(&word.to_be_bytes());
        buf[28..30].copy_from_slice(&self.redirect_lid.0.to_be_bytes());
        buf[30..32].copy_from_slice(&self.redirect_pkey.0.to_be_bytes());
        let word = u32::from(self.reserved32) << 24 | self.redirect_qpn & 0xFFFFFF;
        buf[32..36].copy_from_slice(&word.to_be_bytes());
        buf[36..40].copy_from_slice(&self.redirect_qkey.0.to_be_bytes());
        buf[40..56].copy_from_slice(&self.trap_gid.0);
        let word = u32::from(self.trap_traffic_class) << 24
            | (u32::from(self.trap_service_level) & 15) << 20
            | self.trap_flow_label & 0xFFFFF;
        buf[56..60].copy_from_slice(&word.to_be_bytes());
        buf[60..62].copy_from_slice(&self.trap_lid.0.to_be_bytes());
        buf[62..64].copy_from_slice(&self.trap_pkey.0.to_be_bytes());
        let word = u32::from(self.trap_hop_limit) << 24 | self.trap_qpn & 0xFFFFFF;
        buf[64..68].copy_from_slice(&word.to_be_bytes());
        buf[68..Self::LEN].copy_from_slice(&self.trap_qkey.0.to_be_bytes());
    }
}

impl fmt::Display for ClassPortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, capabilities) = (self.class_version, self.capabilities);
        write!(f, "ClassPortInfo version={version} capabilities={capabilities:#06x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; ClassPortInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = ClassPortInfo::parse(&bytes).unwrap();
        assert_eq!(read.base_version, 0x01);
        assert_eq!(read.class_version, 0x02);
        assert_eq!(read.capabilities, 0x0304);
        assert_eq!(read.capabilities2, 0x028_3038);
        assert_eq!(read.response_time, 0x08);
        assert_eq!(read.redirect_gid.0[..], bytes[8..24]);
        assert_eq!(read.redirect_traffic_class, 0x19);
        assert_eq!(read.redirect_service_level, 0x1);
        assert_eq!(read.redirect_flow_label, 0xA_1B1C);
        assert_eq!(read.redirect_lid, Lid(0x1D1E));
        assert_eq!(read.redirect_pkey, Pkey(0x1F20));
        assert_eq!(read.reserved32, 0x21);
        assert_eq!(read.redirect_qpn, 0x22_2324);
        assert_eq!(read.redirect_qkey, Qkey(0x2526_2728));
        assert_eq!(read.trap_gid.0[..], bytes[40..56]);
        assert_eq!(read.trap_traffic_class, 0x39);
        assert_eq!(read.trap_service_level, 0x3);
        assert_eq!(read.trap_flow_label, 0xA_3B3C);
        assert_eq!(read.trap_lid, Lid(0x3D3E));
        assert_eq!(read.trap_pkey, Pkey(0x3F40));
        assert_eq!(read.trap_hop_limit, 0x41);
        assert_eq!(read.trap_qpn, 0x42_4344);
        assert_eq!(read.trap_qkey, Qkey(0x4546_4748));
        let mut out = [0; ClassPortInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 72, have: 71 };
        assert_eq!(ClassPortInfo::parse(&[0; 71]), Err(error));
    }
}
