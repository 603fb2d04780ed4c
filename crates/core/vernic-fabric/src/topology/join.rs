//! Records to a plan: ids become nodes, and the two sides of a cable one cable.

use std::collections::BTreeMap;
use std::fmt;

use vernic_wire::{Guid, Lid, PortNum};

use super::check::{Lines, checked};
use super::error::{Problem, TopologyError};
use super::graph::{Cable, End, EndPort, Node, Topology, default_guid, end_port_index};
use super::guid;
use super::link::{Offer, best_speed, best_width, speed_words, width_words};
use super::rate::Rate;
use super::tail::Address;
use crate::attributes::NodeKind;

/// GUIDs that stand before a record.
#[derive(Clone, Copy)]
pub(super) struct NodeGuids {
    pub(super) kind: NodeKind,
    pub(super) node: u64,
    /// GUID of port 0 of a switch.
    pub(super) port: Option<u64>,
    pub(super) line: usize,
}

/// What is said of an end port, each with the line that says so.
#[derive(Clone, Default)]
pub(super) struct EndDraft {
    guid: Option<(u64, usize)>,
    lid: Option<(u16, usize)>,
    lmc: Option<(u8, usize)>,
}

/// A record of a node.
pub(super) struct Draft<'a> {
    pub(super) kind: NodeKind,
    pub(super) name: &'a str,
    /// Line on which the record begins.
    pub(super) line: usize,
    pub(super) ports: u8,
    pub(super) guid: Option<u64>,
    pub(super) system_guid: Option<u64>,
    pub(super) vendor_id: u32,
    pub(super) device_id: u16,
    pub(super) end_ports: Vec<EndDraft>,
    /// Ports that have a line, a bit for each.
    pub(super) listed: [u64; 4],
}

/// A cable as one of its ends lists it.
pub(super) struct Side<'a> {
    /// Index of the record that lists the cable.
    pub(super) node: usize,
    pub(super) near: u8,
    pub(super) far_id: &'a str,
    pub(super) far: u8,
    pub(super) far_guid: Option<u64>,
    pub(super) far_address: Address,
    pub(super) offer: Offer,
    pub(super) rate: Option<Rate>,
    pub(super) line: usize,
}

impl Draft<'_> {
    /// Notes what a line says of the end port behind `port`.
    pub(super) fn say(
        &mut self,
        port: PortNum,
        guid: Option<u64>,
        address: Address,
        line: usize,
    ) -> Result<(), Problem> {
        let (node, ports) = (self.name, self.ports);
        let no_such_port =
            || Problem::NoSuchPort { node: node.to_owned(), port: port.value(), ports };
        let end = end_port_index(self.kind, port)
            .and_then(|at| self.end_ports.get_mut(at))
            .ok_or_else(no_such_port)?;
        let disagree = |what, (here, there, other_line)| Problem::Disagree {
            node: node.to_owned(),
            port: port.value(),
            what,
            here,
            there,
            other_line,
        };
        let Address { lid, lmc } = address.known();
        note(&mut end.guid, guid, line).map_err(|(here, there, other)| {
            disagree("the GUID", (format!("{here:#x}"), format!("{there:#x}"), other))
        })?;
        note(&mut end.lid, lid, line).map_err(|why| disagree("the LID", words(why)))?;
        note(&mut end.lmc, lmc, line).map_err(|why| disagree("the LMC", words(why)))
    }

    /// The node of the record, which is the one with this index.
    fn node(&self, fabric: &str, index: usize) -> Node {
        let kind = self.kind;
        let node = self.guid.map_or_else(|| guid::of_node(fabric, index), Guid);
        let end_port = |(port, end): (u8, &EndDraft)| EndPort {
            guid: end.guid.map_or_else(|| default_guid(kind, node, port), |(guid, _)| Guid(guid)),
            lid: end.lid.map(|(lid, _)| Lid(lid)),
            lmc: end.lmc.map_or(0, |(lmc, _)| lmc),
        };
        Node {
            kind,
            name: self.name.to_owned(),
            guid: node,
            system_guid: self.system_guid.map_or(node, Guid),
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            ports: self.ports,
            end_ports: (1..=u8::MAX).zip(&self.end_ports).map(end_port).collect(),
        }
    }
}

