//! The figures of a run, as a table for people. `json.rs` has them for programs.

use std::fmt::{self, Display, Formatter};

use super::measure::{Bin, Depths, Span};
use super::picture::Lines;
use super::ran::Ran;
use super::setup::Setup;
use super::units::PICOS;
use super::world::{FlowTally, World};

/// The figures of a run.
#[derive(Debug)]
pub struct Report {
    pub(super) ran: Ran,
    pub(super) flows: FlowTally,
    pub(super) ended: u64,
    pub(super) bins: Vec<Bin>,
    pub(super) all: Depths,
    /// The port with the longest line: between which nodes, and its depths.
    pub(super) busiest: String,
    pub(super) busy: Depths,
    pub(super) pauses: Pauses,
    pub(super) fairness: Option<(f64, f64)>,
    pub(super) spans: Vec<Span>,
    /// Gb/s of payload, and what all senders together could send.
    pub(super) goodput: f64,
    pub(super) capacity: f64,
    pub(super) packets: Packets,
    pub(super) rounds: Option<Rounds>,
    /// Depths of the busiest port, and nanoseconds between two.
    depths: (u64, Vec<u32>),
}

/// PFC over all ports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pauses {
    pub(super) frames: u64,
    /// Microseconds, of all ports together and of the one that was paused longest.
    pub(super) sum_us: f64,
    pub(super) longest_us: f64,
    /// Part of the time of all ports, in percent.
    pub(super) percent: f64,
}

/// Packets and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) dropped: u64,
    pub(super) under_way: u64,
    pub(super) hops: u64,
    pub(super) marked: u64,
    pub(super) repeated: u64,
    pub(super) kept: u64,
    pub(super) cnps: u64,
    pub(super) naks: u64,
    pub(super) timeouts: u64,
    pub(super) probes: u64,
    pub(super) duplicates: u64,
    pub(super) late: u64,
}

/// Rounds of an all-reduce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub(super) count: usize,
    pub(super) mean_us: f64,
    pub(super) open: usize,
}

impl Report {
    pub(super) fn new(setup: &Setup, world: &World) -> Self {
        let (network, measures) = (&world.network, &world.measures);
        let (now, ports) = (world.now(), network.pauses());
        let paused = || ports.iter().map(|pauses| pauses.sum(now) as f64 / 1e6);
        let sum_us = paused().sum();
        let pauses = Pauses {
            frames: ports.iter().map(|pauses| pauses.count).sum(),
            sum_us,
            longest_us: paused().fold(0.0, f64::max),
            percent: 100.0 * sum_us / (ports.len() as f64 * now as f64 / 1e6),
        };
        let (port, busy, depths) = measures.busiest(network);
        let (near, far) = network.ends(port);
        let counters = world.hosts.counters();
        let tally = network.tally;
        let rounds = world.ring.as_ref().map(|ring| {
            let (count, ended) = ring.rounds();
            let mean_us = ended as f64 / 1e6 / count.max(1) as f64;
            Rounds { count, mean_us, open: ring.open() }
        });
        Self {
            ran: Ran::new(setup, world),
            flows: world.flows.clone(),
            ended: measures.flows() as u64,
            bins: measures.bins(),
            all: measures.all_depths(network),
            busiest: format!("{} to {}", name(world, near), name(world, far)),
            busy,
            pauses,
            fairness: measures.fairness(),
            spans: measures.spans.clone(),
            goodput: world.flows.placed as f64 * 8_000.0 / now as f64,
            capacity: world.topology.capacity as f64,
            packets: Packets {
                sent: tally.sent,
                delivered: tally.delivered,
                dropped: tally.dropped,
                under_way: network.under_way() as u64,
                hops: tally.hops,
                marked: tally.marked,
                repeated: counters.retransmitted_packets,
                kept: counters.packets_kept,
                cnps: counters.cnps_received,
                naks: counters.sequence_naks_sent,
                timeouts: counters.ack_timeouts,
                probes: counters.tail_probes,
                duplicates: counters.duplicates_received,
                late: world.hosts.late,
            },
            rounds,
            depths: (measures.interval() / PICOS, depths),
        }
    }

