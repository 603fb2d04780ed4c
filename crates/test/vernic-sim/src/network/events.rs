//! What is to happen, and when: each node has its own events.
//!
//! Owns when each node has something to do, and what that is, apart from packets, which lie in the
//! lines of the ports that sent them. A node is told of no other node's event sooner than a link's
//! delay ahead. So the world runs node by node through a window of time that is no longer: whatever
//! happens in it at another node, this one learns of it in a later window.
//!
//! ```text
//!             a window
//!   node 0   |e  e   e | e          all events of node 0 in the window, then
//!   node 1   | e    e e|e   e       all of node 1: its memory is in the cache, and what
//!   node 2   |  e e    |   e        the other nodes do does not disturb it
//! ```
//! Events of one node come out by time; those of one time by what they are (packets, frames of
//! PFC, links that are free, timers, flows) and by port or number. Frames for one port come in the
//! order in which they were sent. So a run depends on its seed alone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// When nothing is to happen.
pub(super) const NEVER: u64 = u64::MAX;

/// Bits of a timer's word that are its generation, and those of the end before them.
const GENERATION_BITS: u32 = 32;
const END_BITS: u32 = 28;
/// Marks the word of a flow: greater than all words of timers.
const FLOW: u64 = 1 << (GENERATION_BITS + END_BITS);

/// Something that happens at a node by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
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
        /// The use of the end that it is of.
        generation: u32,
    },
    /// A flow begins.
    Flow {
        /// Number of its connection.
        number: u32,
    },
}

/// A PFC frame under way.
#[derive(Clone, Copy, Debug)]
struct Frame {
    at: u64,
    port: u32,
    on: bool,
}

/// What is to happen at one node, apart from packets and timers.
#[derive(Debug, Default)]
struct Agenda {
    /// Ports whose links are going to be free: the next one last. Each port is in it once.
    frees: Vec<(u64, u32)>,
    /// Frames of PFC, the next one first.
    frames: VecDeque<Frame>,
}

/// What is to happen.
#[derive(Debug)]
pub(super) struct Events {
    /// By node: when it has something to do again, packets that come in included.
    next: Vec<u64>,
    agendas: Vec<Agenda>,
    /// By host: timers and flows, each a word.
    timers: Vec<BinaryHeap<Reverse<(u64, u64)>>>,
}

impl Events {
    /// None at all, of so many nodes, of which the first ones are hosts.
    pub(super) fn new(hosts: u32, nodes: u32) -> Self {
        Self {
            next: vec![NEVER; nodes as usize],
            agendas: (0..nodes).map(|_| Agenda::default()).collect(),
            timers: (0..hosts).map(|_| BinaryHeap::new()).collect(),
        }
    }

    /// When a node has something to do.
    #[inline]
    pub(super) fn next(&self, node: u32) -> u64 {
        self.next[node as usize]
    }

    /// When the first of all nodes has something to do.
    pub(super) fn first(&self) -> u64 {
        self.next.iter().copied().min().unwrap_or(NEVER)
    }

    /// A node has something to do at that time, too.
    #[inline]
    pub(super) fn note(&mut self, node: u32, at: u64) {
        let next = &mut self.next[node as usize];
        *next = at.min(*next);
    }

    /// A node has done what it had to; packets come in again at `arrival`.
    #[inline]
    pub(super) fn settle(&mut self, node: u32, arrival: u64) {
        self.next[node as usize] = self.own(node).min(arrival);
    }

    /// The link of a port is going to be free.
    #[inline]
    pub(super) fn push_free(&mut self, node: u32, at: u64, port: u32) {
        let frees = &mut self.agendas[node as usize].frees;
        let later = frees.iter().rposition(|other| *other > (at, port));
        frees.insert(later.map_or(0, |place| place + 1), (at, port));
        self.note(node, at);
    }

    /// A PFC frame is going to reach a port.
    pub(super) fn push_pause(&mut self, node: u32, at: u64, (port, on): (u32, bool)) {
        let frames = &mut self.agendas[node as usize].frames;
        let place = frames.partition_point(|other| (other.at, other.port) <= (at, port));
        frames.insert(place, Frame { at, port, on });
        self.note(node, at);
    }

