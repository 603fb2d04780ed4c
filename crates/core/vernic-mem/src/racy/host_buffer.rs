//! Page-aligned, zeroed memory of our own: what a safe API registers.

use std::fmt;
use std::io;
#[cfg(not(miri))]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Region;
#[cfg(not(miri))]
use super::memfd;
use super::shares::{self, ALIGN};

/// Page-aligned zeroed memory, shared through a memfd where the system has them, so that a peer
/// process on this host can map it. Freed on drop.
///
/// It is this process's alone: a child of `fork` does not have it, and is ended by SIGSEGV if it
/// accesses it, as memory that was registered is after `ibv_fork_init`. What a child shall read is
/// copied out before the fork, or lies in [`HostBuffer::private`].
///
/// Another process is given the memfd only if all of the buffer is registered, as one region. Of a
/// region that is a part it has no more than the part, which the kernel copies for it: 0.3 us and
/// more for each request, and atomics take packets. What peers are to reach at different times or
/// with different rights is better in buffers of its own.
///
/// It is meant to be registered, so its bytes may change at any time: there are no references into
/// it, only copies ([`HostBuffer::read_at`], [`HostBuffer::write_at`]).
pub struct HostBuffer {
    region: Region,
    base: *mut u8,
    mapped: usize,
    fd: Option<Arc<OwnedFd>>,
}

// SAFETY: the mapping belongs to this value and is accessed by racy copies only, which any number
// of threads may do at once.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `len` zeroed bytes. No page is touched until it is used.
    ///
    /// # Errors
    /// What `mmap` says, typically `ENOMEM`; `InvalidInput` for more than [`isize::MAX`] bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::with(len, Sharing::Memfd)
    }

    /// As [`new`](Self::new), but of this process alone: it takes no descriptor, and a child of
    /// `fork` has a copy.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn private(len: usize) -> io::Result<Self> {
        Self::with(len, Sharing::Private)
    }

    fn with(len: usize, sharing: Sharing) -> io::Result<Self> {
        let mapped = len
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .filter(|&mapped| isize::try_from(mapped).is_ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let (base, fd) = map(mapped, sharing)?;
        let fd = fd.map(Arc::new);
        if let Some(fd) = &fd {
            shares::insert(base.addr(), mapped, fd, 0);
        }
        // SAFETY: `base..base + len` is a mapping of ours, readable, writable, without references,
        // until drop; this copy of the region does not outlive it. Who registers it makes the
        // promise anew.
        let region = unsafe { Region::new(base, len as u64) };
        Ok(Self { region, base, mapped, fd })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.len() == 0
    }

    /// First byte; page-aligned, never null. Valid until the buffer is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.base
    }

    /// The memfd that backs it from offset 0 on, if it is shared. Its size is sealed.
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_deref().map(AsFd::as_fd)
    }

    /// Copies `dst.len()` bytes from `offset` on. Bytes that a peer writes meanwhile may be seen
    /// old or new, aligned 8-byte words whole.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the range is not inside; nothing is
    /// copied.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> io::Result<()> {
        self.region.load(offset as u64, dst).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Copies `src` to `offset` and on, in ascending order, the last word last and as a release.
    ///
    /// # Errors
    /// [`WriteZero`](io::ErrorKind::WriteZero) if the range is not inside; nothing is copied.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> io::Result<()> {
        self.region.store(offset as u64, src).ok_or_else(|| io::ErrorKind::WriteZero.into())
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("base", &self.base)
            .field("len", &self.len())
            .field("shared", &self.fd.is_some())
            .finish()
    }
}

/// Who has the memory.
#[derive(Clone, Copy)]
enum Sharing {
    /// Everybody who has the memfd; where the system has none, this process alone.
    Memfd,
    /// This process alone.
    Private,
}

/// Maps `len` > 0 zeroed bytes.
#[cfg(not(miri))]
fn map(len: usize, sharing: Sharing) -> io::Result<(*mut u8, Option<OwnedFd>)> {
    let fd = match sharing {
        Sharing::Memfd => memfd(len).ok(),
        Sharing::Private => None,
    };
    let (flags, raw) = match &fd {
        Some(fd) => (libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, raw, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if fd.is_some() {
        // A child would share it with this process and its peers, whatever rights the child gave
        // up. Advice: kernels that do not take it leave things as they were. SAFETY: the mapping
        // just made.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
    }
    Ok((base.cast(), fd))
}

/// A memfd of `len` bytes, for ever.
#[cfg(not(miri))]
fn memfd(len: usize) -> io::Result<OwnedFd> {
    let fd = memfd::create(len)?;
    memfd::seal(&fd, memfd::FIXED_SIZE)?;
    Ok(fd)
}

/// Zeroed memory from the allocator: Miri has no `mmap` of files.
#[cfg(miri)]
fn map(len: usize, _: Sharing) -> io::Result<(*mut u8, Option<OwnedFd>)> {
    let layout = std::alloc::Layout::from_size_align(len, ALIGN).map_err(io::Error::other)?;
    // SAFETY: `len` > 0.
    let base = unsafe { std::alloc::alloc_zeroed(layout) };
    if base.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok((base, None)) }
}

impl Drop for HostBuffer {
    #[cfg(not(miri))]
    fn drop(&mut self) {
        if self.fd.is_some() {
            shares::remove(self.base.addr());
        }
        // SAFETY: the mapping of `new`; nothing of this value is used afterwards.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }

    #[cfg(miri)]
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.mapped, ALIGN).unwrap();
        // SAFETY: allocated by `map` with this layout.
        unsafe { std::alloc::dealloc(self.base, layout) };
    }
}
