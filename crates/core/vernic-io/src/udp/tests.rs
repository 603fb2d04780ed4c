use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

use vernic_sys as sys;
use vernic_wire::Lid;

use super::*;
use crate::ROCE_PORT;
use crate::batch::ICRC_BYTES;
use crate::endpoint;
use crate::path::TxPath;

/// Returns an address of 127.0.0.0/8 that no other test of this process uses, so port 4791 is free.
fn home() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 | high & 63, low, NEXT.fetch_add(1, Ordering::Relaxed)])
}

fn config(offload: bool) -> UdpConfig {
    UdpConfig { offload, ..UdpConfig::default() }
}

/// Opens a link without addresses, with slots of its own name space for this test process.
fn link(offload: bool) -> UdpLink {
    let slots = SlotTable::with_scope(&format!("vt{}", std::process::id())).unwrap();
    UdpLink::open(config(offload), slots)
}

fn open(ip: IpAddr, offload: bool) -> UdpLink {
    let mut link = link(offload);
    link.activate(ip.into()).unwrap();
    link
}

fn to_roce(ip: IpAddr) -> SocketAddr {
    (ip, ROCE_PORT).into()
}

/// Returns the address at which packets to `ip` reach this link and no other. `::1` is there only
/// once, and other programs of this host may share its port 4791.
fn to_private(link: &UdpLink, ip: IpAddr) -> SocketAddr {
    let slot = link.slots.clone().claim().unwrap();
    let peer = link.slots.clone().query(ip, slot.qpn(1), std::time::Duration::ZERO).unwrap();
    (ip, peer.private_port).into()
}

/// Appends a packet of `size` transport bytes: QPN 2 in the BTH, the rest of value `fill`.
fn append(batch: &mut TxBatch, path: &TxPath, size: usize, fill: u8) {
    let room = batch.room().expect("the batch has room");
    room[..size].fill(fill);
    room[5..8].copy_from_slice(&[0, 0, 2]);
    batch.push(path, size);
}

/// The fields of a received packet that tests compare.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    size: usize,
    fill: u8,
    icrc: Icrc,
    class: u8,
    hops: u8,
}

/// Receives `count` packets.
fn receive(link: &mut UdpLink, count: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut batch = RxBatch::new();
    let mut sleeper = crate::Sleeper::new().unwrap();
    for round in 0..1000 {
        link.recv(Nanos(round * 100_000), &mut batch);
        for packet in batch.packets() {
            seen.push(Seen {
                size: packet.transport().len(),
                fill: packet.transport().last().copied().unwrap_or(0),
                icrc: link.verify(&packet),
                class: packet.meta.traffic_class,
                hops: packet.meta.hop_limit,
            });
        }
        if seen.len() >= count {
            break;
        }
        sleeper.watch(link.poll_fds().iter().copied());
        sleeper.sleep(Some(std::time::Duration::from_millis(20)));
    }
    seen
}

fn good(size: usize, fill: u8) -> Seen {
    Seen { size, fill, icrc: Icrc::Good, class: 0, hops: TxPath::DEFAULT_HOP_LIMIT }
}

/// Sends packets of mixed sizes from an address to itself.
fn round_trip(ip: IpAddr, offload: bool) -> LinkCounters {
    let mut link = open(ip, offload);
    let to = if ip.is_ipv4() { to_roce(ip) } else { to_private(&link, ip) };
    let path = endpoint::path(ip, to);
    let mut batch = TxBatch::new(&link.limits());
    let sizes = [4112, 4112, 4112, 16, 1040, 1040, 200, 28, 28, 4112];
    for (size, fill) in sizes.into_iter().zip(0..) {
        append(&mut batch, &path, size, fill);
    }
    let report = link.send(Nanos(0), &mut batch);
    assert_eq!((report.packets, report.failed, report.blocked), (sizes.len(), 0, false));
    assert!(batch.is_empty());
    let wanted: Vec<Seen> = sizes.into_iter().zip(0..).map(|(s, f)| good(s, f)).collect();
    assert_eq!(receive(&mut link, sizes.len()), wanted);
    link.counters()
}

#[test]
fn packets_of_all_sizes_come_back_over_ipv4() {
    let counters = round_trip(home(), true);
    assert_eq!((counters.tx_packets, counters.rx_packets), (10, 10));
    assert_eq!((counters.icrc_errors, counters.icrc_solved, counters.rx_errors), (0, 0, 0));
    if gso::probe((home(), 0).into()) > 1 {
        assert_eq!((counters.tx_runs, counters.tx_calls), (4, 1));
        assert!(counters.rx_buffers < 10, "GRO joins");
    }
}

