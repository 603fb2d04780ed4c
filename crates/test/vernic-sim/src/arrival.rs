//! Packets and parts of messages reach their queue pair, and the oracle judges what it does.
//!
//! Owns nothing. Called by the world's loop for the lossy network, and by [`crate::local`] for the
//! rings; calls the queue pairs, and [`crate::judge`] before and after.

use std::fmt::Display;

use vernic_proto::{Disposition, PartAck, Qp, RxMeta, Time};
use vernic_wire::{AethCode, Kind, LocalRoute, Packet, RnrTimer, Service};

use crate::cover::Count;
use crate::ctx::{Ctx, fail};
use crate::flow::Flow;
use crate::judge::{self, Arrival};
use crate::net::{Tag, garbage};
use crate::parts;
use crate::plan::Mutation;
use crate::ring::{PartRecord, numbers_of};
use crate::side::{Effects, SimHost};
use crate::trace;
use crate::world::World;
use crate::xrc::is_reliable;

/// Most refusals in an RNR delay, which is 655 ms at most. The first look is after 10 us, and each
/// time after twice as long.
const MOST_RNR_LOOKS: u32 = 17;

impl World {
    pub(crate) fn deliver(&mut self, slot: usize) {
        let Some(packet) = self.air.remove(slot) else { return };
        let (c, s) = (packet.conn, packet.to);
        let conn = &mut self.conns[c];
        conn.in_flight -= 1;
        if packet.incarnation == conn.incarnation {
            if self.rng.ppm(if self.healed { 0 } else { self.conns[c].plan.link.garbage }) {
                let bytes = garbage(&mut self.rng, &packet.bytes);
                self.ctx.hit(Count::Garbage);
                self.receive_by_wire(c, s, &bytes, &packet.tag);
            }
            self.receive_by_wire(c, s, &packet.bytes, &packet.tag);
            if self.ctx.mutates(Mutation::Replay) {
                let mut bytes = packet.bytes.clone();
                bytes[11] = bytes[11].wrapping_add(1);
                self.receive_by_wire(c, s, &bytes, &packet.tag);
            }
        }
        if packet.incarnation != self.conns[c].incarnation && self.conns[c].plan.ghosts {
            self.receive_ghost(c, s, &packet.bytes);
        }
        self.air.recycle(packet.bytes);
        self.settle(c, s);
    }

    /// Hands a packet of the lossy network over, unless the peer is heard through a ring alone.
    fn receive_by_wire(&mut self, c: usize, s: usize, bytes: &[u8], tag: &Tag) {
        if !self.is_late_copy(c, s, bytes) {
            self.receive(c, s, bytes, tag, false);
        }
    }

    /// Hands a packet over that came by the network, or through a ring.
    pub(crate) fn receive(&mut self, c: usize, s: usize, bytes: &[u8], tag: &Tag, by_ring: bool) {
        self.receive_as(c, s, (bytes, tag), by_ring, |qp, now, host, packet, meta| {
            qp.handle_packet(now, packet, meta, host)
        });
        let st = &mut self.conns[c].sides[s].st;
        if self.plan.mutation == Mutation::WrongKept && st.was_kept {
            st.kept_bytes.push(bytes.to_vec());
        }
        self.handle_kept(c, s, by_ring);
    }

    /// Hands over what was kept and whose turn has come, as the engine does: each packet is judged
    /// as one that comes now.
    fn handle_kept(&mut self, c: usize, s: usize, by_ring: bool) {
        while self.conns[c].sides[s].qp.has_kept() {
            let Some(kept) = self.conns[c].sides[s].qp.take_kept() else { return };
            self.ctx.hit(Count::KeptHandled);
            if let Some(bytes) = self.wrong_kept(c, s, kept.bytes()) {
                self.receive_as(
                    c,
                    s,
                    (&bytes, &Tag::default()),
                    by_ring,
                    |qp, now, host, packet, meta| qp.handle_packet(now, packet, meta, host),
                );
                continue;
            }
            let tag = Tag::default();
            self.receive_as(c, s, (kept.bytes(), &tag), by_ring, |qp, now, host, _, _| {
                qp.handle_kept(now, &kept, host)
            });
        }
        self.conns[c].sides[s].st.kept_bytes.clear();
    }

    /// What the mutation that mixes up what was kept makes of a packet: another one with its
    /// number.
    fn wrong_kept(&mut self, c: usize, s: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        let others = &self.conns[c].sides[s].st.kept_bytes;
        let mut wrong = others.iter().find(|other| other[9..] != bytes[9..])?.clone();
        if !self.ctx.mutates(Mutation::WrongKept) {
            return None;
        }
        wrong[9..12].copy_from_slice(&bytes[9..12]);
        Some(wrong)
    }

    /// An acknowledgement that a part carried arrives: it is judged as the ACK packet that says the
    /// same.
    pub(crate) fn receive_ack(&mut self, c: usize, s: usize, ack: PartAck, bytes: &[u8]) {
        self.receive_as(c, s, (bytes, &Tag::default()), true, |qp, now, host, _, _| {
            qp.handle_ack(now, ack, host)
        });
    }

