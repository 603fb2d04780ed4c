//! The subnet manager at a host of subnets in virtual time.
#![allow(clippy::print_stdout)] // How long a large one takes is worth knowing.

mod common;

use common::Random;
use common::lab::Lab;
use common::oracle::{Flow, packet};
use vernic_fabric::Time;
use vernic_fabric::attributes::PortState;
use vernic_fabric::datagram::Envelope;
use vernic_fabric::manager::{Manager, ManagerConfig, Routing, SmState, Via};
use vernic_fabric::subnet::{NodeId, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_proto::mad::{AgentId, Delivery, MadAddress, Outcome};
use vernic_wire::mad::{MadHeader, Method, MgmtClass};
use vernic_wire::sa::{
    DATA_LEN, InformInfo, JoinState, McMemberRecord, MemberComponents, NodeRecord, PathComponents,
    PathRecord, PortInfoComponents, PortInfoRecord, SaAttribute, SaHeader, SaMad,
    ServiceComponents, ServiceRecord,
};
use vernic_wire::smp::{Notice, PortInfo};
use vernic_wire::{Gid, Guid, Lid, Pkey, PortNum, Psn, Qkey, Qpn, Rmpp};

const ONE: PortNum = PortNum(1);
const SECOND: u64 = 1_000_000_000;

fn is_up(lab: &Lab, manager: NodeId) -> bool {
    let view = lab.manager(manager).view();
    view.up_since.is_some() && !view.is_busy
}

/// Checks that every link is active, and that all LIDs are there and unlike.
fn check(lab: &Lab) {
    let mut lids = Vec::new();
    for node in lab.subnet.nodes() {
        let is_switch = lab.subnet.forwarding(node).is_some();
        for at in 0..=lab.subnet.attributes(node).unwrap().ports {
            let Some(port) = lab.subnet.port(node, PortNum(at)) else { continue };
            let view = lab.subnet.port_view(node, PortNum(at));
            if view.is_some_and(|view| view.peer.is_some()) && port.physical as u8 == 5 {
                assert_eq!(port.state, PortState::Active, "{node:?} {at}");
            }
            if is_switch == (at == 0) {
                lids.push(port.lid);
            }
        }
    }
    let count = lids.len();
    lids.sort();
    lids.dedup();
    assert_eq!((lids.len(), lids[0].is_unicast()), (count, true));
}

#[test]
fn a_tree_comes_up_in_one_sweep() {
    for (spines, leaves, hosts) in [(2, 2, 8), (4, 8, 64)] {
        let plan = Topology::tree("t", spines, leaves, hosts).unwrap();
        let mut lab = Lab::new(&plan, SubnetConfig::MODELLED);
        let h1 = lab.manage("h1", |_| {});
        assert!(lab.until(10 * SECOND, |lab| is_up(lab, h1)), "{:?}", lab.manager(h1).view());
        check(&lab);
        let view = lab.manager(h1).view();
        assert_eq!((view.state, view.switches), (SmState::Master, spines + leaves));
        assert_eq!((view.adapter_ports, view.unanswered), (hosts, 0));
        println!("{hosts} hosts: {} requests, {:?}", view.requests, view.up_since);
    }
}

/// Follows the tables from a host to a LID. Returns the switches on the way.
fn walk(lab: &Lab, from: NodeId, lid: u16) -> Option<Vec<NodeId>> {
    let mut way = Vec::new();
    let mut end = lab.subnet.port_view(from, ONE)?.peer?;
    while let Some(forwarding) = lab.subnet.forwarding(end.0) {
        way.push(end.0);
        let out = forwarding.linear[usize::from(lid)];
        if out == 0 || way.len() > 20 {
            return (way.len() <= 20).then_some(way);
        }
        end = lab.subnet.port_view(end.0, PortNum(out))?.peer?;
    }
    (lab.subnet.port(end.0, end.1)?.lid.0 == lid).then_some(way)
}

fn hosts(lab: &Lab) -> Vec<NodeId> {
    lab.subnet.nodes().filter(|node| lab.subnet.forwarding(*node).is_none()).collect()
}

/// Checks that tables lead from every host to every other one. Returns the longest way.
fn check_ways(lab: &Lab) -> usize {
    let hosts = hosts(lab);
    let mut longest = 0;
    for (from, to) in hosts.iter().flat_map(|from| hosts.iter().map(move |to| (*from, *to))) {
        let lid = lab.subnet.port(to, ONE).unwrap().lid.0;
        if from != to {
            let way = walk(lab, from, lid);
            longest = longest.max(way.unwrap_or_else(|| panic!("{from:?} to {to:?}")).len());
        }
    }
    longest
}

fn up(plan: &Topology, change: impl FnOnce(&mut ManagerConfig)) -> (Lab, NodeId) {
    let mut lab = Lab::new(plan, SubnetConfig::MODELLED);
    let h1 = lab.manage("h1", change);
    assert!(lab.until(20 * SECOND, |lab| is_up(lab, h1)), "{:?}", lab.manager(h1).view());
    (lab, h1)
}

#[test]
fn a_tree_of_648_hosts_comes_up() {
    let plan = Topology::tree("t", 18, 36, 648).unwrap();
    let start = std::time::Instant::now();
    let (mut lab, h1) = up(&plan, |_| {});
    let view = lab.manager(h1).view();
    println!("{:?} after {:.2} s", view, start.elapsed().as_secs_f64());
    assert_eq!((view.switches, view.adapter_ports, view.unanswered), (54, 648, 0));
    check(&lab);
    assert_eq!(check_ways(&lab), 3);
    // Each of the 18 cables up leads to as many hosts as the others, or one more.
    let leaf = lab.node("leaf1");
    let mut loads = [0; 256];
    for host in hosts(&lab) {
        let lid = lab.subnet.port(host, ONE).unwrap().lid.0;
        loads[usize::from(lab.subnet.forwarding(leaf).unwrap().linear[usize::from(lid)])] += 1;
    }
    let h2 = lab.add("h2");
    let from = PathRecord { sgid: gid(&lab, h2), ..Default::default() };
    let mask = PathComponents::SGID.bits();
    let all = request(Method::GET_TABLE, SaAttribute::PATH_RECORD, mask, |buf| from.emit(buf));
    let (status, data) = ask(&mut lab, h2, &all);
    assert_eq!((status, data.len()), (0, 702 * 64));
    let up = &loads[19..=36];
    assert_eq!((up.iter().min(), up.iter().max()), (Some(&35), Some(&35)), "{up:?}");
}

#[test]
fn ways_up_and_down_never_lead_up_again() {
    for (plan, longest) in [
        (Topology::tree("t", 2, 4, 8).unwrap(), 3),
        (Topology::ring("t", 6, 6).unwrap(), 5),
        (Topology::line("t", 4, 4).unwrap(), 4),
    ] {
        let (lab, _) = up(&plan, |config| config.routing = Routing::UpDown);
        check(&lab);
        assert_eq!(check_ways(&lab), longest);
        // Packets that wait for each other in a circle need a circle of ways behind each other.
        let mut after = std::collections::BTreeSet::new();
        for (from, to) in hosts(&lab).iter().flat_map(|a| hosts(&lab).into_iter().map(|b| (*a, b)))
        {
            if from != to {
                let way = walk(&lab, from, lab.subnet.port(to, ONE).unwrap().lid.0).unwrap();
                for three in way.windows(3) {
                    after.insert(((three[0], three[1]), (three[1], three[2])));
                }
            }
        }
        // Links that nothing waits behind are taken away until none is left.
        loop {
            let waits: std::collections::BTreeSet<_> = after.iter().map(|(one, _)| *one).collect();
            let before = after.len();
            after.retain(|(_, next)| waits.contains(next));
            if after.len() == before {
                break;
            }
        }
        assert!(after.is_empty(), "a circle: {after:?}");
    }
}

#[test]
fn a_cut_cable_is_led_around_at_once_and_again_when_it_is_back() {
    let plan = Topology::tree("t", 2, 4, 8).unwrap();
    let (mut lab, h1) = up(&plan, |_| {});
    let leaf = lab.node("leaf2");
    let before = lab.subnet.nodes().filter_map(|node| Some(lab.subnet.port(node, ONE)?.lid));
    let before: Vec<_> = before.collect();
    for is_up in [false, true, false] {
        let sweeps = lab.manager(h1).view().sweeps;
        lab.subnet.set_cable(leaf, PortNum(3), is_up, lab.now).unwrap();
        lab.pass(SECOND / 2);
        assert!(lab.manager(h1).view().sweeps > sweeps, "a trap, and a sweep");
        check(&lab);
        assert_eq!(check_ways(&lab), 3);
        let uses = |lab: &Lab| lab.subnet.forwarding(leaf).unwrap().linear[..20].contains(&3);
        assert_eq!(uses(&lab), is_up);
    }
    let after = lab.subnet.nodes().filter_map(|node| Some(lab.subnet.port(node, ONE)?.lid));
    assert_eq!(after.collect::<Vec<_>>(), before, "nobody has another LID");
}

#[test]
fn a_host_that_goes_and_comes_back_keeps_its_lid() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let (mut lab, h1) = up(&plan, |_| {});
    let h4 = lab.node("h4");
    let lid = lab.subnet.port(h4, ONE).unwrap().lid;
    lab.subnet.set_cable(h4, ONE, false, lab.now).unwrap();
    lab.pass(SECOND);
    assert_eq!(lab.manager(h1).view().adapter_ports, 3);
    lab.subnet.set_cable(h4, ONE, true, lab.now).unwrap();
    lab.pass(SECOND);
    let port = lab.subnet.port(h4, ONE).unwrap();
    assert_eq!((port.lid, port.state), (lid, PortState::Active));
    assert_eq!(lab.manager(h1).view().adapter_ports, 4);
}

