//! A cable: keeps the order of frames, takes time, and damages bits by its rate.

use std::collections::VecDeque;

use vernic_wire::{FlowControl, PortNum};

use super::random::Random;
use crate::Time;
use crate::link::{FrameKind, Life, Signal, Transmit};

/// One port of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Side {
    pub(super) node: usize,
    pub(super) port: PortNum,
}

/// A frame under way.
#[derive(Debug)]
pub(super) enum Flying {
    Signal(Signal),
    FlowControl([u8; FlowControl::LEN]),
    Packet(Vec<u8>, Life),
}

/// A frame that arrives.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) frame: Flying,
    /// Whether a bit is wrong.
    pub(super) is_damaged: bool,
}

/// When wrong bits come: one in so many on average.
#[derive(Debug)]
struct BitErrors {
    rate: f64,
    /// Bits until the next wrong one.
    left: u64,
    random: Random,
}

impl BitErrors {
    fn new(rate: f64, mut random: Random) -> Self {
        let left = random.gap(rate);
        Self { rate, left, random }
    }
    /// Damages bytes. Returns whether it has.
    fn damage(&mut self, bytes: &mut [u8]) -> bool {
        let bits = bytes.len() as u64 * 8;
        let mut at = self.left;
        while at < bits {
            bytes[(at / 8) as usize] ^= 1 << (at % 8);
            at = at.saturating_add(1).saturating_add(self.random.gap(self.rate));
        }
        let is_damaged = self.left < bits;
        self.left = at - bits;
        is_damaged
    }
}

/// A cable.
#[derive(Debug)]
pub(super) struct Cable {
    pub(super) sides: [Side; 2],
    pub(super) is_up: bool,
    /// Packets that it carried when it was cut.
    pub(super) lost: u64,
    delay_ns: u64,
    errors: [Option<BitErrors>; 2],
    under_way: [VecDeque<(Time, Arrival)>; 2],
}

impl Cable {
    pub(super) fn new(sides: [Side; 2], delay_ns: u64) -> Self {
        Self {
            sides,
            is_up: true,
            lost: 0,
            delay_ns,
            errors: [None, None],
            under_way: [VecDeque::new(), VecDeque::new()],
        }
    }
    /// Cuts or mends the cable: frames under way are lost.
    pub(super) fn set_up(&mut self, is_up: bool) {
        self.is_up = is_up;
        let frames = self.under_way.iter().flatten();
        let is_packet = |arrival: &Arrival| matches!(arrival.frame, Flying::Packet(..));
        self.lost += frames.filter(|(_, arrival)| is_packet(arrival)).count() as u64;
        self.under_way.iter_mut().for_each(VecDeque::clear);
    }
    /// Lets bits be wrong at a rate from now on, 0 to 1.
    pub(super) fn set_bit_error_rate(&mut self, rate: f64, seed: u64) {
        let errors = |side| (rate > 0.0).then(|| BitErrors::new(rate, Random(seed ^ side)));
        self.errors = [errors(1), errors(2)];
    }
    pub(super) fn bit_error_rate(&self) -> f64 {
        self.errors[0].as_ref().map_or(0.0, |errors| errors.rate)
    }
    /// Takes a frame that leaves one side. Returns when the first frame under way arrives, if that
    /// is this one.
    pub(super) fn put(
        &mut self,
        side: usize,
        now: Time,
        transmit: &Transmit,
        bytes: &mut Vec<u8>,
    ) -> Option<Time> {
        if !self.is_up {
            self.lost += u64::from(transmit.kind == FrameKind::Packet);
            return None;
        }
        let (mut frame, free_at) = match transmit.kind {
            // Signals are beside what takes the line.
            FrameKind::Signal(signal) => (Flying::Signal(signal), now),
            FrameKind::FlowControl(bytes) => (Flying::FlowControl(bytes), transmit.free_at),
            FrameKind::Packet => {
                (Flying::Packet(std::mem::take(bytes), transmit.life), transmit.free_at)
            }
        };
        let is_damaged = match (&mut self.errors[side], &mut frame) {
            (None, _) | (_, Flying::Signal(_)) => false,
            (Some(errors), Flying::FlowControl(bytes)) => errors.damage(bytes),
            (Some(errors), Flying::Packet(bytes, _)) => errors.damage(bytes),
        };
        let under_way = &mut self.under_way[side];
        let last = under_way.back().map_or(Time(0), |(at, _)| *at);
        let at = (free_at.max(now) + self.delay_ns).max(last);
        let is_first = under_way.is_empty();
        under_way.push_back((at, Arrival { frame, is_damaged }));
        is_first.then_some(at)
    }
    /// Takes the next frame out that has arrived from a side.
    pub(super) fn take(&mut self, side: usize, now: Time) -> Option<Arrival> {
        self.next(side).filter(|at| *at <= now)?;
        self.under_way[side].pop_front().map(|(_, arrival)| arrival)
    }
    /// Returns when the next frame arrives from a side.
    pub(super) fn next(&self, side: usize) -> Option<Time> {
        self.under_way[side].front().map(|(at, _)| *at)
    }
    /// Returns how many packets are under way.
    pub(super) fn packets(&self) -> usize {
        let frames = self.under_way.iter().flatten();
        frames.filter(|(_, arrival)| matches!(arrival.frame, Flying::Packet(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cable() -> Cable {
        let side = |node| Side { node, port: PortNum(1) };
        Cable::new([side(0), side(1)], 10)
    }

    fn packet(free_at: u64) -> Transmit {
        Transmit { kind: FrameKind::Packet, free_at: Time(free_at), life: Life::new(Time(0)) }
    }

    #[test]
    fn frames_keep_their_order_and_arrive_after_the_delay() {
        let mut cable = cable();
        assert_eq!(cable.put(0, Time(0), &packet(100), &mut vec![1]), Some(Time(110)));
        let signal = Transmit { kind: FrameKind::Signal(Signal::Ready), ..packet(0) };
        assert_eq!(cable.put(0, Time(50), &signal, &mut Vec::new()), None);
        assert!(cable.take(0, Time(109)).is_none());
        assert!(matches!(cable.take(0, Time(110)).unwrap().frame, Flying::Packet(..)));
        assert!(matches!(cable.take(0, Time(110)).unwrap().frame, Flying::Signal(Signal::Ready)));
        assert_eq!(cable.next(0), None);
    }

    #[test]
    fn a_cut_loses_what_is_under_way_and_counts_it() {
        let mut cable = cable();
        cable.put(1, Time(0), &packet(5), &mut vec![1]);
        assert_eq!(cable.packets(), 1);
        cable.set_up(false);
        assert_eq!((cable.packets(), cable.lost), (0, 1));
        assert_eq!(cable.put(1, Time(0), &packet(5), &mut vec![1]), None);
        assert_eq!(cable.lost, 2);
    }

    #[test]
    fn bits_are_wrong_as_often_as_the_rate_says() {
        let mut cable = cable();
        cable.set_bit_error_rate(1e-4, 7);
        let mut wrong = 0;
        for _ in 0..10_000 {
            cable.put(0, Time(0), &packet(0), &mut vec![0; 1000]);
            let arrival = cable.take(0, Time(10)).unwrap();
            let Flying::Packet(bytes, _) = arrival.frame else { panic!() };
            let count: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(arrival.is_damaged, count > 0);
            wrong += count;
        }
        assert!((7_500..8_500).contains(&wrong), "{wrong} of 80 million bits");
    }
}
