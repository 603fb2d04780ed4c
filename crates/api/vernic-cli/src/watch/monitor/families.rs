//! The tables of metrics: the name of each family, what it means, and where its values come from.
//!
//! Names follow OpenMetrics: a unit is the last word, `_total` and `_info` are added when a family
//! is written. `docs/monitor.md` lists the same names.

use vernic::QpStatus;

use super::exposition::Kind;

/// A family with values for each process and device.
pub(super) struct Family {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) from: Source,
    pub(super) help: &'static str,
}

/// Where the values of a family come from.
pub(super) enum Source {
    /// A counter of the port, by its name in `PORT_COUNTERS`, times so many.
    Port(&'static str, u64),
    /// Objects of a kind that there are.
    Objects(&'static str),
    /// One counter of the device.
    One(&'static str),
    /// Several counters of the device, each with its value of a label.
    Several(&'static str, &'static [(&'static str, &'static str)]),
    /// The counters of the device that begin so; the rest of each name is its value of a label.
    Begins(&'static str, &'static str),
}

impl Source {
    /// Whether a counter of the device is among the values.
    pub(super) fn takes(&self, counter: &str) -> bool {
        match self {
            Self::Port(..) | Self::Objects(_) => false,
            Self::One(name) => *name == counter,
            Self::Several(_, names) => names.iter().any(|(name, _)| *name == counter),
            Self::Begins(_, start) => counter.starts_with(start),
        }
    }
}

const fn total(name: &'static str, from: Source, help: &'static str) -> Family {
    Family { kind: Kind::Counter, name, from, help }
}

const fn objects(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family { kind: Kind::Gauge, name, from: Source::Objects(kind), help }
}

/// Bytes in the unit of the port's counters of data, which is the kernel's.
const PORT_WORD_BYTES: u64 = 4;

/// The families with values for each process and device, labelled `pid` and `device`.
pub(super) const OF_DEVICES: &[Family] = {
    use self::Source::{Begins, One, Port, Several};
    &[
        objects("vernic_queue_pairs", "qp", "Queue pairs."),
        objects("vernic_completion_queues", "cq", "Completion queues."),
        objects("vernic_shared_receive_queues", "srq", "Shared receive queues."),
        objects("vernic_memory_regions", "mr", "Memory regions."),
        objects("vernic_protection_domains", "pd", "Protection domains."),
        total(
            "vernic_port_transmit_bytes",
            Port("port_xmit_data", PORT_WORD_BYTES),
            "Bytes of packets sent, with their headers, by the wire or through shared memory.",
        ),
        total(
            "vernic_port_receive_bytes",
            Port("port_rcv_data", PORT_WORD_BYTES),
            "Bytes of packets received, with their headers, by the wire or through shared memory.",
        ),
        total(
            "vernic_port_transmit_packets",
            Port("port_xmit_packets", 1),
            "Packets sent, by the wire or through shared memory; FPDUs of iWARP.",
        ),
        total(
            "vernic_port_receive_packets",
            Port("port_rcv_packets", 1),
            "Packets received, by the wire or through shared memory; FPDUs of iWARP.",
        ),
        total(
            "vernic_port_transmit_discards",
            Port("port_xmit_discards", 1),
            "Packets that were not sent: the kernel refused them, or a process did not take them.",
        ),
        total(
            "vernic_port_receive_errors",
            Port("port_rcv_errors", 1),
            "Packets that came damaged, cut short, or while the receive buffer was full.",
        ),
        total("vernic_link_transmit_bytes", One("tx_bytes"), "Bytes sent by the link."),
        total("vernic_link_receive_bytes", One("rx_bytes"), "Bytes received by the link."),
        total("vernic_link_transmit_packets", One("tx_packets"), "Packets sent by the link."),
        total("vernic_link_receive_packets", One("rx_packets"), "Packets received by the link."),
        total("vernic_link_transmit_calls", One("tx_calls"), "System calls that sent packets."),
        total(
            "vernic_link_receive_calls",
            One("rx_calls"),
            "System calls to receive packets, those that found none included.",
        ),
        total(
            "vernic_link_transmit_runs",
            One("tx_runs"),
            "Runs of packets handed to the kernel, each one send with UDP_SEGMENT.",
        ),
        total(
            "vernic_link_receive_buffers",
            One("rx_buffers"),
            "Buffers of packets that came, each one receive with UDP_GRO.",
        ),
        total("vernic_link_transmit_blocked", One("tx_blocked"), "Times that a socket was full."),
        total(
            "vernic_link_dropped_packets",
            Several(
                "reason",
                &[
                    ("tx_errors", "transmit_error"),
                    ("rx_truncated_drops", "truncated"),
                    ("rx_overflow_drops", "overflow"),
                    ("icrc_errors", "icrc"),
                    ("hand_over_drops", "hand_over"),
                    ("hand_over_rejects", "hand_over_rejected"),
                    ("rx_bad_frames", "bad_frame"),
                    ("rx_foreign_frames", "foreign_frame"),
                    ("fault_drops", "fault_injection"),
                ],
            ),
            "Packets that the link dropped, by reason.",
        ),
        total(
            "vernic_dropped_packets",
            Begins("reason", "drop_"),
            "Packets that came by the link and were not taken, by reason.",
        ),
        total(
            "vernic_shared_memory_transmit_bytes",
            One("near_tx_bytes"),
            "Bytes sent to processes of this host through shared memory.",
        ),
        total(
            "vernic_shared_memory_receive_bytes",
            One("near_rx_bytes"),
            "Bytes received from processes of this host through shared memory.",
        ),
        total(
            "vernic_shared_memory_transmit_packets",
            One("near_tx_packets"),
            "Packets and parts of messages sent through shared memory.",
        ),
        total(
            "vernic_shared_memory_receive_packets",
            One("near_rx_packets"),
            "Packets and parts of messages received through shared memory.",
        ),
        total(
            "vernic_rendezvous_bytes",
            One("near_pulled_bytes"),
            "Bytes of large SENDs copied out of the memory of their senders.",
        ),
        total(
            "vernic_direct_bytes",
            One("direct_bytes"),
            "Bytes moved by requests carried out in the memory of other processes.",
        ),
        total(
            "vernic_direct_requests",
            Several(
                "operation",
                &[
                    ("direct_writes", "write"),
                    ("direct_reads", "read"),
                    ("direct_atomics", "atomic"),
                ],
            ),
            "Requests carried out in the memory of other processes, without packets.",
        ),
        total(
            "vernic_direct_refusals",
            Begins("reason", "direct_refusals_"),
            "Requests that took packets instead, by reason.",
        ),
        total(
            "vernic_iwarp_transmit_bytes",
            One("iwarp_tx_bytes"),
            "Bytes that TCP connections of iWARP accepted.",
        ),
        total(
            "vernic_iwarp_receive_bytes",
            One("iwarp_rx_bytes"),
            "Bytes that came by TCP connections of iWARP.",
        ),
        total(
            "vernic_iwarp_transmit_calls",
            One("iwarp_tx_calls"),
            "System calls that sent bytes of iWARP.",
        ),
        total(
            "vernic_iwarp_receive_calls",
            One("iwarp_rx_calls"),
            "System calls to receive bytes of iWARP, those that found none included.",
        ),
        total(
            "vernic_retransmitted_packets",
            One("retransmitted_packets"),
            "Packets of requests sent again.",
        ),
        total(
            "vernic_duplicate_requests",
            One("duplicates"),
            "Requests received more than once and answered again.",
        ),
        total("vernic_naks_sent", One("naks_sent"), "NAKs sent."),
        total(
            "vernic_fatal_naks_sent",
            One("fatal_naks_sent"),
            "NAKs sent after which the queue pair was in Error.",
        ),
        total(
            "vernic_rnr_naks_sent",
            One("rnr_naks_sent"),
            "RNR NAKs sent: no receive was posted.",
        ),
        total(
            "vernic_ack_timeouts",
            One("ack_timeouts"),
            "Silences of a whole ACK timeout, after which all was sent again.",
        ),
        total(
            "vernic_patient_timeouts",
            One("patient_timeouts"),
            "ACK timeouts that used up no retry, since the peer is known to be alive.",
        ),
        total("vernic_tail_probes", One("tail_probes"), "Probes for a lost end of a message."),
        total(
            "vernic_stalls",
            One("stalls"),
            "Requests for which a queue pair waited for its peer for two seconds.",
        ),
        total("vernic_failed_queue_pairs", One("qp_failures"), "Queue pairs that have failed."),
        total(
            "vernic_wrong_keys",
            One("bad_keys"),
            "Packets with a wrong P_Key, Q_Key or R_Key, or beyond the bounds of a region.",
        ),
        total("vernic_cnps_sent", One("cnps_sent"), "Congestion notification packets sent."),
        total(
            "vernic_cnps_received",
            One("cnps_received"),
            "Congestion notification packets received.",
        ),
        total(
            "vernic_ecn_marked_packets",
            One("ecn_marked_received"),
            "Packets received with the ECN mark of a congested router.",
        ),
        total(
            "vernic_completion_queue_overflows",
            One("cq_overflows"),
            "Completion queues that overflowed.",
        ),
        total(
            "vernic_cm_messages_sent",
            Begins("message", "cm_sent_"),
            "Messages of communication management sent, repeated ones included.",
        ),
        total(
            "vernic_cm_messages_received",
            Begins("message", "cm_received_"),
            "Messages of communication management received.",
        ),
        total(
            "vernic_cm_dropped_messages",
            Begins("reason", "cm_drop_"),
            "Messages of communication management dropped, by reason.",
        ),
    ]
};

/// The family of the counters of devices that no family of [`OF_DEVICES`] takes, with the label
/// `event`.
pub(super) const EVENTS: (&str, &str) =
    ("vernic_events", "The other counters of devices, by the names that vernic info shows.");

/// A total of a queue pair.
pub(super) struct QpTotal {
    pub(super) name: &'static str,
    pub(super) value: fn(&QpStatus) -> u64,
    pub(super) help: &'static str,
}

/// A value of a queue pair that rises and falls; none where it is not known.
pub(super) struct QpGauge {
    pub(super) name: &'static str,
    pub(super) value: fn(&QpStatus) -> Option<f64>,
    pub(super) help: &'static str,
}

const fn qp_total(name: &'static str, value: fn(&QpStatus) -> u64, help: &'static str) -> QpTotal {
    QpTotal { name, value, help }
}

/// The totals of queue pairs since their reset, labelled `pid`, `device` and `qpn`.
pub(super) const QP_TOTALS: &[QpTotal] = &[
    qp_total(
        "vernic_queue_pair_completed_requests",
        |qp| qp.completed,
        "Send requests completed, by whatever route.",
    ),
    qp_total("vernic_queue_pair_transmit_packets", |qp| qp.counters.tx_packets, "Packets sent."),
    qp_total(
        "vernic_queue_pair_transmit_bytes",
        |qp| qp.counters.tx_bytes,
        "Bytes of packets sent, with their headers.",
    ),
    qp_total("vernic_queue_pair_receive_packets", |qp| qp.counters.rx_packets, "Packets received."),
    qp_total(
        "vernic_queue_pair_receive_bytes",
        |qp| qp.counters.rx_bytes,
        "Bytes of packets received, with their headers.",
    ),
    qp_total(
        "vernic_queue_pair_retransmitted_packets",
        |qp| qp.counters.retransmitted_packets,
        "Packets of requests sent again.",
    ),
    qp_total(
        "vernic_queue_pair_ack_timeouts",
        |qp| qp.counters.ack_timeouts,
        "Silences of a whole ACK timeout.",
    ),
    qp_total(
        "vernic_queue_pair_patient_timeouts",
        |qp| qp.counters.patient_timeouts,
        "ACK timeouts that used up no retry.",
    ),
    qp_total(
        "vernic_queue_pair_tail_probes",
        |qp| qp.counters.tail_probes,
        "Probes for a lost end of a message.",
    ),
    qp_total(
        "vernic_queue_pair_sequence_naks_received",
        |qp| qp.counters.sequence_naks_received,
        "NAKs for a lost packet received.",
    ),
    qp_total(
        "vernic_queue_pair_sequence_naks_sent",
        |qp| qp.counters.sequence_naks_sent,
        "NAKs for a lost packet sent.",
    ),
    qp_total(
        "vernic_queue_pair_implied_naks",
        |qp| qp.counters.implied_naks,
        "Answers that reveal the loss of an earlier one.",
    ),
    qp_total(
        "vernic_queue_pair_rnr_naks_received",
        |qp| qp.counters.rnr_naks_received,
        "RNR NAKs received: the peer had no receive posted.",
    ),
    qp_total(
        "vernic_queue_pair_rnr_naks_sent",
        |qp| qp.counters.rnr_naks_sent,
        "RNR NAKs sent: no receive was posted.",
    ),
    qp_total(
        "vernic_queue_pair_duplicate_requests",
        |qp| qp.counters.duplicates_received,
        "Requests received more than once.",
    ),
    qp_total("vernic_queue_pair_acks_sent", |qp| qp.counters.acks_sent, "ACKs sent."),
    qp_total("vernic_queue_pair_acks_received", |qp| qp.counters.acks_received, "ACKs received."),
    qp_total("vernic_queue_pair_messages_sent", |qp| qp.counters.messages_sent, "Messages sent."),
    qp_total(
        "vernic_queue_pair_messages_received",
        |qp| qp.counters.messages_received,
        "Messages received.",
    ),
    qp_total(
        "vernic_queue_pair_ecn_marked_packets",
        |qp| qp.counters.ecn_marked_received,
        "Packets received with the ECN mark of a congested router.",
    ),
    qp_total(
        "vernic_queue_pair_cnps_received",
        |qp| qp.counters.cnps_received,
        "Congestion notification packets received.",
    ),
    qp_total(
        "vernic_queue_pair_cnps_sent",
        |qp| qp.counters.cnps_sent,
        "Congestion notification packets sent.",
    ),
    qp_total(
        "vernic_queue_pair_kept_packets",
        |qp| qp.counters.packets_kept,
        "Packets that came ahead of a lost one and were kept.",
    ),
    qp_total(
        "vernic_queue_pair_handled_kept_packets",
        |qp| qp.counters.kept_packets_handled,
        "Packets of these that were handled once the lost one had come.",
    ),
];

/// Values of queue pairs that rise and fall, with the same labels.
pub(super) const QP_GAUGES: &[QpGauge] = &[
    QpGauge {
        name: "vernic_queue_pair_outstanding_requests",
        value: |qp| Some(qp.posted.saturating_sub(qp.completed) as f64),
        help: "Send requests posted and not completed.",
    },
    QpGauge {
        name: "vernic_queue_pair_in_flight_packets",
        value: |qp| Some(qp.in_flight as f64),
        help: "Packets that an answer is awaited for.",
    },
    QpGauge {
        name: "vernic_queue_pair_window_packets",
        value: |qp| Some(qp.window? as f64),
        help: "Packets that may be in flight.",
    },
    QpGauge {
        name: "vernic_queue_pair_round_trip_seconds",
        value: |qp| Some(qp.round_trip?.as_secs_f64()),
        help: "The smoothed round trip of packets.",
    },
];
