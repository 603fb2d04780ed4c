//! Processes of one host that share memory for packets: what becomes of a peer that ends, stops,
//! does not read, or is of another PID namespace.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::near::*;
use common::other::{Other, ROLE, runs_alone, take_descriptors};
use common::stopped::stop_and_go_on;
use common::*;
use vernic_engine::*;

/// Settings with which no peer is given up because the machine is busy.
const PATIENT: Setup = Setup {
    mtu: Mtu::B4096,
    timeout: AckTimeout::new(18),
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: RnrTimer::new(12),
    access: 0xF,
    service_level: 0,
    port: PortNum(1),
};

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut lines = std::io::stdin().lines();
    let say = |text: &str| {
        println!("> {text}");
        std::io::stdout().flush().unwrap();
    };
    if role == "sandbox" {
        // As in many of them.
        forbid(libc::SYS_memfd_create, libc::EPERM);
    }
    let mut config = near_config();
    config.set("direct", if role == "direct" { "on" } else { "off" }).unwrap();
    let end = End::with(config);
    let service = match role.as_str() {
        "datagrams" => Service::Ud,
        "unreliable" => Service::Uc,
        _ => Service::Rc,
    };
    let qp = end.qp(service);
    say(&describe(&end, &qp));
    let mut taken = if role == "short" { take_descriptors() } else { Vec::new() };
    let (peer, remote) = understand(&lines.next().unwrap().unwrap());
    match service {
        Service::Ud => bring_up_ud(&qp, QKEY),
        _ => connect(&end, &qp, end.gid().1, peer, PATIENT),
    }
    say("connected");
    let mut qps = vec![qp];
    // Whatever else happens here is the background thread's work.
    loop {
        let line = lines.next().unwrap().unwrap();
        match line.as_str() {
            "close" => {
                drop(std::mem::take(&mut qps));
                end.context.close();
                say("closed");
            }
            "free" => {
                taken.clear();
                say(&end.context.counters().neighbours.short.to_string());
            }
            "one more" => {
                let qp = end.qp(service);
                say(&describe(&end, &qp));
                let (peer, _) = understand(&lines.next().unwrap().unwrap());
                connect(&end, &qp, end.gid().1, peer, PATIENT);
                say("connected");
                qps.push(qp);
            }
            "receive" => {
                qps[0].post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(0, 8)] }]).unwrap();
                say("ready");
                assert_eq!(end.wait(1)[0].status, WcStatus::Success);
                end_at_once();
            }
            "why" => say(&qps[0].route().to_string()),
            "write" => {
                let qp = &qps[0];
                write_until_shared(&end, qp, remote);
                let direct = end.context.counters().direct.writes;
                say(&format!("{direct} directly, {}", qp.route()));
            }
            _ => return,
        }
    }
}

/// Ends the process as some programs do: no destructor runs, and no function of `atexit`.
#[allow(unsafe_code)]
fn end_at_once() -> ! {
    // SAFETY: takes no pointers, and does not return.
    unsafe { libc::_exit(0) }
}

