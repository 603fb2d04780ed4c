//! Counters of a device: one for each drop reason and others, in addition to the counters of the
//! link and of each queue pair.
//!
//! Owns [`Counters`]. Only the holder of the lane adds to a counter, and any thread may read it.
//! Since there is one writer at a time, each addition is a relaxed load and store, not a locked
//! instruction.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_io::LinkCounters;
use vernic_io::neighbour::NeighbourCounters;
use vernic_proto::cm::CmCounters;
use vernic_proto::{DropReason, QpCounters};

mod direct;
mod streams;

pub use direct::DirectCounters;
pub(crate) use direct::{DirectCounts, Refusal};
pub use streams::StreamCounters;
pub(crate) use streams::StreamCounts;

const REASONS: usize = DropReason::ALL.len();

/// A counter with one writer at a time (the lane's holder) and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds `n`. Only the holder of the lane may call this.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a device while it is open. [`DeviceCounters`] has their meanings.
#[derive(Debug)]
pub(crate) struct Counters {
    drops: [Count; REASONS],
    pub(crate) duplicates: Count,
    pub(crate) naks_sent: Count,
    pub(crate) fatal_naks_sent: Count,
    pub(crate) bad_keys: Count,
    pub(crate) rnr_naks_sent: Count,
    ack_timeouts: Count,
    patient_timeouts: Count,
    tail_probes: Count,
    pub(crate) cnps: Count,
    pub(crate) ecn_marked: Count,
    pub(crate) qp_failures: Count,
    pub(crate) paced_turns: Count,
    pub(crate) pace_timeouts: Count,
    pub(crate) mads_handed_over: Count,
    pub(crate) mads_early_refused: Count,
    pub(crate) streams: StreamCounts,
    pub(crate) direct: DirectCounts,
    pub(crate) near_tx_packets: Count,
    pub(crate) near_tx_bytes: Count,
    pub(crate) near_rx_packets: Count,
    pub(crate) near_rx_bytes: Count,
    pub(crate) near_full_turns: Count,
    pub(crate) near_lost: Count,
    pub(crate) near_pulled_runs: Count,
    pub(crate) near_pulled_bytes: Count,
    pub(crate) near_pulls_refused: Count,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            drops: std::array::from_fn(|_| Count::default()),
            duplicates: Count::default(),
            naks_sent: Count::default(),
            fatal_naks_sent: Count::default(),
            bad_keys: Count::default(),
            rnr_naks_sent: Count::default(),
            ack_timeouts: Count::default(),
            patient_timeouts: Count::default(),
            tail_probes: Count::default(),
            cnps: Count::default(),
            ecn_marked: Count::default(),
            qp_failures: Count::default(),
            paced_turns: Count::default(),
            pace_timeouts: Count::default(),
            mads_handed_over: Count::default(),
            mads_early_refused: Count::default(),
            streams: StreamCounts::default(),
            direct: DirectCounts::default(),
            near_tx_packets: Count::default(),
            near_tx_bytes: Count::default(),
            near_rx_packets: Count::default(),
            near_rx_bytes: Count::default(),
            near_full_turns: Count::default(),
            near_lost: Count::default(),
            near_pulled_runs: Count::default(),
            near_pulled_bytes: Count::default(),
            near_pulls_refused: Count::default(),
        }
    }
}

impl Counters {
    /// Counts the timeouts and probes that the timer of a queue pair caused: the difference between
    /// the queue pair's counters `before` and `after` the timer was handled.
    pub(crate) fn timer_fired(&self, before: &QpCounters, after: &QpCounters) {
        self.ack_timeouts.add(after.ack_timeouts - before.ack_timeouts);
        self.patient_timeouts.add(after.patient_timeouts - before.patient_timeouts);
        self.tail_probes.add(after.tail_probes - before.tail_probes);
    }

    /// Counts a dropped packet.
    pub(crate) fn drop_packet(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].value()
    }

    /// Adds these counters to the totals of the device.
    pub(crate) fn add_to(&self, total: &mut DeviceCounters) {
        for (reason, dropped) in &mut total.drops {
            *dropped += self.drops(*reason);
        }
        total.duplicates += self.duplicates.value();
        total.naks_sent += self.naks_sent.value();
        total.fatal_naks_sent += self.fatal_naks_sent.value();
        total.bad_keys += self.bad_keys.value();
        total.rnr_naks_sent += self.rnr_naks_sent.value();
        total.ack_timeouts += self.ack_timeouts.value();
        total.patient_timeouts += self.patient_timeouts.value();
        total.tail_probes += self.tail_probes.value();
        total.cnps_received += self.cnps.value();
        total.ecn_marked_received += self.ecn_marked.value();
        total.qp_failures += self.qp_failures.value();
        total.paced_turns += self.paced_turns.value();
        total.pace_timeouts += self.pace_timeouts.value();
        total.mads_handed_over += self.mads_handed_over.value();
        total.mads_early_refused += self.mads_early_refused.value();
        total.streams += self.streams.snapshot();
        total.direct += self.direct.snapshot();
        total.near_tx_packets += self.near_tx_packets.value();
        total.near_tx_bytes += self.near_tx_bytes.value();
        total.near_rx_packets += self.near_rx_packets.value();
        total.near_rx_bytes += self.near_rx_bytes.value();
        total.near_full_turns += self.near_full_turns.value();
        total.near_lost += self.near_lost.value();
        total.near_pulled_runs += self.near_pulled_runs.value();
        total.near_pulled_bytes += self.near_pulled_bytes.value();
        total.near_pulls_refused += self.near_pulls_refused.value();
    }
}

