//! Which plan a fabric has.

use vernic_fabric::attributes::NodeKind;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;

use super::PlanArguments;
use crate::failure::{Doing as _, Failure, Outcome};

/// Bytes of the longest file that is read: a plan of the most nodes and cables has fewer.
const MAX_FILE: u64 = 512 * 1024 * 1024;

/// Reads or makes the plan of the fabric called `name`.
pub(super) fn plan(arguments: &PlanArguments, name: &str) -> Outcome<Topology> {
    let made = match *arguments {
        PlanArguments { tree: Some([spines, leaves, hosts]), .. } => {
            Topology::tree(name, spines, leaves, hosts)
        }
        PlanArguments { ring: Some([switches, hosts]), .. } => {
            Topology::ring(name, switches, hosts)
        }
        PlanArguments { line: Some([switches, hosts]), .. } => {
            Topology::line(name, switches, hosts)
        }
        PlanArguments { single: Some(hosts), .. } => Topology::single(name, hosts),
        PlanArguments { file: Some(ref file), .. } => {
            let doing = || format!("read the topology {file:?}");
            let len = std::fs::metadata(file).doing(doing).map_err(Failure::into_usage)?.len();
            if len > MAX_FILE {
                return Err(Failure::usage(format!("{file:?} has {len} bytes: no topology has")));
            }
            let text = std::fs::read_to_string(file).doing(doing).map_err(Failure::into_usage)?;
            return Topology::parse(&text, name)
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())));
        }
        PlanArguments { .. } => {
            return Err(Failure::usage("a fabric needs a plan: a file, --tree, --ring, ..."));
        }
    };
    made.map_err(|error| Failure::usage(error.to_string()))
}

/// Gives each switch of a plan so many ports more, which have no cable.
pub(super) fn with_spare_ports(plan: Topology, spare: u8) -> Outcome<Topology> {
    if spare == 0 {
        return Ok(plan);
    }
    let mut nodes = plan.nodes().to_vec();
    for node in nodes.iter_mut().filter(|node| node.kind == NodeKind::Switch) {
        node.ports = node.ports.checked_add(spare).ok_or_else(|| {
            let (name, has) = (&node.name, node.ports);
            Failure::usage(format!("{name} has {has} ports, and a switch has 254 at most"))
        })?;
    }
    let made = Topology::build(nodes, plan.cables().to_vec());
    made.map_err(|error| Failure::usage(error.to_string()))
}

/// Reads numbers between commas.
pub(super) fn parse_counts<const N: usize>(text: &str) -> Result<[usize; N], String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(|word| word.trim().parse()).collect();
    let wrong = || format!("{N} numbers are wanted, with commas between");
    numbers.map_err(|_| wrong())?.try_into().map_err(|_| wrong())
}

/// Reads a number of data lanes (IBTA 7.6.4).
pub(super) fn parse_lanes(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(lanes @ (1 | 2 | 4 | 8 | 15)) => Ok(lanes),
        _ => Err("ports have 1, 2, 4, 8 or 15 data lanes".to_owned()),
    }
}

/// Reads how a subnet manager leads packets, by the names that OpenSM has for it.
pub(super) fn parse_routing(text: &str) -> Result<Routing, String> {
    match text {
        "minhop" => Ok(Routing::MinHop),
        "updn" => Ok(Routing::UpDown),
        _ => Err("the own subnet manager routes by minhop or updn; OpenSM has others".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_get_spare_ports_and_hosts_none() {
        let tree = || Topology::tree("lab", 2, 2, 4).unwrap();
        let ports = |plan: &Topology, kind| {
            let of_kind = plan.nodes().iter().filter(move |node| node.kind == kind);
            of_kind.map(|node| node.ports).collect::<Vec<_>>()
        };
        let (plan, more) = (tree(), with_spare_ports(tree(), 3).unwrap());
        let switches = ports(&plan, NodeKind::Switch).into_iter().map(|ports| ports + 3);
        assert_eq!(ports(&more, NodeKind::Switch), switches.collect::<Vec<_>>());
        assert_eq!(ports(&more, NodeKind::Adapter), ports(&plan, NodeKind::Adapter));
        assert_eq!(more.cables().len(), plan.cables().len());
        assert!(with_spare_ports(tree(), 255).is_err());
    }

    #[test]
    fn counts_are_numbers_between_commas() {
        assert_eq!(parse_counts::<3>("2,4, 16"), Ok([2, 4, 16]));
        for wrong in ["", "2,4", "2,4,16,3", "2,4,-1", "2,4,x", "2;4;16"] {
            assert!(parse_counts::<3>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_lanes("15"), Ok(15));
        assert!(parse_lanes("3").is_err() && parse_lanes("x").is_err());
    }
}
