//! Packet sinks: where the packets of a turn are written, to the batch of a link or to the ring of
//! a local peer. For datagrams the choice is made for each packet.

use vernic_io::{TxBatch, TxLanes, TxPath};
use vernic_local::LocalPeerId;
use vernic_local::{DatagramRoute, LocalPeers, RingOut};
use vernic_proto::{Qp, Time, Transmit};
use vernic_wire::Qpn;

use crate::device::opened::Device;
use crate::lane::udp_backpressure::{Reservation, UdpBackpressure};
use crate::qp::host::QpHost;

/// All sinks of a lane.
pub(super) struct Sinks<'a> {
    pub(super) tx: &'a mut TxLanes,
    pub(super) udp_backpressure: &'a mut UdpBackpressure,
    pub(super) rings: &'a mut LocalPeers,
}

/// Space for a packet.
pub(super) enum Room<'a> {
    Free(&'a mut [u8]),
    /// No space until the batch has been sent, which the lane does next.
    Batch,
    /// No space until the receiver has taken something out of its ring.
    Receiver,
    /// No space until a later turn: the virtual lane is full, or the receiver of datagrams is.
    Later,
}

/// Where the packets of a part of a turn are written.
pub(super) trait PacketSink {
    /// Returns space for the next packet of a queue pair.
    fn room(&mut self, machine: &mut Qp, host: &QpHost<'_>) -> Room<'_>;
    /// Sends the packet in that space; `path` is the queue pair's.
    fn push(&mut self, path: Option<&TxPath>, sent: &Transmit);
}

impl PacketSink for TxBatch {
    #[inline]
    fn room(&mut self, _: &mut Qp, _: &QpHost<'_>) -> Room<'_> {
        self.room().map_or(Room::Batch, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: Option<&TxPath>, sent: &Transmit) {
        // Every packet of a state that sends has a path: the transition to RTR set it.
        if let Some(path) = path {
            self.push(path, sent.len);
        }
    }
}

impl PacketSink for RingOut<'_> {
    #[inline]
    fn room(&mut self, _: &mut Qp, _: &QpHost<'_>) -> Room<'_> {
        let is_lost = self.is_given_up();
        self.room(is_lost).map_or(Room::Receiver, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: Option<&TxPath>, sent: &Transmit) {
        if let Some(path) = path {
            self.push(path, sent.len);
        }
    }
}

/// The destination of the next datagram.
#[derive(Clone, Copy)]
enum Next {
    Nowhere,
    Link(TxPath),
    /// Through a ring; `true` if the datagram is lost there.
    Ring(TxPath, LocalPeerId, bool),
}

/// The sink of an unreliable service: each packet goes to the ring of its receiver, or to the
/// link as soon as the receiver has room for it.
pub(super) struct Datagrams<'r, 'a> {
    sinks: &'r mut Sinks<'a>,
    device: &'r Device,
    reservation: Option<Reservation>,
    next: Next,
    now: Time,
}

impl<'r, 'a> Datagrams<'r, 'a> {
    pub(super) fn new(sinks: &'r mut Sinks<'a>, device: &'r Device, now: Time) -> Self {
        Self { sinks, device, reservation: None, next: Next::Nowhere, now }
    }

    /// Gives back what was reserved and not used.
    pub(super) fn finish(self) {
        if let Some(reservation) = self.reservation {
            self.sinks.udp_backpressure.settle(reservation);
        }
    }

    /// Chooses the route of the next packet: the ring of a local peer, the wire, or to wait.
    #[inline]
    fn choose(&mut self, path: &TxPath, dest: Qpn, is_peer_gone: bool) -> DatagramRoute {
        let Sinks { udp_backpressure, rings, .. } = &mut *self.sinks;
        if rings.is_empty() || is_peer_gone {
            return DatagramRoute::Wire;
        }
        let slots = &self.device.slots();
        let route =
            rings.datagram_route(path, dest, self.now, || udp_backpressure.is_idle(path, slots));
        match route {
            DatagramRoute::Ring(id) if !rings.has_writer(id) => DatagramRoute::Wire,
            route => route,
        }
    }

    fn ring_room(&mut self, path: TxPath, id: LocalPeerId) -> Room<'_> {
        let Some(ring) = self.sinks.rings.out(id, self.now) else { return Room::Later };
        match ring.into_room() {
            Some((room, is_lost)) => {
                self.next = Next::Ring(path, id, is_lost);
                Room::Free(room)
            }
            None => Room::Receiver,
        }
    }

    fn link_room(&mut self, path: Option<TxPath>, is_wanted: bool) -> Room<'_> {
        let Sinks { tx, udp_backpressure, .. } = &mut *self.sinks;
        let Some(batch) = tx.of(path.map_or(0, |path| path.lane())) else { return Room::Later };
        let Some(room) = batch.room() else { return Room::Batch };
        let Some(path) = path else { return Room::Free(room) };
        if is_wanted && !self.reservation.is_some_and(|reservation| reservation.covers(&path)) {
            if let Some(reservation) = self.reservation.take() {
                udp_backpressure.settle(reservation);
            }
            let (slots, counters) = (self.device.slots(), self.device.counts());
            self.reservation = udp_backpressure.reserve(&path, slots, counters, self.now);
            if self.reservation.is_none() {
                return Room::Later;
            }
        }
        self.next = Next::Link(path);
        Room::Free(room)
    }
}

impl PacketSink for Datagrams<'_, '_> {
    #[inline]
    fn room(&mut self, machine: &mut Qp, host: &QpHost<'_>) -> Room<'_> {
        self.next = Next::Nowhere;
        let (path, dest) = match machine.next_dest() {
            Some(dest) => (host.side.slots.path(dest.ah).copied(), dest.qpn),
            None => (host.side.peer.path().copied(), machine.attr().dest_qpn),
        };
        let is_wanted = machine.wants_requests();
        let is_peer_gone = host.side.peer.route().is_peer_gone();
        if let Some(path) = path.filter(|_| is_wanted) {
            match self.choose(&path, dest, is_peer_gone) {
                DatagramRoute::Ring(id) => return self.ring_room(path, id),
                DatagramRoute::Wait => return Room::Later,
                DatagramRoute::Wire => {}
            }
        }
        self.link_room(path, is_wanted)
    }

    #[inline]
    fn push(&mut self, _: Option<&TxPath>, sent: &Transmit) {
        match self.next {
            // Every request of a state that sends has a path: a post or the transition to RTR set
            // it.
            Next::Nowhere => {}
            Next::Link(path) => {
                if let Some(batch) = self.sinks.tx.of(path.lane()) {
                    batch.push(&path, sent.len);
                }
                if let Some(reservation) = &mut self.reservation {
                    reservation.spend(sent.len);
                }
            }
            Next::Ring(path, id, is_lost) => {
                if let Some(ring) = self.sinks.rings.out(id, self.now) {
                    let written = ring.push_one(&path, sent.len, is_lost);
                    self.device.counts().note_written(written);
                }
            }
        }
    }
}
