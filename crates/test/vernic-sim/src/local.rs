//! Two processes of one host: requests and responses through rings beside the lossy network.
//!
//! Owns the routes, under the engine's rules (`vernic-local`, `peers.rs`): requests go over
//! to a ring when there is one and nothing is unacknowledged by the network, and pause for that;
//! responses take the route of the last request; what comes late by the network is refused. Beyond
//! these rules a ring may be lost at any moment, and both sides go on by the network.
//!
//! Called by the world's loop and by chaos; calls the queue pairs and the arrival.

use vernic_proto::{Disposition, MessagePart, Qp, QpState, Time};
use vernic_wire::{Bth, Headers, Kind, Opcode, Packet};

use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::Flow;
use crate::net::{Tag, corrupt_payload};
use crate::parts::{self, Named};
use crate::plan::{Chaos, Mutation, RingFate};
use crate::ring::{Body, PartRecord, Polled, Record, numbers_of};
use crate::side::{Offer, Pulled, SimHost};
use crate::trace;
use crate::wirecheck;
use crate::world::{Event, Phase, World};
use crate::xrc::is_reliable;

/// Bytes of headers around a packet's payload, at most.
const HEADERS: usize = 128;

/// Whether requests may be sent in this state; in others they are flushed.
fn sends(state: QpState) -> bool {
    matches!(state, QpState::Rts | QpState::Sqd)
}

impl World {
    // Writing.

    /// Whether the queue pair has anything to send now, with room for it on its route.
    pub(crate) fn can_send(&self, c: usize, s: usize) -> bool {
        let side = &self.conns[c].sides[s];
        let requests = side.qp.wants_requests() && self.may_send(c, s, false);
        requests || side.qp.wants_responses() && self.may_send(c, s, true)
    }

    /// Whether responses, or requests, have room on their route and do not pause.
    pub(crate) fn may_send(&self, c: usize, s: usize, is_response: bool) -> bool {
        let side = &self.conns[c].sides[s];
        if is_response {
            return self.has_room(c, s, side.st.responses_by_ring);
        }
        let waits = self.pauses(c, s) && !side.qp.is_probing();
        !sends(side.qp.state()) || !waits && self.has_room(c, s, side.st.requests_by_ring)
    }

    /// Requests pause until those that went by the network are acknowledged, so that they can go
    /// over to the ring.
    fn pauses(&self, c: usize, s: usize) -> bool {
        let conn = &self.conns[c];
        let side = &conn.sides[s];
        conn.rings.are_up
            && sends(side.qp.state())
            && !side.st.requests_by_ring
            && side.qp.has_unacknowledged()
            && side.qp.attr().retry_cnt != 0
            && !side.qp.is_repeating()
    }

    fn has_room(&self, c: usize, s: usize, by_ring: bool) -> bool {
        let conn = &self.conns[c];
        let Some(plan) = conn.plan.ring.as_ref().filter(|_| by_ring) else { return true };
        conn.rings.written[s].room(plan.capacity) >= conn.plan.mtu.bytes() as usize + HEADERS
    }

    /// Requests go over to the ring if they may.
    pub(crate) fn choose_route(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let side = &mut conn.sides[s];
        // Where nothing is acknowledged, what is still in the air might be overtaken.
        let is_idle = sends(side.qp.state())
            && !side.qp.has_unacknowledged()
            && (is_reliable(conn.plan.service) || conn.in_flight == 0);
        if conn.rings.are_up && !side.st.requests_by_ring && is_idle {
            side.st.requests_by_ring = true;
            conn.rings.were_joined |= conn.flows[s].high > 0;
            self.ctx.hit(Count::ToRing);
        }
    }

