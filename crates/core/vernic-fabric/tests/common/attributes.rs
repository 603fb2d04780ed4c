//! Attributes as a subnet manager might leave them.

use vernic_fabric::attributes::{
    ArbitrationEntry, Forwarding, LinkSpeed, LinkWidth, PhysicalState, PortAttributes,
    PortCounters, PortState, PortTables,
};
use vernic_wire::{Guid, Lid, Mtu, Pkey, ServiceLevel, VirtualLane};

/// Data lanes of every port.
pub const LANES: u8 = 4;

/// Attributes of a port without a link, of a node of so many ports: a lane for each service level
/// modulo four, of equal weight, 32 Gb/s, no lifetimes.
pub fn port(ports: u8) -> PortAttributes {
    let entry = |lane| ArbitrationEntry { lane: VirtualLane::new(lane), weight: 64 };
    PortAttributes {
        guid: Guid(1),
        state: PortState::Down,
        physical: PhysicalState::Polling,
        link_down_default: PhysicalState::Polling,
        lid: Lid(0),
        lmc: 0,
        sm_lid: Lid(0),
        sm_service_level: ServiceLevel::new(0),
        gid_prefix: 0,
        capabilities: 0,
        m_key: 0,
        m_key_protection: 0,
        m_key_lease_s: 0,
        response_time: 0,
        subnet_timeout: 0,
        mtu_capability: Mtu::B4096,
        neighbor_mtu: Mtu::B4096,
        lanes_supported: LANES,
        operational_lanes: LANES,
        width: LinkWidth::X4,
        speed: LinkSpeed::Qdr,
        head_of_queue_life: 20,
        stall_count: 0,
        enforces_inbound: false,
        enforces_outbound: false,
        client_reregister: false,
        m_key_violations: 0,
        p_key_violations: 0,
        q_key_violations: 0,
        tables: PortTables {
            pkeys: vec![Pkey::DEFAULT],
            lanes: vec![lanes(); usize::from(ports) + 1],
            low: (0..LANES).map(entry).collect(),
            high: Vec::new(),
            high_limit: 0,
        },
        counters: PortCounters::default(),
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
