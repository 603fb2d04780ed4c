//! What more queue pairs, peers and memory regions cost: `cargo xtask bench --growth`.
//!
//! `crates/api/vernic/examples/growth.rs` does the work and prints the figures; here it is run over
//! ranges, in rounds, and the medians become a part of BENCHMARKS.md of their own, with charts.

use std::collections::BTreeMap;
use std::fmt::Write;

use plotters::prelude::SeriesLabelPosition;

use super::drawing::{self, Drawing, Line};
use super::judged::{Judged, number};
use super::machine;
use super::page::bars_table;
use crate::pages::Part;
use crate::shell::run;
use crate::{Result, target};

/// Where the tables stand.
const PART: Part = Part {
    page: "BENCHMARKS.md",
    begin: "<!-- growth: begin (written by `cargo xtask bench --growth`, do not edit) -->",
    end: "<!-- growth: end -->",
};

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
    title: &'static str,
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
        title: "Queue pairs that are active in turn, beside one",
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
        title: "Processes that are written to in turn, beside one",
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
        title: "Regions of 1 TiB together, written to in turn, beside one",
        x: "regions",
        figures: &[
            ("write_ns", "WRITE 8 B, ns", true),
            ("register_us", "to allocate and register one, us", true),
            ("deregister_us", "to deregister and free one, us", true),
        ],
    },
];

/// Readings by range, number and figure.
type Readings = BTreeMap<(&'static str, u64, &'static str), Vec<f64>>;

/// Measures, and rewrites the part of the page and its charts.
pub(crate) fn report() -> Result {
    let program = build()?;
    let mut readings = Readings::new();
    for round in 1..=ROUNDS {
        for range in &RANGES {
            for &count in range.over {
                println!("round {round} of {ROUNDS}: {} {count}", range.what);
                let said = range.run(&program, count)?;
                for (figure, value) in range.figures(&said) {
                    readings.entry((range.what, count, figure)).or_default().push(value);
                }
            }
        }
    }
    for range in &RANGES {
        let lines = range.lines(&readings);
        drawing::write(&range.name(), &range.drawing(), &lines)?;
    }
    PART.write(&page(&readings, &machine::describe()))?;
    println!("{} is rewritten", PART.page);
    Ok(())
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

    fn drawing(&self) -> Drawing {
        let legend = SeriesLabelPosition::LowerLeft;
        Drawing { title: self.title, x: self.x, y: "times that of one", binary: false, legend }
    }

    /// The figures that are drawn, each beside its first.
    fn lines(&self, readings: &Readings) -> Vec<Line<'_>> {
        let drawn = self.figures.iter().filter(|(_, _, is_drawn)| *is_drawn);
        drawn
            .map(|(figure, name, _)| {
                let at = |count: u64| median(readings.get(&(self.what, count, figure))?);
                let first = self.over.first().and_then(|&count| at(count));
                let point = |&count: &u64| Some((count as f64, at(count)? / first?));
                (
                    name.split(',').next().unwrap_or(name),
                    self.over.iter().filter_map(point).collect(),
                )
            })
            .collect()
    }

    fn table(&self, readings: &Readings) -> String {
        let mut table = format!("| {} |", self.x);
        for (_, name, _) in self.figures {
            let _ = write!(table, " {name} |");
        }
        let _ = writeln!(table, "\n|--:|{}", "--:|".repeat(self.figures.len()));
        for &count in self.over {
            let _ = write!(table, "| {count} |");
            for (figure, _, _) in self.figures {
                let value = readings.get(&(self.what, count, figure));
                let value = value.and_then(|readings| median(readings));
                let _ = write!(table, " {} |", number(value));
            }
            table.push('\n');
        }
        table
    }
}

/// What many active queue pairs reach, of each kind of message that is drawn.
fn judge(readings: &Readings) -> Vec<Judged> {
    let judge = |(figure, name, what): (&'static str, &str, &str)| {
        let at = |count: u64| median(readings.get(&("qps", count, figure))?);
        let (bar, what) =
            (format!("at least {BAR} x one"), format!("{MANY} active queue pairs, {what}"));
        let Some((one, many)) = at(1).zip(at(MANY)) else {
            return Judged { what, bar, measured: "-".into(), verdict: "not measured".into() };
        };
        let (ratio, verdict) = (many / one, if many >= BAR * one { "reached" } else { "short" });
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

/// The part of the page.
fn page(readings: &Readings, machine: &str) -> String {
    let mut page = format!("Machine: {machine}. Medians of {ROUNDS} rounds.\n\n");
    page += &bars_table(&judge(readings));
    for range in &RANGES {
        let file = drawing::file(&range.name());
        let _ = write!(page, "\n![{}]({file})\n\n{}", range.title, range.table(readings));
    }
    page
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
        let mut readings = Readings::new();
        for (count, values) in [(1, [7.0, 9.0, 8.0]), (10_000, [6.0, 1.0, 9.0])] {
            readings.insert(("qps", count, "large_gbytes_per_s"), values.to_vec());
        }
        let page = page(&readings, "a machine");
        let row = "WRITE 64 KiB | at least 0.7 x one | 6.00 GB/s, one 8.00: 0.75 x | reached |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("WRITE 64 B | at least 0.7 x one | - | not measured |"), "{page}");
        assert!(page.contains("| 10000 | 6.00 |  |  |  |  |"), "{page}");
        assert!(page.contains("charts/growth-regions.svg"), "{page}");
        let lines = range.lines(&readings);
        assert_eq!(lines[0], ("WRITE 64 KiB", vec![(1.0, 1.0), (10_000.0, 0.75)]));
        assert!(range.drawing().draw(&lines).unwrap().unwrap().contains("queue pairs"));
    }
}
