//! The sending half: the send ring, the peer's targets, its credits, and requests in flight.

use std::collections::VecDeque;

use vernic_wire::Rkey;

use super::ring::{Position, Spans};
use super::write::{Sent, Source, Write, WriteId};
use super::{Limits, ProtocolError, TARGETS};
use crate::wire::{Message, RemoteSge};

/// A sender is offered room when the ring has this many bytes free (or half of it): many small
/// messages cost more than few large ones.
const LOW_WATER: u32 = 2048;

/// Requests of the send queue that data leaves to credits and control, so that two full streams do
/// not wait for each other's credits.
pub(super) const CONTROL_REQUESTS: u16 = 4;

#[derive(Debug)]
pub(super) struct Sender {
    ring: Position,
    ring_bytes: u32,
    /// Bytes of the ring that are not in flight.
    free: u32,
    /// Requests that data may still take.
    requests: u16,
    inline: u32,
    /// Where the peer wants data, oldest first; at most [`TARGETS`].
    targets: VecDeque<RemoteSge>,
    /// The entry of the target list that the peer fills next.
    next_entry: usize,
    /// Messages that took a credit, modulo 2^16.
    sent: u16,
    /// Number of the first message that may not be sent yet.
    limit: u16,
    /// What the peer started with.
    credits: u16,
}

impl Sender {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            ring: Position::start(limits.send_bytes),
            ring_bytes: limits.send_bytes,
            free: limits.send_bytes,
            requests: limits.send_requests - CONTROL_REQUESTS,
            inline: limits.inline_bytes,
            targets: VecDeque::with_capacity(TARGETS),
            next_entry: 0,
            sent: 0,
            limit: 0,
            credits: 0,
        }
    }

    /// The peer's first receive buffer and its credits.
    pub(super) fn connect(&mut self, credits: u16, first: RemoteSge) {
        (self.credits, self.limit) = (credits, credits);
        if first.length != 0 {
            self.targets.push_back(first);
        }
        self.next_entry = 1 % TARGETS;
    }

    pub(super) fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Bytes in flight from the ring.
    pub(super) fn unsent(&self) -> u32 {
        self.ring_bytes - self.free
    }

    fn has_credit(&self) -> bool {
        self.sent != self.limit
    }

    fn has_room(&self) -> bool {
        self.requests != 0 && self.free >= LOW_WATER.min(self.ring_bytes / 2)
    }

    /// Whether data could be sent now.
    pub(super) fn can_send(&self) -> bool {
        self.has_room() && self.has_credit() && !self.targets.is_empty()
    }

    /// Whether a direct write could be sent now: it takes no credit, and no target.
    pub(super) fn can_write_direct(&self) -> bool {
        self.has_room()
    }

    /// Whether an entry of the peer's table of mapped buffers could be sent now.
    pub(super) fn can_send_iomap(&self) -> bool {
        self.requests != 0 && self.has_credit()
    }

    /// Bytes of the next data message, at most `want`; none if nothing can be sent.
    pub(super) fn next_len(&self, want: u32) -> u32 {
        let target = self.targets.front().map_or(0, |target| target.length);
        if !self.can_send() {
            return 0;
        }
        want.min(self.free).min(target).min(Message::MAX_DATA)
    }

    /// Where the next `len` bytes go in the ring; `None` if they are few enough to go inline.
    pub(super) fn place(&self, len: u32) -> Option<Spans> {
        (len > self.inline).then(|| self.ring.spans(len))
    }

    /// Sends `len` bytes that are in their [`place`](Self::place); `len` is from
    /// [`next_len`](Self::next_len).
    pub(super) fn send(&mut self, len: u32) -> Option<Write> {
        let (addr, rkey) = self.advance(len)?;
        Some(self.take(len, addr, rkey, Some(Message::Data(len))))
    }

    /// Sends `len` bytes that are at the [`target`](Self::target) already: the message alone.
    pub(super) fn send_placed(&mut self, len: u32) -> Option<Write> {
        let (addr, rkey) = self.advance(len)?;
        self.requests -= 1;
        let (id, message) = (WriteId::new(Sent::Ring(0)), Some(Message::Data(len)));
        Some(Write { id, source: Source::Nothing, addr, rkey, message })
    }

    /// Takes a credit, and `len` bytes of the target: where they are.
    fn advance(&mut self, len: u32) -> Option<(u64, Rkey)> {
        let target = self.targets.front_mut()?;
        let RemoteSge { addr, rkey, .. } = *target;
        // The peer counts in the same way, wherever its region begins.
        target.addr = target.addr.wrapping_add(u64::from(len));
        target.length = target.length.checked_sub(len)?;
        if target.length == 0 {
            self.targets.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some((addr, rkey))
    }

    /// Where the next bytes go in the peer's memory.
    pub(super) fn target(&self) -> Option<RemoteSge> {
        self.targets.front().copied()
    }

    /// Writes `len` bytes that are in their place directly to the peer's memory.
    pub(super) fn write_direct(&mut self, len: u32, to: RemoteSge) -> Write {
        self.take(len, to.addr, to.rkey, None)
    }

    fn take(&mut self, len: u32, addr: u64, rkey: Rkey, message: Option<Message>) -> Write {
        self.requests -= 1;
        let (source, ring) = match self.place(len) {
            Some(spans) => (Source::Ring(spans), len),
            None => (Source::User(len), 0),
        };
        self.ring.advance(ring);
        self.free -= ring;
        Write { id: WriteId::new(Sent::Ring(ring)), source, addr, rkey, message }
    }

    /// Takes a request and a credit for an entry of the peer's table.
    pub(super) fn take_for_iomap(&mut self) {
        self.requests -= 1;
        self.sent = self.sent.wrapping_add(1);
    }

    /// A request of data is complete; `ring` bytes of the ring are free again.
    pub(super) fn give_back(&mut self, ring: u32) {
        self.requests += 1;
        self.free = (self.free + ring).min(self.ring_bytes);
    }

    /// The peer says up to which message may be sent.
    pub(super) fn handle_credits(&mut self, limit: u16) -> Result<(), ProtocolError> {
        // The peer cannot have consumed more than it was sent.
        let consumed = self.limit.wrapping_sub(self.credits);
        let unconsumed = self.sent.wrapping_sub(consumed);
        if limit.wrapping_sub(self.limit) > unconsumed {
            return Err(ProtocolError::Credits { limit, sent: self.sent });
        }
        self.limit = limit;
        Ok(())
    }

    /// The entry of the target list that the peer fills next.
    pub(super) fn next_entry(&self) -> usize {
        self.next_entry
    }

    /// The peer has filled it.
    pub(super) fn handle_target(&mut self, target: RemoteSge) -> Result<(), ProtocolError> {
        if self.targets.len() == TARGETS {
            return Err(ProtocolError::Targets);
        }
        self.targets.push_back(target);
        self.next_entry = (self.next_entry + 1) % TARGETS;
        Ok(())
    }
}
