//! Texts, plans, and what is said of those that are none.

use proptest::prelude::*;
use vernic_wire::{Guid, Lid, PortNum};

use super::{
    Cable, End, EndPort, MAX_LINE_BYTES, MAX_NODES, Node, Problem, Rate, Topology, TopologyError,
};
use crate::attributes::{LinkSpeed, LinkWidth, NodeKind};

fn parse(text: &str) -> Result<Topology, TopologyError> {
    Topology::parse(text, "lab")
}

fn why_not(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn end(node: usize, port: u8) -> End {
    End { node, port: PortNum(port) }
}

/// A switch and two adapters as `ibnetdiscover` 44 prints them.
const PRINTED: &str = "\
#
# Topology file: generated on Sat Nov 28 06:17:33 2026
#
# Initiated from node 0000000000200000 port 0000000000200000

Non-Chassis Nodes

vendid=0x2c9
devid=0xcb20
sysimgguid=0x200001
switchguid=0x200000(200002)\t# 
Switch\t8 \"S-0000000000200000\"\t\t# \"the switch\" enhanced port 0 lid 3 lmc 0
[1]\t\"H-0000000000100000\"[1](100009) \t\t# \"h1\" lid 4 4xEDR s=32 w=2 v=4
[2][ext 7]\t\"H-0000000000100003\"[2][ext 1](100005) \t\t# \"h2\" lid 0 12xSDR

vendid=0x5e
devid=0x7
sysimgguid=0x0
caguid=0x100003
Ca\t2 \"H-0000000000100003\"\t\t# \"h2\"
[2](100005) \t\"S-0000000000200000\"[2]\t\t# lid 0 lmc 0 \"the switch\" lid 3 12xSDR

vendid=0x5e
devid=0x7
sysimgguid=0x100000
caguid=0x100000
Ca\t2 \"H-0000000000100000\"\t\t# \"h1\"
[1](100009) \t\"S-0000000000200000\"[1]\t\t# lid 4 lmc 1 \"the switch\" lid 3 4xEDR
";

#[test]
fn the_output_of_ibnetdiscover_is_read_with_all_its_numbers() {
    let plan = parse(PRINTED).unwrap();
    let [switch, h2, h1] = plan.nodes() else { panic!("{plan}") };
    assert_eq!(
        (switch.kind, switch.name.as_str(), switch.ports),
        (NodeKind::Switch, "the switch", 8)
    );
    assert_eq!((switch.guid, switch.system_guid), (Guid(0x200000), Guid(0x200001)));
    assert_eq!((switch.vendor_id, switch.device_id), (0x2c9, 0xcb20));
    let port0 = EndPort { guid: Guid(0x200002), lid: Some(Lid(3)), lmc: 0 };
    assert_eq!(
        (switch.end_ports.as_slice(), switch.end_port(PortNum(5))),
        (&[port0][..], Some(&port0))
    );
    assert_eq!((h2.kind, h2.vendor_id, h2.device_id), (NodeKind::Adapter, 0x5e, 7));
    assert_eq!((h2.system_guid, h2.end_port(PortNum(2)).unwrap().lid), (Guid(0), None));
    let port1 = EndPort { guid: Guid(0x100009), lid: Some(Lid(4)), lmc: 1 };
    assert_eq!((h1.name.as_str(), h1.end_port(PortNum(1))), ("h1", Some(&port1)));
    assert_eq!((h1.end_port(PortNum(0)), h1.end_port(PortNum(3))), (None, None));
    let [one, other] = plan.cables() else { panic!("{plan}") };
    assert_eq!(
        (one.ends, one.width, one.speed),
        ([end(0, 1), end(2, 1)], LinkWidth::X4, LinkSpeed::Edr)
    );
    assert_eq!(
        (other.ends, other.width, other.speed),
        ([end(0, 2), end(1, 2)], LinkWidth::X12, LinkSpeed::Sdr)
    );
    assert_eq!((plan.peer(end(0, 2)), plan.cable_at(end(1, 1))), (Some(end(1, 2)), None));
    assert_eq!(plan.ends_at(0).collect::<Vec<_>>(), [(PortNum(1), 0), (PortNum(2), 1)]);
    assert_eq!((plan.node_by_name("h1"), plan.node_by_name("h3")), (Some(2), None));
}

#[test]
fn the_form_of_ibsim_is_read_with_its_masks_and_defaults() {
    let text = "width=2\nspeed=3\ndevid=0x5a44\nSwitch\t8 \"sw1\" # in rack 19\"\n[1] \"h1\"\n\
                [2] \"h1\"[2] w=12 s=4 rate 2.5g # not yet \"connected\" lid of box\n\n\
                Hca 2 \"h1\"\n[1] \"sw1\"[1] s=1\n[2] \"sw1\"[2] w=4 s=7\n";
    let plan = parse(text).unwrap();
    let [switch, host] = plan.nodes() else { panic!("{plan}") };
    assert_eq!((switch.name.as_str(), host.name.as_str(), host.device_id), ("sw1", "h1", 0x5a44));
    let guids = host.end_ports.iter().map(|end| end.guid.value() - host.guid.value());
    assert!(guids.eq([1, 2]) && host.guid != switch.guid);
    let [one, other] = plan.cables() else { panic!("{plan}") };
    assert_eq!((one.width, one.speed, one.rate), (LinkWidth::X4, LinkSpeed::Sdr, None));
    let rate = Rate::new(2_500_000_000);
    assert_eq!((other.width, other.speed, other.rate), (LinkWidth::X8, LinkSpeed::Qdr, rate));
}

#[test]
fn a_cable_is_read_from_either_end_alone_as_from_both() {
    let both = "Switch 8 \"a\"\n[1] \"b\"[2]\nSwitch 8 \"b\"\n[2] \"a\"[1]\n";
    let plan = parse(both).unwrap();
    assert_eq!(plan.cables(), [Cable::new(end(0, 1), end(1, 2))]);
    for line in ["[1] \"b\"[2]\n", "[2] \"a\"[1]\n"] {
        assert_eq!(parse(&both.replace(line, "")).unwrap(), plan);
    }
}

#[test]
fn what_a_far_end_says_of_a_port_is_taken_if_the_port_says_nothing() {
    let text = "Switch 8 \"a\"\n[1] \"b\"[1](77) # \"b\" lid 9 4xDDR\nCa 1 \"b\"\n";
    let port = parse(text).unwrap().nodes()[1].end_ports[0];
    assert_eq!(port, EndPort { guid: Guid(0x77), lid: Some(Lid(9)), lmc: 0 });
}

#[test]
fn lines_end_as_on_windows_or_not_at_all_and_may_be_indented() {
    let text = "Switch 8 \"a\"\r\n  [1] \"b\"[1]\r\n\r\n\tCa 1 \"b\"";
    assert_eq!(parse(text).unwrap().cables().len(), 1);
}

#[test]
fn guids_differ_between_fabrics_and_stay_the_same_for_one() {
    let guids = |fabric| -> Vec<Guid> {
        let plan = Topology::tree(fabric, 2, 2, 4).unwrap();
        plan.nodes().iter().map(|node| node.guid).collect()
    };
    assert_eq!(guids("one"), guids("one"));
    assert!(guids("one").iter().all(|guid| !guids("two").contains(guid)));
}

/// Each text, and what is said of it.
const BAD: &[(&str, &str)] = &[
    (
        "lorem ipsum",
        "line 1: \"lorem ipsum\": expected a record, as: Switch 8 \"sw1\"; usually the file is no \
         topology; a comment begins with #",
    ),
    ("", "0 nodes, and there must be 1 to 49151: a text of comments alone has none"),
    (
        "\n[1] \"a\"[1]",
        "line 2: \"[1] \\\"a\\\"[1]\": expected a record, as: Switch 8 \"sw1\"; a record begins with its kind",
    ),
    ("Switch \"a\"", "the number of ports stands before the id"),
    ("Switch 8 a", "the id of 1 to 64 bytes stands in quotes behind"),
    ("Switch 8 \"\"", "the id of 1 to 64 bytes stands in quotes behind"),
    ("Switch 8 \"a", "the id of 1 to 64 bytes stands in quotes behind"),
    ("Switch 0 \"a\"", "line 1: \"a\" has 0 ports, and a node has 1 to 254"),
    ("Switch 255 \"a\"", "line 1: \"a\" has 255 ports, and a node has 1 to 254"),
    ("Ca 99999999999 \"a\"", "line 1: \"a\" has 99999999999 ports"),
    ("Switch 8 \"a\" fast", "a comment begins with #"),
    ("Rt 2 \"a\"", "routers are not modelled"),
    ("include \"more\"", "put the text of an included file in its place"),
    ("@[1] \"a\"", "aliases of ibsim are not known"),
    ("module=\"x\"", "expected vendid, devid, sysimgguid, switchguid, caguid, width or speed"),
    ("rtguid=0x1", "routers are not modelled"),
    ("vendid=banana", "a number is decimal, or hexadecimal after 0x"),
    ("devid=0x10000", "expected a device id of 16 bits"),
    ("caguid=0x12345678123456789", "a GUID has up to 16 hexadecimal digits"),
    ("switchguid=0x1(2", "a GUID has up to 16 hexadecimal digits"),
    ("width=16", "expected a width of 1 to 15"),
    ("speed=0", "speeds: 1 is SDR, 2 is DDR, 4 is QDR"),
    ("caguid=0x1", "line 1: \"the end of the text\": expected a record behind the GUID"),
    ("caguid=0x1\ncaguid=0x2", "line 2: \"caguid=0x2\": expected a record"),
    ("caguid=0x1\nSwitch 8 \"a\"", "expected `switchguid` before a switch"),
    ("Switch 8 \"a\"\n\nCa 1 \"a\"", "line 3: \"a\" has a record on line 1 already"),
    ("Switch 8 \"a\"\n[0] \"b\"[1]", "ports are 1 to 254, each in square brackets"),
    ("Switch 8 \"a\"\n[1 \"b\"[1]", "ports are 1 to 254, each in square brackets"),
    ("Switch 8 \"a\"\n[1] \"b\"[255]", "ports are 1 to 254, each in square brackets"),
    ("Switch 8 \"a\"\n[1][ext 3 \"b", "the number on the case is not closed by ]"),
    ("Switch 8 \"a\"\n[1] b[1]", "the far end's id of 1 to 64 bytes stands in quotes"),
    ("Switch 8 \"a\"\n[1](xyz) \"b\"[1]", "a GUID has up to 16 hexadecimal digits"),
    ("Switch 8 \"a\"\n[9] \"b\"[1]", "line 2: \"a\" has no port 9: its ports are 1 to 8"),
    (
        "Switch 8 \"a\"\n[1] \"b\"[2]\nCa 1 \"b\"",
        "line 2: \"b\" has no port 2: its ports are 1 to 1",
    ),
    ("Switch 8 \"a\"\n[1] \"a\"[9]", "line 2: \"a\" has no port 9: its ports are 1 to 8"),
    (
        "Switch 8 \"a\"\n[1] \"A\"[1]",
        "line 2: port 1 of \"a\" has a cable to \"A\", which the text",
    ),
    (
        "Switch 8 \"a\"\n[1] \"a\"[1]",
        "line 2: the cable leads from port 1 of \"a\" to the same port",
    ),
    ("Switch 8 \"a\"\n[1] \"a\"[2]\n[1] \"a\"[3]", "line 3: port 1 of \"a\" is listed twice"),
    (
        "Switch 8 \"a\"\n[1] \"b\"[1]\nSwitch 8 \"b\"\n[1] \"a\"[2]",
        "line 4: port 1 of \"b\" has two cables: to port 2 of \"a\", and to port 1 of \"a\" on \
         line 2; usually one end of a cable names the wrong port",
    ),
    (
        "Switch 8 \"a\"\n[1] \"c\"[1]\nSwitch 8 \"b\"\n[1] \"c\"[1]\nCa 1 \"c\"",
        "line 4: port 1 of \"c\" has two cables: to port 1 of \"b\", and to port 1 of \"a\" on line 2",
    ),
    (
        "Ca 1 \"a\"\n[1] \"b\"[1] # 4xQDR\nCa 1 \"b\"\n[1] \"a\"[1] # 4xDDR",
        "line 4: the speed of port 1 of \"b\" is DDR here, and QDR on line 2; usually one of the \
         two lines was changed and the other forgotten",
    ),
    (
        "Ca 1 \"a\"\n[1] \"b\"[1] w=1\nCa 1 \"b\"\n[1] \"a\"[1] w=14",
        "line 4: the width of port 1 of \"b\" is 4x or 8x or 12x here, and 1x on line 2",
    ),
    (
        "Ca 1 \"a\"\n[1] \"b\"[1] rate 1g\nCa 1 \"b\"\n[1] \"a\"[1] rate 2g",
        "line 4: the rate of port 1 of \"b\" is 2g here, and 1g on line 2",
    ),
    (
        "Ca 1 \"a\"\n[1](5) \"b\"[1]\nCa 1 \"b\"\n[1] \"a\"[1](6)",
        "line 4: the GUID of port 1 of \"a\" is 0x6 here, and 0x5 on line 2",
    ),
    (
        "Ca 1 \"a\"\n[1] \"b\"[1] # lid 5 lmc 0\nCa 1 \"b\"\n[1] \"a\"[1] # \"a\" lid 6",
        "line 4: the LID of port 1 of \"a\" is 6 here, and 5 on line 2",
    ),
    (
        "Ca 2 \"a\"\nport 1 lid 8 lmc 1\nport 1 lid 8 lmc 2",
        "line 3: the LMC of port 1 of \"a\" is 2 here, and 1 on line 2",
    ),
    (
        "Ca 1 \"a\"\n[1] \"b\"[1] rate 1x",
        "expected a rate behind the word `rate`; \"1x\" is not a rate",
    ),
    ("Ca 1 \"a\"\n[1] \"b\"[1] rate", "\"\" is not a rate in bits per second"),
    ("Ca 1 \"a\"\n[1] \"b\"[1] # lid 70000", "expected a LID behind the word `lid`"),
    ("Ca 1 \"a\"\n[1] \"b\"[1] # lid 7 lmc 256", "expected an LMC behind the word `lmc`"),
    ("Ca 1 \"a\"\n[1] \"b\"[1] w=16", "widths: 1 is 1x, 2 is 4x"),
    ("Ca 1 \"a\"\n[1] \"b\"[1] v=4", "expected `w=`, `s=`, `rate`, `lid`, `lmc`, `4xQDR` or #"),
    ("Ca 1 \"a\"\n[1] \"b\"[1] # 4xHDR", "write the nearest of these, and its rate as `rate 200g`"),
    ("Ca 1 \"a\"\nport x", "expected a port of an adapter without a cable"),
    ("Ca 1 \"a\"\nport 2", "line 2: \"a\" has no port 2: its ports are 1 to 1"),
    ("Ca 1 \"a\"\nport 0", "line 2: \"a\" has no port 0: its ports are 1 to 1"),
    ("Switch 1 \"a\"\nport 1", "the ports of a switch have no GUIDs and LIDs of their own"),
    ("Ca 1 \"a\"\nport 1 lid 0 lmc 1", "line 1: port 1 of \"a\" has LMC 1 without a LID"),
    (
        "Ca 1 \"a\"\nport 1 lid 49152",
        "line 1: port 1 of \"a\" has LID 49152 and LMC 0; LIDs of ports",
    ),
    ("Ca 1 \"a\"\nport 1 lid 3 lmc 1", "a LID is a multiple of 2 to the power of its LMC"),
    ("Ca 1 \"a\"\nport 1 lid 256 lmc 8", "has LID 256 and LMC 8"),
    (
        "Ca 1 \"a\"\nport 1 lid 4 lmc 2\nCa 1 \"b\"\nport 1 lid 7",
        "line 3: \"b\" has LID 7, which is of \"a\" on line 1 already",
    ),
    ("caguid=0x0\nCa 1 \"a\"", "line 2: \"a\" has the GUID 0, which means none"),
    ("Ca 1 \"a\"\nport 1(0)", "line 1: port 1 of \"a\" has the GUID 0, which means none"),
    (
        "caguid=0x5\nCa 1 \"a\"\ncaguid=0x5\nCa 1 \"b\"",
        "line 4: \"b\" has the GUID 0x0000000000000005, as \"a\" on line 2 has; usually a record",
    ),
    (
        "caguid=0x5\nCa 1 \"a\"\ncaguid=0x4\nCa 2 \"b\"",
        "line 4: \"b\" has a port with the GUID 0x0000000000000006, as \"a\" on line 2 has",
    ),
    ("vendid=0x1000000\nCa 1 \"a\"", "line 2: \"a\" has the vendor id 0x1000000, and vendor ids"),
    ("Ca 1 \"a\u{7}\"", "must have no quotes and no control characters"),
];

#[test]
fn each_wrong_text_is_refused_with_line_object_and_usual_cause() {
    for (text, words) in BAD {
        let said = why_not(text);
        assert!(said.contains(words), "{text:?}\n   said: {said}\nwanted: {words}");
        assert!(said.len() < 400, "{said}");
    }
}

#[test]
fn long_lines_and_long_names_are_refused_and_shown_in_part() {
    let line = format!("# {}", "x".repeat(MAX_LINE_BYTES - 1));
    assert!(why_not(&line).starts_with("line 1: the line has 1025 bytes, at most 1024 are read"));
    assert!(why_not(&line[1..]).contains("xxx...\": expected a record"));
    let name = "\u{e9}".repeat(33);
    let said = why_not(&format!("Switch 1 \"{name}\""));
    assert!(said.contains("the id of 1 to 64 bytes"), "{said}");
    let said = why_not(&format!("Switch 1 \"a\"\n[1] \"{name}\""));
    assert!(said.contains("the far end's id of 1 to 64 bytes"), "{said}");
    let said = why_not(&format!("Switch 1 \"a\" # \"{name}\""));
    assert!(said.contains("expected a name of at most 64 bytes of UTF-8"), "{said}");
    let node = Node::new(NodeKind::Switch, &name, Guid(1), 1);
    let said = Topology::build(vec![node], vec![]).unwrap_err().to_string();
    assert!(said.contains("a name must have at most 64 bytes of UTF-8"), "{said}");
}

#[test]
fn more_nodes_and_ports_than_a_subnet_has_are_refused_before_they_take_memory() {
    let adapters = |count: usize, ports: u8| -> String {
        (0..count).map(|at| format!("Ca {ports} \"{at}\"\n")).collect()
    };
    let said = why_not(&adapters(MAX_NODES + 1, 1));
    assert!(
        said.starts_with("line 49152: there are more than 49151 nodes: each needs a LID"),
        "{said}"
    );
    let said = why_not(&adapters(400, 254));
    assert!(said.starts_with("line 388: there are more than 98302 end ports"), "{said}");
    assert_eq!(parse(&adapters(MAX_NODES, 2)).unwrap().nodes().len(), MAX_NODES);
}

#[test]
fn a_plan_that_was_not_read_is_refused_without_a_line() {
    let node = |name: &str, guid| Node::new(NodeKind::Adapter, name, Guid(guid), 2);
    let nodes = || vec![node("a", 16), node("b", 32)];
    let build = |nodes, cables| {
        let error = Topology::build(nodes, cables).unwrap_err();
        assert_eq!(error.line, None);
        error.to_string()
    };
    let said = build(nodes(), vec![Cable::new(end(0, 1), end(2, 1))]);
    assert_eq!(said, "a cable ends at node 2, and there are 2 nodes, counted from 0");
    let said = build(nodes(), vec![Cable::new(end(0, 1), end(1, 0))]);
    assert!(said.starts_with("\"b\" has no port 0: its ports are 1 to 2"), "{said}");
    let cables = vec![Cable::new(end(1, 1), end(0, 1)), Cable::new(end(1, 2), end(0, 1))];
    let said = build(nodes(), cables);
    assert!(
        said.starts_with("port 1 of \"a\" has two cables: to port 2 of \"b\", and to port 1"),
        "{said}"
    );
    let mut short = nodes();
    short[1].end_ports.pop();
    assert!(build(short, vec![]).starts_with("\"b\" has 1 end ports and needs 2"));
    let mut unnamed = nodes();
    unnamed[1].name.clear();
    assert!(
        build(unnamed, vec![]).contains("cannot be called \"\": a name must have at least one")
    );
    let mut many = nodes();
    many[0].ports = 255;
    assert!(build(many, vec![]).starts_with("\"a\" has 255 ports, and a node has 1 to 254"));
    assert!(
        build((1..=MAX_NODES as u64 + 1).map(|at| node("x", at << 8)).collect(), vec![])
            .starts_with("there are more than 49151 nodes")
    );
}

#[test]
fn shapes_that_need_too_many_ports_or_nodes_are_refused() {
    for (plan, words) in [
        (Topology::tree("lab", 0, 2, 4), "0 spines, and there must be 1 to 253: each takes a port"),
        (Topology::tree("lab", 2, 255, 4), "255 leaves, and there must be 1 to 254"),
        (
            Topology::tree("lab", 100, 2, 400),
            "300 ports of a switch with hosts, and there must be 1 to 254",
        ),
        (Topology::ring("lab", 2, 0), "2 switches, and there must be 3 to 49151: less than 3"),
        (Topology::line("lab", 0, 0), "0 switches, and there must be 1 to 49151"),
        (Topology::line("lab", 1, 253), "255 ports of a switch with hosts"),
        (
            Topology::line("lab", 49_000, 152),
            "49152 switches and hosts, and there must be 1 to 49151",
        ),
        (Topology::line("lab", 3, usize::MAX), "switches and hosts, and there must be 1 to 49151"),
        (Topology::single("lab", 0), "0 hosts, and there must be 1 to 254"),
        (Topology::single("lab", 255), "255 hosts, and there must be 1 to 254"),
    ] {
        let error = plan.unwrap_err();
        assert!(matches!(*error.problem, Problem::Shape { .. }) && error.line.is_none());
        assert!(
            error.to_string().starts_with(words) || error.to_string().contains(words),
            "{error}"
        );
    }
}

#[test]
fn a_tree_connects_every_leaf_with_every_spine_and_spreads_hosts_evenly() {
    let plan = Topology::tree("lab", 2, 3, 7).unwrap();
    let names: Vec<_> = plan.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names[..5], ["spine1", "spine2", "leaf1", "leaf2", "leaf3"]);
    assert_eq!(names[5..], ["h1", "h2", "h3", "h4", "h5", "h6", "h7"]);
    let ports: Vec<_> = plan.nodes().iter().map(|node| node.ports).collect();
    assert_eq!(ports[..6], [3, 3, 5, 5, 5, 1]);
    for spine in 0..2 {
        for leaf in 0..3_u8 {
            let up = end(2 + usize::from(leaf), 4 + spine as u8);
            assert_eq!(plan.peer(end(spine, 1 + leaf)), Some(up));
        }
    }
    let hosts = |leaf| (1..=3).filter(|port| plan.cable_at(end(leaf, *port)).is_some()).count();
    assert_eq!([2, 3, 4].map(hosts), [3, 2, 2]);
}

