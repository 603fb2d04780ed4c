//! Neighbor Solicitation and Advertisement: address resolution of IPv6 (RFC 4861, sections 4.3 and
//! 4.4) with the link-layer address option of IPoIB (RFC 4391, section 9.3). Of a datagram the part
//! behind the IPv6 header.
//!
//! ```text
//!  byte   0      1      2..3       4..7               8..23
//!       +------+------+----------+------------------+----------------+
//!       | type | code | checksum | flags3 reserved  | target address |
//!       +------+------+----------+------------------+----------------+
//!  byte   24            25           26..27   28..47
//!       +-------------+------------+--------+------------------+
//!       | option type | length (3) | zero   | HardwareAddress  |
//!       +-------------+------------+--------+------------------+
//! ```
//! The option is absent where no address is told. Options of other types are passed over.

use core::fmt;
use core::net::Ipv6Addr;

use super::HardwareAddress;
use crate::ParseError;
use crate::error::head;
use crate::net::{PROTOCOL_ICMPV6, transport_checksum};

/// Which of the two a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NeighborKind {
    /// Asks for a hardware address; the option has the sender's.
    Solicitation,
    /// Tells one; the option has the target's.
    Advertisement,
}

impl NeighborKind {
    const fn message_type(self) -> u8 {
        match self {
            Self::Solicitation => 135,
            Self::Advertisement => 136,
        }
    }
    const fn option_type(self) -> u8 {
        match self {
            Self::Solicitation => 1,
            Self::Advertisement => 2,
        }
    }
}

bitflags::bitflags! {
    /// Flags of an advertisement; a solicitation has none. Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct NeighborFlags: u32 {
        /// The sender is a router.
        const ROUTER = 1 << 31;
        /// The message answers a solicitation.
        const SOLICITED = 1 << 30;
        /// The address replaces what is known.
        const OVERRIDE = 1 << 29;
        const _ = !0;
    }
}

/// Neighbor Solicitation or Advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborMessage {
    /// Which of the two.
    pub kind: NeighborKind,
    /// Flags.
    pub flags: NeighborFlags,
    /// The IPv6 address that it is about.
    pub target: Ipv6Addr,
    /// The hardware address that the option tells.
    pub address: Option<HardwareAddress>,
}

impl NeighborMessage {
    /// Bytes without an option.
    pub const LEN: usize = 24;
    /// Bytes with the option.
    pub const LEN_WITH_OPTION: usize = Self::LEN + Self::OPTION_LEN;
    /// Hop limit that all these messages have: they come from the link (RFC 4861, section 7.1).
    pub const HOP_LIMIT: u8 = 255;
    const OPTION_LEN: usize = 24;
    /// Bytes of a unit of an option's length.
    const OPTION_UNIT: usize = 8;

    /// Bytes on the wire.
    pub const fn len(&self) -> usize {
        if self.address.is_some() { Self::LEN_WITH_OPTION } else { Self::LEN }
    }
    /// Never: a message is not empty.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Whether a message of ICMPv6 is one of these, by its first byte.
    pub fn is_one(message: &[u8]) -> bool {
        message.first().is_some_and(|first| Self::kind_of(*first).is_some())
    }
    fn kind_of(message_type: u8) -> Option<NeighborKind> {
        let kinds = [NeighborKind::Solicitation, NeighborKind::Advertisement];
        kinds.into_iter().find(|kind| kind.message_type() == message_type)
    }

