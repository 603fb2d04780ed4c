//! Several processes on one host: traffic between them, death of a peer, the port taken, rest.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::other::{Other, ROLE, runs_alone};
use common::stopped::stop_and_go_on;
use common::*;
use vernic_engine::*;

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match &*role {
        "namespace" => return in_a_namespace(),
        "xrc" => return xrc_target(),
        _ => {}
    }
    let mut lines = std::io::stdin().lines();
    let say = |text: &str| {
        println!("> {text}");
        std::io::stdout().flush().unwrap();
    };
    let end = End::with(if role == "wire" { wire_config() } else { test_config() });
    let qp = end.qp(Service::Rc);
    for wr_id in 0..100 {
        qp.post_recv_unless_reset(wr_id);
    }
    say(&describe(&end, &qp));
    let (peer, _) = understand(&lines.next().unwrap().unwrap());
    connect(&end, &qp, end.gid().1, peer, Setup::default());
    for wr_id in 0..100 {
        qp.post_recv(&[RecvWr { wr_id, sges: &[end.sge(wr_id * 4096, 4096)] }]).unwrap();
    }
    say("connected");
    // Whatever else happens here is the background thread's work.
    let _ = lines.next();
}

/// Another process as target of an XRC connection, with one shared receive queue.
fn xrc_target() {
    let mut lines = std::io::stdin().lines();
    let end = End::new();
    let private = XrcdOpen { create: true, ..XrcdOpen::default() };
    let xrcd = end.context.open_xrcd(private).unwrap();
    let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0 };
    let srq = end.pd.create_xrc_srq(init, &xrcd, &end.cq).unwrap();
    srq.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(0, 4096)] }]).unwrap();
    let qp = xrcd.create_tgt().unwrap();
    println!("> {}", describe(&end, &qp));
    println!("> {}", srq.number().unwrap().value());
    std::io::stdout().flush().unwrap();
    let (peer, _) = understand(&lines.next().unwrap().unwrap());
    connect(&end, &qp, end.gid().1, peer, Setup::default());
    println!("> connected");
    let wc = end.wait(1)[0];
    println!("> {} {:?}", wc.byte_len, end.bytes(0, wc.byte_len as usize));
    std::io::stdout().flush().unwrap();
    let _ = lines.next();
}

#[test]
fn an_xrc_connection_joins_two_processes() {
    let mut other = Other::start("xrc");
    let end = End::new();
    let init = XrcIniInit {
        send_cq: end.cq.clone(),
        cap: QpCap::default(),
        signal_all: true,
        congestion: None,
    };
    let qp = end.pd.create_xrc_ini(init).unwrap();
    let (peer, remote) = understand(&other.hear());
    let srqn = Some(Srqn::new(other.hear().parse().unwrap()));
    other.tell(&describe(&end, &qp));
    assert_eq!(other.hear(), "connected");
    connect(&end, &qp, end.gid().1, peer, Setup::default());
    end.fill(0, &[1, 2, 3]);
    let sges = [end.sge(0, 3)];
    qp.post_send(&[
        SendWr { srqn, ..wr(1, SendOp::Send, &sges) },
        SendWr { srqn, ..wr(2, SendOp::Read(remote), &[end.sge(100, 3)]) },
    ])
    .unwrap();
    let got = end.wait(2);
    assert!(got.iter().all(|wc| wc.status == WcStatus::Success), "{got:?}");
    assert_eq!(other.hear(), "3 [1, 2, 3]");
    assert_eq!(end.bytes(100, 3), [1, 2, 3]);
}

trait PostUnlessReset {
    fn post_recv_unless_reset(&self, wr_id: u64);
}

impl PostUnlessReset for Qp {
    /// Posting in Reset is refused, which the other process checks in passing.
    fn post_recv_unless_reset(&self, wr_id: u64) {
        assert!(self.post_recv(&[RecvWr { wr_id, sges: &[] }]).is_err());
    }
}

fn wire_config() -> Config {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    config
}

fn connect_to(other: &mut Other, end: &End, qp: &Qp, setup: Setup) -> Remote {
    let (peer, remote) = understand(&other.hear());
    other.tell(&describe(end, qp));
    assert_eq!(other.hear(), "connected");
    connect(end, qp, end.gid().1, peer, setup);
    remote
}