#[test]
fn packets_of_all_sizes_come_back_over_ipv6() {
    let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if link(true).activate(ip.into()).is_err() {
        println!("skipped: no IPv6 here");
        return;
    }
    let counters = round_trip(ip, true);
    assert_eq!((counters.rx_packets, counters.icrc_errors), (10, 0));
}

#[test]
fn packets_come_back_without_offloads() {
    let counters = round_trip(home(), false);
    assert_eq!((counters.tx_runs, counters.rx_buffers), (10, 10));
    assert_eq!((counters.icrc_errors, counters.icrc_solved), (0, 0));
}

#[test]
fn a_path_that_refuses_segmentation_is_served_packet_by_packet() {
    let ip = home();
    let mut link = open(ip, true);
    if link.limits().max_segments == 1 {
        println!("skipped: no UDP_SEGMENT here");
        return;
    }
    // A socket without checksums causes the error of a device without checksum offload: EIO.
    link.tx.without_checksums();
    let path = endpoint::path(ip, to_roce(ip));
    let mut batch = TxBatch::new(&link.limits());
    for fill in 0..40 {
        append(&mut batch, &path, 1040, fill);
    }
    append(&mut batch, &path, 100, 40);
    // Damage done on purpose after stamping must survive the change of Identifications.
    link.stamp(&mut batch);
    batch.packet_mut(7).unwrap()[50] ^= 1;
    let report = link.send(Nanos(0), &mut batch);
    assert_eq!((report.packets, report.failed), (41, 0));
    let mut wanted: Vec<Seen> = (0..40).map(|fill| good(1040, fill)).collect();
    wanted.push(good(100, 40));
    wanted[7].icrc = Icrc::Bad;
    assert_eq!(receive(&mut link, 41), wanted);
    assert_eq!(link.counters().downgrades, 1);
    // From now on nothing is refused.
    append(&mut batch, &path, 64, 1);
    append(&mut batch, &path, 64, 2);
    assert_eq!(link.send(Nanos(0), &mut batch).packets, 2);
    assert_eq!(receive(&mut link, 2), [good(64, 1), good(64, 2)]);
    assert_eq!(link.counters().downgrades, 1);
}

#[test]
fn a_damaged_packet_is_bad_and_counted_and_its_neighbours_are_good() {
    let ip = home();
    let mut link = open(ip, true);
    let path = endpoint::path(ip, to_roce(ip));
    let mut batch = TxBatch::new(&link.limits());
    (0..3).for_each(|fill| append(&mut batch, &path, 512, fill));
    link.stamp(&mut batch);
    batch.packet_mut(1).unwrap()[99] ^= 0x10;
    link.send(Nanos(0), &mut batch);
    let icrcs: Vec<Icrc> = receive(&mut link, 3).into_iter().map(|seen| seen.icrc).collect();
    assert_eq!(icrcs, [Icrc::Good, Icrc::Bad, Icrc::Good]);
    assert_eq!(link.counters().icrc_errors, 1);
}

#[test]
fn traffic_class_and_hop_limit_arrive_as_sent() {
    for ip in [home(), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let mut link = link(true);
        if link.activate(ip.into()).is_err() {
            println!("skipped: no IPv6 here");
            continue;
        }
        let mut batch = TxBatch::new(&link.limits());
        let path =
            endpoint::path(ip, to_private(&link, ip)).with_traffic_class(0x6A).with_hop_limit(7);
        append(&mut batch, &path, 64, 1);
        append(&mut batch, &path, 64, 2);
        link.send(Nanos(0), &mut batch);
        let seen = receive(&mut link, 2);
        assert_eq!(seen.len(), 2);
        for packet in seen {
            assert_eq!((packet.class, packet.hops, packet.icrc), (0x6A, 7, Icrc::Good));
        }
    }
}

#[test]
fn packets_of_every_service_level_arrive_whatever_priority_the_system_lets_them_have() {
    for ip in [home(), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let mut link = link(true);
        if link.activate(ip.into()).is_err() {
            println!("skipped: no IPv6 here");
            continue;
        }
        let mut batch = TxBatch::new(&link.limits());
        for level in 0..16 {
            let path = endpoint::path(ip, to_private(&link, ip));
            append(
                &mut batch,
                &path.with_priority(level).with_traffic_class(level << 4),
                64,
                level,
            );
        }
        link.send(Nanos(0), &mut batch);
        assert_eq!(receive(&mut link, 16).len(), 16);
        assert_eq!((link.counters().tx_errors, link.counters().downgrades), (0, 0));
    }
}

