//! Large SENDs to and from processes of this host by one copy: that their bytes are those that were
//! sent, whatever becomes of the sender, and that packets carry what cannot be copied so.

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::time::Instant;

use common::direct::*;
use common::other::runs_alone;
use common::*;
use vernic_engine::*;

const MIB: u32 = 1 << 20;

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    serve();
}

fn pair(setup: Setup) -> Pair {
    Pair::with(Service::Rc, setup, direct_config(), direct_config())
}

/// Bytes that `end` has copied out of its peer's memory.
fn pulled(end: &End) -> u64 {
    end.context.counters().near_pulled_bytes
}

/// Where the pieces of a list are: offset and length.
type Pieces<'a> = &'a [(u64, u32)];

fn list(end: &End, pieces: Pieces<'_>) -> Vec<Sge> {
    pieces.iter().map(|&(at, len)| end.sge(at, len)).collect()
}

fn read(end: &End, pieces: Pieces<'_>) -> Vec<u8> {
    pieces.iter().flat_map(|&(at, len)| end.bytes(at as usize, len as usize)).collect()
}

/// Sends from a list of `a` to a list of `b`, and compares every byte.
fn send(pair: &Pair, op: SendOp, from: Pieces<'_>, to: Pieces<'_>, seed: u32) -> Wc {
    pair.a.fill(0, &pattern(MEMORY, seed));
    pair.b.fill(0, &vec![0; MEMORY]);
    pair.b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &list(&pair.b, to) }]).unwrap();
    transfer(pair, op, from, to)
}

fn transfer(pair: &Pair, op: SendOp, from: Pieces<'_>, to: Pieces<'_>) -> Wc {
    pair.a_qp.post_send(&[wr(1, op, &list(&pair.a, from))]).unwrap();
    let received = pair.b.wait_beside(1, || pair.a.context.progress())[0];
    let sent = pair.a.wait_beside(1, || pair.b.context.progress())[0];
    assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
    let expected = read(&pair.a, from);
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, expected.len() as u32));
    assert!(read(&pair.b, to).starts_with(&expected), "other bytes came");
    received
}

/// Sends until the receiver copies by itself.
fn until_pulled(pair: &Pair) {
    let since = Instant::now();
    while pulled(&pair.b) == 0 {
        send(pair, SendOp::Send, &[(0, MIB)], &[(0, MIB)], 1);
        assert!(since.elapsed() < PATIENCE, "never: {}", pair.b.context.counters());
    }
}

#[test]
fn every_byte_of_messages_of_all_sizes_and_lists_arrives_where_it_shall() {
    let whole: Pieces<'_> = &[(0, 8 * MIB)];
    // As far apart as the lists have room, in any order, of odd lengths.
    let scattered: Pieces<'_> =
        &[(5_000_001, 2_000_003), (3, 777), (4096, 4_000_000), (7_400_000, 700_001)];
    let cut = |pieces: Pieces<'_>, mut left: u32| -> Vec<(u64, u32)> {
        let take = |&(at, len): &(u64, u32)| {
            let len = len.min(left);
            left -= len;
            (len > 0).then_some((at, len))
        };
        pieces.iter().filter_map(take).collect()
    };
    for mtu in [Mtu::B1024, Mtu::B4096] {
        let pair = pair(Setup { mtu, ..Setup::default() });
        until_pulled(&pair);
        for (n, len) in [
            16_383,
            16 << 10,
            64 << 10,
            128 << 10,
            (128 << 10) + 1,
            131_000,
            200_001,
            512 << 10,
            (512 << 10) + 1,
            MIB,
            MIB + 4097,
            5_555_555,
        ]
        .into_iter()
        .enumerate()
        {
            let before = pulled(&pair.b);
            for (from, to) in
                [(whole, whole), (scattered, whole), (whole, scattered), (scattered, scattered)]
            {
                let (from, to) = (cut(from, len), cut(to, len));
                let wc = send(&pair, SendOp::SendImm(9), &from, &to, n as u32);
                assert_eq!((wc.wr_id, wc.tag), (7, Tag::Imm(9)));
            }
            assert_eq!(pulled(&pair.b) > before, len >= 16 << 10, "{len} bytes");
        }
        send(&pair, SendOp::Send, whole, whole, 99);
        let counters = pair.b.context.counters();
        assert_eq!((counters.near_pulls_refused, counters.naks_sent), (0, 0), "{counters}");
    }
}

