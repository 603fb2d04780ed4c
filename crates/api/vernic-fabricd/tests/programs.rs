//! Programs on hosts: attaching, packets, groups, and what happens when one ends or takes nothing.

mod common;

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use common::{Fabric, Manager, ONE, eventually, packet, port_news, receive_batch, restamp, send};
use vernic_attach::data::Membership;
use vernic_attach::hello::{Hello, Purpose};
use vernic_attach::{
    AttachError, Connection, DataClient, MAX_MESSAGE, PacketBatch, QPN_INDEX_BITS, Refusal,
    RefusalKind,
};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, LinkChange, Request};
use vernic_sys as sys;
use vernic_wire::smp::{SmAttribute, Smp};
use vernic_wire::{Gid, Lid, PortNum};

fn single(hosts: usize) -> Fabric {
    Fabric::start(Topology::single("lab", hosts).unwrap())
}

fn qpn(client: &DataClient, index: u32) -> u32 {
    u32::from(client.slot()) << QPN_INDEX_BITS | index
}

#[test]
fn programs_attach_to_hosts_and_their_slots_end_with_them() {
    let fabric = single(2);
    let (one, adapter) = fabric.attach("h1");
    let (two, _) = fabric.attach("h1");
    assert_eq!((one.slot(), two.slot()), (1, 2));
    assert_eq!((adapter.host.as_str(), adapter.ports.len()), ("h1", 1));
    assert_eq!(adapter.ports[0].pkeys[0].0, 0xFFFF);
    assert_eq!(fabric.programs("h1"), 2);
    drop(one);
    eventually("the program is gone", || (fabric.programs("h1") == 1).then_some(()));
    let (three, _) = fabric.attach("h1");
    assert_eq!(three.slot(), 3, "a slot is not used again at once");

    let refused = |host: &str, slot| {
        let connection = fabric.connect(Purpose::Data);
        match DataClient::attach_over(connection, host, slot) {
            Err(AttachError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    };
    let refusal = refused("h3", None);
    assert_eq!(refusal.kind, RefusalKind::NoSuchNode);
    assert!(refusal.text.contains("h1, h2"), "{refusal}");
    assert_eq!(refused("sw1", None).kind, RefusalKind::NoSuchNode, "a switch is no host");
    assert_eq!(refused("h1", Some(2)).kind, RefusalKind::Taken);
    fabric.stop();
}

#[test]
fn packets_go_from_program_to_program_and_only_to_the_slot_that_is_named() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let (b, adapter) = fabric.attach("h2");
    let (other, _) = fabric.attach("h2");
    assert_eq!(adapter.ports[0].lid, Lid(0));
    let _manager = Manager::bring_up(&fabric, 2);
    port_news(&a, |port| port.state == 4 && port.lid == Lid(1));
    port_news(&b, |port| port.state == 4 && port.lid == Lid(2));

    let payloads: Vec<_> = (0..100_u32).map(|i| vec![i as u8; 64 + 4 * i as usize]).collect();
    let packets: Vec<_> = payloads.iter().map(|p| packet(1, 2, qpn(&b, 5), p)).collect();
    send(&a, &packets);
    let mut got = Vec::new();
    while got.len() < payloads.len() {
        got.extend(receive_batch(&b));
    }
    assert_eq!(got, payloads);
    // To the own port: no cable is needed.
    send(&a, &[packet(1, 1, qpn(&a, 1), b"self")]);
    assert_eq!(receive_batch(&a), [b"self"]);
    // A slot without a program, a foreign source, management: counted, and nobody gets them.
    send(&a, &[packet(1, 2, 99 << QPN_INDEX_BITS, b"none"), packet(2, 2, qpn(&b, 5), b"spoof")]);
    let mut smp = packet(1, 2, 0, &[0; 256]);
    smp[0] |= 0xF0;
    send(&a, &[smp, vec![1, 2, 3]]);
    send(&a, &[packet(1, 2, qpn(&b, 5), b"last")]);
    assert_eq!(receive_batch(&b), [b"last"]);
    let state = fabric.state();
    let node = |name: &str| state.nodes.iter().find(|node| node.name == name).unwrap();
    let sender = &node("h1").programs[0];
    assert_eq!((sender.sent, sender.refused, sender.received), (103, 3, 1));
    assert_eq!(node("h2").undelivered.no_program, 1);
    let mut buf = vec![0; MAX_MESSAGE];
    while let Ok(event) = other.recv(&mut buf) {
        assert!(matches!(event, vernic_attach::DataEvent::Port(_)));
    }
    fabric.stop();
}

#[test]
fn packets_that_a_wrong_table_has_led_to_a_host_are_counted_there() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let mut manager = Manager::bring_up(&fabric, 2);
    port_news(&a, |port| port.state == 4);
    let mut table = Smp::by_route(&[1], SmAttribute::LINEAR_FORWARDING, 0);
    table.data.fill(255);
    table.data[1..=5].copy_from_slice(&[1, 2, 255, 255, 2]);
    manager.set(table);
    // To queue pair 1, but no datagram of management.
    send(&a, &[packet(1, 5, qpn(&a, 1), b"lost"), packet(1, 2, 1, b"none")]);
    eventually("both are counted", || {
        let state = fabric.state();
        let counts = state.nodes.iter().find(|node| node.name == "h2").unwrap().undelivered;
        ((counts.misdirected, counts.no_datagram) == (1, 1)).then_some(())
    });
    fabric.stop();
}

