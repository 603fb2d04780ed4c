//! Copies to or from memory of another process, by calls of the kernel.
//!
//! The kernel takes the pieces of such a call in their order and finishes each one before the next,
//! so copies to the same bytes have the result of copies one after the other. It ends at the first
//! piece that it cannot access. The first piece is the liveness word (`peer.rs`), so nothing else
//! is touched in another program.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::{LivenessWord, PeerList, PeerRange, Region};

/// Length of a liveness word in bytes.
const WORD: usize = size_of::<u64>();

/// Highest number of pieces on each side of a call, the liveness word included: 1,024 of both sides
/// together. The kernel takes twice as many, but they would take 150 us, and 32 KiB of the stack.
const SIDE: usize = 512;

/// The pieces on one side of a call.
struct Pieces {
    /// The first `count` elements are initialized.
    pieces: [MaybeUninit<libc::iovec>; SIDE],
    count: usize,
}

impl Pieces {
    #[inline(always)]
    fn new(first: libc::iovec) -> Self {
        let mut this = Self { pieces: [const { MaybeUninit::uninit() }; SIDE], count: 1 };
        this.pieces[0].write(first);
        this
    }

    #[inline]
    fn push(&mut self, piece: libc::iovec) -> Option<()> {
        self.pieces.get_mut(self.count)?.write(piece);
        self.count += 1;
        Some(())
    }

    /// The initialized pieces, as the kernel wants them.
    fn parts(&self) -> (*const libc::iovec, libc::c_ulong) {
        (self.pieces.as_ptr().cast(), self.count as libc::c_ulong)
    }
}

/// How much was added to a batch.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    local: usize,
    remote: usize,
}

/// Copies that one system call carries out, to another process (`TO_PEER`) or from it. Local and
/// remote pieces have as many bytes; the caller sees to that.
pub(crate) struct CopyBatch<'a, const TO_PEER: bool> {
    local: Pieces,
    remote: Pieces,
    pid: libc::pid_t,
    liveness: LivenessWord,
    lifetime: PhantomData<&'a [u8]>,
}

impl<const TO_PEER: bool> CopyBatch<'_, TO_PEER> {
    #[inline(always)]
    pub(crate) fn new(pid: i32, liveness: LivenessWord) -> Self {
        // `copy` has the word that the first local piece names.
        let word = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (local, remote) = (Pieces::new(word), Pieces::new(liveness_piece(liveness)));
        Self { local, remote, pid, liveness, lifetime: PhantomData }
    }

    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        (self.local.count, self.remote.count) = (1, 1);
    }

    /// Whether there is room for no further local piece.
    pub(crate) fn is_full(&self) -> bool {
        self.local.count == SIDE
    }

    /// Number of pieces of both sides, without the liveness words.
    pub(crate) fn pieces(&self) -> usize {
        self.local.count + self.remote.count - 2
    }

    /// The present end of the batch, for [`cut`](Self::cut).
    pub(crate) fn mark(&self) -> Mark {
        Mark { local: self.local.count, remote: self.remote.count }
    }

    /// Drops what was added since the mark was taken of this batch.
    pub(crate) fn cut(&mut self, mark: Mark) {
        self.local.count = self.local.count.min(mark.local);
        self.remote.count = self.remote.count.min(mark.remote);
    }

    /// Adds a part of a region as a local piece. If the batch writes to the region, the caller has
    /// checked that right. `None`, and nothing added, if there is no room, the part is out of
    /// bounds or the region is special.
    #[inline]
    pub(crate) fn push_region(&mut self, region: Region, offset: u64, len: u64) -> Option<()> {
        let (base, len) = region.part(offset, len)?.parts();
        self.push_local(base, len as usize)
    }

    #[inline]
    fn push_local(&mut self, base: *mut u8, len: usize) -> Option<()> {
        self.local.push(libc::iovec { iov_base: base.cast(), iov_len: len })
    }

    /// Adds `len` > 0 bytes from offset `at` of a remote range on, which is of the batch's process.
    /// If the batch writes to the range, the aligned word that holds the last byte is a piece of
    /// its own, after the others. `None` if there is no room, or the range does not hold the
    /// bytes; some may have been added.
    #[inline]
    pub(crate) fn push_range(&mut self, range: &PeerRange, at: u64, len: u64) -> Option<()> {
        let addr = range_of(range, at, len)?;
        if !TO_PEER {
            return self.remote.push(remote(addr, len));
        }
        let last = (addr.wrapping_add(len - 1) & !7).max(addr);
        let head = last - addr;
        if head > 0 {
            self.remote.push(remote(addr, head))?;
        }
        self.remote.push(remote(last, len - head))
    }

    /// Carries out all copies, in the order in which they were added. Returns the number of bytes
    /// that were copied, from the first one on. It is less than all if a piece cannot be accessed.
    ///
    /// # Errors
    /// Errors of the kernel: `EPERM`, `ESRCH`, `EFAULT`. `EFAULT` also if the process runs another
    /// program than the one that granted access. Nothing was written then. The caller must drop
    /// bytes that were read.
    pub(crate) fn copy(&mut self) -> io::Result<u64> {
        if cfg!(miri) {
            // Miri does not support these system calls.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let liveness = self.liveness;
        let mut word = if TO_PEER { liveness.value } else { 0 };
        self.local.pieces[0].write(libc::iovec { iov_base: (&raw mut word).cast(), iov_len: WORD });
        let (pid, (local, locals)) = (self.pid, self.local.parts());
        let (remote, remotes) = self.remote.parts();
        let n = if TO_PEER {
            // SAFETY: the first `locals` and `remotes` pieces are initialized. The local pieces are
            // a word of this function, bytes that are borrowed (`push_bytes`), or registered
            // memory, whose promise covers this call. They are only read. Only the kernel touches
            // the other pieces, in the other process.
            unsafe { libc::process_vm_writev(pid, local, locals, remote, remotes, 0) }
        } else {
            // SAFETY: the first `locals` and `remotes` pieces are initialized. The local pieces are
            // a word of this function, or registered memory, whose promise covers this call and
            // whose right to be written was checked. The kernel only reads the other pieces, in the
            // other process.
            unsafe { libc::process_vm_readv(pid, local, locals, remote, remotes, 0) }
        };
        let fault = || io::Error::from_raw_os_error(libc::EFAULT);
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        let copied = n.checked_sub(WORD).ok_or_else(fault)?;
        if word == liveness.value { Ok(copied as u64) } else { Err(fault()) }
    }
}