#[test]
fn a_priority_that_the_system_refuses_by_now_is_given_up_and_the_packets_leave() {
    if priority::probe((home(), 0).into()) != priority::WITHOUT_RIGHT {
        println!("skipped: this process may have every priority, or none");
        return;
    }
    let ip = home();
    let mut link = open(ip, true);
    // As if the process had had the right when it was tried.
    link.tx.assume_priorities(15);
    let mut batch = TxBatch::new(&link.limits());
    let path = endpoint::path(ip, to_private(&link, ip)).with_priority(7);
    (0..3).for_each(|id| append(&mut batch, &path, 64, id));
    link.send(Nanos(0), &mut batch);
    assert_eq!(receive(&mut link, 3).len(), 3);
    assert_eq!((link.counters().tx_errors, link.counters().downgrades), (0, 1));
}

#[test]
fn flows_leave_from_different_ports_and_one_flow_from_one() {
    let ip = home();
    let mut link = open(ip, true);
    let mut batch = TxBatch::new(&link.limits());
    for flow in [0, 1, 2, 1, 0] {
        append(&mut batch, &endpoint::path(ip, to_roce(ip)).with_flow(flow), 64, flow as u8);
    }
    link.send(Nanos(0), &mut batch);
    let mut ports: [Vec<u16>; 3] = Default::default();
    let mut rx = RxBatch::new();
    let mut total = 0;
    while total < 5 {
        total += link.recv(Nanos(0), &mut rx);
        for packet in rx.packets() {
            assert_eq!(link.verify(&packet), Icrc::Good);
            ports[usize::from(packet.transport()[20])].push(packet.meta.flow);
        }
    }
    for list in &mut ports {
        assert!(list.iter().all(|&port| port >= 49_152));
        list.dedup();
        assert_eq!(list.len(), 1);
    }
    assert_ne!(ports[0], ports[1]);
    assert_ne!(ports[1], ports[2]);
}

#[test]
fn a_link_that_steps_aside_hands_over_what_it_has_and_gets_nothing_new_for_a_while() {
    let ip = home();
    let (mut leaver, mut stayer, mut sender) = (open(ip, true), open(ip, true), open(home(), true));
    let (slot, from) = (stayer.slots.clone().claim().unwrap(), sender.active[0].local.ip);
    let mut batch = TxBatch::new(&sender.limits());
    // Sends a few flows to the stayer at a time, fewer packets than a hand-over queue holds. The
    // kernel divides the flows among the two processes.
    let mut send = |flows: std::ops::Range<u16>| {
        for flow in flows {
            let path = endpoint::path(from, to_roce(ip)).with_flow(flow);
            let room = batch.room().unwrap();
            room[..64].fill(1);
            room[5..8].copy_from_slice(&slot.qpn(7).value().to_be_bytes()[1..]);
            batch.push(&path, 64);
        }
        sender.send(Nanos(0), &mut batch);
    };
    let mut now = Nanos(0);
    // Returns how many packets the leaver has handed over so far, when all have come.
    let mut all_there = |leaver: &mut UdpLink, wait: u64| {
        let (mut rx, mut count) = (RxBatch::new(), 0);
        now = now.plus(wait);
        while count < usize::from(FLOWS) / 2 {
            now = now.plus(100_000);
            assert_eq!(leaver.recv(now, &mut rx), 0, "none is for it");
            count += stayer.recv(now, &mut rx);
        }
        (leaver.counters().handed_over, now)
    };
    let (mut before, mut at, mut kept, mut returned) = (0, Nanos(0), 0, 0);
    for flows in [0..FLOWS / 2, FLOWS / 2..FLOWS] {
        send(flows.clone());
        leaver.leave_shared_port(at);
        let (had, _) = all_there(&mut leaver, 0);
        send(flows.clone());
        let (has, now) = all_there(&mut leaver, 0);
        assert_eq!(has, had, "nothing new came");
        // Once back, the leaver polls first, and then has its share again.
        at = now.plus(rx::ASIDE_NANOS);
        leaver.recv(at, &mut RxBatch::new());
        send(flows);
        let (now_has, now) = all_there(&mut leaver, rx::ASIDE_NANOS);
        (kept, returned) = (kept + had - before, returned + now_has - has);
        (before, at) = (now_has, now);
    }
    assert!(kept != 0, "what it had before is not lost");
    assert!(returned != 0, "it has its share again");
}

