//! Which memory of this process lies in files that other processes can map.
//!
//! One list for the process, by address: who makes such memory enters it, and takes it out before it goes.
//! Looked at when a peer asks for access, never on the data path.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that lies in a file.
#[derive(Clone, Debug)]
struct Share {
    len: usize,
    file: Arc<OwnedFd>,
    /// Where in the file it begins.
    offset: u64,
}

static SHARES: Mutex<BTreeMap<usize, Share>> = Mutex::new(BTreeMap::new());

fn shares() -> MutexGuard<'static, BTreeMap<usize, Share>> {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where in a file a range of memory lies.
#[derive(Clone, Debug)]
pub struct SharedRange {
    file: Arc<OwnedFd>,
    offset: u64,
}

impl SharedRange {
    /// The memory file, whose size is sealed.
    pub fn file(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.file)
    }
    /// Where in it the range begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Notes that `len` bytes at `base` lie in the file from `offset` on.
pub(super) fn enter(base: usize, len: usize, file: &Arc<OwnedFd>, offset: u64) {
    shares().insert(base, Share { len, file: file.clone(), offset });
}

/// Forgets the memory that was entered with `base`.
pub(super) fn remove(base: usize) {
    let gone = shares().remove(&base);
    // Outside the lock: it may close the file.
    drop(gone);
}

/// The file in which all of `base..base + len` lies, if it lies in one.
pub(crate) fn find(base: usize, len: u64) -> Option<SharedRange> {
    let shares = shares();
    let (&start, share) = shares.range(..=base).next_back()?;
    let inside = base - start;
    let fits = (inside as u64).checked_add(len).is_some_and(|end| end <= share.len as u64);
    fits.then(|| SharedRange { file: share.file.clone(), offset: share.offset + inside as u64 })
}
