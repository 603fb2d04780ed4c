//! Lists of one-sided requests between processes of one host that take no packets: that they are
//! done in their order and complete in it, whatever one of them meets, and that the kernel is
//! called once for a list.

#![allow(unsafe_code)] // a filter of system calls

mod common;

use common::direct::*;
use common::*;
use vernic_engine::*;

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    serve();
}

/// Number and status of so many completions, in their order.
fn outcomes(t: &Rig, count: usize) -> Vec<(u64, WcStatus)> {
    t.end.wait(count).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// The outcomes of requests that have these statuses, numbered from 1 on.
fn numbered(statuses: &[WcStatus]) -> Vec<(u64, WcStatus)> {
    (1..).zip(statuses.iter().copied()).collect()
}

/// Checks the other process's bytes from an offset on.
fn assert_there(t: &mut Rig, at: usize, bytes: &[u8], why: &str) {
    let there = t.other.ask(&format!("sum {at} {}", bytes.len()));
    assert_eq!(there, sum(bytes).to_string(), "{why}: bytes at {at}");
}

#[test]
fn a_list_is_carried_out_and_completes_in_the_order_of_its_posts() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let data = pattern(400_000, 5);
        t.end.fill(0, &data);
        let before = t.counters();
        let sge = |at, len| t.end.sge(at, len);
        let (first, into) = ([sge(0, 8)], [sge(500_000, 64)]);
        let unsignaled =
            SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Write(t.at(0)), &first) };
        let inline = SendWr {
            payload: Payload::Inline(&[b"in", b"line"]),
            ..wr(3, SendOp::Write(t.at(200)), &[])
        };
        let fenced = SendWr {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..wr(5, SendOp::Read(t.at(64)), &into)
        };
        t.qp.post_send(&[
            unsignaled,
            wr(2, SendOp::Write(t.at(64)), &[sge(100, 64)]),
            inline,
            // Over a part of what the second one writes.
            wr(4, SendOp::Write(t.at(66)), &[sge(8, 10), sge(31, 7)]),
            fenced,
            wr(6, SendOp::Read(t.at(200)), &[sge(500_064, 6)]),
            // More than a turn takes.
            wr(7, SendOp::Write(t.at(4096)), &[sge(4096, 300_000)]),
            wr(8, SendOp::Write(t.at(4097)), &[sge(1, 8)]),
            wr(9, SendOp::Write(t.at(4100)), &[sge(3, 8)]),
        ])
        .unwrap();
        let all: Vec<_> = (2..=9).map(|wr_id| (wr_id, WcStatus::Success)).collect();
        assert_eq!(outcomes(&t, 8), all, "{memory}");
        let mut head = data[100..164].to_vec();
        head[2..12].copy_from_slice(&data[8..18]);
        head[12..19].copy_from_slice(&data[31..38]);
        let mut tail = data[4096..304_096].to_vec();
        tail[1..9].copy_from_slice(&data[1..9]);
        tail[4..12].copy_from_slice(&data[3..11]);
        assert_eq!(t.end.bytes(500_000, 70), [&head[..], b"inline"].concat(), "{memory}");
        let now = t.counters();
        assert_eq!((now.writes - before.writes, now.reads - before.reads), (7, 2), "{memory}");
        let written = 8 + 64 + 6 + 17 + 300_000 + 8 + 8;
        assert_eq!(now.bytes - before.bytes, written + 64 + 6, "{memory}");
        assert_there(&mut t, 0, &data[..8], memory);
        assert_there(&mut t, 64, &head, memory);
        assert_there(&mut t, 200, b"inline", memory);
        assert_there(&mut t, 4096, &tail, memory);
    }
}

