//! Shapes of fabrics, and the tables that lead through them by shortest ways.

use std::collections::VecDeque;

use vernic_fabric::attributes::Forwarding;
use vernic_fabric::link::LinkConfig;
use vernic_wire::Lid;

use super::{Fabric, Node};

/// Nanoseconds of every cable.
pub const LATENCY_NS: u64 = 100;

impl Fabric {
    /// Makes one switch with hosts at all of its ports. Returns the hosts, and the switch.
    pub fn star(seed: u64, hosts: u8, config: LinkConfig) -> (Self, Vec<usize>, usize) {
        let mut fabric = Self::new(seed, config);
        let switch = fabric.add_switch(hosts);
        let hosts: Vec<_> = (1..=hosts)
            .map(|port| {
                let host = fabric.add_host();
                fabric.connect((host, 1), (switch, port), LATENCY_NS);
                host
            })
            .collect();
        fabric.route();
        fabric.activate();
        (fabric, hosts, switch)
    }
    /// Makes a tree of switches at random, each with one to three hosts. There is one way between
    /// any two hosts, so no credits can wait for each other in a circle.
    pub fn random_tree(seed: u64, switches: usize, config: LinkConfig) -> Self {
        const PORTS: u8 = 12;
        let mut fabric = Self::new(seed, config);
        let mut next_port = Vec::new();
        for at in 0..switches {
            let switch = fabric.add_switch(PORTS);
            next_port.push((switch, 1));
            if at > 0 {
                let open: Vec<_> = (0..at).filter(|up| next_port[*up].1 < PORTS - 3).collect();
                let up = open[fabric.random.below(open.len() as u64) as usize];
                fabric.link(&mut next_port, up, at);
            }
        }
        for slot in &mut next_port {
            for _ in 0..=fabric.random.below(3) {
                let host = fabric.add_host();
                let latency = 1 + fabric.random.below(1_000);
                fabric.connect((host, 1), (slot.0, slot.1), latency);
                slot.1 += 1;
            }
        }
        fabric.route();
        fabric.activate();
        fabric
    }
    fn link(&mut self, next_port: &mut [(usize, u8)], a: usize, b: usize) {
        let latency = 1 + self.random.below(1_000);
        self.connect(next_port[a], next_port[b], latency);
        next_port[a].1 += 1;
        next_port[b].1 += 1;
    }
    /// Fills the linear tables with shortest ways.
    pub fn route(&mut self) {
        for target in 0..self.nodes.len() {
            let lid = target + 1;
            let ways = self.ways_to(target);
            for (node, port) in ways.into_iter().enumerate() {
                if let (Node::Switch(switch), Some(port)) = (&mut self.nodes[node], port) {
                    switch.forwarding.linear[lid] = port;
                }
            }
        }
    }
    /// Returns the port of each node that leads to the target.
    fn ways_to(&self, target: usize) -> Vec<Option<u8>> {
        let (mut ways, mut seen) = (vec![None; self.nodes.len()], vec![false; self.nodes.len()]);
        let mut queue = VecDeque::from([target]);
        seen[target] = true;
        while let Some(node) = queue.pop_front() {
            for ends in self.cables.iter().map(|cable| cable.ends) {
                for (here, there) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                    if here.node == node && !seen[there.node] {
                        seen[there.node] = true;
                        ways[there.node] = Some(there.port.0);
                        queue.push_back(there.node);
                    }
                }
            }
        }
        ways
    }
    /// Makes hosts members of a group, whose tree is the ways from everywhere to the first of them.
    pub fn join(&mut self, group: u16, members: &[usize]) {
        for member in members {
            assert!(self.host(*member).port.join(Lid(group)));
            let ways = self.ways_to(*member);
            for other in members.iter().filter(|other| *other != member) {
                self.mark_way(group, *other, *member, &ways);
            }
        }
    }
    /// Adds the ports of the way from a host to another to the group's entries.
    fn mark_way(&mut self, group: u16, from: usize, to: usize, ways: &[Option<u8>]) {
        let mut node = from;
        while node != to {
            let port = ways[node].expect("the fabric is one");
            if let Node::Switch(switch) = &mut self.nodes[node] {
                let entry = &mut switch.forwarding.multicast[usize::from(group - 0xC000)];
                entry[usize::from(port / 16)] |= 1 << (port % 16);
            }
            let ends = self.cables.iter().map(|cable| cable.ends);
            let is_here = |end: &super::End| end.node == node && end.port.0 == port;
            let next = ends.filter(|ends| ends.iter().any(is_here)).flatten();
            let next = next.map(|end| end.node).find(|other| *other != node);
            node = next.expect("a cable has two ends");
        }
    }
    /// Makes switches in a ring, each with a host, and tables that lead every host's packets round
    /// for ever: no switch knows that the host is its own.
    pub fn endless_ring(seed: u64, config: LinkConfig) -> (Self, Vec<usize>) {
        let mut fabric = Self::new(seed, config);
        let switches: Vec<_> = (0..3).map(|_| fabric.add_switch(3)).collect();
        for at in 0..3 {
            fabric.connect((switches[at], 1), (switches[(at + 1) % 3], 2), LATENCY_NS);
        }
        let hosts: Vec<_> = switches
            .iter()
            .map(|switch| {
                let host = fabric.add_host();
                fabric.connect((host, 1), (*switch, 3), LATENCY_NS);
                host
            })
            .collect();
        for switch in switches {
            let linear = &mut fabric.switch(switch).forwarding.linear;
            linear.fill(1);
            linear[0] = Forwarding::NOWHERE.0;
        }
        fabric.activate();
        (fabric, hosts)
    }
}
