//! Several processes: ports among them, a peer that is killed, a child that is forked; and two
//! network namespaces with a cable between them.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;
/// What the engine's tests have for it.
#[path = "../../../core/vernic-engine/tests/common/other.rs"]
#[allow(dead_code, unreachable_pub)] // these tests use their part
mod other;

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use other::{Other, ROLE};
use vernic_cm::{
    Config, ConnParam, Error, EventKind, IdOption, JoinState, PortSpace, QpType, RejReason,
};
use vernic_engine::PortNum;
use vernic_engine::{AckTimeout, WcStatus};

/// Runs a program with `lo` up in a network namespace of its own.
const WITH_LO: &str = "ip link set lo up && exec \"$0\" \"$@\"";

/// Longest wait for another process to do as it is told.
const PATIENCE: Duration = LONG;

impl Other {
    /// In a network namespace of its own.
    fn in_namespace(role: &str) -> Self {
        let mut command = unshare();
        command.arg(WITH_LO).arg(std::env::current_exe().unwrap());
        Self::run(&mut command, role)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c"]);
    command
}

fn say(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().unwrap();
}

/// The next line that the other side says to this process.
fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Runs `ip` in the namespace of this process.
fn ip(args: &str) {
    let status = Command::new("ip").args(args.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match &*role {
        "listener" => listen_and_accept(),
        "leaver" => accept_and_leave(),
        "near" => near_end(),
        "far" => far_end(),
        "crowded" => bind_beside_another(),
        "second" => bind_what_is_free(),
        "unplugged" => lose_a_device(),
        "v6 only" => bind_where_ipv6_is_for_itself(),
        other => panic!("{other}"),
    }
}

/// Listens at an address of `lo` and accepts one connection; whatever comes then is told.
fn listen_and_accept() {
    let side = Side::new();
    let (_listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    say(&place.to_string());
    let accepted = side.expect(EventKind::ConnectRequest).id.clone();
    let end = End::new(&accepted);
    accepted.attach_qp(end.qp.clone()).unwrap();
    end.post_recv();
    accepted.accept(&ConnParam::default()).unwrap();
    side.expect(EventKind::Established);
    say("established");
    let event = side.event();
    say(&format!("{:?}", event.kind));
    let _ = accepted.disconnect();
}

/// Accepts one connection, leaves another request waiting, and ends without ending either.
fn accept_and_leave() {
    let side = Side::new();
    let (_listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    say(&place.to_string());
    let accepted = side.expect(EventKind::ConnectRequest).id.clone();
    let end = End::new(&accepted);
    accepted.attach_qp(end.qp.clone()).unwrap();
    accepted.accept(&ConnParam::default()).unwrap();
    side.expect(EventKind::Established);
    say("established");
    let _waiting = side.expect(EventKind::ConnectRequest);
    side.manager.disconnect_all();
    std::process::exit(0);
}

/// Listens where there are two ports for all, and has another process listen there, too.
fn bind_beside_another() {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").unwrap();
    let side = Side::new();
    let (_listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "0.0.0.0:0");
    let other = Other::start("second").hear();
    say(&format!("{} {other}", place.port()));
}

/// Takes the port that is left, each time.
fn bind_what_is_free() {
    let side = Side::new();
    let ports = [0; 8].map(|_| {
        let (listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "0.0.0.0:0");
        listener.destroy();
        place.port().to_string()
    });
    say(&ports.join(" "));
}

/// Binds a wildcard of IPv6 where the system has these for IPv6 alone.
fn bind_where_ipv6_is_for_itself() {
    std::fs::write("/proc/sys/net/ipv6/bindv6only", "1").unwrap();
    let side = Side::new();
    let (_v6, place) = side.listener(PortSpace::TCP, QpType::Rc, "[::]:0");
    let v4 = side.tcp();
    v4.bind_addr(addr(&format!("0.0.0.0:{}", place.port()))).unwrap();
    v4.listen(1).unwrap();
    let both = side.tcp();
    both.set_option(IdOption::AfOnly(false)).unwrap();
    let error = both.bind_addr(addr(&format!("[::]:{}", place.port()))).unwrap_err();
    say(&error.errno().to_string());
}

/// Loses the device under a listener, a connection and a wildcard, again and again.
fn lose_a_device() {
    // Threads and descriptors.
    let counts = || {
        ["task", "fd"].map(|what| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count())
    };
    let side = Side::new();
    let (_wildcard, _) = side.listener(PortSpace::TCP, QpType::Rc, "0.0.0.0:7001");
    let before = counts();
    for _ in 0..3 {
        ip("link add u0 type veth peer name u1");
        ip("addr add 192.0.2.1/24 dev u0");
        ip("link set u1 up");
        ip("link set u0 up");
        let (listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "192.0.2.1:0");
        let (id, end) = side.connecting(place, &ConnParam::default());
        let accepted = side.expect(EventKind::ConnectRequest).id.clone();
        ip("link del u0");
        let mut told: Vec<_> =
            [(); 3].map(|()| side.expect(EventKind::DeviceRemoval).id.clone()).into();
        for id in [&listener, &id, &accepted] {
            told.retain(|told| !std::sync::Arc::ptr_eq(told, id));
        }
        assert!(told.is_empty(), "{told:?}");
        drop((told, end));
        for id in [listener, id, accepted] {
            id.destroy();
        }
        side.expect_nothing();
        // Whoever had the last reference is closing the device, perhaps on another thread.
        let until = Instant::now() + LONG;
        while counts() != before {
            assert!(Instant::now() < until, "{:?}, not {before:?}", counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    say("done");
}

#[test]
fn a_device_that_is_unplugged_is_told_to_its_ids_and_leaves_nothing() {
    let probe =
        unshare().arg("ip link add near0 type veth peer name far0").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no network namespaces, no veth, or no `ip`, here");
        return;
    }
    assert_eq!(Other::in_namespace("unplugged").hear(), "done");
}

#[test]
fn a_wildcard_of_ipv6_is_for_ipv6_alone_where_the_system_says_so() {
    let probe = unshare().arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no network namespaces here");
        return;
    }
    assert_eq!(Other::in_namespace("v6 only").hear(), libc::EADDRNOTAVAIL.to_string());
}

#[test]
fn processes_that_name_no_port_get_different_ones() {
    let probe = unshare().arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no network namespaces here");
        return;
    }
    let told = Other::in_namespace("crowded").hear();
    let (first, rest) = told.split_once(' ').unwrap();
    let left = if first == "40000" { "40001" } else { "40000" };
    assert_eq!(rest, [left; 8].join(" "), "beside {first}");
}

/// The end of the connection here, with short timeouts.
fn connect_to(side: &Side, place: SocketAddr) -> (std::sync::Arc<vernic_cm::Id>, End) {
    let id = side.tcp();
    id.set_option(IdOption::AckTimeout(10)).unwrap();
    id.resolve_addr(None, place, SOON).unwrap();
    side.expect(EventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
    side.expect(EventKind::RouteResolved);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.connect(&ConnParam { retry_count: 2, ..ConnParam::default() }).unwrap();
    side.expect(EventKind::Established);
    assert_eq!(end.qp.query().timeout, AckTimeout::new(10));
    (id, end)
}

#[test]
fn a_connection_joins_two_processes_and_its_port_is_the_hosts() {
    let mut other = Other::start("listener");
    let place = addr(&other.hear());
    let side = Side::new();
    let error = side.tcp().bind_addr(place).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    let (id, end) = connect_to(&side, place);
    assert_eq!(other.hear(), "established");
    end.send();
    assert_eq!(end.complete().status, WcStatus::Success);
    id.disconnect().unwrap();
    assert_eq!(other.hear(), "Disconnected");
    side.expect(EventKind::Disconnected);
}

#[test]
fn a_peer_that_is_killed_has_disconnected() {
    let mut other = Other::start("listener");
    let place = addr(&other.hear());
    let side = Side::new();
    let (id, end) = connect_to(&side, place);
    assert_eq!(other.hear(), "established");
    end.post_recv();
    other.kill();
    side.expect(EventKind::Disconnected);
    // Or else the queue pair knows already, from the memory that it shared.
    id.disconnect().unwrap();
    assert_eq!(end.complete().status, WcStatus::Flushed);
    side.expect(EventKind::TimewaitExit);
    // The port is free at once: names vanish with their process.
    let again = side.tcp();
    again.bind_addr(place).unwrap();
    again.listen(1).unwrap();
}

/// As seen from another host, whose other processes answer for the one that is gone.
#[test]
fn a_peer_that_is_killed_on_another_host_is_retried_until_that_fails_and_then_ended() {
    let mut other = Other::start("listener");
    let place = addr(&other.hear());
    let mut config = Config::default();
    config.set("force_wire", "on").unwrap();
    let side = Side::with(config);
    let (id, end) = connect_to(&side, place);
    assert_eq!(other.hear(), "established");
    other.kill();
    end.send();
    assert_eq!(end.complete().status, WcStatus::RetryExceeded);
    side.expect_nothing();
    id.disconnect().unwrap();
    side.expect(EventKind::Disconnected);
    let counters = id.context().unwrap().counters();
    assert_eq!(counters.cm.unanswered, 0, "the DREQ was answered");
}

#[test]
fn a_program_that_ends_says_goodbye_to_its_peers() {
    let mut other = Other::start("leaver");
    let place = addr(&other.hear());
    let side = Side::new();
    let (_id, _end) = connect_to(&side, place);
    assert_eq!(other.hear(), "established");
    let (waiting, _end) = side.connecting(place, &ConnParam::default());
    let mut kinds = [side.event(), side.event()].map(|event| (event.kind, event.status));
    kinds.sort();
    let consumer = i32::from(RejReason::CONSUMER.value());
    assert_eq!(kinds, [(EventKind::Rejected, consumer), (EventKind::Disconnected, 0)]);
    drop(waiting);
}

/// A cable between the namespaces: `near0` here, `far0` in that of the other process.
fn lay_cable(other: &Other, number: u32) {
    let (near, far) = (format!("near{number}"), format!("far{number}"));
    ip(&format!("link add {near} type veth peer name {far}"));
    ip(&format!("link set {far} netns {}", other.child.id()));
}

/// Gives one end of a cable its addresses, and waits until they may be used.
fn configure(name: &str, number: u32, host: u32) {
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
    ip(&format!("address add 10.77.{number}.{host}/24 dev {name}"));
    ip(&format!("address add fd77:{number}::{host}/64 dev {name} nodad"));
    ip(&format!("link set {name} up"));
}

/// The link-local address of a netdev, once it is there.
fn link_local(name: &str) -> String {
    let until = Instant::now() + LONG;
    loop {
        let show = Command::new("ip").args(["-6", "-o", "address", "show", "dev", name]).output();
        let text = String::from_utf8(show.unwrap().stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let is = |word: &&&str| word.starts_with("fe80:");
        if let Some(address) = words.iter().find(is).filter(|_| !text.contains("tentative")) {
            return address.split('/').next().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "no link-local address: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The index of a netdev.
fn index(name: &str) -> u32 {
    let show = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
    let text = String::from_utf8(show.stdout).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

/// A wildcard listener at one end of the cables: accepts whoever comes, until it is told to end.
fn far_end() {
    let side = Side::new();
    say("there");
    assert_eq!(told(), "configure 1");
    configure("far1", 1, 2);
    say(&link_local("far1"));
    let listener = side.tcp();
    listener.bind_addr(addr("[::]:7471")).unwrap();
    listener.listen(8).unwrap();
    let datagrams = side.udp();
    datagrams.bind_addr(addr("[::]:7471")).unwrap();
    datagrams.listen(8).unwrap();
    say("listening");
    let mut ends = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match &*told() {
                    "more" => ip("address add 10.77.9.2/24 dev far1"),
                    "configure 2" => configure("far2", 2, 2),
                    _ => std::process::exit(0),
                }
                say("done");
            }
        });
        loop {
            let Some(event) = side.channel.try_next() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if event.kind == EventKind::ConnectRequest {
                let end = End::new(&event.id);
                event.id.attach_qp(end.qp.clone()).unwrap();
                end.post_recv();
                event.id.accept(&ConnParam::default()).unwrap();
                ends.push((event.id.clone(), end));
            } else if event.kind == EventKind::Disconnected {
                event.id.disconnect().unwrap();
            }
        }
    });
}

/// Connects to `place` by a device here, sends a message, disconnects.
fn visit(side: &Side, place: &str, device: &str) {
    let place = addr(place);
    let (id, end) = connect_to(side, place);
    assert_eq!(id.context().unwrap().info().port.netdev, device, "{place}");
    assert_eq!(id.peer_addr(), Some(place));
    end.send();
    assert_eq!(end.complete().status, WcStatus::Success, "{:?}", end.qp.explain());
    id.disconnect().unwrap();
    side.expect(EventKind::Disconnected);
    id.destroy();
}

/// As [`visit`], once the other end has noticed an address or a device that it got just now.
fn visit_soon(side: &Side, place: &str, device: &str) {
    let until = Instant::now() + LONG;
    loop {
        let id = side.routed(PortSpace::TCP, QpType::Rc, addr(place));
        let end = End::new(&id);
        id.attach_qp(end.qp.clone()).unwrap();
        id.connect(&ConnParam::default()).unwrap();
        if side.event().kind == EventKind::Established {
            id.destroy();
            return visit(side, place, device);
        }
        assert!(Instant::now() < until, "{place} never listened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The other end of the cables: visits the far one by every kind of address.
fn near_end() {
    let mut far = Other::in_namespace("far");
    assert_eq!(far.hear(), "there");
    lay_cable(&far, 1);
    configure("near1", 1, 1);
    far.tell("configure 1");
    let near_there = far.hear();
    assert_eq!(far.hear(), "listening");
    let scope = index("near1");
    link_local("near1");
    let side = Side::new();
    visit(&side, "10.77.1.2:7471", "near1");
    visit(&side, "[fd77:1::2]:7471", "near1");
    visit(&side, &format!("[{near_there}%{scope}]:7471"), "near1");
    datagrams(&side, "10.77.1.2:7471");
    datagrams(&side, &format!("[{near_there}%{scope}]:7471"));
    // An address that it got after it began to listen, and then a device.
    far.tell("more");
    assert_eq!(far.hear(), "done");
    ip("address add 10.77.9.1/24 dev near1");
    visit_soon(&side, "10.77.9.2:7471", "near1");
    lay_cable(&far, 2);
    configure("near2", 2, 1);
    far.tell("configure 2");
    assert_eq!(far.hear(), "done");
    visit_soon(&side, "10.77.2.2:7471", "near2");
    // Which device an address belongs to decides, not which came first.
    visit(&side, "10.77.1.2:7471", "near1");
    bound_elsewhere(&side);
    groups(&side);
    far.tell("end");
    say("done");
}

/// Learns of a datagram queue pair there.
fn datagrams(side: &Side, place: &str) {
    let id = side.routed(PortSpace::UDP, QpType::Ud, addr(place));
    id.connect(&ConnParam::default()).unwrap();
    let event = side.expect(EventKind::Established);
    let row = id.context().unwrap().gid_entry(PortNum(1), ud(&event).av.sgid_index).unwrap();
    assert_eq!(Some(row.local.ip), id.local_addr().map(|local| local.ip()));
}

/// A source address that the program names decides the device, and there is no other way then.
fn bound_elsewhere(side: &Side) {
    let id = side.tcp();
    id.bind_addr(addr("10.77.2.1:0")).unwrap();
    assert_eq!(id.context().unwrap().info().port.netdev, "near2");
    id.resolve_addr(None, addr("10.77.2.2:7471"), SOON).unwrap();
    side.expect(EventKind::AddrResolved);
    assert_eq!(id.local_addr().unwrap().ip(), addr("10.77.2.1:0").ip());
    let error = side.tcp().resolve_addr(None, addr("192.0.2.7:1"), SOON).unwrap_err();
    assert_eq!(error.errno(), libc::ENETUNREACH, "{error}");
}

/// Groups of both IP versions, on a netdev that has routes for them and on `lo`, which has none for
/// IPv6.
fn groups(side: &Side) {
    for (home, group) in [("10.77.1.1:0", "239.7.7.7:0"), ("[fd77:1::1]:0", "[ff15::77]:0")] {
        let member = side.udp();
        member.bind_addr(addr(home)).unwrap();
        let end = End::new(&member);
        member.attach_qp(end.qp.clone()).unwrap();
        member.join_multicast(addr(group), JoinState::FullMember, 1).unwrap();
        side.expect(EventKind::MulticastJoin);
    }
    let sender = side.udp();
    sender.bind_addr(addr("[::1]:0")).unwrap();
    let group = addr("[ff15::77]:0");
    let error = sender.join_multicast(group, JoinState::SendOnlyFullMember, 1).unwrap_err();
    assert!(error.to_string().contains("route add local ff00::/8 dev lo"), "{error}");
    assert_eq!(error.errno(), libc::ENETUNREACH);
    ip("-6 route add local ff00::/8 dev lo");
    sender.join_multicast(group, JoinState::SendOnlyFullMember, 1).unwrap();
    side.expect(EventKind::MulticastJoin);
}

#[test]
fn connections_cross_namespaces_by_the_device_that_has_the_address() {
    let probe =
        unshare().arg("ip link add near0 type veth peer name far0").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no network namespaces, no veth, or no `ip`, here");
        return;
    }
    let mut near = Other::in_namespace("near");
    assert_eq!(near.hear(), "done");
}
