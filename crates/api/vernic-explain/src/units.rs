//! Numbers as people read them.

/// Nanoseconds with a unit and three digits: `640 us`, `1.24 s`.
pub fn duration(nanos: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match UNITS.into_iter().find(|(unit, _)| nanos >= *unit) {
        Some((unit, name)) => format!("{} {name}", digits(nanos as f64 / unit as f64)),
        None => format!("{nanos} ns"),
    }
}

/// Bytes in powers of 1000, with three digits: `512 B`, `6.40 kB`.
pub fn bytes(count: u64) -> String {
    scaled(count as f64, "B")
}

/// Bits in a second, of bytes in a time; none where no time passed.
pub(crate) fn rate(bytes: u64, nanos: u64) -> Option<String> {
    (nanos != 0).then(|| scaled(bytes as f64 * 8e9 / nanos as f64, "bit/s"))
}

fn scaled(value: f64, unit: &str) -> String {
    const LETTERS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match LETTERS.into_iter().find(|(factor, _)| value >= *factor) {
        Some((factor, letter)) => format!("{} {letter}{unit}", digits(value / factor)),
        None => format!("{value:.0} {unit}"),
    }
}

/// Three digits, of a value from 1 to 1000.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A count and its noun: `1 packet`, `2 packets`.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// How often: `never`, `once`, `twice`, `3 times`.
pub fn times(count: u64) -> String {
    match count {
        0 => "never".into(),
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(640_000), "640 us");
        assert_eq!(duration(1_239_000_000), "1.24 s");
        assert_eq!((bytes(512), bytes(6400)), ("512 B".into(), "6.40 kB".into()));
        assert_eq!(rate(125_000_000, 1_000_000_000).as_deref(), Some("1.00 Gbit/s"));
        assert_eq!(rate(1, 0), None);
        assert_eq!((counted(1, "packet"), times(3)), ("1 packet".into(), "3 times".into()));
    }
}
