//! Devices with two ports: over a link kind that no file of the engine knows, over UDP, and with
//! netdevs that change.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::other::runs_alone;
use common::toy::Fabric;
use common::*;
use vernic_engine::*;
use vernic_io::UdpFactory;

const PORTS: [PortNum; 2] = [PortNum(1), PortNum(2)];

/// Connects a queue pair on a port of each end.
fn pair(a: &End, a_port: PortNum, b: &End, b_port: PortNum) -> [Arc<Qp>; 2] {
    let pair = [a.qp(Service::Rc), b.qp(Service::Rc)];
    let on = |port| Setup { port, ..Setup::default() };
    connect(a, &pair[0], b.gid_of(b_port).1, pair[1].qpn(), on(a_port));
    connect(b, &pair[1], a.gid_of(a_port).1, pair[0].qpn(), on(b_port));
    pair
}

/// Makes progress at an end that has nothing to complete.
fn turn(end: &End) {
    assert_eq!(end.cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
}

fn write(a: &End, qp: &Qp, b: &End, seed: u8) {
    let data = pattern(100_000, seed.into());
    a.fill(0, &data);
    let sge = [a.sge(0, data.len() as u32)];
    qp.post_send(&[wr(1, SendOp::Write(b.remote(4096)), &sge)]).unwrap();
    assert_eq!(a.wait_beside(1, || turn(b))[0].status, WcStatus::Success);
    assert_eq!(b.bytes(4096, data.len()), data);
}

#[test]
fn a_queue_pair_sends_by_the_port_that_it_was_given() {
    let fabric = Fabric::new();
    let a = End::on(fabric.device(&[11, 12], test_config()), None);
    let b = End::on(fabric.device(&[21, 22], test_config()), None);
    let [first, _first] = pair(&a, PORTS[0], &b, PORTS[1]);
    write(&a, &first, &b, 1);
    assert!(fabric.sent(11) > 20 && fabric.sent(12) == 0, "by port 1 of a");
    assert!(fabric.sent(22) > 0 && fabric.sent(21) == 0, "answers by port 2 of b");
    let by_first = fabric.sent(11);
    let [second, _second] = pair(&a, PORTS[1], &b, PORTS[1]);
    write(&a, &second, &b, 2);
    assert!(fabric.sent(12) > 20, "by port 2 of a");
    assert_eq!((fabric.sent(11), fabric.sent(21)), (by_first, 0));
}

#[test]
fn each_port_has_its_attributes_and_its_gids() {
    let fabric = Fabric::new();
    let context = fabric.device(&[31, 32], test_config());
    assert_eq!(context.device_attr().ports, 2);
    let rows = context.gid_table();
    let row = |n: usize| (rows[n].port, rows[n].index, rows[n].gid);
    let gid = |lid: u8| Gid::from_ip([198, 18, 0, lid].into());
    assert_eq!((row(0), row(1)), ((PORTS[0], 0, gid(31)), (PORTS[1], 0, gid(32))));
    for (port, lid) in PORTS.into_iter().zip([31, 32]) {
        let attr = context.port_attr(port).unwrap();
        assert_eq!((attr.port, attr.default_gid), (port, Some(gid(lid))));
        assert_eq!(context.gid_entry(port, 0).unwrap().gid, gid(lid));
    }
    let error = context.port_attr(PortNum(3)).unwrap_err().to_string();
    assert_eq!(error, "port 3 does not exist: the device has ports 1 to 2");
    let end = End::on(context, None);
    let qp = end.qp(Service::Rc);
    let attr = QpAttr { state: QpState::Init, port: PortNum(0), ..QpAttr::default() };
    use AttrMask as M;
    let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    assert!(matches!(qp.modify(&attr, init), Err(ModifyError::Path { .. })));
    let av = AddressVector { dgid: gid(31), port: PortNum(3), ..AddressVector::default() };
    assert!(end.pd.create_ah(av).is_err());
}

/// A device whose ports have an address of `lo` each, and no netdev.
fn by_udp(number: u32, hosts: [u8; 2], config: Config) -> Arc<Context> {
    let mut info = devices().unwrap().into_iter().find(|info| info.loopback).unwrap();
    let port = |host: u8| PortInfo {
        netdev: format!("lo:{host}"),
        netdev_index: 0,
        addresses: vec![LocalAddr::from(std::net::IpAddr::from([127, 0, 22, host]))],
        ..info.port.clone()
    };
    (info.more_ports, info.port) = (vec![port(hosts[1])], port(hosts[0]));
    (info.name, info.number) = (format!("two{number}"), number);
    Context::open_over(info, &UdpFactory, config).unwrap()
}

#[test]
fn the_udp_link_serves_both_ports_of_a_device() {
    let config = || Config { force_wire: true, ..test_config() };
    let a = End::on(by_udp(1, [1, 2], config()), None);
    let b = End::on(by_udp(2, [3, 4], config()), None);
    for (a_port, b_port) in [(PORTS[0], PORTS[0]), (PORTS[1], PORTS[0]), (PORTS[1], PORTS[1])] {
        let [qp, _peer] = pair(&a, a_port, &b, b_port);
        write(&a, &qp, &b, a_port.value() * 3 + b_port.value());
    }
    // The source of a datagram is the address of the port in its address handle.
    let sender = a.qp(Service::Ud);
    let receiver = b.qp(Service::Ud);
    for (qp, port) in [(&sender, PORTS[0]), (&receiver, PORTS[1])] {
        use AttrMask as M;
        let attr = |state| QpAttr { state, port, qkey: Qkey(7), ..QpAttr::default() };
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY;
        qp.modify(&attr(QpState::Init), init).unwrap();
        qp.modify(&attr(QpState::Rtr), M::STATE).unwrap();
        qp.modify(&attr(QpState::Rts), M::STATE | M::SQ_PSN).unwrap();
    }
    for port in PORTS {
        let dgid = b.gid_of(PORTS[1]).1;
        let av = AddressVector { dgid, port, ..AddressVector::default() };
        let ah = a.pd.create_ah(av).unwrap();
        receiver.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 4096)] }]).unwrap();
        let dest = Some(Dest { ah: &ah, qpn: receiver.qpn(), qkey: Qkey(7) });
        let sges = [a.sge(0, 64)];
        sender.post_send(&[SendWr { dest, ..wr(2, SendOp::Send, &sges) }]).unwrap();
        assert_eq!(b.wait_beside(1, || ())[0].status, WcStatus::Success);
        let ip_header = b.bytes(20, 20);
        assert_eq!(ip_header[12..16], [127, 0, 22, port.value()]);
        a.wait(1);
    }
}

