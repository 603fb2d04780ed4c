//! Processes that Yama keeps apart (`kernel.yama.ptrace_scope` is 1): what the setting `direct`
//! permits, to whom, and for how long.
//!
//! Where this system has that Yama, and this program no rights over others, it is the real one.
//! Elsewhere the other process finds the setting in a mount namespace of its own, and filters of
//! system calls stand for the kernel's refusals.

#![allow(clippy::print_stdout)] // how the processes talk, and what is skipped

mod common;

use std::process::Command;
use std::time::Instant;

use common::direct::*;
use common::other::{Other, runs_alone};
use common::*;
use vernic_engine::*;

const MIB: u32 = 1 << 20;
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    serve();
}

fn is_real() -> bool {
    std::fs::read_to_string(SCOPE).is_ok_and(|scope| scope.trim() == "1")
}

/// Starts another process, which Yama asks before others are let in. This process is not let in
/// with the real Yama; an ancestor would be, so it is none.
fn start(memory: &str) -> Option<Other> {
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).arg(std::env::current_exe().unwrap());
        Other::run(&mut command, memory)
    };
    if is_real() {
        return Some(run("sh", &["-c", "exec 3<&0; \"$0\" \"$@\" <&3 &"]));
    }
    let folder = std::path::Path::new(SCOPE).parent().unwrap().display();
    let mount = format!("mount -t tmpfs none /proc/sys/kernel && mkdir {folder}");
    let shell = format!("{mount} && echo 1 > {SCOPE} && exec \"$0\" \"$@\"");
    let args = ["--mount", "sh", "-c", &shell];
    let probe = Command::new("unshare").args(args).arg("true").status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespaces here");
        return None;
    }
    Some(run("unshare", &args))
}

/// Connects this process to another one.
fn rig(memory: &str) -> Option<Rig> {
    Some(Rig::to(start(memory)?, direct_config(), setup()))
}

/// Runs a test on a thread whose rights and filters end with it, in a network namespace of its
/// own.
fn alone(name: &str, test: fn()) {
    if !runs_alone(name) {
        std::thread::spawn(test).join().unwrap();
    }
}

/// Takes from this thread, and from processes that it starts, the right to look into others.
#[allow(unsafe_code)]
fn give_up_rights() {
    const SYS_PTRACE: libc::c_ulong = 19;
    // SAFETY: takes no pointers. It fails where there is no such right to give up.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, SYS_PTRACE, 0, 0, 0) };
    give_up_privilege();
}

/// The kernel keeps this thread, and those that it starts, from the memory of other processes. The
/// real Yama does so unless there is a right.
fn keep_out() {
    if is_real() {
        return give_up_rights();
    }
    for call in [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev] {
        filter_system_calls(call, libc::EPERM, false);
    }
}

/// The kernel takes every process that is named. The real one does.
fn name_any() {
    if is_real() {
        return give_up_rights();
    }
    filter_set_ptracer(libc::SECCOMP_RET_ERRNO);
}

/// A counter of the other process.
fn counter(other: &mut Other, name: &str) -> u64 {
    let counters = other.ask("counters");
    let named = counters.split(' ').filter_map(|counter| counter.split_once('='));
    named.filter(|(known, _)| *known == name).map(|(_, n)| n.parse::<u64>().unwrap()).sum()
}

/// Has the other process send 1 MiB, and compares it.
fn receive(t: &mut Rig, seed: u32) {
    assert_eq!(t.other.ask(&format!("fill 0 {MIB} {seed}")), "filled");
    t.qp.post_recv(&[RecvWr { wr_id: 7, sges: &[t.end.sge(0, MIB)] }]).unwrap();
    t.other.tell(&format!("give 0 {MIB}"));
    let wc = t.end.wait(1)[0];
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, MIB));
    assert!(t.end.bytes(0, MIB as usize) == pattern(MIB as usize, seed), "other bytes came");
    assert_eq!(t.other.hear(), "Success");
}

fn pulled(t: &Rig) -> u64 {
    t.end.context.counters().near_pulled_parts
}

