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

mod read;
mod requests;
mod rows;

use std::fmt::Write as _;

use vernic_io::status::Question;
use vernic_wire::Qpn;

use crate::counters::DeviceCounters;
use crate::device::alarms::Offender;
use crate::device::transport::Transport;
use crate::local::control::LocalControl;
use crate::progress::engine::Engine;

pub use read::{ProcessStatus, QpStatus, processes, processes_of_all};
pub use requests::{RequestLife, TracedQp, trace_requests};

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

    /// Returns the text that answers a question of another process.
    pub(crate) fn tell(&self, question: Question) -> String {
        match question {
            Question::Status => self.status(),
            Question::Requests(qpn) => requests::of(self, qpn.map(Qpn::new)),
        }
    }

    /// Returns the status text, in the format of [`vernic_io::status`].
    pub(crate) fn status(&self) -> String {
        let mut text = format!("device {}\npid {}\n", self.info().name, std::process::id());
        let counters = self.counters();
        let (pds, regions) = self.memory().population();
        let (cqs, srqs) = (self.in_use().cqs(), self.in_use().srqs());
        let (qps, rows) = rows::of(self);
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
        let told = status.qps.iter().find(|qp| qp.qpn == qpn).unwrap();
        assert_eq!((told.qp_type, told.state, told.dest_qpn), (2, 3, dest_qpn));
        assert_eq!(told.counters, a.counters());
        let address = a.path().map(|path| path.remote().to_ip().to_string());
        assert_eq!((told.peer.clone(), told.in_flight), (address, 0));
        assert_eq!((told.completed, told.posted), (3, 3));
        assert_eq!((&*told.way, told.route.clone()), (a.route().way(), a.route().to_string()));
        assert!(told.window.is_some() && told.round_trip.is_some(), "{told:?}");
        let (_, link) = status.counters.iter().find(|(name, _)| name == "rx_packets").unwrap();
        assert_eq!(*link, context.counters().link.rx_packets);
        assert_eq!((status.device.as_str(), status.count("qp")), (&*context.info().name, 2));
        assert!(text.starts_with(&format!("device {}\npid ", context.info().name)), "{text}");
        assert!(text.ends_with("\nend\n"), "{text}");
    }

    #[test]
    fn a_process_with_more_than_a_thousand_queue_pairs_tells_of_a_thousand_and_of_how_many() {
        let context = without_background();
        let cq = context.create_cq(16, None).unwrap();
        let pairs: Vec<_> = (0..510).map(|_| rc_pair(&context, &cq, 1)).collect();
        // A name of its own: other tests have devices of this one open that nobody serves.
        let name = format!("thousand{}", std::process::id());
        let socket = vernic_io::StatusSocket::open(&name).unwrap();
        let asker = std::thread::spawn(move || {
            let long = std::time::Duration::from_secs(30);
            vernic_io::status::ask_all(&name, long, long)
        });
        while !asker.is_finished() {
            socket.serve(|_| context.engine().status());
            std::thread::yield_now();
        }
        let texts = asker.join().unwrap().unwrap();
        let all: Vec<_> = texts.iter().map(|text| ProcessStatus::parse(text)).collect();
        let ours = all.iter().find(|process| process.count("qp") == 1020).unwrap();
        assert_eq!(ours.qps.len(), 1000);
        assert!(ours.qps.iter().all(|qp| qp.peer.is_some() && !qp.way.is_empty()));
        drop(pairs);
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
