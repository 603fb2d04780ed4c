//! Forwarding tables: shortest ways, spread over parallel cables, and ways up and then down alone.

use std::collections::VecDeque;

use vernic_wire::Lid;

use super::map::{End, INIT, Map};
use crate::attributes::Forwarding;

/// How packets are led.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Routing {
    /// Shortest ways, spread evenly. In a subnet with rings of switches, packets can wait for each
    /// other in a circle.
    #[default]
    MinHop,
    /// Ways that lead up to the roots and then down, never up again: nothing can wait in a circle.
    /// Roots are the switches that are farthest from the adapters.
    UpDown,
}

/// A way that is none.
const FAR: u32 = u32::MAX;

/// The switches of a map, and their links.
pub(super) struct Graph {
    /// Places in the map.
    pub(super) switches: Vec<usize>,
    /// Place in `switches` of each node.
    pub(super) index: Vec<Option<usize>>,
    /// Port and the switch at the other end, of each switch.
    pub(super) links: Vec<Vec<(u8, usize)>>,
}

impl Graph {
    pub(super) fn new(map: &Map) -> Self {
        let switches: Vec<_> = map.switches().collect();
        let mut index = vec![None; map.nodes.len()];
        for (at, node) in switches.iter().enumerate() {
            index[*node] = Some(at);
        }
        let is_up = |end| map.port(end).is_some_and(|port| port.info.state >= INIT);
        let links = switches.iter().map(|node| {
            let ends = map.links.range((*node, 0)..=(*node, u8::MAX));
            let ends = ends.filter(|(here, there)| is_up(**here) && is_up(**there));
            ends.filter_map(|((_, port), (peer, _))| Some((*port, index[*peer]?))).collect()
        });
        let links = links.collect();
        Self { switches, index, links }
    }
    /// Returns the hops from each switch to the nearest of some.
    pub(super) fn distances(&self, from: impl IntoIterator<Item = usize>) -> Vec<u32> {
        let mut hops = vec![FAR; self.switches.len()];
        let mut queue = VecDeque::new();
        for switch in from {
            hops[switch] = 0;
            queue.push_back(switch);
        }
        while let Some(switch) = queue.pop_front() {
            for (_, peer) in &self.links[switch] {
                if hops[*peer] == FAR {
                    hops[*peer] = hops[switch] + 1;
                    queue.push_back(*peer);
                }
            }
        }
        hops
    }
}

/// The order of switches for ways up and down: a switch is above another one with a larger rank.
struct Ranks(Vec<(u32, usize)>);

impl Ranks {
    fn new(map: &Map, graph: &Graph) -> Self {
        let mut has_adapter = vec![false; graph.switches.len()];
        for (end, _) in map.end_ports().filter(|(end, _)| !map.is_switch(end.0)) {
            let switch = map.attachment(end).and_then(|(node, _)| graph.index[node]);
            if let Some(switch) = switch {
                has_adapter[switch] = true;
            }
        }
        let leaves = (0..has_adapter.len()).filter(|at| has_adapter[*at]);
        let heights = graph.distances(leaves);
        let highest = heights.iter().copied().filter(|hops| *hops != FAR).max().unwrap_or(0);
        // All alike, as in a ring: one of them alone, so that there is a top.
        let roots: Vec<_> = match highest {
            0 => vec![0].into_iter().filter(|at| *at < heights.len()).collect(),
            _ => (0..heights.len()).filter(|at| heights[*at] == highest).collect(),
        };
        let depths = graph.distances(roots);
        Self(depths.into_iter().zip(0..).collect())
    }
    fn is_above(&self, one: usize, other: usize) -> bool {
        self.0[one] < self.0[other]
    }
    /// Returns for each switch the hops to the target, down if that is possible, else up first; and
    /// whether they lead down.
    fn ways(&self, graph: &Graph, target: usize) -> Vec<(u32, bool)> {
        let mut ways = vec![(FAR, false); graph.switches.len()];
        ways[target] = (0, true);
        let mut queue = VecDeque::from([target]);
        while let Some(switch) = queue.pop_front() {
            for (_, peer) in &graph.links[switch] {
                if ways[*peer].0 == FAR && self.is_above(*peer, switch) {
                    ways[*peer] = (ways[switch].0 + 1, true);
                    queue.push_back(*peer);
                }
            }
        }
        let mut order: Vec<_> = (0..graph.switches.len()).collect();
        order.sort_by_key(|at| self.0[*at]);
        for switch in order {
            if ways[switch].0 == FAR {
                let up =
                    graph.links[switch].iter().filter(|(_, peer)| self.is_above(*peer, switch));
                let nearest = up.map(|(_, peer)| ways[*peer].0).min().unwrap_or(FAR);
                ways[switch] = (nearest.saturating_add(1), false);
            }
        }
        ways
    }
}

