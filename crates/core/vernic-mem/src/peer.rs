//! Copies between registered memory of this process and granted memory of another process.
//!
//! The local side is checked as for all other accesses. The owner of the remote side checked it
//! when it granted access, and the implementations of [`RemoteMemory`] check the bounds of the
//! grant. The caller makes sure that the grant is still valid: it has begun an access
//! ([`PeerRevocationWords::begin_access`](crate::PeerRevocationWords::begin_access)).

mod by_kernel;
mod copies;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::data::{CheckedAddress, list_too_short, refuse};
use crate::{
    Access, AccessError, Check, Memory, PdId, PeerMapping, PeerPiece, PeerRange, SgCursor, Sge,
};

pub use copies::PeerCopies;

/// Bytes per step of a copy through a bounce buffer. Copies from or to special regions (the null
/// region, the whole address space) need one.
const BOUNCE: usize = 4096;

/// Bytes of mapped memory that are copied between two checks of the revocation words, some 2 us. A
/// process that was stopped while copying may still write that much when it continues.
const PIECE: u64 = 16 << 10;

/// Why a copy failed.
#[derive(Debug)]
pub enum PeerCopyError {
    /// The local memory cannot be accessed.
    Local(AccessError),
    /// The memory of the other process cannot be accessed: an error of the kernel, or `EINVAL` if
    /// the range is out of bounds.
    Peer(io::Error),
    /// The grant was revoked during the copy.
    Revoked,
}

/// An atomic operation on 8 bytes (IBTA 9.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerAtomic {
    /// Store `swap` if the word equals `compare`.
    CmpSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Add to the word, wrapping.
    FetchAdd(u64),
}

impl PeerAtomic {
    /// Runs the operation and returns the old value of the word.
    fn run(self, word: &AtomicU64) -> u64 {
        match self {
            Self::CmpSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
            Self::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
        }
    }
}

impl From<AccessError> for PeerCopyError {
    fn from(error: AccessError) -> Self {
        Self::Local(error)
    }
}

/// The error for a range outside the grant.
#[cold]
fn outside() -> PeerCopyError {
    PeerCopyError::Peer(io::Error::from_raw_os_error(libc::EINVAL))
}

