//! The oracle's check of a handled packet: what it did against what was said of it.
//!
//! Before the packet is handled, [`expect`] works out which piece of which message it is. After it,
//! [`judge`] compares the effects with the disposition: an accepted packet did exactly its piece,
//! and was the next one (RC); a duplicate, a dropped and a refused one changed nothing.
//!
//! Called by the world's delivery; reads the flows, changes how far they are executed.

use std::fmt::Display;

use vernic_proto::{Disposition, DropReason, ErrorClass, SendOp, WcStatus};
use vernic_wire::opcode::Kind;
use vernic_wire::{Packet, Service};

use crate::cover::Count;
use crate::ctx::{Ctx, fail};
use crate::flow::{Bad, Flow, Msg, Refusal};
use crate::memory::Memory;
use crate::net::Tag;
use crate::side::{Effects, Piece, Pulled, SideState};
use crate::xrc::is_reliable;

/// The piece that a request packet is, if it is one that may be executed now; and its extended
/// sequence number.
pub(crate) fn expect(
    st: &SideState,
    inn: &Flow,
    packet: &Packet<'_>,
    tag: &Tag,
) -> (Option<Piece>, u64) {
    let mtu = st.mtu.bytes();
    if is_reliable(st.service) {
        let Some(seq) = inn.extend(packet.psn(), inn.exec) else { return (None, u64::MAX) };
        let Some(number) = inn.holding(seq).filter(|_| seq == inn.exec) else { return (None, seq) };
        let msg = &inn.msgs[number];
        return (Some(piece(msg, number, (seq - msg.first) as u32, mtu)), seq);
    }
    let Some(msg) = inn.msgs.get(tag.msg) else { return (None, 0) };
    (Some(piece(msg, tag.msg, tag.index, mtu)), 0)
}

fn piece(msg: &Msg, number: usize, index: u32, mtu: u32) -> Piece {
    let (offset, len) = msg.piece(index, mtu);
    Piece { msg: number, offset, len, first: index == 0, last: index + 1 == msg.packets }
}

/// A request of RC or XRC that was handled: a packet, or a part of a message.
pub(crate) struct Arrival<'a> {
    /// The name in a report.
    pub(crate) what: &'a dyn Display,
    /// The first extended sequence number.
    pub(crate) seq: u64,
    /// Sequence numbers that it takes.
    pub(crate) numbers: u64,
    /// Whether it ends a message.
    pub(crate) ends: bool,
}

/// Judges a request on RC or XRC.
pub(crate) fn judge_rc(
    ctx: &mut Ctx,
    st: &mut SideState,
    inn: &mut Flow,
    memory: &Memory,
    arrival: &Arrival<'_>,
    disposition: Disposition,
) {
    let Arrival { what: packet, seq, .. } = *arrival;
    let fx = st.fx;
    let failed_pull = st.pulled.is_some_and(|pulled| pulled != Pulled::Bytes);
    let untouched = Effects {
        refused: fx.refused,
        // A receive that a rendezvous took stays, for the packets that come instead.
        recvs_taken: if failed_pull { fx.recvs_taken } else { 0 },
        ..Effects::default()
    };
    st.kept_recv |= failed_pull && fx.recvs_taken > 0;
    match disposition {
        Disposition::Accepted => {
            let Some(piece) = st.piece else {
                fail!(
                    ctx,
                    "{} accepted {packet}: sequence {seq}, expected {}",
                    st.label(),
                    inn.exec
                );
                return;
            };
            done_in_full(ctx, st, inn, &piece, &fx);
            st.kept_recv = false;
            inn.msn = inn.msn.wrapping_add(u32::from(arrival.ends));
            inn.exec = seq + arrival.numbers;
            inn.ahead = inn.ahead.split_off(&inn.exec);
        }
        Disposition::Kept if seq <= inn.exec => {
            fail!(ctx, "{} keeps {packet}: sequence {seq}, expected {}", st.label(), inn.exec);
        }
        Disposition::Kept => {
            inn.ahead.insert(seq);
        }
        Disposition::Duplicate if seq >= inn.exec => {
            fail!(
                ctx,
                "{} took {packet} for a duplicate: sequence {seq}, executed {}",
                st.label(),
                inn.exec
            );
        }
        Disposition::Rnr => {
            if !st.piece.is_some_and(|piece| inn.msgs[piece.msg].takes_recv()) {
                fail!(ctx, "{} answered RNR to {packet}, which needs no receive", st.label());
            }
        }
        Disposition::Nak(ErrorClass::PsnSequence) if seq <= inn.exec && !failed_pull => {
            fail!(
                ctx,
                "{} reports a gap at {packet}: sequence {seq}, expected {}",
                st.label(),
                inn.exec
            );
        }
        Disposition::Nak(ErrorClass::PsnSequence) => {
            inn.ahead.insert(seq);
        }
        Disposition::Duplicate => {}
        Disposition::Nak(class) => refused(ctx, st, inn, memory, packet, class),
        Disposition::Drop(reason) => {
            if reason == DropReason::BadState {
                inn.disturb();
            }
        }
    }
    let failing = matches!(disposition, Disposition::Nak(class) if class.row().fatal);
    if disposition != Disposition::Accepted && !failing && fx != untouched {
        fail!(ctx, "{} {disposition:?} {packet} had effects: {fx:?}", st.label());
    }
}

