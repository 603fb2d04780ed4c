//! `vernic fabric show` and `list`: the state of a fabric in words, in JSON, as a picture.

use std::path::Path;

use serde::Serialize;
use vernic_attach::path;
use vernic_fabricd::control::{NodeState, PortState, State};

use super::client;
use crate::failure::{Doing as _, Failure, Outcome, complain};
use crate::table::{Align, Table, print, print_json};

/// One line of `vernic fabric list`.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    pid: u32,
    uptime_s: u64,
    switches: usize,
    hosts: usize,
    programs: usize,
}

/// Lists the fabrics that answer.
pub(super) fn list(json: bool) -> Outcome<()> {
    let folder = path::folder();
    let mut listed = Vec::new();
    for name in path::list(&folder) {
        match client::state(&name) {
            Ok(state) => listed.push(line_of(&state)),
            Err(failure) => complain(format_args!("{name}: {failure}")),
        }
    }
    if json {
        return print_json(&listed);
    }
    let left = |name| (name, Align::Left);
    let right = |name| (name, Align::Right);
    let columns =
        [left("fabric"), right("switches"), right("hosts"), right("programs"), right("process")];
    let mut table = Table::new(&columns);
    for one in &listed {
        let numbers = [one.switches, one.hosts, one.programs].map(|number| number.to_string());
        let [switches, hosts, programs] = numbers;
        table.row([one.name.clone(), switches, hosts, programs, one.pid.to_string()]);
    }
    if listed.is_empty() {
        return print(&format!("no fabric runs in {}\n", folder.display()));
    }
    print(&table.render())
}

fn line_of(state: &State) -> Listed {
    let count = |kind| state.nodes.iter().filter(|node| node.kind == kind).count();
    Listed {
        name: state.name.clone(),
        pid: state.pid,
        uptime_s: state.uptime_s,
        switches: count("switch"),
        hosts: count("adapter"),
        programs: state.nodes.iter().map(|node| node.programs.len()).sum(),
    }
}

/// Writes a picture to a file.
pub(super) fn picture(name: &str, file: &Path) -> Outcome<()> {
    let picture = client::picture(name)?;
    std::fs::write(file, picture).doing(|| format!("write {file:?}"))?;
    complain(format_args!("wrote {}", file.display()));
    Ok(())
}

/// Shows a fabric, or one node of it.
pub(super) fn show(name: &str, node: Option<&str>, json: bool) -> Outcome<()> {
    let mut state = client::state(name)?;
    let whole = line_of(&state);
    if let Some(node) = node {
        let of_kind = |kind: &str| {
            let nodes = state.nodes.iter().filter(|one| one.kind == kind);
            client::some_of(nodes.map(|one| one.name.as_str()).collect())
        };
        let all = format!("hosts {}; switches {}", of_kind("adapter"), of_kind("switch"));
        state.nodes.retain(|one| one.name == node);
        if state.nodes.is_empty() {
            let text = format!("the fabric {name:?} has no node {node:?}; it has {all}");
            return Err(Failure::usage(text));
        }
        let prefix = format!("{node}:");
        state.cables.retain(|cable| cable.ends.iter().any(|end| end.starts_with(&prefix)));
    }
    if json { print_json(&state) } else { print(&text_of(&state, &whole, node.is_some())) }
}

/// Writes what `state` holds, the whole fabric or a node of it, below the line of the whole.
fn text_of(state: &State, listed: &Listed, in_detail: bool) -> String {
    let manager = state.manager.map_or("no subnet manager".to_owned(), |it| it.to_string());
    let mut text = format!(
        "fabric {:?}, process {}, {} s: {} switches, {} hosts, {} programs, {manager}\n",
        listed.name, listed.pid, listed.uptime_s, listed.switches, listed.hosts, listed.programs
    );
    text.push_str(&ports(state).render());
    for node in &state.nodes {
        programs(node, &mut text);
        if in_detail {
            details(node, &mut text);
        }
    }
    text
}