#[test]
fn rings_close_and_lines_do_not() {
    let ring = Topology::ring("lab", 4, 2).unwrap();
    assert_eq!((ring.peer(end(3, 2)), ring.cables().len()), (Some(end(0, 1)), 6));
    let line = Topology::line("lab", 4, 2).unwrap();
    assert_eq!((line.peer(end(3, 2)), line.cables().len()), (None, 5));
    assert_eq!((line.peer(end(1, 3)), line.nodes()[5].name.as_str()), (Some(end(5, 1)), "h2"));
    let single = Topology::single("lab", 254).unwrap();
    assert_eq!((single.nodes()[0].ports, single.peer(end(254, 1))), (254, Some(end(0, 254))));
}

#[test]
fn the_text_of_a_plan_is_what_ibnetdiscover_prints_with_options_of_ibsim() {
    let mut plan = Topology::line("lab", 1, 1).unwrap();
    let (mut nodes, mut cables) = (plan.nodes().to_vec(), plan.cables().to_vec());
    nodes[1].end_ports[0].lid = Some(Lid(6));
    nodes[1].end_ports[0].lmc = 1;
    nodes[0].name = "k=v".to_owned();
    cables[0].rate = Rate::new(10_000_000_000);
    cables[0].speed = LinkSpeed::Fdr;
    plan = Topology::build(nodes, cables).unwrap();
    expect_test::expect![[r##"
        # Topology file: 1 switches, 1 adapters, 1 cables

        vendid=0x0
        devid=0x0
        sysimgguid=0x20fa47dad000100
        switchguid=0x20fa47dad000100(20fa47dad000100)
        Switch	3 "S-020fa47dad000100"		# "k=v" base port 0 lid 0 lmc 0
        [3]	"H-020fa47dad000200"[1](20fa47dad000201) w=2 s=4		# "h1" lid 6 4xFDR rate 10g

        vendid=0x0
        devid=0x0
        sysimgguid=0x20fa47dad000200
        caguid=0x20fa47dad000200
        Ca	1 "H-020fa47dad000200"		# "h1"
        [1](20fa47dad000201)	"S-020fa47dad000100"[3] w=2 s=4		# lid 6 lmc 1 "" lid 0 4xFDR rate 10g
    "##]]
    .assert_eq(&plan.to_string());
    assert_eq!(parse(&plan.to_string()), Ok(plan));
}

/// Any plan of up to 12 nodes, with numbers and names that are allowed.
fn any_plan() -> impl Strategy<Value = Topology> {
    let node = (any::<bool>(), "[^\"\\pC]{1,16}", 1..9_u8, any::<[u16; 4]>());
    let cable = (any::<[u8; 4]>(), 0..4_usize, 0..5_usize, any::<Option<u32>>());
    (prop::collection::vec(node, 1..12), prop::collection::vec(cable, 0..30)).prop_map(
        |(nodes, cables)| {
            let nodes: Vec<_> =
                (1..).zip(nodes).map(|(number, parts)| node_of(number, parts)).collect();
            let mut used = Vec::new();
            let cables = cables.into_iter().filter_map(|(ends, width, speed, rate)| {
                let pick = |node: u8, port: u8| {
                    let node = usize::from(node) % nodes.len();
                    end(node, 1 + port % nodes[node].ports)
                };
                let ends = [pick(ends[0], ends[1]), pick(ends[2], ends[3])];
                if ends[0] == ends[1] || ends.iter().any(|end| used.contains(end)) {
                    return None;
                }
                used.extend(ends);
                let width = [LinkWidth::X1, LinkWidth::X4, LinkWidth::X8, LinkWidth::X12][width];
                let speeds = [
                    LinkSpeed::Sdr,
                    LinkSpeed::Ddr,
                    LinkSpeed::Qdr,
                    LinkSpeed::Fdr,
                    LinkSpeed::Edr,
                ];
                let rate = rate.and_then(|rate| Rate::new(u64::from(rate) * 1000));
                Some(Cable { ends, width, speed: speeds[speed], rate })
            });
            let cables = cables.collect();
            Topology::build(nodes, cables).unwrap()
        },
    )
}

/// A node with numbers of its own, some of them unusual.
fn node_of(number: u16, (is_switch, name, ports, odd): (bool, String, u8, [u16; 4])) -> Node {
    let kind = if is_switch { NodeKind::Switch } else { NodeKind::Adapter };
    let mut node = Node::new(kind, &name, Guid(u64::from(number) << 32 | u64::from(odd[0])), ports);
    node.system_guid = Guid(u64::from(odd[1]));
    (node.vendor_id, node.device_id) = (u32::from(odd[2]) << 8, odd[3]);
    for (at, end) in (0..).zip(&mut node.end_ports) {
        if odd[1] >> at & 1 == 1 {
            end.guid = Guid(end.guid.value() + (u64::from(odd[2]) << 16));
        }
        if odd[0] >> at & 1 == 1 {
            end.lmc = (odd[3] >> at & 7) as u8;
            end.lid = Some(Lid(number << 10 | at << 7));
        }
    }
    node
}

proptest! {
    #[test]
    fn any_plan_is_read_from_its_text_as_it_was(plan in any_plan()) {
        let text = plan.to_string();
        prop_assert_eq!(parse(&text), Ok(plan));
        // ibsim reads no longer lines.
        prop_assert!(text.lines().all(|line| line.len() < 255));
    }

    #[test]
    fn any_text_is_read_or_refused_in_words(text in "(\\PC|[\\n\"\\[\\]()#= 0-9x]){0,200}") {
        if let Err(error) = parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn a_text_with_any_damage_is_read_or_refused_in_words(
        at in 0..PRINTED.len(), length in 0..40_usize, with in "\\PC{0,4}"
    ) {
        let mut text = PRINTED.to_owned();
        text.replace_range(at..(at + length).min(PRINTED.len()), &with);
        match parse(&text) {
            Ok(plan) => prop_assert_eq!(parse(&plan.to_string()), Ok(plan)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
