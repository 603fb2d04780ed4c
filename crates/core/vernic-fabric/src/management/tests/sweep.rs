//! What a subnet manager does when it first meets a subnet, in the order of its requests.

use std::collections::{BTreeMap, VecDeque};

use vernic_wire::mad::{Method, MgmtClass};
use vernic_wire::smp::{
    DATA_LEN, LinearForwardingTable, MadStatus, MulticastForwardingTable, NodeInfo, PkeyTable,
    PortInfo, SlToVlTable, SmAttribute, SwitchInfo, VlArbitrationTable,
};
use vernic_wire::{Guid, Lid, Mtu, Pkey, PortNum, VirtualLane};

use super::{Asked, Network, directed, node, smp};
use crate::attributes::{NodeKind, PortState};
use crate::management::{ManagedNode, data};

/// A node as the manager knows it.
struct Known {
    info: NodeInfo,
    /// Ports that lead to the node.
    path: Vec<u8>,
    lid: Lid,
    /// Port of the node and the GUID of the node at its other end.
    neighbors: BTreeMap<u8, Guid>,
}

struct Manager {
    network: Network,
    nodes: BTreeMap<u64, Known>,
}

/// Two leaf switches with two adapters each, and a spine between them. The manager is at the first
/// adapter.
fn subnet() -> Network {
    let of = |kind, guid, ports| Asked::of(node(kind, guid, ports), 1);
    let nodes = vec![
        of(NodeKind::Adapter, 0x1000, 1),
        of(NodeKind::Adapter, 0x1010, 2),
        of(NodeKind::Adapter, 0x1020, 1),
        of(NodeKind::Adapter, 0x1030, 1),
        of(NodeKind::Switch, 0x2000, 4),
        of(NodeKind::Switch, 0x2010, 4),
        of(NodeKind::Switch, 0x2020, 20),
    ];
    let mut network = Network::new(
        nodes,
        &[
            ((0, 1), (4, 1)),
            ((1, 2), (4, 2)),
            ((2, 1), (5, 1)),
            ((3, 1), (5, 2)),
            ((4, 4), (6, 18)),
            ((5, 3), (6, 2)),
        ],
    );
    for at in 0..network.nodes.len() {
        for number in 1..=network.nodes[at].node.attributes.ports {
            if !network.cables.contains_key(&(at, number)) {
                let port = network.nodes[at].node.port_mut(PortNum(number)).unwrap();
                port.state = PortState::Down;
            }
        }
    }
    network
}

