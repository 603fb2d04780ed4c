//! PortInfo: a port, its link and what subnet management says of it (IBTA 14.2.5.6): 64 bytes.
//!
//! ```text
//!  byte   0..7    8..15        16..17   18..19   20..23            24..25      26..27
//!       +-------+------------+--------+--------+-----------------+-----------+-------------+
//!       | M_Key | GID prefix | LID    | SM LID | capability mask | diag code | M_Key lease |
//!       +-------+------------+--------+--------+-----------------+-----------+-------------+
//!  byte   28           29              30                31             32
//!       +------------+---------------+-----------------+--------------+--------------------+
//!       | local port | width enabled | width supported | width active | speed sup.4 state4 |
//!       +------------+---------------+-----------------+--------------+--------------------+
//!  byte   33                34                  35                  36            37
//!       +-----------------+-------------------+-------------------+-------------+------------+
//!       | phys4 downdef4  | protect2 resv3 LMC3 | active4 enabled4 | MTU4 SM SL4 | VLs4 init4 |
//!       +-----------------+-------------------+-------------------+-------------+------------+
//!  byte   38           39         40        41              42            43
//!       +------------+----------+---------+---------------+-------------+-----------------+
//!       | high limit | high cap | low cap | init4 MTUcap4 | stall3 HOQ5 | opVLs4 I O RI RO |
//!       +------------+----------+---------+---------------+-------------+-----------------+
//!  byte   44..45         46..47         48..49         50        51                   52
//!       +--------------+--------------+--------------+---------+--------------------+----------+
//!       | M_Key viol.  | P_Key viol.  | Q_Key viol.  | GUIDs   | C trap2 timeout5   | resv3 RT5 |
//!       +--------------+--------------+--------------+---------+--------------------+----------+
//!  byte   53              54..55        56..59            60..61
//!       +---------------+-------------+-----------------+------------------+
//!       | phys4 over4   | credit hint | resv8 latency24 | capability mask2 |
//!       +---------------+-------------+-----------------+------------------+
//!  byte   62                         63
//!       +--------------------------+----------------------+
//!       | ext. active4 supported4  | resv3 ext. enabled5  |
//!       +--------------------------+----------------------+
//! ```

use core::fmt;

use crate::error::head;
use crate::smp::{be16, be32, be64};
use crate::{Lid, ParseError, PortNum};

