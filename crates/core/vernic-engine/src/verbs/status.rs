//! The status text of an open device, which the process sends to others that ask: counters, numbers
//! of objects, and queue pairs.
//!
//! Owns the text that [`StatusSocket`](vernic_io::StatusSocket) sends, and so the names of the
//! port's counters. The text is made when a process asks, from values that the engine counts
//! anyway. Called by the background thread.
//!
//! Counters begin at 0 when the device is opened. The port's counters count packets with their
//! headers, by the wire or through shared memory. Bytes that one process copies directly into or
//! out of another process's memory (`direct_*`, `near_pulled_*`) are not in packets. They are only
//! among the device's counters.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use vernic_proto::QpAttr;
use vernic_wire::Qpn;

use crate::counters::DeviceCounters;
use crate::device::alarms::Offender;
use crate::device::transport::Transport;
use crate::local::control::LocalControl;
use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::support::events::lock;

/// The names of the port's counters in `ports/1/counters`, which are those of the kernel.
pub const PORT_COUNTERS: [&str; 6] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_discards",
    "port_rcv_errors",
];

/// The unit in which `port_xmit_data` and `port_rcv_data` count, in bytes.
const DATA_UNIT_BYTES: u64 = 4;

/// Largest number of queue pairs in the text, so that the text fits into a socket's buffer.
const MAX_QPS: usize = 1000;

impl DeviceCounters {
    /// Returns the values of [`PORT_COUNTERS`], in their order.
    pub fn port_counters(&self, transport: Transport) -> [u64; PORT_COUNTERS.len()] {
        let (link, streams) = (&self.link, &self.streams);
        let (tx_bytes, rx_bytes, tx_packets, rx_packets) = match transport {
            Transport::Iwarp => {
                (streams.tx_bytes, streams.rx_bytes, streams.tx_fpdus, streams.rx_fpdus)
            }
            _ => (
                link.tx_bytes + self.near_tx_bytes,
                link.rx_bytes + self.near_rx_bytes,
                link.tx_packets + self.near_tx_packets,
                link.rx_packets + self.near_rx_packets,
            ),
        };
        let discards = link.tx_errors + self.near_lost;
        let errors = link.icrc_errors
            + link.rx_truncated_drops
            + link.rx_overflow_drops
            + streams.crc_errors;
        let [tx_data, rx_data] = [tx_bytes, rx_bytes].map(|bytes| bytes / DATA_UNIT_BYTES);
        [tx_data, rx_data, tx_packets, rx_packets, discards, errors]
    }
}

/// How long the processes of a device together are waited for: one that runs answers in a
/// millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a process of this host has on a device that it has open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The process.
    pub pid: u32,
    /// The values of [`PORT_COUNTERS`], in their order.
    pub port: [u64; PORT_COUNTERS.len()],
    /// The queue pairs; the first thousand.
    pub qps: Vec<QpStatus>,
}

/// A queue pair of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// The number.
    pub qpn: Qpn,
    /// The type, by its number in `ibv_qp_type`.
    pub qp_type: u8,
    /// The state, by its number in `ibv_qp_state`.
    pub state: u8,
    /// The number of the peer's queue pair; 0 if there is none.
    pub dest_qpn: Qpn,
}

impl ProcessStatus {
    /// Reads a text of [`Engine::status`]. Lines that are not known are left out.
    fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match words[0] {
                "pid" => status.pid = number(1).unwrap_or(0) as u32,
                "port" => {
                    let at = PORT_COUNTERS.iter().position(|name| words.get(1) == Some(name));
                    if let (Some(at), Some(value)) = (at, number(2)) {
                        status.port[at] = value;
                    }
                }
                "qp" => status.qps.extend(QpStatus::of([1, 2, 3, 4].map(number))),
                _ => {}
            }
        }
        status
    }
}

impl QpStatus {
    fn of(numbers: [Option<u64>; 4]) -> Option<Self> {
        let [qpn, qp_type, state, dest_qpn] = numbers;
        Some(Self {
            qpn: Qpn::new(qpn? as u32),
            qp_type: qp_type? as u8,
            state: state? as u8,
            dest_qpn: Qpn::new(dest_qpn? as u32),
        })
    }
}

/// Returns what the processes of this user (for root, of all users) have on a device, this process
/// included.
///
/// # Errors
/// A process did not tell within 2 s, or not everything.
pub fn processes(device: &str) -> io::Result<Vec<ProcessStatus>> {
    let texts = vernic_io::status::ask_all(device, PATIENCE, PATIENCE)?;
    Ok(texts.iter().map(|text| ProcessStatus::parse(text)).collect())
}

