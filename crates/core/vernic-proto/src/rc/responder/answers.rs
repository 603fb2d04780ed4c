//! The answers that an RC responder owes or may owe again: READ responses, atomic results, and the
//! empty responses of FLUSH and ATOMIC WRITE (IBTA 9.7.5.1.2 to 9.7.5.1.4).
//!
//! ```text
//!   oldest                       cursor                     newest
//!   | kept for replay ........... | answering | not yet ...... |      at most max_dest_rd_atomic
//!   sequence numbers rise from left to right; a replay moves the cursor back
//! ```
//! READ data is not kept: a replay reads memory again. Atomics are never carried out again: their
//! result is kept. A requester has at most `max_dest_rd_atomic` such requests in flight, so what
//! falls off the old end can no longer be asked for by a valid duplicate.

use std::collections::VecDeque;

use vernic_wire::{Position, Psn, Reth, Rkey, Srqn};

use crate::segment::packet_count;

/// What an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// READ: this memory.
    Read {
        /// Key.
        rkey: Rkey,
        /// First byte.
        addr: u64,
        /// Bytes.
        length: u32,
        /// On XRC, the shared receive queue whose protection domain the key is of.
        srqn: Option<Srqn>,
    },
    /// Atomic: the value before it.
    Atomic {
        /// That value.
        original: u64,
    },
    /// FLUSH and ATOMIC WRITE: nothing.
    Empty,
}

/// One answer of one or more packets.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// Sequence number of the request and of the first response packet.
    first: Psn,
    /// Response packets, at least 1.
    packets: u32,
    /// MSN that the responses carry.
    msn: u32,
    body: Body,
    /// Packets `from..end` answer the newest request for them; `next` is sent next, `end` = done.
    from: u32,
    next: u32,
    end: u32,
    /// READ: one past the last byte that the newest request asks for.
    end_byte: u32,
    /// What was asked for has been sent in full at least once: all of it, or the part that the
    /// requester still lacked, if it asked for that meanwhile.
    answered: bool,
}

impl Answer {
    fn is_due(&self) -> bool {
        self.next < self.end
    }
}

/// The response packet that leaves next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) psn: Psn,
    pub(crate) position: Position,
    pub(crate) msn: u32,
    /// For READ, the bytes of this packet only.
    pub(crate) body: Body,
    /// Its answer was sent in full before.
    pub(crate) replay: bool,
}

/// The ring of answers. Allocates in [`set_depth`](Self::set_depth) only.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    ring: VecDeque<Answer>,
    depth: usize,
    /// Oldest answer that is due; the ring's length if none is.
    cursor: usize,
}

impl Answers {
    /// Forgets all and keeps room for `depth` answers.
    pub(crate) fn reset(&mut self, depth: u8) {
        self.clear();
        self.set_depth(depth);
    }

    /// Changes the number of answers kept. What is due stays; the oldest of the others go.
    pub(crate) fn set_depth(&mut self, depth: u8) {
        self.depth = usize::from(depth);
        self.ring.reserve_exact(self.depth.saturating_sub(self.ring.len()));
        while self.ring.len() > self.depth && self.cursor > 0 {
            self.ring.pop_front();
            self.cursor -= 1;
        }
    }

    /// Stops answering: nothing is due, nothing can be replayed.
    pub(crate) fn clear(&mut self) {
        self.ring.clear();
        self.cursor = 0;
    }

    /// Whether one more request fits: a slot is free, or can be taken from the oldest, which has
    /// had its answer. More than one must go where the depth was made smaller meanwhile.
    pub(crate) fn has_room(&self) -> bool {
        let excess = (self.ring.len() + 1).saturating_sub(self.depth);
        self.depth > 0 && self.ring.iter().take(excess).all(|oldest| oldest.answered)
    }

    /// Appends the answer to a new request; the caller has checked [`has_room`](Self::has_room).
    pub(crate) fn push(&mut self, first: Psn, msn: u32, body: Body, mtu: u32) {
        let (packets, end_byte) = match body {
            Body::Read { length, .. } => (packet_count(length, mtu), length),
            Body::Atomic { .. } | Body::Empty => (1, 0),
        };
        while self.ring.len() >= self.depth.max(1) {
            self.ring.pop_front();
            match self.cursor.checked_sub(1) {
                Some(same) => self.cursor = same,
                None => self.skip_done(),
            }
        }
        self.ring.push_back(Answer {
            first,
            packets,
            msn,
            body,
            from: 0,
            next: 0,
            end: packets,
            end_byte,
            answered: false,
        });
    }

