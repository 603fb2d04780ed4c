//! One-sided requests without packets, to and from processes that take their memory back, stop,
//! end, or may not be reached: that all of them are safe, and that whatever is not possible takes
//! packets.

#![allow(clippy::print_stdout, unsafe_code)] // what is skipped; system calls that have no safe form

mod common;

use std::time::{Duration, Instant};

use common::direct::*;
use common::other::runs_alone;
use common::*;
use vernic_engine::*;

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    serve();
}

#[test]
fn who_takes_memory_back_has_it_for_himself() {
    for memory in ["mapped", "private", "moved"] {
        for (how, expected) in [
            ("dereg", &[WcStatus::RemoteAccess][..]),
            ("reset", &[WcStatus::RetryExceeded, WcStatus::Flushed][..]),
        ] {
            let mut t = Rig::new(memory);
            t.until_direct();
            let sges = [t.end.sge(0, 1 << 20)];
            for _ in 0..20 {
                assert_eq!(t.run(SendOp::Write(t.remote), &sges), WcStatus::Success);
            }
            t.other.tell(how);
            let status = loop {
                let status = t.run(SendOp::Write(t.remote), &sges);
                if status != WcStatus::Success {
                    break status;
                }
            };
            assert!(expected.contains(&status), "{memory} {how}: {status:?}");
            assert_eq!(t.other.hear(), "quiet true soon true", "{memory} {how}");
        }
    }
}

#[test]
fn a_target_that_is_killed_fails_its_initiator_and_hangs_nobody() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let sges = [t.end.sge(0, 1 << 20)];
        for _ in 0..20 {
            assert_eq!(t.run(SendOp::Write(t.remote), &sges), WcStatus::Success);
        }
        t.other.kill();
        let ended = hammer(&t.end, &t.qp, t.remote);
        assert!(matches!(&*ended, "RetryExceeded" | "Flushed"), "{memory}: {ended}");
        assert_eq!(t.qp.state(), QpState::Error);
        assert_eq!(t.qp.explain().unwrap().failure.cause, Cause::PeerGone);
        // A request that was under way fails by name; where none was, an event tells.
        if ended == "Flushed" {
            let event = t.end.context.wait_async_event().unwrap();
            let told = (event.kind, event.element);
            assert_eq!(told, (EventKind::QpFatal, Element::Qp(t.qp.qpn())), "{memory}");
        }
    }
}

