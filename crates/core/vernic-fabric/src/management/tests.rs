//! A node in memory, and a few of them with cables.

mod attributes;
mod keys;
mod performance;
mod port_info;
mod routes;
mod sweep;
mod traps;

use std::collections::BTreeMap;

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{DATA_LEN, MadStatus, PortInfo, SmAttribute, Smp};
use vernic_wire::{Guid, Lid, Mtu, Pkey, PortNum, Qpn, ServiceLevel, VirtualLane};

use super::{Agent, Ingress, ManagedNode, PortChange, Route};
use crate::Time;
use crate::attributes::{
    ArbitrationEntry, Forwarding, LinkSpeed, LinkWidth, NodeAttributes, NodeKind, PhysicalState,
    PortAttributes, PortState, PortTables,
};

/// A node whose links do what they are told.
pub(super) struct Node {
    pub(super) attributes: NodeAttributes,
    /// From port 0 on; an adapter has `None` there.
    pub(super) ports: Vec<Option<PortAttributes>>,
    pub(super) forwarding: Option<Forwarding>,
    pub(super) changes: Vec<(PortNum, PortChange)>,
}

impl ManagedNode for Node {
    fn attributes(&self) -> &NodeAttributes {
        &self.attributes
    }
    fn port(&self, port: PortNum) -> Option<&PortAttributes> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }
    fn port_mut(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        self.ports.get_mut(usize::from(port.0))?.as_mut()
    }
    fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref()
    }
    fn forwarding_mut(&mut self) -> Option<&mut Forwarding> {
        self.forwarding.as_mut()
    }
    fn change_port(&mut self, port: PortNum, change: PortChange) {
        self.changes.push((port, change));
        let port = self.port_mut(port).unwrap();
        match change {
            PortChange::Arm => port.state = PortState::Armed,
            PortChange::Activate => port.state = PortState::Active,
            PortChange::Down(physical) => {
                (port.state, port.physical) = (PortState::Down, physical);
            }
        }
    }
}

fn port(guid: u64, inputs: usize) -> PortAttributes {
    let entry = |lane| ArbitrationEntry { lane: VirtualLane::new(lane), weight: 4 };
    let tables = PortTables {
        pkeys: [vec![Pkey::DEFAULT], vec![Pkey(0); 63]].concat(),
        lanes: vec![[VirtualLane::new(0); ServiceLevel::COUNT]; inputs],
        low: (0..8).map(entry).collect(),
        high: (0..40).map(|at| entry(at % 8)).collect(),
        high_limit: 0,
    };
    PortAttributes {
        state: PortState::Init,
        physical: PhysicalState::LinkUp,
        gid_prefix: 0xFE80_0000_0000_0000,
        capabilities: Agent::CAPABILITIES,
        response_time: 16,
        subnet_timeout: 18,
        neighbor_mtu: Mtu::B2048,
        operational_lanes: 4,
        width: LinkWidth::X4,
        speed: LinkSpeed::Qdr,
        head_of_queue_life: 16,
        stall_count: 7,
        ..PortAttributes::new(Guid(guid), Mtu::B4096, 8, tables)
    }
}

pub(super) fn node(kind: NodeKind, guid: u64, ports: u8) -> Node {
    let inputs = usize::from(ports) + 1;
    let own = (kind == NodeKind::Switch)
        .then(|| PortAttributes { state: PortState::Active, ..port(guid, inputs) });
    let of_link = |number| match kind {
        NodeKind::Switch => port(guid, inputs),
        NodeKind::Adapter => port(guid + number, 1),
    };
    Node {
        attributes: NodeAttributes {
            kind,
            guid: Guid(guid),
            system_guid: Guid(guid + 0x100),
            ports,
            vendor_id: 0x00_1234,
            device_id: 0x5678,
            revision: 9,
            description: format!("node {guid:#x}"),
        },
        ports: [own].into_iter().chain((1..=u64::from(ports)).map(|n| Some(of_link(n)))).collect(),
        forwarding: (kind == NodeKind::Switch).then(|| Forwarding {
            linear: vec![255; Forwarding::LINEAR_LIDS],
            top: Lid(0),
            multicast: vec![[0; 16]; Forwarding::MULTICAST_LIDS],
            default_multicast_primary: 255,
            default_multicast_other: 255,
            life_time: 18,
            port_changed: false,
        }),
        changes: Vec::new(),
    }
}

