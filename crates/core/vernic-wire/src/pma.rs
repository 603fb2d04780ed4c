//! Attributes of performance management, class 4 (IBTA chapter 16).
//!
//! Owns the formats between a performance manager and the agents of nodes: management datagrams
//! between QPs 1 whose attribute begins at byte [`DATA_AT`]. What an agent counts is not here.
//!
//! | attribute | what |
//! |---|---|
//! | [`ClassPortInfo`] | what the agent can do |
//! | [`PortCounters`] | counters that stop at their largest value |
//! | [`PortCountersExtended`] | counters of 64 bits |

mod class_port_info;
mod port_counters;
mod port_counters_extended;

use core::fmt;

pub use class_port_info::ClassPortInfo;
pub use port_counters::PortCounters;
pub use port_counters_extended::PortCountersExtended;

/// Version of the class that these formats are of.
pub const CLASS_VERSION: u8 = 1;
/// Byte of a datagram that the attribute begins at.
pub const DATA_AT: usize = 64;
/// Bytes of an attribute in a datagram; shorter attributes are followed by zeros.
pub const DATA_LEN: usize = 192;

/// Attribute of performance management (IBTA 16.1.2, table 217). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PmAttribute(pub u16);

impl PmAttribute {
    /// [`ClassPortInfo`].
    pub const CLASS_PORT_INFO: Self = Self(0x01);
    /// [`PortCounters`].
    pub const PORT_COUNTERS: Self = Self(0x12);
    /// [`PortCountersExtended`].
    pub const PORT_COUNTERS_EXTENDED: Self = Self(0x1D);
}

impl fmt::Display for PmAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CLASS_PORT_INFO => f.pad("ClassPortInfo"),
            Self::PORT_COUNTERS => f.pad("PortCounters"),
            Self::PORT_COUNTERS_EXTENDED => f.pad("PortCountersExtended"),
            Self(other) => write!(f, "attribute {other:#06x}"),
        }
    }
}
