//! `cargo xtask conformance`: Debian's verbs programs, unmodified, and rdma-core's own Python
//! tests.
//!
//! The judges are written by others and linked against others' libraries; here is only how they are
//! started, and what must come out. Everything runs through `vernic run`, in network namespaces
//! that are made for it and removed.
//!
//! | file | owns |
//! |---|---|
//! | `cases` | the list of programs, options and places |
//! | `network` | the namespaces |
//! | `fabric` | the InfiniBand fabric |
//! | `pair` | one case: two processes, time limit, output |
//! | `judge` | what output must have |
//! | `suite` | rdma-core's Python tests |
//! | `skips` | lists of what is expected not to pass, with reasons |
//! | `page` | the generated tables of conformance/README.md |

mod cases;
mod fabric;
mod judge;
mod network;
mod page;
mod pair;
mod skips;
mod suite;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::plan::{Done, none_of};
use crate::shell::run;
use crate::{Result, root, tools};
use cases::Case;
use network::{Network, Place};
use pair::FOLDER;

pub(crate) use cases::{Output, Ready};
pub(crate) use judge::{ended_by_loss, judge};
pub(crate) use network::{PREFIX, gid_index, remove_left_over};
pub(crate) use page::{check as check_page, write as write_page};
pub(crate) use pair::{PORT, is_open, is_ready};
pub(crate) use skips::{Skips, matches};

/// Cases that are expected not to pass, relative to the root.
const PROGRAMS: &str = "conformance/programs.skip";

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only cases whose name has this in it (`*` stands for anything), or the Python tests:
    /// `pyverbs`, those over iWARP alone `pyverbs-iwarp` (repeatable)
    #[arg(long, value_name = "FILTER")]
    only: Vec<String>,
    /// All cases, those that are skipped too, and not only the share that CI runs
    #[arg(long)]
    full: bool,
    /// Print the names of the cases and stop
    #[arg(long)]
    list: bool,
}

/// The share of CI: a step of `cargo xtask test`.
pub(crate) fn check() -> Result<Done> {
    if !is_root()? {
        return Ok(Done::Skipped("network namespaces need root".into()));
    }
    conformance(&Arguments { only: Vec::new(), full: false, list: false })?;
    Ok(Done::Passed)
}

/// `cargo xtask conformance`.
pub(crate) fn conformance(arguments: &Arguments) -> Result {
    let wanted = |name: &str| {
        let matches = |filter: &String| matches(&format!("*{filter}*"), name);
        arguments.only.is_empty() || arguments.only.iter().any(matches)
    };
    // A filter reaches beyond the share of CI: who names a case wants it run.
    let all = arguments.full || !arguments.only.is_empty();
    let cases = cases::all();
    let chosen: Vec<&Case> =
        cases.iter().filter(|case| (all || case.in_ci) && wanted(&case.name())).collect();
    let suites = || suite::SUITES.iter().filter(|suite| wanted(suite.name));
    if arguments.list {
        chosen.iter().for_each(|case| println!("{}", case.name()));
        return Ok(());
    }
    if chosen.is_empty() && suites().count() == 0 {
        return Err("no case has that in its name; `--list` prints the names".into());
    }
    if !is_root()? {
        return Err("network namespaces need root; run this as root".into());
    }
    tools::system_packages()?;
    let vernic = build()?;
    fs::create_dir_all(root().join(FOLDER)).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut network = Network::new(&vernic.to_string_lossy())?;
    let by_lid = chosen.iter().any(|case| case.place == Place::InfiniBand);
    if by_lid || suites().any(|suite| suite.place == Place::InfiniBand) {
        network.start_fabric(&vernic, &root().join(FOLDER))?;
    }
    let mut findings = Vec::new();
    if !chosen.is_empty() {
        findings.extend(programs(&cases, &chosen, arguments.full, &network, &vernic)?);
    }
    for suite in suites() {
        findings.extend(suite::check(suite, &network, &vernic)?);
    }
    for finding in &findings {
        println!("{finding}");
    }
    none_of(&findings)
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(run("id -u").output()?.trim() == "0")
}

/// The command and its libraries, as users build them.
pub(crate) fn build() -> Result<PathBuf> {
    run("cargo build --release --quiet").limit_min(20).go()?;
    let metadata = run("cargo metadata --no-deps --format-version 1").output()?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let target = metadata["target_directory"].as_str().unwrap_or("target");
    Ok(Path::new(target).join("release/vernic"))
}

/// A case that fails is run a second time, and counts as passed then: a pair of spinning processes
/// and their clocks are at the mercy of what else the machine does. More such cases than this are a
/// finding: then it is not the machine.
const MOST_AGAIN: usize = 6;

/// How one case ended.
struct Ran<'a> {
    case: &'a Case,
    verdict: Verdict,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// At the first attempt.
    Passed,
    /// At the second attempt.
    Again,
    /// Both times.
    Failed,
    /// It is expected not to pass.
    Skipped,
}

impl Verdict {
    /// Every verdict.
    pub(crate) const ALL: [Self; 4] = [Self::Passed, Self::Again, Self::Failed, Self::Skipped];

