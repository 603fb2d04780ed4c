//! A port of a channel adapter: where packets begin and end (IBTA 17).
//!
//! Owns what is between the transport of a node and the cable. The transport submits packets and
//! takes those that arrived; until it takes them they hold the receive buffer, and the other end
//! has to wait. Ports of an adapter share nothing, so each is one of these. The owner checks the
//! ICRC and the partition: its queue pairs have the partitions.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;

use vernic_wire::link_packet::credit_blocks;
use vernic_wire::{Bth, Grh, Lid, Lrh, PortNum, Qpn, ServiceLevel, VirtualLane, vcrc};

use crate::Time;
use crate::attributes::{PortAttributes, PortState};
use crate::link::{
    Frame, Header, Life, Lifetimes, LinkConfig, Origin, PacketId, PacketStore, Port, Queued,
    SubmitError, Transmit, fits, lane_for,
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
    /// Packets that arrived for the queue pairs 0 and 1.
    management: VecDeque<PacketId>,
    /// Groups whose packets are taken.
    groups: BTreeSet<Lid>,
    /// Blocks of packets to this port itself that were not taken yet.
    looped_blocks: u32,
    submit_blocks: u32,
    misdirected: u64,
    /// Packets that arrived for the owner, those for management not counted.
    arrivals: u64,
}

impl AdapterPort {
    /// Makes a port without a cable.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            port: Port::new(config),
            store: PacketStore::default(),
            received: VecDeque::new(),
            management: VecDeque::new(),
            groups: BTreeSet::new(),
            looped_blocks: 0,
            submit_blocks: u32::from(config.submit_blocks),
            misdirected: 0,
            arrivals: 0,
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
                self.handle_packet(attributes, bytes.to_vec(), Life::new(now), now);
            }
        }
    }
    /// Takes a packet that arrived, as [`handle_frame`](Self::handle_frame) does, without a copy.
    pub fn handle_packet(
        &mut self,
        attributes: &mut PortAttributes,
        bytes: Vec<u8>,
        life: Life,
        now: Time,
    ) {
        let Some(header) = self.port.handle_packet(attributes, &bytes, now) else { return };
        if self.is_ours(attributes, header.dlid) {
            let origin = Origin::Port(PortNum(1), header.lane);
            let id = self.store.insert(bytes, header, origin, life);
            self.receive(id);
        } else {
            self.misdirected += 1;
            self.port.release(header.lane, header.blocks());
        }
    }
    fn receive(&mut self, id: PacketId) {
        let Some(stored) = self.store.find(id) else { return };
        match is_for_management(&stored.bytes) {
            true => self.management.push_back(id),
            false => {
                self.received.push_back(id);
                self.arrivals += 1;
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
        let (id, header) = self.store.insert_own(packet, now).ok_or(SubmitError::Malformed)?;
        match place {
            Place::Received => {
                self.looped_blocks += u32::from(header.blocks());
                self.receive(id);
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
    /// Moves the next packet that arrived, LRH to VCRC, to `out` alone, and frees what it took of
    /// the receive buffer. Returns whether there was one. Packets to queue pairs 0 and 1 come by
    /// [`poll_management`](Self::poll_management).
    pub fn poll_receive(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(id) = self.received.pop_front() else { return false };
        self.take(id, out)
    }
    /// Moves the next packet that arrived for the queue pairs 0 and 1, as
    /// [`poll_receive`](Self::poll_receive) does with the others.
    pub fn poll_management(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(id) = self.management.pop_front() else { return false };
        self.take(id, out)
    }
    /// Returns the packet that [`poll_receive`](Self::poll_receive) would move.
    pub fn peek_receive(&self) -> Option<&[u8]> {
        self.store.find(*self.received.front()?).map(|stored| &stored.bytes[..])
    }
    fn take(&mut self, id: PacketId, out: &mut Vec<u8>) -> bool {
        let Some((_, freed)) = self.store.take(id, out) else { return false };
        match freed {
            Some((Origin::Port(_, lane), header)) => self.port.release(lane, header.blocks()),
            Some((Origin::Node, header)) => self.looped_blocks -= u32::from(header.blocks()),
            None => {}
        }
        true
    }
    /// Moves the next frame to leave to `out` alone.
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
        Some(next.leave(&mut self.store, self.port.free_at(), now, out).0)
    }
    /// Gives a vector back that packets left in, for those to come.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.store.recycle(bytes);
    }
    /// Changes the bytes per second that the link carries at most, whatever its width and speed
    /// say, for what is sent from now on.
    pub const fn set_rate(&mut self, bytes_per_s: Option<NonZeroU64>) {
        self.port.set_rate(bytes_per_s);
    }
    /// Returns the bytes of data per second that the link carries at most.
    pub fn rate(&self, attributes: &PortAttributes) -> u64 {
        self.port.rate(attributes)
    }
    /// Returns the blocks of 64 bytes that the other end has room for, in a data lane.
    pub fn credits(&self, lane: VirtualLane) -> u16 {
        self.port.credits(lane)
    }
    /// Returns the blocks of 64 bytes that wait to leave, in a lane.
    pub fn queued_blocks(&self, lane: VirtualLane) -> u32 {
        self.port.queued_blocks(lane)
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
    /// Returns how many packets have arrived for [`poll_receive`](Self::poll_receive), since ever.
    pub const fn arrivals(&self) -> u64 {
        self.arrivals
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

/// Returns whether a packet is for the queue pairs of management, 0 or 1.
fn is_for_management(bytes: &[u8]) -> bool {
    let at = match Lrh::parse(bytes).map(|lrh| lrh.next_header) {
        Ok(Lrh::NEXT_BTH) => Lrh::LEN,
        Ok(Lrh::NEXT_GRH) => Lrh::LEN + Grh::LEN,
        _ => return false,
    };
    let bth = bytes.get(at..).and_then(|bytes| Bth::parse(bytes).ok());
    bth.is_some_and(|bth| bth.dest_qpn == Qpn::SMI || bth.dest_qpn == Qpn::GSI)
}

/// Returns whether a LID is one of the port's.
fn is_own(attributes: &PortAttributes, dlid: Lid) -> bool {
    let shift = attributes.lmc.min(7);
    attributes.lid.is_unicast() && dlid.0 >> shift == attributes.lid.0 >> shift
}
