//! Distributions of flow sizes: the known ones as tables, and those of a file.
//!
//! A table has the share of flows, in percent, that are at most so long; between two rows sizes
//! are spread evenly.

use crate::rng::Rng;

/// Flows of web search: figure 4 of the DCTCP paper (Alizadeh et al., SIGCOMM 2010), with the
/// points that the simulation of the HPCC paper has (`WebSearch_distribution.txt`).
const WEB_SEARCH: [(u64, f64); 12] = [
    (0, 0.0),
    (10_000, 15.0),
    (20_000, 20.0),
    (30_000, 30.0),
    (50_000, 40.0),
    (80_000, 53.0),
    (200_000, 60.0),
    (1_000_000, 70.0),
    (2_000_000, 80.0),
    (5_000_000, 90.0),
    (10_000_000, 97.0),
    (30_000_000, 100.0),
];

/// Flows of Facebook's Hadoop machines: Roy et al., "Inside the Social Network's (Datacenter)
/// Network" (SIGCOMM 2015), with the points of the simulation of the HPCC paper
/// (`FbHdp_distribution.txt`).
const HADOOP: [(u64, f64); 20] = [
    (0, 0.0),
    (100, 1.0),
    (200, 2.0),
    (300, 5.0),
    (350, 15.0),
    (400, 20.0),
    (500, 30.0),
    (600, 40.0),
    (700, 50.0),
    (1_000, 60.0),
    (2_000, 67.0),
    (7_000, 70.0),
    (30_000, 72.0),
    (50_000, 82.0),
    (80_000, 87.0),
    (120_000, 90.0),
    (300_000, 95.0),
    (1_000_000, 97.5),
    (2_000_000, 99.0),
    (10_000_000, 100.0),
];

/// Longest flow: 1 TB.
const LONGEST: u64 = 1_000_000_000_000;

/// A distribution of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Bytes, and percent of flows that are at most so long; both ascend, to 100.
    rows: Vec<(u64, f64)>,
}

impl Sizes {
    /// Web search.
    pub(super) fn web_search() -> Self {
        Self { rows: WEB_SEARCH.to_vec() }
    }

    /// Hadoop.
    pub(super) fn hadoop() -> Self {
        Self { rows: HADOOP.to_vec() }
    }

    /// A table.
    ///
    /// # Errors
    /// A table whose columns do not ascend, or whose last row is not of 100 %.
    pub(super) fn new(mut rows: Vec<(u64, f64)>) -> Result<Self, String> {
        if rows.first().is_some_and(|(_, percent)| *percent > 0.0) {
            rows.insert(0, (0, 0.0));
        }
        for pair in rows.windows(2) {
            let [(size, percent), (next, more)] = [pair[0], pair[1]];
            if next < size || more < percent || next > LONGEST {
                return Err(format!(
                    "sizes: {next} {more} behind {size} {percent}: both columns ascend, and a \
                     flow has at most {LONGEST} bytes"
                ));
            }
        }
        match rows.last() {
            Some((_, last)) if *last == 100.0 => Ok(Self { rows }),
            Some((size, last)) => Err(format!("sizes: the last row, {size} {last}, is not of 100")),
            None => Err("sizes: there is no row".to_owned()),
        }
    }

    /// Bytes of a flow on average.
    pub(super) fn mean(&self) -> f64 {
        let part = |pair: &[(u64, f64)]| {
            let middle = (pair[0].0 + pair[1].0) as f64 / 2.0;
            middle * (pair[1].1 - pair[0].1) / 100.0
        };
        self.rows.windows(2).map(part).sum()
    }

    /// Bytes of the next flow, at least 1.
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        let percent = rng.unit() * 100.0;
        let at =
            self.rows.partition_point(|(_, row)| *row <= percent).clamp(1, self.rows.len() - 1);
        let ((size, low), (next, high)) = (self.rows[at - 1], self.rows[at]);
        let part = if high > low { (percent - low) / (high - low) } else { 1.0 };
        (size + (part * (next - size) as f64) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_tables_keep_the_rules_and_have_the_means_that_are_published() {
        for sizes in [Sizes::web_search(), Sizes::hadoop()] {
            assert_eq!(Sizes::new(sizes.rows.clone()).as_ref(), Ok(&sizes));
        }
        // 1.6 MB and 122 KB, by the generator of the HPCC paper's simulation.
        assert!((1.65e6..1.75e6).contains(&Sizes::web_search().mean()));
        assert!((115e3..130e3).contains(&Sizes::hadoop().mean()));
    }

    #[test]
    fn drawn_sizes_are_spread_as_the_table_says() {
        let (sizes, mut rng) = (Sizes::web_search(), Rng::new(11));
        let mut drawn: Vec<_> = (0..100_000).map(|_| sizes.draw(&mut rng)).collect();
        drawn.sort_unstable();
        for (size, percent) in &WEB_SEARCH[1..11] {
            let part = drawn.partition_point(|drawn| drawn <= size) as f64 / 1_000.0;
            assert!((part - percent).abs() < 1.0, "{size}: {part} % and not {percent} %");
        }
        let mean = drawn.iter().sum::<u64>() as f64 / 100_000.0;
        assert!((mean / sizes.mean() - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn a_wrong_table_is_told_with_its_row() {
        let error = |rows: &[(u64, f64)]| Sizes::new(rows.to_vec()).unwrap_err();
        assert!(error(&[(10, 50.0), (5, 100.0)]).contains("5 100 behind 10 50"));
        assert!(error(&[(10, 50.0)]).contains("10 50, is not of 100"));
        assert!(error(&[]).contains("no row"));
    }
}
