//! `cargo xtask kernel`: the Linux kernel's own drivers as the peer, `rdma_rxe` (RoCEv2) and `siw`
//! (iWARP).
//!
//! A Debian kernel runs in an emulator, on links that lie in a network namespace of their own;
//! programs that others wrote, and one of ours that knows what IBTA asks for, run with one end
//! here, on Vernic, and the other end there, in both directions.
//!
//! | file | owns |
//! |---|---|
//! | `image`, `siw` | the packages, the kernel and siw's module, installed, unpacked and built once |
//! | `cpio`, `initramfs` | what the guest has |
//! | `links` | the links to it and their addresses |
//! | `peer` | the guest and its network, from boot to end |
//! | `guest` | commands in it |
//! | `lab` | all of that, and our programs, ready for cases |
//! | `case`, `cases`, `scenarios`, `manager` | what is run, where, and what must come out |
//! | `pair` | one case: two processes, time limit, output |
//! | `judge` | what output must have |
//! | `wire` | captures of some of them, read by tshark |
//! | `results` | results of this run and of earlier ones |
//! | `waits` | which end is the slow one |
//! | `page` | the generated matrix of conformance/kernel/README.md |

mod case;
mod cases;
mod cpio;
mod guest;
mod image;
mod initramfs;
mod iwarp;
mod judge;
mod lab;
mod links;
mod manager;
mod page;
mod pair;
mod peer;
mod results;
mod scenarios;
mod siw;
mod waits;
mod wire;

use std::time::{Duration, Instant};

use crate::Result;
use crate::conformance::{Skips, Verdict, matches};
use crate::plan::{Done, none_of};
use case::Case;
use lab::Lab;
use pair::Ended;

pub(crate) use guest::Process;
pub(crate) use image::{Image, check as check_image, prepare as prepare_image};
pub(crate) use initramfs::{BUILD_FOLDER, release_build};
pub(crate) use links::{Driver, LINKS, Link};
pub(crate) use peer::{KERNEL_LINE_OF_SEVERAL, Peer, Wanted};

/// Cases that are expected not to pass, relative to the root.
const SKIPS: &str = "conformance/kernel/cases.skip";

/// A case that fails is run a second time, and counts as passed then: an emulated machine that
/// shares its processors with others may be late. More such cases than this are a finding.
const MOST_AGAIN: usize = 6;

/// What to run.
#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Only cases whose name has this in it (`*` stands for anything), or `captures` (repeatable)
    #[arg(long, value_name = "FILTER")]
    only: Vec<String>,
    /// Not the cases whose name has this in it, as with `--only` (repeatable)
    #[arg(long, value_name = "FILTER")]
    skip: Vec<String>,
    /// Only over the link of this netdev MTU, 1500 or 9000
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u64>,
    /// All cases, those that are skipped too, and not only the share that CI runs
    #[arg(long)]
    full: bool,
    /// Print the names of the cases and stop
    #[arg(long)]
    list: bool,
    /// Write the results into conformance/kernel/README.md: of this run, and of earlier ones since
    /// target/kernel/results.tsv was removed
    #[arg(long)]
    write: bool,
    /// Leave the guest and its network up at the end, and say how to use them; with `--only none`,
    /// boot only
    #[arg(long)]
    keep: bool,
    /// Instead of cases, see which end waits when data goes to `rdma_rxe` and from it; with
    /// `--write`, into conformance/kernel/README.md
    #[arg(long)]
    who_waits: bool,
    /// Run this line of shell in the guest that was kept, and nothing else
    #[arg(long, value_name = "COMMAND")]
    guest: Option<String>,
}

/// The share of CI: a step of `cargo xtask test`.
pub(crate) fn check() -> Result<Done> {
    match image::prepare() {
        Err(why) => Ok(Done::Skipped(why)),
        Ok(image) => run(&Arguments::default(), image).map(|()| Done::Passed),
    }
}

/// `cargo xtask kernel`.
pub(crate) fn kernel(arguments: &Arguments) -> Result {
    if let Some(line) = &arguments.guest {
        let (status, text) = peer::kept()?.run(line)?;
        println!("{text}");
        return if status == 0 { Ok(()) } else { Err(format!("exit status {status}")) };
    }
    if arguments.list {
        chosen(&cases::all(), arguments).iter().for_each(|case| println!("{}", case.name()));
        return Ok(());
    }
    if arguments.who_waits {
        return waits::run(&mut Lab::new(image::prepare()?)?, arguments.write);
    }
    run(arguments, image::prepare()?)
}

/// The cases that are asked for. A filter reaches beyond the share of CI: who names a case wants it
/// run.
fn chosen<'a>(cases: &'a [Case], arguments: &Arguments) -> Vec<&'a Case> {
    let all = arguments.full || !arguments.only.is_empty();
    let wanted = |case: &&Case| {
        let name = case.name();
        let is_in = |filters: &[String]| filters.iter().any(|f| matches(&format!("*{f}*"), &name));
        (all || case.in_ci)
            && (arguments.only.is_empty() || is_in(&arguments.only))
            && !is_in(&arguments.skip)
            && arguments.mtu.is_none_or(|mtu| mtu == case.place.link.mtu)
    };
    cases.iter().filter(wanted).collect()
}

/// Whether the captures are asked for by name.
fn is_captures(arguments: &Arguments) -> bool {
    arguments.only.iter().any(|filter| filter == "captures")
}

