//! Properties of every packet that leaves a queue pair.
//!
//! - It parses, and its headers emitted again give the same bytes; pad bytes are 0.
//! - It fits the path MTU; all packets of a message but the last are full.
//! - A request is the piece of the message that its sequence number stands for: opcode, headers,
//!   payload. New numbers follow without a gap, old ones are still unanswered.
//! - Fence, `max_rd_atomic`, RNR delay, SQD and local operations hold packets back.
//! - A map of kept packets names none that did not come.
//! - An acknowledgement covers only what was executed; its MSN is the number of messages executed.
//!
//! Called by the world for each packet polled.

use std::fmt::Display;

use vernic_proto::{ErrorClass, SendFlags, SendOp};
use vernic_wire::opcode::{self, Kind, Position, Service, Tail};
use vernic_wire::{AethCode, Bth, Headers, KeptMap, NakCode, Packet, Psn, Xrceth};

use crate::content;
use crate::cover::Count;
use crate::ctx::{Ctx, fail};
use crate::flow::{Flow, Msg, Refusal};
use crate::memory::Memory;
use crate::net::Tag;
use crate::side::SideState;
use crate::xrc::{is_reliable, srqn};

/// What both directions have in common.
pub(crate) fn any(ctx: &mut Ctx, st: &SideState, packet: &Packet<'_>) {
    let mut again = [0; Headers::MAX_LEN];
    let headers = packet.headers();
    let len = headers.emit(&mut again);
    if again[..len] != packet.as_bytes()[..len] {
        fail!(ctx, "{} sent {packet}, whose headers emit differently", st.label());
    }
    if packet.padding().iter().any(|&byte| byte != 0) {
        fail!(ctx, "{} sent {packet} with pad bytes {:?}", st.label(), packet.padding());
    }
    if packet.payload().len() > st.mtu.bytes() as usize {
        fail!(
            ctx,
            "{} sent {packet}: {} payload bytes, path MTU {}",
            st.label(),
            packet.payload().len(),
            st.mtu
        );
    }
    let to = headers.bth.dest_qpn;
    if to != st.peer_qpn || packet.info().service != st.service {
        fail!(
            ctx,
            "{} sent {packet} to {to} as {:?}, peer is {}",
            st.label(),
            packet.info().service,
            st.peer_qpn
        );
    }
}

fn kind_and_tail(op: &SendOp) -> (Kind, Tail) {
    match op {
        SendOp::Send => (Kind::Send, Tail::None),
        SendOp::SendImm(_) => (Kind::Send, Tail::Imm),
        SendOp::SendInv(_) => (Kind::Send, Tail::Inv),
        SendOp::Write(_) => (Kind::Write, Tail::None),
        SendOp::WriteImm(..) => (Kind::Write, Tail::Imm),
        SendOp::Read(_) => (Kind::ReadRequest, Tail::None),
        SendOp::CmpSwap { .. } => (Kind::CmpSwap, Tail::None),
        SendOp::FetchAdd { .. } => (Kind::FetchAdd, Tail::None),
        SendOp::Flush { .. } => (Kind::Flush, Tail::None),
        SendOp::AtomicWrite(_) => (Kind::AtomicWrite, Tail::None),
        SendOp::ReadInv(..) | SendOp::LocalInv(_) | SendOp::BindMw(_) => {
            (Kind::Unknown, Tail::None)
        }
    }
}

/// A request; returns which piece it is.
pub(crate) fn request(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    packet: &Packet<'_>,
    max_reads: u32,
) -> Tag {
    any(ctx, st, packet);
    if !packet.info().is_request() {
        fail!(ctx, "{} sent {packet} as a request", st.label());
        return Tag::default();
    }
    let found = if is_reliable(st.service) {
        place_rc(ctx, st, out, packet, max_reads)
    } else {
        place_unreliable(ctx, st, out, packet, (packet.psn(), 1))
    };
    let Some((number, index)) = found else { return Tag::default() };
    let msg = &out.msgs[number];
    headers_fit(ctx, st, number, msg, index, packet);
    if out.next_local < number {
        fail!(
            ctx,
            "{} sent message {number} before the local operation {}",
            st.label(),
            out.next_local
        );
    }
    Tag { msg: number, index }
}

