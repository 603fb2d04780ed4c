//! The attributes of a node, as its agents and its data plane share them.

use vernic_wire::smp::PortInfo;
use vernic_wire::{Guid, Lid, Pkey, PortNum, VirtualLane};

use super::config::SubnetConfig;
use crate::attributes::{
    ArbitrationEntry, Forwarding, LinkSpeed, NodeAttributes, NodeKind, PhysicalState,
    PortAttributes, PortState, PortTables,
};
use crate::management::{Agent, ManagedNode, PortChange};
use crate::switch::View;
use crate::topology;

/// Attributes of a node.
#[derive(Debug)]
pub(super) struct State {
    pub(super) attributes: NodeAttributes,
    /// From port 0 on, which an adapter does not have.
    pub(super) ports: Vec<PortAttributes>,
    pub(super) forwarding: Option<Forwarding>,
}

/// Partition keys of a port.
const PKEYS: usize = 128;
/// Entries of each arbitration table: enough for each lane. An arbiter walks
/// through them for every packet, so more would cost time.
const ARBITRATION: usize = 16;
/// The prefix of a subnet that nobody has given another one (IBTA 4.1.1).
const DEFAULT_PREFIX: u64 = 0xFE80_0000_0000_0000;

impl State {
    /// Makes the attributes of a planned node.
    pub(super) fn new(plan: &topology::Node, config: &SubnetConfig) -> Self {
        let is_switch = plan.kind == NodeKind::Switch;
        let system_guid = if plan.system_guid == Guid(0) { plan.guid } else { plan.system_guid };
        let attributes = NodeAttributes {
            kind: plan.kind,
            guid: plan.guid,
            system_guid,
            ports: plan.ports,
            vendor_id: plan.vendor_id,
            device_id: plan.device_id,
            revision: 0,
            description: plan.name.clone(),
        };
        let port = |number| {
            let mut port = port(plan, config);
            if let Some(end) = plan.end_port(PortNum(number)) {
                port.guid = end.guid;
                if !is_switch || number == 0 {
                    (port.lid, port.lmc) = (end.lid.unwrap_or(Lid(0)), end.lmc);
                }
            }
            if is_switch && number == 0 {
                (port.state, port.physical) = (PortState::Active, PhysicalState::LinkUp);
            }
            port
        };
        let ports = (0..=plan.ports).map(port).collect();
        Self { attributes, ports, forwarding: is_switch.then(forwarding) }
    }
    /// Returns the attributes as the data plane of a switch sees them.
    pub(super) fn view(&mut self) -> Option<View<'_>> {
        let forwarding = self.forwarding.as_mut()?;
        Some(View { ports: &mut self.ports, forwarding })
    }
    /// Returns a port from 1 on.
    pub(super) fn external(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        self.ports.get_mut(usize::from(port.0)).filter(|_| port != PortNum(0))
    }
    fn has(&self, port: PortNum) -> bool {
        port != PortNum(0) || self.forwarding.is_some()
    }
}

fn port(plan: &topology::Node, config: &SubnetConfig) -> PortAttributes {
    let rows = if plan.kind == NodeKind::Switch { usize::from(plan.ports) + 1 } else { 1 };
    let lanes = config.data_lanes.clamp(1, 15);
    let entry = |at: usize| ArbitrationEntry {
        lane: VirtualLane::new((at % usize::from(lanes)) as u8),
        weight: if at < usize::from(lanes) { 64 } else { 0 },
    };
    let level_to_lane =
        std::array::from_fn(|level: usize| VirtualLane::new((level % usize::from(lanes)) as u8));
    let tables = PortTables {
        pkeys: [vec![Pkey::DEFAULT], vec![Pkey(0); PKEYS - 1]].concat(),
        lanes: vec![level_to_lane; rows],
        low: (0..ARBITRATION).map(entry).collect(),
        high: (0..ARBITRATION).map(|at| ArbitrationEntry { weight: 0, ..entry(at) }).collect(),
        high_limit: 0,
    };
    PortAttributes {
        gid_prefix: DEFAULT_PREFIX,
        capabilities: Agent::CAPABILITIES,
        response_time: 16,
        subnet_timeout: 18,
        ..PortAttributes::new(plan.guid, config.mtu, lanes, tables)
    }
}

/// Gives a port the speed and width of its cable.
pub(super) fn follow_cable(port: &mut PortAttributes, cable: &topology::Cable) {
    (port.width, port.speed) = (cable.width, cable.speed);
    if port.speed > LinkSpeed::Qdr {
        port.capabilities |= PortInfo::CAPABILITY_EXTENDED_SPEEDS;
    }
}

fn forwarding() -> Forwarding {
    Forwarding {
        linear: vec![Forwarding::NOWHERE.0; Forwarding::LINEAR_LIDS],
        top: Lid(0),
        multicast: vec![[0; 16]; Forwarding::MULTICAST_LIDS],
        default_multicast_primary: Forwarding::NOWHERE.0,
        default_multicast_other: Forwarding::NOWHERE.0,
        life_time: 20,
        port_changed: false,
    }
}

impl ManagedNode for State {
    fn attributes(&self) -> &NodeAttributes {
        &self.attributes
    }
    fn port(&self, port: PortNum) -> Option<&PortAttributes> {
        self.ports.get(usize::from(port.0)).filter(|_| self.has(port))
    }
    fn port_mut(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        let has = self.has(port);
        self.ports.get_mut(usize::from(port.0)).filter(|_| has)
    }
    fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref()
    }
    fn forwarding_mut(&mut self) -> Option<&mut Forwarding> {
        self.forwarding.as_mut()
    }
    fn change_port(&mut self, port: PortNum, change: PortChange) {
        let Some(port) = self.port_mut(port) else { return };
        match change {
            PortChange::Arm => port.state = PortState::Armed,
            PortChange::Activate => port.state = PortState::Active,
            // The link itself follows when it is asked for something to send.
            PortChange::Down(physical) => {
                (port.state, port.physical) = (PortState::Down, physical);
            }
        }
    }
}
