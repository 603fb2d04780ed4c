//! Interfaces of a subnet in connected mode.

mod common;

use std::net::IpAddr;

use common::{MILLISECOND, SECOND, Subnet, gid_of, packet, v4, v6};
use vernic_ipoib::{ConnectionId, Destination, DropReason, Forward, Mode};
use vernic_wire::ipoib::{ConnectedData, ConnectedModes};

const CONNECTED: common::Change = |config| config.mode = Mode::Connected;

/// Makes the addresses known, and the connection if there is to be one.
fn acquaint(subnet: &mut Subnet, from: usize, to: usize) {
    subnet.send(from, &packet(v4(from), v4(to), 0, 40));
    subnet.run_for(50 * MILLISECOND);
    subnet.take_host(to);
}
fn goes_by_connection(forward: Forward) -> bool {
    matches!(forward, Forward::Send(Destination::Connection(_), _))
}

#[test]
fn long_packets_wait_for_the_connection_and_short_ones_do_not() {
    let mut subnet = Subnet::new(2, CONNECTED);
    assert_eq!(subnet.nodes[0].interface.mtu(), Some(65_520));
    let (long, short) = (packet(v4(0), v4(1), 1, 65_500), packet(v4(0), v4(1), 2, 40));
    subnet.send(0, &short);
    subnet.run_for(5 * MILLISECOND / 2);
    // The path is known, the connection is not.
    assert_eq!(subnet.send(0, &long), Forward::Waits);
    assert!(matches!(subnet.send(0, &short), Forward::Send(Destination::Datagram { .. }, _)));
    subnet.run_for(50 * MILLISECOND);
    let lens: Vec<_> = subnet.take_host(1).iter().map(Vec::len).collect();
    assert_eq!(lens, [60, 60, 65_520]);
    assert!(goes_by_connection(subnet.send(0, &short)));
    assert!(goes_by_connection(subnet.send(1, &packet(v4(1), v4(0), 3, 40))), "both ways");
    assert!(
        goes_by_connection(subnet.send(0, &packet(v6(0), v6(1), 3, 40))) || {
            subnet.run_for(50 * MILLISECOND);
            goes_by_connection(subnet.send(0, &packet(v6(0), v6(1), 3, 40)))
        }
    );
    assert_eq!(subnet.connected().len(), 1, "one for all addresses");
}

#[test]
fn an_interface_of_datagrams_receives_by_connections_and_answers_by_datagrams() {
    let mut subnet = Subnet::new(2, |config| {
        config.mode = if config.qpn.value() % 2 == 0 { Mode::Connected } else { Mode::Datagram };
    });
    acquaint(&mut subnet, 0, 1);
    assert!(goes_by_connection(subnet.send(0, &packet(v4(0), v4(1), 1, 9000))));
    subnet.run_for(MILLISECOND);
    assert_eq!(subnet.take_host(1)[0].len(), 9020);
    let back = subnet.send(1, &packet(v4(1), v4(0), 1, 40));
    assert!(matches!(back, Forward::Send(Destination::Datagram { .. }, _)));
}

#[test]
fn requests_that_cross_make_one_connection() {
    let mut subnet = Subnet::new(6, CONNECTED);
    for (from, to) in [(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)] {
        subnet.send(from, &packet(v4(from), v4(to), 1, 5000));
    }
    subnet.run_for(SECOND);
    assert_eq!(subnet.connected().into_iter().collect::<Vec<_>>(), [(0, 1), (2, 3), (4, 5)]);
    for (from, to) in [(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)] {
        assert!(goes_by_connection(subnet.send(from, &packet(v4(from), v4(to), 2, 5000))));
    }
    subnet.run_for(SECOND);
    for node in 0..6 {
        assert_eq!(subnet.take_host(node).len(), 2, "node {node}");
    }
}

#[test]
fn an_interface_without_connections_gets_datagrams_and_the_host_is_told_of_their_length() {
    let mut subnet = Subnet::new(2, |config| match config.qpn.value() % 2 {
        0 => config.mode = Mode::Connected,
        _ => config.receive_mtu = None,
    });
    acquaint(&mut subnet, 0, 1);
    let long = packet(v4(0), v4(1), 1, 5000);
    assert_eq!(subnet.send(0, &long), Forward::Dropped(DropReason::TooBig));
    let told = subnet.take_host(0);
    assert_eq!((told[0][20..22].to_vec(), &told[0][26..28]), (vec![3, 4], &[7, 0xFC][..]));
    let fits = subnet.send(0, &packet(v4(0), v4(1), 1, 2024));
    assert!(matches!(fits, Forward::Send(Destination::Datagram { .. }, _)));
    // Groups get datagrams in any case.
    let group: IpAddr = "224.0.0.1".parse().unwrap();
    let forward = subnet.send(0, &packet(v4(0), group, 1, 5000));
    assert_eq!(forward, Forward::Dropped(DropReason::TooBig));
}

