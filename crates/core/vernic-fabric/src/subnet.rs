//! A whole subnet in one process: nodes, cables and agents of a plan.
//!
//! Owns what is between the adapters of a [`Topology`]: it moves frames from one end of a cable to
//! the other, lets the agents of each node answer what is for them, and keeps what has arrived for
//! the clients of an adapter until they take it. Its owner passes the time in, real or virtual.
//! Everything follows from the calls and their times.
//!
//! | module | owns |
//! |---|---|
//! | `node` | the data plane of a node, and what its agents get and send |
//! | `state` | the attributes of a node |
//! | `cable`, `random` | frames under way, bit errors |
//! | `outside` | cables whose other end is in another process |
//! | `agenda` | what is due, and when |
//! | `view` | what can be seen of ports and cables |
//! | `config` | what the owner decides |
//!
//! # Clients
//!
//! The clients of an adapter [`submit`](Subnet::submit) packets, LRH to ICRC, and take those that
//! arrived. What a queue pair does is theirs: keys, partitions and the ICRC of a packet, which the
//! subnet looks at only in datagrams for its agents. A client that takes nothing leaves its packets
//! in the receive buffer, and so holds up those that send to it.
//!
//! The lane of subnet management is that of a packet whose LRH says 15. A datagram of a directed
//! route begins at the agent of the client's node, as IBTA 14.2.2 has it: with the hop count 0 it
//! reaches that agent alone. Agents answer subnet management (queue pair 0) and the requests of
//! performance management (queue pair 1). All other datagrams are for the clients, as are answers,
//! traps, and SMInfo at a port whose capabilities say that a subnet manager is there. They come
//! before other packets, and do not wait behind them.
//!
//! A packet to a group comes back to no client of the port that sent it. Several clients of a port
//! are their owner's matter: it copies among them what one of them sends to a group.
//!
//! # Limits
//!
//! The clients of a port have at most 1,024 datagrams waiting. [`run`](Subnet::run) ends after
//! [`MOST_STEPS`] steps, so that tables which lead packets in a circle leave time for other work.

mod agenda;
mod cable;
mod config;
mod node;
mod outside;
mod random;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use vernic_wire::smp::{BadKey, Change};
use vernic_wire::{Lid, PortNum, vcrc};

use self::agenda::Agenda;
use self::cable::{Cable, Flying, Side};
use self::node::{Attachment, Node, Plane};
use self::outside::Outside;
use self::state::State;
use crate::Time;
use crate::adapter::AdapterPort;
use crate::attributes::{Forwarding, NodeAttributes, NodeKind, PortAttributes};
use crate::link::{Frame, FrameKind, Spares, SubmitError, Transmit};
use crate::switch::Switch;
use crate::topology::{Rate, Topology};

pub use config::SubnetConfig;
pub use outside::{OutsideError, OutsideFrame};

pub use view::{CableView, LaneView, PortView};

/// Steps of one [`Subnet::run`] at most: frames that arrive, and nodes that are asked.
pub const MOST_STEPS: usize = 1 << 16;
/// Spare vectors of each size that are kept.
const SPARES: usize = 1024;

/// A node of a subnet, by its place in [`Topology::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// A packet that begins a cable, for captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tapped<'a> {
    /// The port that sends.
    pub from: (NodeId, PortNum),
    /// The port at the other end of the cable.
    pub to: (NodeId, PortNum),
    /// When its first byte leaves.
    pub at: Time,
    /// LRH to VCRC.
    pub bytes: &'a [u8],
}

/// What looks at every packet that begins a cable.
pub type Tap = Box<dyn FnMut(Tapped<'_>) + Send>;

/// There is no such port, or no cable at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoCable;

impl fmt::Display for NoCable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no such port, or the plan has no cable at it")
    }
}

impl std::error::Error for NoCable {}

/// A subnet.
///
/// After every call that brings news, call [`run`](Self::run), and again when
/// [`poll_timeout`](Self::poll_timeout) says so. Then ask [`poll_ready`](Self::poll_ready) and
/// [`poll_change`](Self::poll_change) until there is nothing.
pub struct Subnet {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    /// The cable at each port of each node, from port 0 on, with the side that the port is.
    ends: Vec<Vec<Option<(u32, u8)>>>,
    /// Nodes, and behind them both directions of each cable.
    agenda: Agenda,
    now: Time,
    /// Ports with packets that their clients were not told of.
    ready: VecDeque<(NodeId, PortNum)>,
    /// Ports whose attributes have changed.
    changed: VecDeque<(NodeId, PortNum)>,
    /// Cables to the outside, by node and port.
    outside: BTreeMap<(NodeId, u8), Outside>,
    tap: Option<Tap>,
    spares: Spares,
    scratch: Vec<u8>,
    seed: u64,
}

