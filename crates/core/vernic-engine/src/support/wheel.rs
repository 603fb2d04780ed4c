//! A timer wheel: six levels of 64 slots each. A tick is 16.4 us.
//!
//! Owns the deadlines of a lane. An entry is a time and a 32-bit key (a QPN). When the deadline of
//! a queue pair changes, its entry stays where it is. When the entry fires, the lane asks the queue
//! pair for its present deadline and inserts a new entry if there is one. So an ACK, which changes
//! the deadline, costs the wheel nothing.
//!
//! ```text
//!  level 0: 64 slots of 1 tick      (16.4 us .. 1.05 ms)
//!  level 1: 64 slots of 64 ticks    ( .. 67 ms)
//!  level 2: 64 slots of 64^2 ticks  ( .. 4.3 s)   and so on; level 5 ends at 13 days
//! ```
//!
//! An entry fires at most one tick late and never early. A deadline beyond the end of the last
//! level is put at the end of that level, and inserted again when its slot comes up.

use vernic_proto::Time;

/// Nanoseconds of a tick, as a power of two: finer than any timer of IBTA that matters (the
/// shortest RNR delay is 10 us, the shortest useful ACK timeout 67 us).
const TICK_SHIFT: u32 = 14;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tick: u64,
    key: u32,
}

#[derive(Debug)]
struct Level {
    occupied: u64,
    slots: [Vec<Entry>; SLOTS],
}

/// A timer wheel; see the head of this module.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// The last tick that was fired.
    now: u64,
    len: usize,
    levels: Box<[Level; LEVELS]>,
    /// Entries that are due and were not yet returned by `pop`.
    due: Vec<Entry>,
}

impl Wheel {
    /// Makes an empty wheel whose present tick is that of `now`.
    pub(crate) fn new(now: Time) -> Self {
        let level = || Level { occupied: 0, slots: std::array::from_fn(|_| Vec::new()) };
        Self {
            now: now.nanos() >> TICK_SHIFT,
            len: 0,
            levels: Box::new(std::array::from_fn(|_| level())),
            due: Vec::new(),
        }
    }

    /// Adds an entry with `key` at `time`, rounded up to a tick.
    pub(crate) fn insert(&mut self, time: Time, key: u32) {
        let tick = (time.nanos() >> TICK_SHIFT) + 1;
        self.len += 1;
        self.place(Entry { tick, key });
    }

    /// Returns when to call [`pop`](Self::pop) next: never later than the earliest entry's time
    /// plus a tick, and possibly earlier than that entry.
    pub(crate) fn next(&self) -> Option<Time> {
        if !self.due.is_empty() {
            return Some(Time(self.now << TICK_SHIFT));
        }
        if self.len == 0 {
            return None;
        }
        self.next_tick().map(|tick| Time(tick << TICK_SHIFT))
    }

    /// Removes an entry that is due by `now`, and returns its key.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        if self.due.is_empty() && self.len != 0 {
            self.advance(now.nanos() >> TICK_SHIFT);
        }
        let entry = self.due.pop()?;
        self.len -= 1;
        Some(entry.key)
    }

    /// Returns the first tick at which an entry fires or moves to a lower level.
    fn next_tick(&self) -> Option<u64> {
        let mut first: Option<u64> = None;
        for (level, row) in self.levels.iter().enumerate() {
            if row.occupied == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let position = self.now >> shift;
            // The slots after the present one, in the order in which they come up.
            let turned = row.occupied.rotate_right((position as u32 + 1) & (SLOTS as u32 - 1));
            let ahead = u64::from(turned.trailing_zeros()) + 1;
            let tick = (position + ahead) << shift;
            first = Some(first.map_or(tick, |f| f.min(tick)));
        }
        first
    }

    /// Advances to the tick `target`, or to an earlier tick at which an entry fires.
    fn advance(&mut self, target: u64) {
        // Bounded: each round empties at least one slot, and entries only move downwards.
        while self.due.is_empty() {
            match self.next_tick() {
                Some(tick) if tick <= target => self.turn_to(tick),
                _ => {
                    self.now = self.now.max(target);
                    return;
                }
            }
        }
    }

    fn turn_to(&mut self, tick: u64) {
        self.now = tick;
        for level in (0..LEVELS).rev() {
            let shift = SLOT_BITS * level as u32;
            if tick & ((1 << shift) - 1) != 0 {
                continue;
            }
            let slot = (tick >> shift) as usize & (SLOTS - 1);
            if self.levels[level].occupied & 1 << slot == 0 {
                continue;
            }
            self.levels[level].occupied &= !(1 << slot);
            let mut entries = std::mem::take(&mut self.levels[level].slots[slot]);
            for entry in entries.drain(..) {
                if entry.tick <= tick {
                    self.due.push(entry);
                } else {
                    self.place(entry);
                }
            }
            // The slot gets its allocation back, unless an entry was placed in it again meanwhile.
            let home = &mut self.levels[level].slots[slot];
            if home.is_empty() {
                *home = entries;
            }
        }
    }

    fn place(&mut self, entry: Entry) {
        let ahead = entry.tick.saturating_sub(self.now).max(1);
        let last = (1u64 << (SLOT_BITS * LEVELS as u32)) - 1;
        let ahead = ahead.min(last - (1 << (SLOT_BITS * (LEVELS as u32 - 1))));
        let at = self.now + ahead;
        let level = ((63 - ahead.leading_zeros()) / SLOT_BITS) as usize;
        let slot = (at >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
        self.levels[level].occupied |= 1 << slot;
        self.levels[level].slots[slot].push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fire_all(wheel: &mut Wheel, step: u64, end: u64) -> Vec<(u64, u32)> {
        let mut fired = Vec::new();
        let mut now = 0;
        while now <= end {
            while let Some(key) = wheel.pop(Time(now)) {
                fired.push((now, key));
            }
            now += step;
        }
        fired
    }

    #[test]
    fn entries_of_every_level_fire_once_not_early_and_at_most_two_ticks_late() {
        let tick = 1u64 << TICK_SHIFT;
        let times: Vec<u64> =
            (0..26).flat_map(|p| [(1u64 << p) * 1000, (1u64 << p) * 1000 + 777]).collect();
        let mut wheel = Wheel::new(Time(0));
        for (key, &time) in times.iter().enumerate() {
            wheel.insert(Time(time), key as u32);
        }
        // The test jumps to each time that `next` returns, so it needs no fixed step.
        let mut seen = vec![false; times.len()];
        while let Some(next) = wheel.next() {
            while let Some(key) = wheel.pop(next) {
                let time = times[key as usize];
                assert!(next.nanos() >= time, "key {key} early");
                assert!(next.nanos() <= time + 2 * tick, "key {key} late");
                assert!(!std::mem::replace(&mut seen[key as usize], true));
            }
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn a_long_silence_loses_no_entry() {
        let mut wheel = Wheel::new(Time(0));
        for key in 0..1000u32 {
            wheel.insert(Time(u64::from(key) * 1_000_003), key);
        }
        let mut keys: Vec<u32> =
            fire_all(&mut wheel, 10_000_000_000, 20_000_000_000).iter().map(|f| f.1).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn an_entry_in_the_past_fires_at_the_next_tick() {
        let mut wheel = Wheel::new(Time(1_000_000_000));
        wheel.insert(Time(5), 1);
        let next = wheel.next().unwrap();
        assert_eq!(wheel.pop(next), Some(1));
        assert_eq!(wheel.pop(next), None);
    }
}
