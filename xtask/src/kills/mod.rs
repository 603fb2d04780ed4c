//! `cargo xtask kills`: pairs of unmodified programs of one host, one of which is killed at a
//! random moment.
//!
//! The survivor must end, or be told, within [`trial::BOUND`] if it was connected. Nothing but a
//! trial's number and the seed decides which program, which way, which side and which moment, so a
//! failure is repeated with `--seed S --first N --count 1` (the machine's timing apart).
//!
//! | file | owns |
//! |---|---|
//! | `programs` | the list of programs and the ways that their bytes take |
//! | `trial` | one kill: two processes in a namespace of their own, and the verdict |

mod programs;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::{Done, none_of};
use crate::{Result, conformance, root, tools};
use programs::{PROGRAMS, Program, Way};
use trial::{Ended, Plan, Side, Verdict};

/// The folder of the survivors' output, relative to the root.
const FOLDER: &str = "target/kills";

/// The kills of CI's share: two of each row and way, on average.
const CI_COUNT: u64 = 60;

/// The seed of CI's share, so that its trials are the same in each run.
const CI_SEED: u64 = 15;

/// A program is killed this long after its client's start, milliseconds at most.
const LATEST_MS: u64 = 2500;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many programs to kill
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Decides what is killed when; drawn from the clock and printed if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// The number of the first trial
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Trials that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Only programs whose line has this in it, as the table prints it (repeatable)
    #[arg(long, value_name = "FILTER")]
    only: Vec<String>,
}

/// The share of CI: a step of `cargo xtask test`.
pub(crate) fn check() -> Result<Done> {
    if !conformance::is_root()? {
        return Ok(Done::Skipped("network namespaces need root".into()));
    }
    let seed = Some(CI_SEED);
    kills(&Arguments { count: CI_COUNT, seed, first: 0, jobs: 2, only: Vec::new() })?;
    Ok(Done::Passed)
}

/// `cargo xtask kills`.
pub(crate) fn kills(arguments: &Arguments) -> Result {
    if !conformance::is_root()? {
        return Err("network namespaces need root; run this as root".into());
    }
    let rows: Vec<(&Program, Way)> = rows(&arguments.only);
    if rows.is_empty() {
        return Err("no program has that in its line; the table of a run prints them".into());
    }
    tools::system_packages()?;
    let vernic = conformance::build()?;
    fs::create_dir_all(root().join(FOLDER)).map_err(|e| format!("{FOLDER}: {e}"))?;
    conformance::remove_left_over()?;
    let seed = arguments.seed.unwrap_or_else(clock_seed);
    println!("seed {seed}, {} kills", arguments.count);
    let shared_before = shared_memory_files();
    let ended = run_all(arguments, seed, &rows, &vernic)?;
    let mut findings: Vec<String> = report(&ended);
    let shared_after = shared_memory_files();
    if shared_after > shared_before {
        let more = shared_after - shared_before;
        findings.push(format!("/dev/shm has {more} entries more than before the kills"));
    }
    findings.iter().for_each(|finding| println!("{finding}"));
    let failed = ended.iter().filter(|(_, ended)| ended.verdict.is_failure()).count();
    println!("totals: kills={} failed={failed} seed={seed}", ended.len());
    none_of(&findings)
}

/// The programs and ways to choose from.
fn rows(only: &[String]) -> Vec<(&'static Program, Way)> {
    let all =
        PROGRAMS.iter().flat_map(|program| program.ways.iter().map(move |way| (program, *way)));
    let wanted =
        |line: &str| only.is_empty() || only.iter().any(|filter| line.contains(filter.as_str()));
    all.filter(|(program, way)| wanted(&line(program, *way))).collect()
}

/// How the table names a row.
fn line(program: &Program, way: Way) -> String {
    format!("{} {} by {}", program.name, program.options, way.name())
}

