//! A cable that is pulled out while OpenSM manages the fabric, and a manager that is killed.

use std::path::Path;

use super::bench::{Bench, opensm};
use super::{Action, Case};
use crate::Result;

pub(super) fn cases() -> Vec<Case> {
    vec![Case { name: "a cut cable, a killed manager".into(), action: Action::Cut }]
}

/// Cuts cables of a spine until a way is another one; then kills the manager.
pub(super) fn run(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "2,2,4"])?;
    let manager = bench.start_on("h1", &opensm(false, &[]), "opensm.out")?;
    let ups = |bench: &Bench| bench.read("osm.log").matches("SUBNET UP").count();
    bench.wait("SUBNET UP", |bench| ups(bench) > 0)?;
    let (from, to) = (lid(&bench, "h1")?, lid(&bench, "h4")?);
    let way = |bench: &Bench| bench.run_on("h1", &["ibtracert", &from, &to]);
    let spine = spine_of(&way(&bench)?)?;
    let before = ups(&bench);
    bench.fabric("link", &[&format!("{spine}:1"), "down"])?;
    bench.wait("OpenSM is told", |bench| bench.read("osm.log").contains("num:128"))?;
    bench.wait("OpenSM sweeps again", |bench| ups(bench) > before)?;
    let other = if spine == "spine1" { "spine2" } else { "spine1" };
    bench.wait("the way leads over the other spine", |bench| {
        way(bench).and_then(|text| spine_of(&text)).is_ok_and(|spine| spine == other)
    })?;

    // Its agents, and what it said of itself, go with it.
    bench.kill(manager);
    bench.wait("nobody says that there is a manager", |bench| {
        bench
            .run_on("h2", &["smpquery", "portinfo", "-D", "0"])
            .is_ok_and(|text| !text.contains("IsSM\n"))
    })?;
    let _ = std::fs::remove_file(bench.folder.join("osm.log"));
    bench.start_on("h3", &opensm(false, &[]), "second.out")?;
    bench.wait("SUBNET UP by the second manager", |bench| ups(bench) > 0)?;
    let master = bench.run_on("h2", &["sminfo"])?;
    if !master.contains("SMINFO_MASTER") {
        return Err(format!("the second manager is no master: {master}"));
    }
    Ok(format!("{spine} to {other}; a second manager took over"))
}

fn lid(bench: &Bench, host: &str) -> Result<String> {
    let state = bench.state()?;
    let nodes = state["nodes"].as_array().cloned().unwrap_or_default();
    let node = nodes.iter().find(|node| node["name"] == host);
    let node = node.ok_or_else(|| format!("the fabric has no {host}"))?;
    Ok(node["ports"][0]["lid"].to_string())
}

/// Returns the spine that a way leads over.
fn spine_of(text: &str) -> Result<&'static str> {
    ["spine1", "spine2"]
        .into_iter()
        .find(|spine| text.contains(spine))
        .ok_or_else(|| format!("the way leads over no spine: {text}"))
}
