//! Connection management over QP1: between devices of one process, between processes, and what
//! reaches the wrong one.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::io::Write;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use common::cm::*;
use common::other::{Other, ROLE, runs_alone};
use common::*;
use vernic_engine::*;
use vernic_proto::cm::{CmPath, EventKind, SidrParams, SidrReply, Unanswered};
use vernic_wire::cm::{RejReason, ServiceId, SidrStatus};

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const HOME6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

/// A port that no other test here listens on.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn wire_config() -> Config {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    config
}

/// Whether `lo` has an IPv6 address here.
fn has_ipv6(node: &Node) -> bool {
    node.context.gid_table().iter().any(|row| row.local.ip == HOME6)
}

#[test]
fn two_devices_of_a_process_connect_over_ipv4_and_ipv6_to_one_address_and_to_all() {
    for config in [test_config(), wire_config()] {
        let (server, client) = (Node::with(config.clone()), Node::with(config));
        for ip in [HOME, HOME6] {
            if ip == HOME6 && !has_ipv6(&client) {
                println!("skipped: no IPv6 here");
                continue;
            }
            for place in [ServiceScope::Address(ip.into()), server.everywhere()] {
                let service = port(free_port());
                let listener = server.listen(service, place);
                std::thread::scope(|scope| {
                    let serves = scope.spawn(|| server.serve(b"welcome"));
                    assert_eq!(client.use_service(ip, service, b"hello"), b"welcome");
                    assert_eq!(serves.join().unwrap(), b"hello");
                });
                server.cm().stop_listening(listener);
            }
        }
    }
}

#[test]
fn a_device_connects_to_itself() {
    let node = Node::new();
    let service = port(free_port());
    let listener = node.listen(service, ServiceScope::Address(HOME.into()));
    let active = node.connect(HOME, service, b"");
    let (passive, to, path, _) = node.request();
    assert_eq!(to, listener);
    assert_eq!(path, CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME)));
    node.accept(passive, b"");
    let reply = node.next();
    assert!(matches!(reply.kind, EventKind::Reply { .. }), "{reply:?}");
    assert_eq!(reply.conn, active);
    node.cm().ready_to_use(active, b"").unwrap();
    let up = node.next();
    assert!(matches!(up.kind, EventKind::Established { .. }), "{up:?}");
    assert_eq!(up.conn, passive);
    assert_eq!(node.context.counters().mads_handed_over, 0);
}

/// Connects to a service that `server` listens for only a moment later; false if that was too late.
fn connects_early(client: &Node, server: &Node) -> bool {
    let service = port(free_port());
    let active = client.connect(HOME, service, b"early");
    // Long enough for a rejection, if one comes at once.
    std::thread::sleep(Duration::from_millis(10));
    let listener = server.listen(service, ServiceScope::Address(HOME.into()));
    let until = Instant::now() + PATIENCE;
    let event = loop {
        if let Some(told) = [client, server].into_iter().find(|node| node.peek().is_some()) {
            break told.next();
        }
        assert!(Instant::now() < until, "neither request nor rejection");
        std::thread::sleep(Duration::from_millis(1));
    };
    let EventKind::Request { listener: to, .. } = event.kind else {
        assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
        server.cm().stop_listening(listener);
        return false;
    };
    assert_eq!(to, listener);
    server.accept(event.conn, b"");
    let reply = client.next();
    assert!(matches!(reply.kind, EventKind::Reply { .. }), "{reply:?}");
    assert_eq!(reply.conn, active);
    client.cm().ready_to_use(active, b"").unwrap();
    let up = server.next();
    assert!(matches!(up.kind, EventKind::Established { .. }), "{up:?}");
    server.cm().stop_listening(listener);
    true
}

#[test]
fn a_request_that_came_too_early_reaches_who_listens_a_moment_later() {
    for config in [test_config(), wire_config()] {
        let (server, client) = (Node::with(config.clone()), Node::with(config));
        for node in [&server, &client] {
            // A machine that is busy may keep us from listening in time, but hardly each time.
            assert!((0..10).any(|_| connects_early(&client, node)), "rejected each time");
        }
    }
}

#[test]
fn a_request_for_an_unknown_service_is_rejected_before_it_is_repeated() {
    let (node, other) = (Node::new(), Node::new());
    let start = Instant::now();
    for node in [&node, &other] {
        let conn = node.connect(HOME, port(free_port()), b"");
        let event = node.next();
        let EventKind::Rejected { reason, .. } = event.kind else { panic!("{event:?}") };
        assert_eq!((event.conn, reason), (conn, RejReason::INVALID_SERVICE_ID));
    }
    assert!(start.elapsed() < PATIENCE / 4, "no timeout was waited for");
}

