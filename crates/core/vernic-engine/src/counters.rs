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
use vernic_local::{LocalPeerCounters, Written};
use vernic_proto::cm::CmCounters;
use vernic_proto::{DropReason, QpCounters};

mod direct;
mod streams;

pub use direct::DirectCounters;
pub(crate) use direct::DirectCounts;
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

macro_rules! counted {
    ($($event:ident => $total:ident,)*) => {
        /// An event of a device that is counted, beside dropped packets. The field of
        /// [`DeviceCounters`] with its total says what it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counted {
            $($event,)*
        }

        impl Counted {
            const ALL: &[Self] = &[$(Self::$event,)*];
        }

        impl DeviceCounters {
            fn total_of(&mut self, event: Counted) -> &mut u64 {
                match event {
                    $(Counted::$event => &mut self.$total,)*
                }
            }
        }
    };
}

counted! {
    Duplicate => duplicates,
    NakSent => naks_sent,
    FatalNakSent => fatal_naks_sent,
    BadKey => bad_keys,
    RnrNakSent => rnr_naks_sent,
    AckTimeout => ack_timeouts,
    PatientTimeout => patient_timeouts,
    TailProbe => tail_probes,
    PacketRepeated => retransmitted_packets,
    PacketKept => packets_kept,
    KeptHandled => kept_packets_handled,
    Cnp => cnps_received,
    CnpSent => cnps_sent,
    EcnMarked => ecn_marked_received,
    Stall => stalls,
    QpFailure => qp_failures,
    PacedTurn => paced_turns,
    PaceTimeout => pace_timeouts,
    MadHandedOver => mads_handed_over,
    MadEarlyRefused => mads_early_refused,
    NearTxPacket => near_tx_packets,
    NearTxByte => near_tx_bytes,
    NearRxPacket => near_rx_packets,
    NearRxByte => near_rx_bytes,
    NearFullTurn => near_full_turns,
    NearLost => near_lost,
    NearPulledPart => near_pulled_parts,
    NearPulledByte => near_pulled_bytes,
    NearPullRefused => near_pulls_refused,
}

/// The live counters.
#[derive(Debug)]
pub(crate) struct Counters {
    drops: [Count; REASONS],
    events: [Count; Counted::ALL.len()],
    pub(crate) streams: StreamCounts,
    pub(crate) direct: DirectCounts,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            drops: std::array::from_fn(|_| Count::default()),
            events: std::array::from_fn(|_| Count::default()),
            streams: StreamCounts::default(),
            direct: DirectCounts::default(),
        }
    }
}

impl Counters {
    /// Counts an event.
    #[inline]
    pub(crate) fn note(&self, event: Counted) {
        self.add(event, 1);
    }

    /// Counts what was written to a ring.
    #[inline]
    pub(crate) fn note_written(&self, Written { records, bytes, lost }: Written) {
        if lost != 0 {
            self.add(Counted::NearLost, lost);
        }
        if records != 0 {
            self.add(Counted::NearTxPacket, records);
            self.add(Counted::NearTxByte, bytes);
        }
    }

    /// Counts `n` events.
    #[inline]
    pub(crate) fn add(&self, event: Counted, n: u64) {
        self.events[event as usize].add(n);
    }

    /// Counts what a queue pair's timer caused: the difference between its counters before and
    /// after.
    pub(crate) fn timer_fired(&self, before: &QpCounters, after: &QpCounters) {
        self.add(Counted::AckTimeout, after.ack_timeouts - before.ack_timeouts);
        self.add(Counted::PatientTimeout, after.patient_timeouts - before.patient_timeouts);
        self.add(Counted::TailProbe, after.tail_probes - before.tail_probes);
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
        for &event in Counted::ALL {
            *total.total_of(event) += self.events[event as usize].value();
        }
        total.streams += self.streams.snapshot();
        total.direct += self.direct.snapshot();
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
    /// Packets of RC and XRC requests sent again by a link, those of probes included.
    pub retransmitted_packets: u64,
    /// Packets that came ahead of a lost one and were kept, but for the first of them, which counts
    /// as a NAK. Those for which there was no room are counted as dropped (`drop_no_keep_room`).
    pub packets_kept: u64,
    /// Packets of these that were handled after the lost one had come: their sender did not need to
    /// repeat them.
    pub kept_packets_handled: u64,
    /// Congestion notification packets (CNPs) received.
    pub cnps_received: u64,
    /// Congestion notification packets (CNPs) sent, because packets came with the ECN mark.
    pub cnps_sent: u64,
    /// Packets received with the ECN mark "congestion experienced".
    pub ecn_marked_received: u64,
    /// Queue pairs that went to the error state because of a failure.
    pub qp_failures: u64,
    /// Requests for which a queue pair waited for its peer for two seconds: the peer had no receive
    /// posted, or did not answer. The log says which, at level `warn`.
    pub stalls: u64,
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
    /// Packets and parts of messages sent to processes of this host through shared memory; not
    /// counted by the link.
    pub near_tx_packets: u64,
    /// Bytes of the packets sent through shared memory, headers included, and of the payload of
    /// parts.
    pub near_tx_bytes: u64,
    /// Packets and parts of messages received from processes of this host through shared memory;
    /// not counted by the link.
    pub near_rx_packets: u64,
    /// Bytes of the packets received through shared memory, headers included, and of the payload
    /// of parts.
    pub near_rx_bytes: u64,
    /// Times that a queue pair had to wait before it sent through shared memory, because the memory
    /// was full.
    pub near_full_turns: u64,
    /// Packets for a process of this host that were dropped, because that process had not taken
    /// packets from shared memory for a long time. RC repeats them.
    pub near_lost: u64,
    /// Parts of SENDs whose payload was copied out of the sender's memory (rendezvous).
    pub near_pulled_parts: u64,
    /// Bytes that were copied for them. They are not counted in `near_rx_bytes`.
    pub near_pulled_bytes: u64,
    /// Such parts that were refused, because they break the rules or their payload could not be
    /// copied. In the second case the sender sends the payload in packets.
    pub near_pulls_refused: u64,
    /// Counters of local peers: the processes of this host that this process shared memory with.
    pub neighbours: LocalPeerCounters,
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
            retransmitted_packets: 0,
            packets_kept: 0,
            kept_packets_handled: 0,
            cnps_received: 0,
            cnps_sent: 0,
            ecn_marked_received: 0,
            qp_failures: 0,
            stalls: 0,
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
            near_pulled_parts: 0,
            near_pulled_bytes: 0,
            near_pulls_refused: 0,
            neighbours: LocalPeerCounters::default(),
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
            ("retransmitted_packets", self.retransmitted_packets),
            ("packets_kept", self.packets_kept),
            ("kept_packets_handled", self.kept_packets_handled),
            ("cnps_received", self.cnps_received),
            ("cnps_sent", self.cnps_sent),
            ("ecn_marked_received", self.ecn_marked_received),
            ("qp_failures", self.qp_failures),
            ("stalls", self.stalls),
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
            ("near_pulled_parts", self.near_pulled_parts),
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