#[test]
fn the_manager_with_the_higher_priority_takes_over_and_a_standby_follows_a_kill() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let (mut lab, h1) = up(&plan, |config| (config.priority, config.look_ns) = (3, SECOND));
    let h4 = lab.manage("h4", |config| (config.priority, config.look_ns) = (2, SECOND));
    lab.pass(3 * SECOND);
    let state = |lab: &Lab, node| lab.manager(node).view().state;
    assert_eq!((state(&lab, h1), state(&lab, h4)), (SmState::Master, SmState::Standby));
    let h2 = lab.manage("h2", |config| (config.priority, config.look_ns) = (9, SECOND));
    lab.pass(5 * SECOND);
    let states = [h1, h4, h2].map(|node| state(&lab, node));
    assert_eq!(states, [SmState::Standby, SmState::Standby, SmState::Master]);
    let h2_lid = lab.subnet.port(h2, ONE).unwrap().lid;
    assert!(hosts(&lab).iter().all(|node| lab.subnet.port(*node, ONE).unwrap().sm_lid == h2_lid));
    lab.kill(h2);
    lab.pass(30 * SECOND);
    assert_eq!((state(&lab, h1), state(&lab, h4)), (SmState::Master, SmState::Standby));
    let h1_lid = lab.subnet.port(h1, ONE).unwrap().lid;
    assert!(hosts(&lab).iter().all(|node| lab.subnet.port(*node, ONE).unwrap().sm_lid == h1_lid));
    check(&lab);
    check_ways(&lab);
}