/// Asks `ip` for a connection, which shall not wait for somebody to listen; the reason of its
/// rejection.
fn refused_now(node: &Node, ip: IpAddr, service: ServiceId) -> RejReason {
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip(ip));
    let conn = node.cm().connect_now(&params(path, service, b"")).unwrap();
    let event = node.next();
    let EventKind::Rejected { reason, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(event.conn, conn);
    reason
}

#[test]
fn a_request_that_shall_not_wait_is_not_sent_where_no_process_of_the_host_listens() {
    let (node, other) = (Node::new(), Node::new());
    let service = port(free_port());
    assert_eq!(refused_now(&node, HOME, service), RejReason::INVALID_SERVICE_ID);
    let counters = node.context.counters().cm;
    assert_eq!((counters.refused_here, counters.sent.iter().sum::<u64>()), (1, 0));
    // Whose name is taken may listen in a moment, and is asked.
    other.cm().reserve(service, other.everywhere()).unwrap();
    assert_eq!(refused_now(&node, HOME, service), RejReason::INVALID_SERVICE_ID);
    assert_eq!(node.context.counters().cm.refused_here, 1);
}

#[test]
fn nobody_answers_where_nobody_is() {
    let node = Node::new();
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip([127, 77, 1, 9].into()));
    let mut request = params(path, port(1), b"");
    request.max_retries = Some(1);
    let conn = node.cm().connect(&request).unwrap();
    let event = node.next();
    assert_eq!(event.conn, conn);
    assert_eq!(event.kind, EventKind::Unreachable { which: Unanswered::Req });
    assert_eq!(node.context.counters().cm.retries, 1);
}

#[test]
fn a_service_that_is_reserved_is_nobodys_and_rejected() {
    let (node, other) = (Node::new(), Node::new());
    let (service, home) = (port(free_port()), ServiceScope::Address(HOME.into()));
    node.cm().reserve(service, home).unwrap();
    for place in [home, node.everywhere()] {
        assert!(node.cm().is_claimed(service, place).unwrap());
        for error in [
            other.cm().reserve(service, place).unwrap_err(),
            other.cm().listen(service, place, 1).unwrap_err(),
            node.cm().reserve(service, place).unwrap_err(),
        ] {
            assert!(matches!(error, ListenError::InUse(_)), "{error}");
            assert!(error.to_string().contains("is taken at 127.0.0.1"), "{error}");
        }
    }
    // An overlap that was refused has left nothing behind.
    if has_ipv6(&node) {
        other.cm().reserve(service, ServiceScope::Address(HOME6.into())).unwrap();
    }
    other.connect(HOME, service, b"");
    let event = other.next();
    assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");

    let listener = node.listen(service, home);
    let error = node.cm().listen(service, home, 1).unwrap_err();
    assert!(matches!(error, ListenError::InUse(_)), "{error}");
    node.cm().release(service, home);
    assert!(other.cm().is_claimed(service, home).unwrap(), "it is listened for");
    other.connect(HOME, service, b"");
    node.request();
    node.cm().stop_listening(listener);
    assert!(!other.cm().is_claimed(service, home).unwrap());
    other.listen(service, home);
}

#[test]
fn addresses_and_netdevs_of_other_devices_are_refused_with_those_there_are() {
    let node = Node::new();
    let elsewhere = ServiceScope::Address(IpAddr::from([192, 0, 2, 1]).into());
    let error = node.cm().listen(port(1), elsewhere, 1).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1") && error.contains("127.0.0.1"), "{error}");
    let error = node.cm().reserve(port(1), ServiceScope::Netdev(u32::MAX)).unwrap_err().to_string();
    assert!(error.contains("4294967295") && error.contains(&node.context.info().name), "{error}");
}

#[test]
fn an_agent_has_one_sink_and_does_nothing_without() {
    let context = Context::open(Some("lo"), test_config()).unwrap();
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME));
    let error = context.cm().connect(&params(path, port(1), b"")).unwrap_err();
    assert_eq!(error, CmCallError::NotAttached);
    let service = port(free_port());
    let place = ServiceScope::Netdev(context.info().port.netdev_index);
    let error = context.cm().listen(service, place, 1).unwrap_err();
    assert!(matches!(error, ListenError::NotAttached), "{error}");
    assert!(!context.cm().is_claimed(service, place).unwrap(), "nothing is left of it");
    let node = Node::new();
    struct Deaf;
    impl CmSink for Deaf {
        fn event(&self, _: vernic_proto::cm::Event) {}
    }
    let error = node.cm().attach(std::sync::Arc::new(Deaf)).unwrap_err();
    assert!(matches!(error, CmAttachError::Busy), "{error}");
}

