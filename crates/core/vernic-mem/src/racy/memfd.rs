//! Memory files: the system calls around them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Seals of a file whose size stays what it is, as do its seals.
pub(super) const FIXED_SIZE: libc::c_int =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A new file of `len` bytes of 0, none of which takes memory before it is used, closed on exec and
/// open to seals.
pub(super) fn create(len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that lives through the call.
    let open = |flags| check(unsafe { libc::memfd_create(c"vernic".as_ptr(), flags) });
    // Kernels before 6.3 do not know the second flag, those after it want to hear of execution.
    let raw = open(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| open(flags))?;
    // SAFETY: just created, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a descriptor of ours; no pointers are passed.
    check(unsafe { libc::ftruncate(raw, len) })?;
    Ok(fd)
}

/// Adds seals.
pub(super) fn seal(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: a descriptor of ours; no pointers are passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

/// Bytes of a file that can become neither shorter nor longer; `None` for any other. Only files in
/// memory have seals, so no file system of a stranger is behind an access. Those of huge pages are
/// refused: pages that are missing, or that their owner gives back, need not come again, and an
/// access is a signal then. Ordinary pages are made when they are accessed, from the same memory as
/// any others.
pub(super) fn fixed_size(fd: BorrowedFd<'_>) -> Option<u64> {
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: a structure of zeros is valid.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `system`, which lives through the call.
    let told = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) };
    if told < 0 || system.f_type != libc::TMPFS_MAGIC {
        return None;
    }
    // SAFETY: no pointers are passed.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & needed != needed {
        return None;
    }
    // SAFETY: a stat of zeros is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `stat`, which lives through the call.
    let told = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    if told < 0 { None } else { u64::try_from(stat.st_size).ok() }
}

/// Maps `len` > 0 bytes of the file from `offset`, a multiple of the page size, on, where the
/// kernel likes, shared, without setting memory aside, and not in a child of `fork`.
pub(super) fn map(fd: RawFd, offset: u64, len: usize, protection: i32) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
    let at = match NonNull::new(at) {
        Some(at) if at.as_ptr() != libc::MAP_FAILED => at,
        _ => return Err(io::Error::last_os_error()),
    };
    // Advice: a child never touches it, and inherits it where the kernel does not take the advice.
    // SAFETY: the mapping just made.
    unsafe { libc::madvise(at.as_ptr(), len, libc::MADV_DONTFORK) };
    Ok(at.cast())
}

/// Maps `len` > 0 bytes of the file from `offset` on at `at`, in the place of what is there,
/// readable and writable, shared or private as `kind` says.
///
/// # Safety
/// What is there may go, and no reference to it is in use.
pub(super) unsafe fn map_at(
    fd: &OwnedFd,
    offset: u64,
    at: usize,
    len: usize,
    kind: libc::c_int,
) -> io::Result<()> {
    let flags = kind | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller's promise.
    let mapped = unsafe { libc::mmap(place, len, rights, flags, fd.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The next part of the file below `end` that takes memory, from `from` on.
pub(super) fn used_part(fd: &OwnedFd, from: u64, end: u64) -> Option<std::ops::Range<u64>> {
    let seek = |from: u64, whence| {
        let from = libc::off_t::try_from(from).ok()?;
        // SAFETY: no pointers are passed.
        let at = unsafe { libc::lseek(fd.as_raw_fd(), from, whence) };
        u64::try_from(at).ok()
    };
    let start = seek(from, libc::SEEK_DATA).filter(|&start| start < end)?;
    let stop = seek(start, libc::SEEK_HOLE).unwrap_or(end).min(end);
    Some(start..stop)
}

/// Has the kernel make each page of a private mapping the process's own, as a write would, and
/// without writing.
pub(super) fn populate_private(at: usize, len: usize) -> io::Result<()> {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: no byte changes, and what is not mapped is an error.
    check(unsafe { libc::madvise(place, len, libc::MADV_POPULATE_WRITE) })?;
    Ok(())
}

/// Takes memory for `len` bytes of the file from `offset` on.
pub(super) fn reserve(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<()> {
    let number = |n| libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    // SAFETY: a descriptor of ours; no pointers are passed.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, number(offset)?, number(len)?) })?;
    Ok(())
}

/// Gives the file's memory back: it reads as zero.
pub(super) fn discard(fd: &OwnedFd, len: u64) -> io::Result<()> {
    let kind = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a descriptor of ours; no pointers are passed.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), kind, 0, len) })?;
    Ok(())
}

/// Ends a mapping of [`map`].
///
/// # Safety
/// It is one, of this length, and nobody accesses it any more.
pub(super) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(at.as_ptr().cast(), len) };
}

/// Bytes of a page.
pub(super) fn page_size() -> u64 {
    // SAFETY: no pointers are passed.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096).max(1)
}