    /// Polls a request on its route.
    pub(crate) fn poll_request(&mut self, c: usize, s: usize, buf: &mut [u8]) -> Option<Polled> {
        let pauses = self.pauses(c, s);
        let conn = &self.conns[c];
        let side = &conn.sides[s];
        let by_ring = side.st.requests_by_ring && sends(side.qp.state());
        let Some(plan) = conn.plan.ring.as_ref().filter(|_| by_ring) else {
            let sent = self.with_qp(c, s, |qp, now, host| {
                qp.set_messages(false);
                if pauses { qp.poll_probe(now, host, buf) } else { qp.poll_request(now, host, buf) }
            });
            return sent.map(|sent| Polled::Packet(sent.len));
        };
        let room = conn.rings.written[s].room(plan.capacity).min(plan.part);
        let (limits, mtu) = (plan.rendezvous, conn.plan.mtu.bytes() as usize);
        self.with_qp(c, s, |qp, now, host| {
            qp.set_messages(true);
            qp.set_rendezvous(limits);
            poll_local(qp, now, host, (buf, room.max(mtu)))
        })
    }

    /// Writes a part of a message to the ring, and before it the acknowledgement that it carries.
    pub(crate) fn transmit_part(&mut self, c: usize, s: usize, part: MessagePart, payload: &[u8]) {
        self.transmit_ack(c, s);
        let conn = &mut self.conns[c];
        let limits = conn.plan.ring.as_ref().and_then(|plan| plan.rendezvous);
        let (side, mtu) = (&mut conn.sides[s], conn.plan.mtu.bytes());
        side.st.note_sent_part(&part);
        let mut tag = Tag::default();
        if !side.st.lenient {
            let max_reads = u32::from(conn.plan.sides[s].max_rd);
            let sent = (&part, payload);
            tag = parts::sent(&mut self.ctx, &side.st, &mut conn.flows[s], sent, limits, max_reads);
        }
        if self.ctx.is_tracing() {
            let (from, to) = (conn.sides[s].st.label(), conn.sides[1 - s].st.label());
            self.ctx.say(format_args!("{from}=>{to} {}", trace::part(&part, mtu)));
        }
        let mut payload = payload.to_vec();
        let strikes = !part.is_rendezvous && self.ctx.mutates(Mutation::SilentCorruption);
        if let Some(byte) = payload.last_mut().filter(|_| strikes) {
            *byte ^= 0x10;
        }
        self.write(c, s, true, Body::Part(PartRecord { part, payload, tag }));
    }

    /// Writes the acknowledgement that is due, if answers take the ring of the part that leaves.
    fn transmit_ack(&mut self, c: usize, s: usize) {
        if !self.conns[c].sides[s].st.responses_by_ring {
            return;
        }
        let Some(ack) = self.with_qp(c, s, |qp, now, host| qp.take_ack(now, host)) else { return };
        let conn = &mut self.conns[c];
        let dest = conn.sides[1 - s].st.qpn;
        let side = &conn.sides[s];
        let mut headers = Headers::new(Bth::new(Opcode::RC_ACK, dest, ack.psn));
        headers.aeth = Some(ack.aeth);
        let mut bytes = vec![0; HEADERS];
        let len = headers.emit(&mut bytes);
        bytes.truncate(len);
        if let (Ok(packet), false) = (Packet::parse(&bytes), side.st.lenient) {
            let memory = &self.nodes[side.st.node].memory;
            let acknowledged = &mut conn.flows[1 - s];
            wirecheck::response(&mut self.ctx, &side.st, acknowledged, memory, &packet);
        }
        self.ctx.hit(Count::CarriedAcks);
        self.write(c, s, false, Body::Ack(ack, bytes));
    }

    /// Writes a packet to the ring.
    pub(crate) fn write_packet(
        &mut self,
        c: usize,
        s: usize,
        (bytes, tag): (&mut [u8], Tag),
        is_request: bool,
    ) {
        if self.ctx.mutates(Mutation::SilentCorruption) {
            corrupt_payload(bytes);
        }
        self.ctx.hit(Count::RingPackets);
        self.write(c, s, is_request, Body::Packet(bytes.to_vec(), tag));
    }

