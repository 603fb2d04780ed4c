//! Subnet management packets (SMP) and the attributes that they read and write (IBTA 14.2).
//!
//! Owns the formats between a subnet manager and the agents of nodes. An SMP is a management
//! datagram from QP 0 to QP 0: by LID ([`MgmtClass::SUBNET_LID_ROUTED`]) or along a list of ports
//! ([`MgmtClass::SUBNET_DIRECTED_ROUTE`]). What an agent answers is not here.
//!
//! | attribute | what |
//! |---|---|
//! | [`Notice`] | something happened: traps |
//! | [`NodeDescription`], [`NodeInfo`] | name and kind of a node |
//! | [`SwitchInfo`] | sizes of a switch's tables |
//! | [`GuidInfo`] | GUIDs of a port |
//! | [`PortInfo`] | a port and its link |
//! | [`PkeyTable`] | partition keys |
//! | [`SlToVlTable`], [`VlArbitrationTable`] | lanes |
//! | [`LinearForwardingTable`], [`MulticastForwardingTable`] | ports that packets leave by |
//! | [`SmInfo`] | a subnet manager |
//!
//! [`MgmtClass::SUBNET_LID_ROUTED`]: crate::mad::MgmtClass::SUBNET_LID_ROUTED
//! [`MgmtClass::SUBNET_DIRECTED_ROUTE`]: crate::mad::MgmtClass::SUBNET_DIRECTED_ROUTE

mod datagram;
mod guid_info;
mod linear_forwarding;
mod multicast_forwarding;
mod node_description;
mod node_info;
mod notice;
mod pkey_table;
mod port_info;
mod sl_to_vl;
mod sm_info;
mod switch_info;
mod violation;
mod vl_arbitration;

use core::fmt;

pub use datagram::Smp;
pub use guid_info::GuidInfo;
pub use linear_forwarding::LinearForwardingTable;
pub use multicast_forwarding::MulticastForwardingTable;
pub use node_description::NodeDescription;
pub use node_info::NodeInfo;
pub use notice::{Change, LinkState, Notice, NoticeKind, TrapNumber};
pub use pkey_table::PkeyTable;
pub use port_info::PortInfo;
pub use sl_to_vl::SlToVlTable;
pub use sm_info::SmInfo;
pub use switch_info::SwitchInfo;
pub use violation::{BadKey, BadManagementKey, BadPkeyAtSwitch};
pub use vl_arbitration::VlArbitrationTable;

/// Version of the class that these formats are of.
pub const CLASS_VERSION: u8 = 1;
/// Bytes of an attribute in an SMP; shorter attributes are followed by zeros.
pub const DATA_LEN: usize = 64;

/// Attribute of subnet management (IBTA 14.2.5, table 139). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SmAttribute(pub u16);

impl SmAttribute {
    /// [`Notice`].
    pub const NOTICE: Self = Self(0x02);
    /// [`NodeDescription`].
    pub const NODE_DESCRIPTION: Self = Self(0x10);
    /// [`NodeInfo`].
    pub const NODE_INFO: Self = Self(0x11);
    /// [`SwitchInfo`].
    pub const SWITCH_INFO: Self = Self(0x12);
    /// [`GuidInfo`].
    pub const GUID_INFO: Self = Self(0x14);
    /// [`PortInfo`].
    pub const PORT_INFO: Self = Self(0x15);
    /// [`PkeyTable`].
    pub const PKEY_TABLE: Self = Self(0x16);
    /// [`SlToVlTable`].
    pub const SL_TO_VL: Self = Self(0x17);
    /// [`VlArbitrationTable`].
    pub const VL_ARBITRATION: Self = Self(0x18);
    /// [`LinearForwardingTable`].
    pub const LINEAR_FORWARDING: Self = Self(0x19);
    /// [`MulticastForwardingTable`].
    pub const MULTICAST_FORWARDING: Self = Self(0x1B);
    /// [`SmInfo`].
    pub const SM_INFO: Self = Self(0x20);

    /// Name, or `None` if no format here has the value.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::NOTICE => Some("Notice"),
            Self::NODE_DESCRIPTION => Some("NodeDescription"),
            Self::NODE_INFO => Some("NodeInfo"),
            Self::SWITCH_INFO => Some("SwitchInfo"),
            Self::GUID_INFO => Some("GUIDInfo"),
            Self::PORT_INFO => Some("PortInfo"),
            Self::PKEY_TABLE => Some("P_KeyTable"),
            Self::SL_TO_VL => Some("SLtoVLMappingTable"),
            Self::VL_ARBITRATION => Some("VLArbitrationTable"),
            Self::LINEAR_FORWARDING => Some("LinearForwardingTable"),
            Self::MULTICAST_FORWARDING => Some("MulticastForwardingTable"),
            Self::SM_INFO => Some("SMInfo"),
            _ => None,
        }
    }
}

impl fmt::Display for SmAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "attribute {:#06x}", self.0),
        }
    }
}

/// Status of an answer (IBTA 13.4.7, table 114). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MadStatus(pub u16);

impl MadStatus {
    /// Done.
    pub const OK: Self = Self(0);
    /// The agent is busy; ask again.
    pub const BUSY: Self = Self(1);
    /// The base version or the version of the class is not supported.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// The method is not supported.
    pub const METHOD_NOT_SUPPORTED: Self = Self(2 << 2);
    /// The attribute is not supported, or not with this method.
    pub const ATTRIBUTE_NOT_SUPPORTED: Self = Self(3 << 2);
    /// A field of the attribute or of the modifier is out of range.
    pub const INVALID_FIELD: Self = Self(7 << 2);
}

impl fmt::Display for MadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OK => f.pad("OK"),
            Self::BUSY => f.pad("BUSY"),
            Self::BAD_VERSION => f.pad("BAD_VERSION"),
            Self::METHOD_NOT_SUPPORTED => f.pad("METHOD_NOT_SUPPORTED"),
            Self::ATTRIBUTE_NOT_SUPPORTED => f.pad("ATTRIBUTE_NOT_SUPPORTED"),
            Self::INVALID_FIELD => f.pad("INVALID_FIELD"),
            Self(other) => write!(f, "status {other:#06x}"),
        }
    }
}

pub(crate) const fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
pub(crate) const fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
pub(crate) const fn be64(b: &[u8], at: usize) -> u64 {
    (be32(b, at) as u64) << 32 | be32(b, at + 4) as u64
}
/// The `N` bytes from `at` on, which the caller knows to be there.
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|i| b[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_and_statuses_have_names_and_others_are_numbers() {
        extern crate std;
        use std::string::ToString;
        assert_eq!(SmAttribute::PORT_INFO.to_string(), "PortInfo");
        assert_eq!(SmAttribute(0x77).to_string(), "attribute 0x0077");
        assert_eq!(MadStatus::INVALID_FIELD.to_string(), "INVALID_FIELD");
        assert_eq!(MadStatus(0x1C), MadStatus::INVALID_FIELD);
        assert_eq!(MadStatus(0x0204).to_string(), "status 0x0204");
    }
}
