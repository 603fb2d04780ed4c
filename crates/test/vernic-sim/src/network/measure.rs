//! What a run measures: flows that ended, depths of lines, shares of flows over time.
//!
//! Owns the measurements and reduces them to figures. Called by the world: at the end of each
//! flow, and at regular times.

use super::forward::Network;
use super::units::PICOS;

/// Samples of depths in a run, and the shortest time between two.
const SAMPLES: u64 = 1_000;
const SHORTEST: u64 = 100 * PICOS;
/// Samples of depths between two of rates, which need more packets to mean something.
const SPAN: u64 = 10;

/// Bounds of the sizes that flows are reported by, in bytes, with their names.
pub(super) const BINS: [(u64, &str); 5] = [
    (10_000, "to 10 KB"),
    (100_000, "to 100 KB"),
    (1_000_000, "to 1 MB"),
    (10_000_000, "to 10 MB"),
    (u64::MAX, "longer"),
];

/// A flow that ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    bytes: u64,
    /// Time that it took, by the time that it takes alone.
    slowdown: f64,
}

/// Flows of one range of sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) name: &'static str,
    pub(super) flows: usize,
    /// Slowdown: median, 95th and 99th percentile.
    pub(super) slowdowns: [f64; 3],
}

/// Depths of lines in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) median: u32,
    pub(super) p99: u32,
    pub(super) most: u32,
}

/// Rates during one span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    /// Picoseconds at its end.
    pub(super) at: u64,
    /// Jain's index over the flows that lasted all of it; `None` below two.
    pub(super) fairness: Option<f64>,
    /// Gb/s of payload at receivers.
    pub(super) goodput: f64,
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct Measures {
    ended: Vec<Ended>,
    /// Ports of switches, and their depths at each sample, one sample behind the other.
    ports: Vec<u32>,
    depths: Vec<u32>,
    /// Picoseconds between two samples.
    interval: u64,
    samples: u64,
    pub(super) spans: Vec<Span>,
}

impl Measures {
    /// None yet, of a run that lasts so many picoseconds.
    pub(super) fn new(network: &Network, time: u64) -> Self {
        Self {
            ended: Vec::new(),
            ports: network.switch_ports().collect(),
            depths: Vec::new(),
            interval: (time / SAMPLES).max(SHORTEST),
            samples: 0,
            spans: Vec::new(),
        }
    }

    /// Picoseconds between two samples.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// A flow has ended after so many picoseconds; alone it takes `ideal`.
    pub(super) fn end_flow(&mut self, bytes: u64, took: u64, ideal: u64) {
        let slowdown = took as f64 / ideal.max(1) as f64;
        self.ended.push(Ended { bytes, slowdown });
    }

    /// Looks at the lines. Returns whether a span of rates ends here.
    pub(super) fn sample(&mut self, network: &Network) -> bool {
        self.depths.extend(self.ports.iter().map(|port| network.port(*port).depth()));
        self.samples += 1;
        self.samples.is_multiple_of(SPAN)
    }

    /// A span ends: bytes that each lasting flow has got in it, and all flows together.
    pub(super) fn end_span(&mut self, now: u64, shares: &[u64], bytes: u64) {
        let goodput = bytes as f64 * 8_000.0 / (self.interval * SPAN) as f64;
        self.spans.push(Span { at: now, fairness: fairness(shares), goodput });
    }

    /// Flows that ended.
    pub(super) fn flows(&self) -> usize {
        self.ended.len()
    }

    /// Slowdowns by size: each range that has flows, and all.
    pub(super) fn bins(&self) -> Vec<Bin> {
        let mut least = 0;
        let mut bins = Vec::new();
        for (most, name) in BINS {
            let is_in = |flow: &&Ended| flow.bytes > least && flow.bytes <= most;
            bins.push((name, self.ended.iter().filter(is_in).map(|flow| flow.slowdown).collect()));
            least = most;
        }
        bins.push(("all", self.ended.iter().map(|flow| flow.slowdown).collect::<Vec<_>>()));
        let bin = |(name, mut slowdowns): (_, Vec<f64>)| {
            slowdowns.sort_unstable_by(f64::total_cmp);
            let at = |percent| percentile(&slowdowns, percent).unwrap_or_default();
            Bin { name, flows: slowdowns.len(), slowdowns: [at(50), at(95), at(99)] }
        };
        bins.into_iter().map(bin).filter(|bin| bin.flows > 0).collect()
    }