    /// An end of a host wants to be asked.
    #[inline]
    pub(super) fn push_timer(&mut self, host: u32, at: u64, (end, generation): (u32, u32)) {
        debug_assert!(end >> END_BITS == 0);
        let word = u64::from(end) << GENERATION_BITS | u64::from(generation);
        self.timers[host as usize].push(Reverse((at, word)));
        self.note(host, at);
    }

    /// A flow of a host is going to begin.
    pub(super) fn push_flow(&mut self, host: u32, at: u64, number: u32) {
        self.timers[host as usize].push(Reverse((at, FLOW | u64::from(number))));
        self.note(host, at);
    }

    /// When the next event of a node comes, packets left out.
    #[inline]
    pub(super) fn own(&self, node: u32) -> u64 {
        let Agenda { frees, frames } = &self.agendas[node as usize];
        let timer = self.timers.get(node as usize).and_then(BinaryHeap::peek);
        let timer = timer.map_or(NEVER, |Reverse((at, _))| *at);
        let frame = frames.front().map_or(NEVER, |frame| frame.at);
        frees.last().map_or(NEVER, |(at, _)| *at).min(frame).min(timer)
    }

    /// Takes the event off that comes at a time which [`own`](Self::own) has told.
    #[inline]
    pub(super) fn take(&mut self, node: u32, at: u64) -> Option<Event> {
        let Agenda { frees, frames } = &mut self.agendas[node as usize];
        if let Some(Frame { port, on, .. }) = frames.front().copied().filter(|frame| frame.at == at)
        {
            frames.pop_front();
            return Some(Event::Pause { port, on });
        }
        if let Some((_, port)) = frees.pop_if(|free| free.0 == at) {
            return Some(Event::Free { port });
        }
        let Reverse((_, word)) = self.timers.get_mut(node as usize)?.pop()?;
        if word & FLOW != 0 {
            return Some(Event::Flow { number: (word ^ FLOW) as u32 });
        }
        let end = (word >> GENERATION_BITS) as u32;
        Some(Event::Timer { end, generation: word as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Takes all events of a node off.
    fn all(events: &mut Events, node: u32) -> Vec<(u64, Event)> {
        let next = || {
            let at = events.own(node);
            events.take(node, at).map(|event| (at, event))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn events_of_one_time_come_by_what_they_are() {
        let mut events = Events::new(2, 3);
        events.push_flow(1, 5, u32::MAX);
        events.push_timer(1, 5, ((1 << 28) - 1, u32::MAX));
        events.push_timer(1, 5, (3, 0));
        events.push_free(1, 5, 8);
        events.push_pause(1, 5, (7, true));
        events.push_pause(1, 5, (7, false));
        events.push_pause(1, 5, (6, true));
        events.push_free(1, 4, 9);
        assert_eq!((events.next(1), events.next(0), events.first()), (4, NEVER, 4));
        let expected = [
            (4, Event::Free { port: 9 }),
            (5, Event::Pause { port: 6, on: true }),
            (5, Event::Pause { port: 7, on: true }),
            (5, Event::Pause { port: 7, on: false }),
            (5, Event::Free { port: 8 }),
            (5, Event::Timer { end: 3, generation: 0 }),
            (5, Event::Timer { end: (1 << 28) - 1, generation: u32::MAX }),
            (5, Event::Flow { number: u32::MAX }),
        ];
        assert_eq!(all(&mut events, 1), expected);
        events.settle(1, 77);
        assert_eq!(events.next(1), 77);
    }

    #[test]
    fn events_of_a_node_come_by_time_whatever_the_order_of_pushes() {
        let (mut rng, mut events) = (Rng::new(5), Events::new(1, 1));
        for number in 0..3_000 {
            let at = rng.below(1_000);
            match number % 3 {
                0 => events.push_free(0, at, number),
                1 => events.push_pause(0, at, (number, false)),
                _ => events.push_timer(0, at, (number, 0)),
            }
        }
        let times: Vec<_> = all(&mut events, 0).iter().map(|(at, _)| *at).collect();
        assert!(times.is_sorted() && times.len() == 3_000);
    }
}
