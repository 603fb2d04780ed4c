//! Spreads packets over time so that they leave at a rate.
//!
//! Owns the time until which what left is paid for: a token bucket. The owner's timers are coarse
//! and its thread may wake late. So a pacer lets a *quantum* of time's worth leave together, and
//! then waits until all of it is paid for: at most one wake-up for each quantum. Lateness of up to
//! [`MADE_UP`] quanta is made up for, and so is a pause of the application.

use crate::time::Time;

/// Bytes per second.
pub(crate) type Rate = u64;

/// Bytes per second of 1 Mb/s.
pub(super) const MEGABIT: Rate = 125_000;

/// Quanta of lateness that are made up for: with the usual quantum 2 ms, half of a time slice of a
/// busy core. More would be a burst that a short queue on the path does not hold.
const MADE_UP: u64 = 20;

#[derive(Debug, Clone)]
pub(super) struct Pacer {
    /// Nanoseconds that may leave together.
    quantum: u64,
    /// Nanoseconds of lateness that are made up for.
    made_up: u64,
    /// What left is paid for then.
    paid: Time,
    /// Nothing leaves before.
    hold: Time,
}

impl Pacer {
    /// A pacer that holds nothing back yet.
    pub(super) const fn new(quantum: u64) -> Self {
        Self::making_up(quantum, MADE_UP * quantum)
    }

    /// As [`new`](Self::new), with the lateness that is made up for.
    pub(super) const fn making_up(quantum: u64, made_up: u64) -> Self {
        Self { quantum, made_up, paid: Time(0), hold: Time(0) }
    }

    /// Bytes leave, and are paid for at a rate.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, rate: Rate) {
        let earliest = Time(now.nanos().saturating_sub(self.made_up));
        self.paid = self.paid.max(earliest) + nanos_of(bytes, rate);
        if self.paid.since(now) > self.quantum {
            self.hold = self.paid;
        }
    }

    /// Whether the pacer would hold back what follows so many bytes that leave now.
    #[inline]
    pub(super) fn pauses_after(&self, now: Time, bytes: u64, rate: Rate) -> bool {
        (self.paid.max(now) + nanos_of(bytes, rate)).since(now) > self.quantum
    }

    /// Time before which nothing leaves.
    #[inline]
    pub(super) const fn not_before(&self) -> Time {
        self.hold
    }

    /// The rate changes, and how much is made up for: what left and is not paid for is paid for at
    /// the new rate.
    pub(super) fn change(&mut self, now: Time, (from, to): (Rate, Rate), made_up: u64) {
        self.made_up = made_up;
        let owed = self.paid.since(now);
        if owed > 0 {
            let bytes = u128::from(owed) * u128::from(from) / 1_000_000_000;
            self.paid = now + nanos_of(u64::try_from(bytes).unwrap_or(u64::MAX), to);
        }
        self.hold = if self.paid.since(now) > self.quantum { self.paid } else { Time(0) };
    }

    /// Lets the next packet leave at once, and nothing be made up for that was before.
    pub(super) const fn start(&mut self, now: Time) {
        self.hold = Time(0);
        self.paid = now;
    }
}

/// Nanoseconds that bytes take at a rate, which is not 0.
#[inline]
pub(super) fn nanos_of(bytes: u64, rate: Rate) -> u64 {
    // 2^34 bytes in one call are more than any queue pair has in flight.
    bytes.min(1 << 34) * 1_000_000_000 / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = 10 * MEGABIT;

    /// Sends packets of 1,250 bytes (1 ms each) whenever the pacer lets them, waking `late`
    /// nanoseconds after its time, and returns how many left in a second and in how many wake-ups.
    fn second(quantum: u64, late: u64) -> (u64, u64) {
        let mut pacer = Pacer::new(quantum);
        let (mut now, mut packets, mut wakes) = (Time(1), 0, 0);
        while now < Time(1_000_000_000) {
            wakes += 1;
            while pacer.not_before() <= now {
                pacer.on_sent(now, 1250, RATE);
                packets += 1;
            }
            now = pacer.not_before() + late;
        }
        (packets, wakes)
    }

    #[test]
    fn packets_leave_at_the_rate() {
        assert_eq!(second(0, 0), (1000, 1000));
    }

    #[test]
    fn a_quantum_leaves_together() {
        let (packets, wakes) = second(10_000_000, 0);
        assert!((1000..=1011).contains(&packets), "{packets}");
        assert_eq!(wakes, packets.div_ceil(11));
    }

    #[test]
    fn late_wake_ups_are_made_up_for() {
        let packets = second(500_000, 2_500_000).0;
        assert!((995..=1012).contains(&packets), "{packets}");
        // Beyond 10 ms what was missed is gone.
        assert!(second(500_000, 30_000_000).0 < 500);
    }

    #[test]
    fn little_leaves_at_once_after_a_pause() {
        let mut pacer = Pacer::new(100_000);
        pacer.on_sent(Time(0), 1250, RATE);
        let later = Time(50_000_000);
        let mut packets = 0;
        while pacer.not_before() <= later {
            pacer.on_sent(later, 1250, RATE);
            packets += 1;
        }
        assert_eq!(packets, 3, "2 ms are made up for");
    }

    #[test]
    fn nothing_before_the_start_is_made_up_for() {
        let mut pacer = Pacer::new(500_000);
        pacer.start(Time(50_000_000));
        pacer.on_sent(Time(50_000_000), 1250, RATE);
        assert_eq!(pacer.not_before(), Time(51_000_000));
    }

    #[test]
    fn what_follows_a_packet_is_foreseen() {
        let mut pacer = Pacer::new(1_500_000);
        pacer.start(Time(5));
        assert!(!pacer.pauses_after(Time(5), 1250, RATE));
        pacer.on_sent(Time(5), 1250, RATE);
        assert!(pacer.pauses_after(Time(5), 1250, RATE) && pacer.not_before() <= Time(5));
    }
}
