//! What more queue pairs, peers and memory regions cost: `cargo xtask bench --growth`.
//!
//! `crates/api/vernic/examples/growth.rs` does the work and prints the figures; here it is run over
//! ranges, in rounds, and the medians become tables and charts.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::drawing::{self, Drawing, Line};
use super::judged::{Judged, number};
use super::{machine, readings};
use crate::shell::run;
use crate::{Result, target};

/// The name of the readings.
const NAME: &str = "growth";

/// Times that everything is measured; a median is a reading.
const ROUNDS: usize = 3;

/// Ten thousand queue pairs are to reach so much of the throughput of one.
const BAR: f64 = 0.7;
const MANY: u64 = 10_000;

/// Descriptors that a run may need: regions have one each.
const DESCRIPTORS: u64 = 16_384;

/// A range of runs.
struct Range {
    /// The program's first argument.
    what: &'static str,
    /// Its last, if it has a third.
    last: &'static str,
    over: &'static [u64],
    /// What is drawn, and which way is better.
    says: &'static str,
    /// What there is one of at first.
    one: &'static str,
    x: &'static str,
    /// Figures, as the program names them, and as people do; those that are drawn, beside the first
    /// one.
    figures: &'static [(&'static str, &'static str, bool)],
}

const RANGES: [Range; 3] = [
    Range {
        what: "qps",
        last: "",
        over: &[1, 10, 100, 1_000, 10_000, 100_000],
        says: "Queue pairs that are active in turn. WRITE: higher is better; to open: lower is better",
        one: "one queue pair",
        x: "queue pairs",
        figures: &[
            ("large_gbytes_per_s", "WRITE 64 KiB, GB/s", true),
            ("small_mmsg_per_s", "WRITE 64 B, M msg/s", true),
            ("open_us_per_qp", "to open and connect one, us", true),
            ("bytes_per_qp", "memory of each, bytes", false),
            ("bytes_per_used_qp", "after use, bytes", false),
        ],
    },
    Range {
        what: "peers",
        last: "",
        over: &[1, 2, 4, 8, 16, 32, 64],
        says: "Processes that are written to in turn. WRITE: higher is better; to start: lower is better",
        one: "one process",
        x: "processes",
        figures: &[
            ("large_gbytes_per_s", "WRITE 64 KiB, GB/s", true),
            ("small_mmsg_per_s", "WRITE 64 B, M msg/s", true),
            ("open_us_per_peer", "to start and connect one, us", true),
        ],
    },
    Range {
        what: "regions",
        // 1 TiB.
        last: " 1099511627776",
        over: &[1, 10, 100, 1_000],
        says: "Regions of 1 TiB together, written to in turn. Lower is better",
        one: "one region",
        x: "regions",
        figures: &[
            ("write_ns", "WRITE 8 B, ns", true),
            ("register_us", "to allocate and register one, us", true),
            ("deregister_us", "to deregister and free one, us", true),
        ],
    },
];

/// Readings by range, number and figure.
type Readings = BTreeMap<String, BTreeMap<u64, BTreeMap<String, Vec<f64>>>>;

/// What is kept of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    pub(super) machine: String,
    pub(super) rounds: usize,
    ranges: Readings,
}

/// Measures, and keeps the readings.
pub(super) fn take() -> Result {
    let program = build()?;
    let machine = machine::describe();
    let mut ranges = Readings::new();
    for round in 1..=ROUNDS {
        for range in &RANGES {
            for &count in range.over {
                println!("round {round} of {ROUNDS}: {} {count}", range.what);
                let said = range.run(&program, count)?;
                let figures =
                    ranges.entry(range.what.into()).or_default().entry(count).or_default();
                for (figure, value) in range.figures(&said) {
                    figures.entry(figure.into()).or_default().push(value);
                }
            }
        }
    }
    let report = Report { machine, rounds: ROUNDS, ranges };
    let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
    readings::keep(NAME, &json)
}

/// The program.
fn build() -> Result<String> {
    run("cargo build --release -p vernic --example growth").limit_min(20).go()?;
    Ok(target().join("release/examples/growth").display().to_string())
}

