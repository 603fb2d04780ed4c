//! Interfaces in connected mode: long packets go by reliable connections.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Fabric, PATIENCE, Running, packet, until_it_comes, v4, v6};
use vernic_ipoibd::Mode;

const LONGEST: usize = 65_520 - 40;

/// Waits until an interface has sent a message by a connection.
fn has_sent_messages(host: &Running) {
    let start = Instant::now();
    loop {
        let counters = *host.counters.lock().unwrap();
        if counters.is_some_and(|counters| counters.sent_messages > 0) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_longest_packets_go_by_connections_in_both_directions() {
    let fabric = Fabric::start(2);
    let start = |index| Running::start(&fabric.name, index, Mode::Connected);
    let hosts = [start(0), start(1)];
    for len in [8, 2000, 2100, 60_000, LONGEST] {
        for address in [v4, v6] {
            let sent = packet(address(0), address(1), &vec![7; len]);
            until_it_comes(&hosts[0], &hosts[1], &sent);
            let back = packet(address(1), address(0), &vec![8; len]);
            until_it_comes(&hosts[1], &hosts[0], &back);
        }
    }
    hosts.iter().for_each(has_sent_messages);
    // Many in a row, as many as the socket holds: none is lost, and all come in their order.
    while hosts[1].receive().is_some() {}
    let mut sent = 0_u32;
    let mut came = 0_u32;
    while came < 500 {
        if sent < 500 && sent < came + 2 {
            let mut payload = vec![1; 30_000];
            payload[..4].copy_from_slice(&sent.to_be_bytes());
            hosts[0].packets.send(&packet(v4(0), v4(1), &payload)).unwrap();
            sent += 1;
            continue;
        }
        let start = Instant::now();
        let packet = loop {
            match hosts[1].receive() {
                Some(packet) => break packet,
                None => assert!(start.elapsed() < PATIENCE, "packet {came} is lost"),
            }
        };
        assert_eq!(packet[20..24], came.to_be_bytes());
        came += 1;
    }
}

#[test]
fn an_interface_of_datagrams_takes_long_packets_and_sends_short_ones() {
    let fabric = Fabric::start(2);
    let connected = Running::start(&fabric.name, 0, Mode::Connected);
    let datagrams = Running::start(&fabric.name, 1, Mode::Datagram);
    let long = packet(v4(0), v4(1), &vec![7; 60_000]);
    until_it_comes(&connected, &datagrams, &long);
    until_it_comes(&datagrams, &connected, &packet(v4(1), v4(0), b"short"));
    let too_long = packet(v4(1), v4(0), &vec![7; 3000]);
    datagrams.packets.send(&too_long).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE);
        let Some(came) = datagrams.receive() else { continue };
        if came[9] == 1 {
            assert_eq!([came[20], came[21]], [3, 4], "ICMP: too long");
            break;
        }
    }
}

#[test]
fn two_that_ask_each_other_at_once_have_a_connection() {
    let fabric = Fabric::start(2);
    for _ in 0..5 {
        let start = |index| Running::start(&fabric.name, index, Mode::Connected);
        let hosts = [start(0), start(1)];
        let short = |from, to| packet(v4(from), v4(to), b"short");
        // Both know each other, and neither has asked yet: short packets of datagrams ask as well.
        until_it_comes(&hosts[0], &hosts[1], &short(0, 1));
        let long = |from, to| packet(v4(from), v4(to), &vec![from as u8; 50_000]);
        hosts[0].packets.send(&long(0, 1)).unwrap();
        hosts[1].packets.send(&long(1, 0)).unwrap();
        until_it_comes(&hosts[0], &hosts[1], &long(0, 1));
        until_it_comes(&hosts[1], &hosts[0], &long(1, 0));
    }
}

#[test]
fn an_interface_that_was_started_again_is_connected_to_again() {
    let fabric = Fabric::start(2);
    let one = Running::start(&fabric.name, 0, Mode::Connected);
    for round in 0..4 {
        let two = Running::start(&fabric.name, 1, Mode::Connected);
        let long = packet(v4(0), v4(1), &vec![round; 50_000]);
        let short = packet(v4(1), v4(0), b"here I am");
        until_it_comes(&two, &one, &short);
        until_it_comes(&one, &two, &long);
        drop(two);
    }
}
