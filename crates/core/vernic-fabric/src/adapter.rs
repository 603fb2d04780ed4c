//! A port of a channel adapter: where packets begin and end (IBTA 17).
//!
//! Owns what is between the transport of a node and the cable. The transport submits packets and
//! takes those that arrived; until it takes them they hold the receive buffer, and the other end
//! has to wait. Ports of an adapter share nothing, so each is one of these. The owner checks the
//! ICRC and the partition: its queue pairs have the partitions.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use vernic_wire::link_packet::credit_blocks;
use vernic_wire::{Lid, Lrh, PortNum, ServiceLevel, VirtualLane, vcrc};

use crate::Time;
use crate::attributes::{PortAttributes, PortState};
use crate::link::{
    Frame, Header, Lifetimes, LinkConfig, Origin, PacketId, PacketStore, Port, Queued, SubmitError,
    Transmit, fits, lane_for,
};

/// The data plane of one port of a channel adapter.
///
/// After every call that brings news, and after changes of the attributes, ask
/// [`poll_transmit`](Self::poll_transmit) until there is nothing, and again at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub struct AdapterPort {
    port: Port,
    store: PacketStore,
    received: VecDeque<PacketId>,
    /// Groups whose packets are taken.
    groups: BTreeSet<Lid>,
    /// Blocks of packets to this port itself that were not taken yet.
    looped_blocks: u32,
    submit_blocks: u32,
    misdirected: u64,
}

