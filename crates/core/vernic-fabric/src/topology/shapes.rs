//! Plans of usual shapes: trees, rings, lines, a single switch.

use vernic_wire::PortNum;

use super::error::{Problem, TopologyError};
use super::graph::{Cable, End, MAX_NODES, MAX_PORTS, Node, Topology};
use super::guid;
use crate::attributes::NodeKind;

/// Why a switch has no more than [`MAX_PORTS`] ports.
const PORTS_REASON: &str =
    "a port is a number of 8 bits, 255 means none; use more switches with fewer hosts each";

impl Topology {
    /// Plans a fat tree of two levels: every leaf has a cable to every spine. The hosts are spread
    /// over the leaves evenly: no leaf has two more than another.
    ///
    /// Spines are called `spine1` and so on, leaves `leaf1`, hosts `h1`; hosts with neighbouring
    /// numbers share a leaf. Leaf ports from 1 on are for hosts, those above for spines in their
    /// order; port `n` of a spine leads to leaf `n`. GUIDs follow from `fabric`, a name for it.
    ///
    /// # Errors
    /// [`Problem::Shape`]: spines or leaves not 1 to 254, or leaves of more than 254 ports, or more
    /// nodes than [`MAX_NODES`].
    ///
    /// ```
    /// use vernic_fabric::topology::Topology;
    ///
    /// let fabric = Topology::tree("lab", 18, 36, 648)?;
    /// assert_eq!((fabric.nodes().len(), fabric.cables().len()), (702, 1296));
    /// assert!(fabric.nodes().iter().take(54).all(|switch| switch.ports == 36));
    /// # Ok::<(), vernic_fabric::topology::TopologyError>(())
    /// ```
    pub fn tree(
        fabric: &str,
        spines: usize,
        leaves: usize,
        hosts: usize,
    ) -> Result<Self, TopologyError> {
        within("spines", spines, 1, MAX_PORTS - 1, "each takes a port of every leaf")?;
        within("leaves", leaves, 1, MAX_PORTS, "each takes a port of every spine")?;
        let mut plan = Plan::new(fabric, spines + leaves, hosts)?;
        let down = plan.hosts_each(leaves, spines)?;
        let mut switches = Vec::new();
        for spine in 0..spines {
            switches.push(plan.node(NodeKind::Switch, &format!("spine{}", spine + 1), leaves));
        }
        for leaf in 0..leaves {
            let at = plan.node(NodeKind::Switch, &format!("leaf{}", leaf + 1), down + spines);
            for (spine, spine_at) in switches.iter().enumerate().take(spines) {
                plan.cable((at, down + spine + 1), (*spine_at, leaf + 1));
            }
            switches.push(at);
        }
        plan.spread_hosts(&switches[spines..], 1, hosts);
        plan.build()
    }

    /// Plans a ring of switches `sw1`, `sw2` and so on, with hosts `h1` and so on spread over them.
    /// Port 1 of a switch leads to the switch before, port 2 to the next, those from 3 on to hosts.
    ///
    /// # Errors
    /// [`Problem::Shape`]: less than 3 switches, or more than 252 hosts at one, or more nodes than
    /// [`MAX_NODES`].
    pub fn ring(fabric: &str, switches: usize, hosts: usize) -> Result<Self, TopologyError> {
        within("switches", switches, 3, MAX_NODES, "less than 3 make no ring; two make a line")?;
        Self::chain(fabric, switches, hosts, true)
    }

    /// Plans a line of switches `sw1`, `sw2` and so on, with hosts `h1` and so on spread over them.
    /// Ports are those of a [`ring`](Topology::ring); port 1 of the first switch and port 2 of the
    /// last have no cable.
    ///
    /// # Errors
    /// [`Problem::Shape`]: no switch, or more than 252 hosts at one, or more nodes than
    /// [`MAX_NODES`].
    pub fn line(fabric: &str, switches: usize, hosts: usize) -> Result<Self, TopologyError> {
        within("switches", switches, 1, MAX_NODES, "a line has at least one")?;
        Self::chain(fabric, switches, hosts, false)
    }