/// Sequence numbers that a request takes: for READ those of its response.
pub(crate) fn sequence_numbers(packet: &Packet<'_>, mtu: u32) -> u64 {
    match (packet.info().kind, packet.reth()) {
        (Kind::ReadRequest, Some(reth)) => u64::from(reth.length.div_ceil(mtu).max(1)),
        _ => 1,
    }
}

fn done_in_full(ctx: &mut Ctx, st: &SideState, inn: &Flow, piece: &Piece, fx: &Effects) {
    let msg = &inn.msgs[piece.msg];
    let wrong_queue = matches!(msg.bad, Bad::UnknownSrq | Bad::ForeignSrq);
    if st.service == Service::Xrc && (wrong_queue || st.selected != Some(msg.queue)) {
        fail!(
            ctx,
            "{} accepted message {} for queue {} ({:?}) as for {:?}",
            st.label(),
            piece.msg,
            msg.queue,
            msg.bad,
            st.selected
        );
    }
    let is_atomic_write = matches!(msg.op, SendOp::AtomicWrite(_));
    let want = Effects {
        written: if msg.is_write() || is_atomic_write { piece.len } else { 0 },
        scattered: if msg.is_send() { piece.len } else { 0 },
        atomics: u32::from(msg.is_atomic()),
        flushes: if matches!(msg.op, SendOp::Flush { .. }) { fx.flushes } else { 0 },
        recvs_taken: u32::from(if msg.is_send() {
            piece.first && !st.kept_recv
        } else {
            msg.takes_recv() && piece.last
        }),
        recvs_done: u32::from(msg.takes_recv() && piece.last),
        invalidated: u32::from(matches!(msg.op, SendOp::SendInv(_)) && piece.last),
        refused: None,
    };
    if *fx != want {
        fail!(
            ctx,
            "{} accepted a packet of message {} {:?}: did {fx:?}, expected {want:?}",
            st.label(),
            piece.msg,
            msg.op
        );
    }
}

fn refused(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    memory: &Memory,
    packet: &dyn Display,
    class: ErrorClass,
) {
    let Some(piece) = st.piece else {
        fail!(ctx, "{} refused {packet} with {class:?}: not the packet expected", st.label());
        return;
    };
    let msg = &inn.msgs[piece.msg];
    let key_is_bad = || msg.rkey().is_some_and(|key| !memory.is_valid(key));
    let short = st.last_capacity.is_some_and(|capacity| msg.len > capacity);
    let good_reason = match class {
        ErrorClass::RemoteAccess => msg.bad == Bad::Key || key_is_bad(),
        ErrorClass::Invalidate => msg.bad == Bad::Invalidate || key_is_bad(),
        ErrorClass::Misaligned => msg.bad == Bad::Misaligned,
        ErrorClass::UnsupportedOpcode => msg.bad == Bad::QpRights,
        ErrorClass::MessageLength => msg.is_send() && short,
        ErrorClass::ReceiveMemory => msg.takes_recv() && st.last_recv_bad,
        ErrorClass::SrqUnknown => msg.bad == Bad::UnknownSrq,
        ErrorClass::XrcDomain => msg.bad == Bad::ForeignSrq,
        _ => false,
    };
    if !good_reason {
        fail!(
            ctx,
            "{} refused message {} {:?} with {class:?}: nothing was wrong with it (fault {:?})",
            st.label(),
            piece.msg,
            msg.op,
            st.fx.refused
        );
    }
    if st.fx.written > piece.len || st.fx.atomics > 0 {
        fail!(
            ctx,
            "{} refused message {} {:?} and executed it: {:?}",
            st.label(),
            piece.msg,
            msg.op,
            st.fx
        );
    }
    if let Some(status) = st.recv_status
        && status != class.row().recv_status
    {
        fail!(ctx, "{} refused with {class:?}, its receive completed with {status:?}", st.label());
    }
    inn.refusals.push(Refusal { msg: piece.msg, class });
}

