//! The receiving half: the receive ring, what came and was not read, and what the peer may send
//! next.
//!
//! The peer is told of the ring half by half. Each half is filled to its end before the next is
//! used, so the bytes of the stream stand one behind the other, whatever messages they came in.
//!
//! ```text
//!   granted + unread + free = ring
//! ```

use std::collections::VecDeque;

use super::ring::{Position, Spans};
use super::{Limits, ProtocolError};

/// What the peer is told when there is room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Number of the first message that it may not send yet.
    pub(super) limit: u16,
    /// A half of the ring: its first byte and its length.
    pub(super) buffer: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    ring: Position,
    half: u32,
    /// Bytes that the peer may write and has not.
    granted: u32,
    /// Bytes that wait for the user.
    unread: u32,
    /// Bytes that the user has read (or that nobody was told of yet).
    free: u32,
    /// Start of the half that is granted next.
    next_half: u32,
    /// Bytes of each message that is not wholly read; at most `messages`.
    lengths: VecDeque<u32>,
    /// Messages that may be unread at once.
    messages: u16,
    /// Messages that were wholly read, modulo 2^16.
    consumed: u16,
    /// The number of consumed messages at which credits are due.
    credits_due: u16,
}

impl Receiver {
    pub(super) fn new(limits: &Limits) -> Self {
        let half = limits.recv_bytes / 2;
        Self {
            ring: Position::start(2 * half),
            half,
            granted: half,
            unread: 0,
            free: half,
            next_half: half,
            lengths: VecDeque::new(),
            messages: limits.recv_messages,
            consumed: 0,
            credits_due: limits.recv_messages / 2,
        }
    }

    /// Bytes of the buffer that the peer knows from the connection data.
    pub(super) fn first_buffer(&self) -> u32 {
        self.half
    }

    /// Bytes that wait for the user.
    pub(super) fn unread(&self) -> u32 {
        self.unread
    }

    /// Where the unread bytes are, leaving out the first `skip`, at most `len`.
    pub(super) fn peek(&self, skip: u32, len: u32) -> Spans {
        let skip = skip.min(self.unread);
        self.ring.spans_behind(skip, len.min(self.unread - skip))
    }

    /// A message has come: so many bytes were written.
    pub(super) fn handle_data(&mut self, len: u32) -> Result<(), ProtocolError> {
        if len > self.granted {
            return Err(ProtocolError::Overrun { len, granted: self.granted });
        }
        if self.lengths.len() >= usize::from(self.messages) {
            return Err(ProtocolError::Messages { limit: self.messages });
        }
        if len == 0 {
            self.count_message();
            return Ok(());
        }
        self.granted -= len;
        self.unread += len;
        self.lengths.push_back(len);
        Ok(())
    }

    /// A message without bytes for the user was consumed.
    pub(super) fn count_message(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// The user has read `len` bytes, at most [`unread`](Self::unread).
    pub(super) fn consume(&mut self, len: u32) {
        let len = len.min(self.unread);
        self.ring.advance(len);
        self.unread -= len;
        self.free += len;
        let mut left = len;
        // One message less with each turn but the last.
        while let Some(first) = self.lengths.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.lengths.pop_front();
            self.count_message();
        }
    }

    /// Whether the peer should be told of room.
    pub(super) fn is_grant_due(&self) -> bool {
        self.free >= self.half || self.consumed.wrapping_sub(self.credits_due) as i16 >= 0
    }

    /// What to tell the peer, if something is due.
    pub(super) fn poll_grant(&mut self) -> Option<Grant> {
        if !self.is_grant_due() {
            return None;
        }
        self.credits_due = self.consumed.wrapping_add(self.messages / 2);
        let buffer = (self.free >= self.half).then(|| {
            let at = self.next_half;
            self.next_half = if at == 0 { self.half } else { 0 };
            self.free -= self.half;
            self.granted += self.half;
            (at, self.half)
        });
        Some(Grant { limit: self.consumed.wrapping_add(self.messages), buffer })
    }
}
