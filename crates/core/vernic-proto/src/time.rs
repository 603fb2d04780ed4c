//! Time as the protocol sees it: nanoseconds that somebody else counts.

use core::fmt;
use core::ops::{Add, Sub};

/// A point of a monotonic clock, in nanoseconds from an arbitrary start.
///
/// The protocol never reads a clock: the caller passes the present in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Nanoseconds since the start.
    pub const fn nanos(self) -> u64 {
        self.0
    }
    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Time {
    type Output = Self;
    fn add(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<u64> for Time {
    type Output = Self;
    fn sub(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