    fn receive_as(
        &mut self,
        c: usize,
        s: usize,
        (bytes, tag): (&[u8], &Tag),
        by_ring: bool,
        handle: impl FnOnce(&mut Qp, Time, &mut SimHost<'_>, &Packet<'_>, &RxMeta) -> Disposition,
    ) {
        let Ok(packet) = Packet::parse(bytes) else {
            if !self.conns[c].sides[s].st.lenient {
                fail!(self.ctx, "a packet that was sent does not parse");
            }
            return;
        };
        if packet.info().kind == Kind::Cnp {
            return self.receive_notification(c, s, &packet);
        }
        let service = self.conns[c].plan.service;
        let meta = RxMeta {
            grh: (service == Service::Ud).then_some([0x47; 40]),
            ecn: if !by_ring && self.rng.ppm(self.conns[c].plan.link.marks) { 3 } else { 0 },
            route: LocalRoute { service_level: 0xA, ..LocalRoute::NONE },
            is_peer: true,
        };
        let is_request = packet.info().is_request();
        let conn = &mut self.conns[c];
        let orderly = conn.plan.is_orderly() && !conn.rings.were_lost;
        let (st, inn) = (&mut conn.sides[s].st, &mut conn.flows[1 - s]);
        st.fx = Effects::default();
        st.owes_notification |= meta.ecn == 3;
        (st.recv_status, st.pulled, st.was_kept) = (None, None, false);
        let mut seq = 0;
        st.piece = None;
        if is_request && !st.lenient {
            (st.piece, seq) = judge::expect(st, inn, &packet, tag);
        }
        let rnr = rnr_timer(&packet).is_some();
        let out = &mut self.conns[c].flows[s];
        out.rnr_now = u32::from(rnr);
        out.rnr_naks += out.rnr_now;
        let disposition = self.with_qp(c, s, |qp, now, host| handle(qp, now, host, &packet, &meta));
        self.conns[c].flows[s].rnr_now = 0;
        self.ctx.hit(Count::Packets);
        judge::count(&mut self.ctx, disposition);
        self.ctx.say(format_args!(
            "{} <- {} : {disposition:?}",
            self.conns[c].sides[s].st.label(),
            trace::line(&packet)
        ));
        self.note_route(c, s, is_request, by_ring, disposition);
        let Self { conns, ctx, nodes, .. } = self;
        let conn = &mut conns[c];
        let side = &mut conn.sides[s];
        if side.st.lenient {
            return;
        }
        side.st.was_kept = disposition == Disposition::Kept;
        if is_request && is_reliable(service) {
            let memory = &nodes[side.st.node].memory;
            let arrival = Arrival {
                what: &packet,
                seq,
                numbers: judge::sequence_numbers(&packet, side.st.mtu.bytes()),
                ends: packet.info().position.ends(),
            };
            let inn = &mut conn.flows[1 - s];
            judge::judge_rc(ctx, &mut side.st, inn, memory, &arrival, disposition);
        } else if is_request {
            judge::judge_unreliable(
                ctx,
                &side.st,
                &mut conn.flows[1 - s],
                &packet,
                disposition,
                orderly,
            );
        } else {
            note_response(ctx, &mut conn.flows[s], &packet, disposition, orderly);
        }
        side.st.piece = None;
    }

    /// Hands a part of a message over.
    pub(crate) fn receive_part(&mut self, c: usize, s: usize, record: &PartRecord) {
        let PartRecord { part, payload, .. } = record;
        let conn = &mut self.conns[c];
        let orderly = conn.plan.is_orderly() && !conn.rings.were_lost;
        let mtu = conn.plan.mtu.bytes();
        let (st, inn) = (&mut conn.sides[s].st, &mut conn.flows[1 - s]);
        st.fx = Effects::default();
        (st.recv_status, st.piece, st.pulled) = (None, None, None);
        let mut seq = 0;
        if !st.lenient {
            (st.piece, seq) = parts::expect(st, inn, record);
        }
        let payload = if part.is_rendezvous {
            self.offer(c, s, payload);
            &[][..]
        } else {
            payload
        };
        let disposition =
            self.with_qp(c, s, |qp, now, host| qp.handle_message(now, part, payload, host));
        self.conns[c].sides[s].st.offer = None;
        judge::count(&mut self.ctx, disposition);
        let Self { conns, ctx, nodes, .. } = self;
        let conn = &mut conns[c];
        let side = &mut conn.sides[s];
        let name = trace::part(part, mtu);
        ctx.say(format_args!("{} <- {name} : {disposition:?}", side.st.label()));
        let inn = &mut conn.flows[1 - s];
        if !side.st.lenient && !is_reliable(side.st.service) {
            judge::judge_unreliable(ctx, &side.st, inn, &name, disposition, orderly);
        } else if !side.st.lenient {
            let memory = &nodes[side.st.node].memory;
            let numbers = numbers_of(part, mtu);
            let arrival = Arrival { what: &name, seq, numbers, ends: part.ends };
            judge::judge_rc(ctx, &mut side.st, inn, memory, &arrival, disposition);
            match disposition {
                Disposition::Rnr => ctx.hit(Count::PartsNotReady),
                Disposition::Nak(class) if class.row().fatal => ctx.hit(Count::PartsRefused),
                _ => {}
            }
            parts::judge_pull(ctx, &side.st, inn, &name, disposition);
        }
        side.st.piece = None;
        self.note_route(c, s, true, true, disposition);
        self.handle_kept(c, s, true);
    }

