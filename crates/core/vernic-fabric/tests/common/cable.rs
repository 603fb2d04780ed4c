//! A cable: keeps the order of frames, takes time, and loses or damages frames by rule.

use std::collections::VecDeque;

use vernic_fabric::Time;
use vernic_fabric::link::FrameKind;
use vernic_wire::PortNum;

use super::Random;

/// One port of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub node: usize,
    pub port: PortNum,
}

impl End {
    pub fn new((node, port): (usize, u8)) -> Self {
        Self { node, port: PortNum(port) }
    }
}

/// How many of a hundred frames of each kind are hit.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub lose_credits: u64,
    pub damage_packets: u64,
    pub lose_signals: u64,
}

/// The cable lost the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

pub struct Cable {
    pub ends: [End; 2],
    pub faults: Faults,
    pub plugged: bool,
    latency_ns: u64,
    under_way: [VecDeque<(Time, FrameKind, Vec<u8>)>; 2],
    spare: Vec<Vec<u8>>,
}

impl Cable {
    pub fn new(a: End, b: End, latency_ns: u64) -> Self {
        Self {
            ends: [a, b],
            faults: Faults::default(),
            plugged: false,
            latency_ns,
            under_way: [VecDeque::new(), VecDeque::new()],
            spare: Vec::new(),
        }
    }
    /// Plugs in, or pulls. Returns how many packets that lost.
    pub fn plug(&mut self, plugged: bool) -> u64 {
        let packets = self.packets() as u64;
        self.plugged = plugged;
        self.under_way = [VecDeque::new(), VecDeque::new()];
        packets
    }
    pub fn packets(&self) -> usize {
        let frames = self.under_way.iter().flatten();
        frames.filter(|(_, kind, _)| *kind == FrameKind::Packet).count()
    }
    pub fn carries_no_packet(&self) -> bool {
        self.packets() == 0
    }
    /// Takes a frame whose last byte leaves at `from`. Returns when it arrives.
    pub fn put(
        &mut self,
        side: usize,
        from: Time,
        kind: FrameKind,
        bytes: &[u8],
        random: &mut Random,
    ) -> Result<Time, Lost> {
        let lost_of_100 = match kind {
            FrameKind::Signal(_) => self.faults.lose_signals,
            FrameKind::FlowControl(_) => self.faults.lose_credits,
            FrameKind::Packet => 0,
        };
        let lost = random.below(100) < lost_of_100;
        if !self.plugged || lost {
            return Err(Lost);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        if kind == FrameKind::Packet && random.below(100) < self.faults.damage_packets {
            let at = random.below(copy.len() as u64) as usize;
            copy[at] ^= 1 << random.below(8);
        }
        let last = self.under_way[side].back().map_or(Time(0), |(at, ..)| *at);
        let arrival = (from + self.latency_ns).max(last);
        self.under_way[side].push_back((arrival, kind, copy));
        Ok(arrival)
    }
    /// Takes the next frame out that has arrived.
    pub fn take(&mut self, side: usize, now: Time) -> Option<(FrameKind, Vec<u8>)> {
        let (at, ..) = self.under_way[side].front()?;
        if *at > now {
            return None;
        }
        self.under_way[side].pop_front().map(|(_, kind, bytes)| (kind, bytes))
    }
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }
}