/// A port, its link and what subnet management says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortInfo {
    /// Key that a subnet manager must present, or 0.
    pub m_key: u64,
    /// First half of the port's GIDs.
    pub gid_prefix: u64,
    /// First of the port's LIDs.
    pub lid: Lid,
    /// LID of the master subnet manager.
    pub sm_lid: Lid,
    /// Capabilities: bits of `CAPABILITY_*`.
    pub capabilities: u32,
    /// Diagnosis of the vendor; 0 is fine.
    pub diag_code: u16,
    /// Seconds that the protection lasts when wrong keys come; 0 is for ever.
    pub m_key_lease_s: u16,
    /// Port that the request came in by, whichever was asked about.
    pub local_port: PortNum,
    /// Widths that the link may have: 1 is 1x, 2 is 4x, 4 is 8x, 8 is 12x. Written, 0 is no change
    /// and 255 all that are supported.
    pub width_enabled: u8,
    /// Widths that the port can have.
    pub width_supported: u8,
    /// Width that the link has.
    pub width_active: u8,
    /// Speeds that the port can have, 4 bits: 1 is 2.5 Gb/s, 2 is 5, 4 is 10, per lane.
    pub speed_supported: u8,
    /// Logical state, 4 bits: 1 Down, 2 Initialize, 3 Armed, 4 Active. Written, 0 is no change.
    pub state: u8,
    /// Physical state, 4 bits: 1 Sleep, 2 Polling, 3 Disabled, 5 LinkUp. Written, 0 is no change.
    pub physical_state: u8,
    /// Physical state after a link goes down, 4 bits: 1 Sleep, 2 Polling. Written, 0 is no
    /// change.
    pub link_down_default: u8,
    /// What is protected by the key, 2 bits (IBTA 14.2.4.1).
    pub m_key_protection: u8,
    /// Reserved, 0 when sent.
    pub reserved34: u8,
    /// LID mask control, 3 bits: the port has 2 to the power of this many LIDs.
    pub lmc: u8,
    /// Speed that the link has, 4 bits.
    pub speed_active: u8,
    /// Speeds that the link may have, 4 bits. Written, 0 is no change and 15 all that are
    /// supported.
    pub speed_enabled: u8,
    /// Longest packet of the other end, 4 bits: the code of an MTU.
    pub neighbor_mtu: u8,
    /// Service level of packets to the subnet manager, 4 bits.
    pub sm_service_level: u8,
    /// Data lanes of the port, 4 bits: 1 is VL0, 2 to VL1, 3 to VL3, 4 to VL7, 5 to VL14.
    pub lanes_supported: u8,
    /// What to keep over an initialization, 4 bits.
    pub init_type: u8,
    /// Limit of high priority, in units of 4,096 bytes; 255 is none, 0 one packet.
    pub high_limit: u8,
    /// Entries of the table of high priority.
    pub high_cap: u8,
    /// Entries of the table of low priority.
    pub low_cap: u8,
    /// What was kept, 4 bits.
    pub init_type_reply: u8,
    /// Longest packet that the port takes, 4 bits: the code of an MTU.
    pub mtu_cap: u8,
    /// Discards in a row that stall a lane, 3 bits.
    pub stall_count: u8,
    /// Longest wait at the head of a queue, 5 bits: 4.096 us times 2 to the power of this; from 20
    /// on, without end.
    pub head_of_queue_life: u8,
    /// Data lanes in use, 4 bits, coded as the supported ones. Written, 0 is no change.
    pub operational_lanes: u8,
    /// Partitions of packets that enter are enforced.
    pub enforces_inbound: bool,
    /// Partitions of packets that leave are enforced.
    pub enforces_outbound: bool,
    /// Raw packets that enter are dropped.
    pub filters_raw_inbound: bool,
    /// Raw packets that leave are dropped.
    pub filters_raw_outbound: bool,
    /// Packets with a wrong key of the manager. Written, 0 clears.
    pub m_key_violations: u16,
    /// Packets with a wrong partition key. Written, 0 clears.
    pub p_key_violations: u16,
    /// Packets with a wrong queue key. Written, 0 clears.
    pub q_key_violations: u16,
    /// Entries of the table of GUIDs.
    pub guid_cap: u8,
    /// Clients of the node are to register anew.
    pub client_reregister: bool,
    /// Suppression of traps about partitions of groups, 2 bits.
    pub trap_suppression: u8,
    /// Longest way through the subnet, 5 bits: 4.096 us times 2 to the power of this.
    pub subnet_timeout: u8,
    /// Reserved, 0 when sent.
    pub reserved52: u8,
    /// Longest time to an answer, 5 bits: 4.096 us times 2 to the power of this.
    pub response_time: u8,
    /// Threshold of local errors of the link, 4 bits.
    pub physical_errors: u8,
    /// Threshold of buffer overruns, 4 bits.
    pub overrun_errors: u8,
    /// Most blocks of 64 bytes that the link can have on its way.
    pub max_credit_hint: u16,
    /// Reserved, 0 when sent.
    pub reserved56: u8,
    /// Round trip of the link in units of 4 ns, 24 bits.
    pub round_trip_latency: u32,
    /// More capabilities.
    pub capabilities2: u16,
    /// Extended speed that the link has, 4 bits: 0 none, 1 is 14 Gb/s, 2 is 25, per lane.
    pub extended_speed_active: u8,
    /// Extended speeds that the port can have, 4 bits.
    pub extended_speed_supported: u8,
    /// Reserved, 0 when sent.
    pub reserved63: u8,
    /// Extended speeds that the link may have, 5 bits. Written, 0 is no change, 30 none, 31 all
    /// that are supported.
    pub extended_speed_enabled: u8,
}

