//! Page-aligned, zeroed memory of this process, for safe APIs to register.

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

/// A buffer of page-aligned, zeroed memory. If the system has memfds, the memory lies in one, so
/// that a peer process on this host can map it. The memory is freed on drop.
///
/// A child of `fork` does not inherit the memory. If the child accesses it, SIGSEGV ends the child.
/// The same applies to registered memory after `ibv_fork_init`. Copy what a child must read before
/// the fork, or put it into a [`HostBuffer::private`].
///
/// Another process receives the memfd only if the whole buffer is registered as one region. If a
/// region is a part of the buffer, the kernel copies for the other process. Then each request takes
/// 0.3 us and more, and atomics use packets. So use separate buffers for memory that peers use at
/// different times or with different rights.
///
/// The buffer is meant to be registered, so its bytes may change at any time. There are no
/// references into it, only copies ([`HostBuffer::read_at`], [`HostBuffer::write_at`]).
pub struct HostBuffer {
    region: Region,
    base: *mut u8,
    mapped: usize,
    fd: Option<Arc<OwnedFd>>,
}

// SAFETY: the mapping belongs to this value. Only racy copies access it, which any number of
// threads may do at once.
unsafe impl Send for HostBuffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `len` zeroed bytes. No page takes memory until it is used.
    ///
    /// # Errors
    /// Errors of `mmap`, typically `ENOMEM`; `InvalidInput` for more than [`isize::MAX`] bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::with(len, Sharing::Memfd)
    }

    /// Does the same as [`new`](Self::new), but the memory belongs to this process alone. It takes
    /// no file descriptor, and a child of `fork` has a copy of it.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
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
        // SAFETY: `base..base + len` is a mapping of this value, readable and writable, without
        // references, until drop. This copy of the region does not outlive the mapping. A caller
        // that registers the memory makes its own promise.
        let region = unsafe { Region::new(base, len as u64) };
        Ok(Self { region, base, mapped, fd })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.len() as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.region.len() == 0
    }

    /// Address of the first byte: page-aligned, never null, valid until the buffer is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.base
    }

    /// The memfd that holds the memory from offset 0 on, if it is shared. Its size is sealed.
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_deref().map(AsFd::as_fd)
    }

    /// Copies `dst.len()` bytes from `offset` on. If a peer writes them at the same time, each
    /// aligned 8-byte word has its old or its new value.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the range is out of bounds; nothing is
    /// copied.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> io::Result<()> {
        self.region.load(offset as u64, dst).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Copies `src` to `offset`, in ascending order. The last word is stored last, as a release.
    ///
    /// # Errors
    /// [`WriteZero`](io::ErrorKind::WriteZero) if the range is out of bounds; nothing is copied.
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

/// Whether other processes can map the memory.
#[derive(Clone, Copy)]
enum Sharing {
    /// Every process that has the memfd can map it. If the system has no memfds, only this process
    /// has the memory.
    Memfd,
    /// Only this process has the memory.
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
        // Without this advice, a child would share the memory with this process and its peers, even
        // if the child gave up rights. Kernels that do not know the advice ignore it.
        // SAFETY: the range is the mapping made above.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
    }
    Ok((base.cast(), fd))
}

/// Creates a memfd of `len` bytes. Its size cannot change any more.
#[cfg(not(miri))]
fn memfd(len: usize) -> io::Result<OwnedFd> {
    let fd = memfd::create(len)?;
    memfd::seal(&fd, memfd::FIXED_SIZE)?;
    Ok(fd)
}

/// Allocates zeroed memory from the allocator, because Miri has no `mmap` of files.
#[cfg(miri)]
fn map(len: usize, _: Sharing) -> io::Result<(*mut u8, Option<OwnedFd>)> {
    let layout = std::alloc::Layout::from_size_align(len, ALIGN).map_err(io::Error::other)?;
    // SAFETY: `len` > 0, so the layout has a size.
    let base = unsafe { std::alloc::alloc_zeroed(layout) };
    if base.is_null() { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok((base, None)) }
}

impl Drop for HostBuffer {
    #[cfg(not(miri))]
    fn drop(&mut self) {
        if self.fd.is_some() {
            shares::remove(self.base.addr());
        }
        // SAFETY: the range is the mapping made by `with`; nothing uses this value afterwards.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }

    #[cfg(miri)]
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.mapped, ALIGN).unwrap();
        // SAFETY: the memory was allocated by `map` with this layout.
        unsafe { std::alloc::dealloc(self.base, layout) };
    }
}