/// A request of subnet administration with a record.
fn request(
    method: Method,
    attribute: SaAttribute,
    mask: u64,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    static ID: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    let mut asked = SaMad {
        mad: MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::SUBNET_ADMIN,
            class_version: 2,
            method,
            transaction_id: u64::from(ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
            attribute_id: attribute.0,
            ..MadHeader::default()
        },
        rmpp: Rmpp::default(),
        sa: SaHeader { component_mask: mask, ..SaHeader::default() },
        data: [0; DATA_LEN],
    };
    emit(&mut asked.data);
    let mut bytes = vec![0; SaMad::LEN];
    asked.emit(&mut bytes);
    bytes
}

/// Asks, and returns the status and the data.
fn ask(lab: &mut Lab, node: NodeId, message: &[u8]) -> (u16, Vec<u8>) {
    let delivery = lab.ask(node, message).expect("an answer");
    let header = MadHeader::parse(&delivery.mad).unwrap();
    (header.status, delivery.mad[56..].to_vec())
}

fn gid(lab: &Lab, node: NodeId) -> Gid {
    let port = lab.subnet.port(node, ONE).unwrap();
    let bytes = u128::from(port.gid_prefix) << 64 | u128::from(port.guid.0);
    Gid(bytes.to_be_bytes())
}

#[test]
fn paths_lead_where_the_tables_do_and_tables_of_them_come_in_segments() {
    let plan = Topology::tree("t", 2, 4, 8).unwrap();
    let (mut lab, _) = up(&plan, |_| {});
    let (h2, h8) = (lab.add("h2"), lab.node("h8"));
    let wanted = PathRecord {
        sgid: gid(&lab, h2),
        dgid: gid(&lab, h8),
        path_count: 1,
        ..Default::default()
    };
    let mask = (PathComponents::SGID | PathComponents::DGID | PathComponents::PATH_COUNT).bits();
    let get = request(Method::GET, SaAttribute::PATH_RECORD, mask, |buf| wanted.emit(buf));
    let (status, data) = ask(&mut lab, h2, &get);
    let path = PathRecord::parse(&data).unwrap();
    let lid = |node| lab.subnet.port(node, ONE).unwrap().lid;
    assert_eq!((status, path.slid, path.dlid), (0, lid(h2), lid(h8)));
    // 4,096 bytes; 4x QDR is 40 Gb/s.
    assert_eq!((path.mtu.value, path.rate.value, path.pkey.value()), (5, 7, 0xFFFF));

    let unknown = PathRecord { dgid: Gid([7; 16]), ..wanted };
    let get = request(Method::GET, SaAttribute::PATH_RECORD, mask, |buf| unknown.emit(buf));
    assert_eq!(ask(&mut lab, h2, &get).0, 3 << 8, "no records");

    let all = request(Method::GET_TABLE, SaAttribute::PATH_RECORD, 0, |_| {});
    let (status, data) = ask(&mut lab, h2, &all);
    // 8 hosts and 6 switches.
    assert_eq!((status, data.len()), (0, 14 * 14 * 64));
    let paths = data.chunks(64).map(|chunk| PathRecord::parse(chunk).unwrap());
    assert!(paths.into_iter().all(|path| path.slid.is_unicast() && path.dlid.is_unicast()));
}

