//! The two ends of a measurement, and what a measurement gives.

use super::control::{Control, EndpointInfo};
use crate::failure::Outcome;
use std::time::{Duration, Instant};

/// What one run of the active side saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// From the first message to the last completion or answer.
    pub(crate) elapsed: Duration,
    /// Nanoseconds of each exchange, for latency tasks; not yet halved.
    pub(crate) samples: Vec<u64>,
    /// Messages moved, where the active side knows; else the passive side's count is used.
    pub(crate) messages: Option<u64>,
}

/// The side that starts each exchange and holds the clock.
pub(crate) trait Active {
    /// Where the passive side reaches this end.
    fn endpoint(&self) -> EndpointInfo;
    /// Connects to the passive side's end.
    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()>;
    /// Carries out `iterations` exchanges or messages.
    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run>;
}

/// The side that answers.
pub(crate) trait Passive {
    /// Where the active side reaches this end.
    fn endpoint(&self) -> EndpointInfo;
    /// Connects to the active side's end.
    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()>;
    /// Takes part in `iterations` exchanges or messages; returns how many messages arrived.
    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64>;
}

/// What a measurement of one task in one round gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    /// Of a latency task, microseconds.
    Latency {
        /// Half of the exchanges were at least this fast.
        p50_us: f64,
        /// All but one in a hundred were at least this fast.
        p99_us: f64,
    },
    /// Of a throughput task.
    Throughput {
        /// Payload, 10^9 bytes per second.
        gbytes_per_s: f64,
        /// 10^6 messages per second.
        mmsg_per_s: f64,
    },
}

impl Reading {
    /// The number by which two readings of one kind are compared: p50 latency or bandwidth.
    pub(crate) fn headline(&self) -> f64 {
        match *self {
            Self::Latency { p50_us, .. } => p50_us,
            Self::Throughput { gbytes_per_s, .. } => gbytes_per_s,
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    /// About this long; the number of iterations follows from a warm-up.
    For(Duration),
    /// Exactly this many iterations, after a tenth as many for warm-up.
    Iterations(u64),
}

/// Most iterations of one run: bounds the samples kept of a latency task to 64 MiB.
pub(super) const MAX_ITERATIONS: u64 = 8 << 20;

/// The reading of a throughput task.
pub(super) fn throughput(size: u64, messages: u64, elapsed: Duration) -> Reading {
    let seconds = elapsed.as_secs_f64();
    let (size, messages) = (size as f64, messages as f64);
    Reading::Throughput {
        gbytes_per_s: size * messages / seconds / 1e9,
        mmsg_per_s: messages / seconds / 1e6,
    }
}

/// Longest silence of an active side between two measurements: it measures memory by itself, for up
/// to an hour (`-D`) and its warm-up.
pub(super) const PATIENCE: Duration = Duration::from_secs(2 * 3600);

/// Collects the duration of each exchange of a ping-pong.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    began: Instant,
    last: Instant,
    samples: Vec<u64>,
}

impl Stopwatch {
    /// Starts the clock for up to `exchanges` samples.
    pub(crate) fn start(exchanges: u64) -> Self {
        let samples =
            Vec::with_capacity(usize::try_from(exchanges.min(MAX_ITERATIONS)).unwrap_or(0));
        let now = Instant::now();
        Self { began: now, last: now, samples }
    }

    /// One more exchange is complete, and the next begins.
    #[inline]
    pub(crate) fn lap(&mut self) {
        let now = Instant::now();
        self.samples.push((now - self.last).as_nanos() as u64);
        self.last = now;
    }

    /// The run so far.
    pub(crate) fn stop(self) -> Run {
        let messages = Some(self.samples.len() as u64);
        Run { elapsed: self.last - self.began, samples: self.samples, messages }
    }
}
