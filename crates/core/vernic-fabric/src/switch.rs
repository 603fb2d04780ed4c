//! A switch: forwards packets within a subnet (IBTA 18.2).
//!
//! Owns what happens between the ports of a switch. A packet is received whole, stays in the
//! receive buffer of the port that it came by, and waits in the queue of each port that it leaves
//! by. The buffer's credits come back with the last copy. Packets to the switch itself go to the
//! owner, and packets of the owner leave by any port.
//!
//! | module | owns |
//! |---|---|
//! | `route` | the ports that a packet leaves by |
//! | `leave` | whether a packet may leave by a port, and on which lane; partitions |
//! | `port_set` | sets of ports |

mod leave;
mod port_set;
mod route;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use vernic_wire::{PortNum, VirtualLane};

use self::leave::Refusal;
use self::port_set::PortSet;
use self::route::NoRoute;
use crate::Time;
use crate::attributes::{Forwarding, PortAttributes};
use crate::link::{
    Frame, Header, Lifetimes, LinkConfig, Origin, PacketId, PacketStore, Port, Queued, SubmitError,
    Transmit,
};

/// The attributes of a switch, borrowed for a call.
#[derive(Debug)]
pub struct View<'a> {
    /// The ports by number; the first is port 0, the switch itself.
    pub ports: &'a mut [PortAttributes],
    /// The forwarding tables.
    pub forwarding: &'a mut Forwarding,
}

impl View<'_> {
    fn port(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        self.ports.get_mut(usize::from(port.0))
    }
    fn lifetimes(&self, port: PortNum) -> Lifetimes {
        match self.ports.get(usize::from(port.0)) {
            Some(attributes) => Lifetimes::of_codes(
                attributes.head_of_queue_life,
                self.forwarding.life_time,
                attributes.stall_count,
            ),
            None => Lifetimes::FOR_EVER,
        }
    }
}

/// The data plane of a switch.
///
/// After every call that brings news, ask [`poll_transmit`](Self::poll_transmit) until there is
/// nothing, and again at [`poll_timeout`](Self::poll_timeout). Ports that the switch does not have
/// are ignored, and so are ports without attributes.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Ports from 1 on.
    ports: Vec<Port>,
    store: PacketStore,
    /// Packets for the owner.
    management: VecDeque<PacketId>,
    /// Blocks of packets of the owner that have not left, and how many there may be.
    own_blocks: u32,
    most_own_blocks: u32,
    /// Ports that may have something to send.
    ready: PortSet,
    /// When each port is due, if it is not ready.
    due: Vec<Option<Time>>,
    /// Ports whose link came up or went down.
    changed: PortSet,
}

