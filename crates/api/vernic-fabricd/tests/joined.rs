//! Two fabric processes that are joined by a cable over TCP.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use common::{Fabric, eventually};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, Request};

/// A switch with two hosts, whose port 1 is free.
fn line(name: &str) -> Fabric {
    Fabric::start(Topology::line(name, 1, 2).unwrap())
}

fn join(fabric: &Fabric, port: u8, address: SocketAddr, listens: bool) -> Answer {
    fabric.ask(&Request::Join { node: "sw1".to_owned(), port, address, listens })
}

/// Returns the state of the free port, and what is said of its other end.
fn port(fabric: &Fabric) -> (String, String) {
    let state = fabric.state();
    let switch = state.nodes.iter().find(|node| node.name == "sw1").unwrap();
    let port = switch.ports.iter().find(|port| port.port == 1).unwrap();
    (port.state.clone(), port.peer.clone().unwrap_or_default())
}

/// Returns an address of this machine that nobody listens at.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_link_comes_up_between_two_fabrics_and_goes_down_when_one_ends() {
    let (one, two) = (line("one"), line("two"));
    let address = free_address();
    assert_eq!(join(&one, 1, address, true), Answer::Done);
    assert!(port(&one).1.ends_with("listens"), "{:?}", port(&one));
    assert_eq!(join(&two, 1, address, false), Answer::Done);
    for fabric in [&one, &two] {
        eventually("the link comes up", || (port(fabric).0 == "Init").then_some(()));
        assert!(port(fabric).1.ends_with("carries"), "{:?}", port(fabric));
    }
    two.stop();
    eventually("the link goes down", || (port(&one).0 == "Down").then_some(()));
    // The end that listens takes the next one.
    let three = line("three");
    assert_eq!(join(&three, 1, address, false), Answer::Done);
    eventually("the link comes up again", || (port(&one).0 == "Init").then_some(()));
    three.stop();
    one.stop();
}

#[test]
fn ports_with_a_cable_and_addresses_of_nobody_are_refused() {
    let fabric = line("one");
    let address = free_address();
    for (number, words) in [(3, "has a cable"), (0, "no such port"), (99, "no such port")] {
        match join(&fabric, number, address, false) {
            Answer::Refused(reason) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(join(&fabric, 1, address, false), Answer::Done);
    eventually("the reason is told", || port(&fabric).1.contains("refused").then_some(()));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let answer = join(&fabric, 1, taken.local_addr().unwrap(), true);
    assert!(
        matches!(answer, Answer::Refused(ref reason) if reason.contains("in use")),
        "{answer:?}"
    );
    fabric.stop();
}

#[test]
fn a_stranger_who_sends_nonsense_is_hung_up_on() {
    let fabric = line("one");
    let address = free_address();
    assert_eq!(join(&fabric, 1, address, true), Answer::Done);
    let hello = [&[0, 8, 0][..], b"VNCABLE1"].concat();
    let nonsense: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0, 8, 0, b'V', b'N', b'C', b'A', b'B', b'L', b'E', b'9'],
        &[1, 1, 0, 2],
        &[&hello[..], &[1, 1, 0, 7]].concat(),
        &[&hello[..], &[2, 5, 0, 1, 2, 3, 4, 5]].concat(),
        &[&hello[..], &[3, 0xFF, 0xFF]].concat(),
    ];
    for bytes in nonsense {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(bytes).unwrap();
        let mut said = Vec::new();
        // A reset is as good as an end: bytes of ours were not read.
        let _ = stranger.read_to_end(&mut said);
        assert!(said.starts_with(&hello), "{bytes:?}");
        eventually("it listens again", || port(&fabric).1.ends_with("listens").then_some(()));
    }
    // Packets that are none are counted by the link, as on any cable.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[&hello[..], &[3, 4, 0, 1, 2, 3, 4]].concat()).unwrap();
    eventually("it is plugged in", || port(&fabric).1.ends_with("carries").then_some(()));
    drop(stranger);
    eventually("it listens again", || port(&fabric).1.ends_with("listens").then_some(()));
    fabric.stop();
}

#[test]
fn a_port_that_carries_may_listen_at_the_same_address_again() {
    let (one, two) = (line("one"), line("two"));
    let address = free_address();
    assert_eq!(join(&one, 1, address, true), Answer::Done);
    assert_eq!(join(&two, 1, address, false), Answer::Done);
    eventually("it carries", || port(&one).1.ends_with("carries").then_some(()));
    assert_eq!(join(&one, 1, address, true), Answer::Done);
    assert!(port(&one).1.ends_with("listens"), "{:?}", port(&one));
    assert_eq!(join(&two, 1, address, false), Answer::Done);
    eventually("it carries again", || port(&one).1.ends_with("carries").then_some(()));
    two.stop();
    one.stop();
}

#[test]
fn a_stranger_who_says_nothing_keeps_nobody_out() {
    let (one, two) = (line("one"), line("two"));
    let address = free_address();
    assert_eq!(join(&one, 1, address, true), Answer::Done);
    let stranger = TcpStream::connect(address).unwrap();
    eventually("it is taken", || port(&one).1.ends_with("connects").then_some(()));
    eventually("it listens again", || port(&one).1.ends_with("listens").then_some(()));
    assert_eq!(join(&two, 1, address, false), Answer::Done);
    eventually("it carries", || port(&one).1.ends_with("carries").then_some(()));
    drop(stranger);
    two.stop();
    one.stop();
}
