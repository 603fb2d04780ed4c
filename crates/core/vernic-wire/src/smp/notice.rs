//! Notice: something happened at a node (IBTA 13.4.8.2, 14.2.5.1): 64 bytes.
//!
//! ```text
//!  byte   0         1..3       4..5     6..7         8..9          10..63
//!       +---------+----------+--------+------------+-------------+---------+
//!       | G type7 | producer | number | issuer LID | T1 count15  | details |
//!       +---------+----------+--------+------------+-------------+---------+
//! ```
//! G says that the notice is one of the standard; else producer and number are the vendor's. What
//! the details are, the number says: [`LinkState`], [`Change`], [`BadManagementKey`], [`BadKey`],
//! [`BadPkeyAtSwitch`].
//!
//! [`BadManagementKey`]: super::BadManagementKey
//! [`BadKey`]: super::BadKey
//! [`BadPkeyAtSwitch`]: super::BadPkeyAtSwitch

use core::fmt;

use super::{array, be16, be32};
use crate::error::head;
use crate::{Lid, ParseError};

/// Kind of a notice, 7 bits. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NoticeKind(pub u8);

impl NoticeKind {
    /// Urgent.
    pub const URGENT: Self = Self(1);
    /// Security.
    pub const SECURITY: Self = Self(2);
    /// Subnet management.
    pub const SUBNET_MANAGEMENT: Self = Self(3);
    /// Informational.
    pub const INFORMATIONAL: Self = Self(4);
}

/// Number of a notice of the standard (IBTA 14.2.5.1, table 141). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TrapNumber(pub u16);

impl TrapNumber {
    /// A port of a switch changed its state: [`LinkState`].
    pub const LINK_STATE: Self = Self(128);
    /// Capabilities or the description of a node changed: [`Change`].
    pub const CHANGE: Self = Self(144);
    /// Wrong key of subnet management: [`BadManagementKey`](super::BadManagementKey).
    pub const BAD_M_KEY: Self = Self(256);
    /// Wrong partition key at an adapter: [`BadKey`](super::BadKey).
    pub const BAD_P_KEY: Self = Self(257);
    /// Wrong queue key at an adapter: [`BadKey`](super::BadKey).
    pub const BAD_Q_KEY: Self = Self(258);
    /// Wrong partition key at a switch: [`BadPkeyAtSwitch`](super::BadPkeyAtSwitch).
    pub const BAD_P_KEY_AT_SWITCH: Self = Self(259);
}

/// Something happened at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The notice is one of the standard.
    pub generic: bool,
    /// Kind of the notice.
    pub kind: NoticeKind,
    /// Kind of the node, or the IEEE id of the vendor; 24 bits.
    pub producer: u32,
    /// Number of the notice.
    pub number: TrapNumber,
    /// LID of the node.
    pub issuer: Lid,
    /// Alternates with each notice that waits to be read.
    pub toggle: bool,
    /// Notices that wait to be read, 15 bits.
    pub count: u16,
    /// Details.
    pub details: [u8; Notice::DETAILS_LEN],
}

impl Notice {
    /// Bytes on the wire.
    pub const LEN: usize = 64;
    /// Bytes of the details.
    pub const DETAILS_LEN: usize = 54;

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
            generic: b[0] & 0x80 != 0,
            kind: NoticeKind(b[0] & 0x7F),
            producer: be32(b, 0) & 0xFF_FFFF,
            number: TrapNumber(be16(b, 4)),
            issuer: Lid(be16(b, 6)),
            toggle: b[8] & 0x80 != 0,
            count: be16(b, 8) & 0x7FFF,
            details: array(b, 10),
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let first = u8::from(self.generic) << 7 | self.kind.0 & 0x7F;
        let word = u32::from(first) << 24 | self.producer & 0xFF_FFFF;
        buf[..4].copy_from_slice(&word.to_be_bytes());
        buf[4..6].copy_from_slice(&self.number.0.to_be_bytes());
        buf[6..8].copy_from_slice(&self.issuer.0.to_be_bytes());
        let count = u16::from(self.toggle) << 15 | self.count & 0x7FFF;
        buf[8..10].copy_from_slice(&count.to_be_bytes());
        buf[10..Self::LEN].copy_from_slice(&self.details);
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = if self.generic { "trap" } else { "vendor's notice" };
        write!(f, "{owner} {} from lid {}", self.number.0, self.issuer)
    }
}