    /// Reads the message that `bytes` are, and checks its checksum over the two addresses of its
    /// datagram.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] if type, code, checksum or an option's
    /// length is wrong.
    pub fn parse(bytes: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head(bytes)?;
        let Some(kind) = Self::kind_of(b[0]) else {
            return Err(ParseError::Field { field: "ICMPv6 type", value: b[0].into() });
        };
        if b[1] != 0 {
            return Err(ParseError::Field { field: "ICMPv6 code", value: b[1].into() });
        }
        // Over a right checksum the sum is all ones, of which the complement is 0.
        if transport_checksum(src, dst, PROTOCOL_ICMPV6, bytes) != 0 {
            let value = u16::from_be_bytes([b[2], b[3]]);
            return Err(ParseError::Field { field: "ICMPv6 checksum", value });
        }
        Ok(Self {
            kind,
            flags: NeighborFlags::from_bits_retain(u32::from_be_bytes([b[4], b[5], b[6], b[7]])),
            target: Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| b[8 + i])),
            address: Self::find_option(&bytes[Self::LEN..], kind.option_type())?,
        })
    }

    /// The address in the first option of that type.
    fn find_option(mut options: &[u8], wanted: u8) -> Result<Option<HardwareAddress>, ParseError> {
        while let [found, units, ..] = *options {
            let len = usize::from(units) * Self::OPTION_UNIT;
            let Some((option, rest)) = options.split_at_checked(len).filter(|_| len > 0) else {
                return Err(ParseError::Field { field: "ND option length", value: units.into() });
            };
            if found == wanted && len == Self::OPTION_LEN {
                return HardwareAddress::parse(&option[4..]).map(Some);
            }
            options = rest;
        }
        Ok(None)
    }

    /// Writes the message, with its checksum over the two addresses of its datagram, at the start
    /// of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::len`].
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, buf: &mut [u8]) {
        let buf = &mut buf[..self.len()];
        buf.fill(0);
        buf[0] = self.kind.message_type();
        buf[4..8].copy_from_slice(&self.flags.bits().to_be_bytes());
        buf[8..Self::LEN].copy_from_slice(&self.target.octets());
        if let Some(address) = self.address {
            buf[Self::LEN] = self.kind.option_type();
            buf[Self::LEN + 1] = (Self::OPTION_LEN / Self::OPTION_UNIT) as u8;
            address.emit(&mut buf[Self::LEN + 4..]);
        }
        let checksum = transport_checksum(src, dst, PROTOCOL_ICMPV6, buf);
        buf[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
}

impl fmt::Display for NeighborMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            NeighborKind::Solicitation => write!(f, "nd who has {}", self.target)?,
            NeighborKind::Advertisement => write!(f, "nd {} is here", self.target)?,
        }
        match self.address {
            Some(address) => write!(f, " {address}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;
    use std::vec;

    use super::*;
    use crate::{Gid, Qpn};

    const SRC: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 2);

    fn message() -> NeighborMessage {
        NeighborMessage {
            kind: NeighborKind::Advertisement,
            flags: NeighborFlags::SOLICITED | NeighborFlags::OVERRIDE,
            target: SRC,
            address: Some(HardwareAddress::new(Qpn::new(0x12_3456), Gid([7; 16]))),
        }
    }
    fn emitted(message: &NeighborMessage) -> vec::Vec<u8> {
        let mut bytes = vec![0; message.len()];
        message.emit(SRC, DST, &mut bytes);
        bytes
    }
    /// The bytes with `change` made and the checksum made right again.
    fn changed(change: impl FnOnce(&mut vec::Vec<u8>)) -> vec::Vec<u8> {
        let mut bytes = emitted(&message());
        change(&mut bytes);
        bytes[2..4].fill(0);
        let checksum = transport_checksum(SRC, DST, PROTOCOL_ICMPV6, &bytes);
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = emitted(&message());
        assert_eq!(bytes.len(), NeighborMessage::LEN_WITH_OPTION);
        assert_eq!((bytes[0], bytes[1], &bytes[4..8]), (136, 0, &[0x60, 0, 0, 0][..]));
        assert_eq!(bytes[8..24], SRC.octets());
        assert_eq!(bytes[24..32], [2, 3, 0, 0, 0, 0x12, 0x34, 0x56]);
        assert_eq!(bytes[32..], [7; 16]);
        assert_eq!(NeighborMessage::parse(&bytes, SRC, DST), Ok(message()));
        let text = message().to_string();
        assert!(text.starts_with("nd fe80::1 is here qpn=0x123456"), "{text}");
    }

    #[test]
    fn a_message_without_its_option_is_one() {
        let kind = NeighborKind::Solicitation;
        let bare = NeighborMessage { kind, address: None, ..message() };
        let bytes = emitted(&bare);
        assert_eq!((bytes.len(), bytes[0]), (NeighborMessage::LEN, 135));
        assert_eq!(NeighborMessage::parse(&bytes, SRC, DST), Ok(bare));
        assert_eq!(bare.to_string(), "nd who has fe80::1");
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let mut bytes = emitted(&message());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(NeighborMessage::parse(&bytes, SRC, DST).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(NeighborMessage::parse(&bytes, SRC, SRC).is_err());
    }

    #[test]
    fn options_of_other_types_and_lengths_are_passed_over() {
        let before = changed(|bytes| {
            bytes.splice(24..24, [14, 1, 1, 2, 3, 4, 5, 6]);
        });
        assert_eq!(NeighborMessage::parse(&before, SRC, DST), Ok(message()));
        let shorter = changed(|bytes| {
            bytes[25] = 1;
            bytes.truncate(32);
        });
        let address = NeighborMessage::parse(&shorter, SRC, DST).map(|message| message.address);
        assert_eq!(address, Ok(None));
    }

    #[test]
    fn lengths_that_lead_nowhere_are_named() {
        let field = "ND option length";
        for value in [0, 4] {
            let bytes = changed(|bytes| bytes[25] = value as u8);
            let error = ParseError::Field { field, value };
            assert_eq!(NeighborMessage::parse(&bytes, SRC, DST), Err(error));
        }
        let error = ParseError::Truncated { need: 24, have: 23 };
        assert_eq!(NeighborMessage::parse(&[0; 23], SRC, DST), Err(error));
    }

    #[test]
    fn only_two_types_are_these() {
        assert!(NeighborMessage::is_one(&[135]) && NeighborMessage::is_one(&[136]));
        assert!(!NeighborMessage::is_one(&[134]) && !NeighborMessage::is_one(&[]));
    }
}