#[test]
fn members_of_a_group_get_its_packets_until_they_leave() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let (b, _) = fabric.attach("h1");
    let (c, _) = fabric.attach("h2");
    let mut manager = Manager::bring_up(&fabric, 2);
    // Both ports of the switch belong to the group.
    let mut table = Smp::by_route(&[1], SmAttribute::MULTICAST_FORWARDING, 0);
    table.data[3] = 0b110;
    manager.set(table);
    port_news(&a, |port| port.state == 4 && port.lid == Lid(1));
    port_news(&c, |port| port.state == 4 && port.lid == Lid(2));
    // A packet to its own port shows when the fabric has seen all that was said before.
    let settle = |client: &DataClient, lid| {
        send(client, &[packet(lid, lid, qpn(client, 1), b"here")]);
        assert_eq!(receive_batch(client), [b"here"]);
    };
    let group = Membership { port: ONE, mlid: Lid(0xC001), mgid: Gid::ZERO };
    for client in [&b, &b, &c] {
        client.join(group).unwrap();
    }
    b.leave(group).unwrap();
    settle(&b, 1);
    settle(&c, 2);
    send(&a, &[packet(1, 0xC001, 0xFF_FFFF, b"from h1.")]);
    assert_eq!(receive_batch(&b), [b"from h1."], "at the same port");
    assert_eq!(receive_batch(&c), [b"from h1."], "at another host");
    send(&c, &[packet(2, 0xC001, 0xFF_FFFF, b"from h2.")]);
    assert_eq!(receive_batch(&b), [b"from h2."]);
    assert_eq!(receive_batch(&c), [b"from h2."], "the sender is a member, too");
    b.leave(group).unwrap();
    // To leave what was not joined changes nothing.
    a.leave(group).unwrap();
    settle(&b, 1);
    settle(&a, 1);
    send(&c, &[packet(2, 0xC001, 0xFF_FFFF, b"late")]);
    assert_eq!(receive_batch(&c), [b"late"]);
    settle(&b, 1);
    fabric.stop();
}

#[test]
fn a_partition_that_was_taken_away_carries_nothing() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let (b, _) = fabric.attach("h2");
    let mut manager = Manager::bring_up(&fabric, 2);
    port_news(&a, |port| port.state == 4);
    port_news(&b, |port| port.state == 4);
    // Gives a port the partitions of the first rows.
    let set_keys = |manager: &mut Manager, path: &[u8], keys: [u16; 2]| {
        let mut table = Smp::by_route(path, SmAttribute::PKEY_TABLE, 0);
        for (room, key) in table.data.chunks_mut(2).zip(keys) {
            room.copy_from_slice(&key.to_be_bytes());
        }
        manager.set(table);
    };
    let has_keys = |client: &DataClient, keys: [u16; 2]| {
        port_news(client, |port| keys.iter().zip(&port.pkeys).all(|(own, row)| *own == row.0));
    };
    let of = |key: u16, text: &[u8]| {
        let mut packet = packet(1, 2, qpn(&b, 5), text);
        // In the BTH.
        packet[10..12].copy_from_slice(&key.to_be_bytes());
        restamp(packet)
    };
    set_keys(&mut manager, &[], [0xFFFF, 0x8001]);
    set_keys(&mut manager, &[1, 2], [0xFFFF, 0x0001]);
    has_keys(&a, [0xFFFF, 0x8001]);
    has_keys(&b, [0xFFFF, 0x0001]);
    send(&a, &[of(0x8001, b"one."), of(0xFFFF, b"all.")]);
    let mut got = Vec::new();
    while got.len() < 2 {
        got.extend(receive_batch(&b));
    }
    assert_eq!(got, [b"one.", b"all."]);

    // The receiver has it no more: its port drops the packet, and counts it.
    set_keys(&mut manager, &[1, 2], [0xFFFF, 0]);
    has_keys(&b, [0xFFFF, 0]);
    send(&a, &[of(0x8001, b"two."), of(0xFFFF, b"all.")]);
    assert_eq!(receive_batch(&b), [b"all."]);
    let counter = |name: &str| {
        let state = fabric.state();
        let node = state.nodes.iter().find(|node| node.name == "h2").unwrap();
        node.ports[0].counters.iter().find(|(counter, _)| counter == name).map(|(_, count)| *count)
    };
    assert_eq!(counter("PKeyViolations"), Some(1));

    // Nor has the sender, and it has never been in the other two: nothing leaves.
    set_keys(&mut manager, &[], [0xFFFF, 0]);
    has_keys(&a, [0xFFFF, 0]);
    let keys = [0x8001, 0x7FFF, 0x8000, 0];
    let packets = keys.map(|key| of(key, b"none"));
    send(&a, &packets);
    send(&a, &[of(0xFFFF, b"last")]);
    assert_eq!(receive_batch(&b), [b"last"]);
    let state = fabric.state();
    let sender = &state.nodes.iter().find(|node| node.name == "h1").unwrap().programs[0];
    assert_eq!((sender.sent, sender.refused), (5, 4));
    assert_eq!(counter("PKeyViolations"), Some(1));
    fabric.stop();
}