/// RC and XRC: the place follows from the sequence number.
fn place_rc(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    packet: &Packet<'_>,
    max_reads: u32,
) -> Option<(usize, u32)> {
    let seq = out.extend(packet.psn(), out.high);
    let Some(seq) = seq.filter(|&seq| seq <= out.high) else {
        fail!(ctx, "{} sent {packet}: sequence {seq:?}, highest so far {}", st.label(), out.high);
        return None;
    };
    let Some(number) = out.holding(seq) else {
        fail!(ctx, "{} sent {packet}: sequence {seq} belongs to no message", st.label());
        return None;
    };
    if number < out.next_done {
        fail!(ctx, "{} sent {packet} of message {number}, which is complete", st.label());
    }
    let index = (seq - out.msgs[number].first) as u32;
    if seq == out.high {
        if index == 0 {
            may_start(ctx, st, out, number, max_reads);
        }
        let count = crate::judge::sequence_numbers(packet, st.mtu.bytes());
        if u64::from(packet.psn().value()) + count > u64::from(vernic_wire::Psn::MODULUS) {
            ctx.hit(Count::PsnWraps);
        }
        out.high = seq + count;
        if out.high - out.acked > u64::from(st.window) {
            let flight = out.high - out.acked;
            fail!(ctx, "{} sent {packet}: {flight} in flight, window {}", st.label(), st.window);
        }
        if out.high > out.msgs[number].end() {
            fail!(ctx, "{} sent {packet}, which reaches beyond message {number}", st.label());
        }
    }
    in_rnr_delay(ctx, st, out, packet);
    out.last_wants_answer = packet.ack_req()
        || out.msgs[number].sink_len() > 0
        || matches!(packet.info().kind, Kind::ReadRequest | Kind::Flush | Kind::AtomicWrite);
    Some((number, index))
}

/// A request leaves, and no RNR delay holds it back. Through the ring it may look again, and a ring
/// that is lost meanwhile may have taken such a look with it.
pub(crate) fn in_rnr_delay(ctx: &mut Ctx, st: &SideState, out: &mut Flow, sent: impl Display) {
    if ctx.now >= out.rnr_until {
        return;
    }
    out.rnr_looks.0 |= st.requests_by_ring;
    if !out.rnr_looks.0 {
        let until = out.rnr_until;
        fail!(ctx, "{} sent {sent} in the RNR delay that ends at {until:?}", st.label());
    }
}

/// The first packet of a new message leaves: nothing holds it back.
pub(crate) fn may_start(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    number: usize,
    max_reads: u32,
) {
    let msg = &out.msgs[number];
    if st.drained || (st.draining && st.drain_from <= number) {
        fail!(ctx, "{} started message {number} in SQD", st.label());
    }
    if msg.flags.contains(SendFlags::FENCE)
        && let Some(earlier) = (out.next_done..number).find(|&i| !out.msgs[i].is_answered())
    {
        fail!(
            ctx,
            "{} started the fenced message {number} before {earlier} was answered",
            st.label()
        );
    }
    if msg.sink_len() > 0 {
        out.reads_out += 1;
        if out.reads_out > max_reads {
            fail!(
                ctx,
                "{} has {} READs and atomics outstanding, max_rd_atomic is {max_reads}",
                st.label(),
                out.reads_out
            );
        }
    }
}

/// UC and UD: pieces leave in order, each once. `what` leaves now, with so many numbers from `psn`
/// on.
pub(crate) fn place_unreliable(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    what: &dyn Display,
    (psn, numbers): (Psn, u32),
) -> Option<(usize, u32)> {
    let (mut number, index) = out.emit;
    while out.msgs.get(number).is_some_and(Msg::is_local) {
        number += 1;
    }
    if number >= out.msgs.len() {
        fail!(ctx, "{} sent {what} and nothing is posted", st.label());
        return None;
    }
    if psn != out.base.add(out.high as u32) {
        fail!(ctx, "{} sent {what}, expected psn={}", st.label(), out.base.add(out.high as u32));
    }
    ctx.cover.add(Count::PsnWraps, u64::from(psn.value() + numbers >= Psn::MODULUS));
    out.high += u64::from(numbers);
    let ends = index + numbers >= out.msgs[number].packets;
    out.emit = if ends { (number + 1, 0) } else { (number, index + numbers) };
    Some((number, index))
}

