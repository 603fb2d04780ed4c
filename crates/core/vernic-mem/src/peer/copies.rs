//! Copies of several messages to or from granted memory, by one call of the kernel.
//!
//! A call costs 0.3 us and more, and each further piece 0.15 us, so small messages that follow each
//! other go together. Their order is kept: the kernel finishes each piece before the next.

use std::io;

use crate::racy::CopyBatch;
use crate::{Access, Memory, PdId, PeerRange, SgCursor, Sge};

/// Copies of whole messages between this process and one granted range: RDMA WRITEs (`TO_PEER`) or
/// RDMA READs. Made on the stack, where it takes 16 KiB, and used at once: memory is checked when a
/// message is added. **The calling thread keeps its lane until the copies are done.**
pub struct PeerCopies<'a, const TO_PEER: bool> {
    memory: &'a Memory,
    pd: PdId,
    range: PeerRange,
    batch: CopyBatch<'a, TO_PEER>,
}

impl<const TO_PEER: bool> std::fmt::Debug for PeerCopies<'_, TO_PEER> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerCopies").field("pieces", &self.batch.pieces()).finish_non_exhaustive()
    }
}

impl<'a, const TO_PEER: bool> PeerCopies<'a, TO_PEER> {
    /// No copies yet, between memory that the domain may use and the granted range.
    #[inline(always)]
    pub fn new(memory: &'a Memory, pd: PdId, peer: &PeerRange) -> Self {
        Self { memory, pd, range: *peer, batch: CopyBatch::new(peer.pid, peer.liveness) }
    }

    /// Number of pieces of local and remote memory that the kernel gets.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.batch.pieces()
    }

    /// Adds the first `len` bytes of the message that `sges` describes, and offset `at` of the
    /// granted range. Returns false, and adds nothing, if the message cannot be copied so: it is
    /// empty, there is no room for its pieces, its local memory cannot be accessed or has no fixed
    /// address (the null region, the whole address space), or the range does not hold it.
    #[inline]
    pub fn push(&mut self, sges: &[Sge], len: u64, at: u64) -> bool {
        let needs = if TO_PEER { Access::empty() } else { Access::LOCAL_WRITE };
        let cursor = &mut SgCursor::default();
        let pieces = self.memory.part(self.pd, sges, cursor, 0, len);
        self.push_whole(at, len, |batch| {
            let added = pieces.each(needs, |checked, n| {
                let part = batch.push_region(checked.region, checked.offset, n);
                part.ok_or_else(super::outside)
            });
            added.ok()
        })
    }

    /// Adds a message whose local pieces `local` adds, or nothing.
    #[inline]
    fn push_whole(
        &mut self,
        at: u64,
        len: u64,
        local: impl FnOnce(&mut CopyBatch<'a, TO_PEER>) -> Option<()>,
    ) -> bool {
        let mark = self.batch.mark();
        let added = len > 0
            && self.batch.push_range(&self.range, at, len).is_some()
            && local(&mut self.batch).is_some();
        if !added {
            self.batch.cut(mark);
        }
        added
    }

    /// Carries out all copies in the order in which they were added, by one call of the kernel.
    /// Returns how many bytes of all messages were copied, from the first one on: less than all if
    /// memory is missing in the middle. The caller has begun an access
    /// ([`PeerRevocationWords::begin_access`](crate::PeerRevocationWords::begin_access)).
    ///
    /// # Errors
    /// An error of the kernel, or `EFAULT` if the process runs another program than the one that
    /// granted access. Nothing was written then, and what was read is worth nothing.
    pub fn copy(&mut self) -> io::Result<u64> {
        self.batch.copy()
    }
}

impl<'a> PeerCopies<'a, true> {
    /// Adds a message of private bytes of this process. Returns as [`push`](Self::push).
    #[inline]
    pub fn push_bytes(&mut self, bytes: &'a [u8], at: u64) -> bool {
        self.push_whole(at, bytes.len() as u64, |batch| batch.push_bytes(bytes))
    }
}
