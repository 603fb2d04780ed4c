//! infiniband-diags on a fabric that OpenSM manages, and what each tool must print; a capture.

use std::path::Path;

use super::bench::{Bench, errors, opensm};
use super::{Action, Case};
use crate::Result;
use crate::shell::run;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case { name: "infiniband-diags".into(), action: Action::Tools },
        Case { name: "capture for tshark".into(), action: Action::Capture },
    ]
}

/// A tool with its arguments, and words that its output has.
const TOOLS: &[(&str, &[&str])] = &[
    ("ibstat", &["State: Active", "Link layer: InfiniBand", "SM lid: 1"]),
    ("ibstatus", &["state:\t\t 4: ACTIVE", "phys state:\t 5: LinkUp"]),
    ("ibhosts", &["\"h1\"", "\"h8\""]),
    ("ibswitches", &["\"spine1\"", "\"leaf4\""]),
    ("ibnodes", &["\"h8\"", "\"spine2\""]),
    ("sminfo", &["sm lid 1", "SMINFO_MASTER"]),
    ("ibaddr", &["GID fe80::", "LID start"]),
    ("ibnetdiscover", &["\"leaf4\"", "# \"h8\" lid", "4xQDR"]),
    ("iblinkinfo", &["spine2", "Active/  LinkUp", "\"h8\""]),
    ("smpquery nodeinfo 1", &["Channel Adapter", "NumPorts:........................1"]),
    ("smpquery nodedesc -D 0,1", &["leaf1"]),
    ("smpquery portinfo 1 1", &["LinkState:.......................Active"]),
    ("smpquery switchinfo -D 0,1", &["LinearFdbCap:....................49152"]),
    ("smpquery sl2vl 1", &["SL2VL table"]),
    ("smpquery vlarb 1", &["Low priority VL Arbitration"]),
    ("smpquery pkeys 1", &["0xffff"]),
    ("ibroute -D 0,1", &["'h1'", "'h8'"]),
    ("ibroute -M -D 0,1", &["Multicast mlids"]),
    ("ibtracert 1 2", &["From ca", "leaf1"]),
    ("perfquery", &["PortXmitPkts", "PortXmitWait"]),
    ("perfquery -x", &["PortUnicastXmitPkts"]),
    ("perfquery -a 2", &["port 255"]),
    ("ibqueryerrors", &["0 bad nodes found", "0 ports have errors"]),
    ("saquery", &["NodeDescription.........h8"]),
    ("saquery -p", &["PathRecord dump", "dlid"]),
    ("saquery -g", &["ff12:401b:ffff::ffff:ffff"]),
    ("saquery -m", &["ff12:401b:ffff::ffff:ffff"]),
    ("saquery -s", &["IsSM ports", "PortNum.................1"]),
    ("saquery -c", &["SA ClassPortInfo"]),
    ("ibsysstat 1", &["sysstat ping succeeded"]),
    ("ibportstate 2 1 query", &["LinkState:.......................Active"]),
    ("ibportstate -D 0,1 1 query", &["LinkState:.......................Active"]),
    ("dump_fts", &["'h8'"]),
    ("ibidsverify", &[]),
];

/// Runs every tool on a host that is not the manager's.
pub(super) fn tools(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "2,4,8"])?;
    bench.start_on("h1", &opensm(false, &[]), "opensm.out")?;
    bench.wait("SUBNET UP", |bench| bench.read("osm.log").contains("SUBNET UP"))?;
    // Two services that other hosts ask for, as their programs offer them.
    bench.start_on("h1", &["ibsysstat", "-S"], "sysstat.out")?;
    bench.start_on("h3", &["ibping", "-S"], "ping.out")?;
    let mut wrong = Vec::new();
    for (line, words) in TOOLS {
        let program: Vec<_> = line.split(' ').collect();
        match bench.run_on("h2", &program) {
            Err(error) => wrong.push(error),
            Ok(text) => {
                let missing = words.iter().filter(|word| !text.contains(**word));
                wrong.extend(missing.map(|word| format!("`{line}` does not print {word:?}")));
            }
        }
    }
    if let Err(error) = pings(&bench) {
        wrong.push(error);
    }
    wrong.extend(errors(&bench.read("osm.log")));
    match wrong.is_empty() {
        true => Ok(format!("{} tools", TOOLS.len() + 1)),
        false => Err(wrong.join("; ")),
    }
}

/// Asks the LID of h3, and pings it.
fn pings(bench: &Bench) -> Result {
    let state = bench.state()?;
    let nodes = state["nodes"].as_array().cloned().unwrap_or_default();
    let node = nodes.iter().find(|node| node["name"] == "h3").ok_or("no h3")?;
    let lid = node["ports"][0]["lid"].to_string();
    let text = bench.run_on("h2", &["ibping", "-c", "5", "-f", &lid])?;
    match text.contains("5 packets transmitted, 5 received") {
        true => Ok(()),
        false => Err(format!("ibping loses packets: {text}")),
    }
}

/// Captures a sweep, and lets tshark read it.
pub(super) fn capture(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "2,2,4"])?;
    bench.fabric("capture", &["all.erf"])?;
    bench.start_on("h1", &opensm(false, &[]), "opensm.out")?;
    bench.wait("SUBNET UP", |bench| bench.read("osm.log").contains("SUBNET UP"))?;
    bench.run_on("h2", &["saquery", "-p"])?;
    bench.fabric("capture", &["--off"])?;
    let file = bench.folder.join("all.erf");
    let read = |filter: &str| {
        let tshark = run("tshark -r").arg(file.to_string_lossy()).arg("-Y").arg(filter);
        tshark.output().map(|text| text.lines().count())
    };
    let (all, malformed) = (read("infiniband")?, read("_ws.malformed")?);
    let smps = read("infiniband.mad.mgmtclass == 0x81")?;
    if all == 0 || smps == 0 || malformed > 0 {
        return Err(format!("{all} packets, {smps} by directed route, {malformed} malformed"));
    }
    Ok(format!("{all} packets, none malformed"))
}
