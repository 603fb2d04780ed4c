//! Runs every task once per round, so that a disturbance of the machine hits a measurement and its
//! baseline alike and medians over rounds are not fooled by it.

use super::end::{Extent, Reading};
use super::opposite::{Opposite, Session};
use super::side::measure;
use super::verbs::Verbs;
use crate::failure::{Failure, Outcome};
use crate::spec::Task;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The readings of one task, one per round, in the order of rounds.
#[derive(Debug)]
pub(crate) struct Series {
    /// What was measured.
    pub(crate) task: Task,
    /// What came out; shorter than the number of rounds when the task failed.
    pub(crate) readings: Vec<Reading>,
    /// Why it was given up, if it was.
    pub(crate) failure: Option<Failure>,
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Most rounds.
    pub(crate) rounds: u32,
    /// Each measurement.
    pub(crate) extent: Extent,
    /// No round but the first is begun that would end later than this after the start.
    pub(crate) budget: Duration,
}

/// Measures `tasks` in rounds, as `plan` says. A task that fails is not tried again; its failure is
/// kept with its series, and `opposite` gives a fresh session for the tasks that follow.
pub(crate) fn run(
    opposite: &Opposite,
    session: Session,
    verbs: &Verbs,
    tasks: &[Task],
    plan: Plan,
) -> Outcome<Vec<Series>> {
    let Plan { rounds, extent, budget } = plan;
    let began = Instant::now();
    let mut series: Vec<Series> =
        tasks.iter().map(|&task| Series { task, readings: Vec::new(), failure: None }).collect();
    let bar = progress_bar(u64::from(rounds) * tasks.len() as u64);
    let mut session = Some(session);
    for round in 1..=rounds {
        if round > 1 && began.elapsed() * round / (round - 1) > budget {
            break;
        }
        for entry in &mut series {
            bar.set_message(format!("round {round} of {rounds}: {}", entry.task));
            if entry.failure.is_none() {
                measure_one(opposite, verbs, &mut session, entry, extent)?;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if let Some(session) = session {
        session.close();
    }
    Ok(series)
}

/// Measures one task; an error means that the other side cannot be reached at all.
fn measure_one(
    opposite: &Opposite,
    verbs: &Verbs,
    session: &mut Option<Session>,
    entry: &mut Series,
    extent: Extent,
) -> Outcome<()> {
    let mut current = match session.take() {
        Some(session) => session,
        None => opposite.open()?,
    };
    match measure(current.control(), verbs, &entry.task, extent) {
        Ok(reading) => {
            entry.readings.push(reading);
            *session = Some(current);
        }
        Err(failure) => entry.failure = Some(current.explain(failure)),
    }
    Ok(())
}

/// A bar on standard error; invisible unless that is a terminal. It is drawn between measurements
/// only: no thread ticks while one runs.
fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4}  {wide_msg}");
    // The template is a constant; if it were wrong the default style would do.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