#[test]
fn long_lists_of_short_and_long_requests_take_no_packets() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let data = pattern(1 << 20, 7);
        for len in [1_u32, 8, 63, 10_000] {
            t.end.fill(0, &data);
            let before = t.counters();
            let packets = t.end.context.counters().near_tx_packets;
            let at = |i: u64| i * u64::from(len);
            let sges = (0..100).map(|i| [t.end.sge(at(i), len), t.end.sge((1 << 20) + at(i), len)]);
            let sges: Vec<[Sge; 2]> = sges.collect();
            let list = |from: usize, op: fn(Remote) -> SendOp| -> Vec<_> {
                let one = |i: u64| wr(i, op(t.at(at(i))), &sges[i as usize][from..=from]);
                (0..100).map(one).collect()
            };
            t.qp.post_send(&list(0, SendOp::Write)).unwrap();
            t.qp.post_send(&list(1, SendOp::Read)).unwrap();
            let all: Vec<_> = (0..100).map(|wr_id| (wr_id, WcStatus::Success)).collect();
            assert_eq!(outcomes(&t, 200), [&all[..], &all].concat(), "{memory} {len}");
            let bytes = 100 * len as usize;
            assert_eq!(t.end.bytes(1 << 20, bytes), data[..bytes], "{memory} {len}");
            let now = t.counters();
            assert_eq!((now.writes - before.writes, now.reads - before.reads), (100, 100));
            assert_eq!(now.bytes - before.bytes, 2 * bytes as u64);
            assert_eq!(t.end.context.counters().near_tx_packets, packets);
            assert_there(&mut t, 0, &data[..bytes], memory);
        }
    }
}

#[test]
fn a_request_that_is_refused_ends_its_list_and_those_before_it_are_done() {
    use WcStatus::{Flushed, LocalProtection, RemoteAccess, Success};
    type Wrong = fn(&Rig) -> (Remote, Sge);
    let wrong: [(&str, Wrong, WcStatus); 3] = [
        ("range", |t| (t.at(BYTES as u64 - 4), t.end.sge(0, 8)), RemoteAccess),
        (
            "key",
            |t| {
                let rkey = Rkey(t.remote.rkey.value() ^ 0x5500);
                (Remote { rkey, ..t.at(192) }, t.end.sge(0, 8))
            },
            RemoteAccess,
        ),
        ("local", |t| (t.at(192), Sge { lkey: Lkey(1), ..t.end.sge(0, 8) }), LocalProtection),
    ];
    for memory in ["mapped", "private"] {
        for (what, wrong, status) in wrong {
            let mut t = Rig::new(memory);
            t.until_direct();
            let data = pattern(1000, 3);
            t.end.fill(0, &data);
            let (untouched, before) = (t.other.ask("sum 256 64"), t.counters());
            let (remote, sge) = wrong(&t);
            t.qp.post_send(&[
                wr(1, SendOp::Write(t.at(64)), &[t.end.sge(1, 8)]),
                wr(2, SendOp::Write(t.at(128)), &[t.end.sge(2, 8)]),
                wr(3, SendOp::Write(remote), &[sge]),
                wr(4, SendOp::Write(t.at(256)), &[t.end.sge(3, 8)]),
                wr(5, SendOp::Write(t.at(280)), &[t.end.sge(4, 8)]),
            ])
            .unwrap();
            let expected = numbered(&[Success, Success, status, Flushed, Flushed]);
            assert_eq!(outcomes(&t, 5), expected, "{memory} {what}");
            let now = t.counters();
            assert_eq!(now.writes - before.writes, 2, "{memory} {what}");
            let refused = |c: &DirectCounters| {
                [c.refused_range, c.refused_no_ticket, c.refused_local, c.refused_unreachable]
            };
            let (now, before) = (refused(&now), refused(&before));
            let more: Vec<u64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
            let expected = match what {
                "range" => [1, 0, 0, 0],
                "key" => [0, 1, 0, 0],
                _ => [0, 0, 1, 0],
            };
            assert_eq!(more, expected, "{memory} {what}");
            assert_there(&mut t, 64, &data[1..9], memory);
            assert_there(&mut t, 128, &data[2..10], memory);
            assert_eq!(t.other.ask("sum 256 64"), untouched, "{memory} {what}");
        }
    }
}