/// Keeps a value with its line, unless another line gave another value: then returns this value,
/// that one and its line.
fn note<T: Copy + PartialEq>(
    slot: &mut Option<(T, usize)>,
    value: Option<T>,
    line: usize,
) -> Result<(), (T, T, usize)> {
    match (*slot, value) {
        (Some((there, other_line)), Some(here)) if there != here => Err((here, there, other_line)),
        (None, Some(here)) => {
            *slot = Some((here, line));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn words<T: fmt::Display>((here, there, line): (T, T, usize)) -> (String, String, usize) {
    (here.to_string(), there.to_string(), line)
}

/// Makes the plan of a fabric.
pub(super) fn join(
    mut drafts: Vec<Draft<'_>>,
    sides: &[Side<'_>],
    ids: &BTreeMap<&str, usize>,
    fabric: &str,
) -> Result<Topology, TopologyError> {
    let mut ends = Vec::new();
    for side in sides {
        let at = |problem| TopologyError::new(Some(side.line), problem);
        let Some(&node) = ids.get(side.far_id) else {
            let (node, id) = (drafts[side.node].name.to_owned(), side.far_id.to_owned());
            return Err(at(Problem::UnknownNode { node, port: side.near, id }));
        };
        let far = End { node, port: PortNum(side.far) };
        let draft = &mut drafts[node];
        draft.say(far.port, side.far_guid, side.far_address, side.line).map_err(at)?;
        let near = End { node: side.node, port: PortNum(side.near) };
        ends.push((near.key().min(far.key()), near.key().max(far.key()), side));
    }
    ends.sort_by_key(|(one, other, side)| (*one, *other, side.line));
    let (mut cables, mut lines) = (Vec::new(), Vec::new());
    for group in ends.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
        let (one, other, first) = group[0];
        // A port has one line in its record, so there is no third side.
        let last = group[group.len() - 1].2;
        let ends = [one, other].map(|(node, port)| End { node, port: PortNum(port) });
        let cable = merged(ends, first, last).map_err(|(what, (here, there, other_line))| {
            let (node, port) = (drafts[last.node].name.to_owned(), last.near);
            let problem = Problem::Disagree { node, port, what, here, there, other_line };
            TopologyError::new(Some(last.line), problem)
        })?;
        cables.push(cable);
        lines.push(last.line);
    }
    let nodes = drafts.iter().enumerate().map(|(at, draft)| draft.node(fabric, at)).collect();
    let lines = Lines { nodes: drafts.iter().map(|draft| draft.line).collect(), cables: lines };
    checked(nodes, cables, lines)
}

/// What two lines say differently: of this line, of the other, and the other's number.
type Difference = (&'static str, (String, String, usize));

/// The cable of two sides, which may be the same one.
fn merged(ends: [End; 2], first: &Side<'_>, last: &Side<'_>) -> Result<Cable, Difference> {
    let both =
        |what, here: Option<u8>, there: Option<u8>, words: fn(u8) -> String| match (here, there) {
            (Some(here), Some(there)) if here & there == 0 => {
                Err((what, (words(here), words(there), first.line)))
            }
            (Some(here), Some(there)) => Ok(Some(here & there)),
            (here, there) => Ok(here.or(there)),
        };
    let (here, there) = (last.offer, first.offer);
    let width = both("the width", here.width, there.width, width_words)?;
    let speed = both("the speed", here.speed, there.speed, speed_words)?;
    let rate = match (first.rate, last.rate) {
        (Some(there), Some(here)) if there != here => {
            return Err(("the rate", (here.to_string(), there.to_string(), first.line)));
        }
        (one, other) => one.or(other),
    };
    let width = width.and_then(best_width).unwrap_or_default();
    let speed = speed.and_then(best_speed).unwrap_or_default();
    Ok(Cable { ends, width, speed, rate })
}
