//! A ring of bytes: where its next bytes are, in at most two pieces.

/// A piece of a ring: bytes `at..at + len`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte, counted from the ring's start.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

/// Consecutive bytes of a ring: one piece, or one up to its end and one from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// The first piece.
    pub first: Span,
    /// What is beyond the ring's end; empty if nothing is.
    pub second: Span,
}

impl Spans {
    /// Bytes of both.
    pub const fn len(&self) -> u32 {
        self.first.len + self.second.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Both pieces; the second may be empty.
    pub const fn pieces(&self) -> [Span; 2] {
        [self.first, self.second]
    }
}

/// A position in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    at: u32,
    size: u32,
}

impl Position {
    /// The start of a ring of `size` bytes.
    pub(crate) const fn start(size: u32) -> Self {
        Self { at: 0, size }
    }

    /// The `len` bytes from here on; `len` is at most the ring's size.
    pub(crate) fn spans(self, len: u32) -> Spans {
        let first = len.min(self.size - self.at);
        Spans { first: Span { at: self.at, len: first }, second: Span { at: 0, len: len - first } }
    }

    /// The same, leaving out the first `skip` bytes.
    pub(crate) fn spans_behind(self, skip: u32, len: u32) -> Spans {
        let mut behind = self;
        behind.advance(skip);
        behind.spans(len)
    }

    /// Goes on by `len` bytes, at most the ring's size.
    pub(crate) fn advance(&mut self, len: u32) {
        let left = self.size - self.at;
        self.at = if len < left { self.at + len } else { len - left };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_end_are_at_the_start() {
        let mut position = Position::start(10);
        position.advance(7);
        let spans = position.spans(5);
        assert_eq!((spans.first, spans.second), (Span { at: 7, len: 3 }, Span { at: 0, len: 2 }));
        assert_eq!(position.spans(3).second.len, 0);
        assert_eq!(position.spans_behind(4, 2).first, Span { at: 1, len: 2 });
        position.advance(3);
        assert_eq!(position.spans(10).first, Span { at: 0, len: 10 });
        position.advance(10);
        assert_eq!(position.spans(1).first.at, 0);
    }
}