impl AdapterPort {
    /// Makes a port without a cable.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            port: Port::new(config),
            store: PacketStore::default(),
            received: VecDeque::new(),
            groups: BTreeSet::new(),
            looped_blocks: 0,
            submit_blocks: u32::from(config.submit_blocks),
            misdirected: 0,
        }
    }
    /// Takes packets of a group from now on. Returns whether the LID is one of a group.
    pub fn join(&mut self, group: Lid) -> bool {
        if group.is_multicast() {
            self.groups.insert(group);
        }
        group.is_multicast()
    }
    /// Takes packets of a group no more.
    pub fn leave(&mut self, group: Lid) {
        self.groups.remove(&group);
    }
    /// Takes the news that a cable leads to another port, or that it does not any more.
    pub fn handle_cable(&mut self, attributes: &mut PortAttributes, plugged: bool, now: Time) {
        self.port.handle_cable(attributes, plugged, now);
    }
    /// Takes a frame that arrived. A packet that is not for this port is dropped and counted by
    /// [`misdirected`](Self::misdirected).
    pub fn handle_frame(&mut self, attributes: &mut PortAttributes, frame: Frame<'_>, now: Time) {
        match frame {
            Frame::Signal(signal) => self.port.handle_signal(attributes, signal, now),
            Frame::FlowControl(bytes) => self.port.handle_flow_control(attributes, bytes, now),
            Frame::Packet(bytes) => {
                let Some(header) = self.port.handle_packet(attributes, bytes, now) else { return };
                if self.is_ours(attributes, header.dlid) {
                    let origin = Origin::Port(PortNum(1), header.lane);
                    self.received.push_back(self.store.insert(bytes, header, origin));
                } else {
                    self.misdirected += 1;
                    self.port.release(header.lane, header.blocks());
                }
            }
        }
    }
    /// Takes a packet to be sent, LRH to ICRC. It leaves by the lane of management if its LRH says
    /// so, else by that of its service level. A packet to this port itself never leaves.
    ///
    /// # Errors
    /// [`SubmitError::Full`] until packets of that lane have left, or packets to this port itself
    /// were taken; [`SubmitError::Malformed`]; [`SubmitError::Discarded`].
    pub fn submit(
        &mut self,
        attributes: &mut PortAttributes,
        packet: &[u8],
        now: Time,
    ) -> Result<(), SubmitError> {
        let place = self.place_for(attributes, packet).inspect_err(|error| {
            attributes.counters.xmit_discards += u64::from(*error == SubmitError::Discarded);
        })?;
        let (id, header) = self.store.insert_own(packet).ok_or(SubmitError::Malformed)?;
        match place {
            Place::Received => {
                self.looped_blocks += u32::from(header.blocks());
                self.received.push_back(id);
            }
            Place::Lane(lane) => {
                let header = Header { lane, ..header };
                self.port.enqueue(Queued { packet: id, header, since: now }, now);
            }
        }
        Ok(())
    }
    /// Returns where a packet goes, by its LRH alone: a packet that does not go costs no CRC.
    fn place_for(&self, attributes: &PortAttributes, packet: &[u8]) -> Result<Place, SubmitError> {
        let lrh = Lrh::parse(packet).map_err(|_| SubmitError::Malformed)?;
        let len = packet.len() + vcrc::LEN;
        let blocks = u32::from(credit_blocks(len));
        if is_own(attributes, Lid(lrh.dlid)) {
            let fits = self.looped_blocks + blocks <= self.submit_blocks;
            return if fits { Ok(Place::Received) } else { Err(SubmitError::Full) };
        }
        let (lane, least) = match VirtualLane::new(lrh.virtual_lane) {
            VirtualLane::MANAGEMENT => (Some(VirtualLane::MANAGEMENT), PortState::Init),
            _ => {
                let service_level = ServiceLevel::new(lrh.service_level);
                (lane_for(attributes, PortNum(0), service_level), PortState::Active)
            }
        };
        let passes = attributes.state >= least && fits(len, attributes.neighbor_mtu);
        let lane = lane.filter(|_| passes).ok_or(SubmitError::Discarded)?;
        let is_full = self.port.queued_blocks(lane) + blocks > self.submit_blocks;
        if is_full { Err(SubmitError::Full) } else { Ok(Place::Lane(lane)) }
    }
    /// Copies the next packet that arrived, LRH to VCRC, to `out` alone. That frees what it took of
    /// the receive buffer. Returns whether there was one.
    pub fn poll_receive(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(id) = self.received.pop_front() else { return false };
        let Some(stored) = self.store.find(id) else { return false };
        out.clear();
        out.extend_from_slice(&stored.bytes);
        if let Some((origin, header)) = self.store.release(id) {
            match origin {
                Origin::Port(_, lane) => self.port.release(lane, header.blocks()),
                Origin::Node => self.looped_blocks -= u32::from(header.blocks()),
            }
        }
        true
    }
    /// Copies the next frame to leave to `out` alone.
    pub fn poll_transmit(
        &mut self,
        attributes: &mut PortAttributes,
        now: Time,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        while let Some(queued) = self.port.poll_discard(attributes, &Lifetimes::FOR_EVER, now) {
            self.store.release(queued.packet);
        }
        let next = self.port.poll(attributes, now)?;
        let kind = next.write(&self.store, out);
        if let Some(queued) = next.packet() {
            self.store.release(queued.packet);
        }
        Some(Transmit { kind, free_at: self.port.free_at() })
    }
    /// Returns when [`poll_transmit`](Self::poll_transmit) is to be called next; a time that has
    /// passed means at once.
    pub fn poll_timeout(&self, attributes: &PortAttributes) -> Option<Time> {
        self.port.due(attributes, &Lifetimes::FOR_EVER)
    }
    /// Returns whether the link came up or went down since this was last called, other than by
    /// management of this port.
    pub fn poll_change(&mut self) -> bool {
        self.port.poll_change()
    }
    /// Returns how many packets arrived that were not for this port.
    pub const fn misdirected(&self) -> u64 {
        self.misdirected
    }
    /// Returns how many packets the port holds.
    pub fn packets(&self) -> usize {
        self.store.len()
    }
    /// Returns the free blocks of 64 bytes of the receive buffer, in a lane.
    pub fn free_blocks(&self, lane: VirtualLane) -> u16 {
        self.port.free_blocks(lane)
    }

    fn is_ours(&self, attributes: &PortAttributes, dlid: Lid) -> bool {
        dlid == Lid::PERMISSIVE || is_own(attributes, dlid) || self.groups.contains(&dlid)
    }
}

/// Where a packet of the owner goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// To this port itself.
    Received,
    /// By a lane.
    Lane(VirtualLane),
}

/// Returns whether a LID is one of the port's.
fn is_own(attributes: &PortAttributes, dlid: Lid) -> bool {
    let shift = attributes.lmc.min(7);
    attributes.lid.is_unicast() && dlid.0 >> shift == attributes.lid.0 >> shift
}
