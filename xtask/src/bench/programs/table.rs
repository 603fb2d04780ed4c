//! What is measured, with which options.
//!
//! Rounds go through the table from top to bottom, and back, so what is compared stands together.

use std::borrow::Cow;

use super::probe::Probe;
use super::work::{Crc, Entry, Figure, Over, Pair, Through, Way, Work};

/// One stream, with its own sizes.
pub(super) const IPERF3: &str = "iperf3";
pub(super) const UCX_LATENCY: &str = "UCX over TCP, tag_lat 8 B";
pub(super) const UCX_POSIX: &str = "UCX posix, tag_lat 8 B";
pub(super) const UCX_CMA: &str = "UCX cma, put_bw 1 MiB";
pub(super) const UCX_TAG: &str = "UCX posix and cma, tag_bw 1 MiB";
pub(super) const MEMCPY: &str = "memcpy 64 KiB";
pub(super) const CORES: &str = "a word from core to core";
/// What the far side of `ib_write_bw` takes while it is written to.
pub(super) const PASSIVE: &str = "ib_write_bw 1 MiB, same host, passive side";
pub(super) const START: &str = "ibv_devices";

#[rustfmt::skip] // a table reads best one row a line
pub(super) const ENTRIES: &[Entry] = &[
    entry(IPERF3,                             Work::Pair(Pair::Iperf3), Figure::Bandwidth, 0, None),
    entry("ib_write_bw 1 MiB, MTU 4096",      wire("ib_write_bw -s 1048576 -m 4096"), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_send_bw 1 MiB, MTU 4096",       wire("ib_send_bw -s 1048576 -m 4096"), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_read_bw 1 MiB, MTU 4096",       wire("ib_read_bw -s 1048576 -m 4096"), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, MTU 1024",      wire("ib_write_bw -s 1048576 -m 1024"), Figure::Bandwidth, 3000, Some(IPERF3)),
    entry("ib_send_bw 1 MiB, MTU 1024",       wire("ib_send_bw -s 1048576 -m 1024"), Figure::Bandwidth, 3000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, iWARP",         iwarp("ib_write_bw -s 1048576", Crc::Off), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("ib_write_bw 1 MiB, iWARP, CRC",    iwarp("ib_write_bw -s 1048576", Crc::On), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry("UCX over TCP, put_bw 1 MiB",       ucx(Some(Over::Tcp), "-t ucp_put_bw -s 1048576"), Figure::Bandwidth, 2000, Some(IPERF3)),
    entry("UCX over TCP, tag_bw 1 MiB",       ucx(Some(Over::Tcp), "-t tag_bw -s 1048576"), Figure::Bandwidth, 2000, Some(IPERF3)),
    entry("Rust API, WRITE 1 MiB, MTU 4096",  rust(Way::Wire, "--op write --test bw -s 1m -t 128 -l 1 -Q 1 --passive"), Figure::Bandwidth, 4000, Some(IPERF3)),
    entry(UCX_CMA,                            ucx(None, "-t put_bw -d memory -x cma -D zcopy -s 1048576"), Figure::Bandwidth, 10_000, None),
    entry(UCX_TAG,                            ucx(Some(Over::SharedMemory), "-t tag_bw -s 1048576"), Figure::Bandwidth, 10_000, None),
    entry("ib_write_bw 1 MiB, same host",     perftest(Way::SameHost, "ib_write_bw -s 1048576 -m 4096"), Figure::Bandwidth, 30_000, Some(UCX_CMA)),
    entry("ib_read_bw 1 MiB, same host",      perftest(Way::SameHost, "ib_read_bw -s 1048576 -m 4096"), Figure::Bandwidth, 10_000, Some(UCX_CMA)),
    entry("ib_send_bw 1 MiB, same host",      perftest(Way::SameHost, "ib_send_bw -s 1048576 -m 4096"), Figure::Bandwidth, 5_000, Some(UCX_TAG)),
    entry("ib_write_bw 1 MiB, mapped",        perftest(Way::Mapped, "ib_write_bw -s 1048576 -m 4096"), Figure::Bandwidth, 30_000, Some(UCX_CMA)),
    entry(MEMCPY,                             Work::Machine(Probe::Memcpy(64 << 10)), Figure::Bandwidth, 0, None),
    entry("ib_write_bw 64 KiB, mapped",       perftest(Way::Mapped, "ib_write_bw -s 65536 -m 4096"), Figure::Bandwidth, 400_000, Some(MEMCPY)),
    entry("Rust API, WRITE 64 KiB, mapped",   rust(Way::SameHost, "--op write --test bw -s 64k --passive"), Figure::Bandwidth, 200_000, Some(MEMCPY)),
    entry(PASSIVE,                            perftest(Way::SameHost, "ib_write_bw -s 1048576 -m 4096 -D 2 -f 0"), Figure::PassiveShare, 0, None),
    entry(CORES,                              Work::Machine(Probe::CoreToCore), Figure::Latency, 0, None),
    entry(UCX_POSIX,                          ucx(Some(Over::SharedMemory), "-t tag_lat -s 8"), Figure::Latency, 200_000, Some(CORES)),
    entry("ib_send_lat 8 B, same host",       perftest(Way::SameHost, "ib_send_lat -s 8 -m 4096"), Figure::Latency, 200_000, Some(UCX_POSIX)),
    entry("ib_write_lat 8 B, same host",      perftest(Way::SameHost, "ib_write_lat -s 8 -m 4096"), Figure::Latency, 200_000, Some(UCX_POSIX)),
    entry("ib_write_lat 8 B, mapped",         perftest(Way::Mapped, "ib_write_lat -s 8 -m 4096"), Figure::Latency, 200_000, Some(CORES)),
    entry(UCX_LATENCY,                        ucx(Some(Over::Tcp), "-t tag_lat -s 8"), Figure::Latency, 50_000, None),
    entry("ib_send_lat 8 B",                  wire("ib_send_lat -s 8 -m 4096"), Figure::Latency, 100_000, Some(UCX_LATENCY)),
    entry("ib_send_lat 8 B, iWARP, CRC",      iwarp("ib_send_lat -s 8", Crc::On), Figure::Latency, 50_000, Some(UCX_LATENCY)),
    entry("Rust API, SEND 8 B, latency",      rust(Way::Wire, "--op send --test lat -s 8 -t 1 -l 1 -Q 1"), Figure::Latency, 100_000, Some(UCX_LATENCY)),
    entry("ib_write_lat 8 B",                 wire("ib_write_lat -s 8 -m 4096"), Figure::Latency, 5_000, Some(UCX_LATENCY)),
    entry("ib_write_bw 8 B, lists of 16",     wire("ib_write_bw -s 8 -m 4096 -t 512 -l 16 -Q 16"), Figure::Rate, 1_000_000, None),
    entry("ib_write_bw 8 B, lists of 16, 8 QPs", wire("ib_write_bw -s 8 -m 4096 -t 512 -l 16 -Q 16 -q 8"), Figure::Rate, 128_000, Some("ib_write_bw 8 B, lists of 16")),
    entry("Rust API, WRITE 8 B, lists of 16", rust(Way::Wire, "--op write --test bw -s 8 -t 512 -l 16 -Q 16 --passive"), Figure::Rate, 1_000_000, None),
    entry("Rust API, WRITE 8 B, lists of 64", rust(Way::Wire, "--op write --test bw -s 8"), Figure::Rate, 2_000_000, None),
    entry("Rust API, WRITE 8 B, lists of 64, 8 QPs", rust(Way::Wire, "--op write --test bw -s 8 -q 8"), Figure::Rate, 2_000_000, Some("Rust API, WRITE 8 B, lists of 64")),
    entry("ib_send_bw 64 B, lists of 16",     wire("ib_send_bw -s 64 -m 4096 -t 512 -r 1024 -l 16 -Q 16"), Figure::Rate, 1_000_000, None),
    entry("Rust API, SEND 64 B, lists of 16", rust(Way::Wire, "--op send --test bw -s 64 -t 512 -r 1024 -l 16 -Q 16"), Figure::Rate, 1_000_000, None),
    entry("calls of C, lists of 16",          Work::Calls { through: Through::C, list: 16 }, Figure::CallTime, 1_000_000, None),
    entry("calls of Rust, lists of 16",       Work::Calls { through: Through::Rust, list: 16 }, Figure::CallTime, 1_000_000, None),
    entry("calls of C, one by one",           Work::Calls { through: Through::C, list: 1 }, Figure::CallTime, 200_000, None),
    entry("calls of Rust, one by one",        Work::Calls { through: Through::Rust, list: 1 }, Figure::CallTime, 200_000, None),
    entry("instructions of C",                Work::Calls { through: Through::C, list: 16 }, Figure::CallInstructions, 200_000, None),
    entry("instructions of Rust",             Work::Calls { through: Through::Rust, list: 16 }, Figure::CallInstructions, 200_000, None),
    entry("cmtime, 1000 at once",             Work::Pair(Pair::Cmtime), Figure::Connections, 1000, None),
    entry(START,                              Work::Start, Figure::Start, 0, None),
];

const fn wire(line: &'static str) -> Work {
    perftest(Way::Wire, line)
}

pub(super) const fn perftest(way: Way, line: &'static str) -> Work {
    Work::Pair(Pair::Perftest(way, Cow::Borrowed(line)))
}

const fn iwarp(line: &'static str, crc: Crc) -> Work {
    Work::Pair(Pair::Iwarp(Cow::Borrowed(line), crc))
}

pub(super) const fn ucx(over: Option<Over>, test: &'static str) -> Work {
    Work::Pair(Pair::Ucx(over, Cow::Borrowed(test)))
}

const fn rust(way: Way, options: &'static str) -> Work {
    Work::Pair(Pair::RustApi(way, options))
}

pub(super) const fn entry(
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
