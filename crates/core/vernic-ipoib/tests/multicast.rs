//! Interfaces of a subnet that join IP groups and send to them.

mod common;

use std::net::IpAddr;

use common::{MILLISECOND, SECOND, Subnet, packet, packet_of, v4};
use vernic_ipoib::{DropReason, Forward};
use vernic_wire::ipoib::{Scope, group_of};
use vernic_wire::{Gid, Pkey};

const IGMP: u8 = 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
fn mgid(text: &str) -> Gid {
    group_of(ip(text), Pkey::DEFAULT, Scope::LINK_LOCAL).unwrap()
}

/// The message of IGMPv2 by which a host joins or leaves.
fn report(subnet: &mut Subnet, node: usize, group: [u8; 4], joins: bool) {
    let kind = if joins { 0x16 } else { 0x17 };
    let message = [&[kind, 0, 0, 0][..], &group].concat();
    subnet.send(node, &packet_of(v4(node), IpAddr::from(group), IGMP, &message));
    subnet.run_for(10 * MILLISECOND);
}
fn came(subnet: &mut Subnet, dst: &str) -> Vec<usize> {
    let to_dst = |packet: &Vec<u8>| {
        let IpAddr::V4(dst) = ip(dst) else { panic!() };
        packet[16..20] == dst.octets() && packet[9] != IGMP
    };
    let nodes = 0..subnet.nodes.len();
    nodes.map(|node| subnet.take_host(node).iter().filter(|p| to_dst(p)).count()).collect()
}

#[test]
fn members_get_what_is_sent_to_their_group_and_others_do_not() {
    let mut subnet = Subnet::new(4, |_| {});
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    report(&mut subnet, 2, [239, 1, 2, 3], true);
    let sent = packet(v4(0), ip("239.1.2.3"), 1, 100);
    assert_eq!(subnet.send(0, &sent), Forward::Waits);
    subnet.run_for(10 * MILLISECOND);
    assert!(matches!(subnet.send(0, &sent), Forward::Send(..)));
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 2, 2, 0]);
    // A member sends as well, and does not hear itself.
    subnet.send(1, &packet(v4(1), ip("239.1.2.3"), 2, 100));
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 0, 1, 0]);
    report(&mut subnet, 2, [239, 1, 2, 3], false);
    subnet.send(0, &sent);
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 1, 0, 0]);
}

#[test]
fn all_systems_and_broadcasts_reach_everybody_else() {
    let mut subnet = Subnet::new(3, |_| {});
    for dst in ["224.0.0.1", "255.255.255.255", "10.0.0.255"] {
        assert!(matches!(subnet.send(0, &packet(v4(0), ip(dst), 1, 40)), Forward::Send(..)));
        subnet.run_for(MILLISECOND);
        assert_eq!(came(&mut subnet, dst), [0, 1, 1], "{dst}");
    }
}

#[test]
fn a_group_without_members_is_not_created_by_a_sender() {
    let mut subnet = Subnet::new(2, |_| {});
    let sent = packet(v4(0), ip("239.1.2.3"), 1, 100);
    subnet.send(0, &sent);
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(subnet.counter(0, "ipoib_drop_no_group"), 1);
    assert!(!subnet.groups.contains_key(&mgid("239.1.2.3")));
    assert_eq!(subnet.send(0, &sent), Forward::Dropped(DropReason::NoGroup));
    // The SA tells that it was created since.
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    subnet.with(0, |interface, _| interface.handle_group_created(mgid("239.1.2.3")));
    assert_eq!(subnet.send(0, &sent), Forward::Waits);
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 1]);
    // Its last member leaves, and the SA tells of that.
    report(&mut subnet, 1, [239, 1, 2, 3], false);
    subnet.with(0, |interface, now| interface.handle_group_deleted(now, mgid("239.1.2.3")));
    assert_eq!(subnet.send(0, &sent), Forward::Dropped(DropReason::NoGroup));
    // What nobody tells of is found out when the pause is over.
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    subnet.run_for(10 * SECOND);
    subnet.send(0, &sent);
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 1]);
}

#[test]
fn what_is_for_more_than_the_link_goes_to_the_routers() {
    let mut subnet = Subnet::new(3, |_| {});
    report(&mut subnet, 2, [224, 0, 0, 2], true);
    for round in 0..2 {
        subnet.send(0, &packet(v4(0), ip("239.9.9.9"), 1, 100));
        subnet.run_for(10 * MILLISECOND);
        assert_eq!(came(&mut subnet, "239.9.9.9"), [0, 0, 1], "round {round}");
    }
    // The routing protocol's group ends at the link.
    subnet.send(0, &packet(v4(0), ip("224.0.0.9"), 1, 100));
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "224.0.0.9"), [0, 0, 0]);
}

#[test]
fn a_group_that_is_only_sent_to_is_left_after_a_while() {
    let mut subnet = Subnet::new(2, |_| {});
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    subnet.send(0, &packet(v4(0), ip("239.1.2.3"), 1, 100));
    subnet.run_for(SECOND);
    let group = mgid("239.1.2.3");
    assert!(subnet.groups[&group].members.contains_key(&0));
    subnet.run_for(120 * SECOND);
    subnet.send(0, &packet(v4(0), ip("239.1.2.3"), 1, 100));
    subnet.run_for(110 * SECOND);
    assert!(subnet.groups[&group].members.contains_key(&0));
    subnet.run_for(300 * SECOND);
    assert!(!subnet.groups[&group].members.contains_key(&0));
    assert!(subnet.groups[&group].members.contains_key(&1), "a receiver stays");
}

#[test]
fn a_sender_that_joins_receives_and_one_that_leaves_while_it_is_asked_for_does_not() {
    let mut subnet = Subnet::new(3, |_| {});
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    subnet.send(0, &packet(v4(0), ip("239.1.2.3"), 1, 100));
    subnet.run_for(10 * MILLISECOND);
    report(&mut subnet, 0, [239, 1, 2, 3], true);
    subnet.send(1, &packet(v4(1), ip("239.1.2.3"), 1, 100));
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [1, 1, 0]);
    let message = |kind| [&[kind, 0, 0, 0][..], &[239, 1, 2, 4]].concat();
    for kind in [0x16, 0x17] {
        let report = packet_of(v4(2), ip("239.1.2.4"), IGMP, &message(kind));
        subnet.send(2, &report);
    }
    subnet.run_for(SECOND);
    assert!(!subnet.groups.contains_key(&mgid("239.1.2.4")));
}

#[test]
fn groups_follow_the_subnet_manager_to_other_lids() {
    let mut subnet = Subnet::new(2, |_| {});
    report(&mut subnet, 1, [239, 1, 2, 3], true);
    // A new manager makes the groups anew; the SA client has joined again.
    let group = mgid("239.1.2.3");
    let mut record = subnet.groups[&group].record;
    record.mlid.0 += 100;
    subnet.groups.get_mut(&group).unwrap().record = record;
    subnet.with(1, |interface, now| interface.handle_joined(now, group, Some(record)));
    subnet.send(0, &packet(v4(0), ip("239.1.2.3"), 1, 100));
    subnet.run_for(10 * MILLISECOND);
    assert_eq!(came(&mut subnet, "239.1.2.3"), [0, 1]);
    // The membership has ended: it is asked for again.
    subnet.with(1, |interface, now| interface.handle_joined(now, group, None));
    assert!(!subnet.nodes[1].attached.contains(&record.mlid));
    subnet.run_for(11 * SECOND);
    assert!(subnet.nodes[1].attached.contains(&record.mlid));
}
