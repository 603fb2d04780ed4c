//! A turn of UC or UD: each request takes the route of its receiver, the ring of a local peer or
//! the link.
//!
//! Requests of a turn that follow each other to the same local peer go to its ring together: the
//! peer sees them at once, and is woken once. By the link a request leaves as soon as its receiver
//! has room, since nothing but the lane keeps such a service from overrunning its receivers
//! (`udp_backpressure.rs`).

use vernic_io::TxPath;
use vernic_io::host::Slot;
use vernic_local::{DatagramRoute, LocalPeerId, LocalPeers, RingOut};
use vernic_proto::{Qp, QpState, Time};
use vernic_wire::{Qpn, Service};

use super::plan::{TURN_BYTES, TURN_PACKETS};
use super::sinks::Sinks;
use super::to_ring::{backpressured, send_messages, write_to_ring};
use crate::device::opened::Device;
use crate::lane::udp_backpressure::Reservation;
use crate::qp::host::QpHost;
use crate::sched::TurnResult;

/// Sends what was posted, if all of it goes through one ring with room for it: then a turn has
/// nothing else to see to. Returns whether something was sent, and all that was posted; the rest is
/// left to a turn.
#[inline]
pub(super) fn send_posted(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    local_peers: &mut LocalPeers,
    now: Time,
) -> bool {
    let sends = matches!(machine.state(), QpState::Rts | QpState::Sqd);
    if !sends || host.side.peer.route().is_peer_gone() || machine.has_sent_all() {
        return false;
    }
    let Some((receiver, dest)) = Receiver::of_next(machine, host) else { return false };
    let ring =
        local_peers.datagram_ring(&receiver.path, dest).and_then(|id| local_peers.out(id, now));
    let Some(ring) = ring else { return false };
    match machine.service() {
        Service::Uc => send_messages(machine, host, ring, now),
        _ => send_datagrams(machine, host, ring, &receiver, now),
    }
}

/// Sends datagrams that were posted, as [`send_posted`] does.
fn send_datagrams(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    mut ring: RingOut<'_>,
    receiver: &Receiver,
    now: Time,
) -> bool {
    // In SQD nothing may begin; and the turn counts a ring that is full.
    if !machine.wants_requests() || ring.room(false).is_none() {
        return false;
    }
    let (mut packets, mut bytes) = (TURN_PACKETS, TURN_BYTES);
    let rest = (&mut packets, &mut bytes);
    let did = datagrams_to_ring(machine, host, &mut ring, receiver, rest, now);
    host.engine.counts().note_written(ring.finish());
    did == TurnResult::Wrote && machine.has_sent_all()
}

/// Runs a turn of a queue pair that is in a sending state.
pub(super) fn run(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    sinks: &mut Sinks<'_>,
    now: Time,
) -> TurnResult {
    let (packets, bytes) = (TURN_PACKETS, TURN_BYTES);
    let mut turn = Turn { sinks, device: host.engine, reservation: None, packets, bytes, now };
    let did = turn.run(machine, host);
    if let Some(reservation) = turn.reservation {
        turn.sinks.udp_backpressure.settle(reservation);
    }
    did
}

/// The receiver of a request: requests with the same go the same way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Receiver {
    path: TxPath,
    /// The process slot of the queue pair that the request is for.
    slot: Slot,
}

impl Receiver {
    /// Returns the receiver of the next request, and the queue pair. Each request of a state that
    /// sends has a path: a post or the transition to RTR set it.
    #[inline]
    fn of_next(machine: &Qp, host: &QpHost<'_>) -> Option<(Self, Qpn)> {
        let (path, dest) = match machine.next_dest() {
            Some(dest) => (host.side.slots.path(dest.ah), dest.qpn),
            None => (host.side.peer.path(), machine.attr().dest_qpn),
        };
        Some((Self { path: *path?, slot: Slot::of(dest) }, dest))
    }
}

/// A turn under way.
struct Turn<'r, 'a> {
    sinks: &'r mut Sinks<'a>,
    device: &'r Device,
    /// What the receiver of the last request by the link has room for.
    reservation: Option<Reservation>,
    /// Packets that may still be written.
    packets: usize,
    /// Bytes after which the turn is over.
    bytes: usize,
    now: Time,
}

