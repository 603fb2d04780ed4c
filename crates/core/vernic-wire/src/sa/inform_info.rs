//! InformInfo: 36 bytes, a subscription to notices (IBTA 13.4.8.3).
//!
//! ```text
//!  byte   0..15   16..17      18..19    20..21     22           23          24..25
//!       +-------+-----------+---------+----------+------------+-----------+--------+
//!       | GID   | LID begin | LID end | reserved | is generic | subscribe | type   |
//!       +-------+-----------+---------+----------+------------+-----------+--------+
//!  byte   26..27        28..30   31               32         33..35
//!       +-------------+--------+----------------+----------+---------------+
//!       | trap number | QPN    | rsv3 resp time | reserved | producer type |
//!       +-------------+--------+----------------+----------+---------------+
//!                                3    5
//! ```
//! Where the notices are not generic, a device id is in the place of the trap number, and a vendor
//! id in that of the producer type.

use core::fmt;

use super::{be16, be24, part};
use crate::error::head;
use crate::{Gid, Lid, ParseError, Qpn};

/// A subscription to notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InformInfo {
    /// The port that notices are about; 0 where LIDs say which.
    pub gid: Gid,
    /// The first LID that notices are about; all ones: any.
    pub lid_begin: Lid,
    /// The last of them. Without meaning where the first is all ones.
    pub lid_end: Lid,
    /// Reserved, 0 when sent.
    pub reserved20: u16,
    /// 1 for notices that the specification defines, 0 for a vendor's.
    pub is_generic: u8,
    /// 1 to subscribe, 0 to end a subscription.
    pub subscribe: u8,
    /// Kind of notice: 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational; all
    /// ones: any.
    pub notice_type: u16,
    /// Number of the trap, or a device id; all ones: any.
    pub trap_number: u16,
    /// Queue pair that notices go to.
    pub qpn: Qpn,
    /// Reserved, 3 bits, 0 when sent.
    pub reserved31: u8,
    /// How long the subscriber takes to answer at most, 5 bits
    /// ([`timeout_nanos`](crate::cm::timeout_nanos)).
    pub response_time: u8,
    /// Reserved, 0 when sent.
    pub reserved32: u8,
    /// What sends the notices, 24 bits: 1 adapter, 2 switch, 3 router, 4 class manager; or a vendor
    /// id. All ones: any.
    pub producer_type: u32,
}

impl InformInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 36;
    /// Any LID, type or trap number.
    pub const ANY: u16 = 0xFFFF;
    /// Any type of producer.
    pub const ANY_PRODUCER: u32 = 0xFF_FFFF;

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
            gid: Gid(part(b, 0)),
            lid_begin: Lid(be16(b, 16)),
            lid_end: Lid(be16(b, 18)),
            reserved20: be16(b, 20),
            is_generic: b[22],
            subscribe: b[23],
            notice_type: be16(b, 24),
            trap_number: be16(b, 26),
            qpn: Qpn::new(be24(b, 28)),
            reserved31: b[31] >> 5,
            response_time: b[31] & 31,
            reserved32: b[32],
            producer_type: be24(b, 33),
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let times = self.reserved31 << 5 | self.response_time & 31;
        let (qpn, producer) = (self.qpn.value(), self.producer_type & 0xFF_FFFF);
        buf[..16].copy_from_slice(&self.gid.0);
        buf[16..18].copy_from_slice(&self.lid_begin.0.to_be_bytes());
        buf[18..20].copy_from_slice(&self.lid_end.0.to_be_bytes());
        buf[20..22].copy_from_slice(&self.reserved20.to_be_bytes());
        buf[22] = self.is_generic;
        buf[23] = self.subscribe;
        buf[24..26].copy_from_slice(&self.notice_type.to_be_bytes());
        buf[26..28].copy_from_slice(&self.trap_number.to_be_bytes());
        buf[28..32].copy_from_slice(&(qpn << 8 | u32::from(times)).to_be_bytes());
        let last = u32::from(self.reserved32) << 24 | producer;
        buf[32..Self::LEN].copy_from_slice(&last.to_be_bytes());
    }
}

impl fmt::Display for InformInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.subscribe == 0 { "unsubscribe" } else { "subscribe" };
        let (first, last, trap) = (self.lid_begin, self.lid_end, self.trap_number);
        write!(f, "{verb} trap={trap} gid={} lid={first}..={last} qpn={}", self.gid, self.qpn)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; InformInfo::LEN] = core::array::from_fn(|i| i as u8 + 0x21);
        let info = InformInfo::parse(&bytes).unwrap();
        assert_eq!((info.gid.0[0], info.gid.0[15]), (0x21, 0x30));
        assert_eq!((info.lid_begin, info.lid_end), (Lid(0x3132), Lid(0x3334)));
        assert_eq!(info.reserved20, 0x3536);
        assert_eq!((info.is_generic, info.subscribe), (0x37, 0x38));
        assert_eq!((info.notice_type, info.trap_number), (0x393A, 0x3B3C));
        assert_eq!(info.qpn, Qpn::new(0x3D_3E3F));
        // 0x40: 010 00000
        assert_eq!((info.reserved31, info.response_time), (2, 0));
        assert_eq!((info.reserved32, info.producer_type), (0x41, 0x42_4344));
        let mut out = [0; InformInfo::LEN];
        info.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn thirty_five_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 36, have: 35 };
        assert_eq!(InformInfo::parse(&[0; 35]), Err(error));
    }

    #[test]
    fn a_subscription_reads_as_a_trace() {
        let info = InformInfo {
            lid_begin: Lid(InformInfo::ANY),
            subscribe: 1,
            trap_number: 64,
            qpn: Qpn::GSI,
            response_time: 0xFF,
            ..InformInfo::default()
        };
        let text = info.to_string();
        assert!(text.starts_with("subscribe trap=64 gid=:: lid=0xffff..=0x0000 qpn="), "{text}");
        let mut out = [0; InformInfo::LEN];
        info.emit(&mut out);
        assert_eq!(out[28..32], [0, 0, 1, 31]);
    }
}
