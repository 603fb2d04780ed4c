//! The figures of a run, as a table for people and as JSON for programs.

use std::fmt::{self, Display, Formatter};

use super::load::Traffic;
use super::measure::{Bin, Depths, Span};
use super::picture::Lines;
use super::setup::Setup;
use super::units::PICOS;
use super::world::{FlowTally, World};

/// The figures of a run.
#[derive(Debug)]
pub struct Report {
    /// What was run, in one line.
    title: String,
    pub(super) flows: FlowTally,
    pub(super) ended: u64,
    pub(super) bins: Vec<Bin>,
    pub(super) all: Depths,
    /// The port with the longest line: between which nodes, and its depths.
    busiest: String,
    pub(super) busy: Depths,
    pub(super) pauses: Pauses,
    pub(super) fairness: Option<(f64, f64)>,
    pub(super) spans: Vec<Span>,
    /// Gb/s of payload, and what all senders together could send.
    goodput: f64,
    capacity: f64,
    pub(super) packets: Packets,
    rounds: Option<Rounds>,
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
    naks: u64,
    timeouts: u64,
    probes: u64,
    duplicates: u64,
    late: u64,
}

/// Rounds of an all-reduce.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    count: usize,
    mean_us: f64,
    open: usize,
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
        let rounds = world.ring.as_ref().map(|ring| Rounds {
            count: ring.rounds.len(),
            mean_us: ring
                .rounds
                .last()
                .map_or(0.0, |last| *last as f64 / 1e6 / ring.rounds.len() as f64),
            open: ring.open(),
        });
        Self {
            title: title(setup, world),
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

    /// Draws slowdowns, the longest line, goodput and fairness, as SVG.
    ///
    /// # Errors
    /// What the library that draws says.
    pub fn svg(&self) -> Result<String, String> {
        let (interval, depths) = &self.depths;
        let time = |at: usize| (at + 1) as f64 * *interval as f64 / 1e6;
        let line = depths.iter().enumerate();
        let at = |span: &Span| span.at as f64 / 1e9;
        let fair = |span: &Span| Some((at(span), span.fairness?));
        let lines = Lines {
            title: &self.title,
            busiest: &self.busiest,
            bins: self.bins.iter().map(|bin| (bin.name, bin.slowdowns)).collect(),
            depth: line.map(|(at, depth)| (time(at), f64::from(*depth) / 1e3)).collect(),
            goodput: self.spans.iter().map(|span| (at(span), span.goodput)).collect(),
            fairness: self.spans.iter().filter_map(fair).collect(),
        };
        lines.draw().map_err(|error| format!("cannot draw: {error}"))
    }

    /// Writes the figures as one JSON object.
    pub fn json(&self) -> String {
        let quoted = |text: &str| format!("{text:?}");
        let bin = |bin: &Bin| {
            let [median, p95, p99] = bin.slowdowns;
            format!(
                "{{\"size\":{},\"flows\":{},\"median\":{median:.3},\"p95\":{p95:.3},\
                 \"p99\":{p99:.3}}}",
                quoted(bin.name),
                bin.flows
            )
        };
        let depths = |depths: &Depths| {
            let Depths { median, p99, most } = depths;
            format!("{{\"median\":{median},\"p99\":{p99},\"max\":{most}}}")
        };
        let bins: Vec<_> = self.bins.iter().map(bin).collect();
        let (mean, least) = self.fairness.unwrap_or((f64::NAN, f64::NAN));
        let number =
            |value: f64| if value.is_nan() { "null".into() } else { format!("{value:.4}") };
        let (p, pauses) = (&self.packets, &self.pauses);
        format!(
            "{{\"run\":{},\"flows\":{{\"begun\":{},\"ended\":{},\"failed\":{}}},\
             \"slowdown\":[{}],\"queues\":{},\"busiest\":{},\
             \"pfc\":{{\"frames\":{},\"sum_us\":{:.1},\"longest_us\":{:.1},\"percent\":{:.4}}},\
             \"fairness\":{{\"mean\":{},\"least\":{}}},\"goodput_gbps\":{:.3},\
             \"packets\":{{\"sent\":{},\"delivered\":{},\"dropped\":{},\"under_way\":{},\
             \"marked\":{},\"repeated\":{},\"kept\":{},\"cnps\":{},\"naks\":{},\"timeouts\":{},\
             \"probes\":{},\"duplicates\":{},\"late\":{}}}}}",
            quoted(&self.title),
            self.flows.begun,
            self.ended,
            self.flows.failed,
            bins.join(","),
            depths(&self.all),
            depths(&self.busy),
            pauses.frames,
            pauses.sum_us,
            pauses.longest_us,
            pauses.percent,
            number(mean),
            number(least),
            self.goodput,
            p.sent,
            p.delivered,
            p.dropped,
            p.under_way,
            p.marked,
            p.repeated,
            p.kept,
            p.cnps,
            p.naks,
            p.timeouts,
            p.probes,
            p.duplicates,
            p.late
        )
    }
}

/// What is run, in one line.
fn title(setup: &Setup, world: &World) -> String {
    let plan = &world.topology;
    let members = {
        let mut members: Vec<_> = plan.senders.iter().chain(&plan.receivers).collect();
        members.sort_unstable();
        members.dedup();
        members.len()
    };
    let load = match &setup.traffic {
        Traffic::Flows(_) => "a list of flows".to_owned(),
        Traffic::Sizes(_) => format!("flows of a file at {}", setup.load_factor),
        Traffic::WebSearch => format!("websearch at {}", setup.load_factor),
        Traffic::Hadoop => format!("hadoop at {}", setup.load_factor),
        Traffic::AllReduce => "allreduce".to_owned(),
        Traffic::Incast => "incast".to_owned(),
        Traffic::Pairs => "pairs".to_owned(),
    };
    format!(
        "{}, {members} hosts, {} switches, {}, {}, {load}, PFC {}, {} ms, seed {}",
        setup.topology,
        plan.switches,
        setup.rate,
        setup.algorithm,
        if setup.pfc { "on" } else { "off" },
        setup.time_nanos as f64 / 1e6,
        setup.seed
    )
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
        writeln!(f, "vernic-sim net: {}", self.title)?;
        let FlowTally { begun, failed, failure, .. } = &self.flows;
        let open = begun - self.ended - failed;
        writeln!(f, "flows: {begun} begun, {} ended, {open} open, {failed} failed", self.ended)?;
        if let Some(why) = failure {
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