impl Turn<'_, '_> {
    fn run(&mut self, machine: &mut Qp, host: &mut QpHost<'_>) -> TurnResult {
        let mut did = TurnResult::Nothing;
        while self.goes_on(machine) {
            let Some((receiver, dest)) = Receiver::of_next(machine, host) else { break };
            let step = match self.choose(&receiver.path, dest, host) {
                DatagramRoute::Ring(id) => self.write_to(id, &receiver, machine, host),
                DatagramRoute::Wire => self.send_by_link(&receiver.path, machine, host),
                DatagramRoute::Wait => TurnResult::Backpressured,
            };
            did = did.and(step);
            if step != TurnResult::Wrote {
                break;
            }
        }
        did
    }

    /// Whether the turn has more to write, and may.
    #[inline]
    fn goes_on(&self, machine: &Qp) -> bool {
        self.packets != 0 && self.bytes != 0 && machine.wants_requests()
    }

    /// Chooses the route of the next request: the ring of a local peer, the wire, or to wait.
    #[inline]
    fn choose(&mut self, path: &TxPath, dest: Qpn, host: &QpHost<'_>) -> DatagramRoute {
        let Sinks { udp_backpressure, local_peers, .. } = &mut *self.sinks;
        if local_peers.is_empty() || host.side.peer.route().is_peer_gone() {
            return DatagramRoute::Wire;
        }
        let slots = &self.device.slots();
        local_peers.datagram_route(path, dest, self.now, || udp_backpressure.is_idle(path, slots))
    }

    /// Writes to the ring of a local peer: of UC all requests of the turn, of UD the next datagrams
    /// with the same receiver.
    fn write_to(
        &mut self,
        id: LocalPeerId,
        receiver: &Receiver,
        machine: &mut Qp,
        host: &mut QpHost<'_>,
    ) -> TurnResult {
        let Some(mut ring) = self.sinks.local_peers.out(id, self.now) else {
            return TurnResult::Backpressured;
        };
        let did = if machine.service() == Service::Ud {
            let (packets, bytes) = (&mut self.packets, &mut self.bytes);
            datagrams_to_ring(machine, host, &mut ring, receiver, (packets, bytes), self.now)
        } else {
            self.packets = 0;
            write_to_ring(machine, host, &mut ring, self.now)
        };
        self.device.counts().note_written(ring.finish());
        did
    }

    /// Writes the next request to the batch of the link, if its receiver has room for it.
    #[inline]
    fn send_by_link(
        &mut self,
        path: &TxPath,
        machine: &mut Qp,
        host: &mut QpHost<'_>,
    ) -> TurnResult {
        let Sinks { tx, udp_backpressure, .. } = &mut *self.sinks;
        let Some(batch) = tx.of(path.lane()) else { return TurnResult::Backpressured };
        let Some(room) = batch.room() else { return TurnResult::Nothing };
        if !self.reservation.is_some_and(|reservation| reservation.covers(path)) {
            if let Some(reservation) = self.reservation.take() {
                udp_backpressure.settle(reservation);
            }
            let (slots, counters) = (self.device.slots(), self.device.counts());
            self.reservation = udp_backpressure.reserve(path, slots, counters, self.now);
        }
        let Some(reservation) = &mut self.reservation else { return TurnResult::Backpressured };
        machine.set_messages(false);
        let Some(sent) = machine.poll_request(self.now, host, room) else {
            return TurnResult::Nothing;
        };
        batch.push(path, sent.len);
        reservation.spend(sent.len);
        self.packets -= 1;
        self.bytes = self.bytes.saturating_sub(sent.len);
        TurnResult::Wrote
    }
}

/// Writes datagrams to the ring of their receiver, until the next one has another receiver. The
/// peer sees them together.
fn datagrams_to_ring(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    ring: &mut RingOut<'_>,
    receiver: &Receiver,
    (packets, bytes): (&mut usize, &mut usize),
    now: Time,
) -> TurnResult {
    let mut did = TurnResult::Nothing;
    machine.set_messages(true);
    loop {
        let is_lost = ring.is_given_up();
        let Some(room) = ring.room(is_lost) else { return backpressured(host) };
        let Some(sent) = machine.poll_request(now, host, room) else { return did };
        ring.push(&receiver.path, sent.len);
        (*packets, *bytes) = (*packets - 1, bytes.saturating_sub(sent.len));
        did = TurnResult::Wrote;
        let is_next = *packets != 0 && *bytes != 0 && machine.wants_requests();
        if !is_next || Receiver::of_next(machine, host).is_none_or(|(next, _)| next != *receiver) {
            return did;
        }
    }
}