    /// Whether something is due.
    pub(crate) fn is_due(&self) -> bool {
        self.cursor < self.ring.len()
    }

    /// Whether an answer with a number after `psn` is known, and whether one is due.
    pub(crate) fn known_and_due_after(&self, psn: Psn) -> (bool, bool) {
        let mut later = self.ring.iter().rev().take_while(|answer| psn.is_before(answer.first));
        let known = later.clone().next().is_some();
        (known, later.any(Answer::is_due))
    }

    /// Moves past answers that are not due.
    fn skip_done(&mut self) {
        while self.ring.get(self.cursor).is_some_and(|answer| !answer.is_due()) {
            self.cursor += 1;
        }
    }

    /// The answer that `psn` belongs to, and the packet within it.
    fn find(&self, psn: Psn) -> Option<(usize, u32)> {
        self.ring.iter().enumerate().find_map(|(i, answer)| {
            let packet = psn.distance_from(answer.first);
            (packet < answer.packets).then_some((i, packet))
        })
    }

    /// A READ was asked for again, whole or from a later packet on. `false` if it is not known or
    /// not the same memory.
    pub(crate) fn replay_read(&mut self, psn: Psn, reth: Reth, mtu: u32) -> bool {
        let Some((index, packet)) = self.find(psn) else { return false };
        let answer = &mut self.ring[index];
        let Body::Read { rkey, addr, length, .. } = answer.body else { return false };
        // Both fit: packet < packets, and packets * mtu <= length rounded up to the MTU.
        let skipped = u64::from(packet) * u64::from(mtu);
        let end_byte = skipped + u64::from(reth.length);
        let same_start = reth.rkey == rkey && reth.addr == addr.wrapping_add(skipped);
        if !same_start || end_byte > u64::from(length) {
            return false;
        }
        if answer.is_due() && packet > answer.next {
            // What it asks for has not been sent yet: an old duplicate, and on its way anyway.
            return true;
        }
        answer.from = packet;
        answer.next = packet;
        answer.end = packet + packet_count(reth.length, mtu);
        answer.end_byte = end_byte as u32;
        self.cursor = self.cursor.min(index);
        true
    }

    /// An atomic, FLUSH or ATOMIC WRITE was asked for again. `false` if its result is not known.
    pub(crate) fn replay_stored(&mut self, psn: Psn, atomic: bool) -> bool {
        let Some((index, _)) = self.find(psn) else { return false };
        let answer = &mut self.ring[index];
        let fits = match answer.body {
            Body::Read { .. } => false,
            Body::Atomic { .. } => atomic,
            Body::Empty => !atomic,
        };
        if fits {
            answer.next = 0;
            self.cursor = self.cursor.min(index);
        }
        fits
    }

    /// The packet that is due next.
    pub(crate) fn next_piece(&self, mtu: u32) -> Option<Piece> {
        let answer = self.ring.get(self.cursor)?;
        let body = match answer.body {
            Body::Read { rkey, addr, srqn, .. } => {
                let offset = u64::from(answer.next) * u64::from(mtu);
                let left = u64::from(answer.end_byte).saturating_sub(offset);
                let length = left.min(u64::from(mtu)) as u32;
                Body::Read { rkey, addr: addr.wrapping_add(offset), length, srqn }
            }
            other => other,
        };
        Some(Piece {
            psn: answer.first.add(answer.next),
            position: Position::of(answer.next - answer.from, answer.end - answer.from),
            msn: answer.msn,
            body,
            replay: answer.answered,
        })
    }

    /// The packet of [`next_piece`](Self::next_piece) has been written.
    pub(crate) fn sent(&mut self) {
        if let Some(answer) = self.ring.get_mut(self.cursor) {
            answer.next += 1;
            answer.answered |= answer.next == answer.end;
            self.skip_done();
        }
    }

    /// The answer that is due next cannot be given again: forgets that it was asked for.
    pub(crate) fn abandon(&mut self) {
        if let Some(answer) = self.ring.get_mut(self.cursor) {
            answer.next = answer.end;
            self.skip_done();
        }
    }
}
