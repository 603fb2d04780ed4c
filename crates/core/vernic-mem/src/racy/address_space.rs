//! The whole address space of the process, reached through the kernel.
//!
//! A region over everything (implicit on-demand paging) has no promise to lean on: what a peer
//! names may be unmapped, read-only, or go away at this moment. Only the kernel can copy and find
//! that out in one step, so each access here is a `process_vm_readv` or `process_vm_writev` on this
//! very process, which fails where a plain access would be a signal. A process may always do that
//! to itself, unless a sandbox forbids the calls; [`is_reachable`] finds out.
//!
//! About 0.3 us per access, and at most a packet each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Copies from `addr` on into `dst`. `None` if not all of it is mapped and readable; `dst` may have
/// been filled in part.
#[cfg(not(miri))]
pub(super) fn load(addr: u64, dst: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let remote = iovec(addr, dst.len())?;
    // SAFETY: the local part is `dst`. The other part is only looked at by the kernel, which checks
    // it as it copies.
    let n = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (n == dst.len() as isize).then_some(())
}

/// Copies `src` to `addr` and on, ascending, the aligned word that holds the last byte as a piece
/// of its own after the others. `None` if not all of it is mapped and writable; the pages before
/// the first that is not may have been written.
///
/// # Safety
/// No Rust reference is used to the bytes meanwhile; they may be anything else, or nothing.
#[cfg(not(miri))]
pub(super) unsafe fn store(addr: u64, src: &[u8]) -> Option<()> {
    let end = addr.checked_add(src.len() as u64)?;
    let last = (end.wrapping_sub(1) & !7).max(addr);
    let head = (last - addr) as usize;
    let local = libc::iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let remote = [iovec(addr, head)?, iovec(last, src.len() - head)?];
    // SAFETY: the local part is `src`, which is only read. The other parts are only touched by the
    // kernel, which checks them as it copies.
    let n = unsafe {
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, remote.as_ptr(), 2, 0)
    };
    (n == src.len() as isize).then_some(())
}

#[cfg(not(miri))]
fn iovec(addr: u64, len: usize) -> Option<libc::iovec> {
    let addr = usize::try_from(addr).ok()?;
    Some(libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: len })
}

/// Runs `op` on a copy of the aligned word at `addr`, and writes it back if that changed it. Atomic
/// with respect to other calls of this, whichever thread makes them, and nothing else.
///
/// # Safety
/// As for [`store`].
pub(super) unsafe fn with_word<T>(addr: u64, op: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
    if !addr.is_multiple_of(8) {
        return None;
    }
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = [0; 8];
    load(addr, &mut bytes)?;
    let before = u64::from_ne_bytes(bytes);
    let word = AtomicU64::new(before);
    let result = op(&word);
    let after = word.load(Ordering::Relaxed);
    if after != before {
        // SAFETY: the caller's promise.
        unsafe { store(addr, &after.to_ne_bytes()) }?;
    }
    Some(result)
}

/// Whether the kernel lets this process do all that.
pub(crate) fn is_reachable() -> bool {
    let (from, to) = (AtomicU64::new(7), AtomicU64::new(0));
    let place = |word: &AtomicU64| std::ptr::from_ref(word).addr() as u64;
    let mut bytes = [0; 8];
    let copied = load(place(&from), &mut bytes);
    // SAFETY: `to` may be written through a shared reference.
    let stored = unsafe { store(place(&to), &bytes) };
    copied.is_some() && stored.is_some() && to.load(Ordering::Relaxed) == 7
}

/// Miri has no such calls.
#[cfg(miri)]
pub(super) fn load(_: u64, _: &mut [u8]) -> Option<()> {
    None
}

/// Miri has no such calls.
///
/// # Safety
/// None needed.
#[cfg(miri)]
pub(super) unsafe fn store(_: u64, _: &[u8]) -> Option<()> {
    None
}