#[test]
fn a_datagram_queue_pair_is_asked_for() {
    let (server, client) = (Node::new(), Node::new());
    let service = port(free_port());
    server.listen(service, server.everywhere());
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME));
    let (response_timeout, max_retries) = (Some(8), None);
    let private_data = b"who?";
    let request = SidrParams {
        path,
        service,
        pkey: Pkey::DEFAULT,
        private_data,
        response_timeout,
        max_retries,
    };
    let conn = client.cm().sidr_request(&request).unwrap();
    let event = server.next();
    let EventKind::SidrRequest { req, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(&req.private_data.as_bytes()[..4], b"who?");
    let (status, qpn) = (SidrStatus(0), Qpn::new(0x1234));
    let reply = SidrReply { status, qpn, qkey: Qkey(9), private_data: b"me" };
    server.cm().sidr_reply(event.conn, &reply).unwrap();
    let event = client.next();
    assert_eq!(event.conn, conn);
    let EventKind::SidrReply { rep } = event.kind else { panic!("{event:?}") };
    assert_eq!((rep.qpn, rep.qkey, &rep.private_data.as_bytes()[..2]), (qpn, Qkey(9), &b"me"[..]));
}

#[test]
fn lost_datagrams_are_sent_again() {
    let mut config = wire_config();
    config.set("fault", "loss=0.3,dup=0.2,reorder=0.2,delay_us=50,seed=5").unwrap();
    let (server, client) = (Node::with(config.clone()), Node::with(config));
    let service = port(free_port());
    server.listen(service, server.everywhere());
    std::thread::scope(|scope| {
        let serves = scope.spawn(|| {
            let mut up = 0;
            while up < 12 {
                let event = server.next();
                match event.kind {
                    EventKind::Request { .. } => server.accept(event.conn, b""),
                    EventKind::Established { .. } => up += 1,
                    other => panic!("{other:?}"),
                }
            }
        });
        for _ in 0..12 {
            let conn = client.connect(HOME, service, b"");
            let reply = client.next();
            assert!(matches!(reply.kind, EventKind::Reply { .. }), "{reply:?}");
            client.cm().ready_to_use(conn, b"").unwrap();
        }
        serves.join().unwrap();
    });
    let retries = |node: &Node| node.context.counters().cm.retries;
    assert!(retries(&server) + retries(&client) > 0);
}

#[test]
fn a_listener_whose_thread_polled_until_now_answers_before_the_take_over_time() {
    let mut config = test_config();
    config.set("takeover_us", "10000000").unwrap();
    let answered = |rested: bool| {
        let (server, client) = (Node::with(config.clone()), Node::new());
        let service = port(free_port());
        server.listen(service, server.everywhere());
        let cq = server.context.create_cq(16, None).unwrap();
        // Until the background thread is sure to leave the sockets to us.
        let polling = Instant::now();
        while polling.elapsed() < Duration::from_millis(50) {
            cq.poll(&mut [EMPTY_WC; 4]).unwrap();
        }
        if rested {
            server.cm().about_to_wait();
        }
        client.connect(HOME, service, b"");
        let waiting = Instant::now();
        while server.peek().is_none() && waiting.elapsed() < Duration::from_secs(2) {
            std::thread::yield_now();
        }
        server.peek().is_some()
    };
    assert!(answered(true));
    assert!(!answered(false), "what is told above makes the difference");
}

impl Other {
    /// A process that listens at a place, `all` or `home`.
    fn server(port: u16, place: &str, config: &str) -> Self {
        let mut other = Self::start(&format!("server {port} {place} {config}"));
        assert_eq!(other.hear(), "listening");
        other
    }

    /// A process that has a device and does nothing.
    fn bystander() -> Self {
        let mut other = Self::start("bystander");
        assert_eq!(other.hear(), "open");
        other
    }
}

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let say = |text: &str| {
        println!("> {text}");
        std::io::stdout().flush().unwrap();
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["server", number, place, config] => {
            let node = Node::with(if config == "wire" { wire_config() } else { test_config() });
            let place =
                if place == "all" { node.everywhere() } else { ServiceScope::Address(HOME.into()) };
            node.listen(port(number.parse().unwrap()), place);
            say("listening");
            loop {
                node.serve(number.as_bytes());
            }
        }
        ["bystander"] => {
            let _context = Context::open(Some("lo"), wire_config()).unwrap();
            say("open");
            let _ = std::io::stdin().lines().next();
        }
        ["namespace"] => in_a_namespace(&say),
        _ => panic!("no such role: {role}"),
    }
}

