//! Pieces of memory for system calls that copy by themselves, between a socket and memory that
//! others may access meanwhile.
//!
//! A piece is an address and a length, laid out as the kernel wants them. Nobody follows it but the
//! kernel and the copies of this module. It lives as long as the buffer that it was made of, or as
//! the access within which a region gave it ([`AccessLifetime`]): pieces of registered memory cannot
//! outlive the call in which their keys were checked.

use std::fmt;
use std::marker::PhantomData;

use super::{Region, copy};

/// The time of one access to registered memory. A key that is killed meanwhile is waited for, as
/// for a copy that has passed its check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessLifetime<'s>(PhantomData<&'s ()>);

/// Runs `work` as one access.
pub(crate) fn with_access_lifetime<T>(work: impl for<'s> FnOnce(AccessLifetime<'s>) -> T) -> T {
    work(AccessLifetime(PhantomData))
}

impl Region {
    /// The part `offset..offset + len` to be read; `None` if it is not inside, or of a special
    /// region.
    pub(crate) fn read_piece<'s>(
        self,
        _: AccessLifetime<'s>,
        offset: u64,
        len: u64,
    ) -> Option<RacySlice<'s>> {
        let (base, len) = self.part(offset, len)?.parts();
        // SAFETY: inside a region, which stays mapped and readable until no access is under way any
        // more (`Region::new`), and the access that this belongs to outlives `'s`.
        Some(unsafe { RacySlice::new(base, usize::try_from(len).ok()?) })
    }

    /// As [`read_piece`](Self::read_piece), to be written: the caller has checked the right to.
    pub(crate) fn write_piece<'s>(
        self,
        _: AccessLifetime<'s>,
        offset: u64,
        len: u64,
    ) -> Option<RacySliceMut<'s>> {
        let (base, len) = self.part(offset, len)?.parts();
        // SAFETY: as above; writable because the caller checked the right.
        Some(unsafe { RacySliceMut::new(base, usize::try_from(len).ok()?) })
    }
}

/// Memory to be read, as [`std::io::IoSlice`] but without a reference to it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RacySlice<'s> {
    vec: libc::iovec,
    life: PhantomData<&'s [u8]>,
}

/// Memory to be written, as [`std::io::IoSliceMut`] but without a reference to it.
#[repr(transparent)]
pub struct RacySliceMut<'s> {
    vec: libc::iovec,
    life: PhantomData<&'s mut [u8]>,
}

impl<'s> RacySlice<'s> {
    /// No bytes.
    pub const EMPTY: Self =
        Self { vec: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, life: PhantomData };

    /// Vouches for `base..base + len`.
    ///
    /// # Safety
    /// AccessLifetime `'s` the bytes are mapped and readable, do not wrap, and no `&mut` to them is used.
    const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { vec: libc::iovec { iov_base: base.cast(), iov_len: len }, life: PhantomData }
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.vec.iov_len
    }
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.vec.iov_len == 0
    }

    /// What is left behind the first `skip` bytes; nothing if there are no more.
    #[must_use]
    pub fn skip(self, skip: usize) -> Self {
        let skip = skip.min(self.vec.iov_len);
        let iov_base = self.vec.iov_base.wrapping_byte_add(skip);
        Self { vec: libc::iovec { iov_base, iov_len: self.vec.iov_len - skip }, ..self }
    }

    /// Copies all of it behind what is in `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let at = bytes.len();
        bytes.resize(at + self.len(), 0);
        // SAFETY: mapped and readable during `'s` (`RacySlice::new`); the vector is private.
        unsafe { copy::load(self.vec.iov_base.cast(), &mut bytes[at..]) };
    }

    /// The pieces as the kernel takes them: address and count, valid for reading of the named bytes
    /// as long as the pieces are.
    pub const fn as_iovecs(pieces: &[Self]) -> *const libc::iovec {
        pieces.as_ptr().cast()
    }
}

impl<'s> From<&'s [u8]> for RacySlice<'s> {
    fn from(bytes: &'s [u8]) -> Self {
        // SAFETY: a reference to the bytes lives through `'s`.
        unsafe { Self::new(bytes.as_ptr().cast_mut(), bytes.len()) }
    }
}

impl<'s> RacySliceMut<'s> {
    /// No bytes.
    pub const EMPTY: Self =
        Self { vec: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, life: PhantomData };

    /// Vouches for `base..base + len`.
    ///
    /// # Safety
    /// AccessLifetime `'s` the bytes are mapped and writable, do not wrap, and no reference to them is
    /// used.
    const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { vec: libc::iovec { iov_base: base.cast(), iov_len: len }, life: PhantomData }
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.vec.iov_len
    }
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.vec.iov_len == 0
    }

    /// The same memory to be read.
    pub const fn as_read(&self) -> RacySlice<'_> {
        RacySlice { vec: self.vec, life: PhantomData }
    }

    /// The pieces as the kernel takes them: address and count, valid for writing of the named bytes
    /// as long as the pieces are.
    pub const fn as_iovecs(pieces: &mut [Self]) -> *mut libc::iovec {
        pieces.as_mut_ptr().cast()
    }
}

impl<'s> From<&'s mut [u8]> for RacySliceMut<'s> {
    fn from(bytes: &'s mut [u8]) -> Self {
        // SAFETY: the only reference to the bytes is lent for `'s`.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl RacySlice<'_> {
    /// Bytes that [`for_chunks`](Self::for_chunks) shows at once: they stay in the first-level
    /// cache.
    const CHUNK: usize = 4096;

    /// Shows the first `len` bytes as they are now, copied piece by piece.
    pub fn for_chunks(self, len: usize, mut show: impl FnMut(&[u8])) {
        let mut chunk = [0; Self::CHUNK];
        let (mut rest, mut left) = (self, len.min(self.len()));
        // Each round shows a chunk.
        while left > 0 {
            let now = &mut chunk[..left.min(Self::CHUNK)];
            // SAFETY: as in `append_to`; `now` is not longer than what is left.
            unsafe { copy::load(rest.vec.iov_base.cast(), now) };
            show(now);
            left -= now.len();
            rest = rest.skip(now.len());
        }
    }
}

impl fmt::Debug for RacySlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.len(), self.vec.iov_base)
    }
}

impl fmt::Debug for RacySliceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_read().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_gives_its_bytes_from_any_place_on() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        // Memory that may be written, as registered memory may: the loads are atomic ones.
        let mut memory = bytes.clone();
        let piece = RacySliceMut::from(&mut memory[..]);
        let piece = piece.as_read();
        for skip in [0, 1, 4097, 9_999, 10_000, 20_000] {
            let rest = piece.skip(skip);
            assert_eq!((rest.len(), rest.is_empty()), (10_000 - skip.min(10_000), skip >= 10_000));
            let mut all = vec![7];
            rest.append_to(&mut all);
            assert_eq!(all[1..], bytes[skip.min(10_000)..]);
            let mut chunks = Vec::new();
            rest.for_chunks(5_000, |chunk| chunks.extend_from_slice(chunk));
            assert_eq!(chunks, bytes[skip.min(10_000)..][..rest.len().min(5_000)]);
        }
    }
}
