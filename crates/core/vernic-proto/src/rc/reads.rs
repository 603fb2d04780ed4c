//! READ, atomic, FLUSH and ATOMIC WRITE requests in flight: at most `max_rd_atomic` of them.
//!
//! A long READ is asked for in pieces, so that its responses fit the window and a loss repeats a
//! piece, not the message. A piece keeps its borders when it is asked for again: a responder looks
//! a repeated READ up by its sequence numbers, and rxe refuses one that spans two requests.

use std::collections::VecDeque;
use std::ops::Range;

/// A request whose responses take the sequence numbers `first..end`.
#[derive(Clone, Copy, Debug)]
struct Piece {
    first: u64,
    end: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Reads {
    pieces: VecDeque<Piece>,
    depth: u32,
}

impl Reads {
    pub(crate) fn reset(&mut self, depth: u32) {
        self.pieces.clear();
        self.set_depth(depth);
    }

    /// Changes the limit for further requests; what is in flight stays.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
        self.pieces.reserve_exact((depth as usize).saturating_sub(self.pieces.len()));
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether nothing waits for a response: what a fence waits for.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a request that starts at `seq` may be sent: again, or as a further one.
    pub(crate) fn may_send(&self, seq: u64) -> bool {
        self.pieces.len() < self.depth as usize || self.end_of(seq).is_some()
    }

    /// The piece in flight that holds `seq`, as the numbers of its responses.
    #[inline]
    pub(crate) fn piece_of(&self, seq: u64) -> Option<Range<u64>> {
        let newest = self.pieces.back()?;
        if newest.end <= seq {
            return None;
        }
        // Responses are of the oldest, unless something is missing.
        let piece = match self.pieces.front() {
            Some(oldest) if seq < oldest.end => oldest,
            _ => self.search(seq)?,
        };
        Some(piece.first..piece.end).filter(|piece| piece.contains(&seq))
    }

    /// The first piece that does not end before `seq`. Not inlined, so that the usual case stays
    /// small.
    #[inline(never)]
    fn search(&self, seq: u64) -> Option<&Piece> {
        self.pieces.get(self.pieces.partition_point(|piece| piece.end <= seq))
    }

    /// End of the piece in flight that holds `seq`.
    pub(crate) fn end_of(&self, seq: u64) -> Option<u64> {
        self.piece_of(seq).map(|piece| piece.end)
    }

    /// Records that `first..end` is asked for; true if it is for the first time.
    pub(crate) fn sent(&mut self, first: u64, end: u64) -> bool {
        let new = self.end_of(first).is_none();
        if new {
            self.pieces.push_back(Piece { first, end });
        }
        new
    }

    /// Everything before `una` has been answered.
    #[inline]
    pub(crate) fn answered(&mut self, una: u64) {
        while self.pieces.front().is_some_and(|p| p.end <= una) {
            self.pieces.pop_front();
        }
    }
}
