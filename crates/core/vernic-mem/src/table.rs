//! The slot table. It grows by segments that double in size, and never moves a slot, so readers
//! need no lock.

use std::sync::OnceLock;

use crate::racy::Slot;

/// Slots of the first segment, as a power of 2. The segment takes 64 KiB, the least that a device
/// costs. Miri needs half a minute for so many keys, in each test: there the segment is small.
pub(crate) const FIRST_BITS: u32 = if cfg!(miri) { 4 } else { 10 };
/// Number of segments, with 2^10, 2^11, ... 2^23 slots.
pub(crate) const SEGMENTS: usize = 14;

/// Number of slots in a full table: 2^24 - 2^10.
pub(crate) const MAX_SLOTS: u32 = ((1 << SEGMENTS) - 1) << FIRST_BITS;

/// The location of a slot in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// Segment, below 2^4.
    pub(crate) segment: u32,
    /// Position in the segment, below 2^23.
    pub(crate) position: u32,
}

impl Location {
    /// The location of slot `number`, which is below 2^24.
    pub(crate) const fn of(number: u32) -> Self {
        let shifted = number + (1 << FIRST_BITS);
        let segment = shifted.ilog2() - FIRST_BITS;
        Self { segment, position: shifted - (1 << (segment + FIRST_BITS)) }
    }

    /// The number of the slot at this location.
    pub(crate) const fn number(self) -> u32 {
        (((1 << self.segment) - 1) << FIRST_BITS) + self.position
    }
}

/// The slots by number, allocated segment by segment.
#[derive(Debug)]
pub(crate) struct Table {
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self { segments: [const { OnceLock::new() }; SEGMENTS] }
    }

    /// The slot with this number, if its segment exists. `number` is below 2^24.
    pub(crate) fn get(&self, number: u32) -> Option<&Slot> {
        self.at(Location::of(number))
    }

    /// The slot at this location, if its segment exists.
    #[inline(always)]
    pub(crate) fn at(&self, location: Location) -> Option<&Slot> {
        self.segments.get(location.segment as usize)?.get()?.get(location.position as usize)
    }

    /// Allocates all slots below `end`, which is at most [`MAX_SLOTS`].
    pub(crate) fn grow(&self, end: u32) {
        for (i, segment) in self.segments.iter().enumerate() {
            if ((1_u32 << i) - 1) << FIRST_BITS >= end {
                break;
            }
            segment
                .get_or_init(|| (0..1 << (FIRST_BITS as usize + i)).map(|_| Slot::new()).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_number_has_its_own_place() {
        let first = 1 << FIRST_BITS;
        for (number, segment, position) in [
            (0, 0, 0),
            (first - 1, 0, first - 1),
            (first, 1, 0),
            (3 * first - 1, 1, 2 * first - 1),
            (3 * first, 2, 0),
            (MAX_SLOTS - 1, 13, (first << 13) - 1),
            (MAX_SLOTS, 14, 0),
        ] {
            assert_eq!(Location::of(number), Location { segment, position });
            assert_eq!(Location { segment, position }.number(), number);
        }
    }

    #[test]
    fn slots_exist_only_after_growth() {
        let table = Table::new();
        assert!(table.get(0).is_none());
        let first = 1 << FIRST_BITS;
        table.grow(first + 1);
        assert!(table.get(3 * first - 1).is_some());
        assert!(table.get(3 * first).is_none());
        assert!(table.get((1 << 24) - 1).is_none());
    }
}
