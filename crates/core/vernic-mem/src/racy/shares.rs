//! The memory of this process that lies in files which other processes can map.
//!
//! There is one list for the process, ordered by address. Code that makes such memory adds it to
//! the list, and removes it before it unmaps the memory. The list is read when a peer process asks
//! for a grant, never on the data path.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Unit to which memory with a file of its own is rounded up, in bytes. The page size of all
/// supported machines is this or a multiple.
pub(super) const ALIGN: usize = 4096;

/// A range of memory that lies in a file.
#[derive(Clone, Debug)]
struct Share {
    len: usize,
    file: Arc<OwnedFd>,
    /// Offset in the file at which the range begins.
    offset: u64,
    /// Number of [`SharedPages`](super::SharedPages) that hold the range, if it was moved to the
    /// file.
    holders: Option<usize>,
}

impl Share {
    fn has(&self, from: usize, len: u64) -> bool {
        (from as u64).checked_add(len).is_some_and(|end| end <= self.len as u64)
    }
}

static SHARES: Mutex<BTreeMap<usize, Share>> = Mutex::new(BTreeMap::new());

fn shares() -> MutexGuard<'static, BTreeMap<usize, Share>> {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range of memory, as a range of a file.
#[derive(Clone, Debug)]
pub struct SharedRange {
    file: Arc<OwnedFd>,
    offset: u64,
    /// Length of the memory in the file, in bytes.
    all: u64,
}

impl SharedRange {
    /// Whether `len` bytes from the start of this range are all of the file, up to the end of their
    /// last page. A process that receives the file can map all of it.
    pub(crate) fn is_all(&self, len: u64) -> bool {
        self.offset == 0 && len.checked_next_multiple_of(ALIGN as u64) == Some(self.all)
    }
    /// The memory file, whose size is sealed.
    pub fn file(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.file)
    }
    /// Opens the file for reading only. The new descriptor does not permit writes. A process of the
    /// same user can still open the file again for writing, as it can any file for which it has a
    /// path.
    ///
    /// # Errors
    /// Errors of the system, typically because `/proc` is not mounted.
    pub fn file_to_read(&self) -> io::Result<OwnedFd> {
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(std::fs::File::open(name)?.into())
    }
    /// Offset in the file at which the range begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Adds `len` bytes at `base`, which lie in the file from `offset` on.
pub(super) fn insert(base: usize, len: usize, file: &Arc<OwnedFd>, offset: u64) {
    shares().insert(base, Share { len, file: file.clone(), offset, holders: None });
}

/// Removes the range that was added with `base`.
pub(super) fn remove(base: usize) {
    let gone = shares().remove(&base);
    // Dropped after the lock is released, because the drop may close the file.
    drop(gone);
}

/// Adds `len` bytes at `base`, which were moved to the start of the file, with one holder.
#[cfg(not(miri))]
pub(super) fn insert_moved(base: usize, len: usize, file: &Arc<OwnedFd>) {
    shares().insert(base, Share { len, file: file.clone(), offset: 0, holders: Some(1) });
}

/// Adds a holder to the moved memory in which `base..base + len` lies, and returns its first
/// address. `None` if the range lies in no file; `Some(None)` if it lies in a file but was not
/// moved there.
#[cfg(not(miri))]
pub(super) fn add_holder(base: usize, len: u64) -> Option<Option<usize>> {
    let mut shares = shares();
    let (&start, share) = shares.range_mut(..=base).next_back()?;
    if !share.has(base - start, len) {
        return None;
    }
    let Some(holders) = &mut share.holders else { return Some(None) };
    *holders += 1;
    Some(Some(start))
}

/// Removes a holder of the memory that was moved at `base`. Returns its file and length if that was
/// the last holder.
#[cfg(not(miri))]
pub(super) fn remove_holder(base: usize) -> Option<(Arc<OwnedFd>, usize)> {
    let mut shares = shares();
    let share = shares.get_mut(&base)?;
    let holders = share.holders.as_mut()?;
    *holders -= 1;
    if *holders > 0 {
        return None;
    }
    shares.remove(&base).map(|share| (share.file, share.len))
}

/// The file range for `base..base + len`, if all of it lies in one file.
pub(crate) fn find(base: usize, len: u64) -> Option<SharedRange> {
    let shares = shares();
    let (&start, share) = shares.range(..=base).next_back()?;
    let inside = base - start;
    share.has(inside, len).then(|| SharedRange {
        file: share.file.clone(),
        offset: share.offset + inside as u64,
        all: share.len as u64,
    })
}