#[test]
fn processes_that_share_an_address_each_get_the_requests_for_their_services() {
    // By the wire requests are repeated after a millisecond, and a copy that a process of another
    // test takes late, when its connection is over, is a new request.
    if runs_alone("processes_that_share_an_address_each_get_the_requests_for_their_services") {
        return;
    }
    for config in ["private", "wire"] {
        let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
        let places = ["all", "home"].into_iter().cycle();
        let servers: Vec<Other> =
            ports.iter().zip(places).map(|(&p, place)| Other::server(p, place, config)).collect();
        let client = Node::with(if config == "wire" { wire_config() } else { test_config() });
        for round in 0..5 {
            for &number in &ports {
                let say = format!("round {round}");
                let said = client.use_service(HOME, port(number), say.as_bytes());
                assert_eq!(said, number.to_string().as_bytes());
            }
        }
        let counters = client.context.counters();
        if config == "wire" {
            // The kernel has not guessed right 60 times.
            let detours = counters.mads_handed_over + counters.link.taken_over;
            assert!(detours > 0, "{counters:?}");
        } else {
            assert_eq!(counters.cm.retries, 0, "{counters:?}");
        }
        // The service of a process goes with it.
        drop(servers);
        client.connect(HOME, port(ports[0]), b"");
        let event = client.next();
        let EventKind::Rejected { reason, .. } = event.kind else { panic!("{event:?}") };
        assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
    }
}

#[test]
fn a_stopped_process_that_shares_the_port_keeps_nobody_from_connecting() {
    // What reaches the stopped ones comes late: requests of connections that were over long before.
    if runs_alone("a_stopped_process_that_shares_the_port_keeps_nobody_from_connecting") {
        return;
    }
    let number = free_port();
    let bystanders: Vec<Other> = (0..3).map(|_| Other::bystander()).collect();
    let _server = Other::server(number, "all", "private");
    let client = Node::new();
    for bystander in &bystanders {
        bystander.signal(libc::SIGSTOP);
    }
    // Where the listener is known nothing meets those that are stopped.
    let start = Instant::now();
    for _ in 0..10 {
        client.use_service(HOME, port(number), b"");
    }
    assert_eq!(client.context.counters().cm.retries, 0);
    assert!(start.elapsed() < PATIENCE / 4);
    // Over the shared port most datagrams do, and take another way the next time.
    let number = free_port();
    let server = Other::server(number, "all", "wire");
    let client = Node::with(wire_config());
    client.use_service(HOME, port(number), b"");
    // Those that go on have old requests for it.
    drop(server);
    for bystander in &bystanders {
        bystander.signal(libc::SIGCONT);
    }
}

/// Runs `ip` in the namespace of this process.
fn ip(args: &str) {
    let status = Command::new("ip").args(args.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Serves and uses a service of one device.
fn connect_within(node: &Node, ip: IpAddr, number: u16) {
    let active = node.connect(ip, port(number), b"");
    let (passive, ..) = node.request();
    node.accept(passive, b"");
    let reply = node.next();
    assert!(matches!(reply.kind, EventKind::Reply { .. }), "{reply:?}");
    node.cm().destroy(active);
    let event = node.next();
    assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
    node.cm().destroy(passive);
}

/// What the other process does in a network namespace of its own.
fn in_a_namespace(say: &dyn Fn(&str)) {
    let node = Node::new();
    node.listen(port(1), node.everywhere());
    let new: IpAddr = [10, 77, 0, 1].into();
    ip("address add 10.77.0.1/32 dev lo");
    node.context.wait_async_event().unwrap();
    connect_within(&node, new, 1);
    node.listen(port(2), ServiceScope::Address(new.into()));
    connect_within(&node, new, 2);
    ip("address del 10.77.0.1/32 dev lo");
    node.context.wait_async_event().unwrap();
    connect_within(&node, HOME, 1);
    // The listener at the address waits for it to come back.
    ip("address add 10.77.0.1/32 dev lo");
    node.context.wait_async_event().unwrap();
    connect_within(&node, new, 2);

    // An address that means something with its netdev only.
    ip("link add near0 type veth peer name near1");
    ip("link set near0 addrgenmode none");
    ip("link set near0 up");
    ip("link set near1 up");
    ip("address add fe80::77/64 dev near0 nodad");
    let near: IpAddr = "fe80::77".parse().unwrap();
    let node = Node::on("near0", test_config());
    for (number, place) in [(3, node.everywhere()), (4, ServiceScope::Address(near.into()))] {
        node.listen(port(number), place);
        connect_within(&node, near, number);
    }
    say("done");
}

#[test]
fn listeners_follow_the_addresses_of_their_netdev() {
    let Some(mut other) = Other::in_a_namespace("namespace") else { return };
    assert_eq!(other.hear(), "done");
}
