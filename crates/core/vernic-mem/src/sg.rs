//! Scatter/gather lists: a message laid over several pieces of registered memory.

use vernic_wire::Lkey;

/// One piece of a scatter/gather list (`ibv_sge`). Length 0 is an empty piece whose key is not
/// looked at. Laid out as `ibv_sge`, so that lists of C are lists of these.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sge {
    /// First address: virtual, or counted from 0 in a zero-based region.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// Bytes that a list holds.
pub fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Where the last access to a list ended: makes packet after packet of a long message cost O(1).
///
/// A cursor is only a hint. Any offset may be accessed next, in any order; going back starts the
/// search from the first piece. `SgCursor::default()` fits every list. A cursor belongs to one
/// list: with another one, what is accessed is unspecified (but checked as always).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SgCursor {
    /// Piece in which the last access ended.
    index: u32,
    /// Offset in the message at which that piece starts.
    start: u64,
}

impl SgCursor {
    /// Moves to the piece that holds byte `offset` of the message and returns it with the offset
    /// inside it; `None` past the end of the list.
    #[inline]
    pub(crate) fn seek<'a>(&mut self, sges: &'a [Sge], offset: u64) -> Option<(&'a Sge, u64)> {
        if self.start > offset {
            *self = Self::default();
        }
        // At most one step per piece of the list.
        loop {
            let sge = sges.get(self.index as usize)?;
            let inside = offset - self.start;
            if inside < u64::from(sge.length) {
                return Some((sge, inside));
            }
            self.start += u64::from(sge.length);
            self.index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(lengths: &[u32]) -> Vec<Sge> {
        lengths.iter().map(|&length| Sge { addr: 0, length, lkey: Lkey(0) }).collect()
    }

    #[test]
    fn cursor_finds_every_offset_forwards_and_backwards() {
        let lengths = [0, 3, 0, 0, 5, 1, 0];
        let sges = list(&lengths);
        let place = |offset: u64| {
            let mut left = offset;
            for (i, &length) in lengths.iter().enumerate() {
                if left < u64::from(length) {
                    return Some((i, left));
                }
                left -= u64::from(length);
            }
            None
        };
        let mut cursor = SgCursor::default();
        for offset in (0..12).chain((0..12).rev()).chain([4, 9, 2, 8, 0]) {
            let found = cursor.seek(&sges, offset);
            let index = found.map(|(sge, inside)| {
                (sges.iter().position(|s| std::ptr::eq(s, sge)).unwrap(), inside)
            });
            assert_eq!(index, place(offset), "offset {offset}");
        }
        assert_eq!(total_len(&sges), 9);
    }
}
