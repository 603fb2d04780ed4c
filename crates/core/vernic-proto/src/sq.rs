//! The send queue: posted requests, their place in the sequence, and how far each end has come.
//!
//! ```text
//!   requests   head ........ cursor ........ started ........ tail
//!              | outstanding  | sent again     | never sent yet |
//!   sequence         una ......... next ......... high
//!                    | unacknowledged |  sent before go-back |
//! ```
//! `una` is the oldest sequence number that is not both acknowledged and, for READs and atomics,
//! answered; `next` the one sent next; `high` one past the highest ever sent. Going back moves
//! `next` to an earlier number and `cursor` with it. Numbers are extended to 64 bits, so they
//! compare as integers; the wire's 24 bits are restored by [`SendQueue::psn`].
//!
//! Used by the RC requester and completer, by UC and UD, where `una` follows `next`, and by iWARP,
//! where a message is one number, acknowledged when it is complete.

use vernic_wire::Psn;

use crate::wqe::{SendFlags, SendOp, SendWqe};

/// Where extended sequence numbers start, so that numbers before the first are not negative.
const ORIGIN: u64 = 1 << 32;

/// How far the requests of a send queue have come. Each number counts requests since the reset. It
/// is also the index of the first request that has not come so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Requests that are completed.
    pub completed: u64,
    /// Requests that left with all of their packets, or were carried out.
    pub sent: u64,
    /// Requests of which something has left, or was carried out.
    pub begun: u64,
    /// Requests that were posted.
    pub posted: u64,
}

/// A posted send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The request.
    pub(crate) wqe: SendWqe,
    /// Sequence number of its first packet; meaningful once started.
    pub(crate) first: u64,
    /// Sequence numbers that it takes: packets sent, or for READ responses expected; 0 for local
    /// ones.
    pub(crate) packets: u32,
    /// Message number, 24 bits, from 1; compared with the peer's MSN plus credits (IBTA 9.7.7.2).
    pub(crate) ssn: u32,
}

impl Entry {
    /// One past its last sequence number.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }
    /// Whether it waits for response packets of its own instead of a plain ACK.
    pub(crate) fn needs_response(&self) -> bool {
        matches!(
            self.wqe.op,
            SendOp::Read(_)
                | SendOp::ReadInv(..)
                | SendOp::CmpSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::Flush { .. }
                | SendOp::AtomicWrite(_)
        )
    }
    /// Whether it is carried out here and sends nothing.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.wqe.op, SendOp::LocalInv(_) | SendOp::BindMw(_))
    }
    /// Whether it takes a receive at the peer.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(
            self.wqe.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::WriteImm(..)
        )
    }
    /// Whether it is a SEND, of any kind.
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.wqe.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_))
    }
    /// Whether its success is reported.
    pub(crate) fn is_signaled(&self) -> bool {
        self.wqe.flags.contains(SendFlags::SIGNALED)
    }
}

/// The ring of posted requests and the positions in it. Bounded by its capacity.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Vec<Entry>,
    /// Slots, a power of two.
    slots: u32,
    /// Requests that may be outstanding.
    limit: u32,
    head: u64,
    cursor: u64,
    started: u64,
    tail: u64,
    una: u64,
    next: u64,
    high: u64,
    base: Psn,
    ssn: u32,
    /// Bytes of the request at the cursor that are done without packets, once any are.
    direct: Option<u32>,
}

impl SendQueue {
    /// An empty queue for `limit` requests. The ring is allocated at the first post.
    pub(crate) fn new(limit: u32) -> Self {
        let slots = limit.max(1).next_power_of_two();
        Self {
            ring: Vec::new(),
            slots,
            limit,
            head: 0,
            cursor: 0,
            started: 0,
            tail: 0,
            una: ORIGIN,
            next: ORIGIN,
            high: ORIGIN,
            base: Psn::new(0),
            ssn: 1,
            direct: None,
        }
    }

    /// Forgets everything posted; the next packet carries `psn`.
    pub(crate) fn reset(&mut self, psn: Psn) {
        self.ring.clear();
        self.head = 0;
        self.cursor = 0;
        self.started = 0;
        self.tail = 0;
        self.direct = None;
        self.set_first_psn(psn);
    }

