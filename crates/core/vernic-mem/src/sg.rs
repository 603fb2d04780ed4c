//! Scatter/gather lists: a message that lies in several pieces of registered memory.

use vernic_wire::Lkey;

/// One element of a scatter/gather list (`ibv_sge`). If its length is 0, its key is not checked.
/// The layout is that of `ibv_sge`, so that a list made by C code can be used as it is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sge {
    /// First address: a virtual address, or an offset from 0 in a zero-based region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: Lkey,
}

/// Total length of a list in bytes.
pub fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// The position in a list where the last access ended. With a cursor, each packet of a long message
/// costs O(1).
///
/// A cursor is only a hint. The next access may have any offset. An offset before the cursor starts
/// the search at the first element. `SgCursor::default()` fits every list. A cursor belongs to one
/// list. With another list, it is unspecified which bytes are accessed, but the access is checked
/// as always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SgCursor {
    /// Element in which the last access ended.
    index: u32,
    /// Offset in the message at which that element starts.
    start: u64,
}

impl SgCursor {
    /// Moves the cursor to the element that holds byte `offset` of the message. Returns the element
    /// and the offset inside it; `None` past the end of the list.
    #[inline]
    pub(crate) fn seek<'a>(&mut self, sges: &'a [Sge], offset: u64) -> Option<(&'a Sge, u64)> {
        if self.start > offset {
            *self = Self::default();
        }
        // At most one round per element of the list.
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
