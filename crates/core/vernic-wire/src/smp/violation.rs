//! Details of the notices about wrong keys (IBTA 14.2.5.1): 54 bytes each.
//!
//! ```text
//!  trap 256, wrong key of subnet management
//!  byte   0..1   2..3   4..5     6        7      8..9        10..13     14..21
//!       +------+------+--------+--------+------+-----------+----------+-------+
//!       | resv | LID  | DrSLID | method | resv | attribute | modifier | M_Key |
//!       +------+------+--------+--------+------+-----------+----------+-------+
//!  byte   22     23       24..53
//!       +------+--------+-------------+
//!       | resv | D T 6  | return path |
//!       +------+--------+-------------+
//!  traps 257 and 258, wrong partition or queue key at an adapter
//!  byte   0..1   2..3       4..5     6..9   10..13          14..17
//!       +------+----------+--------+------+---------------+---------------+
//!       | resv | LID from | LID to | key  | SL4 resv QP24 | resv8 QP24 to |
//!       +------+----------+--------+------+---------------+---------------+
//!  byte   18..33     34..49   50..53
//!       +----------+--------+------+
//!       | GID from | GID to | resv |
//!       +----------+--------+------+
//!  trap 259, wrong partition key at a switch
//!  byte   0..1    2..3       4..5     6..7    8..11           12..15
//!       +-------+----------+--------+-------+---------------+---------------+
//!       | valid | LID from | LID to | P_Key | SL4 resv QP24 | resv8 QP24 to |
//!       +-------+----------+--------+-------+---------------+---------------+
//!  byte   16..31     32..47   48..49       50     51..53
//!       +----------+--------+------------+------+------+
//!       | GID from | GID to | switch LID | port | resv |
//!       +----------+--------+------------+------+------+
//! ```
//! D says that the packet was of a directed route, T that the path was cut, and 6 bits are the hop
//! count.

use super::{Notice, array, be16, be32, be64};
use crate::{Gid, Lid, Pkey, PortNum, Qpn, ServiceLevel};

/// Details of trap 256: a packet with a wrong key of subnet management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadManagementKey {
    /// LID that the packet came from.
    pub lid: Lid,
    /// LID where its directed route began.
    pub dr_slid: Lid,
    /// Method.
    pub method: u8,
    /// Attribute.
    pub attribute: u16,
    /// Modifier of the attribute.
    pub modifier: u32,
    /// Key that the packet had.
    pub m_key: u64,
    /// Ports of the way back, if the packet came by a directed route: how many, and the first 30.
    pub path: Option<(u8, [u8; 30])>,
}

impl BadManagementKey {
    /// Reads the details.
    pub fn from_details(b: &[u8; Notice::DETAILS_LEN]) -> Self {
        Self {
            lid: Lid(be16(b, 2)),
            dr_slid: Lid(be16(b, 4)),
            method: b[6],
            attribute: be16(b, 8),
            modifier: be32(b, 10),
            m_key: be64(b, 14),
            path: (b[23] & 0x80 != 0).then(|| (b[23] & 0x3F, array(b, 24))),
        }
    }
    /// Details as they are sent.
    pub fn details(&self) -> [u8; Notice::DETAILS_LEN] {
        let mut b = [0; Notice::DETAILS_LEN];
        b[2..4].copy_from_slice(&self.lid.0.to_be_bytes());
        b[4..6].copy_from_slice(&self.dr_slid.0.to_be_bytes());
        b[6] = self.method;
        b[8..10].copy_from_slice(&self.attribute.to_be_bytes());
        b[10..14].copy_from_slice(&self.modifier.to_be_bytes());
        b[14..22].copy_from_slice(&self.m_key.to_be_bytes());
        if let Some((hops, ports)) = self.path {
            let cut = usize::from(hops) > ports.len();
            b[23] = 0x80 | u8::from(cut) << 6 | hops & 0x3F;
            b[24..].copy_from_slice(&ports);
        }
        b
    }
}

