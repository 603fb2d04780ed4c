//! A plan as the text that `ibsim` and [`Topology::parse`] read.

use std::fmt::{self, Display, Formatter};

use vernic_wire::{Lid, PortNum};

use super::graph::{Cable, End, EndPort, Node, Topology, default_guid};
use super::link::{ibsim_speed, lanes, speed_name};
use crate::attributes::NodeKind;

impl Display for Topology {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (switches, adapters) = (self.count(NodeKind::Switch), self.count(NodeKind::Adapter));
        let cables = self.cables().len();
        writeln!(f, "# Topology file: {switches} switches, {adapters} adapters, {cables} cables")?;
        for (at, node) in self.nodes().iter().enumerate() {
            write_node(f, node)?;
            for (port, cable) in self.ends_at(at) {
                let near = End { node: at, port };
                write_port(f, self, near, &self.cables()[cable])?;
            }
            write_spare_ports(f, self, at)?;
        }
        Ok(())
    }
}

/// A node's id in the text.
struct Id<'a>(&'a Node);

impl Display for Id<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let letter = if self.0.kind == NodeKind::Switch { 'S' } else { 'H' };
        write!(f, "\"{letter}-{:016x}\"", self.0.guid.value())
    }
}

/// LID of an end port, 0 for none.
fn lid(end: Option<&EndPort>) -> u16 {
    end.and_then(|end| end.lid).map_or(0, Lid::value)
}

/// GUID of an adapter's port in brackets; of a switch nothing.
struct PortGuid<'a>(&'a Node, PortNum);

impl Display for PortGuid<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.end_port(self.1) {
            Some(end) if self.0.kind == NodeKind::Adapter => {
                write!(f, "({:x})", end.guid.value())
            }
            _ => Ok(()),
        }
    }
}

fn write_node(f: &mut Formatter<'_>, node: &Node) -> fmt::Result {
    writeln!(f, "\nvendid={:#x}\ndevid={:#x}", node.vendor_id, node.device_id)?;
    writeln!(f, "sysimgguid={:#x}", node.system_guid.value())?;
    let (ports, name) = (node.ports, &node.name);
    match (node.kind, node.end_ports.first()) {
        (NodeKind::Switch, Some(end)) => {
            writeln!(f, "switchguid={:#x}({:x})", node.guid.value(), end.guid.value())?;
            let (lid, lmc) = (lid(Some(end)), end.lmc);
            writeln!(
                f,
                "Switch\t{ports} {}\t\t# \"{name}\" base port 0 lid {lid} lmc {lmc}",
                Id(node)
            )
        }
        _ => {
            writeln!(f, "caguid={:#x}", node.guid.value())?;
            writeln!(f, "Ca\t{ports} {}\t\t# \"{name}\"", Id(node))
        }
    }
}

fn write_port(f: &mut Formatter<'_>, plan: &Topology, near: End, cable: &Cable) -> fmt::Result {
    let far = if cable.ends[0] == near { cable.ends[1] } else { cable.ends[0] };
    let (node, other) = (&plan.nodes()[near.node], &plan.nodes()[far.node]);
    write!(f, "[{}]{}\t{}", near.port, PortGuid(node, near.port), Id(other))?;
    write!(f, "[{}]{}", far.port, PortGuid(other, far.port))?;
    write!(f, " w={} s={}\t\t#", cable.width as u8, ibsim_speed(cable.speed))?;
    if node.kind == NodeKind::Adapter {
        let end = node.end_port(near.port);
        write!(f, " lid {} lmc {}", lid(end), end.map_or(0, |end| end.lmc))?;
    }
    // A name with = would be an option to ibsim. It is a comment, so it can be left out.
    let name = if other.name.contains('=') { "" } else { &other.name };
    write!(f, " \"{name}\" lid {}", lid(other.end_port(far.port)))?;
    write!(f, " {}x{}", lanes(cable.width), speed_name(cable.speed))?;
    match cable.rate {
        Some(rate) => writeln!(f, " rate {rate}"),
        None => writeln!(f),
    }
}

/// Ports of an adapter that have no cable, and a GUID or LID that would not be read otherwise.
fn write_spare_ports(f: &mut Formatter<'_>, plan: &Topology, at: usize) -> fmt::Result {
    let node = &plan.nodes()[at];
    if node.kind == NodeKind::Switch {
        return Ok(());
    }
    for (port, end) in (1..=u8::MAX).zip(&node.end_ports) {
        let is_usual = end.guid == default_guid(node.kind, node.guid, port) && end.lid.is_none();
        if !is_usual && plan.cable_at(End { node: at, port: PortNum(port) }).is_none() {
            let (guid, lid) = (end.guid.value(), lid(Some(end)));
            writeln!(f, "port {port}({guid:x}) lid {lid} lmc {}", end.lmc)?;
        }
    }
    Ok(())
}
