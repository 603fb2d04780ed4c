//! Subnet administration (SA) datagrams: what hosts ask of the subnet's data base, and what they
//! register there (IBTA 15.2).
//!
//! Each is a management datagram of class 3, version 2. They go from QP 1 to QP 1. Answers that are
//! tables take several datagrams, by RMPP; the records of a table follow each other at a distance
//! that [`SaHeader`] gives.
//!
//! ```text
//!  byte   0..23        24..35   36..55        56..255
//!       +------------+--------+-----------+-----------------------+
//!       | MAD header | RMPP   | SA header | records, or a part    |
//!       +------------+--------+-----------+-----------------------+
//! ```
//!
//! | record | bytes | of |
//! |---|---|---|
//! | [`PathRecord`] | 64 | how packets get from one port to another |
//! | [`McMemberRecord`] | 52 | a multicast group, and a member of it |
//! | [`ServiceRecord`] | 176 | a service that a port offers |
//! | [`InformInfo`], [`InformInfoRecord`] | 36, 60 | a subscription to notices |
//! | [`NodeRecord`] | 108 | a port of a node |
//! | [`PortInfoRecord`] | 68 | the attributes of a port |

mod header;
mod inform_info;
mod inform_info_record;
mod mc_member_record;
mod node_record;
mod path_record;
mod port_info_record;
mod selector;
mod service_record;

use core::fmt;

use crate::error::head;
use crate::mad::{MAD_LEN, MadHeader};
use crate::{ParseError, Rmpp};

pub use header::SaHeader;
pub use inform_info::InformInfo;
pub use inform_info_record::{InformComponents, InformInfoRecord};
pub use mc_member_record::{JoinState, McMemberRecord, MemberComponents};
pub use node_record::{NodeComponents, NodeRecord};
pub use path_record::{PathComponents, PathRecord};
pub use port_info_record::{PortInfoComponents, PortInfoRecord};
pub use selector::{Selected, Selector};
pub use service_record::{ServiceComponents, ServiceRecord};

/// Version of the class that these formats are of.
pub const CLASS_VERSION: u8 = 2;
/// Bytes of records in one datagram.
pub const DATA_LEN: usize = Rmpp::SEGMENT_LEN - SaHeader::LEN;
/// Where the RMPP header begins, in bytes from the datagram's first.
const RMPP_AT: usize = MadHeader::LEN;
/// Where the SA header begins.
const HEADER_AT: usize = RMPP_AT + Rmpp::LEN;
/// Where the records begin.
const DATA_AT: usize = HEADER_AT + SaHeader::LEN;

/// Which record a datagram is about: the attribute id of its header (IBTA 15.2.5). Any value is
/// data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SaAttribute(pub u16);

impl SaAttribute {
    /// What the subnet administrator can do.
    pub const CLASS_PORT_INFO: Self = Self(0x01);
    /// A notice that is forwarded.
    pub const NOTICE: Self = Self(0x02);
    /// A subscription to notices.
    pub const INFORM_INFO: Self = Self(0x03);
    /// A port of a node.
    pub const NODE_RECORD: Self = Self(0x11);
    /// The attributes of a port.
    pub const PORT_INFO_RECORD: Self = Self(0x12);
    /// Which lanes packets take.
    pub const SL_TO_VL_RECORD: Self = Self(0x13);
    /// The attributes of a switch.
    pub const SWITCH_INFO_RECORD: Self = Self(0x14);
    /// Where a switch sends packets to one receiver.
    pub const LINEAR_FORWARDING_RECORD: Self = Self(0x15);
    /// Where a switch sends packets to a group.
    pub const MULTICAST_FORWARDING_RECORD: Self = Self(0x17);
    /// A subnet manager.
    pub const SM_INFO_RECORD: Self = Self(0x18);
    /// A cable.
    pub const LINK_RECORD: Self = Self(0x20);
    /// The GUIDs of a port.
    pub const GUID_INFO_RECORD: Self = Self(0x30);
    /// A service that a port offers.
    pub const SERVICE_RECORD: Self = Self(0x31);
    /// The partitions of a port.
    pub const P_KEY_TABLE_RECORD: Self = Self(0x33);
    /// How packets get from one port to another.
    pub const PATH_RECORD: Self = Self(0x35);
    /// How a port shares its link among lanes.
    pub const VL_ARBITRATION_RECORD: Self = Self(0x36);
    /// A multicast group, and a member of it.
    pub const MC_MEMBER_RECORD: Self = Self(0x38);
    /// Paths from and to any of several ports.
    pub const MULTI_PATH_RECORD: Self = Self(0x3A);
    /// A subscription to notices that the data base holds.
    pub const INFORM_INFO_RECORD: Self = Self(0xF3);
}

/// What became of a request, by the class's own part of the MAD status: its upper byte (IBTA
/// 15.2.3). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SaStatus(pub u8);

impl SaStatus {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// The administrator has no room for it.
    pub const NO_RESOURCES: Self = Self(1);
    /// The request makes no sense.
    pub const REQUEST_INVALID: Self = Self(2);
    /// There is no such record.
    pub const NO_RECORDS: Self = Self(3);
    /// There are several where one was asked for.
    pub const TOO_MANY_RECORDS: Self = Self(4);
    /// A GID that is not the requester's, or none.
    pub const INVALID_GID: Self = Self(5);
    /// The component mask lacks components that are needed.
    pub const INSUFFICIENT_COMPONENTS: Self = Self(6);
    /// The requester may not do that.
    pub const DENIED: Self = Self(7);
    /// Another service level is suggested.
    pub const PRIORITY_SUGGESTED: Self = Self(8);