impl Manager {
    fn ask(
        &mut self,
        path: &[u8],
        method: Method,
        attribute: SmAttribute,
        modifier: u32,
        data: [u8; DATA_LEN],
    ) -> [u8; DATA_LEN] {
        let mut request = directed(path, method, attribute, modifier);
        request.data = data;
        let answer = self.network.ask(request);
        assert_eq!(answer.status(), MadStatus::OK, "{attribute} {modifier:#x} at {path:?}");
        answer.data
    }
    fn get(&mut self, path: &[u8], attribute: SmAttribute, modifier: u32) -> [u8; DATA_LEN] {
        self.ask(path, Method::GET, attribute, modifier, [0; DATA_LEN])
    }
    /// Writes, and expects the answer to have what was written.
    fn set(&mut self, path: &[u8], attribute: SmAttribute, modifier: u32, data: [u8; DATA_LEN]) {
        assert_eq!(self.ask(path, Method::SET, attribute, modifier, data), data, "{attribute}");
    }
    fn port_info(&mut self, path: &[u8], port: u32) -> PortInfo {
        PortInfo::parse(&self.get(path, SmAttribute::PORT_INFO, port)).unwrap()
    }
    fn set_port(&mut self, path: &[u8], port: u32, info: PortInfo) -> PortInfo {
        let info = PortInfo { physical_state: 0, ..info };
        let bytes = data(|buf| info.emit(buf));
        let answer = self.ask(path, Method::SET, SmAttribute::PORT_INFO, port, bytes);
        PortInfo::parse(&answer).unwrap()
    }
    /// Finds all nodes, as far as ports are up.
    fn discover(&mut self) {
        let mut todo = VecDeque::from([(vec![], None)]);
        while let Some((path, from)) = todo.pop_front() {
            let info = NodeInfo::parse(&self.get(&path, SmAttribute::NODE_INFO, 0)).unwrap();
            let guid = info.node_guid;
            if let Some((before, out)) = from {
                let before: &mut Known = self.nodes.get_mut(&before).unwrap();
                before.neighbors.insert(out, guid);
            }
            if self.nodes.contains_key(&guid.0) {
                continue;
            }
            let lid = Lid(self.nodes.len() as u16 + 1);
            let known = Known { info, path: path.clone(), lid, neighbors: BTreeMap::new() };
            self.nodes.insert(guid.0, known);
            self.get(&path, SmAttribute::NODE_DESCRIPTION, 0);
            let ports = match info.node_type {
                NodeInfo::SWITCH => 0..=info.ports,
                _ => info.local_port.0..=info.local_port.0,
            };
            if info.node_type == NodeInfo::SWITCH {
                self.get(&path, SmAttribute::SWITCH_INFO, 0);
            }
            for port in ports {
                let told = self.port_info(&path, port.into());
                assert_eq!(told.local_port, info.local_port);
                let is_end = info.node_type != NodeInfo::SWITCH && !path.is_empty();
                if port != 0 && told.state > 1 && !is_end {
                    todo.push_back(([&path[..], &[port]].concat(), Some((guid.0, port))));
                }
            }
        }
    }
    /// Ports that each node sends to another by, found from the destination on.
    fn routes(&self, to: u64) -> BTreeMap<u64, u8> {
        let mut routes = BTreeMap::new();
        let mut todo = VecDeque::from([to]);
        while let Some(at) = todo.pop_front() {
            for (guid, known) in &self.nodes {
                let out = known.neighbors.iter().find(|(_, other)| other.0 == at);
                if let Some((out, _)) = out
                    && *guid != to
                    && !routes.contains_key(guid)
                {
                    routes.insert(*guid, *out);
                    todo.push_back(*guid);
                }
            }
        }
        routes
    }
    fn each_port(&self) -> Vec<(Vec<u8>, u32, bool)> {
        let mut ports = Vec::new();
        for known in self.nodes.values() {
            let is_switch = known.info.node_type == NodeInfo::SWITCH;
            let numbers = match is_switch {
                true => known.neighbors.keys().copied().collect(),
                false => vec![known.info.local_port.0],
            };
            ports.extend(numbers.into_iter().map(|p| (known.path.clone(), p.into(), is_switch)));
        }
        ports
    }
    fn assign_lids(&mut self) {
        let nodes: Vec<_> = self.nodes.values().map(|k| (k.path.clone(), k.lid, k.info)).collect();
        for (path, lid, info) in nodes {
            let port = match info.node_type {
                NodeInfo::SWITCH => 0,
                _ => info.local_port.0.into(),
            };
            let before = self.port_info(&path, port);
            let told = self.set_port(
                &path,
                port,
                PortInfo { lid, sm_lid: Lid(1), state: 0, client_reregister: true, ..before },
            );
            assert_eq!((told.lid, told.client_reregister), (lid, true));
        }
    }
    fn write_forwarding(&mut self) {
        let mut tables: BTreeMap<u64, [u8; 64]> = BTreeMap::new();
        for (to, known) in &self.nodes {
            for (at, out) in self.routes(*to) {
                let table = tables.entry(at).or_insert([255; 64]);
                table[usize::from(known.lid.0)] = out;
            }
            tables.entry(*to).or_insert([255; 64])[usize::from(known.lid.0)] = 0;
        }
        for (guid, ports) in tables {
            let known = &self.nodes[&guid];
            if known.info.node_type != NodeInfo::SWITCH {
                continue;
            }
            let path = known.path.clone();
            let info = SwitchInfo::parse(&self.get(&path, SmAttribute::SWITCH_INFO, 0)).unwrap();
            let info = SwitchInfo { linear_top: Lid(63), life_time: 18, ..info };
            self.set(&path, SmAttribute::SWITCH_INFO, 0, data(|buf| info.emit(buf)));
            let table = LinearForwardingTable { ports };
            self.set(&path, SmAttribute::LINEAR_FORWARDING, 0, data(|buf| table.emit(buf)));
        }
    }
    fn write_tables(&mut self) {
        let mut keys = PkeyTable { keys: [Pkey(0); 32] };
        keys.keys[..2].copy_from_slice(&[Pkey(0xFFFF), Pkey(0x8001)]);
        let lanes =
            SlToVlTable { lanes: core::array::from_fn(|sl| VirtualLane::new(sl as u8 % 4)) };
        let mut table = VlArbitrationTable { entries: [(0, 0); 32] };
        table.entries[..8].copy_from_slice(&core::array::from_fn::<_, 8, _>(|at| (at as u8, 4)));
        for (path, port, is_switch) in self.each_port() {
            let (keys_at, lanes_at) = match is_switch {
                true => (port << 16, 1 << 8 | port),
                false => (0, 0),
            };
            self.set(&path, SmAttribute::PKEY_TABLE, keys_at, data(|buf| keys.emit(buf)));
            self.set(&path, SmAttribute::SL_TO_VL, lanes_at, data(|buf| lanes.emit(buf)));
            let low = 1 << 16 | port;
            self.set(&path, SmAttribute::VL_ARBITRATION, low, data(|buf| table.emit(buf)));
        }
    }
    fn set_states(&mut self, state: PortState) {
        for (path, port, _) in self.each_port() {
            let before = self.port_info(&path, port);
            let (neighbor_mtu, operational_lanes) = (Mtu::B4096 as u8, before.lanes_supported);
            let state = state as u8;
            let written = PortInfo { state, neighbor_mtu, operational_lanes, ..before };
            assert_eq!(self.set_port(&path, port, written).state, state);
        }
    }
}

