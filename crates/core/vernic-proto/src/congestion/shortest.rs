//! The shortest round trip of late: what the path takes without queues.

use crate::time::Time;

/// The shortest round trip is forgotten after this many nanoseconds, so a path change is noticed.
const LIFETIME: u64 = 5_000_000_000;

/// The shortest round trip of the last seconds, for a controller that keeps one.
#[derive(Debug, Clone)]
pub struct Shortest {
    nanos: u64,
    at: Time,
}

impl Default for Shortest {
    fn default() -> Self {
        Self::new()
    }
}

impl Shortest {
    /// None yet.
    pub const fn new() -> Self {
        Self { nanos: u64::MAX, at: Time(0) }
    }

    /// A round trip was timed.
    pub fn on_round_trip(&mut self, nanos: u64, now: Time) {
        if nanos <= self.nanos || now.since(self.at) > LIFETIME {
            *self = Self { nanos, at: now };
        }
    }

    /// Nanoseconds; `u64::MAX` before the first.
    #[inline]
    pub const fn nanos(&self) -> u64 {
        self.nanos
    }
}
