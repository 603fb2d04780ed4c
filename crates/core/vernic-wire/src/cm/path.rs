//! Path between two ports, in a REQ (primary and alternate) and a LAP: 44 bytes (IBTA 12.6.5,
//! 12.8.1).
//!
//! ```text
//!  byte   0..1        2..3         4..19       20..35
//!       +-----------+------------+-----------+------------+
//!       | local LID | remote LID | local GID | remote GID |
//!       +-----------+------------+-----------+------------+
//!  byte   36..38               39            40              41
//!       +--------------------+-------------+---------------+-------------+
//!  REQ  | flow label20 resv4 | resv2 rate6 | traffic class | hop limit   |
//!  LAP  | flow label20 resv4 | traf. class | hop limit     | resv2 rate6 |
//!       +--------------------+-------------+---------------+-------------+
//!  byte   42                        43
//!       +-------------------------+---------------------------+
//!       | SL4 subnet local1 resv3 | local ACK timeout5 resv3  |
//!       +-------------------------+---------------------------+
//! ```

use core::fmt;

use crate::{AckTimeout, Gid};

/// A path as the sender of the message sees it: local is the sender's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReqPath {
    /// LID of the sender's port; RoCE has none and says 0xFFFF.
    pub local_lid: u16,
    /// LID of the receiver's port.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// 20 bits for the IPv6 header.
    pub flow_label: u32,
    /// Reserved: 4 bits after the flow label, 2 before the rate.
    pub reserved6: u8,
    /// How fast the receiver may send: a code of 6 bits.
    pub packet_rate: u8,
    /// Traffic class of the IPv6 header, TOS of the IPv4 header.
    pub traffic_class: u8,
    /// Hop limit, time to live.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The ports are on one subnet.
    pub subnet_local: bool,
    /// Reserved, 3 bits.
    pub reserved3: u8,
    /// What the sender's queue pair waits for an acknowledgement.
    pub local_ack_timeout: AckTimeout,
    /// Reserved, 3 bits; of a REQ's alternate path the first is "send alternate path".
    pub reserved_tail: u8,
}

impl ReqPath {
    /// Bytes on the wire.
    pub const LEN: usize = 44;
    /// Where the bytes 39 to 41 of a REQ are in a LAP.
    const LAP_ORDER: [usize; 3] = [41, 39, 40];

    /// Reads the path from its bytes in a REQ.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes([b[36], b[37], b[38], b[39]]);
        Self {
            local_lid: u16::from_be_bytes([b[0], b[1]]),
            remote_lid: u16::from_be_bytes([b[2], b[3]]),
            local_gid: Gid(core::array::from_fn(|i| b[4 + i])),
            remote_gid: Gid(core::array::from_fn(|i| b[20 + i])),
            flow_label: word >> 12,
            reserved6: (word >> 6) as u8 & 0x3F,
            packet_rate: word as u8 & 0x3F,
            traffic_class: b[40],
            hop_limit: b[41],
            sl: b[42] >> 4,
            subnet_local: b[42] & 8 != 0,
            reserved3: b[42] & 7,
            local_ack_timeout: AckTimeout::new(b[43] >> 3),
            reserved_tail: b[43] & 7,
        }
    }
    /// Writes the path at the start of `buf` as in a REQ. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let word = self.flow_label << 12
            | u32::from(self.reserved6 & 0x3F) << 6
            | u32::from(self.packet_rate & 0x3F);
        buf[..2].copy_from_slice(&self.local_lid.to_be_bytes());
        buf[2..4].copy_from_slice(&self.remote_lid.to_be_bytes());
        buf[4..20].copy_from_slice(&self.local_gid.0);
        buf[20..36].copy_from_slice(&self.remote_gid.0);
        buf[36..40].copy_from_slice(&word.to_be_bytes());
        buf[40] = self.traffic_class;
        buf[41] = self.hop_limit;
        buf[42] = self.sl << 4 | u8::from(self.subnet_local) << 3 | self.reserved3 & 7;
        buf[43] = self.local_ack_timeout.exponent() << 3 | self.reserved_tail & 7;
    }
    /// Reads the path from its bytes in a LAP.
    pub(crate) fn from_lap_bytes(b: &[u8; Self::LEN]) -> Self {
        let mut req = *b;
        for (at, from) in (39..).zip(Self::LAP_ORDER) {
            req[at] = b[from];
        }
        Self::from_bytes(&req)
    }
    /// Writes the path at the start of `buf` as in a LAP.
    pub(crate) fn emit_lap(&self, buf: &mut [u8]) {
        let mut req = [0; Self::LEN];
        self.emit(&mut req);
        buf[..Self::LEN].copy_from_slice(&req);
        for (at, to) in (39..).zip(Self::LAP_ORDER) {
            buf[to] = req[at];
        }
    }
    /// Whether the fields say that there is no such path: both GIDs and LIDs are 0.
    pub fn is_none(&self) -> bool {
        self.local_gid.is_zero()
            && self.remote_gid.is_zero()
            && (self.local_lid, self.remote_lid) == (0, 0)
    }
}

impl fmt::Display for ReqPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {} tclass={} hop_limit={} ack_timeout={}",
            self.local_gid,
            self.remote_gid,
            self.traffic_class,
            self.hop_limit,
            self.local_ack_timeout.exponent()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; ReqPath::LEN] = core::array::from_fn(|i| i as u8 * 5 + 1);
        let path = ReqPath::from_bytes(&bytes);
        assert_eq!((path.local_lid, path.remote_lid), (0x0106, 0x0B10));
        assert_eq!((path.local_gid.0[0], path.remote_gid.0[15]), (bytes[4], bytes[35]));
        // 181, 186, 191, 196: 0xB5BABFC4
        assert_eq!((path.flow_label, path.reserved6, path.packet_rate), (0xB_5BAB, 0x3F, 0x04));
        assert_eq!((path.traffic_class, path.hop_limit), (201, 206));
        // 211 = 0xD3, 216 = 0xD8
        assert_eq!((path.sl, path.subnet_local, path.reserved3), (0xD, false, 3));
        assert_eq!((path.local_ack_timeout.exponent(), path.reserved_tail), (27, 0));
        let mut out = [0; ReqPath::LEN];
        path.emit(&mut out);
        assert_eq!(out, bytes);
        assert!(!path.is_none() && ReqPath::default().is_none());
    }

    #[test]
    fn a_lap_has_the_rate_behind_the_hop_limit() {
        let mut bytes = [0; ReqPath::LEN];
        bytes[39..42].copy_from_slice(&[0x11, 0x22, 0x13]);
        let path = ReqPath::from_lap_bytes(&bytes);
        assert_eq!((path.traffic_class, path.hop_limit, path.packet_rate), (0x11, 0x22, 0x13));
        let mut out = [0; ReqPath::LEN];
        path.emit_lap(&mut out);
        assert_eq!(out, bytes);
    }
}
