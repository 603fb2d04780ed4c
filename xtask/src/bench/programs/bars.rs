//! The figures that unmodified programs are meant to reach.

use super::super::judged::{Judged, number};
use super::series::Programs;
use super::table::{IPERF3, MEMCPY, PASSIVE, START, UCX_CMA, UCX_POSIX, UCX_TAG};

/// What a figure is held against.
pub(super) enum Bar {
    /// At least this many times another entry of the same rounds.
    Faster(f64, &'static str),
    /// At most this many times another entry of the same rounds.
    Cost(f64, &'static str),
    /// At least this, in the entry's unit.
    AtLeast(f64),
    /// At most this, in the entry's unit.
    Within(f64),
    /// Less than this, in the entry's unit.
    Below(f64),
}

/// Of a core, in per cent, what counts as nothing: a device that rests looks after its neighbours
/// now and then.
const NOTHING: f64 = 0.5;

/// The entry, and its bar.
#[rustfmt::skip] // a table reads best one row a line
const ROWS: &[(&str, Bar)] = &[
    // The kernel's rxe, whose two ends are one device, has 1.84 us for 2 bytes.
    ("ib_write_lat 8 B, same host",   Bar::Below(1.84)),
    ("ib_write_lat 8 B, mapped",      Bar::Within(0.3)),
    ("ib_send_lat 8 B, same host",    Bar::Cost(1.0, UCX_POSIX)),
    ("ib_write_bw 64 KiB, mapped",    Bar::Faster(0.9, MEMCPY)),
    ("Rust API, WRITE 64 KiB, mapped", Bar::Faster(0.9, MEMCPY)),
    ("ib_write_bw 1 MiB, same host",  Bar::Faster(1.0, UCX_CMA)),
    ("ib_write_bw 1 MiB, same host",  Bar::Faster(1.0, UCX_TAG)),
    (PASSIVE,                         Bar::Within(NOTHING)),
    ("ib_write_bw 1 MiB, MTU 4096",   Bar::AtLeast(8.0)),
    ("ib_write_bw 1 MiB, MTU 4096",   Bar::Faster(2.0, IPERF3)),
    ("ib_write_bw 1 MiB, MTU 1024",   Bar::AtLeast(5.0)),
    ("ib_write_bw 1 MiB, MTU 1024",   Bar::Faster(1.2, IPERF3)),
    ("ib_send_bw 1 MiB, MTU 4096",    Bar::Faster(1.5, IPERF3)),
    ("ib_write_bw 8 B, lists of 16",  Bar::AtLeast(3.0)),
    ("ib_write_bw 8 B, lists of 16, 8 QPs", Bar::Faster(1.0, "ib_write_bw 8 B, lists of 16")),
    ("Rust API, WRITE 8 B, lists of 64", Bar::AtLeast(5.0)),
    ("Rust API, WRITE 8 B, lists of 64, 8 QPs", Bar::Faster(1.0, "Rust API, WRITE 8 B, lists of 64")),
    ("ib_write_lat 8 B",              Bar::Within(60.0)),
    ("ib_send_lat 8 B",               Bar::Within(4.0)),
    ("ib_write_bw 1 MiB, iWARP",      Bar::Faster(0.9, IPERF3)),
    ("ib_write_bw 1 MiB, iWARP, CRC", Bar::Faster(0.8, IPERF3)),
    ("calls of C, lists of 16",       Bar::Cost(1.1, "calls of Rust, lists of 16")),
    ("calls of C, one by one",        Bar::Cost(1.1, "calls of Rust, one by one")),
    ("instructions of C",             Bar::Cost(1.1, "instructions of Rust")),
    (START,                           Bar::Within(20.0)),
];

/// Every bar, in order.
pub(crate) fn judge(programs: &Programs) -> Vec<Judged> {
    ROWS.iter().map(|(name, bar)| bar.judge(name, programs)).collect()
}

/// A bar, and what was measured for it.
pub(super) struct Weighed {
    /// The bar in words.
    pub(super) bar: String,
    /// The median and its unit.
    pub(super) measured: Option<String>,
    /// What it is held against, where that is another entry, and the ratio.
    pub(super) compared: Option<String>,
    /// Whether it is reached; none if there is nothing to judge.
    pub(super) is_reached: Option<bool>,
}

impl Weighed {
    pub(super) fn verdict(&self) -> &'static str {
        match self.is_reached {
            Some(true) => "reached",
            Some(false) => "short",
            None => "not measured",
        }
    }
}

impl Bar {
    fn judge(&self, name: &str, programs: &Programs) -> Judged {
        let weighed = self.weigh(name, programs);
        let verdict = weighed.verdict().into();
        let Weighed { bar, measured, compared, is_reached } = weighed;
        let parts = measured.into_iter().chain(compared).collect::<Vec<_>>();
        let measured = if is_reached.is_some() { parts.join(", ") } else { "-".into() };
        Judged { what: name.into(), bar, measured, verdict }
    }

