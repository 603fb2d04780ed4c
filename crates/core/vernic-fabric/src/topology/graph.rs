//! Nodes, ports and cables as plain values, and the plan that holds them.

use vernic_wire::{Guid, Lid, PortNum};

use super::rate::Rate;
use crate::attributes::{LinkSpeed, LinkWidth, NodeKind};

/// The most nodes of a fabric: each needs a LID, and 0x0001 to 0xBFFF are all there are
/// (IBTA 4.1.3).
pub const MAX_NODES: usize = 0xBFFF;

/// The most end ports of a fabric: two for each LID, since of an adapter's two ports often one has
/// no cable and so needs no LID.
pub const MAX_END_PORTS: usize = 2 * MAX_NODES;

/// The most cables of a fabric. More than 20 for each node: a bound on memory, not of InfiniBand.
pub const MAX_CABLES: usize = 1 << 20;

/// The most ports of a node: forwarding tables have 8 bits for a port, and 255 means none
/// (IBTA 14.2.5.10).
pub const MAX_PORTS: usize = 254;

/// The longest name of a node, in bytes (NodeDescription; IBTA 14.2.5.2).
pub(super) const MAX_NAME_BYTES: usize = 64;

/// A port that packets can be addressed to: a port of an adapter, or port 0 of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndPort {
    /// GUID of the port, not 0.
    pub guid: Guid,
    /// First LID of the port, where the plan fixes it; else a subnet manager assigns one.
    pub lid: Option<Lid>,
    /// Exponent of the number of LIDs: the port has 2 to the power of this many, 0 to 7.
    pub lmc: u8,
}

/// A switch or a channel adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Whether the node is a switch or an adapter.
    pub kind: NodeKind,
    /// Name that people call the node, 1 to 64 bytes without quotes and control characters.
    /// Several nodes may have one name: the GUID tells them apart.
    pub name: String,
    /// GUID of the node, not 0, and no other node's.
    pub guid: Guid,
    /// GUID of the box that the node is part of; 0 if that is not known.
    pub system_guid: Guid,
    /// IEEE vendor id, 24 bits.
    pub vendor_id: u32,
    /// Number of the model, by the vendor.
    pub device_id: u16,
    /// Number of external ports, 1 to [`MAX_PORTS`]. They count from 1.
    pub ports: u8,
    /// End ports of the node: of a switch one, port 0; of an adapter one for each port, from 1.
    pub end_ports: Vec<EndPort>,
}

impl Node {
    /// Describes a node of which only kind, name, GUID and number of ports matter. Port GUIDs
    /// follow from the node's as `ibsim` numbers them: of a switch the same, of an adapter plus
    /// the port's number.
    pub fn new(kind: NodeKind, name: &str, guid: Guid, ports: u8) -> Self {
        let count = if kind == NodeKind::Switch { 1 } else { ports };
        let end_ports = (1..=count)
            .map(|port| EndPort { guid: default_guid(kind, guid, port), lid: None, lmc: 0 })
            .collect();
        let name = name.to_owned();
        let (system_guid, vendor_id, device_id) = (guid, 0, 0);
        Self { kind, name, guid, system_guid, vendor_id, device_id, ports, end_ports }
    }

    /// Returns the end port that a packet reaches which is addressed to `port`: of a switch always
    /// port 0. `None` if the node has no such port.
    pub fn end_port(&self, port: PortNum) -> Option<&EndPort> {
        self.end_ports.get(end_port_index(self.kind, port)?)
    }
}

/// The place in `end_ports` of the end port behind `port`; `None` for port 0 of an adapter.
pub(super) fn end_port_index(kind: NodeKind, port: PortNum) -> Option<usize> {
    match kind {
        NodeKind::Switch => Some(0),
        NodeKind::Adapter => usize::from(port.value()).checked_sub(1),
    }
}

/// The GUID of a port, if nothing else is said.
pub(super) fn default_guid(kind: NodeKind, node: Guid, port: u8) -> Guid {
    match kind {
        NodeKind::Switch => node,
        NodeKind::Adapter => Guid(node.value().wrapping_add(u64::from(port))),
    }
}

/// One end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Index of the node in [`Topology::nodes`].
    pub node: usize,
    /// Port of the node, from 1.
    pub port: PortNum,
}

impl End {
    /// What ends are ordered by.
    pub(super) fn key(self) -> (usize, u8) {
        (self.node, self.port.value())
    }
}

/// A cable between two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cable {
    /// The two ports. In a [`Topology`] the end at the node with the lower index comes first, or at
    /// one node the lower port.
    pub ends: [End; 2],
    /// Lanes of the cable.
    pub width: LinkWidth,
    /// Speed of each lane.
    pub speed: LinkSpeed,
    /// Rate of a model of the cable; `None` for what width and speed give.
    pub rate: Option<Rate>,
}

impl Cable {
    /// Describes a cable of the usual width and speed, 4x QDR, without a modelled rate.
    pub fn new(one: End, other: End) -> Self {
        let (width, speed) = (LinkWidth::default(), LinkSpeed::default());
        Self { ends: [one, other], width, speed, rate: None }
    }
}

/// Ends of all cables, sorted: node and port, and the index of the cable.
pub(super) type UsedEnds = Vec<((usize, u8), usize)>;

/// A plan of a fabric that holds together. Every cable ends at two ports that exist, and no port
/// has two cables. No two nodes share a GUID, no two ports a GUID or a LID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    ends: UsedEnds,
}

impl Topology {
    /// Puts together what was checked: `cables` and `ends` are sorted.
    pub(super) fn of_checked(nodes: Vec<Node>, cables: Vec<Cable>, ends: UsedEnds) -> Self {
        Self { nodes, cables, ends }
    }

    /// Returns all nodes, in the order in which they were given.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns all cables, ordered by their first end.
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// Returns the index of the cable at a port, or `None` if the port has none.
    pub fn cable_at(&self, end: End) -> Option<usize> {
        let at = self.ends.binary_search_by_key(&end.key(), |(key, _)| *key).ok()?;
        Some(self.ends[at].1)
    }

    /// Returns the other end of the cable at a port, or `None` if the port has no cable.
    pub fn peer(&self, end: End) -> Option<End> {
        let [one, other] = self.cables[self.cable_at(end)?].ends;
        Some(if one == end { other } else { one })
    }

    /// Returns the ends of cables at a node, by port, each with the index of the cable. Empty for a
    /// node that does not exist.
    pub fn ends_at(&self, node: usize) -> impl Iterator<Item = (PortNum, usize)> + '_ {
        let first = self.ends.partition_point(|((at, _), _)| *at < node);
        let ends = self.ends[first..].iter().take_while(move |((at, _), _)| *at == node);
        ends.map(|((_, port), cable)| (PortNum(*port), *cable))
    }

    /// Returns the index of the first node with a name, or `None` if there is none.
    pub fn node_by_name(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Counts the nodes of a kind.
    pub fn count(&self, kind: NodeKind) -> usize {
        self.nodes.iter().filter(|node| node.kind == kind).count()
    }
}
