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

/// Highest number of pieces of local memory in one system call.
const PIECES: usize = 16;

/// Highest number of pieces of remote memory in one system call that reads a list.
const LIST: usize = 30;

/// Length of a liveness word in bytes.
pub(super) const WORD: usize = size_of::<u64>();

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

    /// Checks that the process has this liveness word. Reads nothing else.
    ///
    /// # Errors
    /// Errors of the kernel for a read from that process: `EPERM`, `ESRCH`, `ENOSYS`. `EFAULT` if
    /// the process runs another program than the one with the liveness word.
    pub fn find_process(pid: i32, liveness: LivenessWord) -> io::Result<()> {
        Batch::<false>::new().read_list(&PeerList { pid, liveness, pieces: &[] }, 0)
    }

    /// The remote pieces for `len` bytes from byte `at` of the list on, after the liveness word.
    /// Also returns the number of pieces, liveness word included. `None` if the list does not hold
    /// the range.
    fn part(&self, at: u64, len: usize) -> Option<([libc::iovec; 1 + LIST], usize)> {
        let mut parts = [liveness_piece(self.liveness); 1 + LIST];
        let (mut skip, mut left, mut count) = (at, len as u64, 1);
        for piece in self.pieces {
            let inside = skip.min(u64::from(piece.len));
            skip -= inside;
            let n = left.min(u64::from(piece.len) - inside);
            if n > 0 {
                let addr = piece.addr.checked_add(inside)?;
                *parts.get_mut(count)? = remote(addr, n);
                (count, left) = (count + 1, left - n);
            }
        }
        (left == 0).then_some((parts, count))
    }
}

/// Local pieces that one system call copies to another process (`TO_PEER`), or from it.
pub(crate) struct Batch<'a, const TO_PEER: bool> {
    /// The pieces; the first element is reserved for the liveness word.
    pieces: [libc::iovec; 1 + PIECES],
    count: usize,
    bytes: usize,
    lifetime: std::marker::PhantomData<&'a mut [u8]>,
}

