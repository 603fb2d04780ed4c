//! What is measured, with which options.
//!
//! Rounds go through the table from top to bottom, so what is compared stands together.

use std::borrow::Cow;

use super::work::{Crc, Figure, Over, Pair, Through, Work};

/// One thing to measure.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) figure: Figure,
    /// Messages of a whole run; a quick one has a fifth.
    pub(super) messages: u32,
    /// The entry beside which it is shown.
    pub(super) beside: Option<&'static str>,
}

/// One stream, with its own sizes.
pub(super) const IPERF3: &str = "iperf3";
pub(super) const UCX_LATENCY: &str = "UCX over TCP, tag_lat 8 B";
pub(super) const START: &str = "ibv_devices";

#[rustfmt::skip] // a table reads best one row a line
pub(super) const ENTRIES: &[Entry] = &[
    entry(IPERF3,                             Work::Pair(Pair::Iperf3), Figure::Bandwidth, 0, None),
    entry("ib_write_bw 1 MiB, MTU 4096",      Work::Pair(perftest("ib_write_bw -s 1048576 -m 4096")), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_send_bw 1 MiB, MTU 4096",       Work::Pair(perftest("ib_send_bw -s 1048576 -m 4096")), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_read_bw 1 MiB, MTU 4096",       Work::Pair(perftest("ib_read_bw -s 1048576 -m 4096")), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, MTU 1024",      Work::Pair(perftest("ib_write_bw -s 1048576 -m 1024")), Figure::Bandwidth, 3000, Some(IPERF3)),
    entry("ib_send_bw 1 MiB, MTU 1024",       Work::Pair(perftest("ib_send_bw -s 1048576 -m 1024")), Figure::Bandwidth, 3000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, iWARP",         Work::Pair(Pair::Iwarp("ib_write_bw -s 1048576", Crc::Off)), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, iWARP, CRC",    Work::Pair(Pair::Iwarp("ib_write_bw -s 1048576", Crc::On)), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("UCX over TCP, put_bw 1 MiB",       Work::Pair(ucx("-t ucp_put_bw -s 1048576")), Figure::Bandwidth, 2000, Some(IPERF3)),
    entry("UCX over TCP, tag_bw 1 MiB",       Work::Pair(ucx("-t tag_bw -s 1048576")), Figure::Bandwidth, 2000, Some(IPERF3)),
    entry("Rust API, WRITE 1 MiB, MTU 4096",  Work::Pair(Pair::RustApi("--op write --test bw -s 1m -t 128 -l 1 -Q 1 --passive")), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry(UCX_LATENCY,                        Work::Pair(ucx("-t tag_lat -s 8")), Figure::Latency, 50_000, None),
    entry("ib_send_lat 8 B",                  Work::Pair(perftest("ib_send_lat -s 8 -m 4096")), Figure::Latency, 100_000, Some(UCX_LATENCY)),
    entry("ib_send_lat 8 B, iWARP, CRC",      Work::Pair(Pair::Iwarp("ib_send_lat -s 8", Crc::On)), Figure::Latency, 50_000, Some(UCX_LATENCY)),
    entry("Rust API, SEND 8 B, latency",      Work::Pair(Pair::RustApi("--op send --test lat -s 8 -t 1 -l 1 -Q 1")), Figure::Latency, 100_000, Some(UCX_LATENCY)),
    entry("ib_write_lat 8 B",                 Work::Pair(perftest("ib_write_lat -s 8 -m 4096")), Figure::Latency, 5_000, Some(UCX_LATENCY)),
    entry("ib_write_bw 8 B, lists of 16",     Work::Pair(perftest("ib_write_bw -s 8 -m 4096 -t 512 -l 16 -Q 16")), Figure::Rate, 1_000_000, None),
    entry("Rust API, WRITE 8 B, lists of 16", Work::Pair(Pair::RustApi("--op write --test bw -s 8 -t 512 -l 16 -Q 16 --passive")), Figure::Rate, 1_000_000, None),
    entry("ib_send_bw 64 B, lists of 16",     Work::Pair(perftest("ib_send_bw -s 64 -m 4096 -t 512 -r 1024 -l 16 -Q 16")), Figure::Rate, 1_000_000, None),
    entry("Rust API, SEND 64 B, lists of 16", Work::Pair(Pair::RustApi("--op send --test bw -s 64 -t 512 -r 1024 -l 16 -Q 16")), Figure::Rate, 1_000_000, None),
    entry("calls of C, lists of 16",          Work::Calls { through: Through::C, list: 16 }, Figure::CallTime, 1_000_000, None),
    entry("calls of Rust, lists of 16",       Work::Calls { through: Through::Rust, list: 16 }, Figure::CallTime, 1_000_000, None),
    entry("calls of C, one by one",           Work::Calls { through: Through::C, list: 1 }, Figure::CallTime, 200_000, None),
    entry("calls of Rust, one by one",        Work::Calls { through: Through::Rust, list: 1 }, Figure::CallTime, 200_000, None),
    entry("instructions of C",                Work::Calls { through: Through::C, list: 16 }, Figure::CallInstructions, 200_000, None),
    entry("instructions of Rust",             Work::Calls { through: Through::Rust, list: 16 }, Figure::CallInstructions, 200_000, None),
    entry(START,                              Work::Start, Figure::Start, 0, None),
];

const fn perftest(line: &'static str) -> Pair {
    Pair::Perftest(Cow::Borrowed(line))
}

const fn ucx(test: &'static str) -> Pair {
    Pair::Ucx(Over::Tcp, Cow::Borrowed(test))
}

const fn entry(
    name: &'static str,
    work: Work,
    figure: Figure,
    messages: u32,
    beside: Option<&'static str>,
) -> Entry {
    Entry { name, work, figure, messages, beside }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_references_exist() {
        for (place, entry) in ENTRIES.iter().enumerate() {
            assert!(
                ENTRIES[..place].iter().all(|other| other.name != entry.name),
                "{}",
                entry.name
            );
            let known = |name| ENTRIES.iter().any(|other| other.name == name);
            assert!(entry.beside.is_none_or(known), "{}", entry.name);
        }
    }
}
