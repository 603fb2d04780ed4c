//! What the hosts send: which flows begin when.
//!
//! Owns the plan of the load and its chance. The known loads of a data centre begin flows at
//! random times (Poisson) between random hosts; others begin all at once. The ring of an
//! all-reduce, where a message follows from another one, is in `ring`.

use super::sizes::Sizes;
use super::topology::Topology;
use super::units::{PICOS, nanos};
use crate::rng::Rng;

/// Flows that begin together do so within so many nanoseconds, at random: no two clocks agree.
const JITTER_NANOS: u64 = 1_000;

/// What the hosts send.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// Flows of web search.
    WebSearch,
    /// Flows of Hadoop machines.
    Hadoop,
    /// All hosts reduce a vector together, in a ring, again and again.
    AllReduce,
    /// All hosts send to one.
    Incast,
    /// The first half of the hosts sends to the second half, one to one.
    Pairs,
    /// Flows of other sizes.
    Sizes(Sizes),
    /// Flows of a list.
    Flows(Vec<Planned>),
}

/// A flow of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins, in nanoseconds.
    at_nanos: u64,
    wanted: Wanted,
}

/// A flow that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: u64,
}

/// Names of loads.
const NAMES: [(&str, Traffic); 5] = [
    ("websearch", Traffic::WebSearch),
    ("hadoop", Traffic::Hadoop),
    ("allreduce", Traffic::AllReduce),
    ("incast", Traffic::Incast),
    ("pairs", Traffic::Pairs),
];

impl Traffic {
    /// The load with this name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, traffic)| traffic.clone())
    }

    /// All names.
    pub fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    /// Whether flows of random sizes begin at random times, so that a load factor says how many.
    pub fn is_random(&self) -> bool {
        matches!(self, Self::WebSearch | Self::Hadoop | Self::Sizes(_))
    }

    /// Whether the bytes of a flow are not said by the load itself.
    pub fn takes_bytes(&self) -> bool {
        matches!(self, Self::AllReduce | Self::Incast | Self::Pairs)
    }

    /// Reads a file: rows `TIME FROM TO BYTES` are flows, as in `10us 0 5 64k`; rows `BYTES
    /// PERCENT` are a distribution of sizes. `#` begins a comment.
    ///
    /// # Errors
    /// The first line that is neither, or not like the others.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut flows, mut rows) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let fields: Vec<_> = line.split_whitespace().collect();
            let wrong = |what: String| format!("line {}: {what}", number + 1);
            match fields[..] {
                [] => {}
                [size, percent] if flows.is_empty() => {
                    let share = percent.parse().ok().filter(|p| (0.0..=100.0).contains(p));
                    let share = share
                        .ok_or_else(|| wrong(format!("`{percent}` is no percentage: 0 to 100")))?;
                    rows.push((super::units::bytes(size).map_err(wrong)?, share));
                }
                [at, from, to, size] if rows.is_empty() => {
                    let host = |text: &str| {
                        let number = text.parse::<u32>();
                        number.map_err(|_| wrong(format!("`{text}` is no number of a host")))
                    };
                    let (from, to) = (host(from)?, host(to)?);
                    let bytes = super::units::bytes(size).map_err(wrong)?.max(1);
                    let at_nanos = nanos(at).map_err(wrong)?;
                    flows.push(Planned { at_nanos, wanted: Wanted { from, to, bytes } });
                }
                _ => {
                    return Err(wrong(format!(
                        "`{}`: rows are TIME FROM TO BYTES (a flow) or all BYTES PERCENT (sizes)",
                        line.trim()
                    )));
                }
            }
        }
        if flows.is_empty() {
            return Sizes::new(rows).map(Self::Sizes);
        }
        flows.sort_by_key(|flow| flow.at_nanos);
        Ok(Self::Flows(flows))
    }

    /// The distribution of sizes, where flows begin at random.
    fn sizes(&self) -> Option<Sizes> {
        match self {
            Self::WebSearch => Some(Sizes::web_search()),
            Self::Hadoop => Some(Sizes::hadoop()),
            Self::Sizes(sizes) => Some(sizes.clone()),
            _ => None,
        }
    }
}

/// When flows begin.
#[derive(Debug)]
enum Plan {
    /// At random: picoseconds between two on average.
    Poisson { sizes: Sizes, gap: f64 },
    /// As listed, by time in picoseconds.
    List(Vec<(u64, Wanted)>),
}

/// The load of a run.
#[derive(Debug)]
pub(super) struct Load {
    plan: Plan,
    senders: Vec<u32>,
    receivers: Vec<u32>,
    rng: Rng,
}

