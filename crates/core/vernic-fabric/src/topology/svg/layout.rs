//! Where nodes stand in a picture.
//!
//! A row for each distance from the nearest adapter: the switches with adapters are the lowest row
//! of switches, each above a block of its adapters in columns. Adapters without a switch stand in a
//! last block.

use std::collections::{BTreeMap, VecDeque};

use super::super::graph::{End, MAX_NODES, Topology};
use crate::attributes::NodeKind;

/// Size of a node's box in pixels, and how many letters fit into it.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) width: i32,
    pub(super) height: i32,
    pub(super) letters: usize,
}

pub(super) const SWITCH: Shape = Shape { width: 66, height: 20, letters: 11 };
pub(super) const HOST: Shape = Shape { width: 48, height: 11, letters: 10 };

/// Width of a column of hosts, and the least distance of switches in a row.
const COLUMN: i32 = 76;
/// Height of a host with its gap.
const STEP: i32 = 14;
/// Hosts of a column; more stand in another column.
const ROWS: usize = 24;
/// Space above the first row, for the legend.
const TOP: i32 = 50;
/// More space above the first row if there are cables within rows, which are arcs.
const ARCS: i32 = 110;
/// Space at the sides and below.
const MARGIN: i32 = 20;
/// Distance from a switch to its first host.
const DROP: i32 = 40;

/// Middle of a node's box.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    pub(super) x: i32,
    pub(super) y: i32,
}

/// Places of all nodes, in pixels.
pub(super) struct Layout {
    pub(super) width: i32,
    pub(super) height: i32,
    places: Vec<Place>,
    /// Where the vertical part of a cable between a host and the leaf above it runs, by cable.
    trunks: BTreeMap<usize, i32>,
}

impl Layout {
    pub(super) fn new(plan: &Topology) -> Self {
        let levels = levels(plan);
        let blocks = Blocks::new(plan, &levels);
        let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, level) in levels.iter().enumerate().filter(|(_, level)| **level > 1) {
            rows.entry(*level).or_default().push(at);
        }
        let widest = rows.values().map(Vec::len).max().unwrap_or(0);
        let columns = blocks.columns().max(widest).max(3);
        let inner = COLUMN * pixels(columns);
        let gap = (inner / 10).clamp(100, 360);
        let mut layout = Self {
            width: inner + 2 * MARGIN,
            height: 0,
            places: vec![Place::default(); levels.len()],
            trunks: BTreeMap::new(),
        };
        let has_arcs = plan.cables().iter().any(|cable| {
            let [one, other] = cable.ends.map(|end| levels[end.node]);
            one == other
        });
        let mut y = TOP + if has_arcs { ARCS } else { 0 };
        for row in rows.values().rev() {
            layout.place_row(row, inner, y);
            y += gap;
        }
        layout.place_blocks(&blocks, inner, y);
        layout
    }

    pub(super) fn place(&self, node: usize) -> Place {
        self.places[node]
    }

    /// Where the vertical part of the cable to a host runs; `None` for all other cables.
    pub(super) fn trunk(&self, cable: usize) -> Option<i32> {
        self.trunks.get(&cable).copied()
    }

    /// Spreads switches evenly over the width.
    fn place_row(&mut self, row: &[usize], inner: i32, y: i32) {
        for (at, node) in row.iter().enumerate() {
            let middle = (2 * at + 1) as f64 / (2 * row.len()) as f64;
            self.places[*node] = Place { x: MARGIN + (f64::from(inner) * middle) as i32, y };
        }
    }

    /// Places the lowest row of switches, and the adapters below each.
    fn place_blocks(&mut self, blocks: &Blocks, inner: i32, y: i32) {
        let mut left = MARGIN + (inner - COLUMN * pixels(blocks.columns())) / 2;
        let mut deepest = 0;
        for block in &blocks.0 {
            let width = COLUMN * pixels(block.columns());
            if let Some(switch) = block.switch {
                self.places[switch] = Place { x: left + width / 2, y };
            }
            for (at, (host, cable)) in block.hosts.iter().enumerate() {
                let (column, row) = (at / ROWS, at % ROWS);
                let x = left + COLUMN * pixels(column);
                let y = y + DROP + STEP * pixels(row);
                self.places[*host] = Place { x: x + COLUMN - HOST.width / 2 - 2, y };
                // The first host's cable runs next to it, so that none crosses another.
                let rows_below = (block.hosts.len() - column * ROWS).min(ROWS) - 1 - row;
                let trunk = x + 2 + pixels(rows_below).min(22);
                self.trunks.extend(cable.map(|cable| (cable, trunk)));
            }
            deepest = deepest.max(block.hosts.len().min(ROWS));
            left += width;
        }
        let below = if deepest == 0 { 0 } else { DROP + STEP * pixels(deepest) };
        self.height = y + below + SWITCH.height + MARGIN;
    }
}

/// A number of things in a row as a factor of pixels. There are at most as many as nodes, 49,151,
/// so that no coordinate is above 18 million.
fn pixels(count: usize) -> i32 {
    count.min(MAX_NODES) as i32
}

/// Distance of each node from the nearest adapter: 0 for adapters; 1 for switches that no cables
/// connect with one.
fn levels(plan: &Topology) -> Vec<usize> {
    let mut levels = vec![None; plan.nodes().len()];
    let mut queue = VecDeque::new();
    for (at, node) in plan.nodes().iter().enumerate() {
        if node.kind == NodeKind::Adapter {
            levels[at] = Some(0);
            queue.push_back((at, 0));
        }
    }
    while let Some((node, level)) = queue.pop_front() {
        for (port, _) in plan.ends_at(node) {
            let Some(peer) = plan.peer(End { node, port }) else { continue };
            if levels[peer.node].is_none() {
                levels[peer.node] = Some(level + 1);
                queue.push_back((peer.node, level + 1));
            }
        }
    }
    levels.into_iter().map(|level| level.unwrap_or(1)).collect()
}

/// A switch with the adapters below it.
struct Block {
    /// The switch; `None` for adapters that are connected with none.
    switch: Option<usize>,
    /// Adapters, and the cables that lead to them from the switch.
    hosts: Vec<(usize, Option<usize>)>,
}

impl Block {
    fn columns(&self) -> usize {
        self.hosts.len().div_ceil(ROWS).max(1)
    }
}

struct Blocks(Vec<Block>);

impl Blocks {
    fn new(plan: &Topology, levels: &[usize]) -> Self {
        let is_leaf = |at: &usize| levels[*at] == 1;
        let switches: Vec<usize> = (0..levels.len()).filter(is_leaf).collect();
        let mut blocks: Vec<Block> =
            switches.iter().map(|at| Block { switch: Some(*at), hosts: Vec::new() }).collect();
        let mut alone = Block { switch: None, hosts: Vec::new() };
        for host in (0..levels.len()).filter(|at| levels[*at] == 0) {
            let home = plan.ends_at(host).find_map(|(port, cable)| {
                let peer = plan.peer(End { node: host, port })?;
                Some((switches.binary_search(&peer.node).ok()?, cable))
            });
            match home {
                Some((block, cable)) => blocks[block].hosts.push((host, Some(cable))),
                None => alone.hosts.push((host, None)),
            }
        }
        if !alone.hosts.is_empty() {
            blocks.push(alone);
        }
        Self(blocks)
    }

    fn columns(&self) -> usize {
        self.0.iter().map(Block::columns).sum()
    }
}
