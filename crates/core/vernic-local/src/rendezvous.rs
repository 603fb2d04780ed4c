//! Rendezvous: the receiver of a large SEND copies the payload out of the sender's memory, in one
//! copy.
//!
//! Payload that goes through a ring is copied twice, into the ring and out of it. If the receiver
//! has said that it can read the sender's memory (`grant_message.rs`), a part of a message of up to
//! 512 KiB takes only a small record in the ring. In place of the payload the record has the
//! addresses of its bytes.
//!
//! ```text
//!  byte  0        4      8        12     16           24
//!       +--------+------+--------+------+------------+---------------+----
//!       | length | word | pieces | zero | word's     | address, bytes| ...  numbers in the
//!       |        |      |        |      | value      |  8        4   |      byte order of
//!       +--------+------+--------+------+------------+---------------+----  this machine
//! ```
//!
//! The word is the revocation word of the sender's send queue (`vernic_mem`). The sender clears it
//! before a SEND completes with an error, because from then on the application may reuse the memory
//! although the bytes were not acknowledged. The receiver checks the word after the copy, and
//! discards the copy if the word is cleared.
//!
//! The contents of a record are not trusted. Its lengths are checked here, and the responder checks
//! them against path MTU and the posted receive. Its addresses are never used in
//! this process: they only tell the kernel what to read in the sender's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::PeerProcess;
use vernic_mem::{
    LivenessWord, LocalPart, MAX_REVOCATION_WORDS, PeerCopyError, PeerList, PeerPiece,
    PeerRevocationWords, RemoteMemory, RevocationToken,
};
use vernic_proto::RendezvousLimits;

use crate::grant_message::GrantMessage;

/// The smallest rendezvous, in bytes. Shorter payload goes through the ring: a rendezvous costs a
/// system call and work for each page, as much as it saves at 8 KiB.
const MIN_BYTES: u32 = 16 << 10;

/// The largest rendezvous, in bytes. Longer ones gain nothing, and the sender's process has to wait
/// while one is copied.
const MAX_BYTES: u32 = 512 << 10;

/// The limits of what this process lets its peers copy at a time.
pub const LIMITS: RendezvousLimits =
    RendezvousLimits { min_bytes: MIN_BYTES, max_bytes: MAX_BYTES };

/// Bytes of rendezvous that one poll of a ring copies at most. Copying them takes some 100 us.
pub const BYTES_PER_POLL: u64 = 1 << 20;

/// Length in bytes of a record's head, which comes before the pieces.
const HEAD: usize = 24;
/// Length in bytes of one piece in a record.
const PIECE: usize = 12;
/// Largest number of pieces in a record. Payload in more pieces goes through the ring.
pub const MAX_PIECES: usize = PeerList::MAX_PIECES;

/// A rendezvous record: says where payload lies in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousRecord {
    /// Bytes of payload.
    pub length: u32,
    token: RevocationToken,
    pieces: [PeerPiece; MAX_PIECES],
    count: usize,
}

impl RendezvousRecord {
    /// Returns a record whose payload is the first `count` of `pieces`, which are `length` bytes
    /// together.
    pub fn new(
        length: u32,
        token: RevocationToken,
        pieces: [PeerPiece; MAX_PIECES],
        count: usize,
    ) -> Self {
        Self { length, token, pieces, count }
    }

    fn pieces(&self) -> &[PeerPiece] {
        &self.pieces[..self.count]
    }

    /// Writes the record into `buf` and returns its length; `None` if `buf` is too short.
    pub fn emit(&self, buf: &mut [u8]) -> Option<usize> {
        let buf = buf.get_mut(..HEAD + self.count * PIECE)?;
        let (head, list) = buf.split_at_mut(HEAD);
        let words = [self.length, self.token.number, self.count as u32, 0];
        for (place, word) in head.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        head[16..].copy_from_slice(&self.token.value.to_ne_bytes());
        for (place, piece) in list.chunks_exact_mut(PIECE).zip(self.pieces()) {
            place[..8].copy_from_slice(&piece.addr.to_ne_bytes());
            place[8..].copy_from_slice(&piece.len.to_ne_bytes());
        }
        Some(buf.len())
    }

