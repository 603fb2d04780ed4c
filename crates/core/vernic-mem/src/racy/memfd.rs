//! System calls for memory files (memfds).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Seals that fix the size of a file. They also seal the seals.
pub(super) const FIXED_SIZE: libc::c_int =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Creates a file of `len` zero bytes that can be sealed and is closed on exec. Its pages take
/// memory only when they are used.
pub(super) fn create(len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that lives through the call.
    let open = |flags| check(unsafe { libc::memfd_create(c"vernic".as_ptr(), flags) });
    // Kernels before 6.3 do not know the second flag. Later kernels log a warning if no flag says
    // whether the file may be executed.
    let raw = open(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| open(flags))?;
    // SAFETY: the descriptor was just created, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call passes a descriptor of this function, and no pointers.
    check(unsafe { libc::ftruncate(raw, len) })?;
    Ok(fd)
}

/// Adds seals to a file.
pub(super) fn seal(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: the call passes an open descriptor, and no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

/// Length of a memory file whose size can neither shrink nor grow; `None` for any other file.
///
/// Only files in memory have seals. So no access depends on a file system of another user. Files of
/// huge pages are refused. A missing huge page, or one that its owner released, may not come back,
/// and an access would then raise a signal. Ordinary pages come from the same memory as all others
/// when they are accessed.
pub(super) fn fixed_size(fd: BorrowedFd<'_>) -> Option<u64> {
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: a `statfs` of zeros is valid.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `system`, which lives through the call.
    let told = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) };
    if told < 0 || system.f_type != libc::TMPFS_MAGIC {
        return None;
    }
    // SAFETY: the call passes no pointers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & needed != needed {
        return None;
    }
    // SAFETY: a `stat` of zeros is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `stat`, which lives through the call.
    let told = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    if told < 0 { None } else { u64::try_from(stat.st_size).ok() }
}

/// Maps `len` > 0 bytes of the file as shared memory, at an address that the kernel chooses.
/// `offset` is a multiple of the page size. No memory is reserved, and a child of `fork` does not
/// inherit the mapping.
pub(super) fn map(fd: RawFd, offset: u64, len: usize, protection: i32) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
    let at = match NonNull::new(at) {
        Some(at) if at.as_ptr() != libc::MAP_FAILED => at,
        _ => return Err(io::Error::last_os_error()),
    };
    // If the kernel ignores this advice, a child inherits the mapping, but never touches it.
    // SAFETY: the range is the mapping made above.
    unsafe { libc::madvise(at.as_ptr(), len, libc::MADV_DONTFORK) };
    Ok(at.cast())
}

/// Maps `len` > 0 bytes of the file, from `offset` on, at address `at`. Replaces what is mapped
/// there. The mapping is readable and writable; `kind` makes it shared or private.
///
/// # Safety
/// The present mapping of the range may go, and no reference to it is in use.
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
    // SAFETY: the caller promises that the present mapping may go.
    let mapped = unsafe { libc::mmap(place, len, rights, flags, fd.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The first part of the file that uses memory, between `from` and `end`.
pub(super) fn used_part(fd: &OwnedFd, from: u64, end: u64) -> Option<std::ops::Range<u64>> {
    let seek = |from: u64, whence| {
        let from = libc::off_t::try_from(from).ok()?;
        // SAFETY: the call passes no pointers.
        let at = unsafe { libc::lseek(fd.as_raw_fd(), from, whence) };
        u64::try_from(at).ok()
    };
    let start = seek(from, libc::SEEK_DATA).filter(|&start| start < end)?;
    let stop = seek(start, libc::SEEK_HOLE).unwrap_or(end).min(end);
    Some(start..stop)
}

/// Gives the process a private copy of each page of a private mapping, as a write to each page
/// would. No byte changes.
pub(super) fn populate_private(at: usize, len: usize) -> io::Result<()> {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: no byte changes, and the call fails if the range is not mapped.
    check(unsafe { libc::madvise(place, len, libc::MADV_POPULATE_WRITE) })?;
    Ok(())
}

/// Reserves memory for `len` bytes of the file from `offset` on.
pub(super) fn reserve(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<()> {
    let number = |n| libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    // SAFETY: the call passes an open descriptor, and no pointers.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, number(offset)?, number(len)?) })?;
    Ok(())
}

/// Releases the file's memory. The file then reads as zero.
pub(super) fn discard(fd: &OwnedFd, len: u64) -> io::Result<()> {
    let kind = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call passes an open descriptor, and no pointers.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), kind, 0, len) })?;
    Ok(())
}

/// Unmaps a mapping made by [`map`].
///
/// # Safety
/// `at` and `len` are those of such a mapping, and nothing accesses it any more.
pub(super) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller promises that this is a mapping made by `map`, which nothing accesses.
    unsafe { libc::munmap(at.as_ptr().cast(), len) };
}

/// Length of a page in bytes.
pub(super) fn page_size() -> u64 {
    // SAFETY: the call passes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096).max(1)
}
