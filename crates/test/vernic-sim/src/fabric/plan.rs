//! What a run is: drawn from a seed, or a tree with chosen faults.

use std::fmt;

use vernic_fabric::attributes::NodeKind;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::{Topology, TopologyError};
use vernic_wire::Mtu;

use crate::rng::{Rng, mix};

/// Nanoseconds that a cable stays cut, of those that nothing stands in for.
const HOST_CUT_NS: u64 = 20_000_000;

/// What is broken on purpose, so that the oracle must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mutation {
    /// Nothing.
    #[default]
    None,
    /// A sender gathers a wrong byte.
    WrongByte,
    /// A receiver's packet is dropped in a fabric that must not lose any.
    LostPacket,
    /// A packet is handed to another host than the one that it arrived at.
    WrongHost,
}

/// What happens while messages are under way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    /// A cable, by its place in the topology, is cut for so many nanoseconds.
    Cut(usize, u64),
    /// From now on so many bits of one are wrong, on every cable.
    BitErrors(f64),
}

/// A run to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What lengths, contents and wrong bits follow from.
    pub seed: u64,
    /// Nodes and cables.
    pub topology: Topology,
    /// How the manager leads packets.
    pub routing: Routing,
    /// Milliseconds until the manager asks again.
    pub manager_timeout_ms: u32,
    /// Messages from each host to each other one.
    pub messages: u32,
    /// Messages to a peer before those to the next one: 1 to 4.
    pub burst: u32,
    /// Messages of a host that are posted and not complete, at most.
    pub window: u32,
    /// The path MTU.
    pub mtu: Mtu,
    /// The longest message in bytes, at most 1 MiB.
    pub max_len: u32,
    /// What happens, in the order of how many messages are complete by then.
    pub deeds: Vec<(u64, Deed)>,
    /// What is broken on purpose.
    pub mutation: Mutation,
}

/// What a tree of chosen size carries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TreeOptions {
    /// Messages from each host to each other one.
    pub messages: u32,
    /// The longest message in bytes.
    pub max_len: u32,
    /// Cables between switches that are cut, one after the other.
    pub cuts: u32,
    /// Wrong bits in one, on every cable.
    pub bit_errors: f64,
}