/// Details of traps 257 and 258: a packet with a wrong partition or queue key at an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadKey {
    /// LID that the packet came from.
    pub from: Lid,
    /// LID that the packet went to.
    pub to: Lid,
    /// Key that the packet had; partition keys have 16 bits.
    pub key: u32,
    /// Service level of the packet.
    pub service_level: ServiceLevel,
    /// Queue pair that the packet came from.
    pub from_qp: Qpn,
    /// Queue pair that the packet went to.
    pub to_qp: Qpn,
    /// GID that the packet came from, or all zeros.
    pub from_gid: Gid,
    /// GID that the packet went to, or all zeros.
    pub to_gid: Gid,
}

impl BadKey {
    /// Reads the details.
    pub fn from_details(b: &[u8; Notice::DETAILS_LEN]) -> Self {
        Self {
            from: Lid(be16(b, 2)),
            to: Lid(be16(b, 4)),
            key: be32(b, 6),
            service_level: ServiceLevel::new(b[10] >> 4),
            from_qp: Qpn::new(be32(b, 10)),
            to_qp: Qpn::new(be32(b, 14)),
            from_gid: Gid(array(b, 18)),
            to_gid: Gid(array(b, 34)),
        }
    }
    /// Details as they are sent.
    pub fn details(&self) -> [u8; Notice::DETAILS_LEN] {
        let mut b = [0; Notice::DETAILS_LEN];
        b[2..4].copy_from_slice(&self.from.0.to_be_bytes());
        b[4..6].copy_from_slice(&self.to.0.to_be_bytes());
        b[6..10].copy_from_slice(&self.key.to_be_bytes());
        b[10..14].copy_from_slice(&level_and_qp(self.service_level, self.from_qp));
        b[14..18].copy_from_slice(&self.to_qp.value().to_be_bytes());
        b[18..34].copy_from_slice(&self.from_gid.0);
        b[34..50].copy_from_slice(&self.to_gid.0);
        b
    }
}

/// Details of trap 259: a packet with a wrong partition key at a port of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPkeyAtSwitch {
    /// Which of the fields below are known: bits of `LIDS`, `P_KEY`, `SL`, `QPS`, `GIDS`.
    pub valid: u16,
    /// LID that the packet came from.
    pub from: Lid,
    /// LID that the packet went to.
    pub to: Lid,
    /// Partition key that the packet had.
    pub pkey: Pkey,
    /// Service level of the packet.
    pub service_level: ServiceLevel,
    /// Queue pair that the packet came from.
    pub from_qp: Qpn,
    /// Queue pair that the packet went to.
    pub to_qp: Qpn,
    /// GID that the packet came from.
    pub from_gid: Gid,
    /// GID that the packet went to.
    pub to_gid: Gid,
    /// LID of the switch.
    pub switch: Lid,
    /// Port of the switch.
    pub port: PortNum,
}

impl BadPkeyAtSwitch {
    /// Reads the details.
    pub fn from_details(b: &[u8; Notice::DETAILS_LEN]) -> Self {
        Self {
            valid: be16(b, 0),
            from: Lid(be16(b, 2)),
            to: Lid(be16(b, 4)),
            pkey: Pkey(be16(b, 6)),
            service_level: ServiceLevel::new(b[8] >> 4),
            from_qp: Qpn::new(be32(b, 8)),
            to_qp: Qpn::new(be32(b, 12)),
            from_gid: Gid(array(b, 16)),
            to_gid: Gid(array(b, 32)),
            switch: Lid(be16(b, 48)),
            port: PortNum(b[50]),
        }
    }
    /// Details as they are sent.
    pub fn details(&self) -> [u8; Notice::DETAILS_LEN] {
        let mut b = [0; Notice::DETAILS_LEN];
        b[..2].copy_from_slice(&self.valid.to_be_bytes());
        b[2..4].copy_from_slice(&self.from.0.to_be_bytes());
        b[4..6].copy_from_slice(&self.to.0.to_be_bytes());
        b[6..8].copy_from_slice(&self.pkey.0.to_be_bytes());
        b[8..12].copy_from_slice(&level_and_qp(self.service_level, self.from_qp));
        b[12..16].copy_from_slice(&self.to_qp.value().to_be_bytes());
        b[16..32].copy_from_slice(&self.from_gid.0);
        b[32..48].copy_from_slice(&self.to_gid.0);
        b[48..50].copy_from_slice(&self.switch.0.to_be_bytes());
        b[50] = self.port.0;
        b
    }
}

