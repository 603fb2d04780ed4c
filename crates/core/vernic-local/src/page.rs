//! A process's page: what its local peers must know of the process, in memory that only it can
//! write.
//!
//! ```text
//!  word 0        512                                   16896
//!       +--------+------------------------------------+
//!       | asleep | receipts, one for each queue pair  |
//!       +--------+------------------------------------+
//! ```
//!
//! `asleep` is not 0 while the process's thread sleeps, or is about to: the number of the sleep.
//!
//! A receipt says what a queue pair has received in order, as the ACK does that the process still
//! owes. An ACK is delayed, and a process may end meanwhile (`_exit` calls no library). Its peer
//! then takes the receipt in place of the ACK: what was received before the end has succeeded.
//!
//! ```text
//!  bit 63       58..48       48..24         24..0
//!     +-------+------------+--------------+----------------------+
//!     | 0     | slot       | peer's QPN   | next sequence number |   0: nothing received
//!     +-------+------------+--------------+----------------------+
//! ```
//!
//! Limits: queue pairs whose numbers differ in nothing but the slot share a receipt: the one that
//! received last has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_io::host::Slot;
use vernic_sys::{self as sys, ClosableFd, OwnFd, ReadMemory, SharedMemory};
use vernic_wire::{Psn, Qpn};

use crate::cursor::{announce, awake};

const ASLEEP: usize = 0;
/// The first word of the receipts: they share no page of memory with the word that changes often.
const RECEIPTS: usize = 512;
/// Bytes of the file. It takes memory only where queue pairs receive: 8 bytes for each of them.
pub(crate) const PAGE_BYTES: usize = (RECEIPTS + Slot::QPNS as usize) * 8;

/// Returns the word of a queue pair's receipt.
#[inline]
fn receipt_of(qpn: Qpn) -> usize {
    RECEIPTS + (qpn.value() & (Slot::QPNS - 1)) as usize
}

/// Returns the upper bits of a receipt: which queue pair has received from which.
#[inline]
fn parties(qpn: Qpn, peer: Qpn) -> u64 {
    u64::from(Slot::of(qpn).value()) << 48 | u64::from(peer.value()) << 24
}

/// The owner's side of a page.
#[derive(Debug)]
pub(crate) struct OwnPage {
    file: ClosableFd,
    memory: SharedMemory,
    sleeps: AtomicU64,
}

impl OwnPage {
    pub(crate) fn new() -> io::Result<Self> {
        let file = sys::memory_file(PAGE_BYTES)?;
        let memory = SharedMemory::map(file.as_fd(), PAGE_BYTES)?;
        sys::seal_against_writers(file.as_fd());
        Ok(Self { file: ClosableFd::new(file), memory, sleeps: AtomicU64::new(0) })
    }

    /// Returns the file to pass to local peers; `None` once the page is closed.
    pub(crate) fn file(&self) -> Option<Arc<OwnFd>> {
        self.file.get()
    }

    /// Closes the file, so that it is passed to no further peer. The memory stays as long as
    /// `self`.
    pub(crate) fn close(&self) {
        self.file.close();
    }

    /// Says that the owner's thread is about to sleep. See `cursor.rs`.
    pub(crate) fn announce(&self) {
        let number = self.sleeps.fetch_add(1, Ordering::Relaxed) + 1;
        announce(&self.memory.words()[ASLEEP], number);
    }

    /// Says that the owner's thread does not sleep. See `cursor.rs`.
    pub(crate) fn awake(&self) {
        awake(&self.memory.words()[ASLEEP]);
    }
}

/// A local peer's side of a page.
#[derive(Debug)]
pub(crate) struct PeerPage(ReadMemory);

impl PeerPage {
    /// Maps the file that a local peer passed.
    ///
    /// # Errors
    /// `InvalidData` if the file is no such page.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        ReadMemory::map(file, PAGE_BYTES).map(Self)
    }

    #[inline]
    pub(crate) fn asleep(&self) -> u64 {
        self.0.load(ASLEEP)
    }

    /// Returns the sequence number before which the owner's queue pair `qpn` has received
    /// everything of the queue pair `by`; `None` if it has received nothing of it.
    pub(crate) fn received(&self, qpn: Qpn, by: Qpn) -> Option<Psn> {
        let receipt = self.0.load(receipt_of(qpn));
        (receipt >> 24 == parties(qpn, by) >> 24).then(|| Psn::new(receipt as u32))
    }
}

/// The receipts of this process's queue pairs, for local peers that outlive it.
#[derive(Clone, Debug)]
pub struct Receipts(pub(crate) Arc<OwnPage>);

impl Receipts {
    /// Notes that the queue pair `qpn` has received all that its peer sent before `next`. The
    /// caller has made the completions visible before.
    #[inline]
    pub fn note(&self, qpn: Qpn, peer: Qpn, next: Psn) {
        let receipt = parties(qpn, peer) | u64::from(next.value());
        self.0.memory.words()[receipt_of(qpn)].store(receipt, Ordering::Release);
    }

    /// Notes that the queue pair has received nothing yet of the peer to which it is connected.
    pub fn forget(&self, qpn: Qpn) {
        self.0.memory.words()[receipt_of(qpn)].store(0, Ordering::Release);
    }
}

/// A flag that says that a thread of this process sleeps, so that local peers wake it: see
/// `cursor.rs`.
#[derive(Clone, Debug)]
pub struct SleepFlag(pub(crate) Arc<OwnPage>);

impl SleepFlag {
    /// Says that the calling thread is about to sleep on the descriptor of the
    /// [`Connections`](crate::Connections::raw_fd). The caller must then poll each ring
    /// ([`RingReader::has_news`](crate::RingReader::has_news)) before it sleeps.
    pub fn announce(&self) {
        self.0.announce();
    }

    /// Says that the thread does not sleep, or no longer.
    pub fn awake(&self) {
        self.0.awake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_says_what_was_received_of_that_peer_alone() {
        let own = Arc::new(OwnPage::new().unwrap());
        let page = PeerPage::map(own.file().unwrap().as_fd()).unwrap();
        let receipts = Receipts(own);
        let slot = |number| Slot::new(number).unwrap();
        let (last, peer) = (Slot::QPNS - 1, slot(9).qpn(3));
        for qpn in [slot(1).qpn(0), slot(1).qpn(last), slot(1000).qpn(7)] {
            assert_eq!(page.received(qpn, peer), None);
            for next in [0, 1, Psn::MODULUS - 1].map(Psn::new) {
                receipts.note(qpn, peer, next);
                assert_eq!(page.received(qpn, peer), Some(next));
            }
            assert_eq!(page.received(qpn, slot(9).qpn(4)), None, "of another peer");
            let other = slot(2).qpn(qpn.value() & last);
            assert_eq!(page.received(other, peer), None, "by another queue pair");
            receipts.forget(qpn);
            assert_eq!(page.received(qpn, peer), None);
        }
        assert_eq!(page.asleep(), 0);
    }
}
