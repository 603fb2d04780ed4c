//! Large SENDs by one copy: the receiver copies the bytes out of the sender's memory.
//!
//! Packets through a ring are copied twice, into it and out of it. Where the receiver has said that
//! it can (`messages.rs`), a record of the ring stands for some hundred packets of one SEND, a
//! *run*: the headers of the last, the number of the first, and in place of the payload where their
//! bytes are. Everything else is as ever: the protocol machines count packets, acknowledge, and
//! repeat, in packets.
//!
//! ```text
//!  byte  0        4         8      12       16           24
//!       +--------+---------+------+--------+------------+---------------+----
//!       | length | packets | gate | pieces | gate's     | address, bytes| ...   numbers in the order of
//!       |        |         |      |        | value      |  8        4   |       bytes of this machine
//!       +--------+---------+------+--------+------------+---------------+----
//! ```
//!
//! The gate is that of the sender's send queue (`vernic_mem`): it closes before the application
//! hears that the bytes are its own again though nobody acknowledged them, and is looked at after
//! the copy.
//!
//! What a record says is the other process's word. Its lengths are checked here and, against
//! sequence numbers, path MTU and receive, by the responder; its addresses are those of the other
//! process, and mean nothing here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vernic_io::neighbour::Neighbour;
use vernic_mem::{
    LivenessWord, MAX_REVOCATION_WORDS, PeerCopyError, PeerList, PeerPiece, PeerRevocationWords,
    RevocationToken,
};
use vernic_proto::{Run, RunLimits};

use super::messages::Told;

/// Bytes from which a run is better than packets. At 64 KiB a system call for each, and its work
/// for each page, cost a fifth more than copying twice; at 256 KiB they save two fifths.
const MIN_BYTES: u32 = 128 << 10;

/// Most bytes of a run. More gains nothing, and the sender's process waits for as long where one is
/// read.
const MAX_BYTES: u32 = 512 << 10;

/// Which runs are sent.
pub(crate) const LIMITS: RunLimits = RunLimits { min_bytes: MIN_BYTES, max_bytes: MAX_BYTES };

/// Bytes of runs that are copied in one look at a ring: as many as a copy of some 100 us.
pub(crate) const BYTES_PER_LOOK: u64 = 1 << 20;

/// Bytes before the pieces.
const HEAD: usize = 24;
/// Bytes of a piece.
const PIECE: usize = 12;
/// Most pieces: more have their bytes travel themselves.
pub(crate) const MAX_PIECES: usize = PeerList::MAX_PIECES;

/// What stands in place of a run's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) run: Run,
    pass: RevocationToken,
    pieces: [PeerPiece; MAX_PIECES],
    count: usize,
}

impl Named {
    /// Names the first `count` pieces, which hold the bytes of `run`.
    pub(crate) fn new(
        run: Run,
        pass: RevocationToken,
        pieces: [PeerPiece; MAX_PIECES],
        count: usize,
    ) -> Self {
        Self { run, pass, pieces, count }
    }

    fn pieces(&self) -> &[PeerPiece] {
        &self.pieces[..self.count]
    }

    /// Writes it, and returns its length; `None` if `buf` is too short.
    pub(crate) fn emit(&self, buf: &mut [u8]) -> Option<usize> {
        let buf = buf.get_mut(..HEAD + self.count * PIECE)?;
        let (head, list) = buf.split_at_mut(HEAD);
        let words = [self.run.length, self.run.packets, self.pass.number, self.count as u32];
        for (place, word) in head.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        head[16..].copy_from_slice(&self.pass.value.to_ne_bytes());
        for (place, piece) in list.chunks_exact_mut(PIECE).zip(self.pieces()) {
            place[..8].copy_from_slice(&piece.addr.to_ne_bytes());
            place[8..].copy_from_slice(&piece.len.to_ne_bytes());
        }
        Some(buf.len())
    }

    /// Understands it; `None` if it is cut off, too long, or cannot be meant.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, list) = bytes.split_first_chunk::<HEAD>()?;
        let word = |at: usize| head[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
        let run = Run { length: word(0)?, packets: word(4)? };
        let value = head[16..].first_chunk().map(|value| u64::from_ne_bytes(*value))?;
        let (pass, count) = (RevocationToken { number: word(8)?, value }, word(12)? as usize);
        // A gate that is closed shows 0.
        let is_meant = (1..=MAX_BYTES).contains(&run.length)
            && (1..=run.length).contains(&run.packets)
            && pass.number < MAX_REVOCATION_WORDS
            && pass.value != 0
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
        (total == u64::from(run.length)).then_some(Self { run, pass, pieces, count })
    }
}

/// A neighbour out of whose memory bytes of its SENDs are copied.
#[derive(Debug)]
pub(crate) struct Lender {
    neighbour: Arc<Neighbour>,
    pid: i32,
    liveness: LivenessWord,
    gates: Arc<PeerRevocationWords>,
    /// Whether the neighbour was told that it cannot be done.
    has_told: AtomicBool,
}

/// Why bytes of a lender were not copied.
#[derive(Debug)]
pub(crate) enum Unpulled {
    Fault(PeerCopyError),
    /// The bytes are the lender's own again.
    Withdrawn,
}

impl Lender {
    /// `None` if its memory cannot be read.
    pub(crate) fn new(
        neighbour: Arc<Neighbour>,
        liveness: LivenessWord,
        gates: Arc<PeerRevocationWords>,
    ) -> Option<Self> {
        let pid = i32::try_from(neighbour.pid()).ok().filter(|&pid| pid > 0)?;
        if let Err(error) = PeerList::find_process(pid, liveness) {
            tracing::debug!(pid, %error, "large SENDs of a process of this host take packets");
            return None;
        }
        Some(Self { neighbour, pid, liveness, gates, has_told: AtomicBool::new(false) })
    }

    /// Copies with `copy`, between two looks at the gate.
    pub(crate) fn pull(
        &self,
        named: &Named,
        copy: impl FnOnce(&PeerList<'_>) -> Result<(), PeerCopyError>,
    ) -> Result<(), Unpulled> {
        // Not to copy in vain; what counts is the look afterwards.
        if !self.gates.is_valid(named.pass) {
            return Err(Unpulled::Withdrawn);
        }
        let Self { pid, liveness, .. } = *self;
        let copied = copy(&PeerList { pid, liveness, pieces: named.pieces() });
        if !self.gates.is_valid_after_read(named.pass) {
            return Err(Unpulled::Withdrawn);
        }
        copied.map_err(Unpulled::Fault)
    }

    /// Tells it that its bytes must travel in packets from now on.
    #[cold]
    pub(crate) fn refuse(&self, error: &std::io::Error) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            let pid = self.pid;
            tracing::debug!(pid, %error, "large SENDs of a process of this host take packets");
            let told = self.neighbour.tell(&Told::Pulls { can: false }.emit(), None);
            // One that does not listen now is told with the next that fails.
            self.has_told.store(told.is_ok(), Ordering::Relaxed);
        }
    }
}

/// The run that is being handled: what its record says, and of whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull<'a> {
    pub(crate) named: &'a Named,
    pub(crate) lender: &'a Lender,
}

#[cfg(test)]
mod tests;
