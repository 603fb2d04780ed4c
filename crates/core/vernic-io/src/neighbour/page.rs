//! A process's page: what its neighbours must know of it, in memory that only it can write.
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

use super::cursor::{announce, awake};
use crate::sys::{self, ClosableFd, OwnFd, ReadMemory, SharedMemory};

const BYTES: usize = 4096;
const ASLEEP: usize = 0;

/// Its owner's side.
#[derive(Debug)]
pub(super) struct OwnPage {
    file: ClosableFd,
    memory: SharedMemory,
    sleeps: AtomicU64,
}

impl OwnPage {
    pub(super) fn new() -> io::Result<Self> {
        let file = sys::memory_file(BYTES)?;
        let memory = SharedMemory::map(file.as_fd(), BYTES)?;
        sys::seal_against_writers(file.as_fd());
        Ok(Self { file: ClosableFd::new(file), memory, sleeps: AtomicU64::new(0) })
    }

    /// To be passed to neighbours; `None` once it is closed.
    pub(super) fn file(&self) -> Option<Arc<OwnFd>> {
        self.file.get()
    }

    /// It is passed to nobody any more; the memory stays as long as this.
    pub(super) fn close(&self) {
        self.file.close();
    }

    /// See `cursor.rs`.
    pub(super) fn announce(&self) {
        let number = self.sleeps.fetch_add(1, Ordering::Relaxed) + 1;
        announce(&self.memory.words()[ASLEEP], number);
    }

    /// See `cursor.rs`.
    pub(super) fn awake(&self) {
        awake(&self.memory.words()[ASLEEP]);
    }
}

/// A neighbour's side.
#[derive(Debug)]
pub(super) struct PeerPage(ReadMemory);

impl PeerPage {
    /// Maps what a neighbour passed.
    ///
    /// # Errors
    /// `InvalidData` if it is no such page.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        ReadMemory::map(file, BYTES).map(Self)
    }

    #[inline]
    pub(super) fn asleep(&self) -> u64 {
        self.0.load(ASLEEP)
    }
}
