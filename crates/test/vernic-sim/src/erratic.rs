//! A congestion controller that does anything it may: its window jumps, closed and boundless among
//! its values, and it holds packets back now and then.
//!
//! No controller is as bad as that, so what the oracle proves holds with any. That the queue pair
//! keeps to what it was told is asserted in [`Erratic::on_sent`].

use vernic_proto::Time;
use vernic_proto::congestion::{Acked, Congestion, Sent};
use vernic_wire::Kind;

use crate::rng::Rng;

/// Longest delay in nanoseconds: well below the shortest ACK timeout of a seed that is not hasty.
const MAX_DELAY: u64 = 20_000;

#[derive(Debug)]
pub(crate) struct Erratic {
    rng: Rng,
    window: u32,
    not_before: Time,
}

impl Erratic {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), window: 1, not_before: Time(0) }
    }

    fn change(&mut self, now: Time) {
        if self.rng.percent(30) {
            self.window = self.rng.pick(&[0, 1, 3, 50, u32::MAX]);
        }
        if self.rng.percent(20) {
            self.not_before = now + self.rng.below(MAX_DELAY);
        }
    }
}

impl Congestion for Erratic {
    fn reset(&mut self) {
        (self.window, self.not_before) = (1, Time(0));
    }
    fn on_sent(&mut self, now: Time, _: Sent) {
        assert!(now >= self.not_before, "a request left before {:?}", self.not_before);
        self.change(now);
    }
    fn on_ack(&mut self, now: Time, _: Acked) {
        self.change(now);
    }
    fn on_loss(&mut self, now: Time) {
        self.change(now);
    }
    fn on_mark(&mut self, now: Time, _: Kind) {
        self.change(now);
    }
    fn on_cnp(&mut self, now: Time) {
        self.change(now);
    }
    fn on_silence(&mut self, now: Time) {
        self.change(now);
    }
    fn window(&self) -> u32 {
        self.window
    }
    fn not_before(&self) -> Option<Time> {
        Some(self.not_before)
    }
}
