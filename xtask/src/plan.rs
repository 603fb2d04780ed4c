//! A list of steps run in order, each with a title and a time; totals at the end.
//!
//! A failed step does not stop the steps that do not need it: one run shows all that is wrong.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::Result;

/// How a step that did not fail ended.
pub(crate) enum Done {
    /// It ran and passed.
    Passed,
    /// It could not run on this machine, for this reason; counted neither as passed nor as failed.
    Skipped(String),
}

/// One check, or the installation of one tool.
pub(crate) struct Step {
    /// The word to name it by in `--only`, `--skip` and `needs`.
    pub(crate) name: &'static str,
    /// What it does, in a few words.
    pub(crate) title: String,
    /// Steps that must not have failed before this one, by name.
    pub(crate) needs: &'static [&'static str],
    /// Does it.
    pub(crate) action: Box<dyn Fn() -> Result<Done>>,
}

impl Step {
    /// A step that passes or fails.
    pub(crate) fn new(
        name: &'static str,
        title: impl Into<String>,
        needs: &'static [&'static str],
        action: impl Fn() -> Result + 'static,
    ) -> Self {
        Self::may_skip(name, title, needs, move || action().map(|()| Done::Passed))
    }

    /// A step that some machines cannot run.
    pub(crate) fn may_skip(
        name: &'static str,
        title: impl Into<String>,
        needs: &'static [&'static str],
        action: impl Fn() -> Result<Done> + 'static,
    ) -> Self {
        Self { name, title: title.into(), needs, action: Box::new(action) }
    }
}

/// Keeps the steps named in `only` (all, if empty) and what they need, less those in `skip`.
pub(crate) fn select(all: Vec<Step>, only: &[String], skip: &[String]) -> Result<Vec<Step>> {
    if let Some(stranger) =
        only.iter().chain(skip).find(|name| all.iter().all(|step| step.name != *name))
    {
        return Err(format!("no step is called `{stranger}`; `--list` prints the names"));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    let needed = |name: &str| all.iter().any(|s| wanted(s.name) && s.needs.contains(&name));
    let keep: Vec<bool> = all
        .iter()
        .map(|s| (wanted(s.name) || needed(s.name)) && !skip.iter().any(|x| x == s.name))
        .collect();
    Ok(all.into_iter().zip(keep).filter_map(|(step, keep)| keep.then_some(step)).collect())
}

/// What a step that found something failed with: the findings by name, so that the totals, which
/// are the last lines of a long log, say what it was.
///
/// # Errors
/// If there is any finding.
pub(crate) fn none_of(findings: &[String]) -> Result {
    const NAMED: usize = 8;
    if findings.is_empty() {
        return Ok(());
    }
    let first = |finding: &String| finding.lines().next().unwrap_or_default().to_owned();
    let mut text = format!("{} findings, listed above:", findings.len());
    for finding in findings.iter().take(NAMED).map(first) {
        text.push_str("\n            ");
        text.push_str(&finding);
    }
    if findings.len() > NAMED {
        text.push_str("\n            ...");
    }
    Err(text)
}

struct Ran<'a> {
    step: &'a Step,
    outcome: Result<Done>,
    time: Duration,
}

/// Runs every step and prints the totals; the last line is `N passed, N failed`.
pub(crate) fn run(steps: &[Step]) -> ExitCode {
    let mut ran: Vec<Ran<'_>> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("\n==> [{}/{}] {}: {}", index + 1, steps.len(), step.name, step.title);
        let start = Instant::now();
        let outcome = match failed_need(step, &ran) {
            Some(need) => Err(format!("not run, because `{need}` failed")),
            None => (step.action)(),
        };
        let time = start.elapsed();
        println!("<== {}: {} ({:.1} s)", step.name, verdict(&outcome), time.as_secs_f64());
        ran.push(Ran { step, outcome, time });
    }
    totals(&ran)
}

fn failed_need(step: &Step, ran: &[Ran<'_>]) -> Option<&'static str> {
    let failed = |name: &str| ran.iter().any(|r| r.step.name == name && r.outcome.is_err());
    step.needs.iter().copied().find(|need| failed(need))
}

fn verdict(outcome: &Result<Done>) -> String {
    match outcome {
        Ok(Done::Passed) => "ok".into(),
        Ok(Done::Skipped(why)) => format!("SKIPPED: {why}"),
        Err(why) => format!("FAILED: {why}"),
    }
}

fn totals(ran: &[Ran<'_>]) -> ExitCode {
    let total: Duration = ran.iter().map(|r| r.time).sum();
    println!("\nWhere the time went ({:.0} s in all):", total.as_secs_f64());
    for Ran { step, outcome, time } in ran {
        println!("{:>8.1} s  {:<16} {}", time.as_secs_f64(), step.name, verdict(outcome));
    }
    let passed = ran.iter().filter(|r| matches!(r.outcome, Ok(Done::Passed))).count();
    let failed = ran.iter().filter(|r| r.outcome.is_err()).count();
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_named_by_their_first_lines_up_to_eight() {
        assert_eq!(none_of(&[]), Ok(()));
        let text = none_of(&["a: b\nmore".into()]).unwrap_err();
        assert!(text.starts_with("1 findings") && text.ends_with("a: b"), "{text}");
        let many: Vec<String> = (0..9).map(|n| format!("case {n}")).collect();
        let text = none_of(&many).unwrap_err();
        assert!(text.contains("case 7") && !text.contains("case 8"), "{text}");
    }

    fn plan() -> Vec<Step> {
        vec![
            Step::new("tool", "", &[], || Err("no network".into())),
            Step::new("use", "", &["tool"], || panic!("must not run")),
            Step::new("other", "", &[], || Ok(())),
        ]
    }

    #[test]
    fn a_step_whose_need_failed_fails_without_running() {
        assert_eq!(run(&plan()), ExitCode::FAILURE);
    }

    #[test]
    fn a_chosen_step_brings_what_it_needs() {
        let chosen = select(plan(), &["use".into()], &[]).unwrap();
        assert_eq!(chosen.iter().map(|s| s.name).collect::<Vec<_>>(), ["tool", "use"]);
    }

    #[test]
    fn a_step_that_does_not_exist_is_an_error_and_not_an_empty_run() {
        assert!(select(plan(), &["fuz".into()], &[]).is_err());
        assert!(select(plan(), &[], &["fuz".into()]).is_err());
    }

    #[test]
    fn skipped_steps_do_not_fail_a_run() {
        let skip = Step::may_skip("s", "", &[], || Ok(Done::Skipped("no Miri".into())));
        assert_eq!(run(&[skip]), ExitCode::SUCCESS);
    }
}
