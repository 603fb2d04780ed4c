//! Whether nodes and cables make a plan that holds together.

use vernic_wire::{Guid, Lid, PortNum};

use super::error::{Problem, TopologyError};
use super::graph::{
    Cable, End, EndPort, MAX_CABLES, MAX_END_PORTS, MAX_NAME_BYTES, MAX_NODES, MAX_PORTS, Node,
    Topology, UsedEnds,
};
use crate::attributes::NodeKind;

/// The lines that nodes and cables were read from, each list empty if there is no text.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) nodes: Vec<usize>,
    pub(super) cables: Vec<usize>,
}

impl Topology {
    /// Builds a plan of nodes and of cables between them. The cables may be in any order and either
    /// way round; the plan sorts them.
    ///
    /// # Errors
    /// [`TopologyError`], without a line, for the first node, port or cable that cannot be. Causes
    /// are numbers and names out of range, a GUID or LID of two nodes, and a cable that ends
    /// nowhere or at a port that has another. Others are no nodes, more than [`MAX_NODES`], and
    /// more than [`MAX_END_PORTS`] or [`MAX_CABLES`].
    pub fn build(nodes: Vec<Node>, cables: Vec<Cable>) -> Result<Self, TopologyError> {
        checked(nodes, cables, Lines::default())
    }
}

/// Checks and sorts; errors have the lines that are known.
pub(super) fn checked(
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    lines: Lines,
) -> Result<Topology, TopologyError> {
    limits(&nodes, cables.len())?;
    for (at, node) in nodes.iter().enumerate() {
        check_node(node).map_err(|problem| TopologyError::new(line(&lines.nodes, at), problem))?;
    }
    check_guids(&nodes, &lines)?;
    check_lids(&nodes, &lines)?;
    let (cables, lines) = sorted(cables, &lines.cables);
    let ends = check_cables(&nodes, &cables, &lines)?;
    Ok(Topology::of_checked(nodes, cables, ends))
}

fn line(lines: &[usize], at: usize) -> Option<usize> {
    lines.get(at).copied()
}

fn limits(nodes: &[Node], cables: usize) -> Result<(), TopologyError> {
    let too_many =
        |what, limit, reason| TopologyError::new(None, Problem::TooMany { what, limit, reason });
    if nodes.is_empty() {
        let (what, reason) = ("nodes", "a text of comments alone has none");
        let problem = Problem::Shape { what, have: 0, least: 1, most: MAX_NODES, reason };
        return Err(TopologyError::new(None, problem));
    }
    if nodes.len() > MAX_NODES {
        return Err(too_many("nodes", MAX_NODES, NODES_REASON));
    }
    if nodes.iter().map(|node| node.end_ports.len()).sum::<usize>() > MAX_END_PORTS {
        return Err(too_many("ports of adapters and of switches", MAX_END_PORTS, END_PORTS_REASON));
    }
    if cables > MAX_CABLES {
        return Err(too_many("cables", MAX_CABLES, CABLES_REASON));
    }
    Ok(())
}

/// Why there are no more than [`MAX_NODES`] nodes.
pub(super) const NODES_REASON: &str =
    "each needs a LID, and a subnet has no more; a larger fabric is several subnets";
/// Why there are no more than [`MAX_END_PORTS`] end ports.
pub(super) const END_PORTS_REASON: &str =
    "each with a cable needs a LID, and a subnet has half as many; give adapters fewer ports";
/// Why there are no more than [`MAX_CABLES`] cables.
pub(super) const CABLES_REASON: &str = "a limit of this program, which bounds its memory";

fn check_node(node: &Node) -> Result<(), Problem> {
    let (name, guid) = (&node.name, node.guid);
    let must = |must| Err(Problem::Name { guid, name: shortened(name), must });
    if name.is_empty() {
        return must("have at least one character");
    }
    if name.len() > MAX_NAME_BYTES {
        return must("have at most 64 bytes of UTF-8, the length of a node description");
    }
    if name.chars().any(|c| c == '"' || c.is_control()) {
        return must("have no quotes and no control characters, which its text could not show");
    }
    let name = || name.clone();
    if node.ports == 0 || usize::from(node.ports) > MAX_PORTS {
        return Err(Problem::PortCount { node: name(), ports: u64::from(node.ports) });
    }
    let need = if node.kind == NodeKind::Switch { 1 } else { usize::from(node.ports) };
    if node.end_ports.len() != need {
        return Err(Problem::EndPortCount { node: name(), have: node.end_ports.len(), need });
    }
    if guid == Guid(0) {
        return Err(Problem::NoGuid { node: name(), port: None });
    }
    if node.vendor_id > 0xFF_FFFF {
        return Err(Problem::VendorId { node: name(), vendor_id: node.vendor_id });
    }
    for (port, end) in numbered(node) {
        if end.guid == Guid(0) {
            return Err(Problem::NoGuid { node: name(), port: Some(port) });
        }
        let lid = end.lid.map_or(0, Lid::value);
        let is_fine = match end.lid {
            None => end.lmc == 0,
            Some(lid) => {
                lid.is_unicast() && end.lmc <= 7 && lid.value().is_multiple_of(1 << end.lmc)
            }
        };
        if !is_fine {
            return Err(Problem::Lid { node: name(), port, lid, lmc: end.lmc });
        }
    }
    Ok(())
}

