//! Quantities of the command line: rates, sizes and times, with their units.

use std::fmt;
use std::str::FromStr;

/// Picoseconds in a nanosecond.
pub(super) const PICOS: u64 = 1000;

/// The rate of a link in Gb/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u32);

impl Rate {
    /// A rate of 1 to 1600 Gb/s.
    ///
    /// # Errors
    /// Any other rate, in words.
    pub fn new(gbps: u32) -> Result<Self, String> {
        match gbps {
            1..=1600 => Ok(Self(gbps)),
            _ => Err(format!("{gbps} Gb/s is no rate of a link: 1g to 1600g")),
        }
    }

    /// Four times the rate: links between switches of the topology `hpcc`.
    pub(super) const fn fourfold(self) -> Self {
        Self(self.0 * 4)
    }

    /// Gb/s.
    pub const fn gbps(self) -> u32 {
        self.0
    }

    /// 256ths of a picosecond that a byte takes.
    pub(super) const fn picos_256(self) -> u32 {
        8 * 1000 * 256 / self.0
    }

    /// Bytes that fit into so many nanoseconds.
    pub(super) const fn bytes_in(self, nanos: u64) -> u64 {
        self.0 as u64 * nanos / 8
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Gb/s", self.0)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix(['g', 'G']).unwrap_or(text);
        match number.parse() {
            Ok(gbps) => Self::new(gbps),
            Err(_) => Err(format!("`{text}` is no rate: whole Gb/s, as in 100g")),
        }
    }
}

/// Reads a number of bytes: `400k`, `32m`, `1g`, by thousands, or a plain number.
///
/// # Errors
/// What is no such number, in words.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000)];
    let lower = text.to_ascii_lowercase();
    number(&lower, &units, 1).ok_or_else(|| {
        format!("`{text}` is no size: bytes, or with k, m or g behind (thousands), as in 400k")
    })
}

/// Reads a time in nanoseconds: `10ms`, `500us`, `1us`, `100ns`.
///
/// # Errors
/// What is no such time, in words.
pub fn nanos(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    number(text, &units, 0).ok_or_else(|| {
        format!("`{text}` is no time: a number with ns, us, ms or s behind, as in 10ms")
    })
}

/// Reads a part: `0.05`, or in percent `5%`.
///
/// # Errors
/// What is no such part, in words.
pub fn part(text: &str) -> Result<f64, String> {
    let number = |digits: &str| digits.parse::<f64>().ok().filter(|value| value.is_finite());
    let value = match text.strip_suffix('%') {
        Some(percent) => number(percent).map(|percent| percent / 100.0),
        None => number(text),
    };
    value.ok_or_else(|| format!("`{text}` is no part: a number, as in 0.05, or 5%"))
}

/// A number with one of the units behind it, or with none, which counts `plain`; 0 permits none.
fn number(text: &str, units: &[(&str, u64)], plain: u64) -> Option<u64> {
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.or((plain > 0).then_some((text, plain)))?;
    let value = digits.parse::<f64>().ok()? * factor as f64;
    (value.is_finite() && (0.0..=1e15).contains(&value)).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units() {
        assert_eq!(bytes("400k"), Ok(400_000));
        assert_eq!(bytes("1.5M"), Ok(1_500_000));
        assert_eq!(bytes("77"), Ok(77));
        assert_eq!(nanos("10ms"), Ok(10_000_000));
        assert_eq!(nanos("0.5us"), Ok(500));
        assert_eq!((part("0.05"), part("5%"), part("150%")), (Ok(0.05), Ok(0.05), Ok(1.5)));
        assert_eq!("400g".parse::<Rate>().map(Rate::gbps), Ok(400));
        assert_eq!(Rate(100).picos_256(), 80 * 256);
    }

    #[test]
    fn a_wrong_quantity_is_named_with_what_is_allowed() {
        assert!(bytes("4q").unwrap_err().contains("`4q`"));
        assert!(part("nan").unwrap_err().contains("as in 0.05, or 5%"));
        assert!(nanos("10").unwrap_err().contains("as in 10ms"));
        assert!("fast".parse::<Rate>().unwrap_err().contains("as in 100g"));
        assert!("9000g".parse::<Rate>().unwrap_err().contains("1g to 1600g"));
    }
}