/// The totals of all counters of a device since it was opened.
#[derive(Clone, Debug)]
pub struct DeviceCounters {
    /// Counters of the link: packets, bytes, system calls, hand-overs, errors.
    pub link: LinkCounters,
    /// Packets that were dropped, one row for each reason, including reasons with a count of 0.
    pub drops: Vec<(DropReason, u64)>,
    /// Requests that were received more than once, and answered again.
    pub duplicates: u64,
    /// NAKs sent.
    pub naks_sent: u64,
    /// NAKs sent after which the queue pair was in the error state. They are also counted in
    /// `naks_sent`.
    pub fatal_naks_sent: u64,
    /// Packets received with a wrong P_Key, Q_Key or R_Key, or with a request that exceeds the
    /// bounds or the rights of the memory.
    pub bad_keys: u64,
    /// RNR NAKs ("receiver not ready") sent.
    pub rnr_naks_sent: u64,
    /// ACK timeouts: no response came for the whole timeout, and all unacknowledged requests were
    /// sent again.
    pub ack_timeouts: u64,
    /// ACK timeouts that did not use up a retry, because the peer is a process of this host that is
    /// known to be alive but does not run.
    pub patient_timeouts: u64,
    /// Tail-loss probes: no response came for some round trips, and the oldest and newest packet in
    /// flight were sent again.
    pub tail_probes: u64,
    /// Congestion notification packets (CNPs) received.
    pub cnps_received: u64,
    /// Packets received with the ECN mark "congestion experienced".
    pub ecn_marked_received: u64,
    /// Queue pairs that went to the error state because of a failure.
    pub qp_failures: u64,
    /// TCP connections that were closed because the setting `peers` does not allow the address that
    /// they came from.
    pub refused_peers: u64,
    /// Completion queues that overflowed.
    pub cq_overflows: u64,
    /// Times that a UC or UD queue pair had to wait before it sent to a process of this host,
    /// because that process had not received what was sent to it before.
    pub paced_turns: u64,
    /// Times that a wait as in `paced_turns` lasted too long, and UC or UD packets were sent
    /// although the process had not received the earlier ones.
    pub pace_timeouts: u64,
    /// Management datagrams that this process received for another process of this host, and handed
    /// over to it.
    pub mads_handed_over: u64,
    /// CM requests that came before a listener existed, and could not wait for one: too many others
    /// waited, or a later one took their room.
    pub mads_early_refused: u64,
    /// Counters of iWARP connections.
    pub streams: StreamCounters,
    /// Counters of requests carried out in the memory of processes of this host, without packets.
    pub direct: DirectCounters,
    /// Packets sent to processes of this host through shared memory; not counted by the link.
    pub near_tx_packets: u64,
    /// Bytes of the packets sent through shared memory, headers included.
    pub near_tx_bytes: u64,
    /// Packets received from processes of this host through shared memory; not counted by the link.
    pub near_rx_packets: u64,
    /// Bytes of the packets received through shared memory, headers included.
    pub near_rx_bytes: u64,
    /// Times that a queue pair had to wait before it sent through shared memory, because the memory
    /// was full.
    pub near_full_turns: u64,
    /// Packets for a process of this host that were dropped, because that process had not taken
    /// packets from shared memory for a long time. RC repeats them.
    pub near_lost: u64,
    /// Rendezvous packets received through shared memory. Each stands for some hundred packets of a
    /// SEND, whose payload was copied out of the sender's memory.
    pub near_pulled_runs: u64,
    /// Bytes that were copied for rendezvous packets. They are not counted in `near_rx_bytes`.
    pub near_pulled_bytes: u64,
    /// Rendezvous packets that were refused, because they break the rules or their payload could
    /// not be copied. In the second case the sender sends the payload in packets.
    pub near_pulls_refused: u64,
    /// Counters of local peers: the processes of this host that this process shared memory with.
    pub neighbours: NeighbourCounters,
    /// Counters of communication management.
    pub cm: CmCounters,
    /// Asynchronous events lost because the application did not read them.
    pub async_events_dropped: u64,
}