/// End ports with their numbers: of a switch port 0, of an adapter from 1.
fn numbered(node: &Node) -> impl Iterator<Item = (u8, &EndPort)> {
    let first = u8::from(node.kind == NodeKind::Adapter);
    (first..=u8::MAX).zip(&node.end_ports)
}

/// The beginning of a name that is too long for an error.
fn shortened(name: &str) -> String {
    let mut short: String = name.chars().take(MAX_NAME_BYTES).collect();
    if short.len() < name.len() {
        short.push_str("...");
    }
    short
}

/// No two nodes and no two ports have one GUID.
fn check_guids(nodes: &[Node], lines: &Lines) -> Result<(), TopologyError> {
    let of_nodes = nodes.iter().enumerate().map(|(at, node)| (node.guid.value(), at));
    let of_ports = nodes
        .iter()
        .enumerate()
        .flat_map(|(at, node)| node.end_ports.iter().map(move |end| (end.guid.value(), at)));
    for (mut guids, is_of_ports) in
        [(of_nodes.collect::<Vec<_>>(), false), (of_ports.collect::<Vec<_>>(), true)]
    {
        guids.sort_unstable();
        if let Some(pair) = guids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let ((guid, first), (_, at)) = (pair[0], pair[1]);
            let nodes = [nodes[at].name.clone(), nodes[first].name.clone()];
            let (guid, other_line) = (Guid(guid), line(&lines.nodes, first));
            let problem = Problem::GuidTwice { guid, nodes, is_of_ports, other_line };
            return Err(TopologyError::new(line(&lines.nodes, at), problem));
        }
    }
    Ok(())
}

/// No LID is of two ports, all LIDs of a port counted.
fn check_lids(nodes: &[Node], lines: &Lines) -> Result<(), TopologyError> {
    let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        for end in &node.end_ports {
            let first = end.lid.map(Lid::value);
            ranges.extend(first.map(|first| (first, first | ((1 << end.lmc) - 1), at)));
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((_, last, first), (lid, _, at)) = (pair[0], pair[1]);
        if lid <= last {
            let nodes = [nodes[at].name.clone(), nodes[first].name.clone()];
            let problem = Problem::LidTwice { lid, nodes, other_line: line(&lines.nodes, first) };
            return Err(TopologyError::new(line(&lines.nodes, at), problem));
        }
    }
    Ok(())
}

/// Cables with their first ends first, by their first ends; and their lines in the same order.
fn sorted(mut cables: Vec<Cable>, lines: &[usize]) -> (Vec<Cable>, Vec<usize>) {
    for cable in &mut cables {
        cable.ends.sort_by_key(|end| end.key());
    }
    let mut order: Vec<usize> = (0..cables.len()).collect();
    order.sort_by_key(|at| cables[*at].ends.map(End::key));
    let lines = order.iter().filter_map(|at| line(lines, *at)).collect();
    (order.iter().map(|at| cables[*at]).collect(), lines)
}

/// Every end is at a port that exists, and no port has two cables. Returns the sorted ends.
fn check_cables(
    nodes: &[Node],
    cables: &[Cable],
    lines: &[usize],
) -> Result<UsedEnds, TopologyError> {
    for (at, cable) in cables.iter().enumerate() {
        check_ends(nodes, cable).map_err(|problem| TopologyError::new(line(lines, at), problem))?;
    }
    let of_cable = |(at, cable): (usize, &Cable)| cable.ends.map(|end| (end.key(), at));
    let mut ends: Vec<_> = cables.iter().enumerate().flat_map(of_cable).collect();
    ends.sort_unstable();
    for pair in ends.windows(2) {
        let (((node, port), first), (key, at)) = (pair[0], pair[1]);
        if (node, port) == key {
            // The later line is the one to name, whichever cable sorts first.
            let (first, at) =
                if line(lines, at) < line(lines, first) { (at, first) } else { (first, at) };
            let here = End { node, port: PortNum(port) };
            let peers = [at, first].map(|cable| far_end(nodes, &cables[cable], here));
            let (node, other_line) = (nodes[node].name.clone(), line(lines, first));
            let problem = Problem::PortTwice { node, port, peers, other_line };
            return Err(TopologyError::new(line(lines, at), problem));
        }
    }
    Ok(ends)
}

fn check_ends(nodes: &[Node], cable: &Cable) -> Result<(), Problem> {
    for end in cable.ends {
        let Some(node) = nodes.get(end.node) else {
            return Err(Problem::NoSuchNode { index: end.node, nodes: nodes.len() });
        };
        let (port, ports) = (end.port.value(), node.ports);
        if port == 0 || port > ports {
            return Err(Problem::NoSuchPort { node: node.name.clone(), port, ports });
        }
    }
    let [one, other] = cable.ends;
    if one == other {
        let node = nodes[one.node].name.clone();
        return Err(Problem::OnePort { node, port: one.port.value() });
    }
    Ok(())
}

/// The far end of a cable in words.
fn far_end(nodes: &[Node], cable: &Cable, near: End) -> String {
    let [one, other] = cable.ends;
    let far = if one == near { other } else { one };
    format!("port {} of {:?}", far.port, nodes[far.node].name)
}