    fn write(&mut self, c: usize, s: usize, is_request: bool, body: Body) {
        let conn = &mut self.conns[c];
        if self.plan.mutation == Mutation::DeadNetwork {
            conn.flows[if is_request { s } else { 1 - s }].disturb();
            return;
        }
        conn.in_flight += 1;
        let incarnation = conn.incarnation;
        conn.rings.written[s].push(Record { body, is_request, incarnation });
        let is_armed = conn.rings.armed.is_some();
        if !self.has_room(c, s, true) {
            self.ctx.hit(Count::RingFull);
        }
        if is_armed {
            self.at(0, Event::Strike(c));
        }
        self.schedule_read(c, 1 - s);
    }

    // Reading.

    /// Side `s` comes to read what the other has written.
    fn schedule_read(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let Some(plan) = &conn.plan.ring else { return };
        let ring = &mut conn.rings.written[1 - s];
        if ring.is_empty() || ring.is_read {
            return;
        }
        ring.is_read = true;
        let delay = if self.manual { plan.delay } else { self.rng.below(plan.delay + 1) };
        self.at(delay, Event::ReadRing(c, s));
    }

    /// Side `s` reads some records.
    pub(crate) fn read_ring(&mut self, c: usize, s: usize) {
        self.conns[c].rings.written[1 - s].is_read = false;
        let batch = self.conns[c].plan.ring.as_ref().map_or(1, |plan| plan.batch);
        let most = if self.manual { batch } else { self.rng.range(1, batch) };
        self.read_records(c, s, most);
        self.schedule_read(c, s);
        self.settle(c, s);
        self.settle(c, 1 - s);
    }

    fn read_records(&mut self, c: usize, s: usize, most: u64) {
        for _ in 0..most {
            let Some(record) = self.conns[c].rings.written[1 - s].take() else { break };
            self.conns[c].in_flight -= 1;
            self.read_record(c, s, &record);
            if self.ctx.violation.is_some() {
                break;
            }
        }
    }

    fn read_record(&mut self, c: usize, s: usize, record: &Record) {
        let conn = &self.conns[c];
        let mtu = conn.plan.mtu.bytes();
        if record.incarnation == conn.incarnation {
            if self.rng.ppm(if self.healed { 0 } else { self.conns[c].plan.link.garbage }) {
                self.receive_hostile(c, s, &record.body);
            }
            match &record.body {
                Body::Packet(bytes, tag) => self.receive(c, s, bytes, tag, true),
                Body::Ack(ack, bytes) => self.receive_ack(c, s, *ack, bytes),
                Body::Part(part) => {
                    self.receive_part(c, s, part);
                    if self.ctx.mutates(Mutation::Replay) {
                        let numbers = numbers_of(&part.part, mtu) as u32;
                        let next = MessagePart { psn: part.part.psn.add(numbers), ..part.part };
                        self.receive_part(c, s, &PartRecord { part: next, ..part.clone() });
                    }
                }
            }
        } else if conn.plan.ghosts {
            match &record.body {
                Body::Packet(bytes, _) => self.receive_ghost(c, s, bytes),
                Body::Ack(ack, bytes) => self.receive_ghost_ack(c, s, *ack, bytes),
                Body::Part(part) => self.receive_ghost_part(c, s, part),
            }
        }
    }

    /// Hands a part over that the peer did not send.
    fn receive_hostile(&mut self, c: usize, s: usize, body: &Body) {
        let (near, mtu) = (self.conns[c].flows[1 - s].base, self.conns[c].plan.mtu);
        let (real, near) = match body {
            Body::Part(record) => (Some(&record.part), near),
            Body::Packet(bytes, _) | Body::Ack(_, bytes) => {
                (None, Packet::parse(bytes).map_or(near, |p| p.psn()))
            }
        };
        let (part, payload) = parts::garbage(&mut self.rng, real, (near, mtu));
        self.ctx.hit(Count::HostileParts);
        self.receive_part(c, s, &PartRecord { part, payload, tag: Tag::default() });
    }

