//! One entry of the key table. Readers take no lock, even while the entry is being rewritten.
//!
//! A slot is a sequence lock. The writer (one at a time, under the control lock) makes the count
//! odd, writes the fields, and makes the count even. A reader copies the fields, and accepts them
//! if it has seen the same even count before and after. All fields are atomics, so an inconsistent
//! copy does no harm, and the reader tries again.
//!
//! The slot is in this module because an address and a length from two different entries must never
//! become a [`Region`].

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use super::Region;
use crate::Access;

/// How often a reader tries before it treats the entry as invalid. One try takes about 5 ns. A
/// writer takes about 10 ns, unless it is descheduled. If a writer takes longer, the key is being
/// invalidated, or has not been returned to the application yet, or its region is being
/// reregistered.
const MAX_TRIES: u32 = 1000;

/// The kind of object that a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Nothing: the slot is free.
    Free = 0,
    /// A memory region.
    Region = 1,
    /// The null region of a protection domain.
    NullRegion = 2,
    /// A memory window that is not bound.
    Unbound = 3,
    /// A bound type 1 window.
    Window1 = 4,
    /// A bound type 2 window (type 2B: domain and queue pair are checked).
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
    /// The whole key. A freed slot keeps its last key; a slot that was never used has 0.
    pub(crate) key: u32,
    /// The kind of object that the key names.
    pub(crate) kind: Kind,
    /// Protection domain.
    pub(crate) pd: u32,
    /// Queue pair of a bound type 2 window.
    pub(crate) qpn: u32,
    /// Access rights.
    pub(crate) access: Access,
    /// I/O virtual address of the first byte.
    pub(crate) iova: u64,
    /// The memory that the key gives access to.
    pub(crate) region: Region,
}

/// A slot of the key table. It is one cache line, so that a lookup costs at most one cache miss.
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

    /// Replaces the entry. The caller holds the control lock, so there is one writer at a time.
    pub(crate) fn publish(&self, entry: &Entry) {
        let (base, len) = entry.region.parts();
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the stores below also sees the odd count when it reads the
        // count again.
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

    /// A consistent copy of the entry. `None` if the entry kept changing for [`MAX_TRIES`] tries.
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
        // SAFETY: the count did not change, so one `publish` stored both values.
        let region = unsafe { Region::from_parts(base, len) };
        Some(Entry { key, kind, pd, qpn, access, iova, region })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// An entry in which all fields have the value `n`.
    fn entry(n: u32) -> Entry {
        let base = std::ptr::without_provenance_mut(n as usize);
        Entry {
            key: n,
            kind: Kind::from_raw(n % 6),
            pd: n,
            qpn: n,
            access: Access::from_bits_retain(n),
            iova: u64::from(n),
            // SAFETY: the region is never accessed.
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