#[test]
fn ports_with_several_lids_have_a_way_for_each() {
    let plan = Topology::tree("t", 4, 2, 6).unwrap();
    let (mut lab, _) = up(&plan, |config| config.lmc = 2);
    check(&lab);
    let (h2, h6) = (lab.add("h2"), lab.node("h6"));
    for node in hosts(&lab) {
        let port = lab.subnet.port(node, ONE).unwrap();
        assert_eq!((port.lmc, port.lid.0 % 4), (2, 0));
    }
    let base = |lab: &Lab, node| lab.subnet.port(node, ONE).unwrap().lid.0;
    let (from, to) = (base(&lab, h2), base(&lab, h6));
    let spines: std::collections::BTreeSet<_> = (to..to + 4)
        .map(|lid| {
            let packet =
                packet(Flow { source: from, destination: lid, service_level: 0 }, 0, 0, 64);
            lab.subnet.submit(h2, ONE, &packet, lab.now).unwrap();
            lab.pass(SECOND / 100);
            assert!(lab.subnet.poll_receive(h6, ONE, &mut Vec::new()), "LID {lid}");
            let leaf = lab.subnet.port_view(h2, ONE).unwrap().peer.unwrap().0;
            lab.subnet.forwarding(leaf).unwrap().linear[usize::from(lid)]
        })
        .collect();
    assert_eq!(spines.len(), 4, "each LID by a spine of its own");

    let wanted = PathRecord { sgid: gid(&lab, h2), dgid: gid(&lab, h6), ..Default::default() };
    let mask = PathComponents::SGID | PathComponents::DGID;
    let attribute = SaAttribute::PATH_RECORD;
    let all = request(Method::GET_TABLE, attribute, mask.bits(), |buf| wanted.emit(buf));
    let (_, data) = ask(&mut lab, h2, &all);
    let lids = data.chunks(64).map(|chunk| PathRecord::parse(chunk).unwrap());
    let lids: Vec<_> = lids.map(|path| (path.slid.0, path.dlid.0)).collect();
    assert_eq!(lids, [0, 1, 2, 3].map(|at| (from + at, to + at)));
    // A path to a LID that is not the first.
    let wanted = PathRecord { dlid: Lid(to + 3), ..wanted };
    let mask = (mask | PathComponents::DLID).bits();
    let get = request(Method::GET, attribute, mask, |buf| wanted.emit(buf));
    let (status, data) = ask(&mut lab, h2, &get);
    assert_eq!((status, PathRecord::parse(&data).unwrap().dlid.0), (0, to + 3));
}

#[test]
fn records_of_nodes_and_ports_say_what_there_is() {
    let plan = Topology::tree("t", 2, 4, 8).unwrap();
    let (mut lab, _) = up(&plan, |_| {});
    let h2 = lab.add("h2");
    let all = request(Method::GET_TABLE, SaAttribute::NODE_RECORD, 0, |_| {});
    let (status, data) = ask(&mut lab, h2, &all);
    assert_eq!((status, data.len()), (0, 14 * 112));
    let names = data.chunks(112).map(|chunk| {
        let text = NodeRecord::parse(chunk).unwrap().description;
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    });
    assert!(names.into_iter().any(|name| name == "leaf3"));
    let wanted =
        PortInfoRecord { lid: lab.subnet.port(h2, ONE).unwrap().lid, ..Default::default() };
    let mask = PortInfoComponents::LID.bits();
    let get = request(Method::GET, SaAttribute::PORT_INFO_RECORD, mask, |buf| wanted.emit(buf));
    let (status, data) = ask(&mut lab, h2, &get);
    let record = PortInfoRecord::parse(&data).unwrap();
    let info = PortInfo::from_bytes(&record.port_info);
    assert_eq!((status, record.port, info.state, info.lid), (0, ONE, 4, wanted.lid));
    let (status, data) =
        ask(&mut lab, h2, &request(Method::GET, SaAttribute::CLASS_PORT_INFO, 0, |_| {}));
    assert_eq!((status, data[1]), (0, 2));
    let unknown = request(Method::GET, SaAttribute::LINK_RECORD, 0, |_| {});
    assert_eq!(ask(&mut lab, h2, &unknown).0, 3 << 2);
}