impl Load {
    /// The load `traffic`. `factor` is the part of the capacity that random flows ask for; flows
    /// that begin together have `bytes`.
    ///
    /// # Errors
    /// A flow between hosts that there are not.
    pub(super) fn new(
        traffic: &Traffic,
        topology: &Topology,
        factor: f64,
        bytes: u64,
        mut rng: Rng,
    ) -> Result<Self, String> {
        let (senders, receivers) = (topology.senders.clone(), topology.receivers.clone());
        if let Some(sizes) = traffic.sizes() {
            let bytes_per_pico = topology.capacity as f64 * factor / 8_000.0;
            let gap = sizes.mean() / bytes_per_pico;
            return Ok(Self { plan: Plan::Poisson { sizes, gap }, senders, receivers, rng });
        }
        let mut list = match traffic {
            Traffic::Flows(flows) => {
                let hosts = topology.hosts;
                for Planned { wanted: Wanted { from, to, .. }, .. } in flows {
                    if from == to || *from.max(to) >= hosts {
                        return Err(format!(
                            "a flow from host {from} to {to}: two hosts of 0 to {}",
                            hosts - 1
                        ));
                    }
                }
                flows.iter().map(|flow| (flow.at_nanos * PICOS, flow.wanted)).collect()
            }
            Traffic::Incast => {
                let to = receivers[0];
                let others = senders.iter().filter(|from| **from != to);
                others.map(|from| (0, Wanted { from: *from, to, bytes })).collect()
            }
            Traffic::Pairs => pairs(&senders, &receivers, bytes),
            _ => Vec::new(),
        };
        if !matches!(traffic, Traffic::Flows(_)) {
            for (at, _) in &mut list {
                *at = rng.below(JITTER_NANOS * PICOS);
            }
            list.sort_by_key(|(at, _)| *at);
        }
        Ok(Self { plan: Plan::List(list), senders, receivers, rng })
    }

    /// When the flow number `number` begins, after the present one; `None` if it is the last.
    pub(super) fn begins(&mut self, number: u32, now: u64) -> Option<u64> {
        match &self.plan {
            Plan::Poisson { gap, .. } => {
                Some(now + (-(1.0 - self.rng.unit()).ln() * gap).round() as u64)
            }
            Plan::List(list) => list.get(number as usize).map(|(at, _)| *at),
        }
    }

    /// The flow number `number`, which begins now.
    pub(super) fn flow(&mut self, number: u32) -> Wanted {
        match &self.plan {
            Plan::Poisson { sizes, .. } => {
                let bytes = sizes.draw(&mut self.rng);
                let from = self.rng.pick(&self.senders);
                // Bounded by chance: at most every second draw is the sender itself.
                loop {
                    let to = self.rng.pick(&self.receivers);
                    if to != from {
                        return Wanted { from, to, bytes };
                    }
                }
            }
            Plan::List(list) => list[number as usize].1,
        }
    }
}

/// Flows from the first half of the senders to the second half, or from all to the receivers where
/// those are others.
fn pairs(senders: &[u32], receivers: &[u32], bytes: u64) -> Vec<(u64, Wanted)> {
    let half = senders.len() / 2;
    let (from, to) = match senders == receivers {
        true => senders.split_at(half),
        false => (senders, receivers),
    };
    let ends = from.iter().zip(to.iter().cycle());
    ends.map(|(from, to)| (0, Wanted { from: *from, to: *to, bytes })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::units::Rate;

    fn topology(shape: &str) -> Topology {
        Topology::new(shape.parse().unwrap(), Rate::new(100).unwrap(), None).unwrap()
    }

    #[test]
    fn random_flows_ask_for_the_part_of_the_capacity_that_was_named() {
        let plan = topology("fat-tree:4");
        let mut load = Load::new(&Traffic::Hadoop, &plan, 0.5, 0, Rng::new(2)).unwrap();
        let (mut now, mut bytes) = (0, 0);
        for number in 0..50_000 {
            now = load.begins(number, now).unwrap();
            let flow = load.flow(number);
            assert!(flow.from != flow.to && flow.from.max(flow.to) < 16);
            bytes += flow.bytes;
        }
        let gbps = bytes as f64 * 8_000.0 / now as f64;
        assert!((760.0..840.0).contains(&gbps), "{gbps} of 1600 Gb/s");
    }

    #[test]
    fn an_incast_has_a_flow_of_each_sender_within_a_microsecond() {
        let plan = topology("incast:8");
        let mut load = Load::new(&Traffic::Incast, &plan, 0.5, 77, Rng::new(2)).unwrap();
        let flows: Vec<_> =
            (0..8).map(|number| (load.begins(number, 0), load.flow(number))).collect();
        let mut from: Vec<_> = flows.iter().map(|(_, flow)| flow.from).collect();
        from.sort_unstable();
        assert_eq!(from, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(flows.iter().all(|(at, flow)| at.unwrap() < 1_000_000 && flow.to == 0));
        assert_eq!(load.begins(8, 0), None);
    }

    #[test]
    fn files_are_flows_or_sizes() {
        let flows = Traffic::parse("# two\n5us 0 1 64k\n1us 2 3 10\n").unwrap();
        let Traffic::Flows(list) = &flows else { panic!("{flows:?}") };
        assert_eq!(list[0].wanted, Wanted { from: 2, to: 3, bytes: 10 });
        assert!(matches!(Traffic::parse("10 50\n20 100"), Ok(Traffic::Sizes(_))));
        for (text, words) in [
            ("1us 0 1", "line 1: `1us 0 1`: rows are"),
            ("1us 0 1 5\n10 50", "line 2: `10 50`"),
            ("10 120", "`120` is no percentage"),
            ("1us 0 x 5", "`x` is no number of a host"),
        ] {
            assert!(Traffic::parse(text).unwrap_err().contains(words), "{text}");
        }
        let plan = topology("incast:2");
        let far = Traffic::parse("0us 0 9 5").unwrap();
        let error = Load::new(&far, &plan, 0.5, 0, Rng::new(1)).unwrap_err();
        assert!(error.contains("from host 0 to 9: two hosts of 0 to 2"), "{error}");
    }
}
