//! What a newcomer asks first: a table of some figures, each beside the best of its peers.

use std::fmt::Write;

use super::bars::ping_pong;
use super::judged::number;
use super::kept::Kept;
use super::programs::{self, Programs};
use crate::{Result, root};

/// The page of figures over networks that lose, which are measured by a program of their own, and
/// its row that stands here.
const NETWORKS: &str = "docs/network-figures.md";
const LOSSY: &str = "5 ms each way, 1 % loss";

/// Which way is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    Higher,
    Lower,
}
use Better::{Higher, Lower};

impl Better {
    /// The better one of two.
    fn of(self, a: f64, b: f64) -> bool {
        if self == Higher { a >= b } else { a <= b }
    }

    fn name(self) -> &'static str {
        if self == Higher { "higher" } else { "lower" }
    }
}

/// A figure of Vernic's beside one of a peer's.
struct Pair {
    ours: f64,
    theirs: f64,
    ratio: f64,
    unit: String,
    peer: String,
}

impl Pair {
    fn new(ours: f64, theirs: f64, unit: &str, peer: &str) -> Self {
        Self { ours, theirs, ratio: ours / theirs, unit: unit.into(), peer: peer.into() }
    }
}

/// A row of the table: what, from which run, and the figures where they were measured.
struct Row(&'static str, char, Better, Option<Pair>);

/// The runs, by the letters of the table.
pub(super) const WHOLE: char = 'a';
pub(super) const ONE_HOST: char = 'b';
pub(super) const GROWTH: char = 'c';
pub(super) const GUEST: char = 'd';
pub(super) const NETWORK: char = 'e';

/// Names of readings, and how the table calls them.
const TCP: &[(&str, &str)] = &[("iperf3", "TCP (iperf3)")];
const TCP_OR_UCX: &[(&str, &str)] = &[
    ("iperf3", "TCP (iperf3)"),
    ("UCX over TCP, tag_bw 1 MiB", "UCX over TCP"),
    ("UCX over TCP, put_bw 1 MiB", "UCX over TCP"),
];
const UCX_PUT: &[(&str, &str)] = &[("UCX cma, put_bw 1 MiB", "UCX, cma")];
const UCX_1M: &[(&str, &str)] = &[("UCX posix and cma, tag_bw 1 MiB", "UCX, shared memory")];
const UCX_64: &[(&str, &str)] = &[("UCX posix and cma, tag_bw 64 B", "UCX, shared memory")];
const UCX_LAT: &[(&str, &str)] = &[("UCX posix, tag_lat 8 B", "UCX, shared memory")];
const SOCKPERF: &[(&str, &str)] = &[("sockperf 64 B there and back, TCP", "TCP (sockperf)")];
const RXE: &[(&str, &str)] = &[("ib_write_bw 1 MiB, rxe", "the kernel's rxe")];

fn rows(kept: &Kept, networks: &str) -> Vec<Row> {
    let whole = |name, peers, better| best(kept.whole.programs.as_ref()?, name, peers, better);
    let one_host = |name, peers, better| best(&kept.one_host.programs, name, peers, better);
    let guest = |name| best(&kept.guest.programs, name, RXE, Higher);
    let (near, near_64, near_lat) =
        ("ib_send_bw 1 MiB", "ib_send_bw 64 B, one by one", "ib_send_lat 8 B");
    let near_write = "ib_write_bw 1 MiB, same host";
    let sockets = "sockperf 64 B there and back, rsockets";
    #[rustfmt::skip] // a table reads best one row a line
    let rows = vec![
        Row("Within a host: WRITE 1 MiB, beside TCP", WHOLE, Higher, whole(near_write, TCP, Higher)),
        Row("Within a host: WRITE 1 MiB, beside UCX", WHOLE, Higher, whole(near_write, UCX_PUT, Higher)),
        Row("Within a host: SEND 1 MiB", ONE_HOST, Higher, one_host(near, UCX_1M, Higher)),
        Row("Within a host: SEND 64 B, one by one", ONE_HOST, Higher, one_host(near_64, UCX_64, Higher)),
        Row("Within a host: SEND 8 B, one way", ONE_HOST, Lower, one_host(near_lat, UCX_LAT, Lower)),
        Row("Within a host: a TCP program by `--rsockets`, 64 B there and back", ONE_HOST, Lower, one_host(sockets, SOCKPERF, Lower)),
        Row("Within a host: processor time of a WRITE's passive side", WHOLE, Lower, passive(kept)),
        Row("By UDP: WRITE 1 MiB", WHOLE, Higher, whole("ib_write_bw 1 MiB, MTU 4096", TCP_OR_UCX, Higher)),
        Row("By UDP: SEND 1 MiB", WHOLE, Higher, whole("ib_send_bw 1 MiB, MTU 4096", TCP_OR_UCX, Higher)),
        Row("By UDP: SEND 64 B, one way", WHOLE, Lower, sockets_latency(kept)),
        Row("iWARP: WRITE 1 MiB, with CRC", WHOLE, Higher, whole("ib_write_bw 1 MiB, iWARP, CRC", TCP_OR_UCX, Higher)),
        Row("By UDP, within one process: WRITE 64 KiB on 10,000 queue pairs", GROWTH, Higher, many(kept)),
        Row("Round trip of 10 ms, 1 % loss: WRITE 64 KiB", NETWORK, Higher, lossy(networks)),
        Row("In an emulated guest, by default: WRITE 1 MiB", GUEST, Higher, guest("ib_write_bw 1 MiB, Vernic")),
        Row("In an emulated guest, by UDP: WRITE 1 MiB", GUEST, Higher, guest("ib_write_bw 1 MiB, Vernic by UDP")),
    ];
    rows
}

/// An entry beside the best of its peers.
fn best(programs: &Programs, name: &str, peers: &[(&str, &str)], better: Better) -> Option<Pair> {
    let measured = peers.iter().filter_map(|peer| Some((peer, programs.median(peer.0)?)));
    let (peer, theirs) = measured.reduce(|a, b| if better.of(a.1, b.1) { a } else { b })?;
    let pair = Pair::new(programs.median(name)?, theirs, programs.unit(name), peer.1);
    Some(Pair { ratio: programs.ratio(name, peer.0)?, ..pair })
}

/// Processor time of the side that is written to, beside TCP's receiver.
fn passive(kept: &Kept) -> Option<Pair> {
    let curves = &kept.whole.programs.as_ref()?.curves;
    let [ours, _] = programs::cost(curves, "Vernic, same host, WRITE")?;
    let [theirs, _] = programs::cost(curves, "TCP (qperf)")?;
    Some(Pair::new(ours, theirs, "s per GB", "TCP (qperf)"))
}

/// The latency of a SEND of 64 bytes by `vernic bench`, beside plain sockets.
fn sockets_latency(kept: &Kept) -> Option<Pair> {
    const BYTES: u64 = 64;
    let sends = kept.whole.results.iter().filter(|result| {
        let is_rc_send = result.op == "SEND" && result.service == "RC";
        is_rc_send && result.size_bytes == BYTES
    });
    let ours = sends.filter_map(|result| result.latency_us_p50).reduce(f64::min)?;
    let peers = [("udp", "UDP sockets"), ("tcp", "TCP sockets")].into_iter();
    let peers =
        peers.filter_map(|(name, shown)| Some((ping_pong(&kept.whole, name, BYTES)?, shown)));
    let (theirs, peer) = peers.reduce(|a, b| if a.0 <= b.0 { a } else { b })?;
    Some(Pair::new(ours, theirs, "us", peer))
}

fn many(kept: &Kept) -> Option<Pair> {
    let (many, one) = kept.growth.many_and_one()?;
    Some(Pair::new(many, one, "GB/s", "one queue pair"))
}

/// TCP and WRITE of the row of a network that loses.
fn lossy(page: &str) -> Option<Pair> {
    let row = page.lines().find_map(|line| line.strip_prefix("| ")?.strip_prefix(LOSSY))?;
    let mut cells = row.trim_matches([' ', '|']).split('|').map(str::trim);
    let theirs = cells.next()?.parse().ok()?;
    let (ours, ratio) = cells.next()?.split_once(", ")?;
    let pair = Pair::new(ours.parse().ok()?, theirs, "Mb/s", "TCP (iperf3, CUBIC)");
    Some(Pair { ratio: ratio.parse().ok()?, ..pair })
}

/// The table. Ratios in which Vernic is the better one are bold.
pub(super) fn table(kept: &Kept) -> Result<String> {
    let networks = root().join(NETWORKS);
    let networks = std::fs::read_to_string(networks).map_err(|e| format!("{NETWORKS}: {e}"))?;
    let mut table = "| what | Vernic | best peer of its kind | ratio | better | run |\n".to_owned();
    table += "|---|--:|---|--:|---|---|\n";
    for Row(what, run, better, pair) in rows(kept, &networks) {
        let _ = match pair {
            Some(Pair { ours, theirs, ratio, unit, peer }) => {
                let bold = if better.of(ratio, 1.0) { "**" } else { "" };
                let (ours, theirs, better) =
                    (number(Some(ours)), number(Some(theirs)), better.name());
                writeln!(
                    table,
                    "| {what} | {ours} {unit} | {peer}: {theirs} | {bold}{ratio:.2} x{bold} | {better} | {run} |"
                )
            }
            None => writeln!(table, "| {what} | not measured | | | {} | {run} |", better.name()),
        };
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_taken_and_the_ratio_is_that_of_the_rounds() {
        let programs: Programs = serde_json::from_str(
            r#"{"cores": "any", "series": [
            {"name": "us", "command": "", "unit": "GB/s", "readings": [6.0, 2.0, 4.0], "failure": null},
            {"name": "x", "command": "", "unit": "GB/s", "readings": [3.0, 4.0, 5.0], "failure": null},
            {"name": "y", "command": "", "unit": "GB/s", "readings": [1.0, 1.0, 1.0], "failure": null}]}"#,
        )
        .unwrap();
        let peers = &[("none", "None"), ("y", "Y"), ("x", "X")];
        for (better, peer, theirs, ratio) in [(Higher, "X", 4.0, 0.8), (Lower, "Y", 1.0, 4.0)] {
            let pair = best(&programs, "us", peers, better).unwrap();
            assert_eq!((&*pair.peer, pair.ours, pair.theirs), (peer, 4.0, theirs));
            assert_eq!(pair.ratio, ratio);
        }
        assert!(best(&programs, "none", peers, Higher).is_none());
        assert!(best(&programs, "us", &peers[..1], Higher).is_none());
    }

    #[test]
    fn the_row_of_a_network_that_loses_is_read_from_its_page() {
        let page =
            format!("| path | TCP | WRITE |\n|---|---|---|\n| {LOSSY} | 13.5 | 26, 1.94 | 5 |\n");
        let pair = lossy(&page).unwrap();
        assert_eq!((pair.ours, pair.theirs, pair.ratio), (26.0, 13.5, 1.94));
        assert!(lossy("| another | 1 | 2, 3 |").is_none());
    }

    #[test]
    fn the_table_is_short_and_has_figures_in_every_row() {
        let table = table(&Kept::read().unwrap()).unwrap();
        assert!(table.lines().count() <= 2 + 15, "{table}");
        assert!(!table.contains("not measured"), "{table}");
    }
}