impl Switch {
    /// Makes a switch of so many external ports, 1 to 254, all alike and without cables.
    pub fn new(ports: u8, config: LinkConfig) -> Self {
        let ports = usize::from(ports.min(254));
        Self {
            ports: vec![Port::new(config); ports],
            store: PacketStore::default(),
            management: VecDeque::new(),
            own_blocks: 0,
            most_own_blocks: u32::from(config.submit_blocks),
            ready: PortSet::up_to(ports),
            due: vec![None; ports],
            changed: PortSet::default(),
        }
    }
    /// Takes the news that a cable leads from a port to another one, or that it does not any more.
    pub fn handle_cable(&mut self, view: &mut View<'_>, port: PortNum, plugged: bool, now: Time) {
        let Some((link, attributes)) = link(&mut self.ports, view, port) else { return };
        link.handle_cable(attributes, plugged, now);
        self.after(view, port);
    }
    /// Takes a frame that arrived at a port.
    pub fn handle_frame(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        frame: Frame<'_>,
        now: Time,
    ) {
        let Some((link, attributes)) = link(&mut self.ports, view, port) else { return };
        match frame {
            Frame::Signal(signal) => link.handle_signal(attributes, signal, now),
            Frame::FlowControl(bytes) => link.handle_flow_control(attributes, bytes, now),
            Frame::Packet(bytes) => {
                if let Some(header) = link.handle_packet(attributes, bytes, now) {
                    self.receive(view, port, header, bytes, now);
                }
            }
        }
        self.after(view, port);
    }
    /// Takes a packet of the owner, LRH to ICRC, and sends it to its LID. In the lane of management
    /// if its LRH says so, else by the service level.
    ///
    /// # Errors
    /// [`SubmitError::Full`] until packets of the owner have left;
    /// [`SubmitError::Malformed`] if it is no packet.
    pub fn submit(
        &mut self,
        view: &mut View<'_>,
        packet: &[u8],
        now: Time,
    ) -> Result<(), SubmitError> {
        let (id, header) = self.insert_own(packet)?;
        self.forward(view, PortNum(0), id, header, now);
        Ok(())
    }
    /// Takes a packet of the owner, LRH to ICRC, and sends it by a port, whatever its LID: subnet
    /// management on a directed route.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`SubmitError::NoPort`].
    pub fn send_management(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        packet: &[u8],
        now: Time,
    ) -> Result<(), SubmitError> {
        if link(&mut self.ports, view, port).is_none() {
            return Err(SubmitError::NoPort);
        }
        let (id, header) = self.insert_own(packet)?;
        self.leave(view, PortNum(0), port, id, header, now);
        self.release(id);
        Ok(())
    }
    /// Copies the next packet for the switch itself, LRH to VCRC, to `out` alone. Returns the port
    /// that it came by; 0 if the owner sent it to itself.
    pub fn poll_management(&mut self, out: &mut Vec<u8>) -> Option<PortNum> {
        let id = self.management.pop_front()?;
        let stored = self.store.find(id)?;
        out.clear();
        out.extend_from_slice(&stored.bytes);
        let port = match stored.origin {
            Origin::Port(port, _) => port,
            Origin::Node => PortNum(0),
        };
        self.release(id);
        self.refresh();
        Some(port)
    }
    /// Copies the next frame to leave to `out` alone, and returns the port that it leaves by.
    pub fn poll_transmit(
        &mut self,
        view: &mut View<'_>,
        now: Time,
        out: &mut Vec<u8>,
    ) -> Option<(PortNum, Transmit)> {
        let due = self.due.iter().zip(1..).filter(|(due, _)| due.is_some_and(|due| due <= now));
        due.for_each(|(_, port)| self.ready.insert(PortNum(port)));
        while let Some(port) = self.ready.first() {
            if let Some(transmit) = self.poll_port(view, port, now, out) {
                return Some((port, transmit));
            }
            self.rest(view, port);
        }
        None
    }
    /// Returns when [`poll_transmit`](Self::poll_transmit) is to be called next; a time that has
    /// passed means at once.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.ready.first().is_some() {
            return Some(Time(0));
        }
        self.due.iter().flatten().min().copied()
    }
    /// Returns a port whose link came up or went down, other than by management of this switch.
    pub fn poll_change(&mut self) -> Option<PortNum> {
        let port = self.changed.first()?;
        self.changed.remove(port);
        Some(port)
    }
    /// Looks at all ports anew. To be called when attributes have changed other than in answer to a
    /// packet of [`poll_management`](Self::poll_management).
    pub fn refresh(&mut self) {
        self.ready = PortSet::up_to(self.ports.len());
    }
    /// Returns how many packets the switch holds.
    pub fn packets(&self) -> usize {
        self.store.len()
    }
    /// Returns the free blocks of 64 bytes of a port's receive buffer, in a lane.
    pub fn free_blocks(&self, port: PortNum, lane: VirtualLane) -> u16 {
        let port = usize::from(port.0).checked_sub(1).and_then(|at| self.ports.get(at));
        port.map_or(0, |port| port.free_blocks(lane))
    }

    /// Notes what a call has done to a port.
    fn after(&mut self, view: &mut View<'_>, port: PortNum) {
        self.ready.insert(port);
        let Some((link, _)) = link(&mut self.ports, view, port) else { return };
        if link.poll_change() {
            self.changed.insert(port);
            view.forwarding.port_changed = true;
        }
    }
    fn poll_port(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        now: Time,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let lifetimes = view.lifetimes(port);
        while let Some(queued) = {
            let (link, attributes) = link(&mut self.ports, view, port)?;
            link.poll_discard(attributes, &lifetimes, now)
        } {
            self.release(queued.packet);
        }
        let (link, attributes) = link(&mut self.ports, view, port)?;
        let next = link.poll(attributes, now)?;
        let free_at = link.free_at();
        let kind = next.write(&self.store, out);
        if let Some(queued) = next.packet() {
            self.release(queued.packet);
        }
        Some(Transmit { kind, free_at })
    }
    /// Leaves a port alone until it is due.
    fn rest(&mut self, view: &mut View<'_>, port: PortNum) {
        self.ready.remove(port);
        let lifetimes = view.lifetimes(port);
        let due = link(&mut self.ports, view, port)
            .and_then(|(link, attributes)| link.due(attributes, &lifetimes));
        if let Some(slot) = usize::from(port.0).checked_sub(1).and_then(|at| self.due.get_mut(at)) {
            *slot = due;
        }
    }
    /// Takes a packet that arrived, and that has taken room of the receive buffer.
    fn receive(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        header: Header,
        bytes: &[u8],
        now: Time,
    ) {
        let id = self.store.insert(bytes, header, Origin::Port(port, header.lane));
        let Some(attributes) = view.port(port) else { return };
        if attributes.enforces_inbound && !leave::is_member(attributes, &header) {
            attributes.counters.rcv_constraint += 1;
            attributes.p_key_violations = attributes.p_key_violations.saturating_add(1);
            self.release(id);
        } else {
            self.forward(view, port, id, header, now);
        }
    }
    fn insert_own(&mut self, packet: &[u8]) -> Result<(PacketId, Header), SubmitError> {
        let inserted = self.store.insert_own(packet);
        let (id, header) = inserted.ok_or(SubmitError::Malformed)?;
        self.own_blocks += u32::from(header.blocks());
        if self.own_blocks > self.most_own_blocks {
            self.release(id);
            return Err(SubmitError::Full);
        }
        self.refresh();
        Ok((id, header))
    }
    /// Sends a packet by the ports that the tables say.
    fn forward(
        &mut self,
        view: &mut View<'_>,
        ingress: PortNum,
        id: PacketId,
        header: Header,
        now: Time,
    ) {
        match route::ports_of(view, ingress, &header) {
            Ok(ports) => {
                for egress in ports.iter() {
                    self.leave(view, ingress, egress, id, header, now);
                }
            }
            Err(NoRoute) => count(view, ingress, PortNum(0), Refusal::Relay),
        }
        self.release(id);
    }
    /// Sends one copy of a packet by a port, or to the owner by port 0.
    fn leave(
        &mut self,
        view: &mut View<'_>,
        ingress: PortNum,
        egress: PortNum,
        id: PacketId,
        header: Header,
        now: Time,
    ) {
        if egress == PortNum(0) {
            self.store.copy(id);
            self.management.push_back(id);
            return;
        }
        match leave::lane_of(view, ingress, egress, &header) {
            Ok(lane) => {
                let Some((link, _)) = link(&mut self.ports, view, egress) else { return };
                self.store.copy(id);
                link.enqueue(
                    Queued { packet: id, header: Header { lane, ..header }, since: now },
                    now,
                );
                self.ready.insert(egress);
            }
            Err(refusal) => count(view, ingress, egress, refusal),
        }
    }
    /// Gives up one copy of a packet, and with the last one its room.
    fn release(&mut self, id: PacketId) {
        let Some((origin, header)) = self.store.release(id) else { return };
        match origin {
            Origin::Port(port, lane) => self.give_back(port, lane, header.blocks()),
            Origin::Node => self.own_blocks -= u32::from(header.blocks()),
        }
    }
    fn give_back(&mut self, port: PortNum, lane: VirtualLane, blocks: u16) {
        if let Some(link) = link_of(&mut self.ports, port) {
            link.release(lane, blocks);
            self.ready.insert(port);
        }
    }
}

/// Finds an external port of a switch.
fn link_of(ports: &mut [Port], port: PortNum) -> Option<&mut Port> {
    ports.get_mut(usize::from(port.0).checked_sub(1)?)
}

/// Finds an external port of a switch with its attributes.
fn link<'a>(
    ports: &'a mut [Port],
    view: &'a mut View<'_>,
    port: PortNum,
) -> Option<(&'a mut Port, &'a mut PortAttributes)> {
    Some((link_of(ports, port)?, view.port(port)?))
}

/// Counts a packet, or a copy, that does not leave.
fn count(view: &mut View<'_>, ingress: PortNum, egress: PortNum, refusal: Refusal) {
    let at = if refusal == Refusal::Relay { ingress } else { egress };
    let Some(attributes) = view.port(at) else { return };
    let counters = &mut attributes.counters;
    match refusal {
        Refusal::Relay => counters.rcv_switch_relay += 1,
        Refusal::Discard => counters.xmit_discards += 1,
        Refusal::Partition => counters.xmit_constraint += 1,
    }
}
