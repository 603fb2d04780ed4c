//! What the owner of a subnet decides about it.

use vernic_wire::Mtu;

use crate::link::LinkConfig;

/// Sizes and times of a subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubnetConfig {
    /// Sizes and times of every port.
    pub link: LinkConfig,
    /// Nanoseconds from one end of a cable to the other.
    pub delay_ns: u64,
    /// Data lanes of every port: 1, 2, 4, 8 or 15.
    pub data_lanes: u8,
    /// The longest packets that ports take.
    pub mtu: Mtu,
    /// What bit errors follow from.
    pub seed: u64,
}

impl SubnetConfig {
    /// A subnet whose links are as slow as those of hardware: what virtual time is for.
    pub const MODELLED: Self = Self {
        link: LinkConfig {
            // Nothing is lost on a cable without bit errors, so credits need no repeating.
            idle_update_ns: 60_000_000_000,
            ..LinkConfig::DEFAULT
        },
        // 20 m.
        delay_ns: 100,
        data_lanes: 8,
        mtu: Mtu::B4096,
        seed: 0,
    };
    /// A subnet whose links take no time unless they have a rate of their own: for programs, which
    /// a busy processor holds up more than a link would.
    pub const UNPACED: Self = Self {
        link: LinkConfig { paced: false, ..Self::MODELLED.link },
        delay_ns: 0,
        ..Self::MODELLED
    };
}

impl Default for SubnetConfig {
    fn default() -> Self {
        Self::MODELLED
    }
}