    /// The part that is handed over is a rendezvous: decides what becomes of its payload.
    pub(crate) fn offer(&mut self, c: usize, s: usize, name: &[u8]) {
        let conn = &mut self.conns[c];
        let Named { msg, offset, .. } =
            Named::parse(name).unwrap_or(Named { msg: 0, offset: 0, length: 0 });
        let sender = &conn.flows[1 - s];
        // The sender takes payload back before it reports an error.
        let gone = sender.failed.is_some() || conn.sides[1 - s].qp.state() == QpState::Reset;
        let is_reported = msg < sender.next_done;
        let ppm = conn.plan.ring.as_ref().map_or(0, |plan| plan.unreachable);
        let fails = self.rng.ppm(ppm);
        let id = sender.msgs.get(msg).map_or(0, |msg| msg.id);
        let pulled = if gone && is_reported {
            Pulled::Withdrawn
        } else if fails || conn.rings.unreachable > 0 {
            conn.rings.unreachable = conn.rings.unreachable.saturating_sub(1);
            Pulled::Unreachable
        } else {
            Pulled::Bytes
        };
        conn.sides[s].st.offer = Some(Offer { content: (id, u64::from(offset)), pulled });
    }

    /// Notes the route that a packet or part came by.
    pub(crate) fn note_route(
        &mut self,
        c: usize,
        s: usize,
        is_request: bool,
        by_ring: bool,
        disposition: Disposition,
    ) {
        let conn = &mut self.conns[c];
        let (st, by_ring) = (&mut conn.sides[s].st, by_ring && conn.rings.are_up);
        if matches!(disposition, Disposition::Drop(_)) {
            return;
        }
        if is_request {
            st.responses_by_ring = by_ring;
        } else {
            st.is_answered_by_ring = by_ring && st.requests_by_ring;
        }
    }

    /// Whether the peer is heard through the ring alone, so that this packet of the network is
    /// refused. It must be a copy of one that was handled before.
    pub(crate) fn is_late_copy(&mut self, c: usize, s: usize, bytes: &[u8]) -> bool {
        let Ok(packet) = Packet::parse(bytes) else { return false };
        let conn = &mut self.conns[c];
        let st = &conn.sides[s].st;
        let is_request = packet.info().is_request();
        if !(if is_request { st.responses_by_ring } else { st.is_answered_by_ring }) {
            return false;
        }
        let flow = &mut conn.flows[if is_request { 1 - s } else { s }];
        let handled = if is_request { flow.exec } else { flow.acked };
        // A notification has no number of its own.
        let is_numbered = packet.info().kind != Kind::Cnp;
        let is_new =
            is_numbered && flow.extend(packet.psn(), handled).is_some_and(|seq| seq >= handled);
        if is_new && !st.lenient && !conn.rings.were_lost && !conn.plan.ghosts {
            let label = st.label();
            fail!(self.ctx, "{label} hears the ring, and {packet} came by the network");
        }
        flow.disturb();
        self.ctx.hit(Count::LateCopies);
        self.ctx.say(format_args!("{} <- {} refused", st.label(), trace::line(&packet)));
        true
    }

    // What happens to rings.

    /// There are rings from now on.
    pub(crate) fn join_rings(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        // What is left in rings that were lost comes first.
        if conn.plan.ring.is_none() || conn.rings.written.iter().any(|ring| !ring.is_empty()) {
            return;
        }
        conn.rings.are_up = true;
        self.settle(c, 0);
        self.settle(c, 1);
    }

