//! What goes on within one host: `cargo xtask bench --one-host`, and a part of every whole run.
//!
//! What is measured, and the bars, are in `programs::one_host`; here is what is kept of it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::judged::bars_table;
use super::programs::{Programs, Setup, one_host};
use super::{machine, readings};
use crate::Result;

/// The name of its readings.
const NAME: &str = "one-host";

/// What is kept of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    pub(super) machine: String,
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
}

/// Measures this part alone (or reads the JSON of an earlier measurement), prints its bars, and
/// keeps it.
pub(super) fn take(from: Option<&Path>, quick: bool, rounds: Option<usize>) -> Result {
    let report = match from {
        Some(path) => Report::parse(&readings::from(path)?)?,
        None => {
            let setup = Setup::prepare(quick)?;
            let machine = machine::describe();
            Report { machine, programs: one_host::measure(&setup, rounds) }
        }
    };
    println!("\n{}", bars_table(&one_host::judge(&report.programs)));
    keep(&report)
}

/// Keeps the JSON of a measurement.
pub(super) fn keep(report: &Report) -> Result {
    let json = serde_json::to_string_pretty(report).map_err(|e| e.to_string())?;
    readings::keep(NAME, &json)
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
        let table = bars_table(&one_host::judge(&report.programs));
        assert!(table.contains("10.5 M msg/s, 9.00 to 11.0 | reached |"), "{table}");
        for (from, to) in [("9.0", "-9.0"), ("\"machine\"", "\"engine\"")] {
            assert!(Report::parse(&kept.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