#[test]
fn a_program_that_takes_nothing_holds_up_its_host_for_a_moment_only() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let (stopped, _) = fabric.attach("h2");
    let (b, _) = fabric.attach("h2");
    let _manager = Manager::bring_up(&fabric, 2);
    port_news(&a, |port| port.state == 4 && port.lid == Lid(1));
    // More than the sockets and the buffers on the way hold.
    let flood = vec![packet(1, 2, qpn(&stopped, 1), &[9; 4000]); 12];
    for _ in 0..100 {
        send(&a, &flood);
    }
    send(&a, &[packet(1, 2, qpn(&b, 1), b"at last!")]);
    assert_eq!(receive_batch(&b), [b"at last!"]);
    let state = fabric.state();
    let programs = &state.nodes.iter().find(|node| node.name == "h2").unwrap().programs;
    let found = programs.iter().find(|program| program.slot == stopped.slot()).unwrap();
    assert!(found.not_taken > 0 && found.blocked, "{found:?}");
    assert_eq!(found.not_taken + found.received, 1200, "each packet is counted once");
    // It gets what was kept for it, and what comes once it takes again.
    let mut got = 0;
    while got < found.received {
        got += receive_batch(&stopped).len() as u64;
    }
    send(&a, &[packet(1, 2, qpn(&stopped, 1), b"once more...")]);
    assert_eq!(receive_batch(&stopped), [b"once more..."]);
    fabric.stop();
}

#[test]
fn a_cut_cable_is_told_to_programs_and_carries_nothing() {
    let fabric = single(2);
    let (a, _) = fabric.attach("h1");
    let (b, _) = fabric.attach("h2");
    let manager = Manager::bring_up(&fabric, 2);
    port_news(&b, |port| port.state == 4 && port.lid == Lid(2));
    let link = |change| {
        let request = Request::Link { node: "h2".to_owned(), port: 1, change };
        fabric.ask(&request)
    };
    assert_eq!(link(LinkChange::Down), Answer::Done);
    port_news(&b, |port| port.state == 1 && port.lid == Lid(2));
    send(&a, &[packet(1, 2, qpn(&b, 1), b"lost")]);
    assert_eq!(link(LinkChange::Up), Answer::Done);
    port_news(&b, |port| port.state == 2);
    for wrong in [LinkChange::BitErrorRate(2.0), LinkChange::Rate(Some("ten".to_owned()))] {
        assert!(matches!(link(wrong), Answer::Refused(_)));
    }
    drop(manager);
    fabric.stop();
}