fn run(arguments: &Arguments, image: image::Image) -> Result {
    let cases = cases::all();
    let chosen = chosen(&cases, arguments);
    if chosen.is_empty() && !arguments.keep && !is_captures(arguments) {
        return Err("no case has that in its name; `--list` prints the names".into());
    }
    let mut lab = Lab::new(image)?;
    let (ran, mut findings) = run_cases(&cases, &chosen, arguments.full, &mut lab)?;
    print!("{}", totals(&ran));
    if arguments.only.is_empty() || is_captures(arguments) {
        findings.extend(wire::check(&cases, &mut lab)?);
    }
    if arguments.write {
        page::write(&results::all(&cases)?, &lab.peer.description()?)?;
    }
    findings.iter().for_each(|finding| println!("{finding}"));
    if arguments.keep {
        lab.peer.keep();
    }
    none_of(&findings)
}

/// How one case ended.
struct Ran<'a> {
    case: &'a Case,
    verdict: Verdict,
    time: Duration,
}

/// Runs the chosen cases one after the other. Returns what is wrong, too.
fn run_cases<'a>(
    all: &[Case],
    chosen: &[&'a Case],
    full: bool,
    lab: &mut Lab,
) -> Result<(Vec<Ran<'a>>, Vec<String>)> {
    let skips = Skips::read(SKIPS)?;
    let (mut ran, mut findings, mut passed) = (Vec::new(), Vec::new(), Vec::new());
    for (number, case) in chosen.iter().copied().enumerate() {
        let name = case.name();
        let skip = skips.find(&name);
        if let (Some(entry), false) = (skip, full) {
            println!("skipped {name}: {}", entry.reason);
            ran.push(Ran { case, verdict: Verdict::Skipped, time: Duration::ZERO });
            continue;
        }
        let mut ended = run_case(case, number, lab)?;
        let mut verdict = Verdict::Passed;
        if let (Err(why), None) = (&ended.outcome, skip) {
            println!("{name}: {why}; once more\n{}", ended.output);
            ended = run_case(case, number, lab)?;
            verdict = Verdict::Again;
        }
        if let Err(why) = &ended.outcome {
            verdict = if skip.is_some() { Verdict::Skipped } else { Verdict::Failed };
            if skip.is_none() {
                println!("{}", ended.output);
                findings.push(format!("{name}: {why}"));
            }
        } else {
            passed.push(name.clone());
        }
        println!("{:<7} {name} ({:.1} s)", verdict.word(), ended.time.as_secs_f64());
        let one = Ran { case, verdict, time: ended.time };
        results::record(&one)?;
        ran.push(one);
    }
    let names: Vec<String> = all.iter().map(Case::name).collect();
    findings.extend(skips.rotten(&names, &passed));
    let again = count(&ran, Verdict::Again);
    if again > MOST_AGAIN {
        findings
            .push(format!("{again} cases passed only at the second attempt: at most {MOST_AGAIN}"));
    }
    Ok((ran, findings))
}

/// Runs a case. A guest that does not answer any more fails it, and is replaced.
fn run_case(case: &Case, number: usize, lab: &mut Lab) -> Result<Ended> {
    let start = Instant::now();
    match pair::run(case, number, lab) {
        Ok(ended) => Ok(ended),
        Err(why) => {
            lab.reboot()?;
            Ok(Ended { outcome: Err(why), output: String::new(), time: start.elapsed() })
        }
    }
}

fn count(ran: &[Ran<'_>], verdict: Verdict) -> usize {
    ran.iter().filter(|ran| ran.verdict == verdict).count()
}

/// The matrix, and a line that counts.
fn totals(ran: &[Ran<'_>]) -> String {
    let time: Duration = ran.iter().map(|ran| ran.time).sum();
    let again = match count(ran, Verdict::Again) {
        0 => String::new(),
        n => format!(" ({n} at the second attempt)"),
    };
    format!(
        "\n{}\n{}\n{} passed{again}, {} failed, {} skipped with a reason, {:.0} s\n",
        page::matrix(Driver::Rxe, ran),
        page::matrix(Driver::Siw, ran),
        count(ran, Verdict::Passed) + count(ran, Verdict::Again),
        count(ran, Verdict::Failed),
        count(ran, Verdict::Skipped),
        time.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_the_list_of_skips_covers_a_case() {
        let names: Vec<String> = cases::all().iter().map(Case::name).collect();
        let findings = Skips::read(SKIPS).unwrap().rotten(&names, &[]);
        assert!(findings.is_empty(), "{findings:?}");
    }

    #[test]
    fn a_filter_reaches_beyond_the_share_of_ci() {
        let cases = cases::all();
        let only = |filter: &str| Arguments { only: vec![filter.into()], ..Arguments::default() };
        let in_ci = chosen(&cases, &Arguments::default()).len();
        assert!(in_ci < cases.len());
        assert!(chosen(&cases, &only("-a")).iter().any(|case| !case.in_ci));
        assert!(chosen(&cases, &only("ib_*9000")).iter().all(|case| case.place.link.mtu == 9000));
        assert!(chosen(&cases, &only("nothing")).is_empty());
        let without = Arguments { skip: vec!["ipv6".into()], ..only("rping") };
        let found = chosen(&cases, &without);
        assert!(!found.is_empty() && found.iter().all(|case| !case.place.is_ipv6));
    }
}
