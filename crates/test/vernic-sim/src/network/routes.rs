//! Which ports lead to a host: all shortest ways, and one of them for each flow.
//!
//! Owns the tables of the switches. A flow's packets go one way (ECMP): the port is chosen by a
//! hash of the addresses and the UDP source port, mixed anew at each switch.

use super::topology::Topology;
use crate::rng::mix;

/// The ports of a switch that lead to an edge switch: so many from the first one on, each two
/// numbers on. They are of cables that follow each other, by how a topology numbers them.
#[derive(Clone, Copy, Debug, Default)]
struct Ways(u32);

impl Ways {
    fn new(ports: &[u32]) -> Self {
        let first = ports.first().copied().unwrap_or_default();
        let follow = ports.iter().zip((first..).step_by(2)).all(|(port, next)| *port == next);
        assert!(follow && ports.len() < 256 && first < 1 << 24, "cables {ports:?} do not follow");
        Self(first << 8 | ports.len() as u32)
    }
}

/// The tables of all switches.
#[derive(Debug)]
pub(super) struct Routes {
    hosts: u32,
    edges: u32,
    /// Edge switch of a host, from 0.
    edge_of: Vec<u16>,
    /// By switch and edge switch.
    table: Vec<Ways>,
    salt: u64,
}

impl Routes {
    /// Finds the shortest ways. `salt` is what runs of different seeds hash differently by.
    pub(super) fn new(plan: &Topology, salt: u64) -> Self {
        let (hosts, edges, switches) = (plan.hosts, plan.edges, plan.switches);
        // Ports of each switch that lead to switches, and the switches there, both from 0.
        let mut neighbours = vec![Vec::new(); switches as usize];
        let mut edge_of = Vec::new();
        for (index, cable) in plan.cables.iter().enumerate() {
            let [one, other] = cable.ends;
            let port = 2 * index as u32;
            if plan.is_switch(one) {
                neighbours[(one - hosts) as usize].push((port, other - hosts));
                neighbours[(other - hosts) as usize].push((port + 1, one - hosts));
            } else {
                edge_of.push((other - hosts) as u16);
            }
        }
        let mut routes = Self {
            hosts,
            edges,
            edge_of,
            table: vec![Ways::default(); (switches * edges) as usize],
            salt,
        };
        for edge in 0..edges {
            routes.fill(edge, &neighbours);
        }
        routes
    }

    /// Fills in the ways to one edge switch, by distance from it.
    fn fill(&mut self, edge: u32, neighbours: &[Vec<(u32, u32)>]) {
        let mut distance = vec![u32::MAX; neighbours.len()];
        let mut line = vec![edge];
        distance[edge as usize] = 0;
        let mut next = 0;
        while let Some(at) = line.get(next).copied() {
            next += 1;
            for (_, other) in &neighbours[at as usize] {
                if distance[*other as usize] == u32::MAX {
                    distance[*other as usize] = distance[at as usize] + 1;
                    line.push(*other);
                }
            }
        }
        for (switch, ports) in neighbours.iter().enumerate() {
            let nearer = |other: u32| distance[other as usize] + 1 == distance[switch];
            let ways = ports.iter().filter(|(_, to)| nearer(*to)).map(|(port, _)| *port);
            let ways = Ways::new(&ways.collect::<Vec<_>>());
            self.table[switch * self.edges as usize + edge as usize] = ways;
        }
    }

    /// The port by which a packet of the flow `hash` leaves the switch `node` for a host.
    #[inline]
    pub(super) fn port(&self, node: u32, host: u32, hash: u32) -> u32 {
        let (switch, edge) = (node - self.hosts, u32::from(self.edge_of[host as usize]));
        if switch == edge {
            return 2 * host + 1;
        }
        let Ways(ways) = self.table[(switch * self.edges + edge) as usize];
        let (first, count) = (ways >> 8, ways & 0xFF);
        if count == 1 {
            return first;
        }
        let word = mix(u64::from(hash) ^ self.salt ^ (u64::from(node) << 32));
        first + 2 * (((word >> 32) * u64::from(count)) >> 32) as u32
    }
}

/// What ECMP hashes of a packet: addresses and UDP source port.
pub(super) fn flow_hash(from: u32, to: u32, source_port: u16) -> u32 {
    (mix((u64::from(from) << 40) ^ (u64::from(to) << 16) ^ u64::from(source_port)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::units::Rate;

    /// Nodes that a packet passes, the hosts included.
    fn way(plan: &Topology, routes: &Routes, from: u32, to: u32, source_port: u16) -> Vec<u32> {
        let hash = flow_hash(from, to, source_port);
        let far = |port: u32| plan.cables[port as usize / 2].ends[1 - port as usize % 2];
        let mut nodes = vec![from, far(2 * from)];
        while let Some(node) = nodes.last().copied().filter(|node| plan.is_switch(*node)) {
            nodes.push(far(routes.port(node, to, hash)));
            assert!(nodes.len() < 10, "{nodes:?}");
        }
        nodes
    }

    #[test]
    fn all_hosts_are_reached_by_shortest_ways() {
        let plan =
            Topology::new("fat-tree:4".parse().unwrap(), Rate::new(100).unwrap(), None).unwrap();
        let routes = Routes::new(&plan, 1);
        for (from, to) in (0..16).flat_map(|from| (0..16).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            let nodes = way(&plan, &routes, from, to, 0xC000);
            let expected = match (from / 2 == to / 2, from / 4 == to / 4) {
                (true, _) => 3,
                (_, true) => 5,
                _ => 7,
            };
            assert_eq!((nodes.last(), nodes.len()), (Some(&to), expected));
        }
    }

    #[test]
    fn flows_spread_over_all_equal_ways_and_each_keeps_to_its_own() {
        let plan = Topology::new("hpcc".parse().unwrap(), Rate::new(100).unwrap(), None).unwrap();
        let routes = Routes::new(&plan, 7);
        let mut cores = std::collections::BTreeMap::new();
        for source_port in 0xC000..0xC000 + 1600 {
            let nodes = way(&plan, &routes, 0, 319, source_port);
            assert_eq!(nodes, way(&plan, &routes, 0, 319, source_port));
            *cores.entry(nodes[3]).or_insert(0) += 1;
        }
        // 1600 flows over 16 cores: 100 each, give or take 5 standard deviations.
        assert_eq!(cores.len(), 16);
        assert!(cores.values().all(|count| (50..150).contains(count)), "{cores:?}");
    }
}