/// Details of trap 128: a port of a switch changed its state.
///
/// ```text
///  byte   0..1   2..53
///       +------+----------+
///       | LID  | reserved |
///       +------+----------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkState {
    /// LID of the switch.
    pub lid: Lid,
}

impl LinkState {
    /// Reads the details.
    pub fn from_details(b: &[u8; Notice::DETAILS_LEN]) -> Self {
        Self { lid: Lid(be16(b, 0)) }
    }
    /// Details as they are sent.
    pub fn details(&self) -> [u8; Notice::DETAILS_LEN] {
        let mut b = [0; Notice::DETAILS_LEN];
        b[..2].copy_from_slice(&self.lid.0.to_be_bytes());
        b
    }
}

/// Details of trap 144: capabilities or other settings of a node changed.
///
/// ```text
///  byte   0..1       2..3   4          5           6..9           10..11   12..13          14..53
///       +----------+------+----------+-----------+--------------+--------+---------------+------+
///       | reserved | LID  | reserved | resv7 O   | capabilities | flags  | capabilities2 | resv |
///       +----------+------+----------+-----------+--------------+--------+---------------+------+
/// ```
/// O says that the flags count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// LID of the node.
    pub lid: Lid,
    /// Capabilities of the port (PortInfo.CapabilityMask).
    pub capabilities: u32,
    /// Other settings that changed: bits of `DESCRIPTION`, `WIDTH` and `SPEED`, or 0.
    pub flags: u16,
    /// Further capabilities of the port.
    pub capabilities2: u16,
}

impl Change {
    /// Flag: the description of the node changed.
    pub const DESCRIPTION: u16 = 1;
    /// Flag: the widths that a link may have changed.
    pub const WIDTH: u16 = 2;
    /// Flag: the speeds that a link may have changed.
    pub const SPEED: u16 = 4;
    /// The priority of the subnet manager at the port is another one.
    pub const PRIORITY: u16 = 8;

    /// Reads the details.
    pub fn from_details(b: &[u8; Notice::DETAILS_LEN]) -> Self {
        Self {
            lid: Lid(be16(b, 2)),
            capabilities: be32(b, 6),
            flags: if b[5] & 1 != 0 { be16(b, 10) } else { 0 },
            capabilities2: be16(b, 12),
        }
    }
    /// Details as they are sent.
    pub fn details(&self) -> [u8; Notice::DETAILS_LEN] {
        let mut b = [0; Notice::DETAILS_LEN];
        b[2..4].copy_from_slice(&self.lid.0.to_be_bytes());
        b[5] = u8::from(self.flags != 0);
        b[6..10].copy_from_slice(&self.capabilities.to_be_bytes());
        b[10..12].copy_from_slice(&self.flags.to_be_bytes());
        b[12..14].copy_from_slice(&self.capabilities2.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; Notice::LEN] = core::array::from_fn(|i| i as u8 + 1);
        bytes[0] = 0x82;
        let notice = Notice::parse(&bytes).unwrap();
        assert_eq!((notice.generic, notice.kind), (true, NoticeKind::SECURITY));
        assert_eq!((notice.producer, notice.number), (0x02_0304, TrapNumber(0x0506)));
        assert_eq!((notice.issuer, notice.toggle), (Lid(0x0708), false));
        assert_eq!(notice.count, 0x090A);
        assert_eq!(notice.details[..], bytes[10..]);
        let mut out = [0; Notice::LEN];
        notice.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn details_of_changes_are_where_the_pictures_say() {
        let link = LinkState { lid: Lid(0x0102) };
        assert_eq!(link.details()[..3], [1, 2, 0]);
        assert_eq!(LinkState::from_details(&link.details()), link);
        let change = Change {
            lid: Lid(0x0102),
            capabilities: 0x0304_0506,
            flags: Change::DESCRIPTION,
            capabilities2: 0x0708,
        };
        let details = change.details();
        assert_eq!(details[..14], [0, 0, 1, 2, 0, 1, 3, 4, 5, 6, 0, 1, 7, 8]);
        assert_eq!(Change::from_details(&details), change);
    }

    #[test]
    fn flags_of_a_change_count_only_if_the_notice_says_so() {
        let mut details = [0; Notice::DETAILS_LEN];
        details[11] = 1;
        assert_eq!(Change::from_details(&details).flags, 0);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(Notice::parse(&[0; 63]), Err(error));
    }
}