#[test]
fn a_group_is_joined_on_the_port_of_its_member() {
    if runs_alone("a_group_is_joined_on_the_port_of_its_member") {
        return;
    }
    let end = End::on(two_netdevs(), None);
    let group = Gid::from_ip([239, 77, 2, 2].into());
    let members: Vec<_> = PORTS
        .into_iter()
        .map(|port| {
            use AttrMask as M;
            let qp = end.qp(Service::Ud);
            let attr = QpAttr { state: QpState::Init, port, qkey: Qkey(7), ..QpAttr::default() };
            qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY).unwrap();
            qp.attach_mcast(group).unwrap();
            qp
        })
        .collect();
    let joined = std::fs::read_to_string("/proc/net/igmp").unwrap();
    // The kernel prints the group's address as a number of the host's byte order.
    let number = format!("{:08X}", u32::from_ne_bytes([239, 77, 2, 2]));
    assert_eq!(joined.matches(&number).count(), 2, "one for each netdev: {joined}");
    for qp in members {
        qp.detach_mcast(group).unwrap();
    }
    // The kernel leaves a group when nothing refers to its closed socket any more. A background
    // thread that sleeps in `poll` still does, until it wakes up.
    let since = Instant::now();
    loop {
        let left = std::fs::read_to_string("/proc/net/igmp").unwrap();
        if left.matches(&number).count() == 0 {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(10), "{left}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// A device with the netdevs `one` and `two`, in a network namespace of this process's own.
fn two_netdevs() -> Arc<Context> {
    for (n, name) in [(1, "one"), (2, "two")] {
        ip(&format!("link add {name} type veth peer name {name}-peer"));
        ip(&format!("address add 10.22.{n}.1/24 dev {name}"));
        ip(&format!("link set {name}-peer up"));
        ip(&format!("link set {name} up"));
    }
    let since = Instant::now();
    let [one, two] = loop {
        let all = devices().unwrap();
        let found = ["one", "two"]
            .map(|name| all.iter().find(|info| info.port.netdev == name && info.port.up).cloned());
        // The kernel takes a moment to notice that both ends are up.
        if let [Some(one), Some(two)] = found {
            break [one, two];
        }
        assert!(since.elapsed() < PATIENCE, "the netdevs do not come up");
    };
    let info = DeviceInfo { more_ports: vec![two.port], name: "dual0".into(), ..one };
    Context::open_over(info, &UdpFactory, test_config()).unwrap()
}

#[test]
fn an_armed_queue_pair_leaves_a_port_that_is_down_at_once() {
    if runs_alone("an_armed_queue_pair_leaves_a_port_that_is_down_at_once") {
        return;
    }
    let end = End::on(two_netdevs(), None);
    let qps = [end.qp(Service::Rc), end.qp(Service::Rc)];
    // So long that no retry is used up.
    let timeout = AckTimeout::new(25);
    let setup = Setup { mtu: Mtu::B1024, timeout, ..Setup::default() };
    for n in [0, 1] {
        connect(&end, &qps[n], end.gid_of(PORTS[0]).1, qps[1 - n].qpn(), setup);
        let (sgid_index, dgid) = end.gid_of(PORTS[1]);
        let alt_av = AddressVector { dgid, sgid_index, ..AddressVector::default() };
        let path_mig_state = PathMigState::Rearm;
        let attr = QpAttr { alt_av, alt_port: PORTS[1], path_mig_state, ..QpAttr::default() };
        qps[n].modify(&attr, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE).unwrap();
    }
    let write = |seed| {
        let data = pattern(10_000, seed);
        end.fill(0, &data);
        let sge = [end.sge(0, data.len() as u32)];
        qps[0].post_send(&[wr(1, SendOp::Write(end.remote(1 << 20)), &sge)]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
        assert_eq!(end.bytes(1 << 20, data.len()), data);
    };
    write(1);
    let states = || [0, 1].map(|n| qps[n].query().path_mig_state);
    assert_eq!(states(), [PathMigState::Armed; 2]);
    ip("link set one-peer down");
    let since = Instant::now();
    let mut migrated = Vec::new();
    while migrated.len() < 2 {
        match end.context.try_async_event() {
            Some(event) if event.kind == EventKind::PathMigrated => migrated.push(event.element),
            Some(_) => {}
            None => std::thread::yield_now(),
        }
        assert!(since.elapsed() < PATIENCE, "only {migrated:?}");
    }
    assert_eq!([0, 1].map(|n| qps[n].query().port), [PORTS[1]; 2]);
    write(2);
}

#[test]
fn events_name_the_port_that_changed_and_the_other_goes_on() {
    if runs_alone("events_name_the_port_that_changed_and_the_other_goes_on") {
        return;
    }
    let context = two_netdevs();
    let until = |kind: EventKind| {
        let since = Instant::now();
        loop {
            match context.try_async_event() {
                Some(event) if event.kind == kind => return event.element,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
            assert!(since.elapsed() < PATIENCE, "no {kind:?}");
        }
    };
    let states = || PORTS.map(|port| context.port_attr(port).unwrap().state);
    assert_eq!(states(), [PortState::Active; 2]);
    ip("link set two-peer down");
    assert_eq!(until(EventKind::PortError), Element::Port(PORTS[1]));
    assert_eq!(states(), [PortState::Active, PortState::Down]);
    ip("link set two-peer up");
    assert_eq!(until(EventKind::PortActive), Element::Port(PORTS[1]));
    ip("address add 10.22.1.2/24 dev one");
    // Link-local addresses of IPv6 come at a time of their own, also with this event.
    let new = Gid::from_ip([10, 22, 1, 2].into());
    while context.gid_row(new).is_none() {
        until(EventKind::GidChange);
    }
    assert_eq!(context.gid_row(new).map(|row| row.port), Some(PORTS[0]));
    // The device is lost with its last netdev.
    ip("link del two");
    assert_eq!(until(EventKind::PortError), Element::Port(PORTS[1]));
    assert_eq!(states()[0], PortState::Active);
    ip("link del one");
    assert_eq!(until(EventKind::DeviceFatal), Element::Device);
}
