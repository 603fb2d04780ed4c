//! What goes on within one host: `cargo xtask bench --one-host`, and a part of every whole run.
//!
//! What is measured, and the bars, are in `programs::one_host`; here is the part of BENCHMARKS.md,
//! and what is kept of a measurement.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::programs::{Programs, Setup, one_host};
use super::{machine, read};
use crate::pages::Part;
use crate::{Result, root};

/// Where the tables stand.
const PART: Part = Part {
    page: "BENCHMARKS.md",
    begin: "<!-- one host: begin (written by `cargo xtask bench --one-host`, do not edit) -->",
    end: "<!-- one host: end -->",
};

/// The JSON of the last measurement of this part alone, relative to the root.
const KEPT: &str = "target/bench-one-host.json";

/// What is kept of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    machine: String,
    programs: Programs,
}

impl Report {
    /// Reads what was kept, and checks what types cannot say.
    fn parse(json: &str) -> Result<Self> {
        Programs::read_kept(json, |report: &Self| &report.programs)
    }
}

/// Measures this part alone (or reads the JSON of an earlier measurement), prints it, and rewrites
/// it in the page.
pub(crate) fn report(from: Option<&Path>, quick: bool, rounds: Option<usize>) -> Result {
    let json = match from {
        Some(path) => read(path)?,
        None => measure(quick, rounds)?,
    };
    let report = Report::parse(&json)?;
    println!("\n{}", one_host::tables(&report.programs));
    write(&report.machine, &report.programs)?;
    println!("{} is rewritten", PART.page);
    Ok(())
}

/// Measures, and keeps the JSON.
fn measure(quick: bool, rounds: Option<usize>) -> Result<String> {
    let setup = Setup::prepare(quick)?;
    let machine = machine::describe();
    let report = Report { machine, programs: one_host::measure(&setup, rounds) };
    let json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
    std::fs::write(root().join(KEPT), &json).map_err(|e| format!("{KEPT}: {e}"))?;
    println!("the readings are kept in {KEPT}; `--one-host --from {KEPT}` reads them again");
    Ok(json)
}

/// Rewrites the part of the page.
pub(super) fn write(machine: &str, programs: &Programs) -> Result {
    PART.write(&format!("Machine: {machine}. {}", one_host::tables(programs))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = r#"{"machine": "a machine", "programs": {"cores": "any", "series": [
            {"name": "ib_send_bw 8 B, lists of 16", "command": "ib_send_bw", "unit": "M msg/s",
             "readings": [9.0, 11.0, 10.5], "failure": null}]}}"#;
        let report = Report::parse(kept).unwrap();
        let page = one_host::tables(&report.programs);
        assert!(page.contains("10.5 M msg/s, 9.00 to 11.0 |  | reached |"), "{page}");
        for (from, to) in [("9.0", "-9.0"), ("\"machine\"", "\"engine\"")] {
            assert!(Report::parse(&kept.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn the_page_has_the_part() {
        assert!(PART.read().is_ok());
    }
}
