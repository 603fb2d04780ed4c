//! A picture of a plan as SVG: spines on top, leaves below them, hosts under their leaves.

mod layout;
mod load;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use self::layout::{HOST, Layout, SWITCH};
use self::load::{Legend, Load, STYLE};
use super::graph::{Cable, End, Node, Topology};
use super::link::{lanes, speed_name};
use crate::attributes::NodeKind;

/// Pixels between the ends of cables that connect the same two nodes.
const PARALLEL: i32 = 4;

/// Draws a plan. `load` says how busy a cable is, by its index in [`Topology::cables`]: 0.0 is
/// idle, 1.0 and above full. `None`, or a value that is no number, is drawn in grey.
///
/// The same plan and loads give the same bytes: about 150 for each node and each cable, 260 KB for
/// 54 switches and 648 hosts. The picture is as wide as its leaves need, 76 pixels each. Each node
/// and cable has a `title`, which a browser shows under the pointer and a screen reader reads.
pub fn svg(plan: &Topology, load: impl Fn(usize) -> Option<f32>) -> String {
    Picture { plan, load, layout: Layout::new(plan) }.to_string()
}

struct Picture<'a, F> {
    plan: &'a Topology,
    load: F,
    layout: Layout,
}

impl<F: Fn(usize) -> Option<f32>> Display for Picture<'_, F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (width, height) = (self.layout.width, self.layout.height);
        let plan = self.plan;
        let (switches, adapters) = (plan.count(NodeKind::Switch), plan.count(NodeKind::Adapter));
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fabric\" role=\"img\" \
             width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
             <title>A fabric of {switches} switches, {adapters} adapters and {} cables</title>",
            plan.cables().len()
        )?;
        writeln!(f, "{STYLE}\n{Legend}")?;
        let mut drawn = BTreeMap::new();
        for (at, cable) in plan.cables().iter().enumerate() {
            let nodes = cable.ends.map(|end| end.node);
            let count = drawn.entry(nodes).or_insert(0);
            self.write_cable(f, at, cable, *count)?;
            *count += 1;
        }
        for at in 0..plan.nodes().len() {
            self.write_node(f, at)?;
        }
        f.write_str("</svg>\n")
    }
}

impl<F: Fn(usize) -> Option<f32>> Picture<'_, F> {
    /// Draws a cable, the `count`-th between its two nodes from 0.
    fn write_cable(
        &self,
        f: &mut Formatter<'_>,
        at: usize,
        cable: &Cable,
        count: usize,
    ) -> fmt::Result {
        let load = Load::new((self.load)(at));
        write!(f, "<path class=\"{}\" d=\"", load.class())?;
        self.write_line(f, at, cable, count)?;
        let [one, other] = cable.ends.map(|end| self.end_words(end));
        let (lanes, speed) = (lanes(cable.width), speed_name(cable.speed));
        write!(f, "\"><title>{one} - {other}: {lanes}x{speed}")?;
        if let Some(rate) = cable.rate {
            write!(f, ", rate {rate}")?;
        }
        writeln!(f, "{load}</title></path>")
    }

    /// Draws the line of a cable: an elbow to a host under its leaf, an arc within a row, else
    /// straight.
    fn write_line(
        &self,
        f: &mut Formatter<'_>,
        at: usize,
        cable: &Cable,
        count: usize,
    ) -> fmt::Result {
        let [one, other] = cable.ends.map(|end| end.node);
        if let Some(trunk) = self.layout.trunk(at) {
            let host = if self.is_switch(one) { other } else { one };
            let leaf = if self.is_switch(one) { one } else { other };
            let (from, to) = (self.layout.place(leaf), self.layout.place(host));
            let (top, left) = (from.y + SWITCH.height / 2, to.x - HOST.width / 2);
            let half = SWITCH.width / 2;
            let start = trunk.clamp(from.x - half, from.x + half);
            return write!(f, "M{start} {top}L{trunk} {}V{}H{left}", top + 12, to.y);
        }
        let (from, to) = (self.layout.place(one), self.layout.place(other));
        let aside = aside(count);
        if one == other {
            let (x, y) = (from.x + aside, from.y - SWITCH.height / 2);
            return write!(f, "M{} {y}c-12 -24 28 -24 16 0", x - 8);
        }
        let (x1, x2) = (from.x + aside, to.x + aside);
        if from.y == to.y {
            let (middle, y) = ((x1 + x2) / 2, from.y - SWITCH.height / 2);
            let rise = 20 + ((x2 - x1).abs() / 8).min(100) + aside.abs();
            return write!(f, "M{x1} {y}Q{middle} {} {x2} {y}", y - rise);
        }
        write!(f, "M{x1} {}L{x2} {}", from.y, to.y)
    }

    fn write_node(&self, f: &mut Formatter<'_>, at: usize) -> fmt::Result {
        let node = &self.plan.nodes()[at];
        let place = self.layout.place(at);
        let (class, shape) = if self.is_switch(at) { ("s", SWITCH) } else { ("h", HOST) };
        let (x, y) = (place.x - shape.width / 2, place.y - shape.height / 2);
        let (width, height) = (shape.width, shape.height);
        writeln!(
            f,
            "<g class=\"{class}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" \
             height=\"{height}\"/><text x=\"{}\" y=\"{}\">{}</text></g>",
            Words(node),
            place.x,
            place.y + 3,
            Escaped(&shortened(&node.name, shape.letters))
        )
    }

    fn is_switch(&self, at: usize) -> bool {
        self.plan.nodes()[at].kind == NodeKind::Switch
    }

    fn end_words(&self, end: End) -> String {
        format!("{} port {}", Escaped(&self.plan.nodes()[end.node].name), end.port)
    }
}

/// How far aside the `count`-th cable between two nodes runs, from 0: to either side in turn.
fn aside(count: usize) -> i32 {
    let widest = SWITCH.width / 2;
    let steps = i32::try_from(count.div_ceil(2)).unwrap_or(widest).min(widest);
    let aside = (PARALLEL * steps).min(widest);
    if count.is_multiple_of(2) { aside } else { -aside }
}

/// A node in words.
struct Words<'a>(&'a Node);

impl Display for Words<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let node = self.0;
        let kind = if node.kind == NodeKind::Switch { "switch" } else { "adapter" };
        write!(f, "{kind} {}, GUID {}, ports: {}", Escaped(&node.name), node.guid, node.ports)?;
        let lids = node.end_ports.iter().filter_map(|end| end.lid);
        lids.enumerate().try_for_each(|(at, lid)| {
            write!(f, "{} {}", if at == 0 { ", LID" } else { "," }, lid.value())
        })
    }
}

/// A name that fits into its box: the beginning, if it is too long.
fn shortened(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_owned();
    }
    name.chars().take(letters - 1).chain(['\u{2026}']).collect()
}

/// Text as XML may have it between tags and in attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            // XML has no way to write these two.
            '\u{FFFE}' | '\u{FFFF}' => f.write_char(char::REPLACEMENT_CHARACTER),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests;
