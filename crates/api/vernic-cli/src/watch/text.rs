//! Numbers as people read them, and `vernic stat`.

use std::fmt::Write as _;

use super::sample::{ProcessRow, QpRow, View};
use crate::table::{Align, Table};

/// A count with the letter of its thousands: `0`, `17`, `1.23 M`.
pub(super) fn count(value: f64) -> String {
    const LETTERS: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let found = LETTERS.into_iter().find(|(unit, _)| value >= *unit * 0.9995);
    let (unit, letter) = found.unwrap_or((1.0, ""));
    let shown = value / unit;
    // Three digits, and no fraction of what is counted one by one.
    match shown {
        _ if letter.is_empty() => format!("{shown:.0}"),
        s if s < 9.995 => format!("{s:.2}{letter}"),
        s if s < 99.95 => format!("{s:.1}{letter}"),
        s => format!("{s:.0}{letter}"),
    }
}

/// Bytes, with the unit: `17 B`, `1.23 GB`. Powers of 1000.
pub(super) fn bytes(value: f64) -> String {
    let text = count(value);
    if text.contains(' ') { text + "B" } else { text + " B" }
}

/// What is shown of something that is not known.
fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

/// Address and number of the peer, as they are known.
pub(super) fn peer(qp: &QpRow) -> String {
    match (&qp.peer, qp.peer_number) {
        (Some(address), Some(number)) => format!("{address} {number:#x}"),
        (Some(address), None) => address.clone(),
        (None, Some(number)) => format!("{number:#x}"),
        (None, None) => "-".into(),
    }
}

/// `vernic stat` in words.
pub(super) fn stat(view: &View) -> String {
    let mut text = String::new();
    for process in &view.processes {
        text += &of_process(process);
    }
    if view.processes.is_empty() {
        text += "No process of this user has a device open here (in this network namespace).\n";
    }
    if view.silent_processes != 0 {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{} more did not answer: stopped (SIGSTOP, a debugger), or very busy",
            view.silent_processes
        );
    }
    text
}

fn of_process(process: &ProcessRow) -> String {
    let ProcessRow { pid, command, device, queue_pairs, memory_regions, .. } = process;
    let mut text = format!("{device}, process {pid}: {command}\n");
    let traffic = match &process.rates {
        Some(rates) => format!(
            "sent {}/s, received {}/s, by memory {}/s",
            bytes(rates.sent_bytes),
            bytes(rates.received_bytes),
            bytes(rates.memory_bytes)
        ),
        None => format!(
            "sent {}, received {}, by memory {}",
            bytes(process.sent_bytes as f64),
            bytes(process.received_bytes as f64),
            bytes(process.memory_bytes as f64)
        ),
    };
    // Writing to a String does not fail.
    let _ = writeln!(text, "  {queue_pairs} queue pairs, {memory_regions} regions; {traffic}");
    let dropped: Vec<_> = drops(process).map(|(name, value)| format!("{name} {value}")).collect();
    if !dropped.is_empty() {
        let _ = writeln!(text, "  dropped: {}", dropped.join(", "));
    }
    if !process.qps.is_empty() {
        text += &table(process).render();
    }
    for qp in &process.qps {
        if let Some(failure) = &qp.failure {
            let _ = writeln!(text, "  queue pair {:#x} failed: {failure}", qp.number);
        }
    }
    text
}

/// The counters of packets that were dropped, by their reasons.
pub(super) fn drops(process: &ProcessRow) -> impl Iterator<Item = (&str, u64)> {
    let dropped = process
        .counters
        .iter()
        .filter_map(|counter| Some((counter.name.strip_prefix("drop_")?, counter.value)));
    dropped.filter(|(_, value)| *value != 0)
}

fn table(process: &ProcessRow) -> Table {
    let has_rates = process.rates.is_some();
    let (done, sent, received) = match has_rates {
        true => ("requests/s", "sent/s", "received/s"),
        false => ("requests", "sent", "received"),
    };
    let right = Align::Right;
    let mut table = Table::new(&[
        ("queue pair", right),
        ("type", Align::Left),
        ("state", Align::Left),
        ("peer", Align::Left),
        ("way", Align::Left),
        ("outstanding", right),
        ("in flight", right),
        ("window", right),
        ("round trip", right),
        (done, right),
        (sent, right),
        (received, right),
        ("resent", right),
        ("RNR", right),
        ("timeouts", right),
    ]);
    for qp in &process.qps {
        let total =
            [qp.completed as f64, qp.counter("tx_bytes") as f64, qp.counter("rx_bytes") as f64];
        let rates = qp.rates.map(|r| [r.completed, r.sent_bytes, r.received_bytes]);
        let shown = if has_rates { rates } else { Some(total) };
        table.row([
            format!("{:#x}", qp.number),
            qp.kind.into(),
            qp.state.into(),
            peer(qp),
            qp.way.clone(),
            qp.outstanding.to_string(),
            qp.in_flight_packets.to_string(),
            known(qp.window_packets.map(|packets| packets.to_string())),
            known(qp.round_trip_us.map(|us| format!("{us:.0} us"))),
            known(shown.map(|s| count(s[0]))),
            known(shown.map(|s| bytes(s[1]))),
            known(shown.map(|s| bytes(s[2]))),
            qp.counter("retransmitted_packets").to_string(),
            rnr(qp).to_string(),
            qp.counter("ack_timeouts").to_string(),
        ]);
    }
    table
}

/// How often this end or the peer had no receive ready.
pub(super) fn rnr(qp: &QpRow) -> u64 {
    qp.counter("rnr_naks_received") + qp.counter("rnr_naks_sent")
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{process, sample};
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_letter() {
        for (value, expected) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00 k"),
            (1234.0, "1.23 k"),
            (12_345.0, "12.3 k"),
            (999_400.0, "999 k"),
            (999_600.0, "1.00 M"),
            (7.2e9, "7.20 G"),
            (5e15, "5000 T"),
        ] {
            assert_eq!(count(value), expected, "{value}");
        }
        assert_eq!((bytes(17.0), bytes(2e6)), ("17 B".into(), "2.00 MB".into()));
    }

    #[test]
    fn a_process_has_a_line_of_its_traffic_and_a_row_for_each_queue_pair() {
        let before = sample(0, vec![process(1, 0, 0)]);
        let mut told = process(1, 2000, 4_000_000);
        told.counters.push(("drop_icrc".into(), 3));
        told.qps[0].failure = Some("no answer".into());
        let now = sample(2, vec![told]);
        let text = stat(&now.view(Some(&before)));
        for part in [
            "vernic0, process 1: ",
            "1 queue pairs, 2 regions; sent 2.00 MB/s, received 0 B/s, by memory 10.0 MB/s",
            "  dropped: icrc 3\n",
            "0x65  RC    RTS    10.0.0.2 0x7  link",
            "1.00 k  2.00 MB",
            "  queue pair 0x65 failed: no answer\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(stat(&now.view(None)).contains("sent 4.00 MB, received 0 B, by memory 20.0 MB\n"));
        let none = stat(&sample(0, Vec::new()).view(None));
        assert!(none.starts_with("No process of this user"), "{none}");
    }
}
