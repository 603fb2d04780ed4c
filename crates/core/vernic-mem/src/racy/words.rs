//! A file of 64-bit words that one process writes and others read.
//!
//! The writer creates the file and seals it. The seals fix the size, and permit writes only through
//! the writer's own mapping. A reader maps the file only after it has checked the seals, so that no
//! access can fault. The reader trusts no value of a word.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

#[cfg(not(miri))]
use super::memfd;

/// A mapping of a file of words.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to the process, and all access to it is by atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// The word with this number. A reader may only use relaxed loads, because atomics permit
    /// nothing else for read-only memory.
    #[inline(always)]
    pub(crate) fn word(&self, number: u32) -> Option<&AtomicU64> {
        let number = number as usize;
        // SAFETY: `count` words are mapped from `base` on, page-aligned, until `self` is dropped,
        // and the file cannot shrink. Others may change the words at any time, which atomics
        // permit.
        (number < self.count).then(|| unsafe { self.base.add(number).as_ref() })
    }
}

#[cfg(not(miri))]
impl SharedWords {
    /// Creates a file of `count` > 0 zero words. Only the returned mapping can write them.
    pub(crate) fn create(count: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd::create(count * size_of::<AtomicU64>())?;
        let words = Self::map(&fd, count, libc::PROT_READ | libc::PROT_WRITE)?;
        memfd::seal(&fd, memfd::FIXED_SIZE | libc::F_SEAL_FUTURE_WRITE)?;
        Ok((words, fd))
    }

    /// Maps the file of another process, for reading.
    ///
    /// # Errors
    /// `InvalidData` if the file is no sealed memory file of `count` words.
    pub(crate) fn open(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        if memfd::fixed_size(fd) != Some((count * size_of::<AtomicU64>()) as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(&fd, count, libc::PROT_READ)
    }

    /// Reserves memory for `count` words of a file from word `first` on. Without it, the first
    /// access could find that no memory is left.
    ///
    /// # Errors
    /// Errors of the system about memory.
    pub(crate) fn reserve(fd: &OwnedFd, first: u32, count: u32) -> io::Result<()> {
        let bytes = |words: u32| u64::from(words) * size_of::<AtomicU64>() as u64;
        memfd::reserve(fd, bytes(first), bytes(count))
    }

    fn map(fd: &impl std::os::fd::AsRawFd, count: usize, protection: i32) -> io::Result<Self> {
        let base = memfd::map(fd.as_raw_fd(), 0, count * size_of::<AtomicU64>(), protection)?;
        Ok(Self { base: base.cast(), count })
    }
}

#[cfg(not(miri))]
impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length; no reference into it outlives `self`.
        unsafe { memfd::unmap(self.base.cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// Miri does not support memory files, so nothing is shared.
#[cfg(miri)]
impl SharedWords {
    pub(crate) fn create(_: usize) -> io::Result<(Self, OwnedFd)> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn open(_: BorrowedFd<'_>, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn reserve(_: &OwnedFd, _: u32, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn readers_see_what_the_maker_writes_and_cannot_write() {
        let (words, fd) = SharedWords::create(1024).unwrap();
        let read = SharedWords::open(fd.as_fd(), 1024).unwrap();
        words.word(1023).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(read.word(1023).unwrap().load(Ordering::Relaxed), 7);
        assert!(words.word(1024).is_none() && read.word(u32::MAX).is_none());
        let writable = memfd::map(fd.as_raw_fd(), 0, 8192, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(writable.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn files_of_another_size_or_without_seals_are_not_mapped() {
        let (_words, fd) = SharedWords::create(1024).unwrap();
        assert!(SharedWords::open(fd.as_fd(), 1025).is_err());
        let loose = memfd::create(8192).unwrap();
        assert!(SharedWords::open(loose.as_fd(), 1024).is_err());
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(SharedWords::open(other.as_fd(), 1024).is_err());
    }
}
