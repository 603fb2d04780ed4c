//! Who is connected with whom: the shapes of networks, and their cables.
//!
//! Owns the plan of nodes and cables. Hosts are numbered first, then switches, those of the edge
//! before all others. Nothing here changes during a run.

use std::fmt;
use std::str::FromStr;

use super::units::Rate;

/// Largest fat tree: 8192 hosts.
const MOST_PORTS: u32 = 32;
/// Most hosts of a dumbbell's side, or senders of an incast: what one switch may have as ports.
const MOST_AT_A_SWITCH: u32 = 1024;

/// The shape of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A fat tree of switches with so many ports: `K^3/4` hosts.
    FatTree(u32),
    /// So many hosts at each of two switches, and one link between these.
    Dumbbell(u32),
    /// So many senders and one receiver, at one switch.
    Incast(u32),
    /// The fat tree of the HPCC paper (SIGCOMM 2019): 16 core, 20 aggregation and 20 edge switches,
    /// 320 hosts. Links between switches have four times the rate of hosts.
    Hpcc,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let read = |default: u32, least: u32, most: u32| {
            let value = number.map_or(Ok(default), str::parse);
            value.ok().filter(|value| (least..=most).contains(value)).ok_or_else(|| {
                let number = number.unwrap_or_default();
                format!("`{number}` in `{text}` is not allowed: {least} to {most}")
            })
        };
        match name {
            "fat-tree" => match read(0, 4, MOST_PORTS) {
                Ok(ports) if ports % 2 == 0 => Ok(Self::FatTree(ports)),
                _ => Err(format!(
                    "`{text}`: a fat tree is of switches with an even number of ports, 4 to \
                     {MOST_PORTS}, as in fat-tree:16 (1024 hosts)"
                )),
            },
            "dumbbell" => read(2, 1, MOST_AT_A_SWITCH).map(Self::Dumbbell),
            "incast" => read(8, 1, MOST_AT_A_SWITCH).map(Self::Incast),
            "hpcc" if number.is_none() => Ok(Self::Hpcc),
            _ => Err(format!(
                "`{text}` is no topology: fat-tree:K, dumbbell:N, incast:N or hpcc, as in \
                 fat-tree:8"
            )),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FatTree(ports) => write!(f, "fat-tree:{ports}"),
            Self::Dumbbell(pairs) => write!(f, "dumbbell:{pairs}"),
            Self::Incast(senders) => write!(f, "incast:{senders}"),
            Self::Hpcc => f.write_str("hpcc"),
        }
    }
}

/// A cable between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable {
    pub(super) ends: [u32; 2],
    pub(super) rate: Rate,
}

/// Nodes and cables. A cable has two ports: that of its first end is `2 * index`, that of the
/// other one more, so a port's peer differs in the lowest bit. The cables of hosts come first, in
/// the order of hosts, so the port of a host is twice its number.
#[derive(Debug)]
pub(super) struct Topology {
    /// Hosts; their numbers are the first ones.
    pub(super) hosts: u32,
    /// Switches that hosts are at; their numbers follow.
    pub(super) edges: u32,
    /// All switches.
    pub(super) switches: u32,
    pub(super) cables: Vec<Cable>,
    /// Hosts that may send, and hosts that may receive.
    pub(super) senders: Vec<u32>,
    pub(super) receivers: Vec<u32>,
    /// What can be sent to all receivers together, in Gb/s.
    pub(super) capacity: u64,
}

impl Topology {
    /// Builds a shape. `hosts` says how many of its hosts take part, evenly spread.
    ///
    /// # Errors
    /// More hosts than the shape has, or fewer than two.
    pub(super) fn new(shape: Shape, rate: Rate, hosts: Option<u32>) -> Result<Self, String> {
        let mut plan = match shape {
            Shape::FatTree(ports) => {
                let half = ports / 2;
                Clos { pods: ports, edges: half, tops: half, cores: half, hosts: half }
                    .build(rate, rate)
            }
            Shape::Hpcc => Clos { pods: 5, edges: 4, tops: 4, cores: 4, hosts: 16 }
                .build(rate, rate.fourfold()),
            Shape::Dumbbell(pairs) => Self::dumbbell(rate, pairs),
            Shape::Incast(senders) => Self::incast(rate, senders),
        };
        let Some(wanted) = hosts else { return Ok(plan) };
        let (total, least) = (plan.hosts, 2);
        if !(least..=total).contains(&wanted) {
            return Err(format!(
                "{wanted} hosts: {shape} has {total}, and at least {least} take part"
            ));
        }
        match shape {
            Shape::FatTree(_) | Shape::Hpcc => {
                let spread = |at| (u64::from(at) * u64::from(total) / u64::from(wanted)) as u32;
                plan.senders = (0..wanted).map(spread).collect();
                plan.receivers = plan.senders.clone();
                plan.capacity = u64::from(wanted) * u64::from(rate.gbps());
                Ok(plan)
            }
            _ if wanted == total => Ok(plan),
            _ => Err(format!("{wanted} hosts: {shape} has {total}; say its number of hosts there")),
        }
    }

