//! Interfaces of a subnet that send each other datagrams: address resolution, paths, the link.

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;

use common::{MILLISECOND, SECOND, Subnet, gid_of, lid_of, packet, qpn_of, tag, v4, v6};
use vernic_ipoib::{Address, DropReason, Event, Forward, Gateway, Interface, NewGroup, Resolved};
use vernic_wire::ipoib::{HardwareAddress, USUAL_QKEY};
use vernic_wire::{Lid, Mtu, Pkey, Qpn, ServiceLevel};

const ARP: u16 = 0x0806;

#[test]
fn the_first_packet_waits_for_an_answer_and_a_path_and_the_next_leaves_at_once() {
    for address in [v4, v6] {
        let mut subnet = Subnet::new(2, |_| {});
        let sent = packet(address(0), address(1), 1, 100);
        assert_eq!(subnet.send(0, &sent), Forward::Waits);
        subnet.run_for(50 * MILLISECOND);
        assert_eq!(subnet.take_host(1), std::slice::from_ref(&sent));
        assert!(matches!(subnet.send(0, &sent), Forward::Send(..)));
        // The other has learned our address from the question.
        let back = packet(address(1), address(0), 2, 100);
        assert!(matches!(subnet.send(1, &back), Forward::Send(..)));
        subnet.run_for(MILLISECOND);
        assert_eq!(subnet.take_host(0), [back]);
        assert_eq!(subnet.take_host(1), [sent]);
        assert_eq!(subnet.path_queries, 2, "one of each");
    }
}

#[test]
fn all_to_all_with_loss_brings_each_packet_once_to_its_host_and_no_other() {
    const NODES: usize = 24;
    let mut subnet = Subnet::new(NODES, |_| {});
    subnet.loss = 100;
    let mut count = 0_u32;
    for round in 0..20 {
        for (from, to) in (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))) {
            if from != to {
                let address = if (from + to + round) % 2 == 0 { v4 } else { v6 };
                subnet.send(from, &packet(address(from), address(to), count, 60));
                count += 1;
            }
        }
        subnet.run_for(500 * MILLISECOND);
    }
    let mut seen = BTreeSet::new();
    for to in 0..NODES {
        for packet in subnet.take_host(to) {
            let dst = match packet[0] >> 4 {
                4 => packet[19],
                _ => packet[39],
            };
            // What the machine tells of packets that did not arrive is for the sender.
            let protocol = if packet[0] >> 4 == 4 { packet[9] } else { packet[6] };
            if protocol == 253 {
                assert_eq!(usize::from(dst), to + 1);
                assert!(seen.insert(tag(&packet)), "twice: {}", tag(&packet));
            }
        }
    }
    // A tenth is lost by the network, and of the first ones some wait in vain.
    assert!(seen.len() as u32 > count * 85 / 100, "{} of {count}", seen.len());
    subnet.loss = 0;
    subnet.run_for(5 * SECOND);
    for to in 1..NODES {
        subnet.take_host(to);
        subnet.send(0, &packet(v4(0), v4(to), 1, 60));
        subnet.run_for(10 * MILLISECOND);
        assert_eq!(subnet.take_host(to).len(), 1, "to {to}");
    }
}

#[test]
fn an_address_that_nobody_has_is_asked_for_three_times_and_the_host_is_told() {
    let mut subnet = Subnet::new(2, |_| {});
    let before = subnet.sent[&ARP];
    let lost = packet(v4(0), v4(7), 1, 40);
    assert_eq!(subnet.send(0, &lost), Forward::Waits);
    subnet.run_for(2900 * MILLISECOND);
    assert_eq!(subnet.take_host(0).len(), 0);
    subnet.run_for(200 * MILLISECOND);
    assert_eq!(subnet.sent[&ARP] - before, 3);
    let told = subnet.take_host(0);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0][20..22], [3, 1], "destination unreachable: host");
    assert_eq!(told[0][28..], lost[..]);
    assert_eq!(subnet.counter(0, "ipoib_drop_no_answer"), 1);
    // A neighbor of IPv6 that does not exist has no group: the SA says so.
    assert_eq!(subnet.send(0, &packet(v6(0), v6(7), 1, 40)), Forward::Waits);
    subnet.run_for(4 * SECOND);
    assert_eq!(subnet.take_host(0)[0][40..42], [1, 3], "address unreachable");
}

