//! The map from the index part of a key to a slot: a hash table that the data path reads without a
//! lock.
//!
//! An index is a secret permutation of a slot number (module `keys`). Computing the permutation
//! would be too slow for a lookup, so this table stores the results. Indexes are as good as random,
//! so the low bits of an index serve as its hash. A slot keeps its index as long as the device
//! exists. So a published table never changes. When more slots are needed, a larger table replaces
//! it.
//!
//! ```text
//!   newest --> [ index 24 | segment 4 | position 24 ] [ empty ] ...   at most half are taken
//! ```
//!
//! Limits: 14 tables, which together use at most 64 bytes for each slot, and usually half of that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::table::{FIRST_BITS, Location, SEGMENTS};

/// A bucket without a slot. No index has so high a value.
const EMPTY: u64 = u64::MAX;

/// Bits of a slot's position in its segment.
const POSITION_BITS: u32 = 24;

/// Number of tables: a power of two, so that `% TABLES` replaces a bounds check.
const TABLES: usize = SEGMENTS.next_power_of_two();

/// The tables, one for each size that the slot table can have.
#[derive(Debug)]
pub(crate) struct IndexTable {
    tables: [OnceLock<Box<[u64]>>; TABLES],
    newest: AtomicUsize,
}

impl IndexTable {
    pub(crate) const fn new() -> Self {
        Self { tables: [const { OnceLock::new() }; TABLES], newest: AtomicUsize::new(0) }
    }

    /// The location of the key's slot, if the slot exists.
    #[inline(always)]
    pub(crate) fn find(&self, key: u32) -> Option<Location> {
        let index = u64::from(key >> 8);
        let buckets = self.tables[self.newest.load(Ordering::Acquire) % TABLES].get()?;
        let bucket = *buckets.get(index as usize & buckets.len().wrapping_sub(1))?;
        let bucket = if bucket >> 32 == index { bucket } else { search(buckets, index)? };
        let position = bucket as u32 & ((1 << POSITION_BITS) - 1);
        Some(Location { segment: bucket as u32 >> POSITION_BITS, position })
    }

    /// The number of the key's slot, if the slot exists.
    pub(crate) fn slot_of(&self, key: u32) -> Option<u32> {
        self.find(key).map(Location::number)
    }

    /// Adds all slots below `end`, which is a size of the slot table. `index_of` returns the index
    /// of a slot. A slot with index 0 is left out. The caller holds the control lock.
    pub(crate) fn grow(&self, end: u32, index_of: impl Fn(u32) -> u32) {
        let level = (end >> FIRST_BITS).max(1).ilog2();
        let Some(table) = self.tables.get(level as usize) else { return };
        if table.get().is_some() {
            return;
        }
        let mut buckets = vec![EMPTY; 4 << (FIRST_BITS + level)].into_boxed_slice();
        let before = level.checked_sub(1).and_then(|level| self.tables[level as usize].get());
        let known = before.into_iter().flatten().filter(|&&bucket| bucket != EMPTY);
        known.for_each(|&bucket| insert(&mut buckets, bucket));
        let first_new = if before.is_some() { ((1 << level) - 1) << FIRST_BITS } else { 0 };
        for slot in first_new..end {
            let index = index_of(slot);
            if index != 0 {
                let Location { segment, position } = Location::of(slot);
                let there = segment << POSITION_BITS | position;
                insert(&mut buckets, u64::from(index) << 32 | u64::from(there));
            }
        }
        let _ = table.set(buckets);
        self.newest.store(level as usize, Ordering::Release);
    }
}

/// The bucket of an index that is not in the first bucket of its hash.
#[cold]
#[inline(never)]
fn search(buckets: &[u64], index: u64) -> Option<u64> {
    let mask = buckets.len() - 1;
    let mut at = index as usize & mask;
    // The loop ends at an empty bucket at the latest.
    while buckets[at] != EMPTY && buckets[at] >> 32 != index {
        at = (at + 1) & mask;
    }
    Some(buckets[at]).filter(|&bucket| bucket != EMPTY)
}

/// Stores a bucket in the next empty bucket. At least half of the buckets are empty.
fn insert(buckets: &mut [u64], bucket: u64) {
    let mask = buckets.len() - 1;
    let mut at = (bucket >> 32) as usize & mask;
    while buckets[at] != EMPTY {
        at = (at + 1) & mask;
    }
    buckets[at] = bucket;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_their_index_after_each_growth_and_no_others() {
        let table = IndexTable::new();
        assert_eq!(table.slot_of(0x1234_5678), None);
        // All indexes hash to the same few buckets, which wrap around the end of the table. Slot 5
        // is never used.
        let index_of = |slot: u32| if slot == 5 { 0 } else { 0x00FF_FFFF - slot };
        for end in [1 << FIRST_BITS, 3 << FIRST_BITS, 7 << FIRST_BITS] {
            for _ in 0..2 {
                table.grow(end, index_of);
            }
            let found = |slot: u32| table.slot_of(index_of(slot) << 8 | 0x5A);
            assert!((0..end).all(|slot| found(slot) == (slot != 5).then_some(slot)));
            assert_eq!((found(end), table.slot_of(0)), (None, None));
        }
    }
}