/// Waits until the other process permits this one to trace it, or none.
fn until_tracer(other: &mut Other, expected: Option<u32>) {
    let since = Instant::now();
    while other.ask("tracer") != format!("{expected:?}") {
        assert!(since.elapsed() < PATIENCE, "{} {expected:?}", other.ask("tracer"));
    }
}

/// Bytes of another process: whether the kernel lets this thread read them is all that matters.
#[allow(unsafe_code)]
fn may_read(pid: u32, addr: u64) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = std::ptr::without_provenance_mut(addr as usize);
    let remote = libc::iovec { iov_base: there, iov_len: 1 };
    // SAFETY: one byte of this function is written.
    unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) == 1 }
}

#[allow(unsafe_code)]
fn end(pid: u32) {
    // SAFETY: takes no pointers; the process was started here and runs.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
}

#[test]
fn with_on_no_process_is_let_in_and_what_takes_packets_for_it_is_said() {
    alone("with_on_no_process_is_let_in_and_what_takes_packets_for_it_is_said", || {
        // The other process would not survive it.
        filter_set_ptracer(libc::SECCOMP_RET_KILL_PROCESS);
        keep_out();
        let Some(mut t) = rig("strict private") else { return };
        let (since, mut requests) = (Instant::now(), 0_u32);
        while t.counters().refused_not_permitted == 0 {
            let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 8)]);
            assert_eq!(status, WcStatus::Success);
            requests += 1;
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        t.end.fill(0, &pattern(100_000, 9));
        for _ in 0..100 {
            let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100_000)]);
            assert_eq!(status, WcStatus::Success);
        }
        assert_eq!(t.other.ask("sum 0 100000"), sum(&pattern(100_000, 9)).to_string());
        let counters = t.counters();
        assert_eq!((counters.writes, counters.refused_not_permitted), (0, 1));
        let route = t.qp.route();
        let yama = Some(YamaForbids::OneSided);
        assert!(matches!(route, Route::SharedMemory { yama: now, .. } if now == yama), "{route}");
        assert!(route.to_string().contains("direct=ptrace"), "{route}");
        (0..20).for_each(|seed| receive(&mut t, seed));
        assert_eq!(pulled(&t), 0);
        // Until the first answer the key is asked for at request 0, 8, 24, 56 and so on.
        let most = 1 + u64::from((requests / 8 + 1).ilog2());
        let denied = counter(&mut t.other, "direct_denied");
        assert!((1..=most).contains(&denied), "{denied} of {most}");
        assert_eq!(counter(&mut t.other, "direct_kept_out"), 1);
        assert_eq!(counter(&mut t.other, "direct_bad_messages"), 0);
        let theirs = t.other.ask("route");
        assert!(theirs.contains("; large SENDs take packets"), "{theirs}");
        assert_eq!(t.other.ask("tracer"), "None");
        assert_eq!(t.end.context.counters().near_pulls_refused, 0);
    });
}

#[test]
fn with_on_memory_that_is_mapped_is_reached_all_the_same() {
    alone("with_on_memory_that_is_mapped_is_reached_all_the_same", || {
        filter_set_ptracer(libc::SECCOMP_RET_KILL_PROCESS);
        keep_out();
        for memory in ["strict mapped", "strict moved"] {
            let Some(mut t) = rig(memory) else { return };
            t.until_direct();
            assert_eq!(t.run(SendOp::Write(t.remote), &[t.end.sge(0, MIB)]), WcStatus::Success);
            assert_eq!(t.counters().refused_not_permitted, 0);
            let route = t.qp.route();
            assert!(matches!(route, Route::SharedMemory { yama: None, .. }), "{route}");
            assert_eq!(counter(&mut t.other, "direct_kept_out"), 0);
        }
    });
}

