//! rdma-core's own Python tests, as Debian's python3-pyverbs brings them, of a RoCE and of an iWARP
//! device.
//!
//! Of an iWARP device they skip what sends by themselves, since its GID looks like none to them (as
//! that of the kernel's siw does); what connects by IP address is told to use it all the same.
//!
//! Each file of tests is a process of its own, so that one that crashes takes only its own tests
//! along, which then count as failed. The tests print their outcomes through
//! `conformance/suite.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::network::{Network, Place};
use super::skips::Skips;
use super::{FOLDER, fabric};
use crate::Result;
use crate::root;
use crate::shell::run;

/// Where Debian puts the tests, some of them compressed.
const SOURCE: &str = "/usr/share/doc/rdma-core/tests";

/// Debian's interpreter, which sees Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// What runs a file of tests and prints outcomes, relative to the root.
const RUNNER: &str = "conformance/suite.py";

/// What runs of one device.
pub(super) struct Suite {
    /// What a filter names.
    pub(super) name: &'static str,
    /// What is expected not to pass, relative to the root.
    pub(super) list: &'static str,
    /// The device, and how `vernic run` is told of it.
    device: &'static str,
    /// Where the tests run.
    pub(super) place: Place,
    around: &'static [&'static str],
    /// Starts of the names of files that are about other devices, and are left out.
    foreign: &'static [&'static str],
    /// Files whose tests are told which GID to use.
    with_gid: &'static [&'static str],
    /// So many must pass, or something that passed does not any more.
    min_passed: usize,
}

/// Those that there are.
pub(super) const SUITES: [Suite; 3] = [
    Suite {
        name: "pyverbs",
        list: "conformance/pyverbs.skip",
        device: "vernic0",
        place: Place::Ipv4,
        around: &[],
        foreign: &[],
        with_gid: &[],
        min_passed: 130,
    },
    Suite {
        name: "pyverbs-iwarp",
        list: "conformance/pyverbs-iwarp.skip",
        device: "viw0",
        place: Place::Ipv4,
        around: &["--iwarp"],
        // The other suite sees that they leave alone what is not theirs.
        foreign: &["test_mlx5", "test_efa", "test_cuda"],
        with_gid: &["test_rdmacm"],
        min_passed: 44,
    },
    Suite {
        name: "pyverbs-infiniband",
        list: "conformance/pyverbs-infiniband.skip",
        device: "vernic_ib0",
        place: Place::InfiniBand,
        around: fabric::SERVER,
        foreign: &["test_mlx5", "test_efa", "test_cuda"],
        with_gid: &[],
        min_passed: 100,
    },
];

/// Longest time for one file of tests, seconds.
const LIMIT_S: u64 = 120;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// By its own decision, for this reason.
    Skipped(String),
    /// It failed, or its process died before it ended.
    Failed(String),
}

/// Runs all tests in a namespace with a device that has an address; returns what is wrong.
pub(super) fn check(suite: &Suite, network: &Network, vernic: &Path) -> Result<Vec<String>> {
    let name = suite.name;
    let folder = unpacked(name)?;
    let skips = Skips::read(suite.list)?;
    let mut outcomes = BTreeMap::new();
    let is_foreign = |module: &String| suite.foreign.iter().any(|start| module.starts_with(start));
    for module in modules(&folder)?.into_iter().filter(|module| !is_foreign(module)) {
        let mut ended = run_module(suite, &folder, &module, network, vernic)?;
        // Tests with time limits of their own, on a machine that does other things: once more.
        let failed = ended.iter().find(|(name, outcome)| {
            matches!(outcome, Outcome::Failed(_)) && skips.find(name).is_none()
        });
        if let Some((test, outcome)) = failed {
            println!("{name}: {test} {outcome:?}; {module} once more");
            ended = run_module(suite, &folder, &module, network, vernic)?;
        }
        outcomes.extend(ended);
    }
    write_results(name, &outcomes)?;
    let (findings, passed) = judge(&outcomes, &skips, suite.min_passed);
    let count = |wanted: fn(&Outcome) -> bool| outcomes.values().filter(|o| wanted(o)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    println!("{name}: {passed} passed, {failed} failed, {skipped} skipped of {}", outcomes.len());
    Ok(findings)
}

/// What is wrong, and how many passed.
fn judge(
    outcomes: &BTreeMap<String, Outcome>,
    skips: &Skips,
    min_passed: usize,
) -> (Vec<String>, usize) {
    let mut findings = Vec::new();
    let mut passed = Vec::new();
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Passed => passed.push(name.clone()),
            _ if skips.find(name).is_some() => {}
            Outcome::Failed(why) => findings.push(format!("{name} failed: {why}")),
            Outcome::Skipped(why) => {
                findings.push(format!("{name} skipped itself, which no list expects: {why}"));
            }
        }
    }
    let names: Vec<String> = outcomes.keys().cloned().collect();
    findings.extend(skips.rotten(&names, &passed));
    if passed.len() < min_passed {
        findings.push(format!("{} tests passed, expected at least {min_passed}", passed.len()));
    }
    (findings, passed.len())
}