impl<'a> CopyBatch<'a, true> {
    /// Adds private bytes of this process as a local piece. `None` if there is no room.
    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) -> Option<()> {
        self.push_local(bytes.as_ptr().cast_mut(), bytes.len())
    }
}

impl<'a> CopyBatch<'a, false> {
    /// Adds private bytes of this process as a local piece. `None` if there is no room.
    pub(crate) fn push_bytes_mut(&mut self, bytes: &'a mut [u8]) -> Option<()> {
        self.push_local(bytes.as_mut_ptr(), bytes.len())
    }

    /// Adds `len` > 0 bytes from byte `at` of a list on, which is of the batch's process. `None` if
    /// there is no room, or the list does not hold the bytes; some may have been added.
    pub(crate) fn push_list(&mut self, list: &PeerList<'_>, at: u64, len: u64) -> Option<()> {
        let (mut skip, mut left) = (at, len);
        for piece in list.pieces {
            let inside = skip.min(u64::from(piece.len));
            skip -= inside;
            let n = left.min(u64::from(piece.len) - inside);
            if n > 0 {
                self.remote.push(remote(piece.addr.checked_add(inside)?, n))?;
                left -= n;
            }
        }
        (left == 0).then_some(())
    }
}

/// The address of `len` bytes from offset `at` of the range on. `None` if there are no such bytes.
#[inline]
fn range_of(peer: &PeerRange, at: u64, len: u64) -> Option<u64> {
    let fits = at.checked_add(len).is_some_and(|end| end <= peer.len) && len > 0;
    peer.addr.checked_add(at).filter(|addr| addr.checked_add(len).is_some() && fits)
}

/// The liveness word as a remote piece.
fn liveness_piece(liveness: LivenessWord) -> libc::iovec {
    remote(liveness.addr, WORD as u64)
}

/// A remote piece. Its address is valid in the other process only.
fn remote(addr: u64, len: u64) -> libc::iovec {
    let base = std::ptr::without_provenance_mut(addr as usize);
    libc::iovec { iov_base: base, iov_len: len as usize }
}