#[test]
fn a_shared_receive_queue_takes_them_as_any_other() {
    let (a, b) = (End::with(direct_config()), End::with(direct_config()));
    let srq = b.pd.create_srq(SrqInit { max_wr: 64, max_sge: 2, limit: 0 }).unwrap();
    let cap = QpCap { max_send_wr: 16, max_send_sge: 2, ..QpCap::default() };
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp_with(Service::Rc, cap, Some(srq.clone())));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    let pair = Pair { a_qp, b_qp, a, b };
    let (from, to): (Pieces<'_>, Pieces<'_>) =
        (&[(9, MIB), (3 << 20, MIB)], &[(4 << 20, 2 * MIB), (17, 64)]);
    let since = Instant::now();
    let mut seed = 0;
    while pulled(&pair.b) < 10 << 20 {
        pair.a.fill(0, &pattern(MEMORY, seed));
        srq.post_recv(&[RecvWr { wr_id: 7, sges: &list(&pair.b, to) }]).unwrap();
        transfer(&pair, SendOp::Send, from, to);
        assert!(since.elapsed() < PATIENCE, "never: {}", pair.b.context.counters());
        seed += 1;
    }
}

#[test]
fn one_that_comes_before_its_receive_is_taken_later() {
    let pair = pair(Setup::default());
    until_pulled(&pair);
    pair.a.fill(0, &pattern(MEMORY, 5));
    pair.a_qp.post_send(&[wr(1, SendOp::Send, &[pair.a.sge(0, MIB)])]).unwrap();
    let since = Instant::now();
    while pair.b.context.counters().rnr_naks_sent == 0 {
        pair.b.context.progress();
        assert!(since.elapsed() < PATIENCE);
    }
    pair.b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &[pair.b.sge(4 << 20, MIB)] }]).unwrap();
    let received = pair.b.wait_beside(1, || pair.a.context.progress())[0];
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, MIB));
    assert_eq!(pair.b.bytes(4 << 20, MIB as usize), pair.a.bytes(0, MIB as usize));
    pair.a.wait_beside(1, || pair.b.context.progress());
    let before = pulled(&pair.b);
    send(&pair, SendOp::Send, &[(0, MIB)], &[(0, MIB)], 6);
    assert_eq!(pulled(&pair.b) - before, u64::from(MIB));
}

#[test]
fn one_that_is_longer_than_its_receive_fails_both_ends_as_packets_do() {
    let pair = pair(Setup::default());
    until_pulled(&pair);
    pair.b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &[pair.b.sge(0, MIB - 1)] }]).unwrap();
    pair.a_qp.post_send(&[wr(1, SendOp::Send, &[pair.a.sge(0, MIB)])]).unwrap();
    let received = pair.b.wait_beside(1, || pair.a.context.progress())[0];
    let sent = pair.a.wait_beside(1, || pair.b.context.progress())[0];
    let expected = (WcStatus::LocalLength, WcStatus::RemoteInvalidRequest);
    assert_eq!((received.status, sent.status), expected);
}

#[test]
fn memory_that_is_none_of_its_own_is_sent_in_packets() {
    let pair = pair(Setup::default());
    until_pulled(&pair);
    let before = pulled(&pair.b);
    let null = pair.a.pd.alloc_null_mr().unwrap();
    pair.b.fill(0, &vec![1; MIB as usize]);
    pair.b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &[pair.b.sge(0, MIB)] }]).unwrap();
    let sges = [Sge { addr: 0, length: MIB, lkey: null.lkey() }];
    pair.a_qp.post_send(&[wr(1, SendOp::Send, &sges)]).unwrap();
    let received = pair.b.wait_beside(1, || pair.a.context.progress())[0];
    assert_eq!(received.status, WcStatus::Success);
    assert!(pair.b.bytes(0, MIB as usize).iter().all(|&byte| byte == 0));
    assert_eq!(pulled(&pair.b), before);
}

