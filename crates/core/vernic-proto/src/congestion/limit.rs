//! A limit of the rate that does not come from congestion: the application's, or the static rate of
//! the path.
//!
//! [`Limited`] is a controller around another one: whichever of both names the later time holds. So
//! a queue pair without a limit pays nothing for it. Owns the pacer of the limit.

use vernic_wire::Kind;

use super::pacer::{MEGABIT, Pacer, Rate, nanos_of};
use super::{Acked, Congestion, Controller, Sent};
use crate::time::Time;

/// Nanoseconds' worth that leaves together, so that a queue pair wakes at most once in 100 us.
const QUANTUM: u64 = 100_000;

/// Nanoseconds of lateness that are made up for, if nothing else is said: what threads that take
/// turns on a busy core are late.
const MADE_UP: u64 = 2_000_000;

/// A rate, and how much of it may leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes per second, not 0.
    pub(crate) rate: Rate,
    /// Bytes that leave together at most after a pause; 0 for what [`MADE_UP`] is worth.
    pub(crate) burst: u32,
}

impl Limit {
    fn made_up(self) -> u64 {
        match self.burst {
            0 => MADE_UP,
            bytes => nanos_of(bytes.into(), self.rate).saturating_sub(QUANTUM),
        }
    }
}

/// Bytes per second of a static rate in Mb/s.
pub(crate) fn rate_of_mbps(mbps: u32) -> Rate {
    Rate::from(mbps) * MEGABIT
}

/// The rate of datagrams that have static rates: each pays at its own.
#[derive(Debug)]
pub(crate) struct DatagramPacer(Pacer);

impl DatagramPacer {
    pub(crate) const fn new() -> Self {
        Self(Pacer::making_up(QUANTUM, MADE_UP))
    }

    /// A datagram of so many bytes leaves, at a rate in Mb/s that is not 0.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u32, mbps: u32) {
        self.0.on_sent(now, bytes.into(), rate_of_mbps(mbps));
    }

    pub(crate) fn not_before(&self) -> Time {
        self.0.not_before()
    }
}

/// A controller with a limit beside it.
#[derive(Debug)]
pub(crate) struct Limited {
    pub(super) inner: Controller,
    limit: Limit,
    pacer: Pacer,
    /// What leaves now is not held against the limit: it does not go by the link.
    pub(super) is_exempt: bool,
}

impl Limited {
    pub(super) fn new(inner: Controller, limit: Limit, now: Time) -> Self {
        let mut pacer = Pacer::making_up(QUANTUM, limit.made_up());
        pacer.start(now);
        Self { inner, limit, pacer, is_exempt: false }
    }

    pub(super) fn change(&mut self, limit: Limit, now: Time) {
        self.pacer.change(now, (self.limit.rate, limit.rate), limit.made_up());
        self.limit = limit;
    }
}

impl Congestion for Limited {
    fn reset(&mut self) {
        self.inner.reset();
    }

    fn on_sent(&mut self, now: Time, sent: Sent) {
        self.inner.on_sent(now, sent);
        if !self.is_exempt {
            self.pacer.on_sent(now, sent.bytes.into(), self.limit.rate);
        }
    }

    fn on_ack(&mut self, now: Time, acked: Acked) {
        self.inner.on_ack(now, acked);
    }

    fn on_loss(&mut self, now: Time) {
        self.inner.on_loss(now);
    }

    fn on_needless(&mut self, now: Time) {
        self.inner.on_needless(now);
    }

    fn on_mark(&mut self, now: Time, kind: Kind) {
        self.inner.on_mark(now, kind);
    }

    fn on_cnp(&mut self, now: Time) {
        self.inner.on_cnp(now);
    }

    fn on_silence(&mut self, now: Time) {
        self.inner.on_silence(now);
    }

    fn window(&self) -> u32 {
        self.inner.window()
    }

    fn not_before(&self) -> Option<Time> {
        let limited = if self.is_exempt { Time(0) } else { self.pacer.not_before() };
        Some(self.inner.not_before().map_or(limited, |at| at.max(limited)))
    }

    fn pauses_after(&self, now: Time, bytes: u32) -> bool {
        let limits = !self.is_exempt && self.pacer.pauses_after(now, bytes.into(), self.limit.rate);
        limits || (self.inner.may_pace() && self.inner.pauses_after(now, bytes))
    }
}