/// Returns the table of all ports that have a cable or a LID.
fn ports(state: &State) -> Table {
    let left = |name| (name, Align::Left);
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        left("port"),
        left("to"),
        left("state"),
        right("LID"),
        right("SM"),
        right("Gb/s"),
        right("load"),
        right("queued"),
        right("packets out"),
        right("in"),
        left("trouble"),
    ]);
    for node in &state.nodes {
        for port in node.ports.iter().filter(|port| port.peer.is_some() || port.lid != 0) {
            table.row(row(state, node, port));
        }
    }
    table
}

fn row(state: &State, node: &NodeState, port: &PortState) -> [String; 11] {
    let name = format!("{}:{}", node.name, port.port);
    let cable = state.cables.iter().find(|cable| cable.ends.contains(&name));
    let queued: u32 = port.lanes.iter().map(|lane| lane.queued_blocks).sum();
    let number = |value: u16| if value == 0 { "-".to_owned() } else { value.to_string() };
    let counter = |name: &str| {
        port.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
    };
    let mut trouble: Vec<_> = port.counters.iter().filter(|(name, _)| is_trouble(name)).collect();
    trouble.sort_by_key(|(_, value)| std::cmp::Reverse(*value));
    let mut trouble: Vec<_> =
        trouble.iter().take(3).map(|(name, value)| format!("{name} {value}")).collect();
    if cable.is_some_and(|cable| !cable.up) {
        trouble.insert(0, "cable pulled out".to_owned());
    }
    if let Some(cable) = cable.filter(|cable| cable.bit_error_rate > 0.0) {
        trouble.push(format!("bit errors {:e}", cable.bit_error_rate));
    }
    [
        name.clone(),
        port.peer.clone().unwrap_or_default(),
        port.state.clone(),
        number(port.lid),
        number(port.sm_lid),
        if port.peer.is_some() { format!("{:.1}", port.gbit_per_s) } else { String::new() },
        cable.map(|cable| format!("{:.0} %", cable.load * 100.0)).unwrap_or_default(),
        queued.to_string(),
        counter("PortXmitPkts").to_string(),
        counter("PortRcvPkts").to_string(),
        trouble.join(", "),
    ]
}

/// Whether a counter is of something that should not be.
fn is_trouble(name: &str) -> bool {
    !["Data", "Pkts"].iter().any(|end| name.ends_with(end)) && name != "PortXmitWait"
}

/// Writes a line for each program of a node.
fn programs(node: &NodeState, text: &mut String) {
    for program in &node.programs {
        text.push_str(&format!(
            "  {}: process {} in slot {}, {} packets out, {} in, {} refused, {} discarded, {} not \
             taken{}\n",
            node.name,
            program.pid,
            program.slot,
            program.sent,
            program.received,
            program.refused,
            program.discarded,
            program.not_taken,
            if program.blocked { ", takes nothing now" } else { "" }
        ));
        for (what, all) in [("listens", &program.services), ("in groups", &program.groups)] {
            if !all.is_empty() {
                text.push_str(&format!("    {what}: {}\n", all.join(", ")));
            }
        }
    }
}

/// Writes lanes and counters of a node.
fn details(node: &NodeState, text: &mut String) {
    let lost = node.undelivered;
    text.push_str(&format!(
        "  {} {} {}; undelivered: {} no program, {} no member, {} raw, {} no connection, {} no \
         agent, {} no datagram, {} misdirected\n",
        node.kind,
        node.name,
        node.guid,
        lost.no_program,
        lost.no_member,
        lost.raw,
        lost.no_connection,
        lost.no_agent,
        lost.no_datagram,
        lost.misdirected
    ));
    for port in &node.ports {
        for lane in &port.lanes {
            text.push_str(&format!(
                "  {}:{} VL{}: {} blocks queued, {} credits, {} free\n",
                node.name, port.port, lane.lane, lane.queued_blocks, lane.credits, lane.free_blocks
            ));
        }
        for (name, value) in &port.counters {
            text.push_str(&format!("  {}:{} {name} {value}\n", node.name, port.port));
        }
    }
}
