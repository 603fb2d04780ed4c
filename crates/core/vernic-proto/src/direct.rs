//! Which request at the cursor of a send queue can be carried out without packets.
//!
//! What it means to do so stands at the head of `qp::direct`.

use crate::host::AtomicOp;
use crate::sq::{Entry, SendQueue};
use crate::wqe::{Remote, SendOp};

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
    /// What it waits for. [`Qp::finish_direct`](crate::Qp::finish_direct) and
    /// [`Qp::direct_progress`](crate::Qp::direct_progress) want [`After::Nothing`].
    pub after: After,
}

impl Direct {
    /// The request in a slot, of which nothing is done yet, if it can be carried out directly at
    /// all and waits for nothing.
    fn fresh(entry: &Entry, slot: u32) -> Option<Self> {
        let (op, remote, length) = Self::of(entry)?;
        Some(Self { op, remote, length, slot, done: 0, after: After::Nothing })
    }

    /// What the request asks for, if it can be carried out directly at all. Zero bytes need no key,
    /// and a misaligned atomic is the responder's to refuse.
    #[inline]
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
#[inline]
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

/// The requests behind the one at the cursor, up to the first that cannot be carried out directly.
/// Nothing is in flight before the request at the cursor, so once that one is finished, each of
/// these is next in its turn.
pub(crate) fn behind(sq: &SendQueue) -> impl Iterator<Item = Direct> {
    let behind = sq.at_cursor().map_or(sq.tail(), |(index, _)| index + 1);
    (behind..sq.tail()).map_while(|index| Direct::fresh(sq.entry(index), sq.slot(index)))
}