impl Engine {
    /// Returns all counters. Waits for the lane.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let mut total = self.own_counters();
        total.cm += self.cm.counters();
        total.link += self.with_lane(|lane| lane.link().counters());
        total.neighbours += self.local().map(LocalControl::counters).unwrap_or_default();
        total
    }

    /// Returns the counters that can be read without a lock. All other counters are 0.
    pub(crate) fn own_counters(&self) -> DeviceCounters {
        let mut total = DeviceCounters::default();
        self.counts().add_to(&mut total);
        total.cq_overflows = self.cq_overflows();
        total.async_events_dropped = self.events().dropped();
        total.refused_peers = self.refused_peers();
        total
    }

    /// Returns the status text, in the format of [`vernic_io::status`].
    pub(crate) fn status(&self) -> String {
        let mut text = format!("device {}\npid {}\n", self.info().name, std::process::id());
        let counters = self.counters();
        let (pds, regions) = self.memory().population();
        let (cqs, srqs) = (self.in_use().cqs(), self.in_use().srqs());
        let (qps, rows) = self.qp_rows();
        let objects =
            [("pd", pds), ("cq", cqs), ("qp", qps), ("mr", regions), ("ctx", 1), ("srq", srqs)];
        for (name, count) in objects {
            let _ = writeln!(text, "resource {name} {count}");
        }
        let values = counters.port_counters(self.info().transport);
        for (name, value) in PORT_COUNTERS.iter().zip(values) {
            let _ = writeln!(text, "port {name} {value}");
        }
        for (name, value) in counters.iter() {
            let _ = writeln!(text, "hw {name} {value}");
        }
        text.push_str(&rows);
        for Offender { peer, wrong_sources, not_allowed, bad_keys, fatal_naks } in
            self.alarms().offenders()
        {
            let _ = writeln!(
                text,
                "offender {peer} {wrong_sources} {not_allowed} {bad_keys} {fatal_naks}"
            );
        }
        text.push_str("end\n");
        text
    }

    /// Returns the number of queue pairs, and a line of text for each of the first [`MAX_QPS`].
    fn qp_rows(&self) -> (usize, String) {
        let mut rows = String::new();
        let qps: Vec<_> = self.with_lane(|lane| lane.table().iter().cloned().collect());
        qps.iter().take(MAX_QPS).for_each(|qp| row(qp, &mut rows));
        (qps.len(), rows)
    }
}

fn row(qp: &QpInner, rows: &mut String) {
    let QpAttr { state, dest_qpn, rq_psn, sq_psn, .. } = *lock(&qp.core).machine.attr();
    let (number, kind) = (qp.qpn().value(), qp.qp_type() as u8);
    let (dest, rq_psn, sq_psn) = (dest_qpn.value(), rq_psn.value(), sq_psn.value());
    let _ = writeln!(rows, "qp {number} {kind} {} {dest} {rq_psn} {sq_psn}", state as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{post_writes, rc_pair, without_background};

    #[test]
    fn the_text_tells_what_there_is_and_what_was_sent() {
        let context = without_background();
        let text = context.engine().status();
        assert!(ProcessStatus::parse(&text).qps.is_empty());
        assert!(text.contains("\nresource qp 0\n") && text.contains("\nresource cq 0\n"), "{text}");
        let cq = context.create_cq(16, None).unwrap();
        let [a, b] = rc_pair(&context, &cq, 16);
        post_writes(&a, 3);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut done = 0;
        while done < 3 && std::time::Instant::now() < deadline {
            done += cq.poll(&mut [crate::EMPTY_WC; 4]).unwrap();
        }
        let text = context.engine().status();
        let value = |start: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(start));
            line.unwrap_or_else(|| panic!("no {start} in {text}")).trim().to_owned()
        };
        assert_eq!(
            [value("resource qp"), value("resource cq"), value("resource pd")],
            ["2", "1", "1"]
        );
        let expected = context.counters().port_counters(Transport::Roce)[2];
        assert!(expected > 3, "requests and acknowledgements: {expected}");
        assert_eq!(value("port port_xmit_packets"), expected.to_string());
        let (qpn, dest) = (a.qpn().value(), b.qpn().value());
        assert_eq!(value(&format!("qp {qpn}")), format!("2 3 {dest} 0 0"));
        let status = ProcessStatus::parse(&text);
        assert_eq!((status.pid, status.port[2]), (std::process::id(), expected));
        let (qpn, dest_qpn) = (a.qpn(), b.qpn());
        assert!(
            status.qps.contains(&QpStatus { qpn, qp_type: 2, state: 3, dest_qpn }),
            "{status:?}"
        );
        assert_eq!(ProcessStatus::parse("qp 1 2 x 4\nqp 5\nnew 1\n\nport a 1"), Default::default());
        assert!(text.starts_with(&format!("device {}\npid ", context.info().name)), "{text}");
        assert!(text.ends_with("\nend\n"), "{text}");
    }

    #[test]
    fn data_of_the_port_is_counted_in_words_of_four_bytes() {
        let mut counters = DeviceCounters::default();
        counters.link.tx_bytes = 400;
        counters.near_tx_bytes = 40;
        counters.link.tx_packets = 4;
        let values = counters.port_counters(Transport::Roce);
        assert_eq!(values[..3], [110, 0, 4]);
        assert_eq!(counters.port_counters(Transport::Iwarp), [0; 6], "streams have sent nothing");
    }
}
