//! The oracle's check of completions: order, number, status, and what success promises.
//!
//! - Completions come in the order of the posts; a request that is passed over was unsignaled and
//!   succeeded; nothing completes twice; after the first failure nothing is passed over.
//! - Success on RC means: executed by the peer, answered in whole, every byte right.
//! - A failure needs its reason in what was injected ([`justify`]).
//!
//! Called by the host only.

use vernic_proto::{Cause, Completion, SendFlags, SendOp, Tag, WcOpcode, WcStatus};
use vernic_wire::Service;

use crate::content;
use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::{Bad, Flow, Msg};
use crate::side::{SideState, SimHost};
use crate::xrc::{is_reliable, queue_of_recv};

/// Bytes before the payload in a datagram's receive.
pub(crate) const GRH_AREA: usize = 40;

/// A completion of the send queue.
pub(crate) fn send(host: &mut SimHost<'_>, c: &Completion) {
    let index = (c.wr_id & 0xFFFF_FFFF) as usize;
    host.ctx.say(format_args!("{} wc {index} {:?} {:?}", host.st.label(), c.opcode, c.status));
    if c.wr_id & !0xFFFF_FFFF != host.st.wr_base {
        fail!(host.ctx, "completion of {:#x}, which was posted before a reset", c.wr_id);
        return;
    }
    if index < host.out.next_done || index >= host.out.msgs.len() {
        fail!(
            host.ctx,
            "completion {:?} of message {index}: next is {} of {}",
            c.status,
            host.out.next_done,
            host.out.msgs.len()
        );
        return;
    }
    for passed in host.out.next_done..index {
        if host.out.msgs[passed].flags.contains(SendFlags::SIGNALED) || host.out.failed.is_some() {
            fail!(host.ctx, "message {passed} has no completion, {index} has {:?}", c.status);
            return;
        }
        succeeded(host, passed);
    }
    host.out.next_done = index;
    match c.status {
        WcStatus::Success if host.out.failed.is_some() => {
            fail!(host.ctx, "message {index} succeeded after a failure");
        }
        WcStatus::Success => {
            if !host.out.msgs[index].flags.contains(SendFlags::SIGNALED) {
                fail!(host.ctx, "message {index} is unsignaled and succeeded with a completion");
            }
            if c.opcode != expected_opcode(&host.out.msgs[index]) || c.vendor_err != 0 {
                fail!(
                    host.ctx,
                    "message {index} {:?} completed as {:?}, vendor_err {:#x}",
                    host.out.msgs[index].op,
                    c.opcode,
                    c.vendor_err
                );
            }
            if host.out.msgs[index].sink_len() > 0 && c.byte_len != host.out.msgs[index].sink_len()
            {
                fail!(
                    host.ctx,
                    "message {index} completed with {} bytes, not {}",
                    c.byte_len,
                    host.out.msgs[index].sink_len()
                );
            }
            succeeded(host, index);
            host.out.trouble_since = 0;
            host.out.rnr_naks = host.out.rnr_now;
        }
        status => failed(host, index, status),
    }
    if c.qpn != host.st.qpn {
        fail!(host.ctx, "completion names queue pair {}, not {}", c.qpn, host.st.qpn);
    }
    host.out.next_done = index + 1;
}

fn expected_opcode(msg: &Msg) -> WcOpcode {
    match msg.op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
        SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
        SendOp::Read(_) | SendOp::ReadInv(..) => WcOpcode::Read,
        SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::AtomicWrite(_) => WcOpcode::AtomicWrite,
        SendOp::LocalInv(_) => WcOpcode::LocalInv,
        SendOp::BindMw(_) => WcOpcode::BindMw,
    }
}

/// What the success of message `index` promises.
fn succeeded(host: &mut SimHost<'_>, index: usize) {
    let out = &mut *host.out;
    let msg = &out.msgs[index];
    // An unreliable one succeeds as its last piece is handed out.
    let is_ending = out.emit.0 == index && host.st.gathered == Some((index, u64::from(msg.len)));
    host.ctx.hit(Count::WcSuccess);
    host.ctx.hit(msg.count);
    if msg.is_local() {
        if !msg.local_done {
            fail!(host.ctx, "message {index} {:?} succeeded and was not carried out", msg.op);
        }
    } else if is_reliable(host.st.service) && !host.st.lenient {
        if out.exec < msg.end() {
            fail!(
                host.ctx,
                "message {index} succeeded, the peer executed {} of its {} packets",
                out.exec.saturating_sub(msg.first),
                msg.packets
            );
        }
        check_answer(host.ctx, index, msg);
    } else if !(host.st.lenient || out.emit.0 > index || is_ending) {
        fail!(host.ctx, "message {index} succeeded and was not sent");
    }
    host.ctx.cover.add(Count::Messages, 1);
    host.ctx.cover.add(Count::Bytes, u64::from(msg.len));
    if msg.flags.contains(SendFlags::FENCE) {
        host.ctx.hit(Count::OpFenced);
    }
    if !msg.flags.contains(SendFlags::SIGNALED) {
        host.ctx.hit(Count::OpUnsignaled);
    }
    while out.ring.front().is_some_and(|range| range.until <= index) {
        out.ring.pop_front();
    }
}