#[test]
fn members_of_a_group_get_its_packets_and_those_who_leave_do_not() {
    let plan = Topology::tree("t", 2, 4, 8).unwrap();
    let (mut lab, h1) = up(&plan, |_| {});
    let names = ["h2", "h5", "h8"];
    let nodes = names.map(|name| lab.add(name));
    let mgid = Gid([0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let components =
        MemberComponents::MGID | MemberComponents::PORT_GID | MemberComponents::JOIN_STATE;
    let makes = components
        | MemberComponents::QKEY
        | MemberComponents::PKEY
        | MemberComponents::TRAFFIC_CLASS
        | MemberComponents::SERVICE_LEVEL
        | MemberComponents::FLOW_LABEL;
    let record = |lab: &Lab, node, join_state| McMemberRecord {
        mgid,
        port_gid: gid(lab, node),
        qkey: Qkey(0x0B1B),
        pkey: Pkey::DEFAULT,
        join_state,
        ..Default::default()
    };
    let attribute = SaAttribute::MC_MEMBER_RECORD;
    let full = JoinState::FULL_MEMBER;
    // A group that does not exist needs more than its name.
    let first = record(&lab, nodes[0], full);
    let poor = request(Method::SET, attribute, components.bits(), |buf| first.emit(buf));
    assert_eq!(ask(&mut lab, nodes[0], &poor).0, 6 << 8);
    let mut mlid = Lid(0);
    for (at, node) in nodes.into_iter().enumerate() {
        let mask = if at == 0 { makes } else { components };
        let join = record(&lab, node, full);
        let join = request(Method::SET, attribute, mask.bits(), |buf| join.emit(buf));
        let (status, data) = ask(&mut lab, node, &join);
        let joined = McMemberRecord::parse(&data).unwrap();
        assert_eq!((status, joined.join_state, joined.qkey), (0, full, Qkey(0x0B1B)));
        assert!(mlid == Lid(0) || mlid == joined.mlid);
        mlid = joined.mlid;
        lab.subnet.set_member(node, ONE, mlid, true);
    }
    lab.pass(SECOND / 10);
    assert_eq!(lab.manager(h1).view().groups, 2, "that of IPoIB, and this one");
    let sends = |lab: &mut Lab| {
        let from = lab.subnet.port(nodes[0], ONE).unwrap().lid.0;
        let flow = Flow { source: from, destination: mlid.0, service_level: 0 };
        lab.subnet.submit(nodes[0], ONE, &packet(flow, 0, 0, 256), lab.now).unwrap();
        lab.pass(SECOND / 100);
        let mut out = Vec::new();
        let takes = |node: &NodeId| {
            let mut count = 0;
            while lab.subnet.poll_receive(*node, ONE, &mut out) {
                count += 1;
            }
            count
        };
        nodes.iter().map(takes).collect::<Vec<_>>()
    };
    assert_eq!(sends(&mut lab), [0, 1, 1]);
    // Others see nothing of it.
    let h3 = lab.node("h3");
    assert_eq!(lab.subnet.port_view(h3, ONE).unwrap().misdirected, 0);
    // The tree stands a cut cable.
    let leaf = lab.node("leaf1");
    lab.subnet.set_cable(leaf, PortNum(3), false, lab.now).unwrap();
    lab.pass(SECOND);
    assert_eq!(sends(&mut lab), [0, 1, 1]);
    let leave = record(&lab, nodes[2], full);
    let leave = request(Method::DELETE, attribute, components.bits(), |buf| leave.emit(buf));
    assert_eq!(ask(&mut lab, nodes[2], &leave).0, 0);
    lab.pass(SECOND / 10);
    assert_eq!(sends(&mut lab), [0, 1, 0]);
    let all =
        request(Method::GET_TABLE, attribute, MemberComponents::MGID.bits(), |buf| first.emit(buf));
    assert_eq!(ask(&mut lab, nodes[0], &all).1.len(), 2 * 56);
}

/// Sends a datagram of a partition between two hosts. Returns whether it arrives.
fn arrives(lab: &mut Lab, from: NodeId, to: NodeId, pkey: u16) -> bool {
    let lid = |lab: &Lab, node| lab.subnet.port(node, ONE).unwrap().lid.0;
    let envelope = Envelope {
        is_management: false,
        service_level: 0,
        slid: lid(lab, from),
        dlid: lid(lab, to),
        grh: None,
        pkey: Pkey(pkey),
        source: Qpn::new(77),
        destination: Qpn::new(78),
        qkey: Qkey(1),
    };
    let mut packet = Vec::new();
    envelope.seal(Psn::new(0), &[0; 256], &mut packet);
    packet.truncate(packet.len() - 2);
    lab.subnet.submit(from, ONE, &packet, lab.now).unwrap();
    lab.pass(SECOND / 100);
    lab.subnet.poll_receive(to, ONE, &mut packet)
}

#[test]
fn partitions_are_in_all_tables_and_switches_and_administration_keep_to_them() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let mut lab = Lab::new(&plan, SubnetConfig::MODELLED);
    let texts = ["0x7fff=ALL", "0x8001=h1,h2", "0x8002=h2,h3:limited"];
    let h4 = lab.manage_parted("h4", &texts, |_| {});
    assert!(lab.until(20 * SECOND, |lab| is_up(lab, h4)));
    let [h1, h2, h3] = ["h1", "h2", "h3"].map(|name| lab.add(name));
    let rows = |lab: &Lab, node, port| -> Vec<u16> {
        let port = lab.subnet.port(node, PortNum(port)).unwrap();
        port.tables.pkeys.iter().map(|key| key.0).filter(|key| *key != 0).collect()
    };
    assert_eq!(rows(&lab, h1, 1), [0x7FFF, 0x8001]);
    assert_eq!(rows(&lab, h2, 1), [0x7FFF, 0x8001, 0x8002]);
    assert_eq!(rows(&lab, h3, 1), [0x7FFF, 0x0002]);
    assert_eq!(rows(&lab, h4, 1), [0xFFFF]);
    let leaf = lab.subnet.port_view(h3, ONE).unwrap().peer.unwrap();
    assert_eq!(rows(&lab, leaf.0, leaf.1.0), [0xFFFF, 0x8002]);
    assert!(lab.subnet.port(leaf.0, leaf.1).unwrap().enforces_inbound);

    assert!(arrives(&mut lab, h1, h2, 0x8001) && arrives(&mut lab, h3, h2, 0x0002));
    // The switch at the receiver drops it, and the one at a sender that is not in the partition.
    assert!(!arrives(&mut lab, h1, h3, 0x8001) && !arrives(&mut lab, h3, h1, 0x8001));
    let counters = lab.subnet.port(leaf.0, leaf.1).unwrap().counters;
    assert_eq!((counters.xmit_constraint, counters.rcv_constraint), (1, 1));

    let path = |lab: &mut Lab, from, to, pkey: Option<u16>| {
        let mut mask = PathComponents::SGID | PathComponents::DGID;
        let (sgid, dgid) = (gid(lab, from), gid(lab, to));
        let mut wanted = PathRecord { sgid, dgid, ..Default::default() };
        if let Some(pkey) = pkey {
            mask |= PathComponents::PKEY;
            wanted.pkey = Pkey(pkey);
        }
        let attribute = SaAttribute::PATH_RECORD;
        let get = request(Method::GET, attribute, mask.bits(), |buf| wanted.emit(buf));
        let (status, data) = ask(lab, from, &get);
        (status == 0).then(|| PathRecord::parse(&data).unwrap().pkey.0)
    };
    assert_eq!(path(&mut lab, h1, h2, None), Some(0x8001));
    assert_eq!(path(&mut lab, h3, h2, None), Some(0x0002));
    assert_eq!(path(&mut lab, h1, h4, None), Some(0x7FFF));
    assert_eq!(path(&mut lab, h1, h3, None), None);
    assert_eq!(path(&mut lab, h1, h2, Some(0xFFFF)), None);

    // Each partition has its broadcast group, and others do not get in.
    let mut join = |node, pkey: u16| {
        let [high, low] = pkey.to_be_bytes();
        let mut mgid = [0; 16];
        mgid[..6].copy_from_slice(&[0xFF, 0x12, 0x40, 0x1B, high, low]);
        mgid[12..].fill(0xFF);
        let mask =
            MemberComponents::MGID | MemberComponents::PORT_GID | MemberComponents::JOIN_STATE;
        let (mgid, port_gid) = (Gid(mgid), gid(&lab, node));
        let join_state = JoinState::FULL_MEMBER;
        let record = McMemberRecord { mgid, port_gid, join_state, ..Default::default() };
        let attribute = SaAttribute::MC_MEMBER_RECORD;
        let set = request(Method::SET, attribute, mask.bits(), |buf| record.emit(buf));
        let (status, data) = ask(&mut lab, node, &set);
        (status == 0).then(|| McMemberRecord::parse(&data).unwrap().pkey.0)
    };
    assert_eq!([join(h1, 0x8001), join(h2, 0x8002)], [Some(0x8001), Some(0x8002)]);
    assert_eq!([join(h3, 0x8001), join(h1, 0x8002)], [None, None]);

    // A limited member knows of the manager, of switches, and of those that it can talk to.
    let all = request(Method::GET_TABLE, SaAttribute::NODE_RECORD, 0, |_| {});
    assert_eq!(ask(&mut lab, h1, &all).1.len(), (1 + 1 + 1 + 4) * 112);
    let h4_knows = ask(&mut lab, h4, &all).1.len();
    assert_eq!(h4_knows, 8 * 112);
}

#[test]
fn partitions_with_service_levels_share_links_by_their_weights() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let mut lab = Lab::new(&plan, SubnetConfig { data_lanes: 4, ..SubnetConfig::MODELLED });
    let texts = ["0x8001@1=ALL", "0x8002@6:192=ALL"];
    let h4 = lab.manage_parted("h4", &texts, |_| {});
    assert!(lab.until(20 * SECOND, |lab| is_up(lab, h4)));
    let (h1, h3) = (lab.add("h1"), lab.node("h3"));
    let leaf = lab.subnet.port_view(h1, ONE).unwrap().peer.unwrap();
    for (node, port, rows) in [(h1, ONE, 1), (leaf.0, PortNum(3), 5)] {
        let tables = &lab.subnet.port(node, port).unwrap().tables;
        let shares: Vec<_> =
            tables.low.iter().map(|entry| (entry.lane.value(), entry.weight)).collect();
        // Level 6 is lane 2 of four.
        assert_eq!(shares[..5], [(0, 64), (1, 64), (2, 192), (3, 64), (0, 0)]);
        assert_eq!(tables.lanes.len(), rows);
        assert!(tables.lanes.iter().all(|row| row[6].value() == 2 && row[1].value() == 1));
    }
    let (sgid, dgid) = (gid(&lab, h1), gid(&lab, h3));
    let wanted = PathRecord { sgid, dgid, pkey: Pkey(0x8002), ..Default::default() };
    let mask = (PathComponents::SGID | PathComponents::DGID | PathComponents::PKEY).bits();
    let get = request(Method::GET, SaAttribute::PATH_RECORD, mask, |buf| wanted.emit(buf));
    let (_, data) = ask(&mut lab, h1, &get);
    let path = PathRecord::parse(&data).unwrap();
    assert_eq!((path.pkey, path.service_level.value()), (Pkey(0x8002), 6));

    // Both lanes always have packets: the third of four goes three times as often.
    let flow = |level| Flow { source: path.slid.0, destination: path.dlid.0, service_level: level };
    let packets = [1, 6].map(|level| packet(flow(level), 0, 0, 2048));
    let mut counts = [0_u32; 2];
    let (end, mut out) = (lab.now + SECOND / 1_000, Vec::new());
    while lab.now < end {
        for packet in &packets {
            while lab.subnet.submit(h1, ONE, packet, lab.now).is_ok() {}
        }
        lab.pass(500);
        while lab.subnet.poll_receive(h3, ONE, &mut out) {
            counts[usize::from(out[1] >> 4 == 6)] += 1;
        }
    }
    assert!(counts[0] > 200 && counts[1].abs_diff(3 * counts[0]) < counts[0] / 10, "{counts:?}");
}

