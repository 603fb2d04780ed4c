//! Trees of several sizes, brought up by each of OpenSM's routing engines.

use std::path::Path;

use super::bench::{Bench, errors, opensm};
use super::{Action, Case};
use crate::Result;

/// Seconds in which the largest tree is up, by OpenSM's own clock.
const BAR_S: f64 = 5.0;

/// A tree, and how it is brought up.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    tree: &'static str,
    nodes: usize,
    options: &'static [&'static str],
    partitions: bool,
    /// Whether the time counts against the bar.
    is_timed: bool,
}

const TREES: [(&str, usize); 3] = [("2,4,8", 14), ("4,8,64", 76), ("18,36,648", 702)];
const ENGINES: [&[&str]; 4] =
    [&["-R", "minhop"], &["-R", "updn"], &["-R", "ftree"], &["-R", "dfsssp"]];

/// Partitions of two kinds, the default one among them.
const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\nblue=0x8001, ipoib : ALL=limited;\n";

/// Every tree with every engine, and the smaller ones with quality of service and partitions.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (tree, nodes) in TREES {
        for options in ENGINES {
            let is_timed = options[1] == "minhop";
            let sweep = Sweep { tree, nodes, options, partitions: false, is_timed };
            cases.push(case(format!("sweep {tree} {}", options[1]), sweep));
        }
        let sweep = Sweep { tree, nodes, options: &["-Q"], partitions: true, is_timed: false };
        cases.push(case(format!("sweep {tree} qos and partitions"), sweep));
    }
    cases
}

fn case(name: String, sweep: Sweep) -> Case {
    Case { name, action: Action::Sweep(sweep) }
}

/// Brings a tree up, and checks that OpenSM is content and all cables are Active.
pub(super) fn run(vernic: &Path, sweep: &Sweep) -> Result<String> {
    let bench = Bench::new(vernic, &["--tree", sweep.tree])?;
    let mut options = sweep.options.to_vec();
    if sweep.partitions {
        let file = bench.folder.join("partitions.conf");
        std::fs::write(&file, PARTITIONS).map_err(|e| format!("{file:?}: {e}"))?;
        options.extend(["-P", "partitions.conf"]);
    }
    bench.run_on("h1", &opensm(true, &options))?;
    let log = bench.read("osm.log");
    if let Some(error) = errors(&log).first() {
        return Err(format!("OpenSM complains: {error}"));
    }
    let begin = time_of(&log, "Entering DISCOVERING").ok_or("OpenSM did not begin")?;
    let end = time_of(&log, "SUBNET UP").ok_or("OpenSM did not end with SUBNET UP")?;
    let seconds = if end < begin { end + 86_400.0 - begin } else { end - begin };
    let (cabled, active) = bench.active()?;
    if cabled != active {
        return Err(format!("{active} of {cabled} ports are Active"));
    }
    if sweep.partitions {
        let keys = bench.run_on("h2", &["smpquery", "pkeys", "-D", "0"])?;
        if !keys.contains("0x0001") {
            return Err(format!("h2 has not the key of the second partition: {keys}"));
        }
    }
    if sweep.is_timed && sweep.nodes > 700 && seconds > BAR_S {
        return Err(format!(
            "SUBNET UP of {} nodes took {seconds:.2} s, bar {BAR_S} s",
            sweep.nodes
        ));
    }
    Ok(format!("SUBNET UP of {} nodes in {seconds:.2} s", sweep.nodes))
}

/// Returns the seconds of the day at which a line of the log was written: `Nov 28 10:00:25 701422`.
fn time_of(log: &str, words: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains(words))?;
    let mut fields = line.split_whitespace().skip(2);
    let clock: Vec<f64> = fields.next()?.split(':').filter_map(|part| part.parse().ok()).collect();
    let micros: f64 = fields.next()?.parse().ok()?;
    let [hours, minutes, seconds] = clock[..] else { return None };
    Some(hours * 3600.0 + minutes * 60.0 + seconds + micros * 1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_log_are_seconds_of_the_day() {
        let log = "x\nNov 28 10:00:25 701422 [4AFB06C0] 0x02 -> SUBNET UP\n";
        let time = time_of(log, "SUBNET UP").unwrap();
        assert!((time - 36_025.701_422).abs() < 1e-9, "{time}");
        assert_eq!(time_of(log, "DISCOVERING"), None);
    }
}