fn median(readings: &[f64]) -> Option<f64> {
    let mut sorted = readings.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// A number as people write it.
fn thousands(count: u64) -> String {
    match (count / 1000, count % 1000) {
        (0, rest) => format!("{rest}"),
        (many, rest) => format!("{many},{rest:03}"),
    }
}

impl Range {
    /// Packets go by UDP, whatever the default within a host is.
    fn run(&self, program: &str, count: u64) -> Result<String> {
        let Self { what, last, .. } = self;
        let line = format!("ulimit -n {DESCRIPTORS} && exec {program} {what} {count}{last}");
        run("sh -c").arg(line).env("VERNIC_SAME_HOST", "off").limit_min(2).output()
    }

    /// What the program said, by the names that are known.
    fn figures(&self, said: &str) -> Vec<(&'static str, f64)> {
        let value = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.trim().parse().ok()
        };
        let figures = self.figures.iter();
        figures.filter_map(|(name, _, _)| Some((*name, value(name)?))).collect()
    }

    fn name(&self) -> String {
        format!("growth-{}", self.what)
    }

    fn drawing(&self, report: &Report) -> Drawing {
        let y = "times the figure of one";
        let title = self.finding(report).unwrap_or_else(|| format!("Many beside {}", self.one));
        Drawing { title, says: self.says, x: self.x, y, binary: false }
    }

    /// What the most have of the figures of one.
    fn finding(&self, report: &Report) -> Option<String> {
        // Beyond what a bar is about, a chart shows the rest.
        let last = self.over.iter().copied().rfind(|&count| count <= MANY)?;
        let of_one = |figure| {
            Some(number(Some(report.median(self, last, figure)? / report.median(self, 1, figure)?)))
        };
        let mut names = self.figures.iter().filter(|(_, _, is_drawn)| *is_drawn);
        let ((first, a, _), (second, b, _)) = (names.next()?, names.next()?);
        let [a, b] = [a, b].map(|name| name.split(',').next().unwrap_or(name));
        let (first, second) = (of_one(first)?, of_one(second)?);
        let (last, x, one) = (thousands(last), self.x, self.one);
        Some(format!("{last} {x} beside {one}: {a} {first} x, {b} {second} x"))
    }

    /// The figures that are drawn, each beside its first.
    fn lines(&self, report: &Report) -> Vec<Line<'_>> {
        let drawn = self.figures.iter().filter(|(_, _, is_drawn)| *is_drawn);
        drawn
            .map(|(figure, name, _)| {
                let at = |count: u64| report.median(self, count, figure);
                let first = self.over.first().and_then(|&count| at(count));
                let point = |&count: &u64| Some((count as f64, at(count)? / first?));
                (
                    name.split(',').next().unwrap_or(name),
                    self.over.iter().filter_map(point).collect(),
                )
            })
            .collect()
    }

    fn table(&self, report: &Report) -> String {
        let mut table = format!("| {} |", self.x);
        for (_, name, _) in self.figures {
            let _ = write!(table, " {name} |");
        }
        let _ = writeln!(table, "\n|--:|{}", "--:|".repeat(self.figures.len()));
        for &count in self.over {
            let _ = write!(table, "| {count} |");
            for (figure, _, _) in self.figures {
                let _ = write!(table, " {} |", number(report.median(self, count, figure)));
            }
            table.push('\n');
        }
        table
    }
}

impl Report {
    /// The measurement that is kept.
    pub(super) fn kept() -> Result<Self> {
        let json = readings::kept(NAME)?;
        serde_json::from_str(&json).map_err(|e| format!("not a report of growth: {e}"))
    }

    fn median(&self, range: &Range, count: u64, figure: &str) -> Option<f64> {
        median(self.ranges.get(range.what)?.get(&count)?.get(figure)?)
    }

    /// WRITEs of 64 KiB, in GB/s: of many queue pairs that are active in turn, and of one.
    pub(super) fn many_and_one(&self) -> Option<(f64, f64)> {
        let at = |count| self.median(&RANGES[0], count, "large_gbytes_per_s");
        Some((at(MANY)?, at(1)?))
    }

