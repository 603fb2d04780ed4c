//! What goes on within one host: entries, and bars.
//!
//! Each entry stands behind what it is compared with, so a round runs them one after the other.

use super::super::judged::{Judged, cell, number};
use super::bars::Bar;
use super::page::readings_table;
use super::probe::Probe;
use super::series::{Programs, Series};
use super::setup::Setup;
use super::table::{CORES, MEMCPY, UCX_POSIX, UCX_TAG, entry, perftest, ucx};
use super::work::{Entry, Figure, Over, Pair, Streams, Way, Work};
use super::{in_rounds, namespace, rounds};

const UCX_RATE: &str = "UCX posix and cma, tag_bw 64 B";
const UCX_TAG_64K: &str = "UCX posix and cma, tag_bw 64 KiB";
const SEND_LAT: &str = "ib_send_lat 8 B";
const SEND_LISTS: &str = "ib_send_bw 8 B, lists of 16";
const SEND_ONE_BY_ONE: &str = "ib_send_bw 64 B, one by one";
const SEND_64K: &str = "ib_send_bw 64 KiB";
const SEND_1M: &str = "ib_send_bw 1 MiB";
const SEND_UC: &str = "ib_send_lat 64 B, UC";
const SEND_UD: &str = "ib_send_lat 64 B, UD";
const WRITE_LISTS: &str = "ib_write_bw 8 B, lists of 16";
const WRITE_MAPPED_LAT: &str = "ib_write_lat 8 B, mapped";
const WRITE_MAPPED_64K: &str = "ib_write_bw 64 KiB, mapped";
const OVER_TCP: &str = "sockperf 64 B there and back, TCP";
const OVER_RSOCKETS: &str = "sockperf 64 B there and back, rsockets";

#[rustfmt::skip] // a table reads best one row a line
const ENTRIES: &[Entry] = &[
    entry(CORES,            Work::Machine(Probe::CoreToCore), Figure::Latency, 0, None),
    entry(WRITE_MAPPED_LAT, perftest(Way::Mapped, "ib_write_lat -s 8 -m 4096"), Figure::Latency, 200_000, Some(CORES)),
    entry(UCX_POSIX,        shared("-t tag_lat -s 8"), Figure::Latency, 400_000, Some(CORES)),
    entry(SEND_LAT,         same_host("ib_send_lat -s 8 -m 4096"), Figure::Latency, 200_000, Some(UCX_POSIX)),
    entry(SEND_UC,          same_host("ib_send_lat -c UC -s 64 -m 4096"), Figure::Latency, 100_000, Some(CORES)),
    entry(SEND_UD,          same_host("ib_send_lat -c UD -s 64 -m 4096"), Figure::Latency, 100_000, Some(CORES)),
    entry(SEND_LISTS,       same_host("ib_send_bw -s 8 -m 4096 -l 16"), Figure::Rate, 4_000_000, None),
    entry("ib_send_bw 8 B, lists of 16, 512 in flight", same_host("ib_send_bw -s 8 -m 4096 -t 512 -r 1024 -l 16 -Q 16"), Figure::Rate, 4_000_000, Some(SEND_LISTS)),
    entry(UCX_RATE,         shared("-t tag_bw -s 64"), Figure::Rate, 4_000_000, None),
    entry(SEND_ONE_BY_ONE,  same_host("ib_send_bw -s 64 -m 4096"), Figure::Rate, 2_000_000, Some(UCX_RATE)),
    entry(UCX_TAG_64K,      shared("-t tag_bw -s 65536"), Figure::Bandwidth, 80_000, None),
    entry(SEND_64K,         same_host("ib_send_bw -s 65536 -m 4096"), Figure::Bandwidth, 80_000, Some(UCX_TAG_64K)),
    entry(UCX_TAG,          shared("-t tag_bw -s 1048576"), Figure::Bandwidth, 5_000, None),
    entry(SEND_1M,          same_host("ib_send_bw -s 1048576 -m 4096"), Figure::Bandwidth, 5_000, Some(UCX_TAG)),
    entry(WRITE_LISTS,      same_host("ib_write_bw -s 8 -m 4096 -l 16"), Figure::Rate, 2_000_000, None),
    entry(MEMCPY,           Work::Machine(Probe::Memcpy(64 << 10)), Figure::Bandwidth, 0, None),
    entry(WRITE_MAPPED_64K, perftest(Way::Mapped, "ib_write_bw -s 65536 -m 4096"), Figure::Bandwidth, 400_000, Some(MEMCPY)),
    entry(OVER_TCP,         sockperf(Streams::Tcp), Figure::Latency, 0, None),
    entry(OVER_RSOCKETS,    sockperf(Streams::Rdma), Figure::Latency, 0, Some(OVER_TCP)),
];

/// The entry, and its bar.
const ROWS: &[(&str, Bar)] = &[
    (SEND_LAT, Bar::Cost(2.0, UCX_POSIX)),
    (SEND_LISTS, Bar::AtLeast(10.0)),
    (SEND_ONE_BY_ONE, Bar::Faster(1.0, UCX_RATE)),
    (SEND_64K, Bar::Faster(1.0, UCX_TAG_64K)),
    (SEND_1M, Bar::Faster(1.0, UCX_TAG)),
    (SEND_UC, Bar::Within(0.5)),
    (SEND_UD, Bar::Within(0.5)),
    (WRITE_LISTS, Bar::AtLeast(3.0)),
    (WRITE_MAPPED_LAT, Bar::Cost(2.5, CORES)),
    (WRITE_MAPPED_64K, Bar::Faster(0.85, MEMCPY)),
    (OVER_RSOCKETS, Bar::Cost(0.5, OVER_TCP)),
];

