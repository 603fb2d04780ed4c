//! A range of user memory, with the promise that it may be accessed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{address_space, copy};

/// A range of memory that a caller of `register` promised to keep accessible, or a special region.
/// The null region has 2^64 bytes that read as zero and discard writes. The address space has all
/// memory that is mapped at the time of an access.
///
/// Offsets count from the start of the range, and every access checks them. The caller checks the
/// rights: only a region that was registered for writing may be stored to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// Address of the first byte. Null for the null region, and possibly for a region without
    /// bytes. Unused for the address space.
    base: *mut u8,
    /// Length in bytes. Only the null region and the address space have [`u64::MAX`].
    len: u64,
}

// SAFETY: a region is an address and a number. The promise of `Region::new` covers all threads, and
// all accesses are atomics or assembly moves.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; there is no interior mutability.
unsafe impl Sync for Region {}

impl Region {
    /// A region without bytes.
    pub(crate) const EMPTY: Self = Self { base: std::ptr::null_mut(), len: 0 };
    /// The null region (`ibv_alloc_null_mr`): reads return zeros, and writes are discarded.
    pub(crate) const NULL: Self = Self { base: std::ptr::null_mut(), len: u64::MAX };

    /// Makes a region of `base..base + len`.
    ///
    /// # Safety
    /// The caller promises the following until no access through this value or a copy of it can
    /// happen any more, because the region was deregistered and the lanes have passed a barrier.
    /// The range is mapped and readable, and writable if the rights of the region permit any write.
    /// The range does not wrap. No Rust reference is used that such accesses conflict with. `base`
    /// is not null if `len` > 0.
    pub(crate) const unsafe fn new(base: *mut u8, len: u64) -> Self {
        Self { base, len }
    }

    /// Makes the region over all memory of the process, for implicit on-demand paging. Its offsets
    /// are addresses.
    ///
    /// # Safety
    /// Until no access through this value or a copy of it can happen any more, the caller uses no
    /// Rust reference to memory that the accesses name and conflict with.
    pub(crate) const unsafe fn address_space() -> Self {
        Self { base: std::ptr::without_provenance_mut(1), len: u64::MAX }
    }

    /// Rebuilds a region from the result of [`Region::parts`].
    ///
    /// # Safety
    /// `base` and `len` come from the same region.
    pub(super) const unsafe fn from_parts(base: *mut u8, len: u64) -> Self {
        Self { base, len }
    }

    /// Address and length, to be stored in a slot.
    pub(super) const fn parts(self) -> (*mut u8, u64) {
        (self.base, self.len)
    }

    /// Address of the first byte.
    pub(crate) fn addr(self) -> usize {
        self.base.addr()
    }

    /// Length in bytes.
    pub(crate) const fn len(self) -> u64 {
        self.len
    }

    /// Whether this is the null region or the address space, which are not a range of registered
    /// memory.
    #[inline(always)]
    pub(crate) const fn is_special(self) -> bool {
        self.len == u64::MAX
    }

    /// Whether this is the region over the whole address space.
    pub(crate) const fn is_address_space(self) -> bool {
        self.is_special() && !self.base.is_null()
    }

    /// Whether `offset..offset + len` lies in the region.
    #[inline(always)]
    pub(crate) const fn contains(self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// The part `offset..offset + len`. `None` if it is out of bounds, or the region is special.
    pub(crate) fn part(self, offset: u64, len: u64) -> Option<Self> {
        (self.contains(offset, len) && !self.is_special())
            .then(|| Self { base: self.base.wrapping_add(offset as usize), len })
    }

    /// Copies `dst.len()` bytes from `offset` on into `dst`. `None` if the range is out of bounds;
    /// nothing is copied then. `None` also if it is in the address space and not mapped.
    #[inline(always)]
    pub(crate) fn load(self, offset: u64, dst: &mut [u8]) -> Option<()> {
        if !self.contains(offset, dst.len() as u64) {
            return None;
        }
        if self.is_special() {
            return self.load_special(offset, dst);
        }
        // SAFETY: the range lies in the region (checked above), whose bytes are mapped and readable
        // (`Region::new`). `dst` is a reference, so by the same promise it does not overlap the
        // range.
        unsafe { copy::load(self.base.wrapping_add(offset as usize), dst) };
        Some(())
    }

    /// Copies `src` to `offset`, in ascending order. The last aligned word is stored last, as a
    /// release. `None` if the range is out of bounds; nothing is copied then. `None` also if it is
    /// in the address space and not mapped writable.
    #[inline(always)]
    pub(crate) fn store(self, offset: u64, src: &[u8]) -> Option<()> {
        if !self.contains(offset, src.len() as u64) {
            return None;
        }
        if self.is_special() {
            return self.store_special(offset, src);
        }
        // SAFETY: as for `load`. The range is writable because the caller checked the right to
        // write.
        unsafe { copy::store(self.base.wrapping_add(offset as usize), src) };
        Some(())
    }

    /// Copies `len` bytes from `offset` on to offset `to_offset` of another region. The last
    /// aligned word is stored last, as a release. `None`, and nothing done, if a range is out of
    /// bounds or a region is special. The caller checks the right to write.
    #[inline]
    pub(crate) fn transfer(self, offset: u64, to: Self, to_offset: u64, len: u64) -> Option<()> {
        let special = self.is_special() || to.is_special();
        if special || !self.contains(offset, len) || !to.contains(to_offset, len) {
            return None;
        }
        let src = self.base.wrapping_add(offset as usize);
        let dst = to.base.wrapping_add(to_offset as usize);
        // SAFETY: both ranges lie in their regions (checked above), whose bytes are mapped. The
        // first is readable, and the second is writable because the caller checked the right.
        unsafe { copy::transfer(dst, src, len as usize) };
        Some(())
    }

    #[cold]
    fn load_special(self, offset: u64, dst: &mut [u8]) -> Option<()> {
        if self.is_address_space() {
            return address_space::load(offset, dst);
        }
        dst.fill(0);
        Some(())
    }

    #[cold]
    fn store_special(self, offset: u64, src: &[u8]) -> Option<()> {
        if self.is_address_space() {
            // SAFETY: no Rust reference conflicts, by the promise of `Region::address_space`.
            return unsafe { address_space::store(offset, src) };
        }
        Some(())
    }

    /// Runs `op` on the 8-byte word at `offset`. `None` if the word is out of bounds, not aligned
    /// in memory, or in the address space and not mapped. In the address space, the operation is
    /// not atomic for CPUs. In the null region, `op` gets a temporary word with the value zero.
    #[inline]
    pub(crate) fn with_word<T>(self, offset: u64, op: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        if !self.contains(offset, 8) {
            return None;
        }
        if self.is_address_space() {
            // SAFETY: no Rust reference conflicts, by the promise of `Region::address_space`.
            return unsafe { address_space::with_word(offset, op) };
        }
        if self.is_special() {
            return Some(op(&AtomicU64::new(0)));
        }
        let word = self.base.wrapping_add(offset as usize).cast::<u64>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: the word lies in the region and is aligned (checked above). It is mapped while
        // `op` runs, and writable because the caller checked the right. By the promise of
        // `Region::new`, no other access to the word goes through a conflicting reference.
        Some(op(unsafe { AtomicU64::from_ptr(word) }))
    }
}

/// Orders all earlier accesses to any region before all later ones. That is what FLUSH means for
/// ordinary memory.
pub(crate) fn flush_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