#[test]
fn an_address_that_comes_back_sends_from_the_ports_that_it_had() {
    let ip = home();
    let mut link = open(ip, true);
    let path = |flow| endpoint::path(ip, to_roce(ip)).with_flow(flow);
    let ports = |link: &mut UdpLink| {
        (0..8).map(|flow| link.departure(&path(flow)).unwrap().src.port()).collect::<Vec<_>>()
    };
    let before = ports(&mut link);
    link.deactivate(ip.into());
    assert_eq!(link.departure(&path(0)), None);
    link.activate(ip.into()).unwrap();
    // The flows are used in another order than before.
    link.departure(&path(7)).unwrap();
    assert_eq!(ports(&mut link), before);
}

#[test]
fn nobody_gets_a_source_port_on_another_address() {
    let (ip, other) = (home(), home());
    let mut link = open(ip, true);
    let port = link.departure(&endpoint::path(ip, to_roce(ip))).unwrap().src.port();
    for shared in [0, 1] {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, shared).unwrap();
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, shared).unwrap();
        for ip in [ip, other, IpAddr::V4(Ipv4Addr::UNSPECIFIED)] {
            let error = sys::bind(fd.as_fd(), &(ip, port).into()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{ip} {shared}");
        }
    }
}

#[test]
fn flows_beyond_the_bound_share_the_ports_of_their_class() {
    let (ip, other) = (home(), home());
    let mut link = open(ip, true);
    let path = |ip, flow: usize| endpoint::path(ip, to_roce(ip)).with_flow(flow as u16);
    let port_of = |link: &mut UdpLink, ip, flow| {
        link.departure(&path(ip, flow)).expect("each flow has a port").src.port()
    };
    let class_of = |flow: usize| flow % usize::from(Slot::CLASSES);
    // From the last of all classes on, so that the first flow of a class comes when there are many.
    let mut ports: Vec<_> =
        (0..SOURCE_PORTS).rev().map(|flow| port_of(&mut link, ip, flow)).collect();
    ports.reverse();
    let of_class: std::collections::BTreeSet<_> =
        ports[..usize::from(Slot::CLASSES)].iter().collect();
    assert_eq!(of_class.len(), usize::from(Slot::CLASSES), "each class has one of its own");
    let own = MAX_FLOW_SOCKETS / 2;
    let shared = |flow: &usize| ports[*flow] == ports[class_of(*flow)];
    assert_eq!((0..SOURCE_PORTS).filter(shared).count(), SOURCE_PORTS - own);
    // Another address gets the sockets that are left, and each of its flows has a port.
    link.activate(other.into()).unwrap();
    (0..SOURCE_PORTS).for_each(|flow| assert_ne!(port_of(&mut link, other, flow), 0));
    assert!(link.tx.sockets().count() <= 2 + MAX_FLOW_SOCKETS);
    let again: Vec<_> = (0..SOURCE_PORTS).map(|flow| port_of(&mut link, ip, flow)).collect();
    assert_eq!(again, ports, "a flow stays where it is");
    // Packets are stamped for the port that they leave from.
    let mut batch = TxBatch::new(&link.limits());
    for flow in 0..SOURCE_PORTS {
        append(&mut batch, &path(ip, flow), 64, 1);
        link.send(Nanos(0), &mut batch);
        assert_eq!(receive(&mut link, 1)[0].icrc, Icrc::Good, "flow {flow}");
    }
}

#[test]
fn a_packet_from_an_inactive_source_is_refused_and_the_rest_goes_on() {
    let (ip, other) = (home(), home());
    let mut link = open(ip, true);
    let mut batch = TxBatch::new(&link.limits());
    let wrong = endpoint::path(other, to_roce(ip));
    append(&mut batch, &wrong, 64, 1);
    append(&mut batch, &endpoint::path(ip, to_roce(ip)), 64, 2);
    let report = link.send(Nanos(0), &mut batch);
    assert_eq!((report.packets, report.failed), (1, 1));
    assert_eq!(report.failure, Some((wrong, libc::EADDRNOTAVAIL)));
    assert_eq!(receive(&mut link, 1), [good(64, 2)]);
    assert_eq!(link.counters().tx_errors, 1);
}