    /// Returns the class's own part of the status of a [`MadHeader`].
    pub const fn of(status: u16) -> Self {
        Self((status >> 8) as u8)
    }
    /// Returns the status for a [`MadHeader`], without any bit of the part that all classes share.
    pub const fn to_mad_status(self) -> u16 {
        (self.0 as u16) << 8
    }
    /// Name, or `None` if nobody defined the value.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::SUCCESS => Some("SUCCESS"),
            Self::NO_RESOURCES => Some("NO_RESOURCES"),
            Self::REQUEST_INVALID => Some("REQUEST_INVALID"),
            Self::NO_RECORDS => Some("NO_RECORDS"),
            Self::TOO_MANY_RECORDS => Some("TOO_MANY_RECORDS"),
            Self::INVALID_GID => Some("INVALID_GID"),
            Self::INSUFFICIENT_COMPONENTS => Some("INSUFFICIENT_COMPONENTS"),
            Self::DENIED => Some("DENIED"),
            Self::PRIORITY_SUGGESTED => Some("PRIORITY_SUGGESTED"),
            _ => None,
        }
    }
}

impl fmt::Display for SaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "SA status {}", self.0),
        }
    }
}

/// A whole datagram of subnet administration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaMad {
    /// The header that all management datagrams share.
    pub mad: MadHeader,
    /// The header of reliable transfers, not in use in most requests.
    pub rmpp: Rmpp,
    /// The header of the class.
    pub sa: SaHeader,
    /// A record, or a part of a table. What is behind the record is 0 when sent.
    pub data: [u8; DATA_LEN],
}

impl SaMad {
    /// Bytes on the wire.
    pub const LEN: usize = MAD_LEN;

    /// Reads the datagram at the start of `bytes`. Class and version are the caller's to look at.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mad: &[u8; Self::LEN] = head(bytes)?;
        Ok(Self {
            mad: MadHeader::parse(mad)?,
            rmpp: Rmpp::parse(&mad[RMPP_AT..])?,
            sa: SaHeader::parse(&mad[HEADER_AT..])?,
            data: *head(&mad[DATA_AT..])?,
        })
    }
    /// Writes the datagram at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        self.mad.emit(buf);
        self.rmpp.emit(&mut buf[RMPP_AT..]);
        self.sa.emit(&mut buf[HEADER_AT..]);
        buf[DATA_AT..Self::LEN].copy_from_slice(&self.data);
    }
}

impl fmt::Display for SaMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.mad, self.rmpp, self.sa)
    }
}

fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
fn be24<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}
fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn be64<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}
/// The `M` bytes from `at` on.
fn part<const N: usize, const M: usize>(b: &[u8; N], at: usize) -> [u8; M] {
    core::array::from_fn(|i| b[at + i])
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;
    use crate::mad::{Method, MgmtClass};

    #[test]
    fn the_parts_of_a_datagram_are_where_the_picture_says() {
        let bytes: [u8; MAD_LEN] = core::array::from_fn(|i| i as u8);
        let datagram = SaMad::parse(&bytes).unwrap();
        assert_eq!(datagram.mad, MadHeader::parse(&bytes).unwrap());
        assert_eq!(datagram.rmpp, Rmpp::parse(&bytes[24..]).unwrap());
        assert_eq!(datagram.sa, SaHeader::parse(&bytes[36..]).unwrap());
        assert_eq!(datagram.data[..], bytes[56..]);
        let mut out = [0; MAD_LEN];
        datagram.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_than_a_datagram_is_truncated() {
        let error = ParseError::Truncated { need: 256, have: 255 };
        assert_eq!(SaMad::parse(&[0; 255]), Err(error));
    }

    #[test]
    fn the_status_is_the_upper_byte() {
        assert_eq!(SaStatus::of(0x0300), SaStatus::NO_RECORDS);
        assert_eq!(SaStatus::of(0x061C), SaStatus::INSUFFICIENT_COMPONENTS);
        assert_eq!(SaStatus::DENIED.to_mad_status(), 0x0700);
        assert_eq!(SaStatus::NO_RESOURCES.to_string(), "NO_RESOURCES");
        assert_eq!(SaStatus(9).to_string(), "SA status 9");
    }

    #[test]
    fn a_request_reads_as_a_trace() {
        let mad = MadHeader {
            mgmt_class: MgmtClass::SUBNET_ADMIN,
            method: Method::GET_TABLE,
            attribute_id: SaAttribute::PATH_RECORD.0,
            transaction_id: 7,
            ..MadHeader::default()
        };
        let component_mask = PathComponents::DGID.bits();
        let sa = SaHeader { component_mask, ..SaHeader::default() };
        let datagram = SaMad { mad, rmpp: Rmpp::default(), sa, data: [0; DATA_LEN] };
        let text = "SUBNET_ADMIN method=0x12 attribute=0x0035 tid=0x7 status=0x0 no RMPP mask=0x4";
        assert_eq!(datagram.to_string(), text);
    }
}
