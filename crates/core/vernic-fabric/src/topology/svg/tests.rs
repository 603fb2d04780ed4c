//! Pictures have every node and cable, and are well-formed XML.

use vernic_wire::{Guid, PortNum};

use super::super::graph::{Cable, End, Node, Topology};
use super::svg;
use crate::attributes::NodeKind;

fn no_load(_: usize) -> Option<f32> {
    None
}

/// Checks that tags are balanced, attributes quoted, and text escaped.
fn check_xml(text: &str) {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        assert!(!before.contains('>'), "a bare > in {before:?}");
        for entity in before.split('&').skip(1) {
            let name = entity.split_once(';').expect("an entity ends").0;
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{name}");
        }
        let (tag, after) = after.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
        rest = after;
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
}

/// Everything between `<title>` and `</title>`, the picture's own left out.
fn titles(text: &str) -> Vec<&str> {
    let titles = text.split("<title>").skip(2);
    titles.map(|rest| rest.split_once("</title>").unwrap().0).collect()
}

/// Checks that all boxes are within the picture, and no two overlap.
fn check_boxes(text: &str) {
    let number = |tag: &str, name: &str| -> i32 {
        let rest = tag.split_once(&format!(" {name}=\"")).unwrap().1;
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    let (width, height) = (number(text, "width"), number(text, "height"));
    let boxes: Vec<_> = text
        .split("<rect")
        .skip(1)
        .map(|tag| ["x", "y", "width", "height"].map(|name| number(tag, name)))
        .collect();
    for (at, [x, y, w, h]) in boxes.iter().enumerate() {
        assert!(*x >= 0 && *y >= 0 && x + w <= width && y + h <= height, "{x} {y}");
        for [x2, y2, w2, h2] in &boxes[at + 1..] {
            let apart = x + w <= *x2 || x2 + w2 <= *x || y + h <= *y2 || y2 + h2 <= *y;
            assert!(apart, "boxes at {x},{y} and {x2},{y2} overlap");
        }
    }
}

#[test]
fn a_picture_of_702_nodes_has_every_node_and_cable_and_is_bounded() {
    let plan = Topology::tree("lab", 18, 36, 648).unwrap();
    let text = svg(&plan, |cable| Some(cable as f32 / 1296.0));
    check_xml(&text);
    check_boxes(&text);
    let titles = titles(&text);
    assert_eq!(titles.len(), 702 + 1296);
    for node in plan.nodes() {
        let words = format!(" {}, GUID {}, ports: {}", node.name, node.guid, node.ports);
        assert_eq!(titles.iter().filter(|title| title.ends_with(&words)).count(), 1, "{words}");
    }
    for cable in plan.cables() {
        let [one, other] = cable.ends.map(|e| (&plan.nodes()[e.node].name, e.port));
        let words = format!("{} port {} - {} port {}: 4xQDR, ", one.0, one.1, other.0, other.1);
        assert_eq!(titles.iter().filter(|title| title.starts_with(&words)).count(), 1, "{words}");
    }
    assert!(text.len() < 400_000, "{} bytes", text.len());
    assert!(text.contains(" width=\"2776\" height=\"655\" "), "{}", &text[..200]);
    assert_eq!(text, svg(&plan, |cable| Some(cable as f32 / 1296.0)));
}

#[test]
fn every_shape_is_drawn_within_its_picture_and_without_overlap() {
    for plan in [
        Topology::single("lab", 1),
        Topology::single("lab", 254),
        Topology::line("lab", 1, 0),
        Topology::line("lab", 30, 31),
        Topology::ring("lab", 12, 0),
        Topology::ring("lab", 5, 200),
        Topology::tree("lab", 9, 2, 3),
        Topology::tree("lab", 1, 254, 0),
        Topology::parse("Ca 2 \"a\"\n[1] \"b\"[1]\nCa 1 \"b\"\nSwitch 1 \"c\"\n", "lab"),
    ] {
        let plan = plan.unwrap();
        let text = svg(&plan, no_load);
        check_xml(&text);
        check_boxes(&text);
        assert_eq!(titles(&text).len(), plan.nodes().len() + plan.cables().len());
    }
}

#[test]
fn names_are_escaped_in_full_titles_and_shortened_in_boxes() {
    let name = "<rack & 'shelf'> \u{FFFF}\u{e9} of the second floor";
    let nodes = vec![
        Node::new(NodeKind::Switch, name, Guid(1), 2),
        Node::new(NodeKind::Adapter, "]]>", Guid(2), 1),
    ];
    let plan = Topology::build(nodes, vec![]).unwrap();
    let text = svg(&plan, no_load);
    check_xml(&text);
    assert!(
        text.contains("switch &lt;rack &amp; &#39;shelf&#39;&gt; \u{FFFD}\u{e9} of the second")
    );
    assert!(text.contains(">&lt;rack &amp; &#39;s\u{2026}</text>"), "{text}");
}

#[test]
fn cables_are_coloured_by_load_and_grey_without_one() {
    let plan = Topology::single("lab", 7).unwrap();
    let loads =
        [None, Some(f32::NAN), Some(-1.0), Some(0.0), Some(0.55), Some(1.0), Some(f32::INFINITY)];
    let text = svg(&plan, |cable| loads[cable]);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("<path")).collect();
    for (line, (class, words)) in lines.iter().zip([
        ("cn", "4xQDR<"),
        ("cn", "4xQDR<"),
        ("c0", ", load 0 %<"),
        ("c0", ", load 0 %<"),
        ("c5", ", load 55 %<"),
        ("c9", ", load 100 %<"),
        ("c9", ", load 100 %<"),
    ]) {
        assert!(line.contains(&format!("class=\"{class}\"")) && line.contains(words), "{line}");
    }
    assert_eq!(lines.len(), 7);
}

#[test]
fn parallel_cables_and_loops_have_lines_of_their_own() {
    let nodes = vec![
        Node::new(NodeKind::Switch, "a", Guid(1), 9),
        Node::new(NodeKind::Switch, "b", Guid(2), 9),
    ];
    let end = |node, port| End { node, port: PortNum(port) };
    let mut cables: Vec<_> = (1..=6).map(|port| Cable::new(end(0, port), end(1, port))).collect();
    cables.push(Cable::new(end(0, 7), end(0, 8)));
    let plan = Topology::build(nodes, cables).unwrap();
    let text = svg(&plan, no_load);
    let mut lines: Vec<_> =
        text.split(" d=\"").skip(11).map(|rest| rest.split_once('"').unwrap().0).collect();
    assert_eq!(lines.len(), 7);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 7);
}