#[test]
fn another_key_or_no_bytes_in_the_middle_take_packets_and_the_order_stays() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let keys = numbers(&t.other.ask("more"));
        let other = |at| Remote { rkey: Rkey(keys[1] as u32), ..t.at(at) };
        let data = pattern(1000, 3);
        t.end.fill(0, &data);
        let before = t.counters();
        t.qp.post_send(&[
            wr(1, SendOp::Write(t.at(0)), &[t.end.sge(1, 8)]),
            wr(2, SendOp::Write(t.at(64)), &[t.end.sge(2, 8)]),
            wr(3, SendOp::Write(other(0)), &[t.end.sge(3, 8)]),
            wr(4, SendOp::Write(other(4)), &[t.end.sge(4, 8)]),
            wr(5, SendOp::Write(t.at(2)), &[t.end.sge(5, 8)]),
            wr(6, SendOp::Write(t.at(16)), &[t.end.sge(6, 8)]),
            wr(7, SendOp::Write(t.at(16)), &[]),
            wr(8, SendOp::Write(t.at(18)), &[t.end.sge(7, 8)]),
            wr(9, SendOp::Write(t.at(20)), &[t.end.sge(8, 8)]),
        ])
        .unwrap();
        assert_eq!(outcomes(&t, 9), numbered(&[WcStatus::Success; 9]), "{memory}");
        let mut expected = [0; 28];
        for (at, from) in [(0, 1), (0, 3), (4, 4), (2, 5), (16, 6), (18, 7), (20, 8)] {
            expected[at..at + 8].copy_from_slice(&data[from..from + 8]);
        }
        assert_there(&mut t, 0, &expected[..12], memory);
        assert_there(&mut t, 16, &expected[16..], memory);
        let now = t.counters();
        assert!(now.refused_no_ticket > before.refused_no_ticket, "{memory}");
        // Those in front of the other key; what follows may take packets as well.
        assert!(now.writes - before.writes >= 2, "{memory} {now:?}");
        let sges = [t.end.sge(0, 8)];
        let list: Vec<_> = (1..=8).map(|i| wr(i, SendOp::Write(t.at(8 * i)), &sges)).collect();
        t.qp.post_send(&list).unwrap();
        assert_eq!(outcomes(&t, 8), numbered(&[WcStatus::Success; 8]), "{memory}");
        assert_eq!(t.counters().writes - now.writes, 8, "{memory}");
    }
}

#[test]
fn a_list_with_a_key_that_has_ended_writes_nothing() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        assert_eq!(t.other.ask("dereg"), "quiet true soon true");
        let before = t.counters();
        let sges = [t.end.sge(0, 8)];
        let list: Vec<_> = (1..=4).map(|i| wr(i, SendOp::Write(t.at(64 * i)), &sges)).collect();
        t.qp.post_send(&list).unwrap();
        use WcStatus::{Flushed, RemoteAccess};
        let expected = numbered(&[RemoteAccess, Flushed, Flushed, Flushed]);
        assert_eq!(outcomes(&t, 4), expected, "{memory}");
        assert_eq!(t.counters().writes, before.writes);
        assert_there(&mut t, 0, &[0xA5; 512], memory);
    }
}