    /// The entry that it compares with.
    pub(super) fn reference(&self) -> Option<&'static str> {
        match self {
            Self::Faster(_, reference) | Self::Cost(_, reference) => Some(reference),
            Self::AtLeast(_) | Self::Within(_) | Self::Below(_) => None,
        }
    }

    pub(super) fn weigh(&self, name: &str, programs: &Programs) -> Weighed {
        let unit = programs.unit(name);
        let figure = programs.median(name);
        let ratio = self.reference().and_then(|reference| programs.ratio(name, reference));
        let (bar, is_reached) = match self {
            Self::Faster(least, reference) => {
                (format!("at least {least} x {reference}"), ratio.map(|ratio| ratio >= *least))
            }
            Self::Cost(most, reference) => {
                (format!("at most {most} x {reference}"), ratio.map(|ratio| ratio <= *most))
            }
            Self::AtLeast(least) => {
                (format!("at least {least} {unit}"), figure.map(|figure| figure >= *least))
            }
            Self::Within(most) => {
                (format!("at most {most} {unit}"), figure.map(|figure| figure <= *most))
            }
            Self::Below(bar) => (format!("below {bar} {unit}"), figure.map(|f| f < *bar)),
        };
        let compared = self.reference().zip(ratio).map(|(reference, ratio)| {
            format!("{reference} {}: {ratio:.2} x", number(programs.median(reference)))
        });
        let measured = figure.map(|figure| format!("{} {unit}", number(Some(figure))));
        Weighed { bar, measured, compared, is_reached }
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::programs;
    use super::super::table::ENTRIES;
    use super::*;

    #[test]
    fn every_bar_is_about_entries_that_are_measured() {
        for (name, bar) in ROWS {
            let known = |name: &str| ENTRIES.iter().any(|entry| entry.name == name);
            assert!(known(name) && bar.reference().is_none_or(known), "{name}");
        }
    }

    #[test]
    fn a_bar_is_reached_short_or_not_measured() {
        let programs = programs(&[
            (IPERF3, &[4.0, 5.0, 4.0]),
            (UCX_POSIX, &[0.2, 0.1, 0.2]),
            ("a", &[8.0, 10.5, 8.4]),
            ("b", &[0.19, 0.1, 0.3]),
            ("c", &[1.84, 1.84, 1.84]),
            ("d", &[]),
        ]);
        for (name, bar, bar_text, verdict) in [
            ("a", Bar::Faster(2.1, IPERF3), "at least 2.1 x iperf3", "reached"),
            ("a", Bar::Faster(2.2, IPERF3), "at least 2.2 x iperf3", "short"),
            ("b", Bar::Cost(1.0, UCX_POSIX), "at most 1 x UCX posix, tag_lat 8 B", "reached"),
            ("b", Bar::Cost(0.9, UCX_POSIX), "at most 0.9 x UCX posix, tag_lat 8 B", "short"),
            ("c", Bar::Below(1.84), "below 1.84 GB/s", "short"),
            ("c", Bar::Within(1.84), "at most 1.84 GB/s", "reached"),
            ("c", Bar::AtLeast(1.84), "at least 1.84 GB/s", "reached"),
            ("c", Bar::AtLeast(1.85), "at least 1.85 GB/s", "short"),
            ("d", Bar::Within(1.0), "at most 1 GB/s", "not measured"),
            ("a", Bar::Faster(1.0, "d"), "at least 1 x d", "not measured"),
        ] {
            let judged = bar.judge(name, &programs);
            assert_eq!((judged.bar.as_str(), judged.verdict.as_str()), (bar_text, verdict));
        }
        let judged = Bar::Faster(2.1, IPERF3).judge("a", &programs);
        assert_eq!(judged.measured, "8.40 GB/s, iperf3 4.00: 2.10 x");
    }
}
