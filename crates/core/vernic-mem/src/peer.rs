//! Copies between registered memory of this process and granted memory of another process.
//!
//! The local side is checked as for all other accesses. The owner of the remote side checked it
//! when it granted access, and this module checks the bounds of the grant ([`PeerRegion`]). The
//! caller makes sure that the grant is still valid: it has begun an access
//! ([`PeerRevocationWords::begin_access`](crate::PeerRevocationWords::begin_access)).

mod copies;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::data::{CheckedAddress, list_too_short, refuse};
use crate::racy::Batch;
use crate::{
    Access, AccessError, Check, Memory, PdId, PeerList, PeerMapping, PeerPiece, PeerRange,
    SgCursor, Sge,
};

pub use copies::PeerCopies;

/// Bytes per step of a copy through a bounce buffer. Copies from or to special regions (the null
/// region, the whole address space) need one.
const BOUNCE: usize = 4096;

/// Bytes of mapped memory that are copied between two checks of the revocation words, some 2 us. A
/// process that was stopped while copying may still write that much when it continues.
const PIECE: u64 = 16 << 10;

/// A granted region of another process. Offsets count from the first byte of the grant.
#[derive(Debug)]
pub enum PeerRegion {
    /// The region is mapped in this process.
    Mapped(PeerMapping),
    /// The kernel copies between the two processes.
    ByKernel(PeerRange),
}

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

impl PeerRegion {
    /// Copies private bytes of this process to offset `at`. The last aligned word is stored last.
    ///
    /// # Errors
    /// [`PeerCopyError::Peer`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), PeerCopyError> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Mapped(memory) => {
                memory.region(true).and_then(|r| r.store(at, bytes)).ok_or_else(outside)
            }
            Self::ByKernel(peer) => {
                let mut batch = Batch::<true>::new();
                batch.push_bytes(bytes);
                batch.write_to(peer, at).map_err(PeerCopyError::Peer)
            }
        }
    }

    /// Whether [`atomic`](Self::atomic) works at offset `at`.
    pub fn has_word(&self, at: u64) -> bool {
        matches!(self, Self::Mapped(memory) if memory.with_word(at, |_| ()).is_some())
    }

    /// Runs an atomic operation on the word at offset `at` and returns its old value. Only mapped
    /// memory supports atomics.
    ///
    /// # Errors
    /// [`PeerCopyError::Peer`]: the memory is not mapped, or the word is out of bounds or not
    /// aligned.
    pub fn atomic(&self, at: u64, op: PeerAtomic) -> Result<u64, PeerCopyError> {
        match self {
            Self::Mapped(memory) => memory.with_word(at, |word| op.run(word)),
            Self::ByKernel(_) => None,
        }
        .ok_or_else(outside)
    }
}