#[test]
fn where_settings_of_either_end_forbid_it_packets_carry_everything() {
    let off = || {
        let mut config = direct_config();
        config.set("direct", "off").unwrap();
        config
    };
    for (a, b) in [(off(), direct_config()), (direct_config(), off())] {
        let pair = Pair::with(Service::Rc, Setup::default(), a, b);
        for seed in 0..20 {
            send(&pair, SendOp::Send, &[(0, MIB)], &[(1, MIB)], seed);
        }
        let counters = pair.b.context.counters();
        assert_eq!((counters.near_pulled_parts, counters.near_pulls_refused), (0, 0));
        assert_ne!(counters.near_rx_packets, 0);
    }
}

/// Has the other process send `len` bytes of a pattern, and compares them.
fn given(t: &mut Rig, len: u32, seed: u32) {
    assert_eq!(t.other.ask(&format!("fill 0 {len} {seed}")), "filled");
    t.end.fill(0, &vec![0; len as usize]);
    t.qp.post_recv(&[RecvWr { wr_id: 7, sges: &[t.end.sge(0, len)] }]).unwrap();
    t.other.tell(&format!("give 0 {len}"));
    let wc = t.end.wait(1)[0];
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len));
    assert!(t.end.bytes(0, len as usize) == pattern(len as usize, seed), "other bytes came");
    assert_eq!(t.other.hear(), "Success");
}

fn until_given(t: &mut Rig) {
    let since = Instant::now();
    while pulled(&t.end) == 0 {
        given(t, MIB, 1);
        assert!(since.elapsed() < PATIENCE, "never: {}", t.end.context.counters());
    }
}

/// A counter of the other process.
fn counter(t: &mut Rig, name: &str) -> u64 {
    let counters = t.other.ask("counters");
    let named = counters.split(' ').filter_map(|counter| counter.split_once('='));
    named.filter(|(known, _)| *known == name).map(|(_, n)| n.parse::<u64>().unwrap()).sum()
}

/// Sends 1 MiB to the other process.
fn taken(t: &mut Rig) {
    assert_eq!(t.other.ask(&format!("expect 0 {MIB}")), "expected");
    assert_eq!(t.run(SendOp::Send, &[t.end.sge(0, MIB)]), WcStatus::Success);
    assert_eq!(t.other.ask("came"), format!("Success {MIB}"));
}

/// Sends until the other process copies by itself.
fn until_taken(t: &mut Rig) {
    let since = Instant::now();
    while counter(t, "near_pulled_parts") == 0 {
        taken(t);
        assert!(since.elapsed() < PATIENCE, "never: {}", t.other.ask("counters"));
    }
}

#[test]
fn processes_copy_out_of_each_other() {
    let mut t = Rig::new("private");
    until_given(&mut t);
    for (n, len) in [128 << 10, 300_001, MIB, 4 * MIB].into_iter().enumerate() {
        let before = pulled(&t.end);
        given(&mut t, len, n as u32);
        assert!(pulled(&t.end) - before > u64::from(len) / 2, "{len}");
        // And the other way.
        t.end.fill(0, &pattern(MEMORY, n as u32 + 50));
        assert_eq!(t.other.ask(&format!("expect 0 {len}")), "expected");
        let sges = [t.end.sge(5_000_003, len / 2), t.end.sge(11, len - len / 2)];
        t.qp.post_send(&[wr(1, SendOp::Send, &sges)]).unwrap();
        assert_eq!(t.end.wait(1)[0].status, WcStatus::Success);
        assert_eq!(t.other.ask("came"), format!("Success {len}"));
        let sent =
            [t.end.bytes(5_000_003, len as usize / 2), t.end.bytes(11, (len - len / 2) as usize)];
        assert_eq!(t.other.ask(&format!("sum 0 {len}")), sum(&sent.concat()).to_string());
    }
    assert_ne!(counter(&mut t, "near_pulled_parts"), 0);
}