    /// Restarts the sequence at `psn`, keeping what was posted (nothing of it may be started).
    pub(crate) fn set_first_psn(&mut self, psn: Psn) {
        self.una = ORIGIN;
        self.next = ORIGIN;
        self.high = ORIGIN;
        self.base = psn.sub(ORIGIN as u32);
        self.ssn = 1;
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// How far the requests have come since the reset.
    pub(crate) fn progress(&self) -> SendProgress {
        let is_whole = |index| self.entry(index).end() <= self.high;
        let unfinished = self.started > self.head && !is_whole(self.started - 1);
        let is_direct = self.is_direct() && self.cursor == self.started;
        SendProgress {
            completed: self.head,
            sent: self.started - u64::from(unfinished),
            begun: self.started + u64::from(is_direct),
            posted: self.tail,
        }
    }
    /// Request `index` and the sequence numbers that it takes, also where it is completed; `None`
    /// if its slot has a later one, or none.
    pub(crate) fn posted(&self, index: u64) -> Option<(&SendWqe, u32)> {
        let is_kept = index < self.tail && self.tail - index <= u64::from(self.slots);
        let entry = self.ring.get(self.slot(index) as usize).filter(|_| is_kept)?;
        Some((&entry.wqe, entry.packets))
    }
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
    pub(crate) fn room(&self) -> u32 {
        self.limit - self.len()
    }
    pub(crate) fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    /// Requests started and not taken off.
    pub(crate) fn outstanding(&self) -> u64 {
        self.started - self.head
    }
    /// Index that the next request will have.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }
    pub(crate) fn next_slot(&self) -> u32 {
        self.slot(self.tail)
    }
    /// Slot number of request `index`.
    pub(crate) fn slot(&self, index: u64) -> u32 {
        (index as u32) & (self.slots - 1)
    }

    /// Appends a request; the caller has checked [`room`](Self::room).
    pub(crate) fn push(&mut self, wqe: SendWqe) -> u32 {
        debug_assert!(self.room() > 0);
        let entry = Entry { wqe, first: 0, packets: 0, ssn: 0 };
        let slot = self.next_slot();
        if self.ring.len() < self.slots as usize {
            // The ring fills in slot order the first time round, so memory follows use.
            self.ring.push(entry);
        } else {
            self.ring[slot as usize] = entry;
        }
        self.tail += 1;
        slot
    }

    /// Request `index`, which must lie between head and tail.
    pub(crate) fn entry(&self, index: u64) -> &Entry {
        debug_assert!((self.head..self.tail).contains(&index));
        &self.ring[self.slot(index) as usize]
    }

    /// The outstanding requests that wait for responses of their own, oldest first.
    pub(crate) fn needing_response(&self) -> impl Iterator<Item = &Entry> {
        (self.head..self.tail).map(|index| self.entry(index)).filter(|e| e.needs_response())
    }

    /// The oldest outstanding request.
    pub(crate) fn head(&self) -> Option<(u64, &Entry)> {
        (self.head < self.tail).then(|| (self.head, self.entry(self.head)))
    }
    /// The request whose packet is sent next.
    pub(crate) fn at_cursor(&self) -> Option<(u64, &Entry)> {
        (self.cursor < self.tail).then(|| (self.cursor, self.entry(self.cursor)))
    }
    /// The outstanding request before the one at the cursor.
    pub(crate) fn before_cursor(&self) -> Option<&Entry> {
        (self.cursor > self.head).then(|| self.entry(self.cursor - 1))
    }
    /// Whether the request at the cursor has been given its sequence numbers.
    pub(crate) fn cursor_is_started(&self) -> bool {
        self.cursor < self.started
    }
    /// Whether the number sent next is neither the first nor the last of the request at the cursor.
    #[inline]
    pub(crate) fn is_in_middle(&self) -> bool {
        self.cursor < self.started && {
            let entry = self.entry(self.cursor);
            self.next > entry.first && self.next + 1 < entry.end()
        }
    }
    /// Whether the request at the cursor is the oldest one outstanding.
    pub(crate) fn cursor_is_head(&self) -> bool {
        self.cursor == self.head
    }

    /// Message number of the next request to be started.
    pub(crate) fn next_ssn(&self) -> u32 {
        self.ssn
    }
    pub(crate) fn una(&self) -> u64 {
        self.una
    }
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
    pub(crate) fn high(&self) -> u64 {
        self.high
    }
    /// Sequence numbers sent and not acknowledged.
    pub(crate) fn in_flight(&self) -> u64 {
        self.next - self.una
    }
    /// Whether an answer is due.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.una < self.high
    }
    /// Whether everything started is acknowledged, or done without packets.
    pub(crate) fn is_drained(&self) -> bool {
        self.una == self.high && self.cursor >= self.started && self.direct.is_none()
    }

    /// Whether the request at the cursor is being carried out without packets.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }
    /// Bytes of the request at the cursor done without packets.
    pub(crate) fn direct_done(&self) -> u32 {
        self.direct.unwrap_or(0)
    }
    pub(crate) fn set_direct(&mut self, done: Option<u32>) {
        self.direct = done;
    }
    /// The request at the cursor, not started and with nothing in flight before it, is done without
    /// packets: it takes no sequence number.
    pub(crate) fn finish_direct(&mut self) {
        self.direct = None;
        self.start(0);
        self.advance(0);
    }

