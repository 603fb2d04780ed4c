//! Copies between registered memory of this process and memory of another one that granted access.
//!
//! The local side is checked as ever. The other side is checked by its owner when access was
//! granted, and by the bounds of the [`Reach`] here; whether the access still stands is the gates'
//! to say, and whoever calls is inside them ([`PeerGates::enter`](crate::PeerGates::enter)).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::data::{CheckedAddress, list_too_short, refuse};
use crate::racy::Batch;
use crate::{
    Access, AccessError, Check, Memory, PdId, PeerList, PeerMemory, PeerPiece, PeerProcess,
    SgCursor, Sge,
};

/// Bytes copied at a time where a buffer is between: pieces of special regions.
const BOUNCE: usize = 4096;

/// Bytes of mapped memory that are copied between two looks at the gates, some 2 us: what a process
/// that is stopped while it copies may still write when it goes on.
const PIECE: u64 = 16 << 10;

/// How another process's memory is reached. Offsets count from the first byte that was granted.
#[derive(Debug)]
pub enum Reach {
    /// Mapped here.
    Mapped(PeerMemory),
    /// By the kernel, which copies between the processes.
    Process(PeerProcess),
}

/// Why a copy failed.
#[derive(Debug)]
pub enum PeerFault {
    /// The local memory refuses.
    Local(AccessError),
    /// The other process's memory cannot be reached: what the kernel says, or `EINVAL` out of
    /// bounds.
    Peer(io::Error),
    /// Access has ended meanwhile.
    Closed,
}

/// An atomic on 8 bytes (IBTA 9.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordOp {
    /// Store `swap` if the word is `compare`.
    CmpSwap {
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd(u64),
}

impl WordOp {
    /// Runs it and returns what the word was.
    fn run(self, word: &AtomicU64) -> u64 {
        match self {
            Self::CmpSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
            Self::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
        }
    }
}

impl From<AccessError> for PeerFault {
    fn from(error: AccessError) -> Self {
        Self::Local(error)
    }
}

/// Out of the range that was granted.
#[cold]
fn outside() -> PeerFault {
    PeerFault::Peer(io::Error::from_raw_os_error(libc::EINVAL))
}

impl Reach {
    /// Stores bytes of ours at `at`: the last aligned word last.
    ///
    /// # Errors
    /// [`PeerFault::Peer`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), PeerFault> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Mapped(memory) => {
                memory.region(true).and_then(|r| r.store(at, bytes)).ok_or_else(outside)
            }
            Self::Process(peer) => {
                let mut batch = Batch::<true>::new();
                batch.push_bytes(bytes);
                batch.write_to(peer, at).map_err(PeerFault::Peer)
            }
        }
    }

    /// Whether [`atomic`](Self::atomic) can be run there.
    pub fn has_word(&self, at: u64) -> bool {
        matches!(self, Self::Mapped(memory) if memory.with_word(at, |_| ()).is_some())
    }

    /// Runs an atomic on the word at `at` and returns what it was. Only mapped memory has them.
    ///
    /// # Errors
    /// [`PeerFault::Peer`]: not mapped, out of bounds, or not aligned in memory.
    pub fn atomic(&self, at: u64, op: WordOp) -> Result<u64, PeerFault> {
        match self {
            Self::Mapped(memory) => memory.with_word(at, |word| op.run(word)),
            Self::Process(_) => None,
        }
        .ok_or_else(outside)
    }
}

