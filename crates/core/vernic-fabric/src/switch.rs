//! A switch: forwards packets within a subnet (IBTA 18.2).
//!
//! Owns what happens between the ports of a switch. A packet is received whole, stays in the
//! receive buffer of the port that it came by, and waits in the queue of each port that it leaves
//! by. The buffer's credits come back with the last copy. Packets to the switch itself go to the
//! owner, and packets of the owner leave by any port.
//!
//! Tables that lead in a circle are the subnet manager's to avoid. A packet has no count of hops on
//! the wire, and its lifetime is that of one switch. So a [`Life`] goes beside it: one that has
//! passed more switches than there can be on its way is discarded and counted.
//!
//! | module | owns |
//! |---|---|
//! | `route` | the ports that a packet leaves by |
//! | `leave` | whether a packet may leave by a port, and on which lane; partitions |
//! | `view` | the attributes that the switch borrows, and what is counted there |
//! | `schedule`, `port_set` | which ports to ask for something to send; sets of ports |

mod leave;
mod port_set;
mod route;
mod schedule;
#[cfg(test)]
mod tests;
mod view;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use vernic_wire::{PortNum, VirtualLane};

use self::port_set::PortSet;
use self::route::NoRoute;
use self::schedule::Schedule;
use self::view::Refusal;
pub use self::view::View;
use crate::Time;
use crate::attributes::PortAttributes;
use crate::link::{
    Frame, Header, Life, LinkConfig, Origin, PacketId, PacketStore, Port, Queued, SubmitError,
    Transmit,
};

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
    schedule: Schedule,
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
            schedule: Schedule::new(ports),
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
                self.handle_packet(view, port, bytes.to_vec(), Life::new(now), now);
                return;
            }
        }
        self.after(view, port);
    }
    /// Takes a packet that arrived at a port, as [`handle_frame`](Self::handle_frame) does, without
    /// a copy.
    pub fn handle_packet(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        bytes: Vec<u8>,
        life: Life,
        now: Time,
    ) {
        let Some((link, attributes)) = link(&mut self.ports, view, port) else { return };
        if let Some(header) = link.handle_packet(attributes, &bytes, now) {
            let origin = Origin::Port(port, header.lane);
            let id = self.store.insert(bytes, header, origin, life.next());
            self.receive(view, port, id, header, now);
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
        let (id, header) = self.insert_own(packet, now)?;
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
        let (id, header) = self.insert_own(packet, now)?;
        self.leave(view, PortNum(0), port, id, header, now);
        self.release(id);
        Ok(())
    }
    /// Moves the next packet for the switch itself, LRH to VCRC, to `out` alone. Returns the port
    /// that it came by; 0 if the owner sent it to itself.
    pub fn poll_management(&mut self, out: &mut Vec<u8>) -> Option<PortNum> {
        let id = self.management.pop_front()?;
        let port = match self.store.find(id)?.origin {
            Origin::Port(port, _) => port,
            Origin::Node => PortNum(0),
        };
        let (_, freed) = self.store.take(id, out)?;
        self.free(freed);
        Some(port)
    }
    /// Moves the next frame to leave to `out` alone, and returns the port that it leaves by.
    pub fn poll_transmit(
        &mut self,
        view: &mut View<'_>,
        now: Time,
        out: &mut Vec<u8>,
    ) -> Option<(PortNum, Transmit)> {
        self.schedule.advance(now);
        while let Some(port) = self.schedule.ready() {
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
        self.schedule.timeout()
    }
    /// Returns a port whose link came up or went down, other than by management of this switch.
    pub fn poll_change(&mut self) -> Option<PortNum> {
        let port = self.changed.first()?;
        self.changed.remove(port);
        Some(port)
    }
    /// Looks at all ports anew. To be called when attributes have changed.
    pub fn refresh(&mut self) {
        self.schedule.touch_all();
    }
    /// Gives a vector back that packets left in, for those to come.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.store.recycle(bytes);
    }
    /// Changes the bytes per second that a port's link carries at most, whatever its width and
    /// speed say, for what is sent from now on.
    pub fn set_rate(&mut self, port: PortNum, bytes_per_s: Option<NonZeroU64>) {
        if let Some(link) = link_of(&mut self.ports, port) {
            link.set_rate(bytes_per_s);
        }
    }
    /// Returns the bytes of data per second that a port's link carries at most; 0 without a port.
    pub fn rate(&self, attributes: &PortAttributes, port: PortNum) -> u64 {
        self.external(port).map_or(0, |port| port.rate(attributes))
    }
    /// Returns the blocks of 64 bytes that the other end of a port's link has room for, in a data
    /// lane.
    pub fn credits(&self, port: PortNum, lane: VirtualLane) -> u16 {
        self.external(port).map_or(0, |port| port.credits(lane))
    }
    /// Returns the blocks of 64 bytes that wait to leave by a port, in a lane.
    pub fn queued_blocks(&self, port: PortNum, lane: VirtualLane) -> u32 {
        self.external(port).map_or(0, |port| port.queued_blocks(lane))
    }
    /// Returns how many packets the switch holds.
    pub fn packets(&self) -> usize {
        self.store.len()
    }
    /// Returns the free blocks of 64 bytes of a port's receive buffer, in a lane.
    pub fn free_blocks(&self, port: PortNum, lane: VirtualLane) -> u16 {
        self.external(port).map_or(0, |port| port.free_blocks(lane))
    }
    fn external(&self, port: PortNum) -> Option<&Port> {
        self.ports.get(usize::from(port.0).checked_sub(1)?)
    }

    /// Notes what a call has done to a port.
    fn after(&mut self, view: &mut View<'_>, port: PortNum) {
        self.schedule.touch(port);
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
        let (transmit, freed) = next.leave(&mut self.store, free_at, now, out);
        self.free(freed);
        Some(transmit)
    }
    /// Leaves a port alone until it is due.
    fn rest(&mut self, view: &mut View<'_>, port: PortNum) {
        let lifetimes = view.lifetimes(port);
        let link = link(&mut self.ports, view, port);
        let due = link.and_then(|(link, attributes)| link.due(attributes, &lifetimes));
        self.schedule.rest(port, due);
    }
    /// Takes a packet that arrived, and that has taken room of the receive buffer.
    fn receive(
        &mut self,
        view: &mut View<'_>,
        port: PortNum,
        id: PacketId,
        header: Header,
        now: Time,
    ) {
        let Some(attributes) = view.port(port) else { return };
        if attributes.enforces_inbound && !leave::is_member(attributes, &header) {
            attributes.counters.rcv_constraint += 1;
            attributes.p_key_violations = attributes.p_key_violations.saturating_add(1);
            self.release(id);
        } else {
            self.forward(view, port, id, header, now);
        }
    }
    fn insert_own(&mut self, packet: &[u8], now: Time) -> Result<(PacketId, Header), SubmitError> {
        let inserted = self.store.insert_own(packet, now);
        let (id, header) = inserted.ok_or(SubmitError::Malformed)?;
        self.own_blocks += u32::from(header.blocks());
        if self.own_blocks > self.most_own_blocks {
            self.release(id);
            return Err(SubmitError::Full);
        }
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
            Err(NoRoute) => view.count(ingress, PortNum(0), Refusal::Relay),
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
        let life = self.store.find(id).map(|stored| stored.life);
        if life.is_some_and(|life| life.is_over(header.dlid.is_multicast(), now)) {
            view.count(ingress, egress, Refusal::Discard);
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
                self.schedule.touch(egress);
            }
            Err(refusal) => view.count(ingress, egress, refusal),
        }
    }
    /// Gives up one copy of a packet, and with the last one its room.
    fn release(&mut self, id: PacketId) {
        let freed = self.store.release(id);
        self.free(freed);
    }
    fn free(&mut self, freed: Option<(Origin, Header)>) {
        match freed {
            Some((Origin::Port(port, lane), header)) => {
                self.give_back(port, lane, header.blocks());
            }
            Some((Origin::Node, header)) => self.own_blocks -= u32::from(header.blocks()),
            None => {}
        }
    }
    fn give_back(&mut self, port: PortNum, lane: VirtualLane, blocks: u16) {
        if let Some(link) = link_of(&mut self.ports, port) {
            link.release(lane, blocks);
            self.schedule.touch(port);
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