#[test]
fn whoever_breaks_the_protocol_loses_the_connection_and_nothing_else_does() {
    let fabric = single(2);
    let (good, _) = fabric.attach("h1");
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for round in 0..300 {
        let purpose = [Purpose::Data, Purpose::Mad, Purpose::Control][round % 3];
        let connection = fabric.connect(purpose);
        for _ in 0..1 + random() % 4 {
            let mut message = match random() % 4 {
                0 => vernic_attach::data::DataRequest::attach(None, "h1"),
                1 => vernic_attach::control::emit_request("{\"show\":3}"),
                2 => PacketBatch::new().message().to_vec(),
                _ => vec![0; random() % 300],
            };
            for _ in 0..random() % 3 {
                if !message.is_empty() {
                    let at = random() % message.len();
                    message[at] = random() as u8;
                }
            }
            // An empty message would be the end of the connection.
            message.push(0);
            let _ = connection.send(&message);
        }
    }
    eventually("the others are gone", || (fabric.programs("h1") == 1).then_some(()));
    send(&good, &[]);
    let mut buf = vec![0; MAX_MESSAGE];
    let left = loop {
        match good.recv(&mut buf) {
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(left, io::ErrorKind::WouldBlock, "the connection is there");
    fabric.stop();
}

#[test]
fn the_last_packets_of_a_program_are_sent_though_it_has_ended() {
    let fabric = single(2);
    let (b, _) = fabric.attach("h2");
    let _manager = Manager::bring_up(&fabric, 2);
    port_news(&b, |port| port.state == 4 && port.lid == Lid(2));
    // So that a port is full for a while.
    let change = LinkChange::Rate(Some("1g".to_owned()));
    let slow = Request::Link { node: "h2".to_owned(), port: 1, change };
    assert_eq!(fabric.ask(&slow), Answer::Done);
    for round in 0..20_u32 {
        let (a, _) = fabric.attach("h1");
        // It leaves something unread, and more than the port has room for at a time.
        send(&b, &[packet(2, 1, qpn(&a, 1), b"none")]);
        eventually("it has arrived", || a.wait(Duration::ZERO).unwrap().then_some(()));
        let numbers = round * 180..(round + 1) * 180;
        let batch = |numbers: Vec<u32>| {
            let of = |number: u32| packet(1, 2, qpn(&b, 5), &number.to_be_bytes().repeat(1000));
            numbers.into_iter().map(of).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut numbers = numbers;
                for _ in 0..12 {
                    send(&a, &batch(numbers.by_ref().take(15).collect()));
                }
            });
            let mut next = round * 180;
            while next < (round + 1) * 180 {
                for payload in receive_batch(&b) {
                    assert_eq!(payload[..4], next.to_be_bytes(), "round {round}");
                    next += 1;
                }
            }
        });
    }
    eventually("all are gone", || (fabric.programs("h1") == 0).then_some(()));
    fabric.stop();
}

#[test]
fn a_program_of_another_version_is_told_so() {
    let fabric = single(1);
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
    sys::connect_path(socket.as_fd(), &fabric.socket).unwrap();
    // All that such a program may say before it waits for an answer.
    let mut hello = Hello::emit(Purpose::Data);
    hello[8] += 1;
    let attach = vernic_attach::data::DataRequest::attach(None, "h1");
    for message in [hello.as_slice(), &attach, &attach] {
        sys::send(socket.as_fd(), message).unwrap();
    }
    let connection = Connection::new(socket);
    let mut buf = vec![0; MAX_MESSAGE];
    // Versions that know nothing of a reset get the reason as well: the connection stays open.
    let refusal = eventually("the refusal comes", || match connection.recv(&mut buf) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        message => Some(Refusal::parse(message.unwrap()).unwrap()),
    });
    assert_eq!(refusal.kind, RefusalKind::Version);
    assert_eq!(fabric.programs("h1"), 0);
    assert_eq!(connection.recv(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    fabric.stop();
}

#[test]
fn two_fabrics_of_different_names_are_different_fabrics() {
    let one = single(2);
    let two = Fabric::start_in(one.folder.clone(), "other", Topology::single("o", 3).unwrap());
    let (_a, _) = one.attach("h2");
    let (_b, _) = two.attach("h3");
    assert_eq!((one.programs("h2"), two.programs("h2")), (1, 0));
    let again = vernic_fabricd::Server::new(
        Topology::single("lab", 2).unwrap(),
        vernic_fabricd::Options {
            folder: one.folder.clone(),
            ..vernic_fabricd::Options::new("lab")
        },
    );
    let error = again.unwrap_err().to_string();
    assert!(error.contains("runs already") && error.contains("--name"), "{error}");
    assert_eq!(vernic_attach::path::list(&one.folder), ["lab", "other"]);
    two.stop();
    assert_eq!(one.programs("h2"), 1);
    one.stop();
}

#[test]
fn a_socket_that_a_killed_fabric_left_is_replaced() {
    let fabric = single(1);
    let (folder, socket) = (fabric.folder.clone(), fabric.socket.clone());
    fabric.stop();
    std::fs::create_dir_all(&folder).unwrap();
    // A socket whose process is gone.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = vernic_attach::Connection::connect_path("lab", &socket, Purpose::Data);
    assert!(matches!(error, Err(AttachError::NotRunning { .. })), "{error:?}");
    let fabric = Fabric::start_in(folder, "lab", Topology::single("lab", 1).unwrap());
    let (_a, adapter) = fabric.attach("h1");
    assert_eq!(adapter.ports[0].number, PortNum(1));
    fabric.stop();
}
