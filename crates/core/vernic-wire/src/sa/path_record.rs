//! PathRecord: 64 bytes, how packets get from one port to another (IBTA 15.2.5).
//!
//! ```text
//!  byte   0..7         8..23   24..39   40..41   42..43   44..47
//!       +------------+-------+--------+--------+--------+-----------------------------+
//!       | service id | DGID  | SGID   | DLID   | SLID   | R rsv3 flow label hop limit |
//!       +------------+-------+--------+--------+--------+-----------------------------+
//!                                                         1  3    20         8
//!  byte   48       49          50..51   52..53         54    55     56          57       58..63
//!       +--------+-----------+--------+--------------+-----+------+-----------+--------+-----+
//!       | tclass | B numpath | P_Key  | QoS class SL | MTU | rate | life time | prefer | rsv |
//!       +--------+-----------+--------+--------------+-----+------+-----------+--------+-----+
//!                  1 7                  12        4    2 6   2 6    2 6
//! ```
//! R is raw traffic, B reversible. MTU, rate and life time have a selector on top.

use core::fmt;

use super::{Selected, be16, be32, be64, part};
use crate::cm::ServiceId;
use crate::error::head;
use crate::{Gid, Lid, ParseError, Pkey, ServiceLevel};

bitflags::bitflags! {
    /// Components of a [`PathRecord`], as a component mask says which of them count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct PathComponents: u64 {
        /// Byte 0 of the service id.
        const SERVICE_ID_FIRST_BYTE = 1 << 0;
        /// Bytes 1 to 7 of the service id.
        const SERVICE_ID_OTHER_BYTES = 1 << 1;
        /// The whole service id.
        const SERVICE_ID = 3;
        /// [`PathRecord::dgid`].
        const DGID = 1 << 2;
        /// [`PathRecord::sgid`].
        const SGID = 1 << 3;
        /// [`PathRecord::dlid`].
        const DLID = 1 << 4;
        /// [`PathRecord::slid`].
        const SLID = 1 << 5;
        /// [`PathRecord::raw_traffic`].
        const RAW_TRAFFIC = 1 << 6;
        /// [`PathRecord::flow_label`].
        const FLOW_LABEL = 1 << 8;
        /// [`PathRecord::hop_limit`].
        const HOP_LIMIT = 1 << 9;
        /// [`PathRecord::traffic_class`].
        const TRAFFIC_CLASS = 1 << 10;
        /// [`PathRecord::reversible`].
        const REVERSIBLE = 1 << 11;
        /// [`PathRecord::path_count`].
        const PATH_COUNT = 1 << 12;
        /// [`PathRecord::pkey`].
        const PKEY = 1 << 13;
        /// [`PathRecord::qos_class`].
        const QOS_CLASS = 1 << 14;
        /// [`PathRecord::service_level`].
        const SERVICE_LEVEL = 1 << 15;
        /// The selector of [`PathRecord::mtu`].
        const MTU_SELECTOR = 1 << 16;
        /// The value of [`PathRecord::mtu`].
        const MTU = 1 << 17;
        /// The selector of [`PathRecord::rate`].
        const RATE_SELECTOR = 1 << 18;
        /// The value of [`PathRecord::rate`].
        const RATE = 1 << 19;
        /// The selector of [`PathRecord::life_time`].
        const LIFE_TIME_SELECTOR = 1 << 20;
        /// The value of [`PathRecord::life_time`].
        const LIFE_TIME = 1 << 21;
    }
}

/// A path from one port to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathRecord {
    /// The service that the path is for; 0 for any.
    pub service_id: ServiceId,
    /// Where packets go to.
    pub dgid: Gid,
    /// Where packets come from.
    pub sgid: Gid,
    /// The LID for the LRH.
    pub dlid: Lid,
    /// The sender's LID.
    pub slid: Lid,
    /// Whether the path is for raw packets.
    pub raw_traffic: bool,
    /// Reserved, 3 bits, 0 when sent.
    pub reserved44: u8,
    /// Flow label for the GRH, 20 bits.
    pub flow_label: u32,
    /// Hop limit for the GRH. At most 1 means that the path stays in the subnet.
    pub hop_limit: u8,
    /// Traffic class for the GRH.
    pub traffic_class: u8,
    /// Whether answers can take the same path back.
    pub reversible: bool,
    /// How many paths a request asks for at most, 7 bits.
    pub path_count: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Class of service by the administrator's policy, 12 bits.
    pub qos_class: u16,
    /// Service level.
    pub service_level: ServiceLevel,
    /// Code of the MTU ([`Mtu::from_code`](crate::Mtu::from_code)).
    pub mtu: Selected,
    /// Code of the rate.
    pub rate: Selected,
    /// How long a packet can be on its way at most: an exponent.
    pub life_time: Selected,
    /// Preference: of several paths, those with lower values are better.
    pub preference: u8,
    /// Reserved, 0 when sent.
    pub reserved58: [u8; 6],
}

