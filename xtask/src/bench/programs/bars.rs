//! The figures that unmodified programs are meant to reach.

use super::super::bars::Judged;
use super::super::page::number;
use super::series::Programs;
use super::table::{IPERF3, START};

/// What a figure is held against.
enum Bar {
    /// At least this many times another entry of the same rounds.
    Faster(f64, &'static str),
    /// At most this many times another entry of the same rounds.
    Cost(f64, &'static str),
    /// At most this, in the entry's unit.
    Within(f64),
}

/// What, the entry, and its bar.
#[rustfmt::skip] // a table reads best one row a line
const ROWS: &[(&str, &str, Bar)] = &[
    ("ib_write_bw 1 MiB, MTU 4096", "ib_write_bw 1 MiB, MTU 4096", Bar::Faster(1.5, IPERF3)),
    ("ib_send_bw 1 MiB, MTU 4096",  "ib_send_bw 1 MiB, MTU 4096",  Bar::Faster(1.5, IPERF3)),
    ("ib_write_bw 1 MiB, iWARP",    "ib_write_bw 1 MiB, iWARP",    Bar::Faster(0.9, IPERF3)),
    ("ib_write_bw 1 MiB, iWARP, CRC", "ib_write_bw 1 MiB, iWARP, CRC", Bar::Faster(0.8, IPERF3)),
    ("ib_send_lat 8 B, typical",    "ib_send_lat 8 B",             Bar::Within(4.0)),
    ("C ABI, time of 16 in a list", "calls of C, lists of 16",     Bar::Cost(1.1, "calls of Rust, lists of 16")),
    ("C ABI, time of one by one",   "calls of C, one by one",      Bar::Cost(1.1, "calls of Rust, one by one")),
    ("C ABI, instructions",         "instructions of C",           Bar::Cost(1.1, "instructions of Rust")),
    ("start of ibv_devices",        START,                         Bar::Within(20.0)),
];

/// Every bar, in order.
pub(super) fn judge(programs: &Programs) -> Vec<Judged> {
    ROWS.iter().map(|(what, name, bar)| bar.judge(what, name, programs)).collect()
}

impl Bar {
    fn judge(&self, what: &'static str, name: &str, programs: &Programs) -> Judged {
        let unit = programs.unit(name);
        let figure = programs.median(name);
        let compared = |reference: &str| {
            let ratio = programs.ratio(name, reference)?;
            let (figure, other) = (number(figure), number(programs.median(reference)));
            Some((format!("{figure} {unit}, {reference} {other}: {ratio:.2} x"), ratio))
        };
        let (bar, judged) = match self {
            Self::Faster(least, reference) => (
                format!("at least {least} x {reference}"),
                compared(reference).map(|(text, ratio)| (text, ratio >= *least)),
            ),
            Self::Cost(most, reference) => (
                format!("at most {most} x {reference}"),
                compared(reference).map(|(text, ratio)| (text, ratio <= *most)),
            ),
            Self::Within(most) => (
                format!("at most {most} {unit}"),
                figure.map(|figure| (format!("{} {unit}", number(Some(figure))), figure <= *most)),
            ),
        };
        let (measured, verdict) = match judged {
            Some((measured, true)) => (measured, "reached"),
            Some((measured, false)) => (measured, "short"),
            None => ("-".into(), "not measured"),
        };
        Judged { what, bar, measured, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::programs;
    use super::super::table::ENTRIES;
    use super::*;

    #[test]
    fn every_bar_is_about_entries_that_are_measured() {
        for (what, name, bar) in ROWS {
            let known = |name: &str| ENTRIES.iter().any(|entry| entry.name == name);
            assert!(known(name), "{what}");
            if let Bar::Faster(_, reference) | Bar::Cost(_, reference) = bar {
                assert!(known(reference), "{what}");
            }
        }
    }

    #[test]
    fn a_bar_is_reached_short_or_not_measured() {
        let programs = programs(&[
            (IPERF3, &[4.0, 5.0, 4.0]),
            ("ib_write_bw 1 MiB, MTU 4096", &[6.0, 7.5, 6.4]),
            ("ib_send_bw 1 MiB, MTU 4096", &[5.0, 5.0, 5.0]),
            ("ib_write_bw 1 MiB, iWARP", &[3.6, 4.6, 3.7]),
            ("ib_write_bw 1 MiB, iWARP, CRC", &[3.1, 3.9, 3.0]),
            ("ib_send_lat 8 B", &[4.1, 3.9, 4.0]),
            ("calls of C, lists of 16", &[330.0]),
            ("calls of Rust, lists of 16", &[300.0]),
            ("instructions of C", &[3400.0]),
            ("instructions of Rust", &[3000.0]),
            (START, &[]),
        ]);
        let verdicts: Vec<_> = judge(&programs).iter().map(|judged| judged.verdict).collect();
        let (not, short, reached) = ("not measured", "short", "reached");
        assert_eq!(verdicts, [reached, short, reached, short, reached, reached, not, short, not]);
    }
}