/// Memory of another process of this host, which this process was granted. Offsets count from the
/// first byte of the grant.
///
/// `holds` says whether the grant is still valid
/// ([`PeerAccess::is_valid`](crate::PeerAccess::is_valid)). It is called before each 16 KiB that
/// are written to mapped memory, after each 16 KiB that are read from it, and before each system
/// call.
pub trait RemoteMemory: fmt::Debug + Send + Sync {
    /// Copies a part of a message to offset `at`: an RDMA WRITE, or a part of one. The last aligned
    /// word is stored last.
    ///
    /// # Errors
    /// [`PeerCopyError`]; a part may have been copied.
    fn write(&self, from: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError>;

    /// Copies private bytes of this process to offset `at`. The last aligned word is stored last.
    ///
    /// # Errors
    /// [`PeerCopyError::Peer`].
    fn write_bytes(&self, bytes: &[u8], at: u64) -> Result<(), PeerCopyError>;

    /// Copies from offset `at` to a part of a message: an RDMA READ, a part of one, or the payload
    /// of a SEND that its receiver copies. The other process may change the bytes meanwhile.
    ///
    /// # Errors
    /// [`PeerCopyError`]; a part may have been copied.
    fn read(&self, to: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError>;

    /// Whether [`atomic`](Self::atomic) works at offset `at`.
    fn has_word(&self, at: u64) -> bool {
        let _ = at;
        false
    }

    /// Runs an atomic operation on the word at offset `at` and returns its old value. Only mapped
    /// memory supports atomics.
    ///
    /// # Errors
    /// [`PeerCopyError::Peer`]: the memory is not mapped, or the word is out of bounds or not
    /// aligned.
    fn atomic(&self, at: u64, op: PeerAtomic) -> Result<u64, PeerCopyError> {
        let _ = (at, op);
        Err(outside())
    }

    /// Whether the memory is mapped in this process: a copy makes no system call.
    fn is_mapped(&self) -> bool;

    /// Returns the range of addresses in the other process, if the kernel copies and the memory is
    /// one range. Messages there may be copied in lists ([`PeerCopies`]).
    fn range(&self) -> Option<&PeerRange> {
        None
    }
}

/// Says whether a grant is still valid.
pub type Holds<'a> = &'a dyn Fn() -> bool;

impl RemoteMemory for PeerMapping {
    fn write(&self, from: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError> {
        let to = self.region(true).ok_or_else(outside)?;
        let mut at = at;
        from.each_piece(Access::empty(), |checked, n| {
            if !holds() {
                return Err(PeerCopyError::Revoked);
            }
            if !to.contains(at, n) {
                return Err(outside());
            }
            if checked.region.transfer(checked.offset, to, at, n).is_none() {
                bounce(checked, n, |done, bytes| to.store(at + done, bytes).ok_or_else(outside))?;
            }
            at += n;
            Ok(())
        })
    }

    fn write_bytes(&self, bytes: &[u8], at: u64) -> Result<(), PeerCopyError> {
        self.region(true).and_then(|to| to.store(at, bytes)).ok_or_else(outside)
    }

    fn read(&self, to: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError> {
        let from = self.region(false).ok_or_else(outside)?;
        let mut at = at;
        to.each_piece(Access::LOCAL_WRITE, |checked, n| {
            if !from.contains(at, n) {
                return Err(outside());
            }
            if from.transfer(at, checked.region, checked.offset, n).is_none() {
                fill(checked, n, |done, bytes| from.load(at + done, bytes).ok_or_else(outside))?;
            }
            at += n;
            // The check comes after the copy. If it succeeds, all bytes that were read belonged to
            // the grant.
            if holds() { Ok(()) } else { Err(PeerCopyError::Revoked) }
        })
    }

    fn has_word(&self, at: u64) -> bool {
        self.with_word(at, |_| ()).is_some()
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn atomic(&self, at: u64, op: PeerAtomic) -> Result<u64, PeerCopyError> {
        self.with_word(at, |word| op.run(word)).ok_or_else(outside)
    }
}

/// A part of a message in registered memory of this process. It is checked as it is copied, so
/// **the calling thread keeps its lane until the copy is done**.
#[derive(Debug)]
pub struct LocalPart<'a> {
    memory: &'a Memory,
    pd: PdId,
    sges: &'a [Sge],
    cursor: &'a mut SgCursor,
    offset: u64,
    left: u64,
}

impl Memory {
    /// Returns a part of a message for a copy from or to [`RemoteMemory`]: the `len` bytes from
    /// byte `offset` on of the message that `sges` describes.
    pub fn part<'a>(
        &'a self,
        pd: PdId,
        sges: &'a [Sge],
        cursor: &'a mut SgCursor,
        offset: u64,
        len: u64,
    ) -> LocalPart<'a> {
        LocalPart { memory: self, pd, sges, cursor, offset, left: len }
    }
}

impl LocalPart<'_> {
    /// Finds the addresses of the part in this process, for another process to copy. Fills `pieces`
    /// from its start, and returns how many it filled. `None` if `pieces` is too short, or if the
    /// bytes have no fixed address: those of the null region or the whole address space.
    ///
    /// # Errors
    /// As for [`Memory::read_local`].
    pub fn locate(self, pieces: &mut [PeerPiece]) -> Result<Option<usize>, AccessError> {
        let (mut count, mut all) = (0, true);
        let named = self.each(Access::empty(), |checked, n| {
            let part = checked.region.part(checked.offset, n);
            match (part, pieces.get_mut(count), u32::try_from(n)) {
                (Some(part), Some(piece), Ok(len)) => {
                    *piece = PeerPiece { addr: part.addr() as u64, len };
                    count += 1;
                }
                _ => all = false,
            }
            Ok(())
        });
        match named {
            Ok(()) => Ok(all.then_some(count)),
            Err(PeerCopyError::Local(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Runs an atomic operation on the word at offset `at` of remote memory. Stores the word's old
    /// value in the part, which has 8 bytes. The part is checked before the operation runs, so that
    /// storing the result cannot fail.
    ///
    /// # Errors
    /// [`PeerCopyError`], as for [`Memory::write_local`] and [`RemoteMemory::atomic`]. A part in
    /// the region over the whole address space is also refused, because only the store itself
    /// would show whether its memory is mapped. Nothing has happened then.
    pub fn fetch(
        self,
        on: &dyn RemoteMemory,
        at: u64,
        op: PeerAtomic,
    ) -> Result<(), PeerCopyError> {
        // Each piece has at least one byte, so 8 bytes lie in at most 8 pieces.
        let mut sink = [None; 8];
        let mut places = sink.iter_mut();
        self.each(Access::LOCAL_WRITE, |checked, n| {
            if checked.region.is_address_space() {
                return Err(unmapped(checked, 0, n as usize));
            }
            if let Some(next) = places.next() {
                *next = Some((checked, n as usize));
            }
            Ok(())
        })?;
        let was = on.atomic(at, op)?.to_ne_bytes();
        let mut rest = was.as_slice();
        for (checked, n) in sink.into_iter().flatten() {
            let (now, after) = rest.split_at(n);
            // The address was checked, and stays mapped until the lane passes a barrier.
            let stored = checked.region.store(checked.offset, now);
            debug_assert!(stored.is_some());
            rest = after;
        }
        Ok(())
    }

    /// Checks each piece, and calls `f` with its address and length.
    #[inline]
    fn each(
        mut self,
        needs: Access,
        mut f: impl FnMut(CheckedAddress, u64) -> Result<(), PeerCopyError>,
    ) -> Result<(), PeerCopyError> {
        // The loop ends: each round completes an element of the list, or the part.
        while self.left > 0 {
            let (sge, inside) = self
                .cursor
                .seek(self.sges, self.offset)
                .ok_or_else(|| list_too_short(self.sges, self.offset, self.left))?;
            let n = self.left.min(u64::from(sge.length) - inside);
            let addr = sge.addr.wrapping_add(inside);
            let checked = self
                .memory
                .find_local(self.pd, sge.lkey, addr, n, needs)
                .map_err(|check| refuse(check, sge.lkey.value(), addr, n))?;
            f(checked, n)?;
            self.offset += n;
            self.left -= n;
        }
        Ok(())
    }

    /// Does the same as [`each`](Self::each), but cuts pieces to at most [`PIECE`] bytes.
    #[inline]
    fn each_piece(
        self,
        needs: Access,
        mut f: impl FnMut(CheckedAddress, u64) -> Result<(), PeerCopyError>,
    ) -> Result<(), PeerCopyError> {
        self.each(needs, |CheckedAddress { region, mut offset }, mut left| {
            while left > 0 {
                let n = left.min(PIECE);
                f(CheckedAddress { region, offset }, n)?;
                (offset, left) = (offset + n, left - n);
            }
            Ok(())
        })
    }
}

/// Reads a piece of a special region (the null region, the whole address space) through a bounce
/// buffer. `to` gets each buffer, and how many bytes came before it.
#[cold]
fn bounce(
    checked: CheckedAddress,
    len: u64,
    mut to: impl FnMut(u64, &[u8]) -> Result<(), PeerCopyError>,
) -> Result<(), PeerCopyError> {
    let mut buffer = [0; BOUNCE];
    let mut done = 0;
    while done < len {
        let part = &mut buffer[..(len - done).min(BOUNCE as u64) as usize];
        let loaded = checked.region.load(checked.offset + done, part);
        loaded.ok_or_else(|| unmapped(checked, done, part.len()))?;
        to(done, part)?;
        done += part.len() as u64;
    }
    Ok(())
}

/// Writes a piece of a special region (the null region, the whole address space) through a bounce
/// buffer. `from` fills each buffer, and gets how many bytes came before it.
#[cold]
fn fill(
    checked: CheckedAddress,
    len: u64,
    mut from: impl FnMut(u64, &mut [u8]) -> Result<(), PeerCopyError>,
) -> Result<(), PeerCopyError> {
    let mut buffer = [0; BOUNCE];
    let mut done = 0;
    while done < len {
        let part = &mut buffer[..(len - done).min(BOUNCE as u64) as usize];
        from(done, part)?;
        let stored = checked.region.store(checked.offset + done, part);
        stored.ok_or_else(|| unmapped(checked, done, part.len()))?;
        done += part.len() as u64;
    }
    Ok(())
}

/// The error for an address of the whole address space that is not mapped.
#[cold]
fn unmapped(checked: CheckedAddress, done: u64, len: usize) -> PeerCopyError {
    refuse(Check::Unmapped, 0, checked.offset + done, len as u64).into()
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
