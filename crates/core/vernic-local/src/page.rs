//! A process's page: what its local peers must know of the process, in memory that only it can
//! write.
//!
//! ```text
//!  word 0
//!       +--------+
//!       | asleep |   not 0 while its thread sleeps, or is about to: the number of the sleep
//!       +--------+
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_sys::{self as sys, ClosableFd, OwnFd, ReadMemory, SharedMemory};

use crate::cursor::{announce, awake};

const BYTES: usize = 4096;
const ASLEEP: usize = 0;

/// The owner's side of a page.
#[derive(Debug)]
pub(crate) struct OwnPage {
    file: ClosableFd,
    memory: SharedMemory,
    sleeps: AtomicU64,
}

impl OwnPage {
    pub(crate) fn new() -> io::Result<Self> {
        let file = sys::memory_file(BYTES)?;
        let memory = SharedMemory::map(file.as_fd(), BYTES)?;
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
        ReadMemory::map(file, BYTES).map(Self)
    }

    #[inline]
    pub(crate) fn asleep(&self) -> u64 {
        self.0.load(ASLEEP)
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