fn headers_fit(
    ctx: &mut Ctx,
    st: &SideState,
    number: usize,
    msg: &Msg,
    index: u32,
    packet: &Packet<'_>,
) {
    let mtu = st.mtu.bytes();
    let (kind, tail) = kind_and_tail(&msg.op);
    let several = msg.is_send() || msg.is_write();
    let position = if several { Position::of(index, msg.packets) } else { Position::Only };
    let tail = if position.ends() { tail } else { Tail::None };
    let want = opcode::request(st.service, kind, position, tail);
    let (offset, len) = msg.piece(index, mtu);
    if want != Some(packet.opcode()) || packet.payload().len() != len as usize {
        fail!(
            ctx,
            "{} sent {packet} for packet {index} of message {number} {:?}: expected {want:?}, {len} bytes",
            st.label(),
            msg.op
        );
        return;
    }
    if let Some(at) = content::mismatch(msg.id, u64::from(offset), packet.payload()) {
        fail!(
            ctx,
            "{} sent {packet} with a wrong byte at offset {} of message {number}",
            st.label(),
            offset as usize + at
        );
    }
    let solicited = msg.flags.contains(SendFlags::SOLICITED) && msg.takes_recv() && position.ends();
    let queue = (st.service == Service::Xrc).then(|| Xrceth::new(srqn(msg.queue, msg.bad)));
    if !target_fits(msg, index, mtu, packet)
        || packet.solicited() != solicited
        || packet.xrceth() != queue
    {
        fail!(
            ctx,
            "{} sent {packet} for message {number} {:?} of {} bytes",
            st.label(),
            msg.op,
            msg.len
        );
    }
}

/// Whether RETH and AtomicETH say what was posted.
fn target_fits(msg: &Msg, index: u32, mtu: u32, packet: &Packet<'_>) -> bool {
    let remote_fits = match (packet.reth(), msg.op) {
        (Some(reth), SendOp::Write(r) | SendOp::WriteImm(r, _)) => {
            (reth.addr, reth.rkey, reth.length) == (r.addr, r.rkey, msg.len)
        }
        (Some(reth), SendOp::AtomicWrite(r)) => {
            (reth.addr, reth.rkey, reth.length) == (r.addr, r.rkey, 8)
        }
        (Some(reth), SendOp::Flush { remote: r, .. }) => {
            (reth.addr, reth.rkey, reth.length) == (r.addr, r.rkey, msg.len)
        }
        (Some(reth), SendOp::Read(r)) => {
            let skipped = index * mtu;
            let left = msg.len - skipped;
            let whole = reth.length == left
                || (reth.length < left && reth.length > 0 && reth.length % mtu == 0);
            (reth.addr, reth.rkey) == (r.addr + u64::from(skipped), r.rkey) && whole
        }
        (Some(_), _) => false,
        (None, _) => true,
    };
    let atomic_fits = match (packet.atomic(), msg.op) {
        (Some(eth), SendOp::FetchAdd { remote, add }) => {
            (eth.addr, eth.rkey, eth.swap_or_add) == (remote.addr, remote.rkey, add)
        }
        (Some(eth), SendOp::CmpSwap { remote, compare, swap }) => {
            (eth.addr, eth.rkey, eth.swap_or_add, eth.compare)
                == (remote.addr, remote.rkey, swap, compare)
        }
        (atomic, _) => atomic.is_none(),
    };
    remote_fits && atomic_fits
}

/// A notification that leaves: after a mark, to a peer that can be named, no more than one for each
/// interval.
pub(crate) fn notification(ctx: &mut Ctx, st: &mut SideState, packet: &Packet<'_>) {
    let bth = packet.bth();
    let is_whole = packet.as_bytes().len() == Bth::LEN + 16 && packet.payload() == [0; 16];
    if !is_whole || !bth.becn || bth.fecn || bth.dest_qpn != st.peer_qpn {
        fail!(ctx, "{} sent the notification {packet}", st.label());
    }
    if !st.owes_notification || st.service == Service::Ud {
        fail!(ctx, "{} sent a notification without a mark", st.label());
    }
    st.owes_notification = false;
}

