//! The rate of a modelled cable: bits per second, as a person writes them.

use std::fmt;
use std::str::FromStr;

/// Bits per second that a model of a cable carries: 10^6 to 10^15.
///
/// ```
/// use vernic_fabric::topology::Rate;
///
/// let rate: Rate = "2.5g".parse()?;
/// assert_eq!((rate.bits_per_s(), rate.to_string().as_str()), (2_500_000_000, "2500m"));
/// assert!("10 apples".parse::<Rate>().is_err());
/// # Ok::<(), vernic_fabric::topology::RateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rate(u64);

impl Rate {
    /// The lowest rate. A packet of 4 KiB takes 33 ms.
    pub const MIN: Self = Self(1_000_000);
    /// The highest rate: a thousand times what the fastest cables carry.
    pub const MAX: Self = Self(1_000_000_000_000_000);

    /// Makes a rate of bits per second; `None` below [`Rate::MIN`] and above [`Rate::MAX`].
    pub const fn new(bits_per_s: u64) -> Option<Self> {
        let is_rate = bits_per_s >= Self::MIN.0 && bits_per_s <= Self::MAX.0;
        if is_rate { Some(Self(bits_per_s)) } else { None }
    }

    /// Returns the bits per second.
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }
}

/// Letters of units, largest first, with their bits per second.
const UNITS: [(char, u64); 3] = [('g', 1_000_000_000), ('m', 1_000_000), ('k', 1_000)];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)) {
            Some((letter, unit)) => write!(f, "{}{letter}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A text that is no [`Rate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RateError(String);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a rate in bits per second: a number with k, m or g behind it and no space \
             between, from {} to {}, as 10g or 2.5g",
            self.0,
            Rate::MIN,
            Rate::MAX
        )
    }
}

impl std::error::Error for RateError {}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads digits, perhaps with a point, and one of `k`, `m` and `g`, large or small, or nothing.
    fn from_str(text: &str) -> Result<Self, RateError> {
        parse(text).ok_or_else(|| RateError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<Rate> {
    let last = text.chars().next_back()?.to_ascii_lowercase();
    let (digits, unit) = match UNITS.iter().find(|(letter, _)| *letter == last) {
        Some((_, unit)) => (&text[..text.len() - 1], *unit),
        None => (text, 1),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
    // More digits than this are past the largest rate, or finer than a bit.
    if !all_digits(whole) || !all_digits(fraction) || whole.len() > 16 || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(fraction.len() as u32);
    let part = fraction.parse::<u64>().ok()?.checked_mul(unit)?;
    if !part.is_multiple_of(scale) {
        return None;
    }
    Rate::new(whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(part / scale)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_unit_and_point() {
        for (text, bits) in [
            ("10g", 10_000_000_000),
            ("2.5G", 2_500_000_000),
            ("1000000", 1_000_000),
            ("1500.5k", 1_500_500),
            ("7M", 7_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Rate(bits)), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back_as_the_same_rate() {
        for bits in [1_000_000, 1_000_001, 1_001_000, 2_500_000_000, 40_000_000_000, Rate::MAX.0] {
            let rate = Rate::new(bits).unwrap();
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }

    #[test]
    fn a_text_that_is_no_rate_is_refused_with_the_form_that_a_rate_has() {
        let long = "9".repeat(400);
        for text in
            ["", "g", ".", "0", "0.0g", "-1g", "1.2", "1.0001k", "1000001g", "1 g", "€", &long]
        {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("as 10g or 2.5g") && error.len() < 300, "{text}: {error}");
        }
    }
}