    /// Parses a record. Returns `None` if it is cut off or too long, or if a value in it is out of
    /// range.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, list) = bytes.split_first_chunk::<HEAD>()?;
        let word = |at: usize| head[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
        let length = word(0)?;
        let value = head[16..].first_chunk().map(|value| u64::from_ne_bytes(*value))?;
        let (token, count) = (RevocationToken { number: word(4)?, value }, word(8)? as usize);
        // A value of 0 is refused, because a cleared revocation word is 0 and would match it.
        let is_meant = (1..=MAX_BYTES).contains(&length)
            && word(12) == Some(0)
            && token.number < MAX_REVOCATION_WORDS
            && token.value != 0
            && (1..=MAX_PIECES).contains(&count)
            && list.len() == count * PIECE;
        if !is_meant {
            return None;
        }
        let mut pieces = [PeerPiece::default(); MAX_PIECES];
        let mut total = 0;
        for (piece, bytes) in pieces.iter_mut().zip(list.chunks_exact(PIECE)) {
            let (addr, len) = bytes.split_first_chunk()?;
            let (addr, len) = (u64::from_ne_bytes(*addr), u32::from_ne_bytes(*len.first_chunk()?));
            addr.checked_add(u64::from(len)).filter(|_| len != 0)?;
            *piece = PeerPiece { addr, len };
            total += u64::from(len);
        }
        (total == u64::from(length)).then_some(Self { length, token, pieces, count })
    }
}

/// The memory of a local peer, out of which this process copies the payload of the peer's SENDs.
#[derive(Debug)]
pub struct SenderMemory {
    process: Arc<PeerProcess>,
    pid: i32,
    liveness: LivenessWord,
    words: Arc<PeerRevocationWords>,
    /// Whether the peer was notified that we cannot read its memory.
    has_refused: AtomicBool,
}

impl SenderMemory {
    /// Returns the peer's memory to copy from; `None` if this process may not read it.
    pub fn new(
        process: Arc<PeerProcess>,
        liveness: LivenessWord,
        words: Arc<PeerRevocationWords>,
    ) -> Option<Self> {
        let pid = i32::try_from(process.pid()).ok().filter(|&pid| pid > 0)?;
        if let Err(error) = PeerList::find_process(pid, liveness) {
            tracing::debug!(pid, %error, "large SENDs of a process of this host go through its ring");
            return None;
        }
        Some(Self { process, pid, liveness, words, has_refused: AtomicBool::new(false) })
    }

    /// Copies the payload that `record` names to a part of a message, which has as many bytes.
    ///
    /// # Errors
    /// [`PeerCopyError`]; `Revoked` if the sender has revoked the memory: its application may use
    /// it for something else again.
    pub fn pull(&self, record: &RendezvousRecord, to: LocalPart<'_>) -> Result<(), PeerCopyError> {
        // The check before the copy only saves a useless copy; the check after it decides.
        if !self.words.is_valid(record.token) {
            return Err(PeerCopyError::Revoked);
        }
        let Self { pid, liveness, .. } = *self;
        let from = PeerList { pid, liveness, pieces: record.pieces() };
        let copied = from.read(to, 0, &|| true);
        if !self.words.is_valid_after_read(record.token) {
            return Err(PeerCopyError::Revoked);
        }
        copied
    }

    /// Notifies the peer that this process cannot read the peer's memory, so that its payload
    /// goes through the ring from now on.
    #[cold]
    pub fn refuse(&self, error: &std::io::Error) {
        if !self.has_refused.swap(true, Ordering::Relaxed) {
            let pid = self.pid;
            tracing::debug!(pid, %error, "large SENDs of a process of this host go through its ring");
            let sent =
                self.process.send(&GrantMessage::RendezvousReply { can: false }.emit(), None);
            // If the peer takes no message now, the next failed copy sends the message again.
            self.has_refused.store(sent.is_ok(), Ordering::Relaxed);
        }
    }
}

/// A rendezvous that is being received: its record, and the memory of its sender.
#[derive(Clone, Copy, Debug)]
pub struct Rendezvous<'a> {
    /// Where the payload lies.
    pub record: &'a RendezvousRecord,
    /// The memory of the sender.
    pub sender_memory: &'a SenderMemory,
}

#[cfg(test)]
mod tests;