#[test]
fn a_neighbor_in_use_is_asked_again_by_a_datagram_and_one_that_is_not_is_forgotten() {
    let mut subnet = Subnet::new(3, |_| {});
    let to_one = |subnet: &mut Subnet| subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    to_one(&mut subnet);
    subnet.send(0, &packet(v4(0), v4(2), 1, 40));
    for _ in 0..40 {
        subnet.run_for(SECOND);
        to_one(&mut subnet);
    }
    let known: Vec<_> = subnet.nodes[0].interface.neighbors().map(|(ip, _)| ip).collect();
    assert_eq!(known, [v4(1)]);
    subnet.run_for(MILLISECOND);
    assert_eq!(subnet.take_host(1).len(), 41);
    // A question to all, an answer, a question to one, an answer; and those for the third.
    let announcements = 3;
    assert_eq!(subnet.sent[&ARP], announcements + 4 + 2);
}

#[test]
fn a_neighbor_that_is_gone_is_noticed() {
    let mut subnet = Subnet::new(2, |_| {});
    subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    subnet.run_for(SECOND);
    subnet.nodes[1].is_cut = true;
    for _ in 0..40 {
        subnet.run_for(SECOND);
        subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    }
    assert_eq!(subnet.nodes[0].interface.neighbors().count(), 0);
    assert!(subnet.counter(0, "ipoib_drop_no_answer") > 0);
}

#[test]
fn an_interface_with_another_queue_pair_or_lid_is_found_again_by_what_it_announces() {
    let mut subnet = Subnet::new(2, |_| {});
    for address in [v4, v6] {
        subnet.send(0, &packet(address(0), address(1), 1, 40));
    }
    subnet.run_for(SECOND);
    subnet.take_host(1);
    // The interface is made anew.
    let mut config = *subnet.nodes[1].interface.config();
    config.qpn = Qpn::new(0x7777);
    subnet.nodes[1].interface = Interface::new(config);
    subnet.nodes[1].attached.clear();
    let addresses = [v4(1), v6(1)].map(|ip| Address { ip, prefix_len: 24 });
    subnet.with(1, |interface, now| {
        interface.set_addresses(&addresses);
        interface.handle_port(now, true, gid_of(1), lid_of(1));
    });
    subnet.run_for(SECOND);
    for address in [v4, v6] {
        let sent = packet(address(0), address(1), 2, 40);
        assert!(matches!(subnet.send(0, &sent), Forward::Send(..)));
        subnet.run_for(MILLISECOND);
        assert_eq!(subnet.take_host(1), [sent]);
    }
    // The subnet manager gives its port another LID.
    subnet.with(1, |interface, now| interface.handle_port(now, true, gid_of(1), Lid(99)));
    subnet.run_for(SECOND);
    for address in [v4, v6] {
        let sent = packet(address(0), address(1), 3, 40);
        subnet.send(0, &sent);
        subnet.run_for(SECOND);
        assert_eq!(subnet.take_host(1), [sent]);
    }
}

#[test]
fn a_lid_that_changed_unheard_is_found_when_the_neighbor_is_asked_again() {
    let mut subnet = Subnet::new(2, |_| {});
    subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    subnet.run_for(SECOND);
    subnet.loss = 1000;
    subnet.with(1, |interface, now| interface.handle_port(now, true, gid_of(1), Lid(99)));
    subnet.run_for(SECOND);
    subnet.loss = 0;
    subnet.take_host(1);
    for _ in 0..35 {
        subnet.send(0, &packet(v4(0), v4(1), 1, 40));
        subnet.run_for(SECOND);
    }
    assert!(subnet.take_host(1).len() > 1);
    assert_eq!(subnet.counter(0, "ipoib_drop_no_answer"), 0);
}

#[test]
fn partitions_of_the_same_subnet_do_not_hear_each_other() {
    let change: common::Change = |config| {
        let is_other = config.qpn.value() % 2 == 1;
        config.pkey = if is_other { Pkey(0x8001) } else { Pkey(0xFFFF) };
    };
    let mut subnet = Subnet::new(4, change);
    assert_eq!(subnet.groups.keys().filter(|gid| gid.0[12..] == [0xFF; 4]).count(), 2);
    subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    subnet.send(0, &packet(v4(0), v4(2), 2, 40));
    subnet.send(1, &packet(v4(1), v4(3), 3, 40));
    subnet.run_for(5 * SECOND);
    let came: Vec<_> = (1..4).map(|to| subnet.take_host(to).len()).collect();
    assert_eq!(came, [0, 1, 1]);
}

#[test]
fn a_link_without_its_group_is_down_and_comes_up_when_there_is_one() {
    let mut subnet = Subnet::without_group(1, |_| {});
    subnet.start();
    let down = Forward::Dropped(DropReason::LinkDown);
    assert_eq!(subnet.send(0, &packet(v4(0), v4(1), 1, 40)), down);
    subnet.run_for(100 * SECOND);
    assert_eq!(subnet.nodes[0].interface.mtu(), None);
    subnet.create_broadcast_group(Pkey::DEFAULT);
    subnet.run_for(16 * SECOND);
    assert!(subnet.has_event(0, |event| *event == Event::Up { mtu: 2044, qkey: USUAL_QKEY }));
    assert_eq!(subnet.nodes[0].interface.qkey(), Some(USUAL_QKEY));
}

