//! Memory of the application that is not registered, copied once.

use super::copy;
use crate::{Sge, total_len};

/// Pieces of the application's memory, named as a scatter/gather list names them but by address
/// alone: the data of an inline send. The keys are not looked at.
#[derive(Clone, Copy, Debug)]
pub struct HostList<'a>(&'a [Sge]);

impl<'a> HostList<'a> {
    /// Vouches for the pieces.
    ///
    /// # Safety
    /// As long as the value or a copy of it is used, each piece of a length above 0 is mapped and
    /// readable from `addr` on, does not wrap, and no `&mut` to it is used.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub const unsafe fn new(pieces: &'a [Sge]) -> Self {
        Self(pieces)
    }

    /// Bytes of all pieces.
    pub fn total_len(self) -> u64 {
        total_len(self.0)
    }

    /// Copies all pieces, one after the other, to the start of `dst`. Bytes that others write
    /// meanwhile are seen old or new. `None`, and nothing done, if they do not fit.
    #[inline]
    pub fn copy_to(self, dst: &mut [u8]) -> Option<()> {
        if self.total_len() > dst.len() as u64 {
            return None;
        }
        let mut rest = dst;
        for piece in self.0.iter().filter(|piece| piece.length != 0) {
            let (now, later) = rest.split_at_mut(piece.length as usize);
            // SAFETY: mapped and readable (`HostList::new`); `now` is a reference of ours, which
            // the application's memory does not overlap.
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

    /// Memory of an application, which may write it at any time: not a constant.
    fn piece(bytes: &mut [u8]) -> Sge {
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        Sge { addr, length: bytes.len() as u32, lkey: Lkey(7) }
    }

    #[test]
    fn pieces_are_put_together_and_too_many_bytes_are_refused() {
        let (mut letters, mut digits) = (*b"abc", *b"0123456789");
        let pieces = [piece(&mut letters), Sge::default(), piece(&mut digits)];
        // SAFETY: both arrays outlive the list; the piece without bytes is not looked at.
        let list = unsafe { HostList::new(&pieces) };
        assert_eq!(list.total_len(), 13);
        let mut dst = [b'.'; 14];
        assert_eq!(list.copy_to(&mut dst), Some(()));
        assert_eq!(&dst, b"abc0123456789.");
        let mut short = [b'.'; 12];
        assert_eq!((list.copy_to(&mut short), short), (None, [b'.'; 12]));
    }
}