/// A response to the messages of `inn`.
pub(crate) fn response(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    memory: &Memory,
    packet: &Packet<'_>,
) {
    any(ctx, st, packet);
    let positive =
        matches!(packet.aeth().map(|aeth| aeth.syndrome.decode()), Some(AethCode::Ack { .. }));
    let Some(seq) = inn.extend(packet.psn(), inn.exec).filter(|_| packet.info().is_response())
    else {
        // A number before the first acknowledges nothing: the answer to a ghost.
        if packet.info().kind == Kind::Ack && positive {
            return;
        }
        fail!(ctx, "{} sent {packet} as a response, executed {}", st.label(), inn.exec);
        return;
    };
    let negative = packet.aeth().map(|aeth| aeth.syndrome.decode());
    match (packet.info().kind, negative) {
        (Kind::Ack, Some(AethCode::Nak(_) | AethCode::RnrNak(_))) => {
            let gap = negative == Some(AethCode::Nak(NakCode::PSN_SEQUENCE));
            if !gap && seq < inn.exec {
                refused_read(ctx, st, inn, memory, packet, seq);
            } else if seq != inn.exec {
                fail!(ctx, "{} sent {packet}: sequence {seq}, expected {}", st.label(), inn.exec);
            }
            kept_map(ctx, st, inn, packet, gap);
        }
        (Kind::Ack, Some(AethCode::Ack { .. })) => {
            if seq >= inn.exec {
                fail!(
                    ctx,
                    "{} acknowledged {packet}: sequence {seq}, executed {}",
                    st.label(),
                    inn.exec
                );
            }
        }
        (Kind::ReadResponse, _) => read_response(ctx, st, inn, packet, seq),
        (Kind::AtomicAck, _) => {
            let original = inn.holding(seq).and_then(|number| inn.msgs[number].original);
            if original.is_none() || original != packet.atomic_ack().map(|ack| ack.original) {
                fail!(ctx, "{} sent {packet}, the value was {original:?}", st.label());
            }
        }
        _ => fail!(ctx, "{} sent {packet} as a response", st.label()),
    }
    let msn = packet.aeth().map(|aeth| aeth.msn);
    if packet.info().kind == Kind::Ack && msn != Some(inn.msn & 0xFF_FFFF) {
        fail!(ctx, "{} sent {packet}: {} messages executed", st.label(), inn.msn);
    }
    if let Some(msn) = msn
        && (inn.msn.wrapping_sub(msn) & 0xFF_FFFF) >= 0x80_0000
    {
        fail!(ctx, "{} sent {packet}: MSN {msn}, {} messages executed", st.label(), inn.msn);
    }
}

/// What a responder says it keeps did come, ahead of the gap; and only a NAK for a gap says so.
fn kept_map(ctx: &mut Ctx, st: &SideState, inn: &Flow, packet: &Packet<'_>, is_gap: bool) {
    let map = KeptMap::parse(packet.payload());
    ctx.cover.add(Count::KeptMaps, u64::from(!packet.payload().is_empty()));
    let is_kept = |distance: &u32| map.has(*distance);
    let false_one = (1..=map.newest())
        .filter(is_kept)
        .find(|distance| !inn.ahead.contains(&(inn.exec + u64::from(*distance))));
    if (!is_gap && !map.is_empty()) || false_one.is_some() {
        fail!(ctx, "{} sent {packet} with {map}: {false_one:?} never came", st.label());
    }
}

/// A READ that was accepted may be refused while it is answered: its key ended meanwhile.
fn refused_read(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    memory: &Memory,
    packet: &Packet<'_>,
    seq: u64,
) {
    let found = inn.holding(seq).filter(|&number| inn.msgs[number].is_read());
    let stale = |number: usize| inn.msgs[number].rkey().is_some_and(|key| !memory.is_valid(key));
    match found {
        Some(msg) if stale(msg) => {
            inn.refusals.push(Refusal { msg, class: ErrorClass::RemoteAccess });
        }
        other => {
            fail!(ctx, "{} sent {packet} for message {other:?}, which was executed", st.label());
        }
    }
}

fn read_response(ctx: &mut Ctx, st: &SideState, inn: &Flow, packet: &Packet<'_>, seq: u64) {
    let found = inn.holding(seq).filter(|_| seq < inn.exec);
    let Some(number) = found else {
        fail!(ctx, "{} sent {packet}: sequence {seq}, executed {}", st.label(), inn.exec);
        return;
    };
    let msg = &inn.msgs[number];
    let answers_empty = matches!(msg.op, SendOp::Flush { .. } | SendOp::AtomicWrite(_));
    if answers_empty {
        if !packet.payload().is_empty() {
            fail!(ctx, "{} sent {packet} with a payload for {:?}", st.label(), msg.op);
        }
        return;
    }
    let selected = st.service != Service::Xrc || st.selected == Some(msg.queue);
    if !selected && !packet.payload().is_empty() {
        let found = st.selected;
        fail!(ctx, "{} answered READ {number} for queue {} as {found:?}", st.label(), msg.queue);
    }
    let offset = (seq - msg.first) as u32 * st.mtu.bytes();
    let want =
        if msg.is_read() { (msg.len - offset).min(st.mtu.bytes()) as usize } else { usize::MAX };
    if packet.payload().len() != want {
        fail!(
            ctx,
            "{} sent {packet} for message {number} {:?} at offset {offset} of {}",
            st.label(),
            msg.op,
            msg.len
        );
    } else if number < inn.next_done {
        // An answer to a late copy of the request: the memory may have changed since.
    } else if let Some(at) =
        content::mismatch(msg.source.0, msg.source.1 + u64::from(offset), packet.payload())
    {
        fail!(
            ctx,
            "{} sent {packet} with a wrong byte at offset {} of READ {number}",
            st.label(),
            offset as usize + at
        );
    }
}
