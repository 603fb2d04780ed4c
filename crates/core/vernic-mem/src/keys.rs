//! The choice of the key for a new region: unpredictable, and not reused soon.
//!
//! A key consists of 24 bits of index and 8 bits of generation (IBTA 10.6.3.3 leaves the layout to
//! the implementation). The index is the slot number under a secret permutation. The slot is drawn
//! at random from the free ones. A freed slot waits in quarantine until at least a quarter of the
//! table was freed after it. Its generation then advances, in an order that is secret for each
//! index. So 255 other generations come before the same key is used again.
//!
//! So a peer that knows some keys learns nothing about other keys, except that they differ. The
//! remaining attack is to guess. A key has 32 bits (IBTA has no more), and a peer that can send
//! packets to a queue pair may guess. An RC connection ends at the first wrong guess.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::random::Random;
use crate::table::{FIRST_BITS, MAX_SLOTS};

/// Number of slots that the first growth of the table adds. Each later growth adds twice as many as
/// the growth before it.
const FIRST_GROWTH: u32 = 1 << FIRST_BITS;

/// Number of Feistel rounds of a permutation. With round functions that look random, three rounds
/// are as good as a random permutation against an attacker that sees few of its values. Four rounds
/// also resist an attacker that chooses the values (Luby and Rackoff, 1988). The halves of a number
/// are short here (12 or 4 bits), so there are two more rounds.
const ROUNDS: u32 = 6;

/// The secret permutations: Feistel networks with SipHash as round function, keyed as [`Random`]
/// is. One evaluation takes about 0.1 us. Only the control path evaluates them. Module `index`
/// stores the results for the data path.
#[derive(Clone, Debug)]
pub(crate) struct Permutations {
    state: RandomState,
    own: u64,
}

/// One of the permutations.
#[derive(Clone, Copy)]
enum Permutation {
    /// From slot number to index: 24 bits.
    SlotToIndex,
    /// The order of the generations of the slot with this index: 8 bits.
    Generations(u32),
}

impl Permutations {
    fn new(random: &mut Random) -> Self {
        Self { state: RandomState::new(), own: random.next() }
    }

    /// The index of a slot.
    pub(crate) fn index_of(&self, slot: u32) -> u32 {
        self.forwards(Permutation::SlotToIndex, slot)
    }

    /// The key that follows `key` in the same slot. The sequence passes all 256 generations before
    /// it repeats.
    pub(crate) fn next_key(&self, key: u32) -> u32 {
        let which = Permutation::Generations(key >> 8);
        let place = self.backwards(which, key & 0xFF).wrapping_add(1) & 0xFF;
        (key & !0xFF) | self.forwards(which, place)
    }

    fn forwards(&self, which: Permutation, number: u32) -> u32 {
        let (bits, mask) = which.half();
        let (mut left, mut right) = (number >> bits, number & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(which, round, right) & mask);
        }
        left << bits | right
    }

    fn backwards(&self, which: Permutation, number: u32) -> u32 {
        let (bits, mask) = which.half();
        let (mut left, mut right) = (number >> bits, number & mask);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(which, round, left) & mask, left);
        }
        left << bits | right
    }

    fn mix(&self, which: Permutation, round: u32, half: u32) -> u32 {
        let number = match which {
            Permutation::SlotToIndex => 1 << 24,
            Permutation::Generations(index) => index,
        };
        let mut hasher = self.state.build_hasher();
        hasher.write_u64(self.own);
        hasher.write_u64(u64::from(number) << 32 | u64::from(round) << 16 | u64::from(half));
        hasher.finish() as u32
    }
}

impl Permutation {
    /// Number of bits in half a number, and the mask for them.
    const fn half(self) -> (u32, u32) {
        match self {
            Self::SlotToIndex => (12, 0xFFF),
            Self::Generations(_) => (4, 0xF),
        }
    }
}

/// The free slots of a table, and the keys for them.
#[derive(Debug)]
pub(crate) struct KeyAllocator {
    random: Random,
    permutations: Permutations,
    /// The slot with index 0. It is never used, so no key is ever 0.
    unused: u32,
    /// Number of slots in the table.
    capacity: u32,
    /// Slots that `take` may return.
    free: Vec<u32>,
    /// Freed slots, oldest first, that may not be used again soon.
    quarantine: VecDeque<u32>,
}