impl Memory {
    /// Copies `len` bytes of the message that `sges` describes, from byte `offset` on, to `at`: an
    /// RDMA WRITE, or a part of it. `holds` says whether access still stands
    /// ([`Visit::holds`](crate::Visit::holds)), and is asked before each 16 KiB of mapped memory,
    /// and each call of the kernel.
    ///
    /// # Errors
    /// [`PeerFault`]; a part may have been copied.
    #[expect(clippy::too_many_arguments, reason = "as read_local, and where to")]
    pub fn write_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        len: u64,
        (to, at): (&Reach, u64),
        holds: impl Fn() -> bool,
    ) -> Result<(), PeerFault> {
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left: len };
        match to {
            Reach::Mapped(memory) => {
                let to = memory.region(true).ok_or_else(outside)?;
                let mut at = at;
                pieces.each_part(Access::empty(), |checked, n| {
                    if !holds() {
                        return Err(PeerFault::Closed);
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
            Reach::Process(peer) => write_process(pieces, peer, at, holds),
        }
    }

    /// Copies `len` bytes from `at` to the message that `sges` describes, from byte `offset` on: an
    /// RDMA READ, or a part of it. `holds` as for [`write_peer`](Self::write_peer).
    ///
    /// # Errors
    /// [`PeerFault`]; a part may have been copied.
    #[expect(clippy::too_many_arguments, reason = "as write_local, and where from")]
    pub fn read_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        len: u64,
        (from, at): (&Reach, u64),
        holds: impl Fn() -> bool,
    ) -> Result<(), PeerFault> {
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left: len };
        match from {
            Reach::Mapped(memory) => {
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
                    // Afterwards: what was read is what was granted.
                    if holds() { Ok(()) } else { Err(PeerFault::Closed) }
                })
            }
            Reach::Process(peer) => {
                read_process(pieces, at, holds, |batch, at| batch.read_from(peer, at))
            }
        }
    }

    /// Where `len` bytes of the message that `sges` describes lie in this process, from byte
    /// `offset` on, for another process to copy ([`pull`](Self::pull)): fills `pieces` from the
    /// first on and returns how many there are. `None` if there are not enough of them, or where
    /// the bytes are in no memory of their own: the null region, the whole address space.
    ///
    /// # Errors
    /// As [`read_local`](Self::read_local).
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
            Err(PeerFault::Local(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Copies all bytes of a list of another process's memory to the message that `sges` describes,
    /// from byte `offset` on. Whether they still are what the other process meant is for the caller
    /// to find out afterwards ([`PeerGates::still_lets`](crate::PeerGates::still_lets)).
    ///
    /// # Errors
    /// [`PeerFault`]; a part may have been copied.
    pub fn pull(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        from: &PeerList<'_>,
    ) -> Result<(), PeerFault> {
        let left = from.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let pieces = Pieces { memory: self, pd, sges, cursor, offset, left };
        read_process(pieces, 0, || true, |batch, at| batch.read_list(from, at))
    }

    /// Runs an atomic on the word at `at` of another process's memory and stores what it was into
    /// the first 8 bytes of the message that `sges` describes. The place for it is found before, so
    /// that nothing can go wrong once the atomic has run: **the lane must not pass a barrier
    /// meanwhile**, as with any access.
    ///
    /// # Errors
    /// [`PeerFault`]: as [`write_local`](Self::write_local) and [`Reach::atomic`]; local too for a
    /// list that names the whole address space, where only the attempt would tell. Nothing has
    /// happened then.
    pub fn atomic_peer(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        (on, at): (&Reach, u64),
        op: WordOp,
    ) -> Result<(), PeerFault> {
        // Pieces of a list are of a byte at least.
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
            // Inside the region, as was checked, and mapped until the lane has passed.
            let stored = checked.region.store(checked.offset, now);
            debug_assert!(stored.is_some());
            rest = after;
        }
        Ok(())
    }
}

/// The pieces of a part of a message.
struct Pieces<'a> {
    memory: &'a Memory,
    pd: PdId,
    sges: &'a [Sge],
    cursor: &'a mut SgCursor,
    offset: u64,
    left: u64,
}

impl Pieces<'_> {
    /// Runs `f` with each piece, checked, and its length.
    #[inline]
    fn each(
        mut self,
        needs: Access,
        mut f: impl FnMut(CheckedAddress, u64) -> Result<(), PeerFault>,
    ) -> Result<(), PeerFault> {
        // Each round ends a piece of the list or the part.
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
    /// As [`each`](Self::each), with parts of pieces of [`PIECE`] bytes at most.
    #[inline]
    fn each_part(
        self,
        needs: Access,
        mut f: impl FnMut(CheckedAddress, u64) -> Result<(), PeerFault>,
    ) -> Result<(), PeerFault> {
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

/// Hands out a piece of a special region through a buffer; `to` gets how much was before.
#[cold]
fn bounce(
    checked: CheckedAddress,
    len: u64,
    mut to: impl FnMut(u64, &[u8]) -> Result<(), PeerFault>,
) -> Result<(), PeerFault> {
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

/// Fills a piece of a special region through a buffer; `from` gets how much was before.
#[cold]
fn fill(
    checked: CheckedAddress,
    len: u64,
    mut from: impl FnMut(u64, &mut [u8]) -> Result<(), PeerFault>,
) -> Result<(), PeerFault> {
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

/// Local memory of the whole address space that is not there.
#[cold]
fn unmapped(checked: CheckedAddress, done: u64, len: usize) -> PeerFault {
    refuse(Check::Unmapped, 0, checked.offset + done, len as u64).into()
}

fn write_process(
    pieces: Pieces<'_>,
    peer: &PeerProcess,
    mut at: u64,
    holds: impl Fn() -> bool,
) -> Result<(), PeerFault> {
    let mut batch = Batch::<true>::new();
    let flush = |batch: &mut Batch<'_, true>, at: &mut u64| -> Result<(), PeerFault> {
        let bytes = batch.bytes() as u64;
        if bytes > 0 {
            if !holds() {
                return Err(PeerFault::Closed);
            }
            batch.write_to(peer, *at).map_err(PeerFault::Peer)?;
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

/// Copies to local pieces what `read` copies to a batch, from byte `at` on.
fn read_process(
    pieces: Pieces<'_>,
    mut at: u64,
    holds: impl Fn() -> bool,
    read: impl Fn(&mut Batch<'_, false>, u64) -> io::Result<()>,
) -> Result<(), PeerFault> {
    let mut batch = Batch::<false>::new();
    let flush = |batch: &mut Batch<'_, false>, at: &mut u64| -> Result<(), PeerFault> {
        let bytes = batch.bytes() as u64;
        if bytes > 0 {
            if !holds() {
                return Err(PeerFault::Closed);
            }
            read(batch, *at).map_err(PeerFault::Peer)?;
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