    /// A packet of an earlier connection between the same numbers: it may cost time, nothing else.
    pub(crate) fn receive_ghost(&mut self, c: usize, s: usize, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let meta = RxMeta {
            grh: None,
            ecn: 0,
            route: LocalRoute { service_level: 0xA, ..LocalRoute::NONE },
            is_peer: true,
        };
        self.haunt(c, s, &packet, |world| {
            world.with_qp(c, s, |qp, now, host| qp.handle_packet(now, &packet, &meta, host))
        });
    }

    /// An acknowledgement that a part of an earlier connection carried, likewise.
    pub(crate) fn receive_ghost_ack(&mut self, c: usize, s: usize, ack: PartAck, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        self.haunt(c, s, &packet, |world| {
            world.with_qp(c, s, |qp, now, host| qp.handle_ack(now, ack, host))
        });
    }

    /// A part of an earlier connection, likewise.
    pub(crate) fn receive_ghost_part(&mut self, c: usize, s: usize, record: &PartRecord) {
        let PartRecord { part, payload, .. } = record;
        let payload = if part.is_rendezvous { &[] } else { &payload[..] };
        let name = trace::part(part, self.conns[c].plan.mtu.bytes());
        self.haunt(c, s, &name, |world| {
            world.with_qp(c, s, |qp, now, host| qp.handle_message(now, part, payload, host))
        });
    }

    fn haunt(
        &mut self,
        c: usize,
        s: usize,
        what: &dyn Display,
        handle: impl FnOnce(&mut Self) -> Disposition,
    ) {
        let conn = &mut self.conns[c];
        conn.flows.iter_mut().for_each(Flow::disturb);
        let st = &mut conn.sides[s].st;
        (st.fx, st.piece) = (Effects::default(), None);
        let received = st.recvs_done;
        let disposition = handle(self);
        self.ctx.hit(Count::Ghosts);
        // A completion that comes now anyway is checked as any other.
        let st = &self.conns[c].sides[s].st;
        let changed = st.fx != Effects::default() || received != st.recvs_done;
        let taken = matches!(disposition, Disposition::Accepted | Disposition::Rnr);
        if (changed || taken) && !st.lenient {
            fail!(self.ctx, "{} {disposition:?} {what} of an earlier connection", st.label());
        }
    }
}

/// The delay that an RNR NAK asks for.
fn rnr_timer(packet: &Packet<'_>) -> Option<RnrTimer> {
    match packet.aeth()?.syndrome.decode() {
        AethCode::RnrNak(timer) => Some(timer),
        _ => None,
    }
}

/// What a response tells the oracle's own books.
fn note_response(
    ctx: &mut Ctx,
    out: &mut Flow,
    packet: &Packet<'_>,
    disposition: Disposition,
    orderly: bool,
) {
    if let Disposition::Drop(reason) = disposition
        && reason == vernic_proto::DropReason::BadState
    {
        out.disturb();
    }
    let seq = out.extend(packet.psn(), out.high);
    // A NAK says that everything before its number has arrived, others include it.
    let nak =
        packet.aeth().is_some_and(|aeth| !matches!(aeth.syndrome.decode(), AethCode::Ack { .. }));
    let reached = seq.map_or(0, |seq| seq + u64::from(!nak));
    out.acked = out.acked.max(reached.min(out.high));
    let Some(timer) = rnr_timer(packet) else {
        // An answer to the request that was not ready: a copy of it was taken after all.
        if disposition == Disposition::Accepted && seq.is_some_and(|seq| seq >= out.rnr_seq) {
            out.rnr_until = Time(0);
        }
        return;
    };
    // With an answer missing before it, it also reports that loss, which is repaired at once.
    let Some(upto) = seq.and_then(|seq| out.holding(seq)) else { return };
    let answers_missing = out.next_done < upto
        && out.msgs[out.next_done..upto]
            .iter()
            .any(|msg| !msg.is_local() && !msg.is_send() && !msg.is_write());
    if !orderly || disposition != Disposition::Accepted || answers_missing {
        return;
    }
    // One for a later request says that the other was taken after all.
    if out.rnr_until <= ctx.now || seq.is_some_and(|seq| seq > out.rnr_seq) {
        (out.rnr_until, out.rnr_looks) = (ctx.now + timer.nanos(), (false, 0));
        out.rnr_seq = seq.unwrap_or(0);
        return;
    }
    out.rnr_looks.1 += 1;
    if out.rnr_looks.1 > MOST_RNR_LOOKS {
        let (number, until) = (out.rnr_seq, out.rnr_until);
        fail!(ctx, "{number} was refused {MOST_RNR_LOOKS} times in the RNR delay to {until:?}");
    }
}