const fn same_host(line: &'static str) -> Work {
    perftest(Way::SameHost, line)
}

const fn shared(test: &'static str) -> Work {
    ucx(Some(Over::SharedMemory), test)
}

const fn sockperf(streams: Streams) -> Work {
    Work::Pair(Pair::Sockperf(streams, 64))
}

/// Measures, in so many rounds if that is said, and in a network of its own from here on. What
/// cannot be measured says why in its series.
pub(in crate::bench) fn measure(setup: &Setup, wanted: Option<usize>) -> Programs {
    let (series, network) = match namespace::enter() {
        Ok(network) => (in_rounds(ENTRIES, setup, wanted.unwrap_or(rounds(setup))), network),
        Err(why) => {
            let failed =
                |entry: &Entry| Series { failure: Some(why.clone()), ..entry.begin(setup) };
            (ENTRIES.iter().map(failed).collect(), "nowhere")
        }
    };
    let cores = format!("{}, {network}", setup.cores);
    Programs { cores, series, curves: Vec::new() }
}

/// Every bar, in order.
pub(in crate::bench) fn judge(programs: &Programs) -> Vec<Judged> {
    ROWS.iter().map(|(name, bar)| judge_one(name, bar, programs)).collect()
}

/// A bar; one that was not measured, or not in every round, says why.
fn judge_one(name: &str, bar: &Bar, programs: &Programs) -> Judged {
    let weighed = bar.weigh(name, programs);
    let [lowest, highest] = programs.extremes(name).map(number);
    let spread = |text: String| format!("{text}, {lowest} to {highest}");
    // Some rounds may have been measured before one failed: too few to judge by.
    let failed = |name: &str| programs.failure(name).map(cell);
    let verdict = match failed(name).or_else(|| bar.reference().and_then(failed)) {
        Some(why) => format!("not measured: {why}"),
        None if weighed.is_reached.is_none() => "not measured: no reading".into(),
        None => weighed.verdict().into(),
    };
    let parts: Vec<String> =
        weighed.measured.map(spread).into_iter().chain(weighed.compared).collect();
    let measured = if parts.is_empty() { "-".into() } else { parts.join("; ") };
    Judged { what: format!("{PREFIX}{name}"), bar: weighed.bar, measured, verdict }
}

/// The figures of all rounds.
pub(in crate::bench) fn table(programs: &Programs) -> String {
    readings_table(programs, ENTRIES)
}

/// Tells these bars from those of the same programs by the wire, where all bars stand together.
const PREFIX: &str = "in one host: ";

#[cfg(test)]
mod tests {
    use super::super::series::tests::programs;
    use super::*;

    #[test]
    fn names_are_unique_and_what_is_compared_is_measured_before() {
        for (place, entry) in ENTRIES.iter().enumerate() {
            let before = |name: &str| ENTRIES[..place].iter().any(|other| other.name == name);
            assert!(!before(entry.name) && entry.beside.is_none_or(before), "{}", entry.name);
        }
        for (name, bar) in ROWS {
            let known = |name: &str| ENTRIES.iter().any(|entry| entry.name == name);
            assert!(known(name) && bar.reference().is_none_or(known), "{name}");
        }
    }

    fn judged(list: &[(&str, &[f64])]) -> Vec<[String; 4]> {
        let rows = judge(&programs(list)).into_iter();
        rows.map(|j| [j.what, j.bar, j.measured, j.verdict]).collect()
    }

    #[test]
    fn a_bar_stands_with_its_spread_its_comparison_and_its_verdict() {
        let all = judged(&[
            (UCX_POSIX, &[0.2, 0.1, 0.2]),
            (SEND_LAT, &[0.4, 0.3, 0.6]),
            (SEND_LISTS, &[9.0, 12.0, 10.0]),
            (SEND_1M, &[9.0, 12.0, 10.0]),
            (UCX_TAG, &[10.0, 10.0, 20.0]),
        ]);
        for row in [
            [
                "in one host: ib_send_lat 8 B",
                "at most 2 x UCX posix, tag_lat 8 B",
                "0.40 GB/s, 0.30 to 0.60; UCX posix, tag_lat 8 B 0.20: 3.00 x",
                "short",
            ],
            [
                "in one host: ib_send_bw 8 B, lists of 16",
                "at least 10 GB/s",
                "10.0 GB/s, 9.00 to 12.0",
                "reached",
            ],
            [
                "in one host: ib_send_bw 1 MiB",
                "at least 1 x UCX posix and cma, tag_bw 1 MiB",
                "10.0 GB/s, 9.00 to 12.0; UCX posix and cma, tag_bw 1 MiB 10.0: 0.90 x",
                "short",
            ],
        ] {
            assert!(all.iter().any(|judged| *judged == row), "{row:?}\n{all:?}");
        }
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let all = judged(&[(SEND_LISTS, &[]), (SEND_64K, &[10.0]), (UCX_TAG_64K, &[])]);
        for (name, measured, verdict) in [
            (SEND_LISTS, "-", "not measured: not installed"),
            (SEND_64K, "10.0 GB/s, 10.0 to 10.0", "not measured: not installed"),
            (SEND_LAT, "-", "not measured: no reading"),
        ] {
            let what = format!("{PREFIX}{name}");
            let [.., m, v] = all.iter().find(|[found, ..]| *found == what).unwrap();
            assert_eq!((m.as_str(), v.as_str()), (measured, verdict), "{what}");
        }
    }
}
