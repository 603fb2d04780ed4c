//! Vernic beside the kernel's own drivers, both ends of everything inside one guest:
//! `cargo xtask bench --guest`.
//!
//! The guest is that of `cargo xtask kernel`, an emulated machine with our release build carried
//! in. Its figures are those of a slow machine; what tells something are the ratios within a round,
//! in which every pair of ends runs once, one after the other.
//!
//! | file | owns |
//! |---|---|
//! | `table` | what is measured, between which ends, and the bars |
//! | `field` | the guest, the commands in it, and one run of them |
//! | `page` | the tables, and the chart |

mod field;
mod page;
mod table;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::drawing::Shown;
use super::judged::Judged;
use super::programs::{Programs, Series};
use super::{machine, readings};
use crate::{Result, kernel};
use field::Field;
use table::{Ends, WORKS, Work};

/// The name of the readings.
const NAME: &str = "guest";

/// Rounds: an odd number, so that a median is a reading.
const ROUNDS: usize = 5;
/// Rounds of a quick run.
const QUICK_ROUNDS: usize = 3;

/// What is kept of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// The machine that emulates.
    pub(super) machine: String,
    /// The guest: its kernel, its processors, how they are emulated.
    pub(super) guest: String,
    /// A series for each work between each ends.
    pub(super) programs: Programs,
}

impl Report {
    /// The measurement that is kept.
    pub(super) fn kept() -> Result<Self> {
        Self::parse(&readings::kept(NAME)?)
    }

    /// Reads what was kept, and checks what types cannot say.
    fn parse(json: &str) -> Result<Self> {
        Programs::read_kept(json, |report: &Self| &report.programs)
    }

    /// Every bar.
    pub(super) fn judge(&self) -> Vec<Judged> {
        page::judge(self)
    }

    /// What was measured beside each driver.
    pub(super) fn tables(&self) -> String {
        page::tables(self)
    }

    /// The chart in a page.
    pub(super) fn chart(&self) -> Shown {
        page::shown(self)
    }

    /// Draws the chart.
    pub(super) fn draw(&self) -> Result {
        page::draw(self)
    }
}

/// Measures (or reads the JSON of an earlier measurement), and keeps it.
pub(super) fn take(from: Option<&Path>, quick: bool) -> Result {
    let report = match from {
        Some(path) => Report::parse(&readings::from(path)?)?,
        None => measure(quick)?,
    };
    let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
    readings::keep(NAME, &json)
}

/// Boots the guest, and measures in rounds.
fn measure(quick: bool) -> Result<Report> {
    let image = kernel::prepare_image()?;
    let mut field = Field::new(&image)?;
    let rounds = if quick { QUICK_ROUNDS } else { ROUNDS };
    let pairs: Vec<(&Work, Ends)> = WORKS
        .iter()
        .flat_map(|work| Ends::ALL.map(|ends| (work, ends)))
        .filter(|(work, ends)| work.is_between(*ends))
        .collect();
    let mut series: Vec<Series> =
        pairs.iter().map(|(work, ends)| begin(work, *ends, &field)).collect();
    for round in 1..=rounds {
        // Every other round backwards, so that nobody always comes after the same one.
        let order: Vec<usize> = match round % 2 {
            1 => (0..pairs.len()).collect(),
            _ => (0..pairs.len()).rev().collect(),
        };
        for place in order {
            let ((work, ends), series) = (pairs[place], &mut series[place]);
            if series.failure.is_some() {
                continue;
            }
            print!("round {round} of {rounds}: {}: ", series.name);
            match field.read(work, ends) {
                Ok(reading) => {
                    println!("{reading:.4} {}", series.unit);
                    series.readings.push(reading);
                }
                Err(why) => {
                    println!("{why}");
                    field.must_answer()?;
                    series.failure = Some(why);
                }
            }
        }
    }
    let programs = Programs { cores: field.cores(), series, curves: Vec::new() };
    Ok(Report { machine: machine::describe(), guest: field.describe()?, programs })
}

/// The series without readings.
fn begin(work: &Work, ends: Ends, field: &Field) -> Series {
    Series {
        name: work.series(ends),
        command: field.command(work, ends),
        unit: work.unit().into(),
        readings: Vec::new(),
        failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with these readings, the rest not measured.
    pub(super) fn report(readings: &[(&str, &[f64])]) -> Report {
        let series = readings.iter().map(|(name, readings)| Series {
            name: (*name).into(),
            command: format!("command of {name}"),
            unit: if name.contains("lat") { "us" } else { "GB/s" }.into(),
            readings: readings.to_vec(),
            failure: readings.is_empty().then(|| "no end | in time".into()),
        });
        let programs =
            Programs { cores: "any".into(), series: series.collect(), curves: Vec::new() };
        Report { machine: "a machine".into(), guest: "a kernel".into(), programs }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = report(&[("ib_write_bw 1 MiB, rxe", &[0.25, 0.5, 0.75])]);
        let kept = serde_json::to_string_pretty(&kept).unwrap();
        let again = Report::parse(&kept).unwrap();
        assert_eq!(again.programs.median("ib_write_bw 1 MiB, rxe"), Some(0.5));
        assert_eq!(again.machine, "a machine");
        for (from, to) in [("0.25", "-0.25"), ("0.25", "\"much\""), ("\"guest\"", "\"host\"")] {
            assert!(Report::parse(&kept.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