impl PathRecord {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let (route, class) = (be32(b, 44), be16(b, 52));
        Self {
            service_id: ServiceId(be64(b, 0)),
            dgid: Gid(part(b, 8)),
            sgid: Gid(part(b, 24)),
            dlid: Lid(be16(b, 40)),
            slid: Lid(be16(b, 42)),
            raw_traffic: route >> 31 != 0,
            reserved44: (route >> 28 & 7) as u8,
            flow_label: route >> 8 & 0xF_FFFF,
            hop_limit: route as u8,
            traffic_class: b[48],
            reversible: b[49] >> 7 != 0,
            path_count: b[49] & 0x7F,
            pkey: Pkey(be16(b, 50)),
            qos_class: class >> 4,
            service_level: ServiceLevel::new(class as u8),
            mtu: Selected::from_byte(b[54]),
            rate: Selected::from_byte(b[55]),
            life_time: Selected::from_byte(b[56]),
            preference: b[57],
            reserved58: part(b, 58),
        }
    }
    /// Writes the record at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let route = u32::from(self.raw_traffic) << 31
            | u32::from(self.reserved44 & 7) << 28
            | (self.flow_label & 0xF_FFFF) << 8
            | u32::from(self.hop_limit);
        let class = self.qos_class << 4 | u16::from(self.service_level.value());
        buf[..8].copy_from_slice(&self.service_id.0.to_be_bytes());
        buf[8..24].copy_from_slice(&self.dgid.0);
        buf[24..40].copy_from_slice(&self.sgid.0);
        buf[40..42].copy_from_slice(&self.dlid.0.to_be_bytes());
        buf[42..44].copy_from_slice(&self.slid.0.to_be_bytes());
        buf[44..48].copy_from_slice(&route.to_be_bytes());
        buf[48] = self.traffic_class;
        buf[49] = u8::from(self.reversible) << 7 | self.path_count & 0x7F;
        buf[50..52].copy_from_slice(&self.pkey.0.to_be_bytes());
        buf[52..54].copy_from_slice(&class.to_be_bytes());
        buf[54] = self.mtu.to_byte();
        buf[55] = self.rate.to_byte();
        buf[56] = self.life_time.to_byte();
        buf[57] = self.preference;
        buf[58..Self::LEN].copy_from_slice(&self.reserved58);
    }
}

impl fmt::Display for PathRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slid, dlid, sl) = (self.slid, self.dlid, self.service_level.value());
        write!(f, "path {} > {} lid {slid} > {dlid} sl={sl}", self.sgid, self.dgid)
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
        let mut bytes: [u8; PathRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        bytes[44] = 0xB4;
        bytes[49] = 0xA5;
        let path = PathRecord::parse(&bytes).unwrap();
        assert_eq!(path.service_id, ServiceId(0x0102_0304_0506_0708));
        assert_eq!((path.dgid.0[0], path.dgid.0[15]), (9, 24));
        assert_eq!((path.sgid.0[0], path.sgid.0[15]), (25, 40));
        assert_eq!((path.dlid, path.slid), (Lid(0x292A), Lid(0x2B2C)));
        // 0xB4: 1 011 0100
        assert_eq!((path.raw_traffic, path.reserved44), (true, 3));
        assert_eq!((path.flow_label, path.hop_limit), (0x4_2E2F, 0x30));
        assert_eq!(path.traffic_class, 0x31);
        assert_eq!((path.reversible, path.path_count), (true, 0x25));
        assert_eq!(path.pkey, Pkey(0x3334));
        assert_eq!((path.qos_class, path.service_level), (0x353, ServiceLevel::new(6)));
        let selector = Selector::GREATER;
        assert_eq!(path.mtu, Selected { selector, value: 0x37 });
        assert_eq!(path.rate, Selected { selector, value: 0x38 });
        assert_eq!(path.life_time, Selected { selector, value: 0x39 });
        assert_eq!(
            (path.preference, path.reserved58),
            (0x3A, [0x3B, 0x3C, 0x3D, 0x3E, 0x3F, 0x40])
        );
        let mut out = [0; PathRecord::LEN];
        path.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn sixty_three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(PathRecord::parse(&[0; 63]), Err(error));
    }

    #[test]
    fn a_path_reads_as_a_trace() {
        let path = PathRecord { dlid: Lid(4), slid: Lid(3), ..PathRecord::default() };
        assert_eq!(path.to_string(), "path :: > :: lid 0x0003 > 0x0004 sl=0");
    }
}
