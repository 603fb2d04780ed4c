//! What this end asked the peer for and waits for: READs and atomics, in their order.
//!
//! At most ORD of them: "For outbound RDMA Read Requests, the RDMAP layer MUST NOT exceed the
//! maximum number of outstanding, outbound RDMA Read Requests that were negotiated" (RFC 5040,
//! 6.1); atomics count as READs (RFC 7306, 5.2). Answers come in the order of the requests (RFC
//! 5040, 5.5 (20)), so only the oldest can be answered.
//!
//! A READ names its own memory by a number that means nothing to others: the key of the response is
//! checked against it, and it never was in the table of keys.

use std::collections::VecDeque;

use vernic_wire::Rkey;

use crate::wqe::{SendFlags, SendOp, SendWqe};

/// What the peer's next answer must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    Read {
        /// Of the request; the start-up's own READ has none.
        slot: Option<u32>,
        /// The number that the response carries.
        stag: Rkey,
        /// Bytes so far.
        received: u32,
        length: u32,
    },
    Atomic {
        slot: u32,
        request_id: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Of the send queue; the start-up's own READ has none.
    index: Option<u64>,
    expected: Expected,
    /// Ended when the answer is here.
    invalidate: Option<Rkey>,
}

/// The queue of requests that wait for answers, with room for ORD of them.
#[derive(Debug)]
pub(super) struct Asked {
    queue: VecDeque<Pending>,
    depth: usize,
    /// Number of the newest request: the STag of a READ, the identifier of an atomic. Never 0,
    /// which some peers refuse.
    number: u32,
}

impl Asked {
    pub(super) fn new(ord: u32) -> Self {
        let depth = ord as usize;
        // One more for the start-up's own READ.
        Self { queue: VecDeque::with_capacity(depth + 1), depth, number: 0 }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }
    /// Whether one more may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < self.depth
    }
    /// Whether nothing waits for an answer: what a fence waits for.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// The number that the next request carries.
    pub(super) fn next_number(&self) -> u32 {
        self.number.wrapping_add(1).max(1)
    }

    /// The start-up's own READ has been sent.
    pub(super) fn push_rtr(&mut self) {
        self.number = self.next_number();
        let stag = Rkey(self.number);
        let expected = Expected::Read { slot: None, stag, received: 0, length: 0 };
        self.queue.push_back(Pending { index: None, expected, invalidate: None });
    }

    /// Whether the start-up's own READ waits for its answer.
    pub(super) fn has_rtr(&self) -> bool {
        self.queue.front().is_some_and(|pending| pending.index.is_none())
    }

    /// The start-up's own READ needs no answer any more.
    pub(super) fn forget_rtr(&mut self) {
        if self.has_rtr() {
            self.queue.pop_front();
        }
    }

    /// Request `index` has been sent, which is a READ or an atomic.
    pub(super) fn push(&mut self, index: u64, slot: u32, wqe: &SendWqe) {
        self.number = self.next_number();
        let read = |length| {
            let stag = Rkey(self.number);
            Expected::Read { slot: Some(slot), stag, received: 0, length }
        };
        let (expected, invalidate) = match wqe.op {
            SendOp::Read(_) => (read(wqe.length), None),
            SendOp::ReadInv(_, rkey) => (read(wqe.length), Some(rkey)),
            _ => (Expected::Atomic { slot, request_id: self.number }, None),
        };
        self.queue.push_back(Pending { index: Some(index), expected, invalidate });
    }

    /// What the peer's next answer must be.
    pub(super) fn expected(&self) -> Option<Expected> {
        self.queue.front().map(|pending| pending.expected)
    }
    /// The request of the send queue that it is for.
    pub(super) fn front_index(&self) -> Option<u64> {
        self.queue.front().and_then(|pending| pending.index)
    }
    /// Slot and identifier of the oldest request, if it is an atomic.
    pub(super) fn atomic(&self) -> Option<(u32, u32)> {
        match self.expected()? {
            Expected::Atomic { slot, request_id } => Some((slot, request_id)),
            Expected::Read { .. } => None,
        }
    }

    /// Bytes of the oldest READ have come; returns how many are missing.
    pub(super) fn received(&mut self, len: u32) -> u32 {
        match self.queue.front_mut().map(|pending| &mut pending.expected) {
            Some(Expected::Read { received, length, .. }) => {
                *received += len;
                *length - *received
            }
            _ => 0,
        }
    }

    /// The local invalidate that goes with the oldest one.
    pub(super) fn invalidates(&self) -> Option<SendWqe> {
        let rkey = self.queue.front()?.invalidate?;
        Some(SendWqe {
            wr_id: 0,
            op: SendOp::LocalInv(rkey),
            flags: SendFlags::empty(),
            length: 0,
            dest: None,
            srqn: None,
        })
    }

    /// The oldest one is answered; returns its request of the send queue.
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.queue.pop_front().and_then(|pending| pending.index)
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}