/// Judges a request on UC and UD, a packet or a part of a message: pieces of one message in order,
/// whole or not at all.
pub(crate) fn judge_unreliable(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    what: &dyn Display,
    disposition: Disposition,
    orderly: bool,
) {
    let fx = st.fx;
    let Some(piece) = st.piece else { return };
    let (is_send, is_write) = (inn.msgs[piece.msg].is_send(), inn.msgs[piece.msg].is_write());
    inn.msgs[piece.msg].copies += u32::from(piece.last);
    match disposition {
        Disposition::Accepted => {
            accepted_unreliable(ctx, st, inn, what, &piece, orderly);
        }
        Disposition::Drop(_) => {
            if fx.recvs_done > 0 && st.recv_status.is_none_or(|s| s == WcStatus::Success) {
                fail!(ctx, "{} dropped {what} and completed a receive", st.label());
            }
            inn.assembly = None;
        }
        Disposition::Nak(class) => {
            let short = st.last_capacity.is_some_and(|capacity| inn.msgs[piece.msg].len > capacity);
            let fits = match class {
                ErrorClass::ReceiveMemory => st.last_recv_bad,
                ErrorClass::MessageLength => short,
                _ => false,
            };
            if !fits {
                fail!(ctx, "{} {disposition:?} to {what} on {:?}", st.label(), st.service);
            }
            inn.assembly = None;
        }
        other => fail!(ctx, "{} {other:?} to {what} on {:?}", st.label(), st.service),
    }
    if is_write && fx.scattered > 0 || is_send && fx.written > 0 {
        fail!(ctx, "{} {what} stored into the wrong place: {fx:?}", st.label());
    }
}

/// An accepted piece continues its message, and was stored whole.
fn accepted_unreliable(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    what: &dyn Display,
    piece: &Piece,
    orderly: bool,
) {
    let fx = st.fx;
    let stored = if inn.msgs[piece.msg].is_send() { fx.scattered } else { fx.written };
    let extra = if st.service == Service::Ud { crate::complete::GRH_AREA as u32 } else { 0 };
    if stored != piece.len + extra {
        fail!(
            ctx,
            "{} accepted {what} and stored {stored} bytes of {}",
            st.label(),
            piece.len + extra
        );
    }
    let continues = inn.assembly == Some((piece.msg, piece.offset)) && !piece.first;
    if !piece.first && !continues {
        fail!(
            ctx,
            "{} accepted {what} after a gap in message {} (had {:?})",
            st.label(),
            piece.msg,
            inn.assembly
        );
    }
    inn.assembly = (!piece.last).then_some((piece.msg, piece.offset + piece.len));
    if piece.last && piece.msg < inn.delivered && orderly {
        fail!(
            ctx,
            "{} delivered message {} after message {}",
            st.label(),
            piece.msg,
            inn.delivered
        );
    }
    if piece.last {
        inn.delivered = inn.delivered.max(piece.msg + 1);
    }
    let msg = &inn.msgs[piece.msg];
    if msg.takes_recv() && piece.last && (fx.recvs_done != 1 || msg.delivered > msg.copies) {
        fail!(
            ctx,
            "message {} delivered {} times, {} copies came",
            piece.msg,
            msg.delivered,
            msg.copies
        );
    }
    // Zero bytes need no key (IBTA C9-88).
    if msg.bad == Bad::Qkey || (msg.bad == Bad::Key && msg.len > 0) {
        fail!(ctx, "{} accepted message {} in spite of {:?}", st.label(), piece.msg, msg.bad);
    }
}

/// Counts what became of a packet.
pub(crate) fn count(ctx: &mut Ctx, disposition: Disposition) {
    match disposition {
        Disposition::Accepted => ctx.hit(Count::DispAccepted),
        Disposition::Duplicate => ctx.hit(Count::DispDuplicate),
        Disposition::Rnr => ctx.hit(Count::DispRnr),
        Disposition::Kept => ctx.hit(Count::Kept),
        Disposition::Nak(ErrorClass::PsnSequence) => ctx.hit(Count::NakSequence),
        Disposition::Nak(_) => ctx.hit(Count::NakFatal),
        Disposition::Drop(reason) => ctx.cover.dropped(reason),
    }
}