impl Subnet {
    /// Makes the subnet of a plan, all of whose cables are plugged in.
    pub fn new(plan: &Topology, config: SubnetConfig) -> Self {
        let mut nodes: Vec<_> = plan
            .nodes()
            .iter()
            .map(|node| {
                let attach = |_| Attachment::new(AdapterPort::new(config.link));
                let plane = match node.kind {
                    NodeKind::Switch => {
                        Plane::Switch(Box::new(Switch::new(node.ports, config.link)))
                    }
                    NodeKind::Adapter => Plane::Adapter((0..node.ports).map(attach).collect()),
                };
                Node::new(State::new(node, &config), plane)
            })
            .collect();
        let ports = |node: &Node| vec![None; node.state.ports.len()];
        let mut ends: Vec<Vec<_>> = nodes.iter().map(ports).collect();
        let mut cables = Vec::new();
        for (number, cable) in (0..).zip(plan.cables()) {
            let sides = cable.ends.map(|end| Side { node: end.node, port: end.port });
            for (side, end) in (0..).zip(sides) {
                ends[end.node][usize::from(end.port.0)] = Some((number, side));
                let node = &mut nodes[end.node];
                if let Some(port) = node.state.external(end.port) {
                    state::follow_cable(port, cable);
                }
                node.set_rate(end.port, cable.rate.and_then(view::bytes_per_s));
                node.handle_cable(end.port, true, Time(0));
            }
            cables.push(Cable::new(sides, config.delay_ns));
        }
        let mut agenda = Agenda::new(nodes.len() + 2 * cables.len());
        (0..nodes.len()).for_each(|node| agenda.touch(node));
        Self {
            nodes,
            cables,
            ends,
            agenda,
            now: Time(0),
            ready: VecDeque::new(),
            changed: VecDeque::new(),
            outside: BTreeMap::new(),
            tap: None,
            spares: Spares::default(),
            scratch: Vec::new(),
            seed: config.seed,
        }
    }

