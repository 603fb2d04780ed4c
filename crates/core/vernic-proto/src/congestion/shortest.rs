//! The shortest round trip of late: what the path takes without queues.

use crate::time::Time;

/// The shortest round trip is forgotten after this many nanoseconds, so a path change is noticed.
const LIFETIME: u64 = 5_000_000_000;

#[derive(Debug, Clone)]
pub(super) struct Shortest {
    nanos: u64,
    at: Time,
}

impl Default for Shortest {
    fn default() -> Self {
        Self { nanos: u64::MAX, at: Time(0) }
    }
}

impl Shortest {
    /// A round trip was timed.
    pub(super) fn on_round_trip(&mut self, nanos: u64, now: Time) {
        if nanos <= self.nanos || now.since(self.at) > LIFETIME {
            *self = Self { nanos, at: now };
        }
    }

    /// Nanoseconds; `u64::MAX` before the first.
    #[inline]
    pub(super) const fn nanos(&self) -> u64 {
        self.nanos
    }
}
