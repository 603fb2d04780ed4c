//! MCMemberRecord: 52 bytes, a multicast group, and a member of it (IBTA 15.2.5).
//!
//! ```text
//!  byte   0..15   16..31     32..35   36..37   38    39       40..41   42     43
//!       +-------+----------+--------+--------+-----+--------+--------+------+-----------+
//!       | MGID  | port GID | Q_Key  | MLID   | MTU | tclass | P_Key  | rate | life time |
//!       +-------+----------+--------+--------+-----+--------+--------+------+-----------+
//!                                              2 6                     2 6    2 6
//!  byte   44..47                    48                 49       50..51
//!       +-------------------------+------------------+--------+----------+
//!       | SL flow label hop limit | scope join state | P rsv7 | reserved |
//!       +-------------------------+------------------+--------+----------+
//!         4  20         8           4     4            1 7
//! ```
//! P says that the join was made by another port. MTU, rate and life time have a selector on top.

use core::fmt;

use super::{Selected, be16, be32, part};
use crate::error::head;
use crate::{Gid, Lid, ParseError, Pkey, Qkey, ServiceLevel};

bitflags::bitflags! {
    /// Components of a [`McMemberRecord`], as a component mask says which of them count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct MemberComponents: u64 {
        /// [`McMemberRecord::mgid`].
        const MGID = 1 << 0;
        /// [`McMemberRecord::port_gid`].
        const PORT_GID = 1 << 1;
        /// [`McMemberRecord::qkey`].
        const QKEY = 1 << 2;
        /// [`McMemberRecord::mlid`].
        const MLID = 1 << 3;
        /// The selector of [`McMemberRecord::mtu`].
        const MTU_SELECTOR = 1 << 4;
        /// The value of [`McMemberRecord::mtu`].
        const MTU = 1 << 5;
        /// [`McMemberRecord::traffic_class`].
        const TRAFFIC_CLASS = 1 << 6;
        /// [`McMemberRecord::pkey`].
        const PKEY = 1 << 7;
        /// The selector of [`McMemberRecord::rate`].
        const RATE_SELECTOR = 1 << 8;
        /// The value of [`McMemberRecord::rate`].
        const RATE = 1 << 9;
        /// The selector of [`McMemberRecord::life_time`].
        const LIFE_TIME_SELECTOR = 1 << 10;
        /// The value of [`McMemberRecord::life_time`].
        const LIFE_TIME = 1 << 11;
        /// [`McMemberRecord::service_level`].
        const SERVICE_LEVEL = 1 << 12;
        /// [`McMemberRecord::flow_label`].
        const FLOW_LABEL = 1 << 13;
        /// [`McMemberRecord::hop_limit`].
        const HOP_LIMIT = 1 << 14;
        /// [`McMemberRecord::scope`].
        const SCOPE = 1 << 15;
        /// [`McMemberRecord::join_state`].
        const JOIN_STATE = 1 << 16;
        /// [`McMemberRecord::proxy_join`].
        const PROXY_JOIN = 1 << 17;
    }
}

bitflags::bitflags! {
    /// How a port takes part in a group, 4 bits. A request joins with those that are set, or leaves
    /// with them.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct JoinState: u8 {
        /// Sends and receives; the group lives as long as it has such a member.
        const FULL_MEMBER = 1 << 0;
        /// Sends and receives.
        const NON_MEMBER = 1 << 1;
        /// Sends; does not keep the group alive.
        const SEND_ONLY_NON_MEMBER = 1 << 2;
        /// Sends; keeps the group alive.
        const SEND_ONLY_FULL_MEMBER = 1 << 3;
    }
}

/// A multicast group, and a member of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct McMemberRecord {
    /// The group.
    pub mgid: Gid,
    /// The member.
    pub port_gid: Gid,
    /// The group's Q_Key.
    pub qkey: Qkey,
    /// The group's LID.
    pub mlid: Lid,
    /// Code of the group's MTU ([`Mtu::from_code`](crate::Mtu::from_code)).
    pub mtu: Selected,
    /// Traffic class for the GRH.
    pub traffic_class: u8,
    /// The group's partition.
    pub pkey: Pkey,
    /// Code of the group's rate.
    pub rate: Selected,
    /// How long a packet can be on its way at most: an exponent.
    pub life_time: Selected,
    /// Service level.
    pub service_level: ServiceLevel,
    /// Flow label for the GRH, 20 bits.
    pub flow_label: u32,
    /// Hop limit for the GRH.
    pub hop_limit: u8,
    /// How far the group reaches, 4 bits, as in the MGID: 2 is the subnet.
    pub scope: u8,
    /// How the port takes part.
    pub join_state: JoinState,
    /// Whether another port made the port join.
    pub proxy_join: bool,
    /// Reserved, 7 bits, 0 when sent.
    pub reserved49: u8,
    /// Reserved, 0 when sent.
    pub reserved50: u16,
}

