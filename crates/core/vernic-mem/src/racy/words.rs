//! A file of 64-bit words that one process writes and others read.
//!
//! The writer makes it and seals it: its size is fixed, and nobody but the mapping that there is
//! can write it. A reader maps it only after it has seen the seals, so that no access can fault; of
//! the words it believes nothing, any value is one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

#[cfg(not(miri))]
use super::memfd;

/// A mapping of such a file.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to the process, and all access to it is by atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// The word with this number. A reader may only load it, and only relaxed: that is what atomics
    /// permit of memory that cannot be written.
    #[inline(always)]
    pub(crate) fn word(&self, number: u32) -> Option<&AtomicU64> {
        let number = number as usize;
        // SAFETY: `count` words are mapped from `base` on, aligned as pages are, until `self` is
        // dropped; the file cannot become shorter. Others change the words at any time, which
        // atomics allow.
        (number < self.count).then(|| unsafe { self.base.add(number).as_ref() })
    }
}

#[cfg(not(miri))]
impl SharedWords {
    /// A file of `count` > 0 words of 0, to be written through the value returned alone.
    pub(crate) fn create(count: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd::create(count * size_of::<AtomicU64>())?;
        let words = Self::map(&fd, count, libc::PROT_READ | libc::PROT_WRITE)?;
        memfd::seal(&fd, memfd::FIXED_SIZE | libc::F_SEAL_FUTURE_WRITE)?;
        Ok((words, fd))
    }

    /// The file of another process, to be read.
    ///
    /// # Errors
    /// `InvalidData` for anything but a sealed memory file of `count` words.
    pub(crate) fn open(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        if memfd::fixed_size(fd) != Some((count * size_of::<AtomicU64>()) as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(&fd, count, libc::PROT_READ)
    }

    /// Takes the memory of so many words of a file of ours, which touching them could find missing
    /// otherwise.
    ///
    /// # Errors
    /// What the system says about memory.
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
        // SAFETY: mapped by `map` with this length; no reference into it outlives `self`.
        unsafe { memfd::unmap(self.base.cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// Miri has no such files: nothing is shared.
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