    /// Returns the first node with a name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        let at = self.nodes.iter().position(|node| node.state.attributes.description == name)?;
        Some(NodeId(at as u32))
    }
    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }
    /// Returns a node as a whole.
    pub fn attributes(&self, node: NodeId) -> Option<&NodeAttributes> {
        Some(&self.nodes.get(node.at())?.state.attributes)
    }
    /// Returns a port: from port 1 on, and port 0 at a switch.
    pub fn port(&self, node: NodeId, port: PortNum) -> Option<&PortAttributes> {
        use crate::management::ManagedNode;
        self.nodes.get(node.at())?.state.port(port)
    }
    /// Returns the forwarding tables of a switch.
    pub fn forwarding(&self, node: NodeId) -> Option<&Forwarding> {
        self.nodes.get(node.at())?.state.forwarding.as_ref()
    }

    /// Takes a packet of a client of an adapter, LRH to ICRC. It goes on its way with the next
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// [`SubmitError::Full`] until packets of that lane have left, or packets to the port itself
    /// were taken. [`SubmitError::NoPort`] if the node is no adapter with that port.
    /// [`SubmitError::Malformed`] and [`SubmitError::Discarded`], which are counted nowhere and at
    /// the port.
    pub fn submit(
        &mut self,
        node: NodeId,
        port: PortNum,
        packet: &[u8],
        now: Time,
    ) -> Result<(), SubmitError> {
        let now = now.max(self.now);
        let found = self.nodes.get_mut(node.at()).ok_or(SubmitError::NoPort)?;
        if let Some(spare) = self.spares.pop(packet.len()) {
            found.recycle(port, spare);
        }
        let taken = found.submit(port, packet, &mut self.scratch, now);
        // A packet that is refused is no news: who tries again must not keep the subnet from rest.
        if taken.is_ok() {
            self.agenda.touch(node.at());
        }
        taken
    }
    /// Does all that is due until now, in its order and at its times. Ends early after
    /// [`MOST_STEPS`] steps; then it is due again at once.
    pub fn run(&mut self, now: Time) {
        for _ in 0..MOST_STEPS {
            match self.agenda.pop_ready() {
                Some(thing) => self.step(thing),
                None => match self.agenda.advance(now) {
                    Some(at) => self.now = self.now.max(at),
                    None => {
                        self.now = self.now.max(now);
                        return;
                    }
                },
            }
        }
    }
    /// Returns when [`run`](Self::run) is to be called next; a time that has passed means at once.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.agenda.next()
    }

    /// Returns a port of an adapter that packets have arrived at since it was last returned.
    pub fn poll_ready(&mut self) -> Option<(NodeId, PortNum)> {
        let (node, port) = self.ready.pop_front()?;
        if let Some((attached, _)) = self.nodes.get_mut(node.at()).and_then(|n| n.external(port)) {
            attached.is_told = false;
        }
        Some((node, port))
    }
    /// Copies the next datagram for the clients of a port, LRH to ICRC, to `out` alone: a packet
    /// for queue pair 0 or 1 that no agent took. Returns whether there was one.
    pub fn poll_datagram(&mut self, node: NodeId, port: PortNum, out: &mut Vec<u8>) -> bool {
        let Some(found) = self.nodes.get_mut(node.at()) else { return false };
        let Some((attached, _)) = found.external(port) else { return false };
        let Some(packet) = attached.datagrams.pop_front() else { return false };
        out.clear();
        out.extend_from_slice(&packet);
        true
    }
    /// Returns the packet that [`poll_receive`](Self::poll_receive) would take, LRH to ICRC.
    pub fn peek_receive(&self, node: NodeId, port: PortNum) -> Option<&[u8]> {
        let Plane::Adapter(ports) = &self.nodes.get(node.at())?.plane else { return None };
        let packet = ports.get(usize::from(port.0).checked_sub(1)?)?.port.peek_receive()?;
        packet.len().checked_sub(vcrc::LEN).map(|len| &packet[..len])
    }
    /// Copies the next packet for the clients of a port that is no datagram, LRH to ICRC, to `out`
    /// alone, and frees what it took of the receive buffer. Returns whether there was one.
    pub fn poll_receive(&mut self, node: NodeId, port: PortNum, out: &mut Vec<u8>) -> bool {
        let Some(found) = self.nodes.get_mut(node.at()) else { return false };
        let Some((attached, _)) = found.external(port) else { return false };
        let packet = &mut self.scratch;
        if !attached.port.poll_receive(packet) {
            return false;
        }
        self.agenda.touch(node.at());
        out.clear();
        out.extend_from_slice(&packet[..packet.len() - vcrc::LEN]);
        self.spares.push(std::mem::take(packet), SPARES);
        true
    }
    /// Does what [`poll_receive`](Self::poll_receive) does, for a client that has copied the packet
    /// already, as [`peek_receive`](Self::peek_receive) returns it.
    pub fn skip_receive(&mut self, node: NodeId, port: PortNum) -> bool {
        let Some(found) = self.nodes.get_mut(node.at()) else { return false };
        let Some((attached, _)) = found.external(port) else { return false };
        let taken = attached.port.poll_receive(&mut self.scratch);
        if taken {
            self.agenda.touch(node.at());
            self.spares.push(std::mem::take(&mut self.scratch), SPARES);
        }
        taken
    }
    /// Returns a port of an adapter whose attributes have changed since it was last returned:
    /// states, LIDs, what a subnet manager has written. Counters do not count as changes.
    pub fn poll_change(&mut self) -> Option<(NodeId, PortNum)> {
        let (node, port) = self.changed.pop_front()?;
        if let Some((attached, _)) = self.nodes.get_mut(node.at()).and_then(|n| n.external(port)) {
            attached.is_change_told = false;
        }
        Some((node, port))
    }

    /// Takes packets of a group at a port of an adapter from now on, or no more. Returns whether
    /// there is such a port, and the LID is one of a group.
    pub fn set_member(&mut self, node: NodeId, port: PortNum, group: Lid, is_member: bool) -> bool {
        let found = self.nodes.get_mut(node.at()).and_then(|node| node.external(port));
        let Some((attached, _)) = found.filter(|_| group.is_multicast()) else { return false };
        if is_member {
            attached.port.join(group);
        } else {
            attached.port.leave(group);
        }
        true
    }
    /// Sets or clears capabilities of a node's port, as
    /// [`PortInfo::CAPABILITY_SM`](vernic_wire::smp::PortInfo::CAPABILITY_SM). The subnet manager
    /// is told by trap 144.
    pub fn set_capabilities(
        &mut self,
        node: NodeId,
        port: PortNum,
        mask: u32,
        are_set: bool,
        now: Time,
    ) {
        use crate::management::ManagedNode;
        let Some(found) = self.nodes.get_mut(node.at()) else { return };
        let Some(attributes) = found.state.port_mut(port) else { return };
        let before = attributes.capabilities;
        attributes.capabilities = if are_set { before | mask } else { before & !mask };
        if attributes.capabilities != before {
            let (agent, state) = found.agent();
            agent.handle_node_change(state, port, 0, now);
            self.after_agent(node);
        }
    }
    /// Returns whether a subnet manager has asked the clients of a port to register anew, since
    /// this was last called.
    pub fn take_client_reregister(&mut self, node: NodeId, port: PortNum) -> bool {
        let found = self.nodes.get_mut(node.at()).and_then(|node| node.external(port));
        found.is_some_and(|(_, port)| std::mem::take(&mut port.client_reregister))
    }
    /// Sets the description of a node. The subnet manager is told by trap 144.
    pub fn set_description(&mut self, node: NodeId, description: &str, now: Time) {
        let Some(found) = self.nodes.get_mut(node.at()) else { return };
        description.clone_into(&mut found.state.attributes.description);
        let port = PortNum(if found.state.forwarding.is_some() { 0 } else { 1 });
        let (agent, state) = found.agent();
        agent.handle_node_change(state, port, Change::DESCRIPTION, now);
        self.after_agent(node);
    }
    /// Counts a packet with a wrong partition key that a client of a port had, and tells the subnet
    /// manager by trap 257.
    pub fn handle_bad_pkey(&mut self, node: NodeId, port: PortNum, bad: &BadKey, now: Time) {
        let Some(found) = self.nodes.get_mut(node.at()) else { return };
        let Some((_, attributes)) = found.external(port) else { return };
        attributes.p_key_violations = attributes.p_key_violations.saturating_add(1);
        let (agent, state) = found.agent();
        agent.handle_bad_pkey(state, port, bad, now);
        self.after_agent(node);
    }
    /// Counts a packet with a wrong queue key that a client of a port had, and tells the subnet
    /// manager by trap 258.
    pub fn handle_bad_qkey(&mut self, node: NodeId, port: PortNum, bad: &BadKey, now: Time) {
        let Some(found) = self.nodes.get_mut(node.at()) else { return };
        let Some((_, attributes)) = found.external(port) else { return };
        attributes.q_key_violations = attributes.q_key_violations.saturating_add(1);
        let (agent, state) = found.agent();
        agent.handle_bad_qkey(state, port, bad, now);
        self.after_agent(node);
    }

    /// Cuts the cable at a port, or mends it. What is under way is lost and counted.
    ///
    /// # Errors
    /// [`NoCable`].
    pub fn set_cable(
        &mut self,
        node: NodeId,
        port: PortNum,
        is_up: bool,
        now: Time,
    ) -> Result<(), NoCable> {
        let at = self.cable_at(node, port)?;
        let cable = &mut self.cables[at];
        if cable.is_up == is_up {
            return Ok(());
        }
        cable.set_up(is_up);
        let now = now.max(self.now);
        for side in self.cables[at].sides {
            self.nodes[side.node].handle_cable(side.port, is_up, now);
            self.agenda.touch(side.node);
        }
        Ok(())
    }
    /// Lets the cable at a port carry no more than a rate, or what its width and speed say.
    ///
    /// # Errors
    /// [`NoCable`].
    pub fn set_rate(
        &mut self,
        node: NodeId,
        port: PortNum,
        rate: Option<Rate>,
    ) -> Result<(), NoCable> {
        let at = self.cable_at(node, port)?;
        for side in self.cables[at].sides {
            self.nodes[side.node].set_rate(side.port, rate.and_then(view::bytes_per_s));
            self.agenda.touch(side.node);
        }
        Ok(())
    }
    /// Lets bits on the cable at a port be wrong at a rate, from 0 (none) to 1. Which ones follows
    /// from the seed of the subnet, the cable and the traffic.
    ///
    /// # Errors
    /// [`NoCable`].
    pub fn set_bit_error_rate(
        &mut self,
        node: NodeId,
        port: PortNum,
        rate: f64,
    ) -> Result<(), NoCable> {
        let at = self.cable_at(node, port)?;
        let rate = if rate.is_finite() { rate.clamp(0.0, 1.0) } else { 0.0 };
        self.cables[at].set_bit_error_rate(rate, self.seed ^ (at as u64) << 8);
        Ok(())
    }
    /// Lets `tap` look at every packet that begins a cable, or nobody.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }
    /// Returns how many packets are held anywhere, or are under way.
    pub fn packets(&self) -> usize {
        let nodes = self.nodes.iter().map(|node| match &node.plane {
            Plane::Switch(switch) => switch.packets(),
            Plane::Adapter(ports) => ports.iter().map(|attached| attached.port.packets()).sum(),
        });
        nodes.sum::<usize>() + self.cables.iter().map(Cable::packets).sum::<usize>()
    }

    fn cable_at(&self, node: NodeId, port: PortNum) -> Result<usize, NoCable> {
        let end = self.ends.get(node.at()).and_then(|ends| *ends.get(usize::from(port.0))?);
        end.map(|(cable, _)| cable as usize).ok_or(NoCable)
    }
    fn after_agent(&mut self, node: NodeId) {
        self.nodes[node.at()].plan_agent();
        self.nodes[node.at()].refresh();
        self.agenda.touch(node.at());
    }
    /// Does what is due of a node, or of one direction of a cable.
    fn step(&mut self, thing: usize) {
        match thing.checked_sub(self.nodes.len()) {
            None => self.ask(thing),
            Some(direction) => self.arrive(direction / 2, direction % 2),
        }
    }
    /// Sends what a node has to send, and notes what it has for its clients.
    fn ask(&mut self, at: usize) {
        let mut out = std::mem::take(&mut self.scratch);
        while let Some((port, transmit)) = self.nodes[at].poll_transmit(&mut out, self.now) {
            self.carry(at, port, &transmit, &mut out);
        }
        self.scratch = out;
        let node = &mut self.nodes[at];
        while let Some((port, news)) = node.poll_news() {
            let end = (NodeId(at as u32), port);
            if news.has_packet {
                self.ready.push_back(end);
            }
            if news.has_changed {
                self.changed.push_back(end);
            }
        }
        let due = self.nodes[at].poll_timeout();
        self.agenda.plan(at, due);
    }
    /// Puts a frame on the cable of the port that it leaves by.
    fn carry(&mut self, node: usize, port: PortNum, transmit: &Transmit, bytes: &mut Vec<u8>) {
        let Some((cable, side)) = self.ends[node][usize::from(port.0)] else {
            if let Some(outside) = self.outside.get_mut(&(NodeId(node as u32), port.0)) {
                outside.put(transmit, bytes);
            }
            return;
        };
        let (at, side) = (cable as usize, usize::from(side));
        let cable = &mut self.cables[at];
        if let Some(tap) = &mut self.tap
            && transmit.kind == FrameKind::Packet
            && cable.is_up
        {
            let end = |side: Side| (NodeId(side.node as u32), side.port);
            let (from, to) = (end(cable.sides[side]), end(cable.sides[1 - side]));
            tap(Tapped { from, to, at: self.now, bytes });
        }
        let first = cable.put(side, self.now, transmit, bytes);
        if let Some(first) = first {
            self.plan_arrival(at, side, Some(first));
        }
    }
    fn plan_arrival(&mut self, cable: usize, side: usize, at: Option<Time>) {
        let thing = self.nodes.len() + 2 * cable + side;
        match at {
            Some(at) if at <= self.now => self.agenda.touch(thing),
            at => self.agenda.plan(thing, at),
        }
    }
    /// Brings the frames of one direction of a cable that have arrived to the other side.
    fn arrive(&mut self, cable: usize, from: usize) {
        let to = self.cables[cable].sides[1 - from];
        let (node, now) = (&mut self.nodes[to.node], self.now);
        while let Some(arrival) = self.cables[cable].take(from, now) {
            match arrival.frame {
                Flying::Signal(signal) => {
                    node.handle_frame(to.port, Frame::Signal(signal), now);
                }
                Flying::FlowControl(bytes) => {
                    node.handle_frame(to.port, Frame::FlowControl(&bytes), now);
                }
                Flying::Packet(bytes, life) => {
                    if arrival.is_damaged {
                        node.count_wrong_bit(to.port);
                    }
                    node.handle_packet(to.port, bytes, life, now);
                }
            }
        }
        self.agenda.touch(to.node);
        let next = self.cables[cable].next(from);
        self.plan_arrival(cable, from, next);
    }
}

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subnet")
            .field("nodes", &self.nodes.len())
            .field("cables", &self.cables.len())
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