    fn dumbbell(rate: Rate, pairs: u32) -> Self {
        let hosts = 2 * pairs;
        let side = |host| hosts + u32::from(host >= pairs);
        let mut cables: Vec<_> =
            (0..hosts).map(|host| Cable { ends: [host, side(host)], rate }).collect();
        cables.push(Cable { ends: [hosts, hosts + 1], rate });
        Self {
            hosts,
            edges: 2,
            switches: 2,
            cables,
            senders: (0..pairs).collect(),
            receivers: (pairs..hosts).collect(),
            capacity: u64::from(rate.gbps()),
        }
    }

    fn incast(rate: Rate, senders: u32) -> Self {
        let hosts = senders + 1;
        Self {
            hosts,
            edges: 1,
            switches: 1,
            cables: (0..hosts).map(|host| Cable { ends: [host, hosts], rate }).collect(),
            senders: (1..hosts).collect(),
            receivers: vec![0],
            capacity: u64::from(rate.gbps()),
        }
    }

    /// Whether a node is a switch.
    pub(super) fn is_switch(&self, node: u32) -> bool {
        node >= self.hosts
    }
}

/// A folded Clos network of three stages.
struct Clos {
    pods: u32,
    /// Edge switches of a pod.
    edges: u32,
    /// Aggregation switches of a pod.
    tops: u32,
    /// Core switches that each aggregation switch is connected with.
    cores: u32,
    /// Hosts of an edge switch.
    hosts: u32,
}

impl Clos {
    fn build(&self, host_rate: Rate, rate: Rate) -> Topology {
        let Self { pods, edges, tops, cores, hosts } = *self;
        let total = pods * edges * hosts;
        let (first_edge, first_top) = (total, total + pods * edges);
        let first_core = first_top + pods * tops;
        let mut cables: Vec<_> = (0..total)
            .map(|host| Cable { ends: [host, first_edge + host / hosts], rate: host_rate })
            .collect();
        for pod in 0..pods {
            for edge in 0..edges {
                let ends = |top| [first_edge + pod * edges + edge, first_top + pod * tops + top];
                cables.extend((0..tops).map(|top| Cable { ends: ends(top), rate }));
            }
            for top in 0..tops {
                let ends = |core| [first_top + pod * tops + top, first_core + top * cores + core];
                cables.extend((0..cores).map(|core| Cable { ends: ends(core), rate }));
            }
        }
        Topology {
            hosts: total,
            edges: pods * edges,
            switches: pods * (edges + tops) + tops * cores,
            cables,
            senders: (0..total).collect(),
            receivers: (0..total).collect(),
            capacity: u64::from(total) * u64::from(host_rate.gbps()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str, hosts: Option<u32>) -> Result<Topology, String> {
        Topology::new(text.parse()?, Rate::new(100)?, hosts)
    }

    #[test]
    fn shapes_have_the_nodes_and_cables_that_their_papers_say() {
        let counts = |text| {
            let plan = plan(text, None).unwrap();
            (plan.hosts, plan.switches, plan.cables.len())
        };
        assert_eq!(counts("fat-tree:4"), (16, 20, 48));
        assert_eq!(counts("fat-tree:16"), (1024, 320, 3072));
        // The file of the paper's simulation says "376 56 480": nodes, switches, links.
        assert_eq!(counts("hpcc"), (320, 56, 480));
        assert_eq!(counts("dumbbell:3"), (6, 2, 7));
        assert_eq!(counts("incast:8"), (9, 1, 9));
    }

    #[test]
    fn hosts_that_take_part_are_spread_over_the_tree() {
        assert_eq!(plan("fat-tree:4", Some(4)).unwrap().senders, [0, 4, 8, 12]);
    }

    #[test]
    fn a_wrong_shape_is_named_with_what_is_allowed() {
        for (text, words) in [
            ("fat-tree:5", "even number of ports, 4 to 32"),
            ("ring:4", "`ring:4` is no topology"),
            ("incast:0", "1 to 1024"),
            ("dumbbell:x", "`x` in `dumbbell:x`"),
        ] {
            assert!(text.parse::<Shape>().unwrap_err().contains(words), "{text}");
        }
        assert!(plan("fat-tree:4", Some(17)).unwrap_err().contains("fat-tree:4 has 16"));
        assert!(plan("incast:4", Some(3)).unwrap_err().contains("incast:4 has 5"));
    }
}
