//! Static rate: the rate of a path, as a code of 6 bits (IBTA 9.11). Path records, messages of
//! communication management and address vectors have it. The verbs call it `ibv_rate`.

use core::fmt;

/// Code of a static rate. [`StaticRate::MAX`] stands for as fast as the port sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StaticRate(pub u8);

/// Code of a rate, multiple of 2.5 Gb/s (rounded as programs expect it), Mb/s.
#[rustfmt::skip]
const RATES: &[(u8, u16, u32)] = &[
    (2, 1, 2_500), (5, 2, 5_000), (3, 4, 10_000), (6, 8, 20_000), (4, 12, 30_000), (7, 16, 40_000),
    (8, 24, 60_000), (9, 32, 80_000), (10, 48, 120_000), (11, 6, 14_062), (12, 22, 56_250),
    (13, 45, 112_500), (14, 67, 168_750), (15, 10, 25_781), (16, 40, 103_125), (17, 80, 206_250),
    (18, 120, 309_375), (19, 11, 28_125), (20, 20, 53_125), (21, 160, 425_000), (22, 240, 637_500),
    (23, 320, 850_000), (24, 480, 1_275_000),
];

impl StaticRate {
    /// No limit but that of the port.
    pub const MAX: Self = Self(0);

    /// The codes that are known, in words.
    pub const KNOWN: &'static str = "0 (none), and 2 to 24 (IBTA 9.11)";

    /// The rate in Mb/s; `None` for [`MAX`](Self::MAX) and codes that are not known.
    pub fn mbps(self) -> Option<u32> {
        RATES.iter().find(|row| row.0 == self.0).map(|row| row.2)
    }

    /// The rate as a multiple of 2.5 Gb/s; `None` for [`MAX`](Self::MAX) and codes that are not
    /// known.
    pub fn multiple(self) -> Option<u16> {
        RATES.iter().find(|row| row.0 == self.0).map(|row| row.1)
    }

    /// The code with this rate in Mb/s, if there is one.
    pub fn of_mbps(mbps: u32) -> Option<Self> {
        RATES.iter().find(|row| row.2 == mbps).map(|row| Self(row.0))
    }

    /// The code with this multiple of 2.5 Gb/s, if there is one.
    pub fn of_multiple(multiple: u16) -> Option<Self> {
        RATES.iter().find(|row| row.1 == multiple).map(|row| Self(row.0))
    }

    /// Whether the code is [`MAX`](Self::MAX) or that of a rate.
    pub fn is_known(self) -> bool {
        self == Self::MAX || self.mbps().is_some()
    }

    /// The code, or [`MAX`](Self::MAX) for one that is not known: of a later revision, whose rates
    /// are larger.
    #[must_use]
    pub fn known_or_max(self) -> Self {
        if self.is_known() { self } else { Self::MAX }
    }
}

impl fmt::Display for StaticRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mbps() {
            Some(mbps) => write!(f, "{mbps} Mb/s"),
            None => write!(f, "code {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_rate_and_one_multiple() {
        for code in 2..=24 {
            let rate = StaticRate(code);
            let (mbps, multiple) = (rate.mbps().unwrap(), rate.multiple().unwrap());
            assert_eq!((StaticRate::of_mbps(mbps), StaticRate::of_multiple(multiple)), {
                (Some(rate), Some(rate))
            });
            // Within the rounding of the multiples.
            assert!(mbps.abs_diff(u32::from(multiple) * 2500) <= 64 * 2500, "{rate}");
        }
    }

    #[test]
    fn what_is_no_code_is_told_apart_from_no_limit() {
        assert!(StaticRate::MAX.is_known() && StaticRate::MAX.mbps().is_none());
        for code in [1, 25, 63, 255] {
            let rate = StaticRate(code);
            assert!(!rate.is_known() && rate.known_or_max() == StaticRate::MAX, "{rate}");
        }
        assert_eq!(StaticRate(7).known_or_max(), StaticRate(7));
    }
}