#[test]
fn with_on_a_process_that_the_kernel_lets_in_anyway_loses_nothing() {
    alone("with_on_a_process_that_the_kernel_lets_in_anyway_loses_nothing", || {
        filter_set_ptracer(libc::SECCOMP_RET_KILL_PROCESS);
        // A child may be traced by its parent.
        let started =
            if is_real() { Some(Other::start("strict private")) } else { start("strict private") };
        let Some(other) = started else { return };
        let mut t = Rig::to(other, direct_config(), setup());
        t.until_direct();
        let since = Instant::now();
        while pulled(&t) == 0 {
            receive(&mut t, 1);
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        assert_eq!(counter(&mut t.other, "direct_kept_out"), 0);
        assert_eq!(t.other.ask("tracer"), "None");
    });
}

#[test]
fn with_ptrace_a_process_is_let_in_until_its_last_grant_ends() {
    alone("with_ptrace_a_process_is_let_in_until_its_last_grant_ends", || {
        name_any();
        let Some(mut t) = rig("private") else { return };
        let me = Some(std::process::id());
        for _ in 0..3 {
            t.until_direct();
            until_tracer(&mut t.other, me);
            // A second grant, by another key, keeps the permission.
            let keys = numbers(&t.other.ask("more"));
            let other_key = Remote { rkey: Rkey(keys[1] as u32), ..t.remote };
            let before = t.counters().writes;
            let since = Instant::now();
            while t.counters().writes == before {
                let status = t.run(SendOp::Write(other_key), &[t.end.sge(0, 8)]);
                assert_eq!(status, WcStatus::Success);
                assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
            }
            t.remote.rkey = Rkey(numbers(&t.other.ask("renew"))[0] as u32);
            until_tracer(&mut t.other, me);
            let pid = t.other.ask("pid").parse().unwrap();
            assert!(may_read(pid, t.remote.addr));
            // The queue pair through which the first one was given.
            assert_eq!(t.other.ask("end"), "ended");
            until_tracer(&mut t.other, None);
            // Nobody stands for Yama here but itself.
            assert_eq!(may_read(pid, t.remote.addr), !is_real());
            t = rig("private").unwrap();
        }
    });
}

#[test]
fn with_ptrace_a_receiver_of_large_sends_is_let_in_until_their_queue_pairs_end() {
    alone("with_ptrace_a_receiver_of_large_sends_is_let_in_until_their_queue_pairs_end", || {
        name_any();
        let Some(mut t) = rig("private") else { return };
        assert_eq!(t.other.ask("tracer"), "None");
        let since = Instant::now();
        while pulled(&t) == 0 {
            receive(&mut t, 1);
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        until_tracer(&mut t.other, Some(std::process::id()));
        assert_eq!(t.other.ask("end"), "ended");
        until_tracer(&mut t.other, None);
    });
}

#[test]
fn with_ptrace_the_next_process_is_let_in_when_the_first_disconnects() {
    alone("with_ptrace_the_next_process_is_let_in_when_the_first_disconnects", || {
        name_any();
        let Some(mut t) = rig("private") else { return };
        t.until_direct();
        until_tracer(&mut t.other, Some(std::process::id()));
        // A third process, which is kept out.
        let started = std::thread::spawn(|| {
            keep_out();
            start("strict private").unwrap()
        });
        let mut third = started.join().unwrap();
        let its = numbers(&third.hear())[0];
        let theirs = t.other.ask(&format!("second {its}"));
        assert_eq!(third.ask(&format!("connect {theirs}")), "connected");
        let third_pid: u32 = third.ask("pid").parse().unwrap();
        let write = format!("write {} {} 100", t.remote.addr, t.remote.rkey.value());
        let since = Instant::now();
        while counter(&mut t.other, "direct_kept_out") == 0 {
            assert_eq!(third.ask(&write), "0 0");
            assert!(since.elapsed() < PATIENCE, "{}", t.other.ask("counters"));
        }
        until_tracer(&mut t.other, Some(std::process::id()));
        t.end.context.close();
        until_tracer(&mut t.other, None);
        let since = Instant::now();
        while t.other.ask("tracer") != format!("{:?}", Some(third_pid)) {
            third.ask(&write);
            assert!(since.elapsed() < PATIENCE, "{}", t.other.ask("counters"));
        }
        // And its end ends that, too.
        end(third_pid);
        until_tracer(&mut t.other, None);
    });
}