    /// What many active queue pairs reach, of each kind of message that is drawn.
    pub(super) fn judge(&self) -> Vec<Judged> {
        let judge = |(figure, name, what): (&'static str, &str, &str)| {
            let at = |count: u64| self.median(&RANGES[0], count, figure);
            let (bar, what) =
                (format!("at least {BAR} x one"), format!("{MANY} active queue pairs, {what}"));
            let Some((one, many)) = at(1).zip(at(MANY)) else {
                return Judged { what, bar, measured: "-".into(), verdict: "not measured".into() };
            };
            let (ratio, verdict) =
                (many / one, if many >= BAR * one { "reached" } else { "short" });
            let measured =
                format!("{} {name}, one {}: {ratio:.2} x", number(Some(many)), number(Some(one)));
            Judged { what, bar, measured, verdict: verdict.into() }
        };
        let figures = [
            ("large_gbytes_per_s", "GB/s", "WRITE 64 KiB"),
            ("small_mmsg_per_s", "M msg/s", "WRITE 64 B"),
        ];
        figures.into_iter().map(judge).collect()
    }

    /// The chart that tells most of what many cost.
    pub(super) fn chart(&self) -> drawing::Shown {
        drawing::Shown::new(&RANGES[0].name(), &RANGES[0].drawing(self))
    }

    /// Each range's chart and table.
    pub(super) fn ranges(&self, from: &str) -> String {
        let ranges = RANGES.iter().map(|range| {
            let shown = drawing::Shown::new(&range.name(), &range.drawing(self));
            format!("{}\n\n{}", shown.markdown(from), range.table(self))
        });
        ranges.collect::<Vec<_>>().join("\n")
    }

    /// Draws the charts.
    pub(super) fn draw(&self) -> Result {
        RANGES.iter().try_for_each(|range| {
            drawing::write(&range.name(), &range.drawing(self), &range.lines(self))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_says_becomes_a_table_and_lines_beside_the_first() {
        let range = &RANGES[0];
        let said = "open_us_per_qp 3.5\nlarge_gbytes_per_s 8.0\nunknown 7\nsmall_mmsg_per_s none\n";
        let figures = range.figures(said);
        assert_eq!(figures, [("large_gbytes_per_s", 8.0), ("open_us_per_qp", 3.5)]);
        let kept = r#"{"machine": "a machine", "rounds": 3, "ranges": {"qps": {
            "1": {"large_gbytes_per_s": [7.0, 9.0, 8.0], "small_mmsg_per_s": [2.0]},
            "10000": {"large_gbytes_per_s": [6.0, 1.0, 9.0]}}}}"#;
        let report: Report = serde_json::from_str(kept).unwrap();
        let judged = report.judge();
        assert_eq!(judged[0].measured, "6.00 GB/s, one 8.00: 0.75 x");
        assert_eq!((&*judged[0].verdict, &*judged[1].verdict), ("reached", "not measured"));
        assert_eq!(report.many_and_one(), Some((6.0, 8.0)));
        let page = report.ranges("");
        assert!(page.contains("| 10000 | 6.00 |  |  |  |  |"), "{page}");
        assert!(page.contains("charts/growth-regions.svg"), "{page}");
        let lines = range.lines(&report);
        assert_eq!(lines[0], ("WRITE 64 KiB", vec![(1.0, 1.0), (10_000.0, 0.75)]));
        assert_eq!(range.drawing(&report).title, "Many beside one queue pair");
        let drawn = range.drawing(&report).draw(&lines).unwrap().unwrap();
        assert!(drawn.contains("queue pairs"));
    }

    #[test]
    fn a_title_says_what_the_most_have() {
        let report: serde_json::Result<Report> = serde_json::from_str(
            r#"{"machine": "a machine", "rounds": 1, "ranges": {"qps": {
            "1": {"large_gbytes_per_s": [8.0], "small_mmsg_per_s": [2.0]},
            "10000": {"large_gbytes_per_s": [6.0], "small_mmsg_per_s": [1.0]},
            "100000": {"large_gbytes_per_s": [1.0], "small_mmsg_per_s": [0.1]}}}}"#,
        );
        let title = RANGES[0].drawing(&report.unwrap()).title;
        assert_eq!(
            title,
            "10,000 queue pairs beside one queue pair: WRITE 64 KiB 0.75 x, WRITE 64 B 0.50 x"
        );
    }
}
