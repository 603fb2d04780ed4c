//! Attributes as a subnet manager might leave them.

use vernic_fabric::attributes::{
    ArbitrationEntry, Forwarding, LinkSpeed, LinkWidth, PortAttributes, PortTables,
};
use vernic_wire::{Guid, Lid, Mtu, Pkey, ServiceLevel, VirtualLane};

/// Data lanes of every port.
pub const LANES: u8 = 4;

/// Attributes of a port without a link, of a node of so many ports: a lane for each service level
/// modulo four, of equal weight, 32 Gb/s, no lifetimes.
pub fn port(ports: u8) -> PortAttributes {
    let entry = |lane| ArbitrationEntry { lane: VirtualLane::new(lane), weight: 64 };
    let tables = PortTables {
        pkeys: vec![Pkey::DEFAULT],
        lanes: vec![lanes(); usize::from(ports) + 1],
        low: (0..LANES).map(entry).collect(),
        high: Vec::new(),
        high_limit: 0,
    };
    PortAttributes {
        width: LinkWidth::X4,
        speed: LinkSpeed::Qdr,
        ..PortAttributes::new(Guid(1), Mtu::B4096, LANES, tables)
    }
}

fn lanes() -> [VirtualLane; ServiceLevel::COUNT] {
    std::array::from_fn(|level| VirtualLane::new(level as u8 % LANES))
}

/// Forwarding tables that lead nowhere, without a lifetime.
pub fn forwarding() -> Forwarding {
    Forwarding {
        linear: vec![Forwarding::NOWHERE.0; 256],
        top: Lid(255),
        multicast: vec![[0; 16]; 16],
        default_multicast_primary: Forwarding::NOWHERE.0,
        default_multicast_other: Forwarding::NOWHERE.0,
        life_time: 20,
        port_changed: false,
    }
}

/// Returns how many packets a port has counted as dropped.
pub fn dropped(port: &PortAttributes) -> u64 {
    let counters = &port.counters;
    counters.rcv_errors
        + counters.rcv_switch_relay
        + counters.xmit_discards
        + counters.xmit_constraint
        + counters.rcv_constraint
        + counters.buffer_overruns
        + counters.management_dropped
}