impl Default for DeviceCounters {
    fn default() -> Self {
        Self {
            link: LinkCounters::default(),
            drops: DropReason::ALL.iter().map(|&reason| (reason, 0)).collect(),
            duplicates: 0,
            naks_sent: 0,
            fatal_naks_sent: 0,
            bad_keys: 0,
            rnr_naks_sent: 0,
            ack_timeouts: 0,
            patient_timeouts: 0,
            tail_probes: 0,
            cnps_received: 0,
            ecn_marked_received: 0,
            qp_failures: 0,
            refused_peers: 0,
            cq_overflows: 0,
            paced_turns: 0,
            pace_timeouts: 0,
            mads_handed_over: 0,
            mads_early_refused: 0,
            streams: StreamCounters::default(),
            direct: DirectCounters::default(),
            near_tx_packets: 0,
            near_tx_bytes: 0,
            near_rx_packets: 0,
            near_rx_bytes: 0,
            near_full_turns: 0,
            near_lost: 0,
            near_pulled_runs: 0,
            near_pulled_bytes: 0,
            near_pulls_refused: 0,
            neighbours: NeighbourCounters::default(),
            cm: CmCounters::default(),
            async_events_dropped: 0,
        }
    }
}

impl DeviceCounters {
    /// Returns each counter with its name: those of the link, of the device, of iWARP connections
    /// and of direct access, one per drop reason, and those of communication management.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let device = [
            ("duplicates", self.duplicates),
            ("naks_sent", self.naks_sent),
            ("fatal_naks_sent", self.fatal_naks_sent),
            ("bad_keys", self.bad_keys),
            ("rnr_naks_sent", self.rnr_naks_sent),
            ("ack_timeouts", self.ack_timeouts),
            ("patient_timeouts", self.patient_timeouts),
            ("tail_probes", self.tail_probes),
            ("cnps_received", self.cnps_received),
            ("ecn_marked_received", self.ecn_marked_received),
            ("qp_failures", self.qp_failures),
            ("refused_peers", self.refused_peers),
            ("cq_overflows", self.cq_overflows),
            ("paced_turns", self.paced_turns),
            ("pace_timeouts", self.pace_timeouts),
            ("mads_handed_over", self.mads_handed_over),
            ("mads_early_refused", self.mads_early_refused),
            ("near_tx_packets", self.near_tx_packets),
            ("near_tx_bytes", self.near_tx_bytes),
            ("near_rx_packets", self.near_rx_packets),
            ("near_rx_bytes", self.near_rx_bytes),
            ("near_full_turns", self.near_full_turns),
            ("near_lost", self.near_lost),
            ("near_pulled_runs", self.near_pulled_runs),
            ("near_pulled_bytes", self.near_pulled_bytes),
            ("near_pulls_refused", self.near_pulls_refused),
            ("neighbours_met", self.neighbours.met),
            ("neighbours_gone", self.neighbours.gone),
            ("neighbours_refused", self.neighbours.refused),
            ("neighbours_expelled", self.neighbours.expelled),
            ("neighbours_muted", self.neighbours.muted),
            ("neighbours_short", self.neighbours.short),
            ("async_events_dropped", self.async_events_dropped),
        ];
        let fixed =
            self.link.iter().chain(device).chain(self.streams.iter()).chain(self.direct.iter());
        let drops = self.drops.iter();
        let drops = drops.map(|(reason, value)| (format!("drop_{}", reason.name()).into(), *value));
        let borrowed = |(name, value)| (Cow::Borrowed(name), value);
        fixed.map(borrowed).chain(drops).chain(self.cm.iter().map(borrowed))
    }
}

/// Shows the counters that are not 0, as `rx_packets=7 drop_icrc=2`.
impl fmt::Display for DeviceCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counted = self.iter().filter(|(_, value)| *value > 0);
        let Some((name, value)) = counted.next() else { return f.write_str("all are 0") };
        write!(f, "{name}={value}")?;
        counted.try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_listed_once_and_shown_if_they_counted() {
        let none = DeviceCounters::default();
        assert_eq!(none.to_string(), "all are 0");
        let mut names: Vec<_> = none.iter().map(|(name, _)| name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        let mut some = DeviceCounters::default();
        some.link.rx_packets = 7;
        let counters = Counters::default();
        (0..2).for_each(|_| counters.drop_packet(DropReason::Icrc));
        counters.add_to(&mut some);
        assert_eq!(some.to_string(), "rx_packets=7 drop_icrc=2");
    }
}