#[test]
fn two_processes_exchange_data_while_one_of_them_makes_no_call() {
    for role in ["private", "wire"] {
        let mut other = Other::start(role);
        let end = End::with(if role == "wire" { wire_config() } else { test_config() });
        let qp = end.qp(Service::Rc);
        let remote = connect_to(&mut other, &end, &qp, Setup::default());
        let port = qp.path().unwrap().door();
        assert_eq!(port == 4791, role == "wire");
        let data = pattern(1 << 20, 1);
        end.fill(0, &data);
        qp.post_send(&[
            wr(1, SendOp::Write(remote), &[end.sge(0, 1 << 20)]),
            wr(2, SendOp::Read(remote), &[end.sge(2 << 20, 1 << 20)]),
            wr(3, SendOp::Send, &[end.sge(0, 4096)]),
        ])
        .unwrap();
        let wcs = end.wait(3);
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?} {:?}", qp.explain());
        assert_eq!(end.bytes(2 << 20, 1 << 20), data);
    }
}

#[test]
fn a_killed_peer_is_retry_exceeded_with_an_explanation_that_names_it() {
    let mut other = Other::start("victim");
    let mut config = test_config();
    // The end of a local peer is noticed at once.
    config.set("same_host", "off").unwrap();
    // So is that of another process of this host, a little later.
    config.set("live_peer_timeout_s", "0").unwrap();
    let end = End::with(config);
    let qp = end.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(10), retry_cnt: 2, ..Setup::default() };
    let remote = connect_to(&mut other, &end, &qp, setup);
    qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 100)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    qp.post_send(&[wr(2, SendOp::Write(remote), &[end.sge(0, 100)])]).unwrap();
    let wc = end.wait(1)[0];
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RetryExceeded));
    let words = qp.explain().unwrap().to_string();
    for part in ["127.0.0.1", "no answer after", "answered earlier", "work request 2"] {
        assert!(words.contains(part), "{part:?} is not in {words:?}");
    }
}

/// A queue pair that is connected to another process by the wire, though both could share memory,
/// with a receive posted.
fn idle_by_the_wire(role: &str, setting: &str, value: &str) -> (Other, End, Arc<Qp>) {
    let mut other = Other::start(role);
    let mut config = test_config();
    config.set(setting, value).unwrap();
    let end = End::with(config);
    let qp = end.qp(Service::Rc);
    connect_to(&mut other, &end, &qp, Setup::default());
    qp.post_recv(&[RecvWr { wr_id: 7, sges: &[end.sge(0, 8)] }]).unwrap();
    (other, end, qp)
}

#[test]
fn a_killed_peer_of_an_idle_queue_pair_is_told_by_the_wire_too() {
    for (setting, value) in [("same_host", "off"), ("force_wire", "on")] {
        let (mut other, end, qp) = idle_by_the_wire("victim", setting, value);
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        let flushed = end.wait(1)[0];
        assert_eq!((flushed.wr_id, flushed.status), (7, WcStatus::Flushed));
        let event = end.context.wait_async_event().unwrap();
        assert_eq!((event.kind, event.element), (EventKind::QpFatal, Element::Qp(qp.qpn())));
        assert_eq!(qp.explain().unwrap().failure.cause, Cause::PeerGone);
    }
}

#[test]
fn a_peer_that_ends_in_order_leaves_an_idle_queue_pair_alone_by_the_wire_too() {
    let (mut ordered, end, qp) = idle_by_the_wire("wire", "force_wire", "on");
    let (mut killed, witness, _connected) = idle_by_the_wire("wire", "force_wire", "on");
    // It drops its device, and ends.
    ordered.tell("done");
    ordered.child.wait().unwrap();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // What is noticed of the one would have been noticed of the other.
    assert_eq!(witness.wait(1)[0].status, WcStatus::Flushed);
    end.context.progress();
    assert_eq!((qp.state(), end.context.try_async_event()), (QpState::Rts, None));
    assert_eq!(end.cq.poll(&mut [EMPTY_WC; 4]).unwrap(), 0);
}

#[test]
fn a_stopped_peer_is_waited_for_by_the_wire_too() {
    if runs_alone("a_stopped_peer_is_waited_for_by_the_wire_too") {
        return;
    }
    for (setting, value) in [("same_host", "off"), ("force_wire", "on")] {
        let mut other = Other::start("victim");
        let mut config = test_config();
        config.set(setting, value).unwrap();
        let end = End::with(config);
        let qp = end.qp(Service::Rc);
        // Over after 0.1 s without an answer.
        let setup = Setup { timeout: AckTimeout::new(12), retry_cnt: 5, ..Setup::default() };
        let remote = connect_to(&mut other, &end, &qp, setup);
        stop_and_go_on(&mut other, &end, &qp, remote);
    }
}