#[test]
fn a_cold_sweep_finds_configures_and_activates_the_subnet() {
    let mut manager = Manager { network: subnet(), nodes: BTreeMap::new() };
    manager.discover();
    assert_eq!(manager.nodes.len(), 7);
    assert_eq!(manager.nodes[&0x2020].neighbors, [(2, Guid(0x2010)), (18, Guid(0x2000))].into());
    assert_eq!(manager.nodes[&0x1010].info.local_port, PortNum(2));
    manager.assign_lids();
    manager.write_forwarding();
    manager.write_tables();
    manager.set_states(PortState::Armed);
    manager.set_states(PortState::Active);
    let mut active = 0;
    for asked in &manager.network.nodes {
        for port in asked.node.ports.iter().flatten() {
            active += u32::from(port.state == PortState::Active);
        }
    }
    // 12 ends of 6 cables, and port 0 of 3 switches.
    assert_eq!(active, 15);
    // Every node is now reached by its LID.
    for (guid, lid) in manager.nodes.iter().map(|(g, k)| (*g, k.lid)).collect::<Vec<_>>() {
        let mut request = smp(MgmtClass::SUBNET_LID_ROUTED, Method::GET, SmAttribute::NODE_INFO, 0);
        request.header.transaction_id = 7;
        let (at, answer) = manager.network.carry_to(lid, 1, request).unwrap();
        assert_eq!((at, answer.status()), (0, MadStatus::OK));
        assert_eq!(NodeInfo::parse(&answer.data).unwrap().node_guid, Guid(guid));
    }
    // A group is joined: blocks of the multicast table at the spine, whose port 18 is of the second
    // 16 ports.
    let path = manager.nodes[&0x2020].path.clone();
    let mut table = MulticastForwardingTable { ports: [0; 32] };
    table.ports[0] = 1 << 2;
    manager.set(&path, SmAttribute::MULTICAST_FORWARDING, 0, data(|buf| table.emit(buf)));
    manager.set(&path, SmAttribute::MULTICAST_FORWARDING, 1 << 28, data(|buf| table.emit(buf)));
    let spine = &manager.network.nodes[6].node;
    assert_eq!(spine.forwarding().unwrap().multicast[0][..2], [1 << 2, 1 << 2]);
}
