//! Which memory of this process lies in files that other processes can map.
//!
//! One list for the process, by address: who makes such memory enters it, and takes it out before
//! it goes. Looked at when a peer asks for access, never on the data path.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes to which memory is rounded up that lies in a file of its own: the page of every machine
/// we run on is this or a multiple.
pub(super) const ALIGN: usize = 4096;

/// Memory that lies in a file.
#[derive(Clone, Debug)]
struct Share {
    len: usize,
    file: Arc<OwnedFd>,
    /// Where in the file it begins.
    offset: u64,
    /// Of memory that was moved there: who holds it.
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

/// Where in a file a range of memory lies.
#[derive(Clone, Debug)]
pub struct SharedRange {
    file: Arc<OwnedFd>,
    offset: u64,
    /// Bytes of all that lies in the file.
    all: u64,
}

impl SharedRange {
    /// Whether `len` bytes from its beginning on are all of the file, but for the rest of their
    /// last page: who is given a file can map all of it.
    pub(crate) fn is_all(&self, len: u64) -> bool {
        self.offset == 0 && len.checked_next_multiple_of(ALIGN as u64) == Some(self.all)
    }
    /// The memory file, whose size is sealed.
    pub fn file(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.file)
    }
    /// The file once more, for those who may only read: what they make of this descriptor cannot be
    /// written. A process of this user can open the file anew, as it can any that it has a name
    /// for.
    ///
    /// # Errors
    /// The system's, typically without `/proc`.
    pub fn file_to_read(&self) -> io::Result<OwnedFd> {
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(std::fs::File::open(name)?.into())
    }
    /// Where in it the range begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Notes that `len` bytes at `base` lie in the file from `offset` on.
pub(super) fn insert(base: usize, len: usize, file: &Arc<OwnedFd>, offset: u64) {
    shares().insert(base, Share { len, file: file.clone(), offset, holders: None });
}

/// Forgets the memory that was entered with `base`.
pub(super) fn remove(base: usize) {
    let gone = shares().remove(&base);
    // Outside the lock: it may close the file.
    drop(gone);
}

/// Notes that `len` bytes at `base` were moved to the start of the file, and are held once.
#[cfg(not(miri))]
pub(super) fn insert_moved(base: usize, len: usize, file: &Arc<OwnedFd>) {
    shares().insert(base, Share { len, file: file.clone(), offset: 0, holders: Some(1) });
}

/// Holds the memory that `base..base + len` lies in once more, and says where that begins;
/// `Some(None)` if it lies in a file but was not moved there, `None` if it does not.
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

/// One who holds what was moved at `base` lets go: its file and length if it was the last.
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

/// The file in which all of `base..base + len` lies, if it lies in one.
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
