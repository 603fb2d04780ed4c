//! Packets that cannot leave yet, each with what it waits for. One queue of the interface: of one
//! key the oldest goes first when there is no room.

use std::collections::VecDeque;
use std::net::IpAddr;

use vernic_wire::Gid;
use vernic_wire::ipoib::HardwareAddress;

use crate::config::Config;

/// What a packet waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitsFor {
    /// The hardware address of a neighbor, and the path to it.
    Neighbor(IpAddr),
    /// The path to an interface that has asked us.
    Path(HardwareAddress),
    /// Membership of a group.
    Group(Gid),
    /// A connection to an interface.
    Connection(HardwareAddress),
}

/// Packet with its encapsulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    /// Where the host sends it to; `None` of address resolution, which no connection carries.
    pub(crate) ip: Option<IpAddr>,
}

/// Most packets that wait for one thing: what a sender may have sent while an answer is on its way.
const MAX_OF_ONE: usize = 16;

#[derive(Debug)]
pub(crate) struct Waiting {
    frames: VecDeque<(WaitsFor, Frame)>,
    bytes: usize,
    max_frames: usize,
    max_bytes: usize,
}

impl Waiting {
    pub(crate) const fn new(config: &Config) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            max_frames: config.max_waiting,
            max_bytes: config.max_waiting_bytes,
        }
    }
    /// Adds a packet; returns how many were dropped for it, itself included.
    pub(crate) fn push(&mut self, key: WaitsFor, frame: Frame) -> u64 {
        let mut dropped = 0;
        let same = self.frames.iter().filter(|(other, _)| *other == key).count();
        if same >= MAX_OF_ONE {
            dropped += self.drop_first(key);
        }
        let has_room = self.frames.len() < self.max_frames
            && self.bytes.saturating_add(frame.bytes.len()) <= self.max_bytes;
        if !has_room {
            return dropped + 1;
        }
        self.bytes += frame.bytes.len();
        self.frames.push_back((key, frame));
        dropped
    }
    fn drop_first(&mut self, key: WaitsFor) -> u64 {
        let at = self.frames.iter().position(|(other, _)| *other == key);
        let Some((_, frame)) = at.and_then(|at| self.frames.remove(at)) else { return 0 };
        self.bytes -= frame.bytes.len();
        1
    }
    /// Takes out all that wait for the key, in their order.
    pub(crate) fn take(&mut self, key: WaitsFor) -> Vec<Frame> {
        self.take_if(|other| other == key).into_iter().map(|(_, frame)| frame).collect()
    }
    /// Takes out all that wait for such keys, in their order.
    pub(crate) fn take_if(&mut self, is_key: impl Fn(WaitsFor) -> bool) -> Vec<(WaitsFor, Frame)> {
        let mut taken = Vec::new();
        for (key, frame) in std::mem::take(&mut self.frames) {
            match is_key(key) {
                true => taken.push((key, frame)),
                false => self.frames.push_back((key, frame)),
            }
        }
        self.bytes -= taken.iter().map(|(_, frame)| frame.bytes.len()).sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_wire::{Lid, Qpn};

    const KEY: WaitsFor = WaitsFor::Group(Gid([1; 16]));
    const OTHER: WaitsFor = WaitsFor::Group(Gid([2; 16]));

    fn waiting(max_waiting: usize, max_waiting_bytes: usize) -> Waiting {
        let config = Config::new(Gid::ZERO, Lid(1), Qpn::new(2));
        Waiting::new(&Config { max_waiting, max_waiting_bytes, ..config })
    }
    fn frame(first: u8, len: usize) -> Frame {
        Frame { bytes: vec![first; len], ip: None }
    }

    #[test]
    fn packets_of_one_key_come_out_in_order_and_others_stay() {
        let mut waiting = waiting(9, 999);
        for (key, first) in [(KEY, 1), (OTHER, 2), (KEY, 3)] {
            assert_eq!(waiting.push(key, frame(first, 10)), 0);
        }
        assert_eq!(waiting.take(KEY), [frame(1, 10), frame(3, 10)]);
        assert_eq!((waiting.take(KEY).len(), waiting.take(OTHER).len()), (0, 1));
        assert_eq!(waiting.bytes, 0);
    }

    #[test]
    fn the_oldest_of_a_key_makes_room_for_the_next() {
        let mut waiting = waiting(99, 999);
        for first in 0..20 {
            assert_eq!(waiting.push(KEY, frame(first, 1)), u64::from(first >= 16));
        }
        assert_eq!(waiting.take(KEY)[0], frame(4, 1));
    }

    #[test]
    fn what_finds_no_room_is_dropped() {
        let mut waiting = waiting(3, 100);
        assert_eq!(waiting.push(KEY, frame(1, 101)), 1);
        assert_eq!(waiting.push(KEY, frame(2, 100)), 0);
        assert_eq!(waiting.push(OTHER, frame(3, 1)), 1);
        waiting.take(KEY);
        let dropped: Vec<_> = (0..5).map(|first| waiting.push(OTHER, frame(first, 1))).collect();
        assert_eq!(dropped, [0, 0, 0, 1, 1]);
    }
}
