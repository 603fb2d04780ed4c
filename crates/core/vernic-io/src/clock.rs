//! The time, read from the processor's counter of ticks between readings of the kernel's clock.
//!
//! A reading of CLOCK_MONOTONIC takes 26 ns where one of the counter takes 11, and a small message
//! within a host takes two. So [`Clock`] reads the kernel's clock every [`SPAN`] ticks, and adds
//! what the counter says has passed since. The kernel's clock also gives the length of a tick.
//!
//! Limits: the counter is used only where the kernel's own clock is read from it, so that the
//! kernel has found it steady and the same on all processors. The time differs from the kernel's by
//! less than a microsecond: a span is under a millisecond, in which the kernel may slew its clock
//! by 0.5 us at most.
//! A counter that jumps, as when a virtual machine moves, is noticed at the next reading.

use vernic_sys::ticks;

/// Ticks after which the kernel's clock is read again: some 0.8 ms.
const SPAN: u64 = 1 << 21;
/// Shortest time over which the length of a tick is measured, in nanoseconds. A reading is exact
/// to some 30 ns.
const MEASURED_NANOS: u64 = 1_000_000;
/// Most ticks that a reading of the kernel's clock takes, unless the thread was interrupted.
const READING: u64 = 1 << 11;
/// The length of a tick must be the same to one part in 2^STEADY_BITS at two measurements.
const STEADY_BITS: u32 = 10;

/// A reading of the kernel's clock between two of the counter.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    before: u64,
    nanos: u64,
    after: u64,
}

/// A clock for a thread that reads it often; see the module documentation. It never goes back.
#[derive(Debug)]
pub struct Clock {
    /// Whether the counter may be used at all.
    is_counted: bool,
    /// When the span began.
    base: Reading,
    /// Nanoseconds of a tick, times 2^32; 0 before it was measured.
    scale: u64,
    /// Ticks of the span; 0 while the counter may not be used.
    span: u64,
    last_nanos: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(is_clock_counted())
    }
}

impl Clock {
    fn new(is_counted: bool) -> Self {
        Self { is_counted, base: Reading::default(), scale: 0, span: 0, last_nanos: 0 }
    }

    /// Returns CLOCK_MONOTONIC in nanoseconds, as exact as the module documentation says.
    /// `monotonic_ns` reads the kernel's clock.
    #[inline]
    pub fn now_ns(&mut self, monotonic_ns: impl Fn() -> u64) -> u64 {
        let before = ticks();
        self.at(before, || Reading { before, nanos: monotonic_ns(), after: ticks() })
    }

    /// Returns the time when the counter is at `ticks`.
    #[inline]
    fn at(&mut self, ticks: u64, kernel: impl FnOnce() -> Reading) -> u64 {
        let passed = ticks.wrapping_sub(self.base.after);
        let now = if passed < self.span {
            self.base.nanos + ((passed * self.scale) >> 32)
        } else {
            self.begin_span(kernel())
        };
        self.last_nanos = self.last_nanos.max(now);
        self.last_nanos
    }

    /// Begins a span with a reading of the kernel's clock, if the counter may be used, and returns
    /// the time.
    #[inline(never)]
    fn begin_span(&mut self, read: Reading) -> u64 {
        let nanos = read.nanos.saturating_sub(self.base.nanos);
        if !self.is_counted || read.after.wrapping_sub(read.before) > READING {
            // If the thread was interrupted in between, nobody knows when.
            self.span = 0;
        } else if nanos >= MEASURED_NANOS {
            let passed = read.after.wrapping_sub(self.base.after).max(1);
            let scale = ((u128::from(nanos) << 32) / u128::from(passed)) as u64;
            let is_steady = scale.abs_diff(self.scale) <= self.scale >> STEADY_BITS;
            (self.base, self.scale) = (read, scale);
            self.span = if is_steady { SPAN } else { 0 };
        } else if self.span != 0 {
            self.base = read;
        }
        read.nanos
    }
}

/// Whether the kernel's clock is read from the counter that [`ticks`] returns.
fn is_clock_counted() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of 0.4 ns.
    fn reading(ticks: u64) -> Reading {
        Reading { before: ticks, nanos: 1_000_000_000 + ticks * 2 / 5, after: ticks + 60 }
    }

    #[test]
    fn the_counter_stands_for_the_kernels_clock_after_two_measurements() {
        let mut clock = Clock::new(true);
        let (mut reads, mut counted) = (0, 0);
        for step in 0..100_000 {
            let ticks = step * 1_000;
            let before = reads;
            let now = clock.at(ticks, || {
                reads += 1;
                reading(ticks)
            });
            counted += u32::from(reads == before);
            assert!(now.abs_diff(reading(ticks).nanos) < 100, "at {ticks}");
        }
        // A first span of 1 ms measures, and so does a second. Then one reading in 2098 is read.
        assert!(counted > 94_000, "{counted} of 100000 without the kernel's clock");
    }

    #[test]
    fn a_counter_that_jumps_or_an_interrupted_reading_ends_the_span() {
        let mut clock = Clock::new(true);
        let spans = |clock: &mut Clock| {
            for step in 0..40_000 {
                clock.at(step * 1_000, || reading(step * 1_000));
            }
            clock.span
        };
        assert_eq!(spans(&mut clock), SPAN);
        let now = clock.last_nanos;
        // The counter starts again at 0, and the kernel's clock goes on.
        let moved = Reading { before: 0, nanos: now + 5_000_000, after: 60 };
        assert_eq!(clock.at(0, || moved), now + 5_000_000);
        assert_eq!(clock.span, 0, "the tick seems to have another length");
        // From then on the kernel's clock is asked, which never goes back here.
        assert_eq!(clock.at(1_000, || reading(0)), now + 5_000_000);

        let mut clock = Clock::new(true);
        assert_eq!(spans(&mut clock), SPAN);
        let at = 40_000_000 + SPAN;
        clock.at(at, || Reading { after: at + READING + 1, ..reading(at) });
        assert_eq!(clock.span, 0);
        assert_eq!(spans(&mut Clock::new(false)), 0, "where the kernel does not use it");
    }
}