#[test]
fn a_packet_too_big_for_its_path_is_refused_and_reported() {
    let ip = home();
    let mut link = open(ip, true);
    let nowhere = SocketAddr::from(([255, 255, 255, 255], ROCE_PORT));
    let mut batch = TxBatch::new(&link.limits());
    append(&mut batch, &endpoint::path(ip, nowhere), 64, 1);
    append(&mut batch, &endpoint::path(ip, nowhere), 64, 1);
    let report = link.send(Nanos(0), &mut batch);
    assert_eq!((report.packets, report.failed), (0, 2));
    assert_eq!(report.failure.map(|(_, error)| error), Some(libc::EACCES));
}

#[test]
fn a_packet_with_any_identification_is_good_as_rxe_would_send_it() {
    let ip = home();
    let mut link = open(ip, true);
    // A connected socket sends Identifications that begin at random.
    let peer = std::net::UdpSocket::bind((ip, 0)).unwrap();
    peer.connect((ip, ROCE_PORT)).unwrap();
    let sport = peer.local_addr().unwrap().port();
    let flow = vernic_wire::icrc::IcrcFlow::new(ip, ip, sport, ROCE_PORT);
    let mut packet = [7; 100 + ICRC_BYTES];
    packet[5..8].copy_from_slice(&[0, 0, 2]);
    for ident in [5737, 5738, 5739] {
        flow.stamp(ident, &mut packet);
        peer.send(&packet).unwrap();
        assert_eq!(receive(&mut link, 1)[0].icrc, Icrc::Good);
    }
    // Only the first had to be solved for, the others were its successors.
    assert_eq!((link.counters().icrc_solved, link.counters().icrc_errors), (1, 0));
}

