//! What a subnet manager knows of its subnet: nodes, ports, links.

use std::collections::BTreeMap;

use vernic_wire::smp::{NodeDescription, NodeInfo, PortInfo, SwitchInfo};
use vernic_wire::{Gid, Guid, Lid};

/// A port by its node's place in the map and its number.
pub(super) type End = (usize, u8);

/// The logical states of a port, as their codes.
pub(super) const INIT: u8 = 2;
pub(super) const ARMED: u8 = 3;
pub(super) const ACTIVE: u8 = 4;

/// A port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) info: PortInfo,
    pub(super) guid: Guid,
    /// Ports that lead from the manager to this one; of a switch to the switch.
    pub(super) path: Vec<u8>,
}

impl Port {
    /// Returns the LIDs of an end port, the base LID first.
    pub(super) fn lids(&self) -> impl Iterator<Item = Lid> + use<> {
        let (base, last) = (self.info.lid.0, (1 << self.info.lmc.min(7)) - 1);
        (base..=base.saturating_add(last)).map(Lid)
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) description: [u8; NodeDescription::LEN],
    pub(super) switch: Option<SwitchInfo>,
    /// Ports that lead from the manager to the node.
    pub(super) path: Vec<u8>,
    pub(super) ports: BTreeMap<u8, Port>,
}

impl Node {
    pub(super) fn is_switch(&self) -> bool {
        self.info.node_type == NodeInfo::SWITCH
    }
}

/// A subnet.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Node>,
    pub(super) by_guid: BTreeMap<Guid, usize>,
    /// Links: the other end of each port, both ways.
    pub(super) links: BTreeMap<End, End>,
    /// End ports by LID and by GUID, once the map is complete.
    by_lid: BTreeMap<Lid, End>,
    by_port_guid: BTreeMap<Guid, End>,
}

impl Map {
    /// Returns a port.
    pub(super) fn port(&self, (node, port): End) -> Option<&Port> {
        self.nodes.get(node)?.ports.get(&port)
    }
    pub(super) fn port_mut(&mut self, (node, port): End) -> Option<&mut Port> {
        self.nodes.get_mut(node)?.ports.get_mut(&port)
    }
    pub(super) fn is_switch(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(Node::is_switch)
    }
    /// Returns the places of all switches.
    pub(super) fn switches(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.is_switch(*node))
    }
    /// Returns the ports that have LIDs: port 0 of switches, and those of adapters.
    pub(super) fn end_ports(&self) -> impl Iterator<Item = (End, &Port)> {
        self.nodes.iter().enumerate().flat_map(|(at, node)| {
            let is_switch = node.is_switch();
            let ends = node.ports.iter().filter(move |(port, _)| !is_switch || **port == 0);
            ends.map(move |(number, port)| ((at, *number), port))
        })
    }
    /// Returns the port that has the LIDs of another one: of a switch port 0.
    pub(super) fn home(&self, (node, port): End) -> End {
        if self.is_switch(node) { (node, 0) } else { (node, port) }
    }
    /// Returns the switch that an end port is at, and the port of the switch that leads to it: port
    /// 0 of a switch is at itself.
    pub(super) fn attachment(&self, end: End) -> Option<End> {
        if self.is_switch(end.0) {
            return Some((end.0, 0));
        }
        self.links.get(&end).copied().filter(|(node, _)| self.is_switch(*node))
    }
    /// Completes the map: end ports can be found by LID and GUID from now on.
    pub(super) fn complete(&mut self) {
        let with_lids = self.end_ports().filter(|(_, port)| port.info.lid.is_unicast());
        let by_lid = with_lids.flat_map(|(end, port)| port.lids().map(move |lid| (lid, end)));
        let by_lid = by_lid.collect();
        let by_port_guid = self.end_ports().map(|(end, port)| (port.guid, end)).collect();
        (self.by_lid, self.by_port_guid) = (by_lid, by_port_guid);
    }
    /// Returns the end port with a LID, of a complete map.
    pub(super) fn by_lid(&self, lid: Lid) -> Option<(End, &Port)> {
        let end = *self.by_lid.get(&lid)?;
        Some((end, self.port(end)?))
    }
    /// Returns the end port with a GUID, of a complete map.
    pub(super) fn by_port_guid(&self, guid: Guid) -> Option<(End, &Port)> {
        let end = *self.by_port_guid.get(&guid)?;
        Some((end, self.port(end)?))
    }
}

/// The GID of a port: the prefix of the subnet and the GUID.
pub(super) fn gid(prefix: u64, guid: Guid) -> Gid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&prefix.to_be_bytes());
    bytes[8..].copy_from_slice(&guid.0.to_be_bytes());
    Gid(bytes)
}

/// The GUID of a GID of the subnet.
pub(super) fn guid_of(prefix: u64, gid: Gid) -> Option<Guid> {
    let (high, low) = gid.0.split_at(8);
    let number = |half: &[u8]| half.try_into().map(u64::from_be_bytes).unwrap_or_default();
    (number(high) == prefix).then(|| Guid(number(low)))
}