#[test]
fn an_initiator_that_is_killed_inside_keeps_no_memory() {
    for _ in 0..5 {
        let mut t = Rig::new("mapped");
        let at = format!("hammer {} {}", t.end.mr.iova(), t.end.mr.rkey().value());
        assert_eq!(t.other.ask(&at), "hammering");
        let since = Instant::now();
        // The last byte of what is written is 0; until it is, nothing was.
        t.end.fill((1 << 20) - 1, &[1]);
        while t.end.bytes((1 << 20) - 1, 1) == [1] {
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        t.other.kill();
        let since = Instant::now();
        t.end.mr.deregister().unwrap();
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        t.end.fill(0, &vec![0xA5; 1 << 20]);
        std::thread::sleep(Duration::from_millis(20));
        assert!(t.end.bytes(0, 1 << 20).iter().all(|&byte| byte == 0xA5));
    }
}

#[test]
fn a_grantee_that_is_stopped_inside_is_cut_off_and_writes_no_more_than_a_piece_when_it_goes_on() {
    let name = "a_visitor_that_is_stopped_inside_is_cut_off_and_writes_no_more_than_a_piece_when_it_goes_on";
    if runs_alone(name) {
        return;
    }
    // What it copies between two checks of its revocation words.
    const PIECE: usize = 16 << 10;
    for _ in 0..50 {
        let mut t = Rig::new("mapped");
        let at = format!("hammer {} {}", t.end.mr.iova(), t.end.mr.rkey().value());
        assert_eq!(t.other.ask(&at), "hammering");
        let since = Instant::now();
        while t.counters().granted == 0 {
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
            let _ = t.end.cq.poll(&mut [EMPTY_WC; 1]);
        }
        t.end.fill((1 << 20) - 1, &[1]);
        while t.end.bytes((1 << 20) - 1, 1) == [1] {
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        t.other.stop();
        t.end.mr.deregister().unwrap();
        if t.counters().cut_off == 0 {
            // It was stopped between two visits.
            continue;
        }
        t.end.fill(0, &vec![0xA5; 1 << 20]);
        t.other.signal(libc::SIGCONT);
        // The key is dead, which packets tell, unless this process is too busy to answer.
        let ended = t.other.hear();
        assert!(matches!(&*ended, "RemoteAccess" | "RetryExceeded"), "{ended}");
        let changed = t.end.bytes(0, 1 << 20).iter().filter(|&&byte| byte != 0xA5).count();
        assert!(changed <= PIECE, "{changed} bytes");
        assert_eq!(t.counters().cut_off, 1);
        return;
    }
    panic!("it was never stopped inside");
}

#[test]
fn a_silent_peer_is_asked_though_a_request_without_packets_waits_for_its_answer() {
    if runs_alone("a_silent_peer_is_asked_though_a_request_without_packets_waits_for_its_answer") {
        return;
    }
    let mut t = Rig::new("mapped");
    // Nothing is repeated in the next minute but what asks whether it has arrived.
    let (qp, patient) = (t.end.qp(Service::Rc), Setup { timeout: AckTimeout::new(24), ..setup() });
    let theirs = numbers(&t.other.ask(&format!("second {}", qp.qpn().value())))[0];
    connect(&t.end, &qp, t.end.gid().1, Qpn::new(theirs as u32), patient);
    let since = Instant::now();
    while t.counters().writes == 0 {
        qp.post_send(&[wr(1, SendOp::Write(t.remote), &[t.end.sge(0, 8)])]).unwrap();
        assert_eq!(t.end.wait(1)[0].status, WcStatus::Success);
        assert!(since.elapsed() < PATIENCE, "never direct: {}", t.end.context.counters());
    }
    t.other.stop();
    // One that takes a packet, and one that is worth the wait for its acknowledgement.
    qp.post_send(&[wr(1, SendOp::Write(t.remote), &[])]).unwrap();
    qp.post_send(&[wr(2, SendOp::Write(t.remote), &[t.end.sge(0, 64 << 10)])]).unwrap();
    let packets = || t.end.context.counters().near_tx_packets;
    let (before, since) = (packets(), Instant::now());
    while packets() < before + 2 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(since.elapsed() < PATIENCE, "it is not asked: {}", t.end.context.counters());
    }
    let direct = t.counters().writes;
    t.other.signal(libc::SIGCONT);
    assert!(t.end.wait(2).iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(t.counters().writes, direct + 1, "it took packets");
}

#[test]
fn a_peer_that_closes_in_the_middle_of_a_request_is_sent_the_rest_by_packets() {
    for memory in ["mapped", "private"] {
        let mut caught = 0;
        for _ in 0..50 {
            let mut t = Rig::new(memory);
            t.until_direct();
            let (start, sges) = (t.counters().bytes, [t.end.sge(0, BYTES as u32)]);
            let write = || t.run(SendOp::Write(t.remote), &sges);
            (0..5).for_each(|_| assert_eq!(write(), WcStatus::Success));
            t.other.tell("close");
            let write = || t.run(SendOp::Write(t.remote), &sges);
            let status = loop {
                let status = write();
                if status != WcStatus::Success {
                    break status;
                }
            };
            assert_eq!(status, WcStatus::RetryExceeded, "{memory}");
            assert_eq!((t.other.hear().as_str(), t.qp.state()), ("closed", QpState::Error));
            caught += u32::from(!(t.counters().bytes - start).is_multiple_of(BYTES as u64));
            if caught == 2 {
                break;
            }
        }
        assert!(caught != 0, "{memory}: it never closed in the middle of one");
    }
}

#[test]
fn a_target_that_did_not_know_its_peer_in_time_consents_all_the_same() {
    for _ in 0..5 {
        let mut t = Rig::new("hasty");
        t.until_direct();
        t.end.fill(0, &pattern(100_000, 4));
        assert_eq!(t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100_000)]), WcStatus::Success);
        assert_eq!(t.other.ask("sum 0 100000"), sum(&pattern(100_000, 4)).to_string());
    }
}