    /// Depths of all ports' lines.
    pub(super) fn all_depths(&self, network: &Network) -> Depths {
        let most = self.ports.iter().map(|port| network.port(*port).most()).max();
        reduced(&self.depths, most)
    }

    /// The port whose line was the longest on average, its depths, and its depth at each sample.
    pub(super) fn busiest(&self, network: &Network) -> (u32, Depths, Vec<u32>) {
        let count = self.ports.len();
        let mut sums = vec![0; count];
        for sample in self.depths.chunks_exact(count.max(1)) {
            for (sum, depth) in sums.iter_mut().zip(sample) {
                *sum += u64::from(*depth);
            }
        }
        // Of equal ones the first.
        let at = (0..count).rev().max_by_key(|at| sums[*at]).unwrap_or_default();
        let port = self.ports[at];
        let most = network.port(port).most();
        let depths: Vec<_> = self.depths.iter().skip(at).step_by(count).copied().collect();
        (port, reduced(&depths, Some(most)), depths)
    }

    /// Fairness over time: mean and least, of the spans that have one.
    pub(super) fn fairness(&self) -> Option<(f64, f64)> {
        let known: Vec<_> = self.spans.iter().filter_map(|span| span.fairness).collect();
        let least = known.iter().copied().min_by(f64::total_cmp)?;
        Some((known.iter().sum::<f64>() / known.len() as f64, least))
    }
}

/// Jain's index: 1 where all have the same, `1/n` where one has all.
fn fairness(shares: &[u64]) -> Option<f64> {
    let sum = shares.iter().sum::<u64>() as f64;
    let squares = shares.iter().map(|share| (*share as f64).powi(2)).sum::<f64>();
    (shares.len() > 1 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The value that so many percent of the sorted values are at most.
fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get(rank(sorted.len(), percent)).copied()
}

/// Place of that value among so many sorted ones.
fn rank(values: usize, percent: usize) -> usize {
    (values * percent).div_ceil(100).max(1) - 1
}

fn reduced(depths: &[u32], most: Option<u32>) -> Depths {
    // Most of millions of lines are empty, and two values are wanted: they need not be sorted.
    let mut filled: Vec<_> = depths.iter().copied().filter(|depth| *depth > 0).collect();
    let empty = depths.len() - filled.len();
    let mut at = |percent| {
        let place = rank(depths.len(), percent).checked_sub(empty);
        let place = place.filter(|place| *place < filled.len());
        place.map_or(0, |place| *filled.select_nth_unstable(place).1)
    };
    Depths { median: at(50), p99: at(99), most: most.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let values: Vec<_> = (1..=200).collect();
        assert_eq!(
            [50, 95, 99, 100].map(|p| percentile(&values, p)),
            [100, 190, 198, 200].map(Some)
        );
        assert_eq!((percentile(&[7], 50), percentile::<u32>(&[], 50)), (Some(7), None));
    }

    #[test]
    fn depths_are_reduced_as_if_they_were_sorted() {
        for empty in [0, 1, 99, 100, 101, 198, 199, 200] {
            let mut depths: Vec<_> = (0..200_u32).rev().map(|d| d.saturating_sub(empty)).collect();
            let reduced = reduced(&depths, Some(7));
            depths.sort_unstable();
            let [median, p99] = [50, 99].map(|p| percentile(&depths, p).unwrap());
            assert_eq!(reduced, Depths { median, p99, most: 7 });
        }
        assert_eq!(reduced(&[], None), Depths::default());
    }

    #[test]
    fn fairness_is_between_one_of_all_and_equal_shares() {
        assert_eq!(fairness(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(fairness(&[8, 0, 0, 0]), Some(0.25));
        assert_eq!((fairness(&[8]), fairness(&[0, 0])), (None, None));
    }
}