impl Plan {
    /// Draws a small fabric and what it suffers.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xFAB0);
        let hosts = rng.range(2, 10) as usize;
        let (topology, is_tree) = match rng.below(5) {
            0 => (Topology::single("sim", hosts), true),
            1 => (Topology::line("sim", rng.range(2, 4) as usize, hosts), true),
            2 => (Topology::ring("sim", rng.range(3, 5) as usize, hosts), false),
            _ => {
                let (spines, leaves) = (rng.range(2, 3) as usize, rng.range(2, 4) as usize);
                (Topology::tree("sim", spines, leaves, hosts), true)
            }
        };
        let topology = topology.expect("a shape with few nodes");
        // Around a ring, packets can wait for each other in a circle.
        let may_be_shortest = is_tree && rng.percent(50);
        let mut plan = Self {
            seed,
            topology,
            routing: if may_be_shortest { Routing::MinHop } else { Routing::UpDown },
            manager_timeout_ms: rng.pick(&[5, 50, 200]),
            messages: rng.range(1, 12) as u32,
            burst: rng.range(1, 4) as u32,
            window: rng.pick(&[1, 4, 16, 64]),
            mtu: rng.pick(&[Mtu::B256, Mtu::B1024, Mtu::B2048, Mtu::B4096]),
            max_len: rng.pick(&[64, 4_096, 20_000]),
            deeds: Vec::new(),
            mutation: Mutation::None,
        };
        let cuts = if rng.percent(50) { rng.range(1, 4) } else { 0 };
        plan.add_cuts(cuts as u32, &mut rng);
        if rng.percent(40) {
            // At most 3 of 100 packets are damaged on a cable, so that retries get through.
            let rate = rng.pick(&[1e-7, 1e-6, 2.56e-3 / f64::from(plan.mtu.bytes())]);
            plan.add_deed(rng.below(plan.total() / 2 + 1), Deed::BitErrors(rate));
        }
        plan
    }
    /// Plans a fat tree of two levels.
    ///
    /// # Errors
    /// Those of [`Topology::tree`].
    pub fn of_tree(
        shape: (usize, usize, usize),
        options: &TreeOptions,
        seed: u64,
    ) -> Result<Self, TopologyError> {
        let mut plan = Self {
            seed,
            topology: Topology::tree("sim", shape.0, shape.1, shape.2)?,
            routing: Routing::UpDown,
            // Many of the requests to 702 nodes are lost where bits are damaged.
            manager_timeout_ms: 5,
            messages: options.messages,
            burst: 1,
            window: 16,
            mtu: Mtu::B4096,
            max_len: options.max_len,
            deeds: Vec::new(),
            mutation: Mutation::None,
        };
        plan.add_cuts(options.cuts, &mut Rng::new(seed));
        if options.bit_errors > 0.0 {
            plan.add_deed(0, Deed::BitErrors(options.bit_errors));
        }
        Ok(plan)
    }
    /// Breaks the run on purpose.
    #[must_use]
    pub fn with_mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        self
    }
    /// Returns whether nothing may be lost.
    pub fn is_undisturbed(&self) -> bool {
        self.deeds.is_empty()
    }
    /// Returns how many messages there are.
    pub fn total(&self) -> u64 {
        let hosts = self.topology.count(NodeKind::Adapter) as u64;
        hosts * hosts.saturating_sub(1) * u64::from(self.messages)
    }

    fn add_deed(&mut self, after: u64, deed: Deed) {
        let at = self.deeds.partition_point(|(other, _)| *other <= after);
        self.deeds.insert(at, (after, deed));
    }
    /// Cuts cables between switches that others can stand in for, or of hosts for a short time.
    fn add_cuts(&mut self, cuts: u32, rng: &mut Rng) {
        let is_host = |node: usize| self.topology.nodes()[node].kind == NodeKind::Adapter;
        let leads_to_host =
            |cable: usize| self.topology.cables()[cable].ends.iter().any(|end| is_host(end.node));
        let cables = 0..self.topology.cables().len();
        let between: Vec<_> = cables.filter(|cable| !leads_to_host(*cable)).collect();
        for cut in 0..u64::from(cuts) {
            // One after the other: two at a time might part the fabric.
            let after = self.total() * (cut + 1) / (u64::from(cuts) + 2);
            let deed = match between.len() {
                0 | 1 => {
                    Deed::Cut(rng.below(self.topology.cables().len() as u64) as usize, HOST_CUT_NS)
                }
                _ => Deed::Cut(rng.pick(&between), HOST_CUT_NS * rng.range(1, 10)),
            };
            self.add_deed(after, deed);
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, switches) =
            (self.topology.count(NodeKind::Adapter), self.topology.count(NodeKind::Switch));
        write!(
            f,
            "{hosts} hosts, {switches} switches, {:?}, {} messages of up to {} bytes to each, MTU {}, \
             {} deeds",
            self.routing,
            self.messages,
            self.max_len,
            self.mtu.bytes(),
            self.deeds.len()
        )
    }
}

/// A message, which follows from the seed, its ends and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// What its content follows from.
    pub(super) id: u64,
    pub(super) len: u32,
    /// Whether the message is an RDMA WRITE with immediate data, else a SEND.
    pub(super) is_write: bool,
}

impl Message {
    pub(super) fn new(plan: &Plan, from: u32, to: u32, number: u32) -> Self {
        let name = u64::from(from) << 44 | u64::from(to) << 28 | u64::from(number);
        let id = mix(plan.seed ^ mix(name));
        let longest = if id & 7 < 5 { plan.mtu.bytes().min(plan.max_len) } else { plan.max_len };
        let len = (((id >> 32) * (u64::from(longest) + 1)) >> 32) as u32;
        Self { id, len, is_write: id >> 3 & 3 == 0 }
    }
}