impl KeyAllocator {
    pub(crate) fn new() -> Self {
        let mut random = Random::new();
        let permutations = Permutations::new(&mut random);
        let unused = permutations.backwards(Permutation::SlotToIndex, 0);
        let (free, quarantine) = (Vec::new(), VecDeque::new());
        Self { random, permutations, unused, capacity: 0, free, quarantine }
    }

    pub(crate) const fn permutations(&self) -> &Permutations {
        &self.permutations
    }

    /// Number of slots that the table must have before the caller uses a slot from `take`.
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Takes a free slot, drawn at random. `None` if all slots are in use.
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

    /// Takes back a slot that `take` returned.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.quarantine.push_back(slot);
    }

    /// The key for a slot that was just taken. `last` is the slot's previous key, or 0 if it had
    /// none.
    pub(crate) fn key_for(&mut self, slot: u32, last: u32) -> u32 {
        if last == 0 {
            (self.permutations.index_of(slot) << 8) | (self.random.next() & 0xFF) as u32
        } else {
            self.permutations.next_key(last)
        }
    }

    /// Refills the free slots. If more than half of the table is in quarantine, or the table cannot
    /// grow, the older half of the quarantine becomes free. Otherwise the table grows.
    fn refill(&mut self) {
        let resting = self.quarantine.len();
        if resting > self.capacity as usize / 2 || self.capacity == MAX_SLOTS {
            self.free.extend(self.quarantine.drain(..resting.div_ceil(2)));
            return;
        }
        let growth = (self.capacity + FIRST_GROWTH).min(MAX_SLOTS - self.capacity);
        let new = self.capacity..self.capacity + growth;
        self.free.extend(new.filter(|&slot| slot != self.unused));
        self.capacity += growth;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const INDEX_MASK: u32 = (1 << 24) - 1;

    #[test]
    fn permutations_and_back_are_the_identity() {
        let permutations = Permutations::new(&mut Random::new());
        let step = if cfg!(miri) { 999_991 } else { 97 };
        for slot in (0..1 << 24).step_by(step) {
            let index = permutations.index_of(slot);
            assert!(index <= INDEX_MASK);
            assert_eq!(permutations.backwards(Permutation::SlotToIndex, index), slot);
        }
    }

    #[test]
    fn generation_passes_all_others_before_it_repeats() {
        let permutations = Permutations::new(&mut Random::new());
        let first = 0x1234_5678;
        let mut key = first;
        for round in 1..=256 {
            key = permutations.next_key(key);
            assert_eq!(key >> 8, first >> 8);
            assert_eq!(key == first, round == 256);
        }
    }

    #[test]
    fn keys_of_slots_that_are_related_are_not() {
        let mut keys = KeyAllocator::new();
        let mut index = |slot| keys.key_for(slot, 0) >> 8;
        // Two slot numbers differ by one bit, so their difference is always the same number. The
        // difference of their indexes must not be.
        for bit in [0, 11, 12, 22, 23] {
            let low = |n: u32| n & ((1 << bit) - 1) | (n >> bit) << (bit + 1);
            let mut differences = HashSet::new();
            for slot in (0..256).map(low) {
                let (with, without) = (index(slot | 1 << bit), index(slot));
                differences.insert((0, with ^ without));
                differences.insert((1, with.wrapping_sub(without) & INDEX_MASK));
            }
            assert!(differences.len() > 500, "bit {bit}: {} of 512", differences.len());
        }
    }

    #[test]
    fn the_last_step_of_a_generation_does_not_tell_the_next() {
        let keys = KeyAllocator::new();
        let mut key = 0x1234_5678;
        let mut steps = HashSet::new();
        for _ in 0..256 {
            let next = keys.permutations().next_key(key);
            steps.insert((next as u8).wrapping_sub(key as u8));
            key = next;
        }
        assert!(steps.len() > 100, "{} steps", steps.len());
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
        // One index is never used. Its slot may lie beyond the table.
        assert!((MAX_SLOTS as usize - 1..=MAX_SLOTS as usize).contains(&taken));
        keys.give_back(7);
        assert_eq!(keys.take(), Some(7));
        assert_eq!(keys.take(), None);
    }
}
