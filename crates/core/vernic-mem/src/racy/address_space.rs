//! Access to the whole address space of the process, through the kernel.
//!
//! For a region over the whole address space (implicit on-demand paging), no promise exists that
//! memory is mapped. An address that a peer names may be unmapped, read-only, or unmapped at this
//! moment. Only the kernel can check and copy in one step. So each access is a `process_vm_readv`
//! or `process_vm_writev` on this process itself. Such a call returns an error where a plain access
//! would raise a signal. A process may always do this to itself, unless a sandbox forbids the
//! calls; [`is_reachable`] finds out.
//!
//! An access takes about 0.3 us, and copies at most the bytes of one packet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Copies from `addr` on into `dst`. `None` if part of the range is not mapped or not readable.
/// `dst` may have been filled in part then.
#[cfg(not(miri))]
pub(super) fn load(addr: u64, dst: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let remote = iovec(addr, dst.len())?;
    // SAFETY: the local part is `dst`. Only the kernel accesses the other part, and checks it as it
    // copies.
    let n = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (n == dst.len() as isize).then_some(())
}

/// Copies `src` to `addr`, in ascending order. The aligned word that holds the last byte is a piece
/// of its own, after the others. `None` if part of the range is not mapped or not writable. The
/// pages before that part may have been written then.
///
/// # Safety
/// No Rust reference to the bytes is used during the call. The range may be any memory, or
/// unmapped.
#[cfg(not(miri))]
pub(super) unsafe fn store(addr: u64, src: &[u8]) -> Option<()> {
    let end = addr.checked_add(src.len() as u64)?;
    let last = (end.wrapping_sub(1) & !7).max(addr);
    let head = (last - addr) as usize;
    let local = libc::iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let remote = [iovec(addr, head)?, iovec(last, src.len() - head)?];
    // SAFETY: the local part is `src`, which is only read. Only the kernel accesses the other
    // parts, and checks them as it copies.
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

/// Runs `op` on a copy of the aligned word at `addr`, and writes the copy back if `op` changed it.
/// The operation is atomic only with respect to other calls of this function, from any thread.
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
        // SAFETY: the caller of `with_word` promises that no reference to the bytes is used.
        unsafe { store(addr, &after.to_ne_bytes()) }?;
    }
    Some(result)
}

/// Whether the kernel permits this process to access itself by these calls.
pub(crate) fn is_reachable() -> bool {
    let (from, to) = (AtomicU64::new(7), AtomicU64::new(0));
    let place = |word: &AtomicU64| std::ptr::from_ref(word).addr() as u64;
    let mut bytes = [0; 8];
    let copied = load(place(&from), &mut bytes);
    // SAFETY: `to` is an atomic, so it may be written while a shared reference to it exists.
    let stored = unsafe { store(place(&to), &bytes) };
    copied.is_some() && stored.is_some() && to.load(Ordering::Relaxed) == 7
}

/// Miri does not support these system calls.
#[cfg(miri)]
pub(super) fn load(_: u64, _: &mut [u8]) -> Option<()> {
    None
}

/// Miri does not support these system calls.
///
/// # Safety
/// The call has no conditions.
#[cfg(miri)]
pub(super) unsafe fn store(_: u64, _: &[u8]) -> Option<()> {
    None
}