#[test]
fn what_the_application_has_back_is_never_delivered() {
    if runs_alone("what_the_application_has_back_is_never_delivered") {
        return;
    }
    let back = |t: &mut Rig, how: &str| {
        until_taken(t);
        t.end.fill(0, &[0xA5; MIB as usize]);
        assert_eq!(t.other.ask(&format!("expect 0 {MIB}")), "expected");
        t.other.stop();
        t.qp.post_send(&[wr(1, SendOp::Send, &[t.end.sge(0, MIB)])]).unwrap();
        let state = if how == "reset" { QpState::Reset } else { QpState::Error };
        let attr = QpAttr { state, ..QpAttr::default() };
        match how {
            "destroy" => t.qp.destroy().unwrap(),
            _ => t.qp.modify(&attr, AttrMask::STATE).unwrap(),
        }
        if how == "error" {
            assert_eq!(t.end.wait(1)[0].status, WcStatus::Flushed);
        }
        // It is the application's again.
        t.end.fill(0, &[0x5A; MIB as usize]);
        t.other.signal(libc::SIGCONT);
        let since = Instant::now();
        while counter(t, "drop_rendezvous_withdrawn") == 0 {
            assert_eq!(t.other.ask("polled"), "0", "{how}: delivered");
            assert!(since.elapsed() < PATIENCE, "{how}: {}", t.other.ask("counters"));
        }
        assert_eq!(t.other.ask("polled"), "0", "{how}: delivered");
    };
    for how in ["error", "reset", "destroy"] {
        back(&mut Rig::new("private"), how);
    }
}

#[test]
fn a_sender_that_is_killed_delivers_nothing_else() {
    for round in 0..5 {
        let mut t = Rig::new("private");
        until_given(&mut t);
        let (len, seed) = (4 * MIB, 40 + round);
        assert_eq!(t.other.ask(&format!("fill 0 {len} {seed}")), "filled");
        let expected = pattern(len as usize, seed);
        let post = || {
            t.qp.post_recv(&[RecvWr { wr_id: 7, sges: &[t.end.sge(0, len)] }]).unwrap();
        };
        post();
        assert_eq!(t.other.ask(&format!("pour 0 {len}")), "pouring");
        let mut whole = 0;
        let status = loop {
            let wc = t.end.wait(1)[0];
            if wc.status != WcStatus::Success {
                break wc.status;
            }
            assert_eq!(wc.byte_len, len);
            assert!(t.end.bytes(0, len as usize) == expected, "other bytes came");
            t.end.fill(0, &vec![0; len as usize]);
            whole += 1;
            post();
            if whole == 20 {
                // In the middle of the next, wherever that is.
                t.other.signal(libc::SIGKILL);
            }
        };
        assert_eq!(status, WcStatus::Flushed);
    }
}

#[test]
fn where_the_kernel_forbids_it_packets_carry_everything() {
    // Rights are those of a thread.
    let unprivileged = std::thread::spawn(|| {
        give_up_privilege();
        let mut t = Rig::new("private");
        assert_eq!(t.other.ask("hide"), "hidden 0");
        (0..20).for_each(|seed| given(&mut t, MIB, seed));
        let counters = t.end.context.counters();
        assert_eq!((counters.near_pulled_parts, counters.near_pulls_refused), (0, 0));
    });
    unprivileged.join().unwrap();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let filtered = std::thread::spawn(move || {
            filter_system_calls(libc::SYS_process_vm_readv, errno, false);
            let mut t = Rig::new("private");
            (0..20).for_each(|seed| given(&mut t, MIB, seed));
            assert_eq!(t.end.context.counters().near_pulled_parts, 0);
        });
        filtered.join().unwrap();
    }
}

#[test]
fn where_the_kernel_forbids_it_later_nothing_fails_though_nothing_may_be_repeated() {
    let setup = Setup { retry_cnt: 0, ..setup() };
    let mut t = Rig::with_setup("private", direct_config(), setup);
    until_taken(&mut t);
    let parts = counter(&mut t, "near_pulled_parts");
    assert_eq!(t.other.ask("forbid"), "forbidden");
    for seed in 0..20 {
        t.end.fill(0, &pattern(MIB as usize, seed));
        taken(&mut t);
        let expected = sum(&pattern(MIB as usize, seed));
        assert_eq!(t.other.ask(&format!("sum 0 {MIB}")), expected.to_string());
    }
    assert_eq!(counter(&mut t, "near_pulled_parts"), parts);
    // Tried once, or twice where the answer took its time.
    assert!((1..=2).contains(&counter(&mut t, "near_pulls_refused")));
    assert_eq!((t.other.ask("state").as_str(), t.qp.state()), ("Rts", QpState::Rts));
}
