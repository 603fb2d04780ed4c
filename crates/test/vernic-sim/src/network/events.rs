//! The queue of events: a timing wheel, with a heap for what lies beyond its turn.
//!
//! Owns what is to happen, and when. Events come out by time; those of one time by what they are,
//! never by the order in which they went in, so a run depends on its seed alone.
//!
//! ```text
//!   due: sorted, the slot of now      wheel: 8192 slots of 4 ns, unsorted     later: a heap
//!   [ e e e e ]                       [ ][e e][ ][e][ ] ... [ ]               { timers, arrivals }
//!      ^ popped from the end               ^ sorted when its turn comes
//! ```
//! Nearly all events are a packet's next step, a microsecond ahead: they never see the heap.
//!
//! In a large network each look at memory is a miss of all caches, so an event is small and knows
//! much. It is two words: the first has its time within the slot and what it is, the second all
//! that a switch must know of a packet. The memory of a slot that is over is given to the next one,
//! while it is in the cache; once the wheel has warmed up, nothing is allocated.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::packet::{Label, Parcel};

/// A slot is `2^SLOT_BITS` picoseconds long: 4 ns. In a busy network of 1,000 hosts some dozens of
/// events fall into it, few enough to be sorted in the first cache.
const SLOT_BITS: u32 = 12;
/// Slots of the wheel: a turn of 34 us, longer than a link's delay and than most waits for it.
const SLOTS: u64 = 1 << 13;
/// Bits of a word of the map of slots in use.
const WORD: u64 = 64;

/// Bits of an event's first word: time within the slot, kind, port, and a number.
const PORT_BITS: u32 = 20;
const NUMBER_BITS: u32 = 28;
const KIND_SHIFT: u32 = PORT_BITS + NUMBER_BITS;
const TIME_SHIFT: u32 = 64 - SLOT_BITS;

/// Something that happens in the network. Ports are below 2^20, other numbers below 2^28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A packet has come in whole by a port.
    Arrive {
        /// The port that it came by.
        port: u32,
        /// The packet.
        packet: Parcel,
    },
    /// A PFC frame reaches a port: it pauses, or goes on.
    Pause {
        /// The port that may send no more, or may again.
        port: u32,
        /// Whether it is to pause.
        on: bool,
    },
    /// A port has sent its packet and may send the next.
    Free {
        /// The port.
        port: u32,
    },
    /// A deadline of a queue pair may have come.
    Timer {
        /// The end of a connection that the queue pair is.
        end: u32,
    },
    /// The load has a flow to begin.
    Flow {
        /// Number of the flow, where the load numbers them.
        number: u32,
    },
    /// Depths and rates are measured.
    Sample,
}

/// A packed event; within a slot the order of the words is that of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    word: u64,
    label: Label,
}

impl Entry {
    #[inline]
    const fn new(at: u64, event: Event) -> Self {
        let (kind, port, number, label) = match event {
            Event::Arrive { port, packet } => (0, port, packet.place, packet.label),
            Event::Pause { port, on } => (1, port, on as u32, Label::NONE),
            Event::Free { port } => (2, port, 0, Label::NONE),
            Event::Timer { end } => (3, 0, end, Label::NONE),
            Event::Flow { number } => (4, 0, number, Label::NONE),
            Event::Sample => (5, 0, 0, Label::NONE),
        };
        debug_assert!(port >> PORT_BITS == 0 && number >> NUMBER_BITS == 0);
        let what = kind << KIND_SHIFT | (port as u64) << NUMBER_BITS | number as u64;
        Self { word: at << TIME_SHIFT | what, label }
    }

    /// Picoseconds since the slot began.
    #[inline]
    const fn since_slot(self) -> u64 {
        self.word >> TIME_SHIFT
    }

    #[inline]
    const fn event(self) -> Event {
        let port = (self.word >> NUMBER_BITS) as u32 & ((1 << PORT_BITS) - 1);
        let number = self.word as u32 & ((1 << NUMBER_BITS) - 1);
        match self.word >> KIND_SHIFT & 0xF {
            0 => Event::Arrive { port, packet: Parcel { place: number, label: self.label } },
            1 => Event::Pause { port, on: number != 0 },
            2 => Event::Free { port },
            3 => Event::Timer { end: number },
            4 => Event::Flow { number },
            _ => Event::Sample,
        }
    }
}

/// What is to happen.
#[derive(Debug)]
pub(super) struct Events {
    /// Events of the present slot, the next one last.
    due: Vec<Entry>,
    wheel: Vec<Vec<Entry>>,
    /// A bit for each slot of the wheel that has events.
    used: Vec<u64>,
    /// Number of the present slot since time 0.
    slot: u64,
    in_wheel: usize,
    /// Memory of slots that are empty now. The one used last is taken first.
    spare: Vec<Vec<Entry>>,
    /// Events by slot.
    later: BinaryHeap<Reverse<(u64, Entry)>>,
}

impl Events {
    /// None at all, at time 0.
    pub(super) fn new() -> Self {
        Self {
            due: Vec::new(),
            wheel: (0..SLOTS).map(|_| Vec::new()).collect(),
            used: vec![0; (SLOTS / WORD) as usize],
            slot: 0,
            in_wheel: 0,
            spare: Vec::new(),
            later: BinaryHeap::new(),
        }
    }

