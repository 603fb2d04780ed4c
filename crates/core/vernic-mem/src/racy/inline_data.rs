//! Unregistered memory of the application, which is copied once.

use super::copy;
use crate::{Sge, total_len};

/// A list of unregistered memory of the application: the data of an inline send. It is a
/// scatter/gather list in which only addresses and lengths count, and keys are ignored.
#[derive(Clone, Copy, Debug)]
pub struct InlineData<'a>(&'a [Sge]);

impl<'a> InlineData<'a> {
    /// Makes a list of these pieces of memory.
    ///
    /// # Safety
    /// While the value or a copy of it is used, each piece of a length above 0 is mapped and
    /// readable from `addr` on, does not wrap, and no `&mut` to it is used.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub const unsafe fn new(pieces: &'a [Sge]) -> Self {
        Self(pieces)
    }

    /// Total length of all pieces in bytes.
    pub fn total_len(self) -> u64 {
        total_len(self.0)
    }

    /// Copies all pieces, one after the other, to the start of `dst`. A byte that others write at
    /// the same time has its old or its new value. `None`, and nothing done, if the pieces do not
    /// fit.
    #[inline]
    pub fn copy_to(self, dst: &mut [u8]) -> Option<()> {
        if self.total_len() > dst.len() as u64 {
            return None;
        }
        let mut rest = dst;
        for piece in self.0.iter().filter(|piece| piece.length != 0) {
            let (now, later) = rest.split_at_mut(piece.length as usize);
            // SAFETY: the piece is mapped and readable (`InlineData::new`). `now` is an exclusive
            // reference, so the application's memory does not overlap it.
            unsafe { copy::load(std::ptr::with_exposed_provenance(piece.addr as usize), now) };
            rest = later;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_wire::Lkey;

    /// Memory that an application may write at any time, so not a constant.
    fn piece(bytes: &mut [u8]) -> Sge {
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        Sge { addr, length: bytes.len() as u32, lkey: Lkey(7) }
    }

    #[test]
    fn pieces_are_put_together_and_too_many_bytes_are_refused() {
        let (mut letters, mut digits) = (*b"abc", *b"0123456789");
        let pieces = [piece(&mut letters), Sge::default(), piece(&mut digits)];
        // SAFETY: both arrays outlive the list. The piece without bytes is not accessed.
        let list = unsafe { InlineData::new(&pieces) };
        assert_eq!(list.total_len(), 13);
        let mut dst = [b'.'; 14];
        assert_eq!(list.copy_to(&mut dst), Some(()));
        assert_eq!(&dst, b"abc0123456789.");
        let mut short = [b'.'; 12];
        assert_eq!((list.copy_to(&mut short), short), (None, [b'.'; 12]));
    }
}