    /// The verdict, in words.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Again => "passed at the second attempt",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

/// Runs the chosen cases one after the other: two spinning processes are what a small machine has
/// room for. Returns what is wrong.
fn programs(
    all: &[Case],
    chosen: &[&Case],
    full: bool,
    network: &Network,
    vernic: &Path,
) -> Result<Vec<String>> {
    let skips = Skips::read(PROGRAMS)?;
    let (mut ran, mut findings, mut passed) = (Vec::new(), Vec::new(), Vec::new());
    for (number, case) in chosen.iter().copied().enumerate() {
        let name = case.name();
        let skip = skips.find(&name);
        if let (Some(entry), false) = (skip, full) {
            println!("skipped {name}: {}", entry.reason);
            ran.push(Ran { case, verdict: Verdict::Skipped, time: Duration::ZERO });
            continue;
        }
        let mut ended = pair::run(case, number, network, vernic);
        let mut passed_as = Verdict::Passed;
        if let (Err(why), None) = (&ended.outcome, skip) {
            println!("{name}: {why}; once more\n{}", ended.output);
            ended = pair::run(case, number, network, vernic);
            passed_as = Verdict::Again;
        }
        let verdict = match (&ended.outcome, skip) {
            (Ok(()), _) => passed_as,
            (Err(_), Some(_)) => Verdict::Skipped,
            (Err(_), None) => Verdict::Failed,
        };
        println!("{:<7} {name} ({:.1} s)", verdict.word(), ended.time.as_secs_f64());
        match (verdict, ended.outcome) {
            (Verdict::Passed | Verdict::Again, _) => passed.push(name),
            (Verdict::Failed, Err(why)) => {
                println!("{}", ended.output);
                findings.push(format!("{name}: {why}"));
            }
            _ => {}
        }
        ran.push(Ran { case, verdict, time: ended.time });
    }
    let names: Vec<String> = all.iter().map(Case::name).collect();
    findings.extend(skips.rotten(&names, &passed));
    let again = count(&ran, Verdict::Again);
    if again > MOST_AGAIN {
        findings
            .push(format!("{again} cases passed only at the second attempt: at most {MOST_AGAIN}"));
    }
    print!("{}", totals(&ran));
    write_results(&ran)?;
    Ok(findings)
}

fn count(ran: &[Ran<'_>], verdict: Verdict) -> usize {
    ran.iter().filter(|ran| ran.verdict == verdict).count()
}

/// A line per program, a column per place: passed of run.
fn totals(ran: &[Ran<'_>]) -> String {
    let mut counts: BTreeMap<(&str, Place), [u32; 4]> = BTreeMap::new();
    for Ran { case, verdict, .. } in ran {
        counts.entry((case.program, case.place)).or_default()[*verdict as usize] += 1;
    }
    let programs: BTreeMap<&str, ()> = counts.keys().map(|(program, _)| (*program, ())).collect();
    let mut text = format!("\n{:<20}", "passed of all");
    // Writing to a String does not fail.
    let _ = Place::ALL.iter().try_for_each(|place| write!(text, "{:>12}", place.name()));
    text.push('\n');
    for program in programs.keys() {
        let _ = write!(text, "{program:<20}");
        for place in Place::ALL {
            let cell = counts.get(&(*program, place)).map_or_else(String::new, |counts| {
                format!("{}/{}", counts[0] + counts[1], counts.iter().sum::<u32>())
            });
            let _ = write!(text, "{cell:>12}");
        }
        text.push('\n');
    }
    let again = match count(ran, Verdict::Again) {
        0 => String::new(),
        n => format!(" ({n} at the second attempt)"),
    };
    let time: Duration = ran.iter().map(|ran| ran.time).sum();
    let _ = writeln!(
        text,
        "{} passed{again}, {} failed, {} skipped with a reason, {:.0} s\n",
        count(ran, Verdict::Passed) + count(ran, Verdict::Again),
        count(ran, Verdict::Failed),
        count(ran, Verdict::Skipped),
        time.as_secs_f64()
    );
    text
}

/// The same for other programs to read.
fn write_results(ran: &[Ran<'_>]) -> Result {
    let mut text = String::from("case\tprogram\tplace\tverdict\tseconds\n");
    for Ran { case, verdict, time } in ran {
        let (name, place, verdict) = (case.name(), case.place.name(), verdict.word());
        let seconds = time.as_secs_f64();
        let _ = writeln!(text, "{name}\t{}\t{place}\t{verdict}\t{seconds:.2}", case.program);
    }
    let file = root().join(FOLDER).join("results.tsv");
    fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    println!("{}", file.strip_prefix(root()).unwrap_or(&file).display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_the_list_of_programs_covers_a_case() {
        let names: Vec<String> = cases::all().iter().map(Case::name).collect();
        let findings = Skips::read(PROGRAMS).unwrap().rotten(&names, &[]);
        assert!(findings.is_empty(), "{findings:?}");
    }

    #[test]
    fn totals_count_by_program_and_place() {
        let cases = cases::all();
        let ran = [Verdict::Passed, Verdict::Again, Verdict::Skipped].map(|verdict| Ran {
            case: &cases[0],
            verdict,
            time: Duration::from_secs(2),
        });
        let text = totals(&ran);
        assert!(text.contains("ibv_devices") && text.contains("2/3"), "{text}");
        let line = "2 passed (1 at the second attempt), 0 failed, 1 skipped with a reason, 6 s";
        assert!(text.contains(line), "{text}");
    }
}