    /// The wire's form of an extended number.
    pub(crate) fn psn(&self, extended: u64) -> Psn {
        self.base.add(extended as u32)
    }
    /// The extended number nearest to `una` that has this wire form.
    pub(crate) fn extend(&self, psn: Psn) -> u64 {
        self.una.wrapping_add_signed(i64::from(psn.offset_from(self.psn(self.una))))
    }

    /// Whether a number is at an edge of what is without an answer: the oldest, the one that was
    /// sent last, or the newest of all. A peer that has received all that was sent answers one of
    /// them, whatever was lost on the way back.
    pub(crate) fn is_edge(&self, psn: Psn) -> bool {
        let seq = self.extend(psn);
        let edges = [self.una, self.next.wrapping_sub(1), self.high.wrapping_sub(1)];
        (self.una..self.high).contains(&seq) && edges.contains(&seq)
    }

    /// Gives the request at the cursor its sequence numbers.
    pub(crate) fn start(&mut self, packets: u32) {
        debug_assert!(self.cursor == self.started && self.next == self.high);
        let (slot, first, ssn) = (self.slot(self.cursor) as usize, self.next, self.ssn);
        let entry = &mut self.ring[slot];
        entry.first = first;
        entry.packets = packets;
        entry.ssn = ssn;
        if packets > 0 {
            self.count_message();
        }
        self.started += 1;
    }

    /// One more message on the wire, as the peer's MSN will count it.
    pub(crate) fn count_message(&mut self) {
        self.ssn = (self.ssn + 1) & 0xFF_FFFF;
    }

    /// Moves on by `packets` sequence numbers of the request at the cursor, to the next request at
    /// its end.
    pub(crate) fn advance(&mut self, packets: u32) {
        self.next += u64::from(packets);
        self.high = self.high.max(self.next);
        if self.next >= self.entry(self.cursor).end() {
            self.cursor += 1;
            self.skip_local();
        }
    }

    /// Passes requests that took no sequence number and are already carried out.
    fn skip_local(&mut self) {
        while self.cursor < self.started && self.entry(self.cursor).packets == 0 {
            self.cursor += 1;
        }
    }

    /// How far up to `limit` plain acknowledgement carries: to the first request that still waits
    /// for response packets of its own.
    pub(crate) fn plain_until(&self, limit: u64) -> u64 {
        let mut reached = self.una;
        let mut index = self.head;
        while reached < limit && index < self.started {
            let entry = self.entry(index);
            if entry.end() > reached {
                if entry.needs_response() {
                    return reached;
                }
                reached = entry.end().min(limit);
            }
            index += 1;
        }
        reached
    }

    /// The started request behind so many others, counted from the oldest outstanding one.
    #[inline]
    pub(crate) fn started(&self, others: u32) -> Option<(u64, &Entry)> {
        let index = self.head + u64::from(others);
        (index < self.started).then(|| (index, self.entry(index)))
    }

    /// The started request that `seq` belongs to.
    pub(crate) fn holding(&self, seq: u64) -> Option<(u64, &Entry)> {
        (self.head..self.started)
            .map(|index| (index, self.entry(index)))
            .find(|(_, entry)| (entry.first..entry.end()).contains(&seq))
    }

    /// Acknowledges everything before `limit` (at most `high`); `next` follows if it lies behind.
    pub(crate) fn acknowledge(&mut self, limit: u64) {
        debug_assert!(limit <= self.high);
        self.una = self.una.max(limit);
        if self.next < self.una {
            self.next = self.una;
            while self.cursor < self.started && self.entry(self.cursor).end() <= self.next {
                self.cursor += 1;
            }
        }
    }

    /// Goes back: the next packet is the oldest unacknowledged one.
    pub(crate) fn rewind(&mut self) {
        self.next = self.una;
        self.cursor = self.head;
        while self.cursor < self.started && self.entry(self.cursor).end() <= self.next {
            self.cursor += 1;
        }
    }

    /// Ends going back: the next packet is the first that was never sent.
    pub(crate) fn resume(&mut self) {
        self.next = self.high;
        while self.cursor < self.started && self.entry(self.cursor).end() <= self.next {
            self.cursor += 1;
        }
    }

    /// Takes the oldest request off if it is finished.
    #[inline]
    pub(crate) fn retire(&mut self) -> Option<&Entry> {
        let index = self.head;
        if index >= self.started || index >= self.cursor || self.entry(index).end() > self.una {
            return None;
        }
        self.head += 1;
        Some(&self.ring[self.slot(index) as usize])
    }

    /// Takes the oldest request off whatever its state: flush.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.head().map(|(_, entry)| *entry)?;
        self.head += 1;
        self.cursor = self.cursor.max(self.head);
        self.started = self.started.max(self.head);
        self.direct = None;
        Some(entry)
    }
}
