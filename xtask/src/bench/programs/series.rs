//! The readings of all rounds, as they are kept in the JSON of a run.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::chart;
use super::median::median;
use super::setup::{Setup, lacking};
use super::sweep::Curve;
use super::work::{Entry, Figure};
use crate::Result;

/// What `cargo xtask bench` adds to the JSON of `vernic bench`, under `programs`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Programs {
    /// On which cores the ends ran.
    pub(crate) cores: String,
    pub(crate) series: Vec<Series>,
    /// The lines of the charts; none in runs from before there were charts.
    #[serde(default)]
    pub(crate) curves: Vec<Curve>,
}

/// The readings of one command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    /// Which entry of the table.
    pub(crate) name: String,
    /// The client's command, as one would type it.
    pub(crate) command: String,
    /// Unit of the readings.
    pub(crate) unit: String,
    /// One per round, in the order of rounds; fewer if it failed.
    pub(crate) readings: Vec<f64>,
    /// Why it was given up, if it was.
    pub(crate) failure: Option<String>,
}

impl Programs {
    /// Reads a measurement that was kept, and checks of its programs what types cannot say.
    pub(crate) fn read_kept<T: DeserializeOwned>(
        json: &str,
        programs: impl Fn(&T) -> &Self,
    ) -> Result<T> {
        let kept: T = serde_json::from_str(json).map_err(|e| format!("not a report: {e}"))?;
        programs(&kept).check()?;
        Ok(kept)
    }

    /// Checks what types cannot say.
    pub(crate) fn check(&self) -> Result {
        for series in &self.series {
            // Nothing is what a share may be.
            let share = series.unit == Figure::PassiveShare.unit();
            let is_sound = |r: &f64| r.is_finite() && (*r > 0.0 || share && *r == 0.0);
            let sound = series.readings.iter().all(is_sound);
            if !sound || (series.readings.is_empty() && series.failure.is_none()) {
                return Err(format!("{}: no reading, or one that is not above zero", series.name));
            }
        }
        self.curves.iter().try_for_each(Curve::check)
    }

    /// Draws the charts.
    pub(crate) fn draw(&self) -> Result {
        chart::write(&self.curves)
    }

    /// How many rounds there were.
    pub(in crate::bench) fn rounds(&self) -> usize {
        self.series.iter().map(|series| series.readings.len()).max().unwrap_or(0)
    }

    fn find(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// The unit of an entry; nothing if it was not measured.
    pub(in crate::bench) fn unit(&self, name: &str) -> &str {
        self.find(name).map_or("", |series| &series.unit)
    }

    /// Why an entry was not measured, or not in every round.
    pub(in crate::bench) fn failure(&self, name: &str) -> Option<&str> {
        self.find(name)?.failure.as_deref()
    }

    /// The readings of an entry; empty if it was not measured.
    fn readings(&self, name: &str) -> &[f64] {
        self.find(name).map_or(&[], |series| &series.readings)
    }

    /// The median over the rounds.
    pub(in crate::bench) fn median(&self, name: &str) -> Option<f64> {
        median(self.readings(name).to_vec())
    }

    /// The lowest and the highest of all rounds.
    pub(in crate::bench) fn extremes(&self, name: &str) -> [Option<f64>; 2] {
        let extreme = |pick: fn(f64, f64) -> f64| self.readings(name).iter().copied().reduce(pick);
        [extreme(f64::min), extreme(f64::max)]
    }

    /// The median of the ratios that the rounds gave: `name` by `reference`. A disturbance that
    /// lasts a round hits both.
    pub(in crate::bench) fn ratio(&self, name: &str, reference: &str) -> Option<f64> {
        let rounds = self.readings(name).iter().zip(self.readings(reference));
        median(rounds.map(|(a, b)| a / b).collect())
    }
}

impl Entry {
    /// The series without readings, and with what is missing here.
    pub(super) fn begin(&self, setup: &Setup) -> Series {
        let (command, failure) = match self.active(setup, self.messages(setup)) {
            Ok(line) => (line.map_or(String::new(), |line| line.text()), None),
            Err(why) => (String::new(), Some(why)),
        };
        let failure = failure.or_else(|| self.program().and_then(lacking));
        Series {
            name: self.name.into(),
            command: setup.without_folders(&command),
            unit: self.figure.unit().into(),
            readings: Vec::new(),
            failure,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn series(name: &str, readings: &[f64]) -> Series {
        Series {
            name: name.into(),
            command: "a command".into(),
            unit: "GB/s".into(),
            readings: readings.to_vec(),
            failure: readings.is_empty().then(|| "not installed".into()),
        }
    }

    pub(crate) fn programs(list: &[(&str, &[f64])]) -> Programs {
        let series = list.iter().map(|(name, readings)| series(name, readings)).collect();
        Programs { cores: "one each".into(), series, curves: Vec::new() }
    }

    #[test]
    fn a_ratio_compares_within_each_round() {
        let programs = programs(&[("a", &[2.0, 30.0, 6.0]), ("b", &[1.0, 10.0, 3.0]), ("c", &[])]);
        assert_eq!(programs.ratio("a", "b"), Some(2.0));
        assert_eq!(programs.median("a"), Some(6.0));
        assert_eq!(programs.ratio("a", "c"), None);
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn a_series_without_readings_must_say_why() {
        let mut programs = programs(&[("a", &[1.0]), ("c", &[])]);
        programs.check().unwrap();
        programs.series[1].failure = None;
        assert!(programs.check().is_err());
        programs.series.pop();
        programs.series[0].readings[0] = 0.0;
        assert!(programs.check().is_err());
        programs.series[0].unit = Figure::PassiveShare.unit().into();
        assert_eq!(programs.check(), Ok(()));
    }
}