    /// What a seed has in store for rings happens, if as much is in them now.
    pub(crate) fn strike(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        let Some((records, fate, s)) = conn.rings.armed else { return };
        let ring = &conn.rings.written[s];
        let is_time = conn.rings.are_up
            && match fate {
                RingFate::Error => ring.has_rendezvous(),
                _ => ring.len() >= records,
            };
        if self.healed || conn.phase != Phase::Up || !is_time {
            return;
        }
        conn.rings.armed = None;
        match fate {
            RingFate::Lost(at_once) => self.lose_rings(c, at_once, None),
            RingFate::PeerDies => self.die(c, s, None),
            RingFate::Error => self.wreak(Chaos::Error, c, s),
        }
    }

    /// The rings break: of each a prefix is still read, `at_once` or in its time, and the rest is
    /// lost. Both sides go on by the network.
    pub(crate) fn lose_rings(&mut self, c: usize, at_once: bool, keep: Option<usize>) {
        if !self.conns[c].rings.are_up {
            return;
        }
        self.ctx.hit(Count::RingsLost);
        for s in 0..2 {
            self.cut_ring(c, s, keep);
            // What is left comes in another order than it was sent.
            let left = self.conns[c].rings.written[s].len();
            for _ in 0..if at_once { 0 } else { left } {
                self.conns[c].flows.iter_mut().for_each(Flow::disturb);
            }
        }
        self.leave_rings(c);
        for s in 0..if at_once { 2 } else { 0 } {
            self.read_records(c, s, u64::MAX);
        }
        self.settle(c, 0);
        self.settle(c, 1);
    }

    /// The process of side `s` ends. What it has written is read up to somewhere; then the other is
    /// told.
    pub(crate) fn die(&mut self, c: usize, s: usize, keep: Option<usize>) {
        let peer = 1 - s;
        self.ctx.hit(Count::PeersGone);
        self.change(c, s, QpState::Reset);
        self.forget(c, s);
        self.cut_ring(c, s, keep);
        self.cut_ring(c, peer, Some(0));
        self.leave_rings(c);
        self.read_records(c, peer, u64::MAX);
        let side = &mut self.conns[c].sides[peer];
        if matches!(side.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            (side.st.peer_gone, side.st.forced) = (true, true);
            self.with_qp(c, peer, |qp, now, host| qp.handle_peer_gone(now, host));
            let side = &self.conns[c].sides[peer];
            let has_failed = side.qp.state() == QpState::Error && side.st.failure.is_some();
            if has_failed != is_reliable(side.st.service) {
                fail!(self.ctx, "{} goes on without its peer", side.st.label());
            }
        }
        self.settle(c, peer);
        self.bring_down(c);
    }

    /// Loses what side `s` has written, but for the first `keep` records, or but for some.
    fn cut_ring(&mut self, c: usize, s: usize, keep: Option<usize>) {
        let conn = &mut self.conns[c];
        let ring = &mut conn.rings.written[s];
        let some = self.rng.below(ring.len() as u64 + 1) as usize;
        for record in ring.cut(keep.unwrap_or(some)) {
            conn.in_flight -= 1;
            conn.flows[if record.is_request { s } else { 1 - s }].disturb();
            self.ctx.hit(Count::RecordsLost);
        }
    }

    /// Everything goes by the network from now on.
    fn leave_rings(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        (conn.rings.are_up, conn.rings.were_lost) = (false, true);
        for side in &mut conn.sides {
            side.qp.set_messages(false);
            (side.st.requests_by_ring, side.st.responses_by_ring) = (false, false);
            side.st.is_answered_by_ring = false;
        }
    }
}

/// Polls a request for the ring: a SEND as a part of a message, the rest in packets. `room` is for
/// a part's payload.
fn poll_local(
    qp: &mut Qp,
    now: Time,
    host: &mut SimHost<'_>,
    (buf, room): (&mut [u8], usize),
) -> Option<Polled> {
    if !qp.has_message()
        && let Some(sent) = qp.poll_request(now, host, buf)
    {
        return Some(Polled::Packet(sent.len));
    }
    // If local requests were carried out, a SEND may follow them.
    let (part, len) = qp.poll_message(now, host, &mut buf[..room])?;
    Some(Polled::Part(part, len))
}