/// Runs the trials, some at a time, and returns their ends in the order of their numbers.
fn run_all(
    arguments: &Arguments,
    seed: u64,
    rows: &[(&'static Program, Way)],
    vernic: &Path,
) -> Result<Vec<(Plan, Ended)>> {
    let next = AtomicU64::new(arguments.first);
    let end = arguments.first + arguments.count;
    let results = Mutex::new(Vec::new());
    let one_job = || -> Result {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                return Ok(());
            }
            let plan = draw(seed, number, rows);
            let ended = trial::run(&plan, vernic)?;
            if ended.verdict.is_failure() {
                println!("trial {number}: {}", describe(&plan, &ended));
            }
            results.lock().expect("no job panics").push((plan, ended));
        }
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs.max(1)).map(|_| scope.spawn(one_job)).collect();
        jobs.into_iter().try_for_each(|job| job.join().map_err(|_| "a job panicked".to_owned())?)
    })?;
    let mut results = results.into_inner().expect("no job panics");
    results.sort_by_key(|(plan, _)| plan.number);
    Ok(results)
}

/// A trial, by seed and number alone.
fn draw(seed: u64, number: u64, rows: &[(&'static Program, Way)]) -> Plan {
    let mut state = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = |bound: u64| mix(&mut state) % bound;
    let (program, way) = rows[below(rows.len() as u64) as usize];
    let victim = if below(2) == 0 { Side::Server } else { Side::Client };
    Plan { number, program, way, victim, delay: Duration::from_millis(below(LATEST_MS)) }
}

/// The next number of a SplitMix64 generator.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seed that differs from run to run.
fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64 % 1_000_000)
}

/// Entries of /dev/shm: a process that was killed must leave none.
fn shared_memory_files() -> usize {
    fs::read_dir("/dev/shm").map_or(0, Iterator::count)
}

fn describe(plan: &Plan, ended: &Ended) -> String {
    format!(
        "{}, {} killed after {} ms: the {} {}\n  its output: {}",
        line(plan.program, plan.way),
        plan.victim.name(),
        plan.delay.as_millis(),
        plan.victim.other().name(),
        ended.verdict.sentence(),
        ended.file.display(),
    )
}

/// Prints a row for each program, way and victim, and returns the failures.
fn report(trials: &[(Plan, Ended)]) -> Vec<String> {
    let mut table: BTreeMap<(String, &str), Vec<&Ended>> = BTreeMap::new();
    for (plan, ended) in trials {
        table.entry((line(plan.program, plan.way), plan.victim.name())).or_default().push(ended);
    }
    println!(
        "{:<46} {:<7} {:>5} {:>6} {:>5} {:>13} {:>7} {:>7} {:>9}",
        "program",
        "killed",
        "kills",
        "ended",
        "told",
        "not connected",
        "hung",
        "crashed",
        "longest s"
    );
    for ((line, victim), ended) in &table {
        let count =
            |verdict: fn(&Verdict) -> bool| ended.iter().filter(|e| verdict(&e.verdict)).count();
        let longest = ended.iter().filter_map(|e| e.verdict.time()).max().unwrap_or_default();
        println!(
            "{line:<46} {victim:<7} {:>5} {:>6} {:>5} {:>13} {:>7} {:>7} {:>9.1}",
            ended.len(),
            count(|v| matches!(v, Verdict::Ended(_))),
            count(|v| matches!(v, Verdict::Told)),
            count(|v| matches!(v, Verdict::NotConnected)),
            count(|v| matches!(v, Verdict::Hung)),
            count(|v| matches!(v, Verdict::Crashed(_))),
            longest.as_secs_f64(),
        );
    }
    let failed = trials.iter().filter(|(_, ended)| ended.verdict.is_failure());
    failed
        .map(|(plan, ended)| format!("trial {}: {}", plan.number, describe(plan, ended)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_drawn_by_seed_and_number_alone() {
        let rows = rows(&[]);
        let plans = |seed| (0..500).map(|n| draw(seed, n, &rows)).collect::<Vec<_>>();
        assert_eq!(plans(7), plans(7));
        assert_ne!(plans(7), plans(8));
        let plans = plans(7);
        for (program, way) in rows {
            for victim in [Side::Server, Side::Client] {
                let same = |p: &&Plan| {
                    (p.program.name, p.program.options, p.way, p.victim)
                        == (program.name, program.options, way, victim)
                };
                assert!(plans.iter().any(|p| same(&p)), "{} {}", line(program, way), victim.name());
            }
        }
    }
}