#[test]
fn a_group_is_created_where_the_owner_wants_it() {
    let change: common::Change = |config| {
        let (mtu, service_level) = (Mtu::B4096, ServiceLevel::new(1));
        config.new_group = Some(NewGroup { qkey: USUAL_QKEY, mtu, rate: 3, service_level });
    };
    let mut subnet = Subnet::without_group(2, change);
    subnet.start();
    assert_eq!(subnet.nodes[0].interface.mtu(), Some(4092));
    assert_eq!(subnet.nodes[1].interface.mtu(), Some(4092));
    assert_eq!(subnet.groups.keys().filter(|gid| gid.0[12..] == [0xFF; 4]).count(), 1);
}

#[test]
fn a_port_that_goes_down_takes_the_link_with_it_and_brings_it_back() {
    let mut subnet = Subnet::new(2, |_| {});
    subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    subnet.send(0, &packet(v4(0), v4(9), 1, 40));
    subnet.run_for(SECOND);
    subnet.with(0, |interface, now| interface.handle_port(now, false, gid_of(0), lid_of(0)));
    assert!(subnet.nodes[0].attached.is_empty());
    assert!(subnet.has_event(0, |event| *event == Event::Down));
    assert_eq!(subnet.nodes[0].interface.next_deadline(), None);
    assert_eq!(subnet.counter(0, "ipoib_drop_link_down"), 1);
    subnet.with(0, |interface, now| interface.handle_port(now, true, gid_of(0), lid_of(0)));
    subnet.run_for(SECOND);
    subnet.take_host(1);
    subnet.send(0, &packet(v4(0), v4(1), 2, 40));
    subnet.run_for(SECOND);
    assert_eq!(subnet.take_host(1).len(), 1);
}

#[test]
fn what_is_not_on_the_link_goes_to_the_router() {
    let mut subnet = Subnet::new(3, |_| {});
    let far: IpAddr = "192.0.2.1".parse().unwrap();
    let no_route = Forward::Dropped(DropReason::NoRoute);
    assert_eq!(subnet.send(0, &packet(v4(0), far, 1, 40)), no_route);
    let to = Address { ip: "0.0.0.0".parse().unwrap(), prefix_len: 0 };
    subnet.with(0, |interface, _| interface.set_gateways(&[Gateway { to, via: v4(2) }]));
    subnet.send(0, &packet(v4(0), far, 2, 40));
    subnet.run_for(SECOND);
    assert_eq!(subnet.take_host(2).len(), 1);
}

#[test]
fn the_owner_asks_where_an_address_is() {
    let mut subnet = Subnet::new(2, |_| {});
    for ip in [v4(1), v6(1), v4(1), v4(0), v4(9)] {
        subnet.with(0, |interface, now| interface.resolve(now, ip));
        subnet.run_for(4 * SECOND);
    }
    let answers: Vec<_> = subnet.nodes[0]
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Resolved { ip, answer } => Some((*ip, *answer)),
            _ => None,
        })
        .collect();
    let at = |answer: Result<Resolved, DropReason>| {
        answer.map(|found| (found.address.without_modes(), found.path.dlid))
    };
    let answers: Vec<_> = answers.into_iter().map(|(ip, answer)| (ip, at(answer))).collect();
    let node = |index| Ok((HardwareAddress::new(qpn_of(index), gid_of(index)), lid_of(index)));
    let expected = [
        (v4(1), node(1)),
        (v6(1), node(1)),
        (v4(1), node(1)),
        (v4(0), node(0)),
        (v4(9), Err(DropReason::NoAnswer)),
    ];
    assert_eq!(answers, expected);
}

#[test]
fn tables_and_queues_have_bounds() {
    let change: common::Change = |config| {
        config.max_neighbors = 10;
        config.max_groups = 8;
        config.max_waiting = 20;
    };
    let mut subnet = Subnet::new(1, change);
    for last in 0..200 {
        subnet.send(0, &packet(v4(0), IpAddr::from([10, 0, 0, last]), 1, 1000));
        subnet.send(0, &packet(v4(0), IpAddr::from([239, 0, 0, last]), 1, 1000));
    }
    assert!(subnet.counter(0, "ipoib_drop_no_room") > 300);
    subnet.run_for(10 * SECOND);
    assert!(subnet.nodes[0].host.len() < 400);
}