impl Memory {
    /// Copies a part of a message to offset `at` of the remote region: an RDMA WRITE, or a part of
    /// one. The part is the `len` bytes from byte `offset` on of the message that `sges` describes.
    /// `holds` returns whether the grant is still valid
    /// ([`PeerAccess::is_valid`](crate::PeerAccess::is_valid)). It is called before each 16 KiB of
    /// mapped memory, and before each system call.
    ///
    /// # Errors
    /// [`PeerCopyError`]; a part may have been copied.
    #[expect(clippy::too_many_arguments, reason = "as read_local, and where to")]
    pub fn write_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        len: u64,
        (to, at): (&PeerRegion, u64),
        holds: impl Fn() -> bool,
    ) -> Result<(), PeerCopyError> {
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left: len };
        match to {
            PeerRegion::Mapped(memory) => {
                let to = memory.region(true).ok_or_else(outside)?;
                let mut at = at;
                pieces.each_part(Access::empty(), |checked, n| {
                    if !holds() {
                        return Err(PeerCopyError::Revoked);
                    }
                    if !to.contains(at, n) {
                        return Err(outside());
                    }
                    if checked.region.transfer(checked.offset, to, at, n).is_none() {
                        bounce(checked, n, |done, bytes| {
                            to.store(at + done, bytes).ok_or_else(outside)
                        })?;
                    }
                    at += n;
                    Ok(())
                })
            }
            PeerRegion::ByKernel(peer) => write_process(pieces, peer, at, holds),
        }
    }

    /// Copies from offset `at` of the remote region to a part of a message: an RDMA READ, or a part
    /// of one. The part is the `len` bytes from byte `offset` on of the message that `sges`
    /// describes. `holds` is as for [`write_peer`](Self::write_peer).
    ///
    /// # Errors
    /// [`PeerCopyError`]; a part may have been copied.
    #[expect(clippy::too_many_arguments, reason = "as write_local, and where from")]
    pub fn read_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        len: u64,
        (from, at): (&PeerRegion, u64),
        holds: impl Fn() -> bool,
    ) -> Result<(), PeerCopyError> {
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left: len };
        match from {
            PeerRegion::Mapped(memory) => {
                let from = memory.region(false).ok_or_else(outside)?;
                let mut at = at;
                pieces.each_part(Access::LOCAL_WRITE, |checked, n| {
                    if !from.contains(at, n) {
                        return Err(outside());
                    }
                    if from.transfer(at, checked.region, checked.offset, n).is_none() {
                        fill(checked, n, |done, bytes| {
                            from.load(at + done, bytes).ok_or_else(outside)
                        })?;
                    }
                    at += n;
                    // The check comes after the copy. If it succeeds, all bytes that were read
                    // belonged to the grant.
                    if holds() { Ok(()) } else { Err(PeerCopyError::Revoked) }
                })
            }
            PeerRegion::ByKernel(peer) => {
                read_process(pieces, at, holds, |batch, at| batch.read_from(peer, at))
            }
        }
    }

    /// Finds the addresses of a part of a message in this process, for another process to copy
    /// ([`pull`](Self::pull)). The part is the `len` bytes from byte `offset` on of the message
    /// that `sges` describes. Fills `pieces` from its start, and returns how many it filled. `None`
    /// if `pieces` is too short, or if the bytes have no fixed address: those of the null region or
    /// the whole address space.
    ///
    /// # Errors
    /// As for [`read_local`](Self::read_local).
    pub fn locate(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        len: u64,
        pieces: &mut [PeerPiece],
    ) -> Result<Option<usize>, AccessError> {
        let (mut count, mut all) = (0, true);
        let list = Pieces { memory: self, pd, sges, cursor, offset, left: len };
        let named = list.each(Access::empty(), |checked, n| {
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

    /// Copies all bytes of a list of another process's memory to the message that `sges` describes,
    /// from byte `offset` on. The other process may have changed the bytes meanwhile. The caller
    /// checks that after the copy, with `is_valid_after_read` of
    /// [`PeerRevocationWords`](crate::PeerRevocationWords).
    ///
    /// # Errors
    /// [`PeerCopyError`]; a part may have been copied.
    pub fn pull(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        from: &PeerList<'_>,
    ) -> Result<(), PeerCopyError> {
        let left = from.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left };
        read_process(pieces, 0, || true, |batch, at| batch.read_list(from, at))
    }

    /// Runs an atomic operation on the word at offset `at` of the remote region. Stores the word's
    /// old value in the first 8 bytes of the message that `sges` describes. The list is checked
    /// before the operation runs, so that storing the result cannot fail. As for every access,
    /// **the calling thread keeps its lane until the call returns**.
    ///
    /// # Errors
    /// [`PeerCopyError`], as for [`write_local`](Self::write_local) and [`PeerRegion::atomic`]. A
    /// list in the region over the whole address space is also refused, because only the store
    /// itself would show whether its memory is mapped. Nothing has happened then.
    pub fn atomic_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        (on, at): (&PeerRegion, u64),
        op: PeerAtomic,
    ) -> Result<(), PeerCopyError> {
        // Each piece has at least one byte, so 8 bytes lie in at most 8 pieces.
        let mut sink = [None; 8];
        let mut places = sink.iter_mut();
        let pieces = Pieces { memory: self, pd, sges, cursor, offset: 0, left: 8 };
        pieces.each(Access::LOCAL_WRITE, |checked, n| {
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
}

/// The pieces of registered memory that hold a part of a message.
struct Pieces<'a> {
    memory: &'a Memory,
    pd: PdId,
    sges: &'a [Sge],
    cursor: &'a mut SgCursor,
    offset: u64,
    left: u64,
}

impl Pieces<'_> {
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
}

impl Pieces<'_> {
    /// Does the same as [`each`](Self::each), but cuts pieces to at most [`PIECE`] bytes.
    #[inline]
    fn each_part(
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

fn write_process(
    pieces: Pieces<'_>,
    peer: &PeerRange,
    mut at: u64,
    holds: impl Fn() -> bool,
) -> Result<(), PeerCopyError> {
    let mut batch = Batch::<true>::new();
    let flush = |batch: &mut Batch<'_, true>, at: &mut u64| -> Result<(), PeerCopyError> {
        let bytes = batch.bytes() as u64;
        if bytes > 0 {
            if !holds() {
                return Err(PeerCopyError::Revoked);
            }
            batch.write_to(peer, *at).map_err(PeerCopyError::Peer)?;
            *at += bytes;
        }
        Ok(())
    };
    pieces.each(Access::empty(), |checked, n| {
        if batch.is_full() {
            flush(&mut batch, &mut at)?;
        }
        if batch.push_region(checked.region, checked.offset, n).is_none() {
            flush(&mut batch, &mut at)?;
            bounce(checked, n, |_, bytes| {
                let mut one = Batch::<true>::new();
                one.push_bytes(bytes);
                flush(&mut one, &mut at)
            })?;
        }
        Ok(())
    })?;
    flush(&mut batch, &mut at)
}

/// Copies remote memory to local pieces, in batches. `read` fills a batch from a given offset of
/// the remote memory; `at` is the offset of the first batch.
fn read_process(
    pieces: Pieces<'_>,
    mut at: u64,
    holds: impl Fn() -> bool,
    read: impl Fn(&mut Batch<'_, false>, u64) -> io::Result<()>,
) -> Result<(), PeerCopyError> {
    let mut batch = Batch::<false>::new();
    let flush = |batch: &mut Batch<'_, false>, at: &mut u64| -> Result<(), PeerCopyError> {
        let bytes = batch.bytes() as u64;
        if bytes > 0 {
            if !holds() {
                return Err(PeerCopyError::Revoked);
            }
            read(batch, *at).map_err(PeerCopyError::Peer)?;
            *at += bytes;
        }
        Ok(())
    };
    pieces.each(Access::LOCAL_WRITE, |checked, n| {
        if batch.is_full() {
            flush(&mut batch, &mut at)?;
        }
        if batch.push_region(checked.region, checked.offset, n).is_none() {
            flush(&mut batch, &mut at)?;
            fill(checked, n, |_, bytes| {
                let mut one = Batch::<false>::new();
                one.push_bytes(bytes);
                flush(&mut one, &mut at)
            })?;
        }
        Ok(())
    })?;
    flush(&mut batch, &mut at)
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
