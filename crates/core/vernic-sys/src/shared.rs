//! A page of memory that processes share: a `memfd` whose size is sealed.
//!
//! The page comes from another process, so nothing about it is trusted. Its size cannot change any
//! more (checked before it is mapped), so an access cannot fault. It is only ever accessed as
//! atomics, any value of which is valid.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use super::{OwnFd, check};

/// Bytes of the file and of the mapping: a page on x86-64 and most others. Where pages are larger,
/// the kernel rounds the mapping up, and only these bytes are accessed.
const BYTES: usize = 4096;

/// Words of 64 bits in a [`SharedPage`].
pub(crate) const WORDS: usize = BYTES / size_of::<AtomicU64>();

/// Seals without which a page is not mapped: they fix its size.
pub(crate) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// A mapped page.
#[derive(Debug)]
pub struct SharedPage(NonNull<[AtomicU64; WORDS]>);

// SAFETY: the mapping of a `SharedPage` belongs to the process, not to a thread, and all access to
// the mapping is by atomics.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

/// Makes a new file of one page, sealed, and closed on exec.
pub fn shared_file() -> io::Result<OwnFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string of C that lives through the call.
    let open = |flags| check(unsafe { libc::memfd_create(c"vernic".as_ptr(), flags) });
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`; later ones want to know about execution.
    let fd = OwnFd::open(|| open(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| open(flags)))?;
    let raw = fd.as_raw_fd();
    give_memory(&fd, BYTES)?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) })?;
    Ok(fd)
}

/// Gives a memory file `len` bytes, so that no later access finds the host without memory.
///
/// # Errors
/// Errors of the system; `EFBIG` where the limit of files' sizes (`ulimit -f`) is lower, instead of
/// the signal that the kernel would send.
pub(crate) fn give_memory(fd: &OwnFd, len: usize) -> io::Result<()> {
    check_size(len)?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t) }).map(drop)
}

/// Gives a memory file `len` bytes that take memory only as they are accessed, like the memory of
/// any program. A kernel may count what it has promised (`vm.overcommit_memory` 2, or unknown). An
/// access could then exceed the kernel's limit, which raises a signal, so there the bytes take
/// memory at once.
///
/// # Errors
/// The errors of [`give_memory`].
pub(crate) fn promise_memory(fd: &OwnFd, len: usize) -> io::Result<()> {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    let policy = || std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok();
    if *COUNTS.get_or_init(|| counts_promises(policy().as_deref())) {
        return give_memory(fd, len);
    }
    check_size(len)?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }).map(drop)
}

/// Whether a kernel with this policy may refuse memory on access. Other policies treat it as any
/// memory: when it runs out, the kernel ends a process that has too much.
fn counts_promises(policy: Option<&str>) -> bool {
    !policy.is_some_and(|policy| matches!(policy.trim(), "0" | "1"))
}

/// Fails if a file of this size is larger than the process may make (`RLIMIT_FSIZE`).
fn check_size(len: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to `limit`, which lives through the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) })?;
    if limit.rlim_cur < len as libc::rlim_t {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}

/// Returns the number of a file, unique among the files of its kind as long as it is open or
/// mapped.
pub fn inode_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(stat(fd)?.st_ino)
}

pub(crate) fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: a stat of zeros is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `stat`, which lives through the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(stat)
}

impl SharedPage {
    /// Maps a file of [`shared_file`] that this process or another one made.
    ///
    /// # Errors
    /// `InvalidData` for anything other than a sealed memory file of one page.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // Only files in memory have seals, so no untrusted file system is behind an access.
        // SAFETY: no pointers are passed.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS || stat(fd)?.st_size != BYTES as libc::off_t {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of this process is
        // there.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                protection,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(Self(at.cast())),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the word with this index, which must exist.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: mapped, readable and writable, until `self` is dropped; aligned as pages are; the
        // file is as long as the mapping and cannot become shorter. Others change the words at any
        // time, which atomics allow.
        let words = unsafe { self.0.as_ref() };
        &words[index]
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_is_taken_at_once_where_an_access_could_be_refused() {
        assert!(![Some("0\n"), Some("1\n")].map(counts_promises).contains(&true));
        assert!(![Some("2\n"), Some(""), None].map(counts_promises).contains(&false));
    }

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let fd = shared_file().unwrap();
        let (a, b) = (SharedPage::map(fd.as_fd()).unwrap(), SharedPage::map(fd.as_fd()).unwrap());
        drop(fd);
        a.word(WORDS - 1).store(7, Ordering::Relaxed);
        assert_eq!(b.word(WORDS - 1).load(Ordering::Relaxed), 7);
        assert_eq!(b.word(0).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_that_could_shrink_or_has_another_size_is_not_mapped() {
        let fd = shared_file().unwrap();
        // SAFETY: no pointers are passed.
        let cut = unsafe { libc::ftruncate(fd.as_raw_fd(), 0) };
        assert_eq!((cut, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
        for (len, seals) in [(BYTES, 0), (BYTES, libc::F_SEAL_GROW), (0, SEALS), (2 * BYTES, SEALS)]
        {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            // SAFETY: the name is a string of C; nothing else is a pointer.
            let open = || check(unsafe { libc::memfd_create(c"test".as_ptr(), flags) });
            let fd = OwnFd::open(open).unwrap();
            // SAFETY: no pointers are passed.
            unsafe {
                check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t)).unwrap();
                check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
            }
            assert!(SharedPage::map(fd.as_fd()).is_err(), "{len} bytes, seals {seals}");
        }
        let file = File::open("/proc/self/exe").unwrap();
        assert!(SharedPage::map(file.as_fd()).is_err());
    }
}