/// A node with its agents, asked by LID through one of its ports.
pub(super) struct Asked {
    pub(super) node: Node,
    pub(super) agent: Agent,
    pub(super) port: PortNum,
    pub(super) m_key: u64,
    pub(super) now: Time,
}

/// LID of the manager that asks.
const ASKER: Lid = Lid(0x77);

impl Asked {
    pub(super) fn switch(ports: u8, port: u8) -> Self {
        Self::of(node(NodeKind::Switch, 0x10, ports), port)
    }
    pub(super) fn adapter(ports: u8, port: u8) -> Self {
        Self::of(node(NodeKind::Adapter, 0x20, ports), port)
    }
    fn of(node: Node, port: u8) -> Self {
        let agent = Agent::new(node.attributes.ports);
        Self { node, agent, port: PortNum(port), m_key: 0, now: Time(0) }
    }
    fn ingress(&self) -> Ingress {
        Ingress { port: self.port, slid: ASKER, queue_pair: Qpn::SMI, local: false }
    }
    pub(super) fn send(&mut self, smp: &mut Smp) -> Route {
        let ingress = self.ingress();
        let mut mad = [0; MAD_LEN];
        smp.emit(&mut mad);
        let route = self.agent.handle(&mut self.node, ingress, &mut mad, self.now);
        *smp = Smp::from_bytes(&mad);
        route
    }
    /// An answer by LID: its status and attribute.
    pub(super) fn ask(
        &mut self,
        method: Method,
        attribute: SmAttribute,
        modifier: u32,
        data: [u8; DATA_LEN],
    ) -> (MadStatus, [u8; DATA_LEN]) {
        let mut smp = smp(MgmtClass::SUBNET_LID_ROUTED, method, attribute, modifier);
        smp.data = data;
        smp.m_key = self.m_key;
        assert_eq!(self.send(&mut smp), Route::Lid(ASKER));
        assert_eq!(smp.header.method, Method::GET_RESP);
        assert_eq!(smp.attribute(), attribute);
        (smp.status(), smp.data)
    }
    pub(super) fn get(&mut self, attribute: SmAttribute, modifier: u32) -> [u8; DATA_LEN] {
        let (status, data) = self.ask(Method::GET, attribute, modifier, [0; DATA_LEN]);
        assert_eq!(status, MadStatus::OK);
        data
    }
    /// Writes, and finds in the answer what a read then tells.
    pub(super) fn set(
        &mut self,
        attribute: SmAttribute,
        modifier: u32,
        data: [u8; DATA_LEN],
    ) -> [u8; DATA_LEN] {
        let (status, answer) = self.ask(Method::SET, attribute, modifier, data);
        assert_eq!(status, MadStatus::OK);
        assert_eq!(answer, self.get(attribute, modifier));
        answer
    }
    pub(super) fn port_info(&mut self, port: u32) -> PortInfo {
        PortInfo::parse(&self.get(SmAttribute::PORT_INFO, port)).unwrap()
    }
    /// PortInfo as a manager writes it that changes no state.
    pub(super) fn unchanged(&mut self, port: u32) -> PortInfo {
        PortInfo { state: 0, physical_state: 0, ..self.port_info(port) }
    }
    pub(super) fn set_port_info(&mut self, port: u32, info: &PortInfo) -> (MadStatus, PortInfo) {
        let mut data = [0; DATA_LEN];
        info.emit(&mut data);
        let (status, answer) = self.ask(Method::SET, SmAttribute::PORT_INFO, port, data);
        (status, PortInfo::from_bytes(&answer))
    }
}

pub(super) fn smp(
    class: MgmtClass,
    method: Method,
    attribute: SmAttribute,
    attribute_modifier: u32,
) -> Smp {
    let header = MadHeader {
        base_version: 1,
        mgmt_class: class,
        class_version: 1,
        method,
        transaction_id: 7,
        attribute_id: attribute.0,
        attribute_modifier,
        ..MadHeader::default()
    };
    Smp { header, dr_slid: Lid::PERMISSIVE, dr_dlid: Lid::PERMISSIVE, ..Smp::from_bytes(&[0; 256]) }
}

