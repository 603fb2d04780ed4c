//! A connection with an alternate path, whose cables are pulled out one after the other.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::bench::{Bench, opensm};
use super::{Action, Case};
use crate::Result;

/// Two hosts of two ports each, each port at a switch of its own.
const PLAN: &str = r#"
Switch 4 "left"
[1] "h1"[1]
[2] "h2"[1]
[4] "right"[4]

Switch 4 "right"
[1] "h1"[2]
[2] "h2"[2]

Ca 2 "h1"

Ca 2 "h2"
"#;

/// The program of both ends.
const SOURCE: &str = include_str!("migration.c");

/// How often a path fails.
const ROUNDS: usize = 3;

pub(super) fn cases() -> Vec<Case> {
    vec![Case { name: "a path that migrates".into(), action: Action::Migration }]
}

/// Cuts the path in use, and mends it once both ends have changed to the other.
pub(super) fn run(vernic: &Path) -> Result<String> {
    let mut bench = Bench::with_plan(vernic, PLAN)?;
    bench.start_on("h1", &opensm(false, &[]), "opensm.out")?;
    bench.wait("all ports are active", |bench| {
        bench.active().is_ok_and(|(ports, active)| ports == active)
    })?;
    let program = compile(&bench.folder)?;
    for (host, role) in [("h2", "listen"), ("h1", "connect")] {
        bench.start_on(host, &[&program, "meet", role], role)?;
    }
    let ends = ["listen", "connect"];
    let all = |bench: &Bench, line: &str, count: usize| {
        ends.iter().all(|end| bench.read(end).matches(line).count() >= count)
    };
    for round in 0..ROUNDS {
        let (old, new) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let times = round / 2 + 1;
        let what = format!("both ends are armed on port {old}, time {times}");
        bench.wait(&what, |bench| all(bench, &format!("armed on port {old}"), times))?;
        let port = format!("h2:{old}");
        bench.fabric("link", &[&port, "down"])?;
        let what = format!("both ends migrate to port {new}, time {times}");
        bench.wait(&what, |bench| all(bench, &format!("migrated to port {new}"), times))?;
        bench.fabric("link", &[&port, "up"])?;
    }
    let last = ROUNDS % 2 + 1;
    bench.wait("both ends are armed at last", |bench| {
        all(bench, &format!("armed on port {last}"), ROUNDS / 2 + ROUNDS % 2)
    })?;
    let stop = bench.folder.join("stop");
    fs::write(&stop, "").map_err(|e| format!("{stop:?}: {e}"))?;
    bench.wait("both ends end", |bench| all(bench, "ms apart", 1))?;
    let said = ends.map(|end| bench.read(end));
    let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    Ok(format!("{ROUNDS} cuts, {}", last(&said[0])))
}

/// Compiles the program, and returns where it is.
fn compile(folder: &Path) -> Result<String> {
    let [source, program] = ["migration.c", "migration"].map(|name| folder.join(name));
    fs::write(&source, SOURCE).map_err(|e| format!("{source:?}: {e}"))?;
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-O1", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    let output = cc.output().map_err(|e| format!("cannot start cc: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(program.display().to_string())
}
