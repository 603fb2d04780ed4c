//! The user's bytes, in pieces: read or filled from front to back.

use std::io::{IoSlice, IoSliceMut};

/// The smallest page of memory, bytes.
const PAGE: usize = 4096;

/// Bytes to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing<'a> {
    pieces: &'a [IoSlice<'a>],
    /// Bytes of the first piece that are done.
    done: usize,
    left: usize,
}

impl<'a> Outgoing<'a> {
    pub(crate) fn new(pieces: &'a [IoSlice<'a>]) -> Self {
        // Lengths of slices that exist together do not overflow.
        Self { pieces, done: 0, left: pieces.iter().map(|piece| piece.len()).sum() }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Takes the next bytes, at most `len` and of one piece; none at the end.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        while let [first, rest @ ..] = self.pieces {
            let bytes: &'a [u8] = &first[self.done..];
            if bytes.is_empty() {
                (self.pieces, self.done) = (rest, 0);
                continue;
            }
            let taken = &bytes[..len.min(bytes.len())];
            self.done += taken.len();
            self.left -= taken.len();
            return taken;
        }
        &[]
    }

    /// Reads a byte of each page of the next `len` bytes, so that they are there when they are
    /// copied: a program may have them in a file, or fetch them itself (`userfaultfd`).
    pub(crate) fn touch(&self, len: usize) {
        let mut ahead = self.clone();
        let look = |byte: Option<&u8>| _ = std::hint::black_box(byte.copied());
        ahead.copy(len, |piece| {
            piece.iter().step_by(PAGE).for_each(|byte| look(Some(byte)));
            look(piece.last());
        });
    }

    /// Hands the next `len` bytes, as far as there are, to `sink`, piece by piece.
    pub(crate) fn copy(&mut self, len: usize, mut sink: impl FnMut(&[u8])) {
        let mut left = len;
        while left > 0 {
            let piece = self.take(left);
            if piece.is_empty() {
                return;
            }
            left -= piece.len();
            sink(piece);
        }
    }
}

/// Room for bytes that come.
#[derive(Debug)]
pub(crate) struct Incoming<'a, 'b> {
    pieces: &'a mut [IoSliceMut<'b>],
    index: usize,
    done: usize,
    left: usize,
}

impl<'a, 'b> Incoming<'a, 'b> {
    pub(crate) fn new(pieces: &'a mut [IoSliceMut<'b>]) -> Self {
        let left = pieces.iter().map(|piece| piece.len()).sum();
        Self { pieces, index: 0, done: 0, left }
    }

    /// Bytes that there is room for still.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Has `source` fill the next `len` bytes of room, as far as there are, piece by piece.
    pub(crate) fn fill(&mut self, len: usize, mut source: impl FnMut(&mut [u8])) {
        let mut left = len.min(self.left);
        while left > 0 {
            let Some(piece) = self.pieces.get_mut(self.index) else { return };
            let room = &mut piece[self.done..];
            if room.is_empty() {
                (self.index, self.done) = (self.index + 1, 0);
                continue;
            }
            let now = left.min(room.len());
            source(&mut room[..now]);
            self.done += now;
            self.left -= now;
            left -= now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_one_behind_the_other() {
        let pieces = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")];
        let mut outgoing = Outgoing::new(&pieces);
        let mut got = Vec::new();
        outgoing.copy(3, |piece| got.extend_from_slice(piece));
        assert_eq!((got.as_slice(), outgoing.left()), (b"abc".as_slice(), 3));
        assert_eq!(
            (outgoing.take(2), outgoing.take(9), outgoing.take(9)),
            (&b"de"[..], &b"f"[..], &b""[..])
        );
        outgoing.copy(1, |_| panic!("nothing is left"));
    }

    #[test]
    fn room_is_filled_from_front_to_back() {
        let (mut first, mut second) = ([b'.'; 2], [b'.'; 3]);
        let mut pieces =
            [IoSliceMut::new(&mut first), IoSliceMut::new(&mut []), IoSliceMut::new(&mut second)];
        let mut incoming = Incoming::new(&mut pieces);
        let mut next = b'a';
        for len in [3, 9] {
            incoming.fill(len, |room| {
                room.iter_mut().for_each(|byte| {
                    *byte = next;
                    next += 1;
                });
            });
        }
        assert_eq!(incoming.left(), 0);
        assert_eq!((&first, &second), (b"ab", b"cde"));
    }
}
