//! One entry of the key table, read without a lock while it may be rewritten.
//!
//! A sequence lock: the writer (one at a time, under the control lock) makes the count odd, writes
//! the fields, makes it even. A reader copies the fields between two equal, even counts. All fields
//! are atomics, so a torn copy is merely thrown away.
//!
//! Here and not outside, because a torn pair of address and length must never become a [`Region`].

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use super::Region;
use crate::Access;

/// How often a reader tries before it takes an entry that changes all the time for a dead one. One
/// try is about 5 ns, a writer needs about 10 ns unless it is descheduled; then its key is dying or
/// not yet known to anybody, except while a region is reregistered.
const MAX_TRIES: u32 = 1000;

/// What a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Nothing, or nothing any more.
    Free = 0,
    /// A memory region.
    Region = 1,
    /// The null region of some domain.
    NullRegion = 2,
    /// A memory window, not bound.
    Unbound = 3,
    /// A bound type 1 window.
    Window1 = 4,
    /// A bound type 2 window (2B: domain and queue pair are checked).
    Window2 = 5,
}

impl Kind {
    #[inline(always)]
    const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Region,
            2 => Self::NullRegion,
            3 => Self::Unbound,
            4 => Self::Window1,
            5 => Self::Window2,
            _ => Self::Free,
        }
    }
}

/// A consistent copy of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The whole key; kept after the entry was freed, 0 before its first use.
    pub(crate) key: u32,
    /// What it names.
    pub(crate) kind: Kind,
    /// Protection domain.
    pub(crate) pd: u32,
    /// Queue pair of a bound type 2 window.
    pub(crate) qpn: u32,
    /// Rights.
    pub(crate) access: Access,
    /// Address by which the first byte is known.
    pub(crate) iova: u64,
    /// The memory.
    pub(crate) region: Region,
}

/// An entry of the key table; one cache line, so that a lookup costs at most one miss.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    sequence: AtomicU32,
    key: AtomicU32,
    kind: AtomicU32,
    pd: AtomicU32,
    qpn: AtomicU32,
    access: AtomicU32,
    iova: AtomicU64,
    base: AtomicPtr<u8>,
    len: AtomicU64,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// A slot that was never used.
    pub(crate) const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            key: AtomicU32::new(0),
            kind: AtomicU32::new(Kind::Free as u32),
            pd: AtomicU32::new(0),
            qpn: AtomicU32::new(0),
            access: AtomicU32::new(0),
            iova: AtomicU64::new(0),
            base: AtomicPtr::new(null_mut()),
            len: AtomicU64::new(0),
        }
    }

    /// Replaces the entry. One writer at a time: the caller holds the control lock.
    pub(crate) fn publish(&self, entry: &Entry) {
        let (base, len) = entry.region.parts();
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Whoever sees one of the stores below also sees the odd count in its second look.
        fence(Ordering::Release);
        self.key.store(entry.key, Ordering::Relaxed);
        self.kind.store(entry.kind as u32, Ordering::Relaxed);
        self.pd.store(entry.pd, Ordering::Relaxed);
        self.qpn.store(entry.qpn, Ordering::Relaxed);
        self.access.store(entry.access.bits(), Ordering::Relaxed);
        self.iova.store(entry.iova, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// A consistent copy, or `None` if the entry kept changing for [`MAX_TRIES`] looks.
    #[inline(always)]
    pub(crate) fn snapshot(&self) -> Option<Entry> {
        let entry = self.try_snapshot();
        if entry.is_some() { entry } else { self.snapshot_contended() }
    }

    #[cold]
    fn snapshot_contended(&self) -> Option<Entry> {
        for _ in 0..MAX_TRIES {
            std::hint::spin_loop();
            let entry = self.try_snapshot();
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    #[inline(always)]
    fn try_snapshot(&self) -> Option<Entry> {
        let before = self.sequence.load(Ordering::Acquire);
        let key = self.key.load(Ordering::Relaxed);
        let kind = Kind::from_raw(self.kind.load(Ordering::Relaxed));
        let pd = self.pd.load(Ordering::Relaxed);
        let qpn = self.qpn.load(Ordering::Relaxed);
        let access = Access::from_bits_retain(self.access.load(Ordering::Relaxed));
        let iova = self.iova.load(Ordering::Relaxed);
        let base = self.base.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        if before != after || before & 1 != 0 {
            return None;
        }
        // SAFETY: the count did not move, so both were stored by one `publish`.
        let region = unsafe { Region::from_parts(base, len) };
        Some(Entry { key, kind, pd, qpn, access, iova, region })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// All fields of the entry say `n`.
    fn entry(n: u32) -> Entry {
        let base = std::ptr::without_provenance_mut(n as usize);
        Entry {
            key: n,
            kind: Kind::from_raw(n % 6),
            pd: n,
            qpn: n,
            access: Access::from_bits_retain(n),
            iova: u64::from(n),
            // SAFETY: never accessed.
            region: unsafe { Region::new(base, u64::from(n)) },
        }
    }

    #[test]
    fn snapshots_are_never_torn() {
        let rounds = if cfg!(miri) { 200 } else { 1_000_000 };
        let slot = Slot::new();
        slot.publish(&entry(1));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 1;
                    while !done.load(Ordering::Relaxed) {
                        let Some(found) = slot.snapshot() else { continue };
                        let n = found.key;
                        assert_eq!(format!("{found:?}"), format!("{:?}", entry(n)));
                        assert!(n >= last, "went back from {last} to {n}");
                        last = n;
                    }
                });
            }
            for n in 2..rounds {
                slot.publish(&entry(n));
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn snapshot_of_an_entry_that_never_settles_gives_up() {
        let slot = Slot::new();
        slot.sequence.store(7, Ordering::Relaxed);
        assert!(slot.snapshot().is_none());
    }
}