#[test]
fn the_shorter_of_two_lengths_is_the_connections() {
    let mut subnet = Subnet::new(2, |config| {
        config.mode = Mode::Connected;
        config.receive_mtu = Some(if config.qpn.value() % 2 == 0 { 65_524 } else { 9004 });
    });
    acquaint(&mut subnet, 0, 1);
    assert!(goes_by_connection(subnet.send(0, &packet(v4(0), v4(1), 1, 8980))));
    let forward = subnet.send(0, &packet(v4(0), v4(1), 1, 8981));
    assert_eq!(forward, Forward::Dropped(DropReason::TooBig));
    assert_eq!(subnet.take_host(0)[0][26..28], 9000_u16.to_be_bytes());
    let back = subnet.send(1, &packet(v4(1), v4(0), 1, 8981));
    assert_eq!(back, Forward::Dropped(DropReason::TooBig));
}

#[test]
fn connections_without_traffic_end_and_those_with_it_stay() {
    let mut subnet = Subnet::new(3, CONNECTED);
    acquaint(&mut subnet, 0, 1);
    acquaint(&mut subnet, 0, 2);
    for _ in 0..30 {
        subnet.run_for(10 * SECOND);
        subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    }
    assert_eq!(subnet.connected().into_iter().collect::<Vec<_>>(), [(0, 1)]);
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let mut subnet = Subnet::new(2, CONNECTED);
    acquaint(&mut subnet, 0, 1);
    let forward = subnet.send(0, &packet(v4(0), v4(1), 1, 40));
    let Forward::Send(Destination::Connection(id), _) = forward else { panic!("{forward:?}") };
    subnet.with(0, |interface, now| interface.handle_disconnected(now, id));
    subnet.send(0, &packet(v4(0), v4(1), 2, 9000));
    subnet.run_for(SECOND);
    let lens: Vec<_> = subnet.take_host(1).iter().map(Vec::len).collect();
    assert_eq!(lens, [60, 9020]);
    let gone = subnet.with(0, |interface, _| interface.handle_message(id, &[8, 0, 0, 0]));
    assert_eq!(gone, vernic_ipoib::Received::Dropped(DropReason::NoConnection));
}

#[test]
fn a_peer_that_refuses_is_sent_datagrams_and_asked_again_later() {
    let mut subnet = Subnet::new(2, |config| {
        config.mode = Mode::Connected;
        // The second has no room, and says in its address that it takes connections.
        config.max_connections = if config.qpn.value() % 2 == 0 { 8 } else { 0 };
    });
    assert!(subnet.nodes[1].interface.address().modes.contains(ConnectedModes::RC));
    acquaint(&mut subnet, 0, 1);
    for _ in 0..2 {
        let forward = subnet.send(0, &packet(v4(0), v4(1), 1, 9000));
        assert_eq!(forward, Forward::Dropped(DropReason::TooBig));
        let forward = subnet.send(0, &packet(v4(0), v4(1), 1, 40));
        assert!(matches!(forward, Forward::Send(Destination::Datagram { .. }, _)));
        subnet.run_for(SECOND);
    }
    subnet.run_for(10 * SECOND);
    assert_eq!(subnet.send(0, &packet(v4(0), v4(1), 1, 9000)), Forward::Waits);
    subnet.run_for(SECOND);
    assert_eq!(subnet.connected().len(), 0);
}

#[test]
fn answers_to_connections_that_there_are_not_end_them() {
    let mut subnet = Subnet::new(2, CONNECTED);
    let data = ConnectedData { reserved: 0, qpn: common::qpn_of(1), receive_mtu: 65_524 };
    let now = subnet.now;
    let interface = &mut subnet.nodes[0].interface;
    interface.handle_connected(now, ConnectionId(7), Some(data));
    let request = interface.poll_request();
    assert_eq!(request, Some(vernic_ipoib::Request::Disconnect { id: ConnectionId(7) }));
    // A peer that asks twice has forgotten the first.
    let (first, _) = interface.handle_connect_request(now, gid_of(1), data).unwrap();
    let (second, _) = interface.handle_connect_request(now, gid_of(1), data).unwrap();
    assert_ne!(first, second);
    let request = interface.poll_request();
    assert_eq!(request, Some(vernic_ipoib::Request::Disconnect { id: first }));
}