    /// Plans one switch, `sw1`, with hosts `h1` and so on; port `n` leads to host `n`.
    ///
    /// # Errors
    /// [`Problem::Shape`]: hosts not 1 to 254.
    pub fn single(fabric: &str, hosts: usize) -> Result<Self, TopologyError> {
        within("hosts", hosts, 1, MAX_PORTS, "each takes a port of the only switch")?;
        let mut plan = Plan::new(fabric, 1, hosts)?;
        let switch = plan.node(NodeKind::Switch, "sw1", hosts);
        plan.spread_hosts(&[switch], 1, hosts);
        plan.build()
    }

    fn chain(
        fabric: &str,
        switches: usize,
        hosts: usize,
        is_closed: bool,
    ) -> Result<Self, TopologyError> {
        let mut plan = Plan::new(fabric, switches, hosts)?;
        let ports = 2 + plan.hosts_each(switches, 2)?;
        let row: Vec<_> = (1..=switches)
            .map(|number| plan.node(NodeKind::Switch, &format!("sw{number}"), ports))
            .collect();
        for pair in row.windows(2) {
            plan.cable((pair[0], 2), (pair[1], 1));
        }
        if is_closed {
            plan.cable((row[switches - 1], 2), (row[0], 1));
        }
        plan.spread_hosts(&row, 3, hosts);
        plan.build()
    }
}

/// Whether a number that makes a shape is within its limits.
fn within(
    what: &'static str,
    have: usize,
    least: usize,
    most: usize,
    reason: &'static str,
) -> Result<(), TopologyError> {
    if (least..=most).contains(&have) {
        return Ok(());
    }
    Err(TopologyError::new(None, Problem::Shape { what, have, least, most, reason }))
}

/// A plan that grows. Numbers of nodes and ports were checked before.
struct Plan<'a> {
    fabric: &'a str,
    hosts: usize,
    nodes: Vec<Node>,
    cables: Vec<Cable>,
}

impl<'a> Plan<'a> {
    fn new(fabric: &'a str, switches: usize, hosts: usize) -> Result<Self, TopologyError> {
        let reason = "each node needs a LID, and a subnet has no more; use fewer hosts";
        let total = switches.saturating_add(hosts);
        within("switches and hosts", total, 1, MAX_NODES, reason)?;
        Ok(Self { fabric, hosts, nodes: Vec::new(), cables: Vec::new() })
    }

    /// The most hosts at one of so many switches, each of which has `others` ports for switches.
    fn hosts_each(&self, switches: usize, others: usize) -> Result<usize, TopologyError> {
        let each = self.hosts.div_ceil(switches);
        within("ports of a switch with hosts", each + others, 1, MAX_PORTS, PORTS_REASON)?;
        Ok(each)
    }

    fn node(&mut self, kind: NodeKind, name: &str, ports: usize) -> usize {
        let at = self.nodes.len();
        let ports = u8::try_from(ports).unwrap_or(u8::MAX);
        self.nodes.push(Node::new(kind, name, guid::of_node(self.fabric, at), ports));
        at
    }

    fn cable(&mut self, one: (usize, usize), other: (usize, usize)) {
        let end = |(node, port)| End { node, port: PortNum(u8::try_from(port).unwrap_or(u8::MAX)) };
        self.cables.push(Cable::new(end(one), end(other)));
    }

    /// Adds the hosts, each with one port, on ports of the switches from `first_port` on.
    fn spread_hosts(&mut self, switches: &[usize], first_port: usize, hosts: usize) {
        let (each, more) = (hosts / switches.len(), hosts % switches.len());
        let mut number = 0;
        for (at, switch) in switches.iter().enumerate() {
            for port in 0..each + usize::from(at < more) {
                number += 1;
                let host = self.node(NodeKind::Adapter, &format!("h{number}"), 1);
                self.cable((*switch, first_port + port), (host, 1));
            }
        }
    }

    fn build(self) -> Result<Topology, TopologyError> {
        Topology::build(self.nodes, self.cables)
    }
}
