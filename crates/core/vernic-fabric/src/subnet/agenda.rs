//! When things are due, and which are due now.

use std::collections::VecDeque;

use crate::Time;

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// Things by number, each due at one time at most. A binary heap in which each thing knows its
/// place, so that a time that changes replaces the one before.
#[derive(Clone, Debug)]
pub(super) struct Agenda {
    heap: Vec<(Time, u32)>,
    places: Vec<u32>,
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
}

impl Agenda {
    /// Makes an agenda of so many things, none of them due.
    pub(super) fn new(things: usize) -> Self {
        Self {
            heap: Vec::with_capacity(things),
            places: vec![NOWHERE; things],
            ready: VecDeque::with_capacity(things),
            is_ready: vec![false; things],
        }
    }
    /// Makes a thing due now, behind those that are.
    pub(super) fn touch(&mut self, thing: usize) {
        if !std::mem::replace(&mut self.is_ready[thing], true) {
            self.ready.push_back(thing as u32);
        }
    }
    /// Makes a thing due at a time alone, or never.
    pub(super) fn plan(&mut self, thing: usize, at: Option<Time>) {
        match (at, self.places[thing]) {
            (None, NOWHERE) => {}
            (None, place) => self.remove(place as usize),
            (Some(at), NOWHERE) => {
                self.heap.push((at, thing as u32));
                self.rise(self.heap.len() - 1);
            }
            (Some(at), place) => {
                let place = place as usize;
                let before = std::mem::replace(&mut self.heap[place].0, at);
                if at < before { self.rise(place) } else { self.sink(place) }
            }
        }
    }
    /// Takes a thing that is due now, if one is.
    pub(super) fn pop_ready(&mut self) -> Option<usize> {
        let thing = self.ready.pop_front()? as usize;
        self.is_ready[thing] = false;
        Some(thing)
    }
    /// Makes the thing whose time comes first due now, if that is not after `until`. Returns its
    /// time.
    pub(super) fn advance(&mut self, until: Time) -> Option<Time> {
        let (at, thing) = *self.heap.first()?;
        if at > until {
            return None;
        }
        self.remove(0);
        self.touch(thing as usize);
        Some(at)
    }
    /// Returns when the next thing is due: [`Time`] 0 if one is due now.
    pub(super) fn next(&self) -> Option<Time> {
        if !self.ready.is_empty() {
            return Some(Time(0));
        }
        self.heap.first().map(|(at, _)| *at)
    }

    fn remove(&mut self, place: usize) {
        let (_, thing) = self.heap.swap_remove(place);
        self.places[thing as usize] = NOWHERE;
        if place < self.heap.len() {
            self.rise(place);
            self.sink(place);
        }
    }
    /// Moves an entry to where all above are earlier.
    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }
    /// Moves an entry to where all below are later.
    fn sink(&mut self, mut place: usize) {
        loop {
            let children = (2 * place + 1..2 * place + 3).filter(|child| *child < self.heap.len());
            let Some(first) = children.min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[place] <= self.heap[first] {
                break;
            }
            self.heap.swap(place, first);
            self.note(place);
            place = first;
        }
        self.note(place);
    }
    fn note(&mut self, place: usize) {
        self.places[self.heap[place].1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_come_in_the_order_of_their_last_time() {
        let mut agenda = Agenda::new(100);
        let mut seed = 1_u64;
        let mut times = vec![None; 100];
        for _ in 0..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let thing = (seed >> 33) as usize % 100;
            times[thing] = (seed >> 40 & 7 != 0).then_some(Time(seed >> 48));
            agenda.plan(thing, times[thing]);
        }
        let mut expected: Vec<_> =
            (0..100).filter_map(|thing| Some((times[thing]?, thing))).collect();
        expected.sort();
        let mut seen = Vec::new();
        while let Some(at) = agenda.advance(Time(u64::MAX)) {
            seen.push((at, agenda.pop_ready().unwrap()));
        }
        assert_eq!(seen, expected);
        assert_eq!((agenda.next(), agenda.pop_ready()), (None, None));
    }

    #[test]
    fn what_is_touched_is_due_once_and_in_order() {
        let mut agenda = Agenda::new(3);
        agenda.plan(2, Some(Time(9)));
        for thing in [1, 0, 1] {
            agenda.touch(thing);
        }
        assert_eq!(agenda.next(), Some(Time(0)));
        assert_eq!([(); 3].map(|()| agenda.pop_ready()), [Some(1), Some(0), None]);
        assert_eq!((agenda.next(), agenda.advance(Time(8))), (Some(Time(9)), None));
        assert_eq!((agenda.advance(Time(9)), agenda.pop_ready()), (Some(Time(9)), Some(2)));
    }
}
