//! A range of user memory, with the promise that it may be accessed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{address_space, copy};

/// A range of memory that a caller of `register` vouched for; or the null region, 2^64 bytes that
/// read as zero and swallow writes; or the address space, whatever is mapped in it at the time.
///
/// Offsets count from the start of the range; every access checks them. The rights are the
/// caller's concern: storing needs a region registered for writing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// First byte; null for the null region and, possibly, for one without bytes; never looked at
    /// for the address space.
    base: *mut u8,
    /// Bytes; [`u64::MAX`] for the null region and the address space only.
    len: u64,
}

// SAFETY: a region is an address and a number. The promise of `Region::new` covers all threads, and
// all accesses are atomics or assembly moves.
unsafe impl Send for Region {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Region {}

impl Region {
    /// No bytes at all.
    pub(crate) const EMPTY: Self = Self { base: std::ptr::null_mut(), len: 0 };
    /// Reads as zero, swallows writes (`ibv_alloc_null_mr`).
    pub(crate) const NULL: Self = Self { base: std::ptr::null_mut(), len: u64::MAX };

    /// Vouches for `base..base + len`.
    ///
    /// # Safety
    /// Until no access through this value or a copy of it can happen any more (the region is
    /// deregistered and the lanes have passed): the range is mapped, readable, writable if the
    /// rights that it is published with permit any write, does not wrap, and no Rust reference
    /// is used that such accesses would conflict with. `base` is not null if `len` > 0.
    pub(crate) const unsafe fn new(base: *mut u8, len: u64) -> Self {
        Self { base, len }
    }

    /// All memory of the process: offsets are addresses (implicit on-demand paging).
    ///
    /// # Safety
    /// Until no access through this value or a copy of it can happen any more, no Rust reference is
    /// used to memory that accesses name and would conflict with.
    pub(crate) const unsafe fn address_space() -> Self {
        Self { base: std::ptr::without_provenance_mut(1), len: u64::MAX }
    }

    /// Puts a region together again from the parts that [`Region::parts`] gave.
    ///
    /// # Safety
    /// `base` and `len` come from one value, not from two.
    pub(super) const unsafe fn from_parts(base: *mut u8, len: u64) -> Self {
        Self { base, len }
    }

    /// Address and length, to be stored.
    pub(super) const fn parts(self) -> (*mut u8, u64) {
        (self.base, self.len)
    }

    /// Address of the first byte.
    pub(crate) fn addr(self) -> usize {
        self.base.addr()
    }

    /// Bytes.
    pub(crate) const fn len(self) -> u64 {
        self.len
    }

    /// The null region or the address space: not memory that was registered.
    #[inline(always)]
    pub(crate) const fn is_special(self) -> bool {
        self.len == u64::MAX
    }

    /// The address space.
    pub(crate) const fn is_address_space(self) -> bool {
        self.is_special() && !self.base.is_null()
    }

    /// Whether `offset..offset + len` lies inside.
    #[inline(always)]
    pub(crate) const fn contains(self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// The part `offset..offset + len`, or `None` if it is not inside, or of a special region.
    pub(crate) fn part(self, offset: u64, len: u64) -> Option<Self> {
        (self.contains(offset, len) && !self.is_special())
            .then(|| Self { base: self.base.wrapping_add(offset as usize), len })
    }

    /// Copies `dst.len()` bytes from `offset` on into `dst`. `None`, and nothing done, out of
    /// bounds; `None` in the address space where nothing is mapped.
    #[inline(always)]
    pub(crate) fn load(self, offset: u64, dst: &mut [u8]) -> Option<()> {
        if !self.contains(offset, dst.len() as u64) {
            return None;
        }
        if self.is_special() {
            return self.load_special(offset, dst);
        }
        // SAFETY: the range lies inside the region (checked above), whose bytes are mapped and
        // readable (`Region::new`); `dst` is a reference, so it does not overlap (same promise).
        unsafe { copy::load(self.base.wrapping_add(offset as usize), dst) };
        Some(())
    }

    /// Copies `src` to `offset` and on, ascending, last aligned word last and as a release. `None`,
    /// and nothing done, out of bounds; `None` in the address space where nothing writable is
    /// mapped.
    #[inline(always)]
    pub(crate) fn store(self, offset: u64, src: &[u8]) -> Option<()> {
        if !self.contains(offset, src.len() as u64) {
            return None;
        }
        if self.is_special() {
            return self.store_special(offset, src);
        }
        // SAFETY: as for `load`; writable because the caller checked the right to write.
        unsafe { copy::store(self.base.wrapping_add(offset as usize), src) };
        Some(())
    }

    /// Copies `len` bytes from `offset` on to `to_offset` of another region, the last aligned word
    /// last and as a release. `None`, and nothing done, out of either's bounds, or if one is
    /// special. The right to write is the caller's concern.
    #[inline]
    pub(crate) fn transfer(self, offset: u64, to: Self, to_offset: u64, len: u64) -> Option<()> {
        let special = self.is_special() || to.is_special();
        if special || !self.contains(offset, len) || !to.contains(to_offset, len) {
            return None;
        }
        let src = self.base.wrapping_add(offset as usize);
        let dst = to.base.wrapping_add(to_offset as usize);
        // SAFETY: both ranges lie inside their regions (checked above), whose bytes are mapped, the
        // first readable, the second writable because the caller checked the right.
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
            // SAFETY: no reference conflicts, as promised for `Region::address_space`.
            return unsafe { address_space::store(offset, src) };
        }
        Some(())
    }

    /// Runs `op` on the 8-byte word at `offset`, or gives `None` if it is out of bounds or not
    /// aligned in memory, or not mapped in the address space, where the operation is no atomic one
    /// for CPUs. The word of the null region is a zero that is forgotten.
    #[inline]
    pub(crate) fn with_word<T>(self, offset: u64, op: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        if !self.contains(offset, 8) {
            return None;
        }
        if self.is_address_space() {
            // SAFETY: no reference conflicts, as promised for `Region::address_space`.
            return unsafe { address_space::with_word(offset, op) };
        }
        if self.is_special() {
            return Some(op(&AtomicU64::new(0)));
        }
        let word = self.base.wrapping_add(offset as usize).cast::<u64>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: inside the region, aligned, writable because the caller checked the right, and
        // mapped while `op` runs. Others access the word concurrently only by means that the
        // promise of `Region::new` permits: not through conflicting references.
        Some(op(unsafe { AtomicU64::from_ptr(word) }))
    }
}

/// Orders all earlier accesses to any region before all later ones: what FLUSH does on plain
/// memory.
pub(crate) fn flush_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