/// A copy of the tests without compression.
fn unpacked(name: &str) -> Result<PathBuf> {
    let folder = root().join(FOLDER).join(name);
    let _ = fs::remove_dir_all(&folder);
    let tests = folder.join("tests");
    fs::create_dir_all(&tests).map_err(|e| format!("{}: {e}", tests.display()))?;
    let (from, to) = (Path::new(SOURCE), tests.display());
    if !from.is_dir() {
        return Err(format!("{SOURCE} is not there: apt-get install python3-pyverbs rdma-core"));
    }
    run(&format!("cp -r {SOURCE}/. {to}")).output()?;
    // Nothing may be compressed, as on another distribution.
    run("find")
        .arg(to.to_string())
        .args(&["-name", "*.gz", "-exec", "gunzip", "{}", "+"])
        .output()?;
    Ok(folder)
}

/// Names of the files of tests.
fn modules(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder.join("tests")).map_err(|e| format!("{SOURCE}: {e}"))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut modules: Vec<String> = names
        .filter(|name| name.starts_with("test_"))
        .filter_map(|name| name.strip_suffix(".py").map(str::to_owned))
        .collect();
    modules.sort();
    Ok(modules)
}

fn run_module(
    suite: &Suite,
    folder: &Path,
    module: &str,
    network: &Network,
    vernic: &Path,
) -> Result<BTreeMap<String, Outcome>> {
    let mut command = Command::new("ip");
    let namespace = network.namespace(suite.place, 0);
    command.args(["netns", "exec", namespace, "timeout", "--kill-after=5", &LIMIT_S.to_string()]);
    command.arg(vernic).arg("run").args(suite.around);
    command.args(["--", PYTHON]).arg(root().join(RUNNER));
    command.args([module, "--dev", suite.device, "--port", "1"]);
    if suite.with_gid.contains(&module) {
        command.args(["--gid", "0"]);
    }
    command.env("VERNIC_CONFIG", "/dev/null").env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(network.fabric_folder().map(|folder| (fabric::FOLDER_VARIABLE, folder)));
    let output =
        command.current_dir(folder).output().map_err(|e| format!("cannot start ip: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut outcomes = BTreeMap::new();
    let end = format!("{}; its last words: {}", output.status, last_line(&errors));
    collect(&text, &end, &mut outcomes);
    if outcomes.is_empty() {
        return Err(format!("{module} has no tests: {}\n{text}{errors}", output.status));
    }
    Ok(outcomes)
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("none")
}

/// Reads the runner's lines: `test NAME`, then, for each that ended, `passed NAME`,
/// `skipped NAME REASON` or `failed NAME REASON`, with tabs between. What did not end has failed.
fn collect(text: &str, end: &str, outcomes: &mut BTreeMap<String, Outcome>) {
    for line in text.lines() {
        let mut columns = line.splitn(3, '\t');
        let (Some(word), Some(name)) = (columns.next(), columns.next()) else { continue };
        let reason = columns.next().unwrap_or_default().to_owned();
        let outcome = match word {
            "test" => Outcome::Failed(format!("it did not end ({end})")),
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped(reason),
            "failed" => Outcome::Failed(reason),
            _ => continue,
        };
        outcomes.insert(name.to_owned(), outcome);
    }
}

fn write_results(name: &str, outcomes: &BTreeMap<String, Outcome>) -> Result {
    let mut text = String::from("test\toutcome\treason\n");
    for (name, outcome) in outcomes {
        text += &match outcome {
            Outcome::Passed => format!("{name}\tpassed\t\n"),
            Outcome::Skipped(why) => format!("{name}\tskipped\t{why}\n"),
            Outcome::Failed(why) => format!("{name}\tfailed\t{why}\n"),
        };
    }
    let file = root().join(FOLDER).join(format!("{name}.tsv"));
    fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(lines: &str) -> BTreeMap<String, Outcome> {
        let mut outcomes = BTreeMap::new();
        collect(lines, "signal 11", &mut outcomes);
        outcomes
    }

    #[test]
    fn a_test_that_did_not_end_has_failed() {
        let outcomes =
            outcomes("test\ta\ntest\tb\ntest\tc\npassed\ta\nskipped\tb\tno GPU\nnoise\n");
        assert_eq!(outcomes["a"], Outcome::Passed);
        assert_eq!(outcomes["b"], Outcome::Skipped("no GPU".into()));
        let Outcome::Failed(why) = &outcomes["c"] else { panic!("{:?}", outcomes["c"]) };
        assert!(why.contains("signal 11"), "{why}");
    }

    #[test]
    fn skips_must_be_listed_and_the_listed_must_not_pass() {
        let skips = Skips::read(SUITES[0].list).unwrap();
        let good = outcomes("passed\tx\n");
        assert_eq!(judge(&good, &skips, 1).1, 1);
        let findings = judge(&outcomes("skipped\tx.y\twhy\n"), &skips, 1).0;
        assert!(findings.iter().any(|finding| finding.contains("x.y")), "{findings:?}");
        assert!(findings.iter().any(|finding| finding.contains("at least 1")), "{findings:?}");
    }
}
