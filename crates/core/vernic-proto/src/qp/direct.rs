//! One-sided requests that the owner carries out itself, without packets.
//!
//! An owner that can reach the peer's memory (both run on one host) need not send a WRITE, READ or
//! atomic: it moves the bytes, and the request is complete. [`Qp::next_direct`] says which request
//! may be carried out so, [`Qp::direct_progress`] that a part of it is done, [`Qp::finish_direct`]
//! that all of it is, [`Qp::refuse_direct`] that packets must do it after all, from its beginning.
//!
//! Order is that of the queue. A request is carried out directly only when everything before it is
//! acknowledged, and nothing behind it is sent before it is finished. It takes no sequence number,
//! so the peer's protocol machine does not learn of it, and its check of keys, rights and bounds is
//! the owner's affair: what it does not grant for certain must take packets, so that the responder
//! finds the error. Fences, SQD, signaling and flushing are those of any request.

use super::{Machine, Qp};
use crate::cx::Cx;
use crate::host::{AtomicOp, Host};
use crate::sq::{Entry, SendQueue};
use crate::state::{QpState, QpType};
use crate::time::Time;
use crate::wqe::{Remote, SendOp};
use vernic_wire::Pkey;

/// What is to be done in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// Bytes of the request's slot go there.
    Write,
    /// Bytes go from there to the request's slot.
    Read,
    /// 8 bytes are changed there, and the value before goes to the request's slot.
    Atomic(AtomicOp),
}

/// What must be acknowledged before a request can be carried out directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: it is its turn.
    Nothing,
    /// Packets of one-sided requests. Waiting for them keeps all that follow from taking packets
    /// too.
    OneSided,
    /// Packets of other requests.
    Other,
}

/// A request that may be carried out directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// What to do.
    pub op: DirectOp,
    /// Where; 8-byte aligned for atomics.
    pub remote: Remote,
    /// Bytes in all, at least 1; 8 for atomics.
    pub length: u32,
    /// Slot of its scatter list or inline bytes.
    pub slot: u32,
    /// Bytes already done.
    pub done: u32,
    /// What it waits for. [`Qp::finish_direct`] and [`Qp::direct_progress`] want
    /// [`After::Nothing`].
    pub after: After,
}

impl Direct {
    /// What the request asks for, if it can be carried out directly at all. Zero bytes need no key,
    /// and a misaligned atomic is the responder's to refuse.
    fn of(entry: &Entry) -> Option<(DirectOp, Remote, u32)> {
        let atomic = |remote: Remote, op| {
            remote.addr.is_multiple_of(8).then_some((DirectOp::Atomic(op), remote, 8))
        };
        let length = entry.wqe.length;
        match entry.wqe.op {
            SendOp::Write(remote) if length > 0 => Some((DirectOp::Write, remote, length)),
            SendOp::Read(remote) if length > 0 => Some((DirectOp::Read, remote, length)),
            SendOp::CmpSwap { remote, compare, swap } => {
                atomic(remote, AtomicOp::CmpSwap { compare, swap })
            }
            SendOp::FetchAdd { remote, add } => atomic(remote, AtomicOp::FetchAdd(add)),
            _ => None,
        }
    }
}

/// What may be carried out next, of a queue that is `draining` (SQD) or not.
pub(crate) fn next(sq: &SendQueue, draining: bool) -> Option<Direct> {
    if sq.cursor_is_started() || (draining && !sq.is_direct()) {
        return None;
    }
    let (index, entry) = sq.at_cursor()?;
    let (op, remote, length) = Direct::of(entry)?;
    let after = if sq.cursor_is_head() && !sq.is_outstanding() {
        After::Nothing
    } else if sq.before_cursor().is_some_and(|entry| Direct::of(entry).is_some()) {
        After::OneSided
    } else {
        After::Other
    };
    Some(Direct { op, remote, length, slot: sq.slot(index), done: sq.direct_done(), after })
}

impl Qp {
    /// The request that its owner may carry out itself: a WRITE, READ, compare-and-swap or
    /// fetch-and-add (RC), or a WRITE (UC), of which no packet has left. It need not: until
    /// [`direct_progress`](Self::direct_progress) is called, [`poll_request`](Self::poll_request)
    /// sends it.
    #[inline]
    pub fn next_direct(&self) -> Option<Direct> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        match &self.machine {
            // The memory of an XRC request is of the shared receive queue's domain.
            Machine::Rc(rc) if self.init.qp_type == QpType::Rc => next(&rc.sq, rc.holds_new()),
            Machine::Uc(uc) => next(&uc.sq, uc.holds_new()),
            _ => None,
        }
    }

    /// `bytes` more of the request are done. Until all of it is, no packet of the send queue
    /// leaves, and SQD is not drained.
    pub fn direct_progress(&mut self, bytes: u32) {
        if let Some(direct) = self.direct_now() {
            let done = direct.done.saturating_add(bytes).min(direct.length);
            each!(&mut self.machine, m => m.sq.set_direct(Some(done)));
        }
    }

    /// The request is carried out as a whole: completes it in its turn, if it is signaled. Does
    /// nothing where [`next_direct`](Self::next_direct) has none, or one that waits.
    pub fn finish_direct(&mut self, now: Time, host: &mut impl Host) {
        if self.direct_now().is_none() {
            return;
        }
        self.counters.messages_sent += 1;
        let cx = cx!(self, now);
        match &mut self.machine {
            Machine::Rc(rc) => rc.finish_direct(cx, host),
            Machine::Uc(uc) => uc.finish_direct(cx, host),
            Machine::Ud(_) => {}
        }
    }

    /// The request takes packets from its beginning, whatever was done of it. Needed only after
    /// [`direct_progress`](Self::direct_progress).
    pub fn refuse_direct(&mut self) {
        let mtu = self.attr.path_mtu.bytes();
        if self.direct_now().is_none() {
            return;
        }
        // Begun, it counts as started: SQD waits for it.
        match &mut self.machine {
            Machine::Rc(rc) if rc.sq.is_direct() => rc.start_in_packets(mtu),
            Machine::Uc(uc) if uc.sq.is_direct() => uc.start_in_packets(mtu),
            _ => {}
        }
    }

    /// The request that may be carried out now.
    fn direct_now(&self) -> Option<Direct> {
        self.next_direct().filter(|direct| direct.after == After::Nothing)
    }
}