/// A request along a list of ports.
pub(super) fn directed(path: &[u8], method: Method, attribute: SmAttribute, modifier: u32) -> Smp {
    let mut smp = smp(MgmtClass::SUBNET_DIRECTED_ROUTE, method, attribute, modifier);
    smp.header.class_specific = u16::try_from(path.len()).unwrap();
    smp.initial_path[1..=path.len()].copy_from_slice(path);
    smp
}

/// A node by its place in the network, and one of its ports.
type End = (usize, u8);

/// Nodes and the cables between their ports.
pub(super) struct Network {
    pub(super) nodes: Vec<Asked>,
    cables: BTreeMap<End, End>,
}

impl Network {
    pub(super) fn new(nodes: Vec<Asked>, cables: &[(End, End)]) -> Self {
        let both = cables.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        Self { nodes, cables: both.collect() }
    }
    /// Carries a packet of a directed route from a client at a port of node 0 until it ends: where,
    /// and the packet. `None` if it was dropped.
    pub(super) fn carry(&mut self, port: u8, smp: Smp) -> Option<(usize, Smp)> {
        let slid = self.lid_of(0, port);
        let ingress = Ingress { port: PortNum(port), slid, queue_pair: Qpn::SMI, local: true };
        self.carry_from(0, ingress, smp)
    }
    /// Carries a packet to a LID until it ends.
    pub(super) fn carry_to(&mut self, lid: Lid, port: u8, smp: Smp) -> Option<(usize, Smp)> {
        let slid = self.lid_of(0, port);
        if lid == slid {
            return self.carry(port, smp);
        }
        let (at, port) = self.reach(0, lid, port)?;
        let ingress = Ingress { port: PortNum(port), slid, queue_pair: Qpn::SMI, local: false };
        self.carry_from(at, ingress, smp)
    }
    fn carry_from(
        &mut self,
        mut at: usize,
        mut ingress: Ingress,
        smp: Smp,
    ) -> Option<(usize, Smp)> {
        let mut mad = [0; MAD_LEN];
        smp.emit(&mut mad);
        for _ in 0..200 {
            let Asked { node, agent, now, .. } = &mut self.nodes[at];
            let (slid, port);
            ((at, port), slid) = match agent.handle(node, ingress, &mut mad, *now) {
                Route::Local => return Some((at, Smp::from_bytes(&mad))),
                Route::Done | Route::Drop(_) => return None,
                Route::Port(port) => (*self.cables.get(&(at, port.0))?, Lid::PERMISSIVE),
                Route::Lid(lid) => {
                    let own = self.lid_of(at, ingress.port.0);
                    (self.reach(at, lid, ingress.port.0)?, own)
                }
            };
            ingress = Ingress { port: PortNum(port), slid, queue_pair: Qpn::SMI, local: false };
        }
        panic!("a packet goes in circles");
    }
    /// The node and port that a packet to a LID comes to, which came in at a node by a port.
    fn reach(&self, mut at: usize, lid: Lid, mut port: u8) -> Option<End> {
        if self.nodes[at].node.forwarding.is_none() {
            (at, port) = *self.cables.get(&(at, port))?;
        }
        while let Some(tables) = &self.nodes[at].node.forwarding {
            match tables.linear[usize::from(lid.0)] {
                0 => break,
                out => (at, port) = *self.cables.get(&(at, out))?,
            }
        }
        Some((at, port))
    }
    fn lid_of(&self, at: usize, port: u8) -> Lid {
        let node = &self.nodes[at].node;
        let home = super::home(node, PortNum(port));
        node.port(home).unwrap().lid
    }
    /// Sends a request along a list of ports, and returns its answer.
    pub(super) fn ask(&mut self, smp: Smp) -> Smp {
        let (at, answer) = self.carry(1, smp).expect("the request is answered");
        assert_eq!((at, answer.header.method), (0, Method::GET_RESP));
        assert!(answer.returns() || !answer.is_directed());
        assert_eq!(answer.header.transaction_id, 7);
        answer
    }
}