impl PortInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Capability: a subnet manager is at the port.
    pub const CAPABILITY_SM: u32 = 1 << 1;
    /// Capability: the node sends traps.
    pub const CAPABILITY_TRAPS: u32 = 1 << 3;
    /// Capability: the lane of a service level can be set.
    pub const CAPABILITY_SL_MAPPING: u32 = 1 << 6;
    /// Capability: extended speeds.
    pub const CAPABILITY_EXTENDED_SPEEDS: u32 = 1 << 14;
    /// Capability: GUID of the system in NodeInfo.
    pub const CAPABILITY_SYSTEM_GUID: u32 = 1 << 11;
    /// Capability: changes of the capabilities are told by trap 144.
    pub const CAPABILITY_CAPABILITY_NOTICE: u32 = 1 << 22;
    /// Capability: clients can be told to register anew.
    pub const CAPABILITY_CLIENT_REREGISTER: u32 = 1 << 25;
    /// Capability: other changes of the node are told by trap 144.
    pub const CAPABILITY_CHANGE_NOTICE: u32 = 1 << 26;

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
            m_key: be64(b, 0),
            gid_prefix: be64(b, 8),
            lid: Lid(be16(b, 16)),
            sm_lid: Lid(be16(b, 18)),
            capabilities: be32(b, 20),
            diag_code: be16(b, 24),
            m_key_lease_s: be16(b, 26),
            local_port: PortNum(b[28]),
            width_enabled: b[29],
            width_supported: b[30],
            width_active: b[31],
            speed_supported: b[32] >> 4,
            state: b[32] & 15,
            physical_state: b[33] >> 4,
            link_down_default: b[33] & 15,
            m_key_protection: b[34] >> 6,
            reserved34: b[34] >> 3 & 7,
            lmc: b[34] & 7,
            speed_active: b[35] >> 4,
            speed_enabled: b[35] & 15,
            neighbor_mtu: b[36] >> 4,
            sm_service_level: b[36] & 15,
            lanes_supported: b[37] >> 4,
            init_type: b[37] & 15,
            high_limit: b[38],
            high_cap: b[39],
            low_cap: b[40],
            init_type_reply: b[41] >> 4,
            mtu_cap: b[41] & 15,
            stall_count: b[42] >> 5,
            head_of_queue_life: b[42] & 0x1F,
            operational_lanes: b[43] >> 4,
            enforces_inbound: b[43] & 0x08 != 0,
            enforces_outbound: b[43] & 0x04 != 0,
            filters_raw_inbound: b[43] & 0x02 != 0,
            filters_raw_outbound: b[43] & 1 != 0,
            m_key_violations: be16(b, 44),
            p_key_violations: be16(b, 46),
            q_key_violations: be16(b, 48),
            guid_cap: b[50],
            client_reregister: b[51] & 0x80 != 0,
            trap_suppression: b[51] >> 5 & 3,
            subnet_timeout: b[51] & 0x1F,
            reserved52: b[52] >> 5,
            response_time: b[52] & 0x1F,
            physical_errors: b[53] >> 4,
            overrun_errors: b[53] & 15,
            max_credit_hint: be16(b, 54),
            reserved56: (be32(b, 56) >> 24) as u8,
            round_trip_latency: be32(b, 56) & 0xFFFFFF,
            capabilities2: be16(b, 60),
            extended_speed_active: b[62] >> 4,
            extended_speed_supported: b[62] & 15,
            reserved63: b[63] >> 5,
            extended_speed_enabled: b[63] & 0x1F,
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.m_key.to_be_bytes());
        buf[8..16].copy_from_slice(&self.gid_prefix.to_be_bytes());
        buf[16..18].copy_from_slice(&self.lid.0.to_be_bytes());
        buf[18..20].copy_from_slice(&self.sm_lid.0.to_be_bytes());
        buf[20..24].copy_from_slice(&self.capabilities.to_be_bytes());
        buf[24..26].copy_from_slice(&self.diag_code.to_be_bytes());
        buf[26..28].copy_from_slice(&self.m_key_lease_s.to_be_bytes());
        buf[28] = self.local_port.0;
        buf[29] = self.width_enabled;
        buf[30] = self.width_supported;
        buf[31] = self.width_active;
        buf[32] = self.speed_supported << 4 | self.state & 15;
        buf[33] = self.physical_state << 4 | self.link_down_default & 15;
        buf[34] = self.m_key_protection << 6 | (self.reserved34 & 7) << 3 | self.lmc & 7;
        buf[35] = self.speed_active << 4 | self.speed_enabled & 15;
        buf[36] = self.neighbor_mtu << 4 | self.sm_service_level & 15;
        buf[37] = self.lanes_supported << 4 | self.init_type & 15;
        buf[38] = self.high_limit;
        buf[39] = self.high_cap;
        buf[40] = self.low_cap;
        buf[41] = self.init_type_reply << 4 | self.mtu_cap & 15;
        buf[42] = self.stall_count << 5 | self.head_of_queue_life & 0x1F;
        buf[43] = self.operational_lanes << 4
            | u8::from(self.enforces_inbound) << 3
            | u8::from(self.enforces_outbound) << 2
            | u8::from(self.filters_raw_inbound) << 1
            | u8::from(self.filters_raw_outbound);
        buf[44..46].copy_from_slice(&self.m_key_violations.to_be_bytes());
        buf[46..48].copy_from_slice(&self.p_key_violations.to_be_bytes());
        buf[48..50].copy_from_slice(&self.q_key_violations.to_be_bytes());
        buf[50] = self.guid_cap;
        buf[51] = u8::from(self.client_reregister) << 7
            | (self.trap_suppression & 3) << 5
            | self.subnet_timeout & 0x1F;
        buf[52] = self.reserved52 << 5 | self.response_time & 0x1F;
        buf[53] = self.physical_errors << 4 | self.overrun_errors & 15;
        buf[54..56].copy_from_slice(&self.max_credit_hint.to_be_bytes());
        let word = u32::from(self.reserved56) << 24 | self.round_trip_latency & 0xFFFFFF;
        buf[56..60].copy_from_slice(&word.to_be_bytes());
        buf[60..62].copy_from_slice(&self.capabilities2.to_be_bytes());
        buf[62] = self.extended_speed_active << 4 | self.extended_speed_supported & 15;
        buf[63] = self.reserved63 << 5 | self.extended_speed_enabled & 0x1F;
    }
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, physical) = (self.state, self.physical_state);
        write!(f, "PortInfo lid={} state={state} physical={physical}", self.lid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; PortInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = PortInfo::parse(&bytes).unwrap();
        assert_eq!(read.m_key, 0x0102_0304_0506_0708);
        assert_eq!(read.gid_prefix, 0x090A_0B0C_0D0E_0F10);
        assert_eq!(read.lid, Lid(0x1112));
        assert_eq!(read.sm_lid, Lid(0x1314));
        assert_eq!(read.capabilities, 0x1516_1718);
        assert_eq!(read.diag_code, 0x191A);
        assert_eq!(read.m_key_lease_s, 0x1B1C);
        assert_eq!(read.local_port, PortNum(0x1D));
        assert_eq!(read.width_enabled, 0x1E);
        assert_eq!(read.width_supported, 0x1F);
        assert_eq!(read.width_active, 0x20);
        assert_eq!(read.speed_supported, 0x2);
        assert_eq!(read.state, 0x1);
        assert_eq!(read.physical_state, 0x2);
        assert_eq!(read.link_down_default, 0x2);
        assert_eq!(read.m_key_protection, 0x0);
        assert_eq!(read.reserved34, 0x4);
        assert_eq!(read.lmc, 0x3);
        assert_eq!(read.speed_active, 0x2);
        assert_eq!(read.speed_enabled, 0x4);
        assert_eq!(read.neighbor_mtu, 0x2);
        assert_eq!(read.sm_service_level, 0x5);
        assert_eq!(read.lanes_supported, 0x2);
        assert_eq!(read.init_type, 0x6);
        assert_eq!(read.high_limit, 0x27);
        assert_eq!(read.high_cap, 0x28);
        assert_eq!(read.low_cap, 0x29);
        assert_eq!(read.init_type_reply, 0x2);
        assert_eq!(read.mtu_cap, 0xA);
        assert_eq!(read.stall_count, 0x1);
        assert_eq!(read.head_of_queue_life, 0x0B);
        assert_eq!(read.operational_lanes, 0x2);
        assert!(read.enforces_inbound);
        assert!(read.enforces_outbound);
        assert!(!read.filters_raw_inbound);
        assert!(!read.filters_raw_outbound);
        assert_eq!(read.m_key_violations, 0x2D2E);
        assert_eq!(read.p_key_violations, 0x2F30);
        assert_eq!(read.q_key_violations, 0x3132);
        assert_eq!(read.guid_cap, 0x33);
        assert!(!read.client_reregister);
        assert_eq!(read.trap_suppression, 0x1);
        assert_eq!(read.subnet_timeout, 0x14);
        assert_eq!(read.reserved52, 0x1);
        assert_eq!(read.response_time, 0x15);
        assert_eq!(read.physical_errors, 0x3);
        assert_eq!(read.overrun_errors, 0x6);
        assert_eq!(read.max_credit_hint, 0x3738);
        assert_eq!(read.reserved56, 0x39);
        assert_eq!(read.round_trip_latency, 0x3A_3B3C);
        assert_eq!(read.capabilities2, 0x3D3E);
        assert_eq!(read.extended_speed_active, 0x3);
        assert_eq!(read.extended_speed_supported, 0xF);
        assert_eq!(read.reserved63, 0x2);
        assert_eq!(read.extended_speed_enabled, 0x00);
        let mut out = [0; PortInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(PortInfo::parse(&[0; 63]), Err(error));
    }
}