#[test]
fn a_stopped_peer_is_given_up_once_patience_ends_and_the_explanation_names_it() {
    let name = "a_stopped_peer_is_given_up_once_patience_ends_and_the_explanation_names_it";
    if runs_alone(name) {
        return;
    }
    let mut other = Other::start("victim");
    let mut config = test_config();
    config.set("live_peer_timeout_s", "1").unwrap();
    config.set("same_host", "off").unwrap();
    let end = End::with(config);
    let qp = end.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(8), retry_cnt: 2, ..Setup::default() };
    let remote = connect_to(&mut other, &end, &qp, setup);
    other.stop();
    let start = Instant::now();
    qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);
    assert!(start.elapsed() >= Duration::from_secs(1));
    let words = qp.explain().unwrap().to_string();
    let pid = other.child.id();
    let stopped = format!("its process {pid} is stopped (kill -CONT {pid})");
    for part in ["no answer after", &stopped, "live_peer_timeout_s", "ack_timeout_floor_us"] {
        assert!(words.contains(part), "{part:?} is not in {words:?}");
    }
    other.signal(libc::SIGCONT);
}

#[test]
fn a_queue_pair_that_is_gone_is_given_up_though_its_process_is_there() {
    let mut other = Other::start("victim");
    let mut config = test_config();
    config.set("live_peer_timeout_s", "3600").unwrap();
    let end = End::with(config.clone());
    let qp = end.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(8), retry_cnt: 2, ..Setup::default() };
    let (peer, remote) = understand(&other.hear());
    other.tell(&describe(&end, &qp));
    assert_eq!(other.hear(), "connected");
    // The process has no such queue pair.
    connect(&end, &qp, end.gid().1, Qpn::new(peer.value() ^ 0x1000), setup);
    qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);

    let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
    let t = Pair::with(Service::Rc, setup, config.clone(), config);
    t.a_qp.post_send(&[wr(1, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    t.b_qp.modify(&error, AttrMask::STATE).unwrap();
    t.a_qp.post_send(&[wr(2, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(t.a.wait(1)[0].status, WcStatus::RetryExceeded);
}

#[test]
fn a_peer_that_never_was_is_explained_differently() {
    let end = End::new();
    let qp = end.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(8), retry_cnt: 1, ..Setup::default() };
    connect(&end, &qp, end.gid().1, Qpn::new(0x3F_0001), setup);
    qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);
    let words = qp.explain().unwrap().to_string();
    assert!(words.contains("never answered") && words.contains("0x3f0001"), "{words}");
}

/// Runs `ip` in the namespace of this process.
fn ip(args: &str) {
    let status = Command::new("ip").args(args.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// What the other process does in a network namespace of its own, where `lo` may be played with.
fn in_a_namespace() {
    let open = || Context::open(Some("lo"), test_config());
    let holder = std::net::UdpSocket::bind("127.0.0.1:4791").unwrap();
    let words = open().unwrap_err().to_string();
    assert!(words.contains("4791") && words.contains("127.0.0.1"), "{words}");
    drop(holder);

    let context = open().unwrap();
    assert_eq!(context.port_attr(PortNum(1)).unwrap().active_mtu, Mtu::B4096);
    let changed = AsyncEvent { kind: EventKind::GidChange, element: Element::Port(PortNum(1)) };
    let gid = Gid::from_ip("10.77.0.1".parse().unwrap());
    ip("address add 10.77.0.1/32 dev lo");
    assert_eq!(context.wait_async_event().unwrap(), changed);
    let index = context.gid_row(gid).unwrap().index;
    assert!(index > 0);
    ip("address del 10.77.0.1/32 dev lo");
    assert_eq!(context.wait_async_event().unwrap(), changed);
    assert_eq!(context.gid_entry(PortNum(1), index), None);

    ip("link set lo mtu 1500");
    let start = Instant::now();
    while context.port_attr(PortNum(1)).unwrap().active_mtu != Mtu::B1024 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let mut config = test_config();
    config.set("mtu", "4096").unwrap();
    let words = Context::open(Some("lo"), config).unwrap_err().to_string();
    assert!(words.contains("4096") && words.contains("1500") && words.contains("1024"), "{words}");
    ip("link set lo mtu 300");
    let words = open().unwrap_err().to_string();
    assert!(words.contains("300") && words.contains("336"), "{words}");
    ip("link set lo mtu 65536");
    multicast_over_ipv6_needs_a_route_that_lo_has_not_by_itself();
    a_link_that_goes_down_is_named();
    println!("> done");
}

fn multicast_over_ipv6_needs_a_route_that_lo_has_not_by_itself() {
    let end = End::new();
    let home = Gid::from_ip("::1".parse().unwrap());
    let Some(sgid_index) = end.context.gid_row(home).map(|row| row.index) else { return };
    let dgid = Gid::from_ip("ff15::77".parse().unwrap());
    let qp = end.qp(Service::Ud);
    bring_up_ud(&qp, Qkey(1));
    let error = qp.attach_mcast(dgid).unwrap_err();
    assert!(matches!(error, McastError::Link(LinkError::NoRoute { .. })), "{error}");
    let remedy = "-6 route add local ff00::/8 dev lo";
    assert!(error.to_string().contains(remedy), "{error}");
    let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
    let ah = end.pd.create_ah(av).unwrap();
    let dest = Some(Dest { ah: &ah, qpn: Qpn::MULTICAST, qkey: Qkey(1) });
    let send = |wr_id| {
        let sges = [end.sge(0, 8)];
        qp.post_send(&[SendWr { dest, ..wr(wr_id, SendOp::Send, &sges) }]).unwrap();
    };
    send(1);
    assert_eq!(end.wait(1)[0].status, WcStatus::Success, "nobody promised that it arrives");
    assert_eq!(end.context.counters().link.tx_errors, 1);
    ip(remedy);
    qp.attach_mcast(dgid).unwrap();
    qp.post_recv(&[RecvWr { wr_id: 2, sges: &[end.sge(64, 48)] }]).unwrap();
    send(3);
    let mut ids = end.wait(2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
    qp.detach_mcast(dgid).unwrap();
}

fn a_link_that_goes_down_is_named() {
    let end = End::new();
    let qp = end.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(8), retry_cnt: 1, ..Setup::default() };
    connect(&end, &qp, end.gid().1, Qpn::new(0x3F_0001), setup);
    ip("link set lo down");
    let start = Instant::now();
    while end.context.port_attr(PortNum(1)).unwrap().state != PortState::Down {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);
    let words = qp.explain().unwrap().to_string();
    assert!(words.contains("lo is down"), "{words}");
}

#[test]
fn what_a_network_namespace_lacks_gets_or_loses_is_noticed() {
    let Some(mut other) = Other::in_a_namespace("namespace") else { return };
    assert_eq!(other.hear(), "done");
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux counts them in 1/100 s whatever the kernel's own tick is.
    Duration::from_millis(ticks * 10)
}

#[test]
#[ignore = "measures CPU time of the whole process: run alone"]
fn an_idle_device_with_open_queue_pairs_takes_no_cpu_time() {
    let t = Pair::new(Service::Rc);
    t.a_qp.post_send(&[wr(1, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 64)])]).unwrap();
    t.a.wait(1);
    std::thread::sleep(Duration::from_millis(100));
    let (cpu, wall) = (cpu_time(), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let used = cpu_time() - cpu;
    assert!(used.as_secs_f64() < 0.005 * wall.elapsed().as_secs_f64(), "{used:?}");
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[ignore = "measures memory of the whole process: run alone"]
fn ten_thousand_connected_queue_pairs_take_little_memory_and_time() {
    const COUNT: usize = 10_000;
    let end = End::new();
    let cap =
        QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    drop(end.qp_with(Service::Rc, cap, None));
    let (before, start) = (resident(), Instant::now());
    let qps: Vec<_> = (0..COUNT).map(|_| end.qp_with(Service::Rc, cap, None)).collect();
    for qp in &qps {
        connect(&end, qp, end.gid().1, qp.qpn(), Setup::default());
    }
    let (taken, each) = (start.elapsed(), (resident() - before) / COUNT as u64);
    println!("{COUNT} queue pairs: {taken:?}, {each} bytes each");
    assert!(each <= 4096, "{each} bytes each");
    assert!(taken < Duration::from_secs(2), "{taken:?}");
    assert_eq!(end.context.open_qps(), COUNT);
    let first = qps[0].qpn();
    drop(qps);
    assert_eq!(end.context.open_qps(), 0);
    assert_ne!(end.qp(Service::Rc).qpn(), first, "numbers are not used again soon");
}
