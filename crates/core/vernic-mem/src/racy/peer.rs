//! Granted memory of another process on this host: mapped from a file, or accessed through the
//! kernel.
//!
//! Statements of the other process are not trusted. A file is mapped only if its size is sealed and
//! it holds the named range. Every access checks its bounds. When the kernel copies, it checks the
//! other process's addresses. The content of the bytes belongs to the other process, which has
//! granted access to them.
//!
//! A copy through the kernel costs some 0.3 us, and pins each page. Meanwhile the other process may
//! end, and another program may get its process id. So each copy begins with a liveness word, which
//! only the right program has (`liveness.rs`).

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

#[cfg(not(miri))]
use super::memfd;
use super::{LivenessWord, Region};

/// Highest number of pieces of remote memory in one system call that reads a list.
const LIST: usize = 30;

/// A part of another process's memory file, mapped in this process.
#[derive(Debug)]
pub struct PeerMapping {
    region: Region,
    writable: bool,
    base: NonNull<u8>,
    mapped: usize,
}

// SAFETY: the mapping belongs to this value; only racy copies and atomics access it.
unsafe impl Send for PeerMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for PeerMapping {}

impl PeerMapping {
    /// Maps `len` > 0 bytes of the file from `offset` on: read-only, or also for writing if
    /// `writable` is set.
    ///
    /// # Errors
    /// `InvalidData` if the file is no memory file of fixed size that holds the range; errors of
    /// `mmap`.
    #[cfg(not(miri))]
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: u64, writable: bool) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let size = memfd::fixed_size(file).ok_or_else(invalid)?;
        let end = offset.checked_add(len).filter(|&end| end <= size && len > 0);
        let end = end.ok_or_else(invalid)?;
        let lead = offset % memfd::page_size();
        let mapped = usize::try_from(end - (offset - lead)).map_err(|_| invalid())?;
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let base = memfd::map(file.as_raw_fd(), offset - lead, mapped, libc::PROT_READ | write)?;
        // SAFETY: the range lies in the mapping. The mapping lives as long as this value, there are
        // no references to it, and the file cannot shrink. `region()` gives it out for writing only
        // if it is `writable`.
        let region = unsafe { Region::new(base.as_ptr().add(lead as usize), len) };
        Ok(Self { region, writable, base, mapped })
    }

    /// Miri does not support memory files.
    #[cfg(miri)]
    pub fn map(_: BorrowedFd<'_>, _: u64, _: u64, _: bool) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The mapped bytes as a region. `None` if the caller wants to write and may not.
    #[inline(always)]
    pub(crate) fn region(&self, to_write: bool) -> Option<Region> {
        (self.writable || !to_write).then_some(self.region)
    }

    /// Runs `op` on the 8-byte word at offset `at`. `None` if the word is out of bounds, not
    /// aligned or not writable.
    pub(crate) fn with_word<T>(&self, at: u64, op: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        self.region(true)?.with_word(at, op)
    }
}

#[cfg(not(miri))]
impl Drop for PeerMapping {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length; copies of the region do not outlive
        // `self`.
        unsafe { memfd::unmap(self.base, self.mapped) };
    }
}

/// A range of another process's address space, for copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct PeerRange {
    /// Process id, as this process sees it.
    pub pid: i32,
    /// First address, in the other process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Liveness word of the program that granted access. Another program with the same process id
    /// does not have it.
    pub liveness: LivenessWord,
}

/// One piece of a list of another process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerPiece {
    /// First address, in the other process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A list of pieces of another process's address space, to be read.
#[derive(Clone, Copy, Debug)]
pub struct PeerList<'a> {
    /// Process id, as this process sees it.
    pub pid: i32,
    /// Liveness word of the program, as in [`PeerRange`].
    pub liveness: LivenessWord,
    /// The pieces, at most [`PeerList::MAX_PIECES`].
    pub pieces: &'a [PeerPiece],
}

impl PeerList<'_> {
    /// Highest number of pieces in a list.
    pub const MAX_PIECES: usize = LIST;
}
