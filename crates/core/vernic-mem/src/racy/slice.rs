//! Slices of racy memory for system calls: the kernel copies between a socket and memory that
//! others may access at the same time.
//!
//! A slice is an address and a length, in the layout of an `iovec`. Only the kernel and the copies
//! of this module access its bytes. A slice of a buffer lives as long as the buffer. A slice of
//! registered memory lives as long as one access ([`AccessLifetime`]), so it cannot outlive the
//! call in which its key was checked.

use std::fmt;
use std::marker::PhantomData;

use super::{Region, copy};

/// The lifetime of one access to registered memory. A thread that invalidates the key meanwhile
/// waits for the access, as for a copy that has passed its check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessLifetime<'s>(PhantomData<&'s ()>);

/// Runs `work` as one access.
pub(crate) fn with_access_lifetime<T>(work: impl for<'s> FnOnce(AccessLifetime<'s>) -> T) -> T {
    work(AccessLifetime(PhantomData))
}

impl Region {
    /// The part `offset..offset + len` as a slice to be read. `None` if it is out of bounds, or the
    /// region is special.
    pub(crate) fn read_piece<'s>(
        self,
        _: AccessLifetime<'s>,
        offset: u64,
        len: u64,
    ) -> Option<RacySlice<'s>> {
        let (base, len) = self.part(offset, len)?.parts();
        // SAFETY: the range lies in a region, which stays mapped and readable until no access is in
        // progress any more (`Region::new`). The access with this `AccessLifetime` outlives `'s`.
        Some(unsafe { RacySlice::new(base, usize::try_from(len).ok()?) })
    }

    /// Does the same as [`read_piece`](Self::read_piece), as a slice to be written. The caller has
    /// checked the right to write.
    pub(crate) fn write_piece<'s>(
        self,
        _: AccessLifetime<'s>,
        offset: u64,
        len: u64,
    ) -> Option<RacySliceMut<'s>> {
        let (base, len) = self.part(offset, len)?.parts();
        // SAFETY: as for `read_piece`. The range is writable because the caller checked the right.
        Some(unsafe { RacySliceMut::new(base, usize::try_from(len).ok()?) })
    }
}

/// A slice of memory to be read, like [`std::io::IoSlice`] but without a reference to the bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RacySlice<'s> {
    vec: libc::iovec,
    life: PhantomData<&'s [u8]>,
}

/// A slice of memory to be written, like [`std::io::IoSliceMut`] but without a reference to the
/// bytes.
#[repr(transparent)]
pub struct RacySliceMut<'s> {
    vec: libc::iovec,
    life: PhantomData<&'s mut [u8]>,
}

impl<'s> RacySlice<'s> {
    /// A slice without bytes.
    pub const EMPTY: Self =
        Self { vec: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, life: PhantomData };

    /// Makes a slice of `base..base + len`.
    ///
    /// # Safety
    /// During `'s`, the bytes are mapped and readable, do not wrap, and no `&mut` to them is used.
    const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { vec: libc::iovec { iov_base: base.cast(), iov_len: len }, life: PhantomData }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.vec.iov_len
    }
    /// Whether the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.vec.iov_len == 0
    }

    /// The rest of the slice after its first `skip` bytes; empty if there are no more.
    #[must_use]
    pub fn skip(self, skip: usize) -> Self {
        let skip = skip.min(self.vec.iov_len);
        let iov_base = self.vec.iov_base.wrapping_byte_add(skip);
        Self { vec: libc::iovec { iov_base, iov_len: self.vec.iov_len - skip }, ..self }
    }

    /// Appends all bytes of the slice to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let at = bytes.len();
        bytes.resize(at + self.len(), 0);
        // SAFETY: the bytes are mapped and readable during `'s` (`RacySlice::new`); the vector is
        // private.
        unsafe { copy::load(self.vec.iov_base.cast(), &mut bytes[at..]) };
    }

    /// The slices as an array of `iovec` for the kernel, with `pieces.len()` elements. The array
    /// may be used to read the bytes as long as the slices live.
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
    /// A slice without bytes.
    pub const EMPTY: Self =
        Self { vec: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, life: PhantomData };

    /// Makes a slice of `base..base + len`.
    ///
    /// # Safety
    /// During `'s`, the bytes are mapped and writable, do not wrap, and no reference to them is
    /// used.
    const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { vec: libc::iovec { iov_base: base.cast(), iov_len: len }, life: PhantomData }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.vec.iov_len
    }
    /// Whether the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.vec.iov_len == 0
    }

    /// The same memory as a slice to be read.
    pub const fn as_read(&self) -> RacySlice<'_> {
        RacySlice { vec: self.vec, life: PhantomData }
    }

    /// The slices as an array of `iovec` for the kernel, with `pieces.len()` elements. The array
    /// may be used to write the bytes as long as the slices live.
    pub const fn as_iovecs(pieces: &mut [Self]) -> *mut libc::iovec {
        pieces.as_mut_ptr().cast()
    }
}

impl<'s> From<&'s mut [u8]> for RacySliceMut<'s> {
    fn from(bytes: &'s mut [u8]) -> Self {
        // SAFETY: the only reference to the bytes is borrowed for `'s`.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl RacySlice<'_> {
    /// Length of the chunks of [`for_chunks`](Self::for_chunks) in bytes. A chunk stays in the
    /// first-level cache.
    const CHUNK: usize = 4096;

    /// Calls `show` with the first `len` bytes, copied in chunks.
    pub fn for_chunks(self, len: usize, mut show: impl FnMut(&[u8])) {
        let mut chunk = [0; Self::CHUNK];
        let (mut rest, mut left) = (self, len.min(self.len()));
        // Each round shows one chunk.
        while left > 0 {
            let now = &mut chunk[..left.min(Self::CHUNK)];
            // SAFETY: as in `append_to`; `now` is not longer than the rest of the slice.
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
    fn a_slice_gives_its_bytes_from_any_offset_on() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        // The memory is writable, like registered memory, because the copies use atomics.
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