/// Returns the linear table of each switch, in the order of the graph, for LIDs up to the last.
pub(super) fn tables(map: &Map, graph: &Graph, routing: Routing) -> (Vec<Vec<u8>>, Lid) {
    // The LIDs of a port are neighbours, so that parallel ways are given to them in turn.
    let ends = map.end_ports().flat_map(|(end, port)| port.lids().map(move |lid| (end, lid)));
    let ends: Vec<(End, Lid)> = ends.collect();
    let top = ends.iter().map(|(_, lid)| *lid).filter(|lid| lid.is_unicast()).max();
    let top = top.unwrap_or(Lid(0));
    let mut tables =
        vec![vec![Forwarding::NOWHERE.0; usize::from(top.0) + 1]; graph.switches.len()];
    // LIDs of adapters that each port leads to: the least loaded one gets the next.
    let mut loads = vec![[0_u32; 256]; graph.switches.len()];
    let mut by_switch = vec![Vec::new(); graph.switches.len()];
    for (end, lid) in ends.iter().filter(|(_, lid)| lid.is_unicast()) {
        let attachment =
            map.attachment(*end).and_then(|(node, port)| Some((graph.index[node]?, port)));
        if let Some((switch, port)) = attachment {
            by_switch[switch].push((*lid, port));
        }
    }
    let ranks = (routing == Routing::UpDown).then(|| Ranks::new(map, graph));
    for (target, lids) in by_switch.iter().enumerate() {
        let hops = graph.distances([target]);
        let ways = ranks.as_ref().map(|ranks| ranks.ways(graph, target));
        for switch in 0..graph.switches.len() {
            let candidates = |lid_port: u8| -> Vec<u8> {
                let nearer = graph.links[switch].iter().filter(|(_, peer)| match (&ways, &ranks) {
                    // The switch itself has management alone, which waits for no credits.
                    (Some(ways), Some(ranks)) if lid_port != 0 => {
                        let (here, is_down) = ways[switch];
                        let (there, leads_down) = ways[*peer];
                        here != FAR
                            && there.saturating_add(1) == here
                            && ranks.is_above(switch, *peer) == is_down
                            && (leads_down || !is_down)
                    }
                    _ => hops[switch] != FAR && hops[*peer].saturating_add(1) == hops[switch],
                });
                nearer.map(|(port, _)| *port).collect()
            };
            let [own, others] = [true, false]
                .map(|own| if switch == target { Vec::new() } else { candidates(u8::from(!own)) });
            for (lid, port) in lids {
                let chosen = match (switch == target, *port == 0) {
                    (true, _) => Some(*port),
                    (false, true) => own.first().copied(),
                    (false, false) => {
                        others.iter().copied().min_by_key(|port| loads[switch][usize::from(*port)])
                    }
                };
                let Some(chosen) = chosen else { continue };
                loads[switch][usize::from(chosen)] += u32::from(*port != 0);
                tables[switch][usize::from(lid.0)] = chosen;
            }
        }
    }
    (tables, top)
}

/// Returns the ports of each switch that packets to a group leave by, in the order of the graph:
/// the ports of a tree that spans the switches of all members, and the members' own.
pub(super) fn group(
    map: &Map,
    graph: &Graph,
    receivers: &[End],
    senders: &[End],
) -> Vec<[u16; 16]> {
    let mut masks = vec![[0_u16; 16]; graph.switches.len()];
    let mut add = |switch: usize, port: u8| {
        masks[switch][usize::from(port / 16)] |= 1 << (port % 16);
    };
    let at =
        |end: &End| map.attachment(*end).and_then(|(node, port)| Some((graph.index[node]?, port)));
    let mut spanned: Vec<_> =
        receivers.iter().chain(senders).filter_map(|end| Some(at(end)?.0)).collect();
    spanned.sort_unstable();
    spanned.dedup();
    for (switch, port) in receivers.iter().filter_map(at) {
        add(switch, port);
    }
    let Some(root) = spanned.first().copied() else { return masks };
    let hops = graph.distances([root]);
    let mut seen = vec![false; graph.switches.len()];
    seen[root] = true;
    for mut switch in spanned {
        while !std::mem::replace(&mut seen[switch], true) {
            let nearer = |(_, peer): &&(u8, usize)| hops[*peer].saturating_add(1) == hops[switch];
            let Some((port, peer)) = graph.links[switch].iter().find(nearer).copied() else {
                break;
            };
            add(switch, port);
            let back = map.links.get(&(graph.switches[switch], port));
            if let Some((_, back)) = back {
                add(peer, *back);
            }
            switch = peer;
        }
    }
    masks
}