    /// Adds an event. Its time in picoseconds is not before the present slot; it comes in that one
    /// if it is.
    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.insert((at >> SLOT_BITS).max(self.slot), Entry::new(at, event));
    }

    #[inline]
    fn insert(&mut self, slot: u64, entry: Entry) {
        if slot == self.slot {
            let place = self.due.partition_point(|other| other.word > entry.word);
            self.due.insert(place, entry);
        } else if slot - self.slot < SLOTS {
            let index = slot & (SLOTS - 1);
            let line = &mut self.wheel[index as usize];
            if line.capacity() == 0 {
                *line = self.spare.pop().unwrap_or_default();
            }
            line.push(entry);
            self.used[(index / WORD) as usize] |= 1 << (index % WORD);
            self.in_wheel += 1;
        } else {
            self.later.push(Reverse((slot, entry)));
        }
    }

    /// Takes the next event of the present slot off, with its time in picoseconds.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let begins = self.slot << SLOT_BITS;
        self.due.pop().map(|entry| (begins + entry.since_slot(), entry.event()))
    }

    /// Events of the present slot.
    pub(super) fn due(&self) -> impl Iterator<Item = Event> {
        self.due.iter().map(|entry| entry.event())
    }

    /// Moves on to the next slot that has events, unless the present one still has. Returns whether
    /// there is one.
    pub(super) fn turn(&mut self) -> bool {
        if !self.due.is_empty() {
            return true;
        }
        let first_later = self.later.peek().map(|Reverse((slot, _))| *slot);
        let next = match (self.next_used(), first_later) {
            (Some(wheel), Some(later)) => wheel.min(later),
            (Some(slot), None) | (None, Some(slot)) => slot,
            (None, None) => return false,
        };
        self.slot = next;
        let index = next & (SLOTS - 1);
        let due = std::mem::take(&mut self.wheel[index as usize]);
        self.spare.push(std::mem::replace(&mut self.due, due));
        self.used[(index / WORD) as usize] &= !(1 << (index % WORD));
        self.in_wheel -= self.due.len();
        self.due.sort_unstable_by_key(|entry| Reverse(entry.word));
        while let Some(Reverse((slot, entry))) = self.later.peek().copied()
            && slot - next < SLOTS
        {
            self.later.pop();
            self.insert(slot, entry);
        }
        true
    }

    /// Number of the next slot of the wheel that has events.
    fn next_used(&self) -> Option<u64> {
        if self.in_wheel == 0 {
            return None;
        }
        let first = (self.slot + 1) & (SLOTS - 1);
        let words = SLOTS / WORD;
        // Bounded: each word of the map once, and the first one for both of its halves.
        (0..=words).find_map(|step| {
            let word = (first / WORD + step) % words;
            let mut bits = self.used[word as usize];
            let low = (1 << (first % WORD)) - 1;
            match step {
                0 => bits &= !low,
                step if step == words => bits &= low,
                _ => {}
            }
            let index = word * WORD + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| self.slot + (index.wrapping_sub(self.slot) & (SLOTS - 1)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn packed_events_are_the_same_again() {
        let packet = Parcel { place: (1 << 28) - 1, label: Label::new(8191, u32::MAX, 4160, 3) };
        for event in [
            Event::Arrive { port: (1 << 20) - 1, packet },
            Event::Pause { port: 7, on: true },
            Event::Pause { port: 7, on: false },
            Event::Free { port: 9 },
            Event::Timer { end: (1 << 28) - 1 },
            Event::Flow { number: 3 },
            Event::Sample,
        ] {
            let entry = Entry::new(0x1234_5FFF, event);
            assert_eq!((entry.since_slot(), entry.event()), (0xFFF, event));
        }
        assert_eq!(size_of::<Entry>(), 16);
    }

    /// The next event, of whatever slot.
    fn next(events: &mut Events) -> Option<(u64, Event)> {
        events.turn().then(|| events.pop())?
    }

    #[test]
    fn events_come_by_time_whatever_the_distance_and_the_order_of_pushes() {
        let (mut rng, mut events) = (Rng::new(5), Events::new());
        let (mut model, mut now, mut popped) = (BinaryHeap::new(), 0, 0);
        for step in 0..200_000 {
            if rng.percent(52) || model.is_empty() {
                let far = rng.pick(&[0, 3_000, 1_000_000, 30_000_000, 40_000_000, 900_000_000]);
                let at = now + rng.below(far + 1);
                let event = Event::Timer { end: step };
                events.push(at, event);
                model.push(Reverse((at, step)));
            } else {
                let Reverse((at, end)) = model.pop().unwrap();
                assert_eq!(next(&mut events), Some((at, Event::Timer { end })));
                (now, popped) = (at, popped + 1);
            }
        }
        while let Some(Reverse((at, end))) = model.pop() {
            assert_eq!(next(&mut events), Some((at, Event::Timer { end })));
        }
        assert_eq!(next(&mut events), None);
        assert!(popped > 50_000);
    }
}