#[test]
fn a_manager_that_takes_over_writes_its_own_partitions() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let mut lab = Lab::new(&plan, SubnetConfig::MODELLED);
    let h4 = lab.manage_parted("h4", &["0x7fff=ALL", "0x8001=h1,h2"], |config| {
        config.priority = 3;
    });
    assert!(lab.until(20 * SECOND, |lab| is_up(lab, h4)));
    let h3 = lab.manage("h3", |_| {});
    lab.pass(5 * SECOND);
    lab.kill(h4);
    lab.pass(30 * SECOND);
    assert_eq!(lab.manager(h3).view().state, SmState::Master);
    let (h1, h2) = (lab.node("h1"), lab.node("h2"));
    for node in [h1, h2, h3] {
        let port = lab.subnet.port(node, ONE).unwrap();
        assert_eq!(port.tables.pkeys.iter().filter(|key| key.0 != 0).count(), 1);
        assert_eq!(port.tables.pkeys[0], Pkey::DEFAULT);
        let leaf = lab.subnet.port_view(node, ONE).unwrap().peer.unwrap();
        assert!(!lab.subnet.port(leaf.0, leaf.1).unwrap().enforces_inbound);
    }
    assert!(arrives(&mut lab, h1, h3, 0xFFFF));
}

#[test]
fn services_have_leases_and_keys_and_subscribers_are_told_of_new_ports() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let (mut lab, h1) = up(&plan, |_| {});
    let (h2, h4) = (lab.add("h2"), lab.node("h4"));
    let mut name = [0; 64];
    name[..4].copy_from_slice(b"disk");
    let record =
        ServiceRecord { gid: gid(&lab, h2), lease_s: 60, name, key: [5; 16], ..Default::default() };
    let attribute = SaAttribute::SERVICE_RECORD;
    let set = request(Method::SET, attribute, !0, |buf| record.emit(buf));
    assert_eq!(ask(&mut lab, h2, &set).0, 0);
    let by_name = ServiceComponents::NAME.bits();
    let get = || request(Method::GET, attribute, by_name, |buf| record.emit(buf));
    let (status, data) = ask(&mut lab, h2, &get());
    let found = ServiceRecord::parse(&data).unwrap();
    assert_eq!((status, found.gid, found.key), (0, record.gid, [0; 16]));
    let thief = ServiceRecord { key: [6; 16], ..record };
    let remove = request(Method::DELETE, attribute, by_name, |buf| thief.emit(buf));
    assert_eq!(ask(&mut lab, h2, &remove).0, 7 << 8, "denied");
    lab.pass(61 * SECOND);
    assert_eq!(ask(&mut lab, h2, &get()).0, 3 << 8, "its lease is over");

    let inform = InformInfo {
        lid_begin: Lid(0xFFFF),
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ANY,
        trap_number: 65,
        qpn: Qpn::GSI,
        producer_type: InformInfo::ANY_PRODUCER,
        ..InformInfo::default()
    };
    let subscribe = request(Method::SET, SaAttribute::INFORM_INFO, 0, |buf| inform.emit(buf));
    assert_eq!(ask(&mut lab, h2, &subscribe).0, 0);
    lab.subnet.set_cable(h4, ONE, false, lab.now).unwrap();
    lab.pass(SECOND);
    assert!(is_up(&lab, h1));
    let host = lab.hosts.get_mut(&h2).unwrap();
    let report = host.agents.poll_deliver(host.client).unwrap();
    let report = SaMad::parse(&report.mad).unwrap();
    let notice = Notice::parse(&report.data).unwrap();
    assert_eq!((report.mad.method, notice.number.0), (Method::REPORT, 65));
    assert_eq!(notice.details[6..22], gid(&lab, h4).0);
}