fn check_answer(ctx: &mut crate::ctx::Ctx, index: usize, msg: &Msg) {
    if !msg.is_answered() {
        fail!(
            ctx,
            "message {index} succeeded with {} of {} bytes returned",
            msg.sink.len(),
            msg.sink_len()
        );
    } else if msg.is_read() {
        if let Some(at) = content::mismatch(msg.source.0, msg.source.1, &msg.sink) {
            fail!(ctx, "READ {index} returned a wrong byte at offset {at}");
        }
    } else if msg.is_atomic() {
        let got = msg.sink[..8].try_into().map(u64::from_ne_bytes).ok();
        if got != msg.original {
            fail!(ctx, "atomic {index} returned {got:?}, the value was {:?}", msg.original);
        }
    }
}

fn failed(host: &mut SimHost<'_>, index: usize, status: WcStatus) {
    host.ctx.hit(match status {
        WcStatus::Flushed => Count::WcFlushed,
        WcStatus::LocalProtection | WcStatus::MwBind | WcStatus::LocalQpOperation => {
            Count::WcLocalProtection
        }
        WcStatus::RemoteInvalidRequest => Count::WcRemoteInvalid,
        WcStatus::RemoteAccess => Count::WcRemoteAccess,
        WcStatus::RemoteOperation => Count::WcRemoteOperation,
        WcStatus::RetryExceeded => Count::WcRetryExceeded,
        WcStatus::RnrRetryExceeded => Count::WcRnrExceeded,
        _ => Count::WcOther,
    });
    if host.out.failed.is_some() {
        if status != WcStatus::Flushed {
            fail!(host.ctx, "message {index} failed with {status:?} after an earlier failure");
        }
        return;
    }
    host.out.failed = Some((index, status));
    if host.st.lenient {
        return;
    }
    if status == WcStatus::Flushed {
        return; // the reason is checked when the call returns
    }
    match host.st.failure {
        Some(failure)
            if failure.status == status
                && failure.wr_id.is_none_or(|id| id == host.st.wr_base | index as u64) => {}
        other => fail!(
            host.ctx,
            "message {index} failed with {status:?}, the failure reported is {other:?}"
        ),
    }
    if let Err(why) = justify(host.st, host.out, index, status) {
        fail!(
            host.ctx,
            "message {index} {:?} failed with {status:?}: {why}",
            host.out.msgs[index].op
        );
    }
}

/// The queue pair has failed: unsignaled requests that were never reported had succeeded before.
pub(crate) fn silent(host: &mut SimHost<'_>) {
    let rest = host.out.next_done..host.out.msgs.len();
    let unsignaled = |index: usize| !host.out.msgs[index].flags.contains(SendFlags::SIGNALED);
    if host.out.failed.is_none() && rest.clone().all(unsignaled) {
        for index in rest {
            succeeded(host, index);
            host.out.next_done = index + 1;
        }
    }
}

/// Whether what was injected explains the status of message `index`.
fn justify(st: &SideState, out: &Flow, index: usize, status: WcStatus) -> Result<(), String> {
    let msg = &out.msgs[index];
    let because = |ok: bool, why: &str| if ok { Ok(()) } else { Err(why.to_owned()) };
    match status {
        WcStatus::LocalProtection => {
            because(matches!(msg.bad, Bad::Local(_)), "its memory was good")
        }
        WcStatus::MwBind | WcStatus::LocalQpOperation => {
            because(msg.is_local() && msg.bad != Bad::None, "its key was good")
        }
        WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation => {
            match out.refusals.iter().find(|refusal| refusal.msg == index) {
                Some(refusal) => {
                    let (expected, _) = vernic_proto::requester_status(refusal.class.row().nak);
                    because(
                        expected == status,
                        &format!("the peer refused with {:?}", refusal.class),
                    )
                }
                None => Err(format!("the peer refused {:?}", out.refusals)),
            }
        }
        WcStatus::RetryExceeded => {
            let cause = st.failure.map(|f| f.cause);
            if matches!(cause, Some(Cause::PeerGone)) {
                return because(st.peer_gone, "the peer's process is there");
            }
            let fits = matches!(cause, Some(Cause::AckTimeout { .. } | Cause::SequenceNak { .. }));
            because(fits, "the cause names no loss")?;
            let need = u32::from(st.retry_cnt);
            because(
                st.hasty || (out.trouble_since >= need && out.trouble > 0),
                &format!(
                    "{} disturbances since the last success, {} in all, {need} needed",
                    out.trouble_since, out.trouble
                ),
            )
        }
        WcStatus::RnrRetryExceeded => {
            let limit = u32::from(st.rnr_retry);
            because(limit != 7, "rnr_retry is 7: for ever")?;
            because(
                out.rnr_naks > limit,
                &format!("{} RNR NAKs arrived, rnr_retry is {limit}", out.rnr_naks),
            )
        }
        _ => Err("nothing in the simulation leads to it".to_owned()),
    }
}