impl<const TO_PEER: bool> Batch<'_, TO_PEER> {
    pub(crate) fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { pieces: [none; 1 + PIECES], count: 0, bytes: 0, lifetime: std::marker::PhantomData }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == PIECES
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a part of a region. If the batch writes to the region, the caller has checked that
    /// right. `None`, and nothing added, if the part is out of bounds or the region is special.
    pub(crate) fn push_region(&mut self, region: Region, offset: u64, len: u64) -> Option<()> {
        let (base, len) = region.part(offset, len)?.parts();
        self.push(base, len as usize);
        Some(())
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        debug_assert!(!self.is_full());
        self.pieces[1 + self.count] = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.count += 1;
        self.bytes += len;
    }

    fn remote_range(&self, peer: &PeerRange, at: u64) -> io::Result<(u64, u64)> {
        let len = self.bytes as u64;
        let addr = range_of(peer, at, len);
        addr.map(|addr| (addr, len)).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Runs `call` with the local pieces. `word` is the first local piece, because the remote side
    /// begins with its liveness word.
    fn copy(
        &mut self,
        word: &mut u64,
        call: impl FnOnce(*const libc::iovec, libc::c_ulong) -> isize,
    ) -> io::Result<()> {
        let (count, bytes) = (1 + self.count, WORD + self.bytes);
        (self.count, self.bytes) = (0, 0);
        self.pieces[0] = libc::iovec { iov_base: (&raw mut *word).cast(), iov_len: WORD };
        if cfg!(miri) {
            // Miri does not support these system calls.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let n = call(self.pieces.as_ptr(), count as libc::c_ulong);
        match n {
            ..0 => Err(io::Error::last_os_error()),
            _ if n as usize == bytes => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }
}

impl<'a> Batch<'a, true> {
    /// Adds private bytes of this process.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) {
        self.push(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Copies all pieces to offset `at` of the remote range, in ascending order. The aligned word
    /// that holds the last byte is a remote piece of its own, after the others. Empties the batch.
    ///
    /// # Errors
    /// Errors of the kernel: `EPERM`, `ESRCH`, `EFAULT`. `EFAULT` also if only a part was copied,
    /// and with nothing copied if the process runs another program than the one that granted
    /// access. `EINVAL` if the remote range does not hold the bytes.
    pub(crate) fn write_to(&mut self, peer: &PeerRange, at: u64) -> io::Result<()> {
        let (addr, len) = self.remote_range(peer, at)?;
        let last = (addr.wrapping_add(len - 1) & !7).max(addr);
        let head = last - addr;
        let remote = [liveness_piece(peer.liveness), remote(addr, head), remote(last, len - head)];
        let mut word = peer.liveness.value;
        self.copy(&mut word, |local, n| {
            // SAFETY: the local pieces are a word of this function, bytes that are borrowed
            // (`push_bytes`), or registered memory, whose promise covers this call. They are only
            // read. Only the kernel touches the other pieces, in the other process.
            unsafe { libc::process_vm_writev(peer.pid, local, n, remote.as_ptr(), 3, 0) }
        })
    }
}

impl<'a> Batch<'a, false> {
    /// Adds private bytes of this process.
    pub(crate) fn push_bytes(&mut self, bytes: &'a mut [u8]) {
        self.push(bytes.as_mut_ptr(), bytes.len());
    }

    /// Copies from offset `at` of the remote range to all pieces. Empties the batch.
    ///
    /// # Errors
    /// As for [`write_to`](Self::write_to). The caller must drop the bytes that were read after
    /// `EFAULT`: they may come from another program.
    pub(crate) fn read_from(&mut self, peer: &PeerRange, at: u64) -> io::Result<()> {
        let (addr, len) = self.remote_range(peer, at)?;
        self.read((peer.pid, peer.liveness), &[liveness_piece(peer.liveness), remote(addr, len)])
    }

    /// Does the same as [`read_from`](Self::read_from), from byte `at` of a list on.
    ///
    /// # Errors
    /// As for [`read_from`](Self::read_from).
    pub(crate) fn read_list(&mut self, list: &PeerList<'_>, at: u64) -> io::Result<()> {
        let part = list.part(at, self.bytes);
        let (parts, n) = part.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.read((list.pid, list.liveness), &parts[..n])
    }

    /// Copies from remote pieces, the first of which is the liveness word, and checks that word.
    fn read(
        &mut self,
        (pid, liveness): (i32, LivenessWord),
        from: &[libc::iovec],
    ) -> io::Result<()> {
        let mut word = 0;
        self.copy(&mut word, |local, n| {
            let (pieces, count) = (from.as_ptr(), from.len() as libc::c_ulong);
            // SAFETY: the local pieces are a word of this function, bytes that are borrowed mutably
            // (`push_bytes`), or registered memory, whose promise covers this call and whose right
            // to be written was checked. The kernel only reads the other pieces, in the other
            // process.
            unsafe { libc::process_vm_readv(pid, local, n, pieces, count, 0) }
        })?;
        let is_same = word == liveness.value;
        is_same.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
    }
}

/// The address of `len` bytes from offset `at` of the range on. `None` if there are no such bytes.
#[inline]
pub(super) fn range_of(peer: &PeerRange, at: u64, len: u64) -> Option<u64> {
    let fits = at.checked_add(len).is_some_and(|end| end <= peer.len) && len > 0;
    peer.addr.checked_add(at).filter(|addr| addr.checked_add(len).is_some() && fits)
}

/// The liveness word as a remote piece.
pub(super) fn liveness_piece(liveness: LivenessWord) -> libc::iovec {
    remote(liveness.addr, WORD as u64)
}

/// A remote piece. Its address is valid in the other process only.
pub(super) fn remote(addr: u64, len: u64) -> libc::iovec {
    let base = std::ptr::without_provenance_mut(addr as usize);
    libc::iovec { iov_base: base, iov_len: len as usize }
}
