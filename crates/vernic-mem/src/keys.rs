//! Which key a new region gets: unpredictable, and not soon the same again.
//!
//! A key is 24 bits of index and 8 bits of generation (IBTA 10.6.3.3 leaves the layout to us). The
//! index is the slot number scrambled by a bijection drawn at start; the slot is drawn at random
//! among the free ones. A freed slot waits in quarantine until at least a quarter of the table was
//! freed after it, and its generation moves by an odd step, so it passes 255 others before it
//! comes back.
//!
//! This keeps a peer from guessing a key from none or few others. It is no cryptography: who can
//! send packets to a queue pair may try all 2^32 keys (IBTA has no more bits).

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::table::MAX_SLOTS;

const INDEX_MASK: u32 = (1 << 24) - 1;

/// Slots added first; later each growth doubles the table.
const FIRST_GROWTH: u32 = 1 << 10;

/// Random numbers for the control path: SipHash, keyed by the operating system, of two numbers. The
/// key is one of the process's, and its children's; the first number is the device's alone.
#[derive(Debug)]
pub(crate) struct Random {
    state: RandomState,
    own: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        // Where the system refuses (a sandbox may), there is the key still.
        let own = getrandom::u64().unwrap_or_default();
        Self { state: RandomState::new(), own, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = self.state.build_hasher();
        hasher.write_u64(self.own);
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// A number below `end` > 0. The bias is below 2^-32 for any `end` here.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A secret bijection of 24 bits: about 3 ns backwards, which is what each lookup pays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scramble {
    first: u32,
    second: u32,
    first_inverse: u32,
    second_inverse: u32,
    mask: u32,
    steps: u32,
}

impl Scramble {
    fn new(random: &mut Random) -> Self {
        let (first, second) = (random.next() as u32 | 1, random.next() as u32 | 1);
        Self {
            first,
            second,
            first_inverse: inverse(first),
            second_inverse: inverse(second),
            mask: random.next() as u32 & INDEX_MASK,
            steps: random.next() as u32 | 1,
        }
    }

    /// Slot number to index.
    fn index_of(self, slot: u32) -> u32 {
        let x = slot.wrapping_mul(self.first) & INDEX_MASK;
        let x = (x ^ (x >> 12)).wrapping_mul(self.second) & INDEX_MASK;
        x ^ (x >> 12) ^ self.mask
    }

    /// Key to slot number.
    #[inline(always)]
    pub(crate) fn slot_of(self, key: u32) -> u32 {
        let x = (key >> 8) ^ self.mask;
        // A shift by half the width undoes itself.
        let x = (x ^ (x >> 12)).wrapping_mul(self.second_inverse) & INDEX_MASK;
        (x ^ (x >> 12)).wrapping_mul(self.first_inverse) & INDEX_MASK
    }

    /// The key that follows `key` in the same slot: the generation moves by an odd step, which
    /// depends on slot and device.
    pub(crate) fn next_key(self, key: u32) -> u32 {
        let step = ((key >> 8).wrapping_mul(self.steps) >> 16) as u8 | 1;
        (key & !0xFF) | u32::from((key as u8).wrapping_add(step))
    }
}

/// The inverse of odd `x` modulo 2^32: each of Newton's steps doubles the right bits, from 3.
const fn inverse(x: u32) -> u32 {
    let mut y = x;
    let mut i = 0;
    while i < 4 {
        y = y.wrapping_mul(2u32.wrapping_sub(x.wrapping_mul(y)));
        i += 1;
    }
    y
}

/// Free slots of a table, and the keys for them.
#[derive(Debug)]
pub(crate) struct KeyAllocator {
    random: Random,
    scramble: Scramble,
    /// Slots in the table.
    capacity: u32,
    /// Slots that may be handed out.
    free: Vec<u32>,
    /// Slots freed, oldest first, that have to rest.
    quarantine: VecDeque<u32>,
}

impl KeyAllocator {
    pub(crate) fn new() -> Self {
        let mut random = Random::new();
        let scramble = Scramble::new(&mut random);
        Self { random, scramble, capacity: 0, free: Vec::new(), quarantine: VecDeque::new() }
    }

    pub(crate) const fn scramble(&self) -> Scramble {
        self.scramble
    }

    /// Slots that the table has to have before the next `take`'s result is used.
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// A free slot, drawn at random, or `None` if all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.refill();
        }
        if self.free.is_empty() {
            return None;
        }
        let place = self.random.below(self.free.len());
        Some(self.free.swap_remove(place))
    }

    /// Takes back a slot that `take` gave.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.quarantine.push_back(slot);
    }

    /// The key for a slot just taken: `last` is the slot's last key, 0 if it never had one.
    pub(crate) fn key_for(&mut self, slot: u32, last: u32) -> u32 {
        if last == 0 {
            (self.scramble.index_of(slot) << 8) | (self.random.next() & 0xFF) as u32
        } else {
            self.scramble.next_key(last)
        }
    }

    /// Moves the older half of the quarantine to the free slots if it holds more than half of the
    /// table, or if the table cannot grow; grows the table otherwise.
    fn refill(&mut self) {
        let resting = self.quarantine.len();
        if resting > self.capacity as usize / 2 || self.capacity == MAX_SLOTS {
            self.free.extend(self.quarantine.drain(..resting.div_ceil(2)));
            return;
        }
        let growth = (self.capacity + FIRST_GROWTH).min(MAX_SLOTS - self.capacity);
        let scramble = self.scramble;
        // Index 0 is not used, so no key is ever 0.
        let new = self.capacity..self.capacity + growth;
        self.free.extend(new.filter(|&slot| scramble.index_of(slot) != 0));
        self.capacity += growth;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn scramble_and_back_is_the_identity_on_24_bits() {
        let scramble = Scramble::new(&mut Random::new());
        let step = if cfg!(miri) { 99_991 } else { 97 };
        for slot in (0..1 << 24).step_by(step) {
            let index = scramble.index_of(slot);
            assert!(index <= INDEX_MASK);
            assert_eq!(scramble.slot_of((index << 8) | 0x5A), slot);
        }
    }

    #[test]
    fn generation_passes_all_others_before_it_repeats() {
        let scramble = Scramble::new(&mut Random::new());
        let first = 0x1234_5678;
        let mut key = first;
        for round in 1..=256 {
            key = scramble.next_key(key);
            assert_eq!(key >> 8, first >> 8);
            assert_eq!(key == first, round == 256);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn freed_slot_rests_until_a_quarter_of_the_table_was_freed_after_it() {
        let mut keys = KeyAllocator::new();
        let mut freed_at = HashMap::new();
        for now in 0..20_000_u32 {
            let slot = keys.take().unwrap();
            if let Some(before) = freed_at.insert(slot, now) {
                assert!(now - before >= 256, "slot {slot} came back after {}", now - before);
            }
            keys.give_back(slot);
        }
        assert_eq!(keys.capacity(), 1024);
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn table_grows_to_its_limit_and_then_says_no() {
        let mut keys = KeyAllocator::new();
        let taken = std::iter::from_fn(|| keys.take()).count();
        // One index is never used; it may belong to a slot beyond the table.
        assert!((MAX_SLOTS as usize - 1..=MAX_SLOTS as usize).contains(&taken));
        keys.give_back(7);
        assert_eq!(keys.take(), Some(7));
        assert_eq!(keys.take(), None);
    }
}