/// A completion of the receive queue.
pub(crate) fn recv(host: &mut SimHost<'_>, c: &Completion) {
    host.ctx.say(format_args!(
        "{} recv {} {:?} {} bytes {:?}",
        host.st.label(),
        c.wr_id & 0xFFFF_FFFF,
        c.status,
        c.byte_len,
        c.tag
    ));
    if host.st.service == Service::Xrc {
        host.ctx.say(format_args!("{} recv of queue {}", host.st.label(), queue_of_recv(c.wr_id)));
    }
    host.st.fx.recvs_done += 1;
    host.st.recvs_done += 1;
    let Some(recv) = host.st.current.take() else {
        fail!(host.ctx, "a receive completed ({:#x}, {:?}) and none was taken", c.wr_id, c.status);
        return;
    };
    if recv.wr_id != c.wr_id {
        fail!(host.ctx, "receive {:#x} completed, {:#x} was taken", c.wr_id, recv.wr_id);
    }
    if host.st.recv_flushed {
        fail!(host.ctx, "receive {:#x} completed with {:?} after the flush", c.wr_id, c.status);
    }
    if host.st.lenient {
        return;
    }
    if c.status != WcStatus::Success {
        host.ctx.hit(if c.status == WcStatus::LocalLength {
            Count::WcLocalLength
        } else {
            Count::WcOther
        });
        host.st.recv_status = Some(c.status);
        return;
    }
    host.ctx.hit(if host.st.shared { Count::ReceivedShared } else { Count::Received });
    let Some(piece) = host.st.piece.filter(|piece| piece.last) else {
        fail!(
            host.ctx,
            "a receive completed in the middle of a message or by a packet that must not"
        );
        return;
    };
    check_received(host, piece.msg, &recv.data, c);
}

fn check_received(host: &mut SimHost<'_>, index: usize, data: &[u8], c: &Completion) {
    let ud = host.st.service == Service::Ud;
    let msg = &host.inn.msgs[index];
    let tag = match msg.op {
        SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => Tag::Imm(imm),
        SendOp::SendInv(key) => Tag::Invalidated(key),
        SendOp::Send => Tag::None,
        _ => {
            fail!(host.ctx, "message {index} {:?} completed a receive", msg.op);
            return;
        }
    };
    let opcode = if msg.is_send() { WcOpcode::Recv } else { WcOpcode::RecvWriteImm };
    let extra = if ud { GRH_AREA as u32 } else { 0 };
    let solicited = msg.flags.contains(SendFlags::SOLICITED);
    if (c.tag, c.opcode, c.byte_len, c.solicited, c.grh)
        != (tag, opcode, msg.len + extra, solicited, ud)
    {
        fail!(
            host.ctx,
            "message {index} {:?} ({} bytes, solicited {solicited}) received as {c:?}",
            msg.op,
            msg.len
        );
    }
    if (c.qpn, c.src_qpn) != (host.st.qpn, host.st.peer_qpn) {
        fail!(
            host.ctx,
            "received by {} from {}, completion says {c:?}",
            host.st.qpn,
            host.st.peer_qpn
        );
    }
    if host.st.service == Service::Xrc && queue_of_recv(c.wr_id) != msg.queue {
        let from = queue_of_recv(c.wr_id);
        fail!(host.ctx, "message {index} for queue {} took a receive of queue {from}", msg.queue);
    }
    let payload = if ud { data.get(GRH_AREA..).unwrap_or_default() } else { data };
    let want = if msg.is_send() { msg.len as usize } else { 0 };
    // What a broken message left in the receive of an unreliable service may be longer.
    let payload =
        if is_reliable(host.st.service) { payload } else { &payload[..want.min(payload.len())] };
    if payload.len() != want {
        fail!(host.ctx, "message {index}: {} bytes in the receive, {want} sent", payload.len());
    } else if let Some(at) = content::mismatch(msg.id, 0, payload) {
        fail!(host.ctx, "message {index}: wrong byte received at offset {at}");
    }
    host.inn.msgs[index].delivered += 1;
}

/// The send queue says that it has drained.
pub(crate) fn drained(host: &mut SimHost<'_>) {
    host.ctx.hit(Count::DrainedEvents);
    if !host.st.draining || host.st.drained {
        fail!(
            host.ctx,
            "a drained event, draining {} drained before {}",
            host.st.draining,
            host.st.drained
        );
    }
    host.st.drained = true;
    let unfinished = host
        .out
        .msgs
        .iter()
        .take_while(|msg| msg.is_local() || msg.first < host.out.high)
        .enumerate();
    for (index, msg) in unfinished.skip(host.out.next_done) {
        if is_reliable(host.st.service)
            && (host.out.exec < msg.end() || !msg.is_answered())
            && !msg.is_local()
        {
            fail!(host.ctx, "drained with message {index} unfinished");
        }
    }
}