fn level_and_qp(level: ServiceLevel, qp: Qpn) -> [u8; 4] {
    (u32::from(level.value()) << 28 | qp.value()).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTING: [u8; Notice::DETAILS_LEN] = {
        let mut bytes = [0; Notice::DETAILS_LEN];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = at as u8 + 1;
            at += 1;
        }
        bytes
    };
    /// Zero where nothing is reserved, and `COUNTING` elsewhere.
    fn without(reserved: &[core::ops::Range<usize>]) -> [u8; Notice::DETAILS_LEN] {
        let mut bytes = COUNTING;
        reserved.iter().for_each(|range| bytes[range.clone()].fill(0));
        bytes
    }

    #[test]
    fn a_wrong_key_of_the_manager_is_told_with_the_way_back() {
        let mut bytes = without(&[0..2, 7..8, 22..23]);
        bytes[23] = 0x80 | 24;
        let bad = BadManagementKey::from_details(&bytes);
        assert_eq!((bad.lid, bad.dr_slid, bad.method), (Lid(0x0304), Lid(0x0506), 7));
        assert_eq!((bad.attribute, bad.modifier), (0x090A, 0x0B0C_0D0E));
        assert_eq!(bad.m_key, 0x0F10_1112_1314_1516);
        let (hops, ports) = bad.path.unwrap();
        assert_eq!((hops, ports[0], ports[29]), (24, 25, 54));
        assert_eq!(bad.details(), bytes);
        let long = BadManagementKey { path: Some((31, ports)), ..bad };
        assert_eq!(long.details()[23], 0xC0 | 31);
        assert_eq!(BadManagementKey { path: None, ..bad }.details()[23..], [0; 31]);
    }

    #[test]
    fn a_wrong_key_at_an_adapter_is_told_with_both_ends() {
        let mut bytes = without(&[0..2, 10..11, 14..15, 50..54]);
        bytes[10] = 0xB0;
        let bad = BadKey::from_details(&bytes);
        assert_eq!((bad.from, bad.to, bad.key), (Lid(0x0304), Lid(0x0506), 0x0708_090A));
        assert_eq!((bad.service_level.value(), bad.from_qp), (11, Qpn::new(0x0C_0D0E)));
        assert_eq!(bad.to_qp, Qpn::new(0x10_1112));
        assert_eq!((bad.from_gid.0[0], bad.to_gid.0[0]), (19, 35));
        assert_eq!(bad.details(), bytes);
    }

    #[test]
    fn a_wrong_partition_key_at_a_switch_is_told_with_the_port() {
        let mut bytes = without(&[8..9, 12..13, 51..54]);
        bytes[8] = 0x70;
        let bad = BadPkeyAtSwitch::from_details(&bytes);
        assert_eq!((bad.valid, bad.from, bad.to), (0x0102, Lid(0x0304), Lid(0x0506)));
        assert_eq!((bad.pkey, bad.service_level.value()), (Pkey(0x0708), 7));
        assert_eq!((bad.from_qp, bad.to_qp), (Qpn::new(0x0A_0B0C), Qpn::new(0x0E_0F10)));
        assert_eq!((bad.from_gid.0[0], bad.to_gid.0[0]), (17, 33));
        assert_eq!((bad.switch, bad.port), (Lid(0x3132), PortNum(51)));
        assert_eq!(bad.details(), bytes);
    }
}