#[test]
fn an_initiator_without_descriptors_writes_without_packets_once_it_has_some() {
    let mut t = Rig::new("mapped");
    assert_eq!(t.other.ask("starve"), "starved");
    let write = format!("write {} {} 1000", t.end.mr.iova(), t.end.mr.rkey().value());
    let lost = numbers(&t.other.ask(&write));
    assert_eq!(lost[0], 0, "by packets");
    assert_ne!(lost[1], 0, "the file of the gates, and that of the memory");
    assert_eq!(t.other.ask("feed"), "fed");
    let since = Instant::now();
    while numbers(&t.other.ask(&write))[0] == 0 {
        assert!(since.elapsed() < PATIENCE, "{}", t.other.ask("counters"));
    }
}

#[test]
fn a_target_whose_settings_forbid_it_is_written_to_by_packets() {
    let mut t = Rig::new("unwilling");
    for _ in 0..200 {
        let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100)]);
        assert_eq!(status, WcStatus::Success);
    }
    let counters = t.counters();
    assert_eq!(counters.writes, 0);
    assert_eq!(t.other.ask("state"), "Rts");
    // It was asked, and is right to say nothing: no rule was broken.
    let there = t.other.ask("counters");
    assert!(!there.contains("direct_bad_messages"), "{there}");
}

#[test]
fn where_settings_forbid_it_everything_takes_packets() {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    config.set("direct", "off").unwrap();
    let t = Rig::with("mapped", config);
    for _ in 0..200 {
        let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100)]);
        assert_eq!(status, WcStatus::Success);
    }
    assert_eq!(t.counters(), DirectCounters::default());
}

/// Writes by packets alone because the kernel does not let this process do it otherwise, which is
/// found out once.
fn nothing_is_permitted(t: &mut Rig) {
    let since = Instant::now();
    let until_refused = |t: &Rig, remote: Remote, count: u64| {
        while t.counters().refused_not_permitted < count {
            let status = t.run(SendOp::Write(remote), &[t.end.sge(0, 100)]);
            assert_eq!(status, WcStatus::Success);
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
    };
    until_refused(t, t.remote, 1);
    t.end.fill(0, &pattern(100_000, 9));
    for _ in 0..20 {
        let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100_000)]);
        assert_eq!(status, WcStatus::Success);
    }
    assert_eq!(t.other.ask("sum 0 100000"), sum(&pattern(100_000, 9)).to_string());
    let counters = t.counters();
    assert_eq!((counters.writes, counters.refused_not_permitted), (0, 1));
    // Another key of that process is counted, too.
    let keys = numbers(&t.other.ask("more"));
    assert_eq!(keys[0], u64::from(t.remote.rkey.value()));
    let remote = Remote { rkey: Rkey(keys[1] as u32), ..t.remote };
    until_refused(t, remote, 2);
    for _ in 0..20 {
        assert_eq!(t.run(SendOp::Write(remote), &[t.end.sge(0, 100)]), WcStatus::Success);
    }
    assert_eq!((t.counters().writes, t.counters().refused_not_permitted), (0, 2));
}

#[test]
fn where_the_kernel_forbids_access_everything_takes_packets_and_is_counted() {
    // Rights are those of a thread.
    let unprivileged = std::thread::spawn(|| {
        give_up_privilege();
        let mut t = Rig::new("private");
        assert_eq!(t.other.ask("hide"), "hidden 0");
        nothing_is_permitted(&mut t);
    });
    unprivileged.join().unwrap();
}

#[test]
fn where_system_calls_are_filtered_everything_takes_packets_and_is_counted() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let filtered = std::thread::spawn(move || {
            filter_system_calls(libc::SYS_process_vm_writev, errno, false);
            nothing_is_permitted(&mut Rig::new("private"));
        });
        filtered.join().unwrap();
    }
}