#[test]
fn short_and_empty_datagrams_are_bad_packets_not_a_crash() {
    let ip = home();
    let mut link = open(ip, true);
    let peer = std::net::UdpSocket::bind((ip, 0)).unwrap();
    for len in [0, 1, 3, 4, 7, 8, 12, 15] {
        peer.send_to(&vec![0xFF; len], (ip, ROCE_PORT)).unwrap();
    }
    let seen = receive(&mut link, 7);
    assert_eq!(seen.len(), 7);
    assert!(seen.iter().all(|packet| packet.icrc == Icrc::Bad));
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_who_and_what_to_do() {
    let ip = home();
    let _holder = std::net::UdpSocket::bind((ip, ROCE_PORT)).unwrap();
    let mut link = link(true);
    let error = link.activate(ip.into()).unwrap_err();
    assert!(matches!(error, LinkError::PortTaken { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("4791 on {ip}")), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains("stop that process"), "{text}");
}

#[test]
fn an_address_of_another_host_is_a_named_error() {
    let mut link = link(true);
    let error = link.activate(IpAddr::from([192, 0, 2, 77]).into()).unwrap_err();
    assert!(matches!(error, LinkError::NoSuchAddress { .. }), "{error:?}");
    assert!(error.to_string().contains("192.0.2.77"));
}

#[test]
fn activations_are_counted_and_the_last_deactivation_closes_the_port() {
    let ip = home();
    let mut link = open(ip, true);
    link.activate(ip.into()).unwrap();
    link.deactivate(ip.into());
    assert!(std::net::UdpSocket::bind((ip, ROCE_PORT)).is_err());
    let generation = link.poll_generation();
    link.deactivate(ip.into());
    link.deactivate(ip.into());
    assert!(std::net::UdpSocket::bind((ip, ROCE_PORT)).is_ok());
    assert!(link.poll_fds().is_empty());
    assert_ne!(link.poll_generation(), generation);
}

#[test]
fn a_hot_link_costs_one_system_call_per_empty_receive() {
    let ip = home();
    let mut link = open(ip, true);
    let mut batch = TxBatch::new(&link.limits());
    append(&mut batch, &endpoint::path(ip, to_roce(ip)), 64, 1);
    link.send(Nanos(0), &mut batch);
    let mut rx = RxBatch::new();
    let mut now = Nanos(0);
    while link.recv(now, &mut rx) == 0 {}
    let before = link.counters().rx_calls;
    // One microsecond per call, for one millisecond: 20 polls of the cold sockets are due.
    for _ in 0..1000 {
        now = now.plus(1000);
        assert_eq!(link.recv(now, &mut rx), 0);
    }
    let calls = link.counters().rx_calls - before;
    assert!((1000..=1020).contains(&calls), "{calls} calls");
}

#[test]
fn multicast_reaches_every_member_and_nobody_after_leaving() {
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let group = IpAddr::from([239, 255, 42, std::process::id() as u8]);
    let mut link = link(true);
    assert!(matches!(link.join(ip.into(), group, Lid::RESERVED), Err(LinkError::NotActive { .. })));
    if let Err(error) =
        link.activate(ip.into()).and_then(|()| link.join(ip.into(), group, Lid::RESERVED))
    {
        println!("skipped: {error}");
        return;
    }
    let mut batch = TxBatch::new(&link.limits());
    let path = endpoint::path(ip, to_roce(group));
    append(&mut batch, &path, 64, 9);
    let report = link.send(Nanos(0), &mut batch);
    if report.failed != 0 {
        println!("skipped: no route for multicast: {:?}", report.failure);
        return;
    }
    assert_eq!(receive(&mut link, 1), [good(64, 9)]);
    link.leave(ip.into(), group, Lid::RESERVED);
    append(&mut batch, &path, 64, 9);
    link.send(Nanos(0), &mut batch);
    assert_eq!(link.recv(Nanos(0), &mut RxBatch::new()), 0);
}

#[test]
fn a_group_that_nothing_reaches_on_loopback_is_refused_with_what_helps() {
    let ip = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
    let group: IpAddr = "ff15::4791".parse().unwrap();
    let mut link = link(true);
    if let Err(error) = link.activate(ip.into()) {
        println!("skipped: {error}");
        return;
    }
    match link.join(ip.into(), group, Lid::RESERVED) {
        Ok(()) => println!("skipped: somebody gave lo a route for IPv6 multicast"),
        Err(error) => {
            assert!(matches!(error, LinkError::NoRoute { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("ff15::4791") && text.contains("ip -6 route add"), "{text}");
        }
    }
}

#[test]
fn a_sleeper_is_woken_by_a_packet_and_by_a_waker() {
    let ip = home();
    let mut link = open(ip, true);
    let mut sleeper = crate::Sleeper::new().unwrap();
    sleeper.watch(link.poll_fds().iter().copied());
    let none = std::time::Duration::ZERO;
    assert!(!sleeper.sleep(Some(none)).by_fd);
    let mut batch = TxBatch::new(&link.limits());
    append(&mut batch, &endpoint::path(ip, to_roce(ip)), 64, 1);
    link.send(Nanos(0), &mut batch);
    assert!(sleeper.sleep(None).by_fd);
    let waker = sleeper.waker();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    assert!(sleeper.sleep(None).by_waker);
    assert!(!sleeper.sleep(Some(none)).by_waker);
}

impl tx::Transmit {
    /// Turns UDP checksums off on all sockets: the kernel then refuses to segment.
    fn without_checksums(&self) {
        for fd in self.sockets() {
            sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        }
    }
}

#[test]
fn packets_for_qp1_go_to_whoever_has_the_name_and_their_flow_stays_where_it_is() {
    let ip = home();
    let (mut a, b) = (open(ip, true), open(ip, true));
    let scope = crate::ServiceScope::Address(ip.into());
    let name = crate::ServiceName { service: vernic_wire::cm::ServiceId(0x0106_0007), scope };
    a.slots.clone().claim_name(&name).unwrap();
    a.slots.clone().open_name(&name).unwrap();
    let slot = a.slots.clone().claim().unwrap();
    let src = (ip, 50_000).into();
    let (dst, icrc) = (to_roce(ip), Icrc::Unchecked);
    let meta =
        crate::RxMeta { traffic_class: 3, hop_limit: 9, icrc, ..endpoint::arrival(src, dst) };
    let mut bytes = [0; 280];
    bytes[7] = 1;
    let mut batch = RxBatch::new();
    // More packets than it takes to steer a flow, to the name and to the slot in turn.
    for round in 0..40 {
        let packet = RxPacket { bytes: &bytes, meta: &meta, segment: 0 };
        let handed_over = match round % 2 {
            0 => b.slots.clone().hand_over_to_name(&name, &packet),
            _ => b.slots.clone().hand_over_to_slot(slot, &packet),
        };
        assert_eq!(handed_over, crate::HandoverResult::Yes);
        a.recv(Nanos(round * 100_000), &mut batch);
        let got: Vec<_> = batch.packets().collect();
        assert_eq!(got.len(), 1, "round {round}");
        assert!(got[0].meta.handed_over);
        assert_eq!((got[0].bytes, got[0].meta.hop_limit), (&bytes[..], 9));
        assert_eq!(a.verify(&got[0]), Icrc::Good, "as its sender says");
    }
    let counters = a.counters();
    assert_eq!((counters.taken_over, counters.steered_flows), (40, 0));
}
