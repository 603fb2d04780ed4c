//! How long sending takes: the modelled rate of a link.

use std::num::NonZeroU64;

use crate::Time;
use crate::attributes::{LinkSpeed, LinkWidth, PortAttributes};

/// Returns the bytes of data per second of a link, the encoding taken off.
const fn rate_of(width: LinkWidth, speed: LinkSpeed) -> u64 {
    let lanes = match width {
        LinkWidth::X1 => 1,
        LinkWidth::X4 => 4,
        LinkWidth::X8 => 8,
        LinkWidth::X12 => 12,
    };
    // Mb/s of a lane: 8b/10b takes a fifth of 2.5, 5 and 10 Gb/s; 64b/66b takes a 33rd of 14.0625
    // and 25.78125 Gb/s.
    let megabits = match speed {
        LinkSpeed::Sdr => 2_000,
        LinkSpeed::Ddr => 4_000,
        LinkSpeed::Qdr => 8_000,
        LinkSpeed::Fdr => 13_636,
        LinkSpeed::Edr => 25_000,
    };
    lanes * megabits * 125_000
}

/// The outgoing line of a port: until when it is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// Bytes per second at most, whatever width and speed say.
    limit: Option<NonZeroU64>,
    /// Whether width and speed take time.
    paced: bool,
    free_at: Time,
    /// What a whole nanosecond is short of at `free_at`, in billionths of a byte.
    rest: u64,
}

impl Line {
    /// Makes a line that is free.
    pub(crate) const fn new(limit: Option<NonZeroU64>, paced: bool) -> Self {
        Self { limit, paced, free_at: Time(0), rest: 0 }
    }
    /// Changes the bytes per second at most, for what is sent from now on.
    pub(crate) const fn set_limit(&mut self, limit: Option<NonZeroU64>) {
        self.limit = limit;
    }
    /// Returns when the line is free.
    pub(crate) const fn free_at(&self) -> Time {
        self.free_at
    }
    /// Returns the bytes per second of data that the line carries at most.
    pub(crate) fn rate(&self, attributes: &PortAttributes) -> u64 {
        let rate = rate_of(attributes.width, attributes.speed);
        self.limit.map_or(rate, |limit| rate.min(limit.get()))
    }
    /// Takes the line for so many bytes, from `now` on. It is free before.
    pub(crate) fn take(&mut self, attributes: &PortAttributes, now: Time, bytes: usize) {
        const NANOS: u64 = 1_000_000_000;
        if now > self.free_at {
            self.rest = 0;
        }
        if !self.paced && self.limit.is_none() {
            self.free_at = now;
            return;
        }
        let rate = self.rate(attributes);
        let work = (bytes as u64).saturating_mul(NANOS).saturating_add(self.rest);
        self.free_at = now + work / rate;
        self.rest = work % rate;
    }
    /// Returns the ticks of 64 bytes in so many nanoseconds.
    pub(crate) fn ticks(&self, attributes: &PortAttributes, nanos: u64) -> u64 {
        let ticks = u128::from(nanos) * u128::from(self.rate(attributes)) / 64_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::port::tests::attributes;

    #[test]
    fn ten_gigabits_take_a_second_for_ten_gigabits() {
        let attributes = attributes();
        let mut line = Line::new(NonZeroU64::new(1_250_000_000), true);
        let packets = 1_000_000;
        for _ in 0..packets {
            line.take(&attributes, line.free_at(), 1250);
        }
        assert_eq!(line.free_at(), Time(1_000_000_000));
        assert_eq!(line.ticks(&attributes, 512), 10);
    }

    #[test]
    fn parts_of_a_nanosecond_are_not_lost() {
        let mut attributes = attributes();
        (attributes.width, attributes.speed) = (LinkWidth::X12, LinkSpeed::Edr);
        let mut line = Line::new(None, true);
        // 37.5 bytes a nanosecond: 64 bytes take 1.7 of them.
        for _ in 0..75 {
            line.take(&attributes, line.free_at(), 64);
        }
        assert_eq!(line.free_at(), Time(128));
    }

    #[test]
    fn a_line_that_is_not_paced_takes_time_only_for_its_limit() {
        let attributes = attributes();
        let mut line = Line::new(None, false);
        line.take(&attributes, Time(5), 4_000);
        assert_eq!(line.free_at(), Time(5));
        line.set_limit(NonZeroU64::new(1_000_000_000));
        line.take(&attributes, Time(5), 4_000);
        assert_eq!(line.free_at(), Time(5 + 4_000));
        assert_eq!(line.ticks(&attributes, 6_400), 100);
    }

    #[test]
    fn a_limit_above_the_rate_of_the_cable_changes_nothing() {
        let attributes = attributes();
        let mut line = Line::new(NonZeroU64::new(u64::MAX), true);
        line.take(&attributes, Time(5), 4_000);
        assert_eq!(line.free_at(), Time(5 + 1_000), "4 lanes of 8 Gb/s are 4 bytes a nanosecond");
    }
}