    /// Packets that hosts have taken: what the speed of the simulator is told by.
    pub fn delivered(&self) -> u64 {
        self.packets.delivered
    }

    /// Packets that came in whole anywhere, switches included.
    pub fn hops(&self) -> u64 {
        self.packets.hops
    }

    /// Flows that had neither ended nor failed when the run was over.
    pub(super) fn open(&self) -> u64 {
        self.flows.begun - self.ended - self.flows.failed
    }

    /// Draws slowdowns, the longest line, goodput and fairness, as SVG.
    ///
    /// # Errors
    /// What the library that draws says.
    pub fn svg(&self) -> Result<String, String> {
        let (interval, depths) = &self.depths;
        let time = |at: usize| (at + 1) as f64 * *interval as f64 / 1e6;
        let line = depths.iter().enumerate();
        let at = |span: &Span| span.at as f64 / 1e9;
        let lines = Lines {
            title: &self.ran.to_string(),
            busiest: &self.busiest,
            bins: self.bins.iter().map(|bin| (bin.name, bin.slowdowns)).collect(),
            depth: line.map(|(at, depth)| (time(at), f64::from(*depth) / 1e3)).collect(),
            goodput: self.spans.iter().map(|span| (at(span), span.goodput)).collect(),
            fairness: self.spans.iter().map(|span| (at(span), span.fairness)).collect(),
        };
        lines.draw().map_err(|error| format!("cannot draw: {error}"))
    }
}

/// A node in words.
fn name(world: &World, node: u32) -> String {
    match node.checked_sub(world.topology.hosts) {
        Some(switch) => format!("switch {switch}"),
        None => format!("host {node}"),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "vernic-sim net: {}", self.ran)?;
        let FlowTally { begun, failed, failure, .. } = &self.flows;
        let open = self.open();
        writeln!(f, "flows: {begun} begun, {} ended, {open} open, {failed} failed", self.ended)?;
        if let Some((_, _, why)) = failure {
            writeln!(f, "       the first one failed with {why}")?;
        }
        if let Some(Rounds { count, mean_us, open }) = self.rounds {
            writeln!(f, "rounds: {count} ended, {mean_us:.1} us each, {open} messages open")?;
        }
        writeln!(f, "\nslowdown      flows     median        p95        p99")?;
        for Bin { name, flows, slowdowns: [median, p95, p99] } in &self.bins {
            writeln!(f, "{name:<10} {flows:>8} {median:>10.2} {p95:>10.2} {p99:>10.2}")?;
        }
        writeln!(f, "\nqueue, KB                         median        p99        max")?;
        let mut depths = |name: &str, Depths { median, p99, most }: Depths| {
            let [median, p99, most] = [median, p99, most].map(|bytes| f64::from(bytes) / 1e3);
            writeln!(f, "{name:<29} {median:>10.1} {p99:>10.1} {most:>10.1}")
        };
        depths("all ports of switches", self.all)?;
        depths(&self.busiest, self.busy)?;
        let Pauses { frames, sum_us, longest_us, percent } = self.pauses;
        writeln!(
            f,
            "\nPFC: {frames} pauses, {sum_us:.1} us in all ({percent:.3} % of all ports' time), \
             {longest_us:.1} us at one port"
        )?;
        match self.fairness {
            Some((mean, least)) => writeln!(f, "fairness: {mean:.3} on average, {least:.3} least")?,
            None => writeln!(f, "fairness: no two flows lasted")?,
        }
        let percent = 100.0 * self.goodput / self.capacity;
        writeln!(f, "goodput: {:.1} Gb/s, {percent:.1} % of the capacity", self.goodput)?;
        let p = &self.packets;
        writeln!(
            f,
            "packets: {} sent, {} delivered, {} dropped, {} under way, {} hops",
            p.sent, p.delivered, p.dropped, p.under_way, p.hops
        )?;
        writeln!(
            f,
            "         {} sent again, {} kept, {} NAKs, {} timeouts, {} probes, {} duplicates, {} late",
            p.repeated, p.kept, p.naks, p.timeouts, p.probes, p.duplicates, p.late
        )?;
        write!(f, "         {} marked, {} CNPs", p.marked, p.cnps)
    }
}