/// From now on a system call of this thread, and of those that it starts, fails.
#[allow(unsafe_code)]
fn forbid(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, same, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    // The number of the call is the first word of what a filter sees.
    let mut steps = [
        step(load, 0, 0, 0),
        step(same, 0, 1, call as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the pointers are to `program` and `steps`, which live through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// Writes until that goes through memory, and some times more.
fn write_until_shared(end: &End, qp: &Qp, remote: Remote) {
    let (start, mut left) = (Instant::now(), 100);
    while left != 0 {
        left -= i32::from(SHARED(qp));
        qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
        assert!(start.elapsed() < PATIENCE, "{}", qp.route());
    }
}

/// A queue pair connected to another process through memory.
fn to_other_process(setup: Setup) -> (Other, End, Arc<Qp>, Remote) {
    to_other_process_with(setup, near_config())
}

/// Returns a queue pair connected to another process through memory, with these settings.
fn to_other_process_with(setup: Setup, config: Config) -> (Other, End, Arc<Qp>, Remote) {
    let mut other = Other::start("rc");
    let end = End::with(config);
    let (qp, remote) = connect_to(&mut other, &end, setup);
    assert_eq!(qp.route(), Route::SharedMemory { pid: other.child.id(), yama: None });
    (other, end, qp, remote)
}

/// The queue pair that the other process describes next, connected through memory.
fn connect_to(other: &mut Other, end: &End, setup: Setup) -> (Arc<Qp>, Remote) {
    let qp = end.qp(Service::Rc);
    let (peer, remote) = understand(&other.hear());
    other.tell(&describe(end, &qp));
    assert_eq!(other.hear(), "connected");
    connect(end, &qp, end.gid().1, peer, setup);
    write_until_shared(end, &qp, remote);
    (qp, remote)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < PATIENCE, "{what}");
    }
}

#[test]
fn a_killed_peer_fails_what_was_on_its_way_at_once() {
    if runs_alone("a_killed_peer_fails_what_was_on_its_way_at_once") {
        return;
    }
    // Without the hang-up it would take minutes: the timeout is 4.3 s, seven times.
    let setup = Setup { timeout: AckTimeout::new(20), ..Setup::default() };
    let (other, end, qp, remote) = to_other_process(setup);
    other.stop();
    for wr_id in 10..14 {
        qp.post_send(&[wr(wr_id, SendOp::Write(remote), &[end.sge(0, 1 << 20)])]).unwrap();
    }
    qp.post_recv(&[RecvWr { wr_id: 20, sges: &[end.sge(0, 8)] }]).unwrap();
    other.signal(libc::SIGKILL);
    let done = end.wait(5);
    let mut done: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_by_key(|(wr_id, _)| *wr_id);
    let mut expected = [10, 11, 12, 13, 20].map(|id| (id, WcStatus::Flushed));
    expected[0].1 = WcStatus::RetryExceeded;
    assert_eq!(done, expected);
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(qp.explain().unwrap().failure.cause, Cause::PeerGone);
    assert_eq!(end.context.counters().neighbours.gone, 1);
}

/// The ACK is delayed, and the peer has ended before it left.
#[test]
fn a_message_that_was_received_succeeds_although_the_peer_ends_at_once() {
    for _ in 0..8 {
        let (mut other, end, qp, _) = to_other_process(PATIENT);
        other.tell("receive");
        assert_eq!(other.hear(), "ready");
        qp.post_send(&[wr(7, SendOp::Send, &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success, "{:?}", qp.explain());
        until("the end", || qp.state() == QpState::Error);
        assert_eq!(qp.explain().unwrap().failure.cause, Cause::PeerGone);
        // What the peer did not receive fails.
        qp.post_send(&[wr(8, SendOp::Send, &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Flushed);
    }
}

#[test]
fn a_killed_peer_of_an_idle_queue_pair_is_told_by_an_event() {
    let (other, end, qp, _) = to_other_process(PATIENT);
    qp.post_recv(&[RecvWr { wr_id: 20, sges: &[end.sge(0, 8)] }]).unwrap();
    other.signal(libc::SIGKILL);
    let flushed = end.wait(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (20, WcStatus::Flushed));
    let event = end.context.wait_async_event().unwrap();
    assert_eq!((event.kind, event.element), (EventKind::QpFatal, Element::Qp(qp.qpn())));
}

#[test]
fn a_killed_peer_of_a_queue_pair_that_never_used_the_memory_is_told_by_an_event() {
    for meets in [false, true] {
        let mut other = Other::start("rc");
        let end = End::with(near_config());
        let qp = end.qp(Service::Rc);
        let (peer, _) = understand(&other.hear());
        other.tell(&describe(&end, &qp));
        assert_eq!(other.hear(), "connected");
        connect(&end, &qp, end.gid().1, peer, PATIENT);
        if meets {
            until("they do not meet", || qp.route() != Route::Wire(WhyWire::NotMet));
        }
        qp.post_recv(&[RecvWr { wr_id: 20, sges: &[end.sge(0, 8)] }]).unwrap();
        other.signal(libc::SIGKILL);
        let flushed = end.wait(1)[0];
        assert_eq!((flushed.wr_id, flushed.status), (20, WcStatus::Flushed));
        let event = end.context.wait_async_event().unwrap();
        assert_eq!((event.kind, event.element), (EventKind::QpFatal, Element::Qp(qp.qpn())));
        assert_eq!(qp.explain().unwrap().failure.cause, Cause::PeerGone);
    }
}

#[test]
fn a_peer_that_is_killed_while_it_is_written_to_leaves_every_other_connection_alone() {
    let beside = near_pair(Service::Rc);
    warm_up(&beside);
    for _ in 0..5 {
        let (other, end, qp, remote) = to_other_process(PATIENT);
        for wr_id in 0..64 {
            let big = [end.sge(0, 1 << 20)];
            qp.post_send(&[wr(wr_id, SendOp::Write(remote), &big)]).unwrap();
        }
        // One more is on its way whenever the end comes.
        other.signal(libc::SIGKILL);
        let (mut wr_id, mut failed) = (64, false);
        while !failed {
            failed = end.wait(1).iter().any(|wc| wc.status == WcStatus::RetryExceeded);
            let _ = qp.post_send(&[wr(wr_id, SendOp::Write(remote), &[end.sge(0, 1 << 20)])]);
            wr_id += 1;
        }
        send(&beside, 8);
    }
    assert!(SHARED(&beside.a_qp));
}

#[test]
fn a_peer_that_closes_in_order_is_no_failure_until_something_is_sent_to_it() {
    let setup = Setup { timeout: AckTimeout::new(15), retry_cnt: 2, ..Setup::default() };
    let (mut other, end, qp, remote) = to_other_process(setup);
    other.tell("close");
    assert_eq!(other.hear(), "closed");
    until("it is not noticed", || qp.route() == Route::Wire(WhyWire::Gone));
    assert_eq!(qp.state(), QpState::Rts);
    assert_eq!(end.context.try_async_event().map(|event| event.kind), None);
    qp.post_send(&[wr(5, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);
    let (pid, why) = (other.child.id(), qp.explain().unwrap().to_string());
    let known = format!("and its process {pid} of this host closed its device, as a program does");
    assert!(why.contains(&known) && !why.contains("may have died"), "{why}");
}

#[test]
fn a_stopped_peer_is_given_up_by_the_retries_of_rc_where_no_patience_is_asked_for() {
    if runs_alone("a_stopped_peer_is_given_up_by_the_retries_of_rc_where_no_patience_is_asked_for")
    {
        return;
    }
    let setup = Setup { timeout: AckTimeout::new(15), retry_cnt: 2, ..Setup::default() };
    let mut config = near_config();
    config.set("live_peer_timeout_s", "0").unwrap();
    let (mut other, end, qp, remote) = to_other_process_with(setup, config);
    other.tell("one more");
    let (idle, _) = connect_to(&mut other, &end, setup);
    other.stop();
    // More than the ring holds.
    for wr_id in 0..4 {
        qp.post_send(&[wr(wr_id, SendOp::Write(remote), &[end.sge(0, 1 << 20)])]).unwrap();
    }
    let done = end.wait(4);
    assert_eq!(done[0].status, WcStatus::RetryExceeded);
    assert!(matches!(qp.explain().unwrap().failure.cause, Cause::AckTimeout { .. }));
    // One that has nothing in flight finds no room for its first packet.
    let before = end.context.counters();
    idle.post_send(&[wr(9, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::RetryExceeded);
    assert!(matches!(idle.explain().unwrap().failure.cause, Cause::AckTimeout { .. }));
    let after = end.context.counters();
    assert!(after.near_lost > before.near_lost);
    assert_eq!(after.near_tx_packets, before.near_tx_packets);
    other.signal(libc::SIGCONT);
}

#[test]
fn a_stopped_peer_is_waited_for_and_has_every_byte_when_it_goes_on() {
    let name = "a_stopped_peer_is_waited_for_and_has_every_byte_when_it_goes_on";
    if runs_alone(name) {
        return;
    }
    // Over after 0.1 s without an answer.
    let setup = Setup { timeout: AckTimeout::new(12), retry_cnt: 5, ..Setup::default() };
    let mut config = near_config();
    config.set("ack_timeout_floor_us", "0").unwrap();
    let (mut other, end, qp, remote) = to_other_process_with(setup, config);
    stop_and_go_on(&mut other, &end, &qp, remote);
    assert!(SHARED(&qp));
}

#[test]
fn a_stopped_peer_of_a_queue_pair_without_timeout_is_waited_for() {
    if runs_alone("a_stopped_peer_of_a_queue_pair_without_timeout_is_waited_for") {
        return;
    }
    let setup = Setup { timeout: AckTimeout::INFINITE, ..Setup::default() };
    let (other, end, qp, remote) = to_other_process(setup);
    other.stop();
    let bytes = pattern(1 << 20, 5);
    end.fill(0, &bytes);
    for wr_id in 0..4 {
        qp.post_send(&[wr(wr_id, SendOp::Write(remote), &[end.sge(0, 1 << 20)])]).unwrap();
    }
    // Longer than anybody else is waited for.
    let start = Instant::now();
    until("it is not looked at", || start.elapsed() > Duration::from_millis(300));
    other.signal(libc::SIGCONT);
    assert!(end.wait(4).iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(end.context.counters().near_lost, 0);
}

#[test]
fn a_peer_that_sleeps_and_could_not_be_woken_is_woken_soon() {
    let setup = Setup { timeout: AckTimeout::INFINITE, ..PATIENT };
    let (_other, end, qp, remote) = to_other_process(setup);
    for _ in 0..20 {
        // So that it sleeps.
        std::thread::sleep(Duration::from_millis(5));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The system has no memory for messages, as far as this thread can see.
                forbid(libc::SYS_sendto, libc::ENOBUFS);
                let sges = [end.sge(0, 8)];
                qp.post_send(&[wr(1, SendOp::Write(remote), &sges)]).unwrap();
            });
        });
        // Nothing is repeated: who is not woken never answers.
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn a_peer_without_descriptors_is_reached_by_the_wire_until_it_has_some() {
    if runs_alone("a_peer_without_descriptors_is_reached_by_the_wire_until_it_has_some") {
        return;
    }
    let mut other = Other::start("short");
    let end = End::with(near_config());
    let qp = end.qp(Service::Rc);
    let (peer, remote) = understand(&other.hear());
    other.tell(&describe(&end, &qp));
    assert_eq!(other.hear(), "connected");
    connect(&end, &qp, end.gid().1, peer, PATIENT);
    let write = || {
        qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    };
    until("it is not said what is in the way", || {
        write();
        qp.route() == Route::Wire(WhyWire::Hindered(ConnectFailure::Silent))
    });
    other.tell("free");
    assert_ne!(other.hear(), "0");
    until("it is not tried again", || {
        write();
        SHARED(&qp)
    });
}

#[test]
fn a_peer_that_may_not_share_memory_is_reached_by_the_wire_and_both_say_so() {
    let mut other = Other::start("sandbox");
    let end = End::with(near_config());
    let qp = end.qp(Service::Rc);
    let (peer, remote) = understand(&other.hear());
    other.tell(&describe(&end, &qp));
    assert_eq!(other.hear(), "connected");
    connect(&end, &qp, end.gid().1, peer, PATIENT);
    until("it is not said what is in the way", || {
        qp.post_send(&[wr(1, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
        qp.route() == Route::Wire(WhyWire::Hindered(ConnectFailure::NoListener))
    });
    other.tell("why");
    assert_eq!(other.hear(), Route::Wire(WhyWire::NoMemory).to_string());
    assert_eq!(end.context.counters().near_tx_packets, 0);
}

/// Sends to a process that is stopped keep nobody waiting who sends to others.
fn a_full_ring_keeps_others_alone(role: &str, flood: impl Fn(&End, &Qp, Qpn, Remote)) {
    let (_live, end, qp, remote) = to_other_process(PATIENT);
    let mut stopped = Other::start(role);
    let service = if role == "datagrams" { Service::Ud } else { Service::Uc };
    let full = end.qp(service);
    let (peer, theirs) = understand(&stopped.hear());
    stopped.tell(&describe(&end, &full));
    assert_eq!(stopped.hear(), "connected");
    match service {
        Service::Ud => bring_up_ud(&full, QKEY),
        _ => connect(&end, &full, end.gid().1, peer, PATIENT),
    }
    until("they do not meet", || {
        let before = end.context.counters().near_tx_packets;
        flood(&end, &full, peer, theirs);
        end.wait(1);
        end.context.counters().near_tx_packets > before
    });
    let counters = || end.context.counters();
    // Packets wait for 100 ms before they are lost, in which others go on. On a busy machine that
    // time may pass by itself.
    let is_alone = |_| {
        stopped.stop();
        let before = counters();
        until("it is never full", || {
            flood(&end, &full, peer, theirs);
            counters().near_full_turns > before.near_full_turns
        });
        qp.post_send(&[wr(2, SendOp::Write(remote), &[end.sge(0, 8)])]).unwrap();
        while !end.wait(1).iter().any(|wc| wc.wr_id == 2) {}
        let after = counters();
        // What cannot be sent is lost in the end, and nothing hangs.
        until("it waits for ever", || {
            let _ = end.cq.poll(&mut [EMPTY_WC; 16]).unwrap();
            counters().near_lost > before.near_lost
        });
        stopped.signal(libc::SIGCONT);
        until("it never reads again", || {
            let lost = counters().near_lost;
            flood(&end, &full, peer, theirs);
            while !end.wait(1).iter().any(|wc| wc.wr_id == 9) {}
            counters().near_lost == lost
        });
        after.near_lost == before.near_lost
    };
    assert!((0..20).any(is_alone), "others wait behind it");
}

#[test]
fn datagrams_to_a_stopped_process_keep_no_other_process_waiting() {
    if runs_alone("datagrams_to_a_stopped_process_keep_no_other_process_waiting") {
        return;
    }
    a_full_ring_keeps_others_alone("datagrams", |end, qp, peer, _| {
        let (sgid_index, dgid) = end.gid();
        let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
        post_datagram(end, qp, &end.pd.create_ah(av).unwrap(), peer, 4096);
    });
}

#[test]
fn unreliable_writes_to_a_stopped_process_keep_no_other_process_waiting() {
    if runs_alone("unreliable_writes_to_a_stopped_process_keep_no_other_process_waiting") {
        return;
    }
    a_full_ring_keeps_others_alone("unreliable", |end, qp, _, remote| {
        qp.post_send(&[wr(9, SendOp::Write(remote), &[end.sge(0, 4096)])]).unwrap();
    });
}

#[test]
fn processes_of_another_pid_namespace_share_rings_and_no_memory() {
    if runs_alone("processes_of_another_pid_namespace_share_rings_and_no_memory") {
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut other = Other::run(&mut unshare, "direct");
    let mut config = near_config();
    config.set("direct", "on").unwrap();
    let end = End::with(config);
    let (qp, _) = connect_to(&mut other, &end, PATIENT);
    other.tell("write");
    // It cannot see who we are; we see it.
    assert_eq!(other.hear(), "0 directly, memory shared with a process of another PID namespace");
    assert!(matches!(qp.route(), Route::SharedMemory { pid, .. } if pid != 0));
    assert_eq!(end.context.counters().direct.writes, 0);
}

#[test]
fn datagrams_to_a_stopped_process_are_lost_and_counted_and_never_hang() {
    if runs_alone("datagrams_to_a_stopped_process_are_lost_and_counted_and_never_hang") {
        return;
    }
    let mut other = Other::start("datagrams");
    let end = End::with(near_config());
    let qp = end.qp(Service::Ud);
    bring_up_ud(&qp, QKEY);
    let (peer, _) = understand(&other.hear());
    other.tell(&describe(&end, &qp));
    assert_eq!(other.hear(), "connected");
    let av = AddressVector {
        dgid: end.gid().1,
        sgid_index: end.gid().0,
        port: PortNum(1),
        ..AddressVector::default()
    };
    let ah = end.pd.create_ah(av).unwrap();
    until("they do not meet", || {
        post_datagram(&end, &qp, &ah, peer, 4096);
        end.wait(1);
        end.context.counters().near_tx_packets > 0
    });
    other.stop();
    for _ in 0..100 {
        post_datagram(&end, &qp, &ah, peer, 4096);
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    }
    let counters = end.context.counters();
    assert!(counters.near_lost > 0 && counters.near_full_turns > 0, "{counters}");
    other.signal(libc::SIGCONT);
    // Once there is room nothing is lost any more.
    until("it never reads again", || {
        let lost = end.context.counters().near_lost;
        post_datagram(&end, &qp, &ah, peer, 4096);
        end.wait(1);
        end.context.counters().near_lost == lost
    });
}