#[test]
fn a_manager_stands_any_answer_and_any_request() {
    let mut sweeps = 0;
    for seed in 0..600 {
        let mut random = Random(seed);
        let mut manager = Manager::new(ManagerConfig::new(Guid(7)));
        let mut now = Time(0);
        let mut asked: Vec<(Via, Vec<u8>)> = Vec::new();
        for _ in 0..600 {
            now = now + random.below(SECOND / 4);
            manager.handle_timeout(now);
            while let Some(out) = manager.poll_transmit() {
                out.mad.len().eq(&256).then(|| asked.push((out.via, out.mad)));
            }
            asked.drain(..asked.len().saturating_sub(16));
            let request = (random.below(3) == 0).then(|| {
                let mut bytes = vec![0; 256];
                bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
                let via = [Via::Lid, Via::Directed, Via::Admin][random.below(3) as usize];
                bytes[..4].copy_from_slice(&match via {
                    Via::Admin => [1, 3, 2, [1, 2, 0x12, 0x15][random.below(4) as usize]],
                    _ => [1, 1, 1, [1, 2, 5, 0x81][random.below(4) as usize]],
                });
                let attributes = [0x11, 0x12, 0x35, 0x38, 0x31, 0x03, 0x20, 0x02];
                bytes[16..18].copy_from_slice(&[0, attributes[random.below(8) as usize]]);
                (via, bytes)
            });
            let answer = || {
                let (via, mut mad) = asked.get(random.below(16) as usize).cloned()?;
                (mad[3], mad[4], mad[5]) = (0x81, 0x80, 0);
                // Mostly right attributes lead further than wild ones.
                for _ in 0..random.below(12) {
                    let at = 64 + random.below(64) as usize;
                    mad[at] =
                        [random.next() as u8, random.below(5) as u8][random.below(2) as usize];
                }
                Some((via, mad))
            };
            let Some((via, mad)) = request.or_else(answer) else { continue };
            let outcome = match random.below(10) {
                0 => Outcome::TimedOut,
                _ => Outcome::Received,
            };
            let lid = Lid(random.below(0x1_0000) as u16);
            let address = MadAddress { lid, ..MadAddress::default() };
            let delivery = Delivery { agent: AgentId(1), outcome, address, mad };
            manager.handle(via, &delivery, now);
        }
        sweeps += manager.view().sweeps;
    }
    assert!(sweeps > 100, "{sweeps} sweeps came to an end");
}