#[test]
fn a_missing_page_in_the_middle_lets_only_the_requests_before_it_complete() {
    for op in [SendOp::Write as fn(Remote) -> SendOp, SendOp::Read] {
        let mut t = Rig::new("private");
        t.until_direct();
        assert_eq!(t.other.ask("fill 0 1000 6"), "filled");
        assert_eq!(t.other.ask("hole 8192"), "hole 0");
        t.end.fill(0, &[0; 1000]);
        let before = t.counters();
        let sges: Vec<_> = (0..5).map(|i| [t.end.sge(100 * i, 8)]).collect();
        // The third one begins before the page, and the fifth one is all right.
        let places = [0, 100, 8188, 8200, 400];
        let one = |(i, &at): (usize, &u64)| wr(i as u64 + 1, op(t.at(at)), &sges[i]);
        let list: Vec<_> = places.iter().enumerate().map(one).collect();
        t.qp.post_send(&list).unwrap();
        use WcStatus::{Flushed, RetryExceeded, Success};
        // The third one takes packets, of which the target dies.
        let expected = numbered(&[Success, Success, RetryExceeded, Flushed, Flushed]);
        assert_eq!(outcomes(&t, 5), expected);
        let now = t.counters();
        let done = (now.writes - before.writes) + (now.reads - before.reads);
        assert_eq!((done, now.bytes - before.bytes), (2, 16), "{now:?}");
        assert_eq!(now.refused_unreachable - before.refused_unreachable, 1);
        if now.reads > 0 {
            let there = pattern(1000, 6);
            assert_eq!(t.end.bytes(0, 8), there[..8]);
            assert_eq!(t.end.bytes(100, 8), there[100..108]);
            assert_eq!(t.end.bytes(300, 8), [0; 8], "what follows was not read");
            assert_eq!(t.end.bytes(400, 8), [0; 8]);
        }
    }
}

/// Has the kernel refuse the calling thread's copies to another process with three remote pieces,
/// as one request has.
fn filter_single_copies() {
    /// Where `seccomp_data` has the number of remote pieces: the low half of the fifth argument.
    const REMOTE_PIECES: u32 = if cfg!(target_endian = "little") { 48 } else { 52 };
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    let mut program = [
        step(load, 0, 0),
        step(equal | libc::BPF_K, 3, libc::SYS_process_vm_writev as u32),
        step(load, 0, REMOTE_PIECES),
        step(equal | libc::BPF_K, 1, 3),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 6, filter: program.as_mut_ptr() };
    // SAFETY: the filter is one of six steps, and lives through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter), 0);
    }
}

#[test]
fn the_kernel_is_called_once_for_a_list_and_what_it_refuses_takes_packets() {
    // Filters are those of a thread.
    let filtered = std::thread::spawn(|| {
        let mut t = Rig::new("private");
        t.until_direct();
        filter_single_copies();
        let before = t.counters();
        let data = pattern(1000, 8);
        t.end.fill(0, &data);
        for _ in 0..20 {
            let sges: Vec<_> = (0..16).map(|i| [t.end.sge(64 * i, 8)]).collect();
            let one = |i: u64| wr(i + 1, SendOp::Write(t.at(64 * i)), &sges[i as usize]);
            let list: Vec<_> = (0..16).map(one).collect();
            t.qp.post_send(&list).unwrap();
            assert_eq!(outcomes(&t, 16), numbered(&[WcStatus::Success; 16]));
        }
        let now = t.counters();
        assert_eq!(now.refused_not_permitted, before.refused_not_permitted, "alone: {now:?}");
        assert_eq!(now.writes - before.writes, 320);
        // Of all calls, none is permitted any more.
        filter_system_calls(libc::SYS_process_vm_writev, libc::EPERM, false);
        let sges = [t.end.sge(8, 8)];
        let since = std::time::Instant::now();
        // The device's thread, which is not filtered, may carry out some.
        while t.counters().refused_not_permitted == before.refused_not_permitted {
            let list: Vec<_> = (1..=8).map(|i| wr(i, SendOp::Write(t.at(64 * i)), &sges)).collect();
            t.qp.post_send(&list).unwrap();
            assert_eq!(outcomes(&t, 8), numbered(&[WcStatus::Success; 8]));
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        let now = t.counters();
        assert_eq!(now.refused_not_permitted, before.refused_not_permitted + 1);
        assert_there(&mut t, 64, &data[8..16], "by packets");
    });
    filtered.join().unwrap();
}