impl McMemberRecord {
    /// Bytes on the wire.
    pub const LEN: usize = 52;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let route = be32(b, 44);
        Self {
            mgid: Gid(part(b, 0)),
            port_gid: Gid(part(b, 16)),
            qkey: Qkey(be32(b, 32)),
            mlid: Lid(be16(b, 36)),
            mtu: Selected::from_byte(b[38]),
            traffic_class: b[39],
            pkey: Pkey(be16(b, 40)),
            rate: Selected::from_byte(b[42]),
            life_time: Selected::from_byte(b[43]),
            service_level: ServiceLevel::new((route >> 28) as u8),
            flow_label: route >> 8 & 0xF_FFFF,
            hop_limit: route as u8,
            scope: b[48] >> 4,
            join_state: JoinState::from_bits_truncate(b[48]),
            proxy_join: b[49] >> 7 != 0,
            reserved49: b[49] & 0x7F,
            reserved50: be16(b, 50),
        }
    }
    /// Writes the record at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let route = u32::from(self.service_level.value()) << 28
            | (self.flow_label & 0xF_FFFF) << 8
            | u32::from(self.hop_limit);
        buf[..16].copy_from_slice(&self.mgid.0);
        buf[16..32].copy_from_slice(&self.port_gid.0);
        buf[32..36].copy_from_slice(&self.qkey.0.to_be_bytes());
        buf[36..38].copy_from_slice(&self.mlid.0.to_be_bytes());
        buf[38] = self.mtu.to_byte();
        buf[39] = self.traffic_class;
        buf[40..42].copy_from_slice(&self.pkey.0.to_be_bytes());
        buf[42] = self.rate.to_byte();
        buf[43] = self.life_time.to_byte();
        buf[44..48].copy_from_slice(&route.to_be_bytes());
        buf[48] = self.scope << 4 | self.join_state.bits() & 15;
        buf[49] = u8::from(self.proxy_join) << 7 | self.reserved49 & 0x7F;
        buf[50..Self::LEN].copy_from_slice(&self.reserved50.to_be_bytes());
    }
}

impl fmt::Display for McMemberRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mgid, mlid, port, state) = (self.mgid, self.mlid, self.port_gid, self.join_state);
        write!(f, "group {mgid} lid {mlid} member {port} state={:#x}", state.bits())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;
    use crate::sa::Selector;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; McMemberRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        bytes[38] = 0x84;
        bytes[48] = 0x25;
        bytes[49] = 0x83;
        let member = McMemberRecord::parse(&bytes).unwrap();
        assert_eq!((member.mgid.0[0], member.mgid.0[15]), (1, 16));
        assert_eq!((member.port_gid.0[0], member.port_gid.0[15]), (17, 32));
        assert_eq!((member.qkey, member.mlid), (Qkey(0x2122_2324), Lid(0x2526)));
        assert_eq!((member.mtu, member.traffic_class), (Selected::exactly(4), 0x28));
        assert_eq!(member.pkey, Pkey(0x292A));
        let selector = Selector::GREATER;
        assert_eq!(member.rate, Selected { selector, value: 0x2B });
        assert_eq!(member.life_time, Selected { selector, value: 0x2C });
        assert_eq!(member.service_level, ServiceLevel::new(2));
        assert_eq!((member.flow_label, member.hop_limit), (0xD_2E2F, 0x30));
        let states = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER;
        assert_eq!((member.scope, member.join_state), (2, states));
        assert_eq!((member.proxy_join, member.reserved49), (true, 3));
        assert_eq!(member.reserved50, 0x3334);
        let mut out = [0; McMemberRecord::LEN];
        member.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn fifty_one_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 52, have: 51 };
        assert_eq!(McMemberRecord::parse(&[0; 51]), Err(error));
    }

    #[test]
    fn a_member_reads_as_a_trace() {
        let (mlid, join_state) = (Lid(0xC001), JoinState::FULL_MEMBER);
        let member = McMemberRecord { mlid, join_state, ..McMemberRecord::default() };
        assert_eq!(member.to_string(), "group :: lid 0xc001 member :: state=0x1");
    }
}
