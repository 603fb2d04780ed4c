//! One-sided requests between processes of one host that take no packets: that they are done, and
//! that nothing but their way differs from packets. Lists of them are in `direct_lists.rs`. Who
//! takes memory back, or dies, is in `direct_peers.rs`.

#![allow(unsafe_code)] // memory that is registered

mod common;

use std::time::Instant;

use common::direct::*;
use common::*;
use vernic_engine::*;

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    serve();
}

#[test]
fn what_is_written_and_read_without_packets_is_what_was_there() {
    for memory in ["mapped", "private", "moved"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let before = t.counters();
        let packets = t.end.context.counters().near_tx_packets;
        let data = pattern(4 << 20, 1);
        t.end.fill(0, &data);
        let lengths = [1_u32, 7, 8, 100, 4096, 4097, 65_536, 300_000, 3 << 20];
        for (i, len) in lengths.into_iter().enumerate() {
            let at = 3 * i as u64;
            let sges = [t.end.sge(at, len / 3), t.end.sge(at + u64::from(len / 3), len - len / 3)];
            assert_eq!(t.run(SendOp::Write(t.at(at)), &sges), WcStatus::Success, "{memory} {len}");
            let expected = sum(&data[at as usize..at as usize + len as usize]);
            assert_eq!(t.other.ask(&format!("sum {at} {len}")), expected.to_string());
            t.other.ask(&format!("fill {at} {len} {i}"));
            let sink = [t.end.sge(4 << 20, len)];
            assert_eq!(t.run(SendOp::Read(t.at(at)), &sink), WcStatus::Success);
            assert_eq!(t.end.bytes(4 << 20, len as usize), pattern(len as usize, i as u32));
        }
        let inline = SendWr {
            payload: Payload::Inline(&[b"in", b"line"]),
            ..wr(1, SendOp::Write(t.at(9)), &[])
        };
        t.qp.post_send(&[inline]).unwrap();
        assert_eq!(t.end.wait(1)[0].status, WcStatus::Success);
        assert_eq!(t.other.ask("sum 9 6"), sum(b"inline").to_string());
        let now = t.counters();
        assert_eq!((now.writes - before.writes, now.reads - before.reads), (10, 9), "{memory}");
        let moved: u64 = lengths.iter().map(|&len| 2 * u64::from(len)).sum();
        assert_eq!(now.bytes - before.bytes, moved + 6);
        assert_eq!(t.end.context.counters().near_tx_packets, packets, "none of it took packets");
        assert_eq!(t.other.ask("state"), "Rts");
    }
}

#[test]
fn atomics_are_done_in_mapped_memory_and_take_packets_to_other() {
    for memory in ["mapped", "private", "moved"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let before = t.counters();
        t.end.fill(0, &5_u64.to_ne_bytes());
        assert_eq!(t.run(SendOp::Write(t.at(64)), &[t.end.sge(0, 8)]), WcStatus::Success);
        let mut was = Vec::new();
        let remote = t.at(64);
        for op in [
            SendOp::FetchAdd { remote, add: 3 },
            SendOp::CmpSwap { remote, compare: 7, swap: 1 },
            SendOp::CmpSwap { remote, compare: 8, swap: 77 },
        ] {
            assert_eq!(t.run(op, &[t.end.sge(100, 8)]), WcStatus::Success);
            was.push(u64::from_ne_bytes(t.end.bytes(100, 8).try_into().unwrap()));
        }
        assert_eq!(was, [5, 8, 8], "{memory}");
        assert_eq!(t.other.ask("sum 64 8"), sum(&77_u64.to_ne_bytes()).to_string());
        let direct = t.counters().atomics - before.atomics;
        assert_eq!(direct, if memory == "private" { 0 } else { 3 }, "{memory}");
    }
}

#[test]
fn completions_keep_the_order_of_the_posts_and_data_that_of_the_messages() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        const ROUNDS: u64 = 100;
        assert_eq!(t.other.ask(&format!("receive {ROUNDS}")), "receiving");
        t.other.tell(&format!("watch {ROUNDS}"));
        for round in 1..=ROUNDS {
            t.end.fill(0, &round.to_ne_bytes());
            t.qp.post_send(&[
                wr(1, SendOp::Write(t.remote), &[t.end.sge(0, 8)]),
                wr(2, SendOp::Send, &[]),
                wr(3, SendOp::Read(t.remote), &[t.end.sge(64, 8)]),
                wr(4, SendOp::Write(t.at(64)), &[t.end.sge(0, 60_000)]),
            ])
            .unwrap();
            let wcs = t.end.wait(4);
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
            assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
            assert_eq!(t.end.bytes(64, 8), round.to_ne_bytes());
        }
        // Each message found the word that was written before it, or a later one.
        let seen = t.other.hear();
        let seen: Vec<u64> =
            seen.trim_matches(['[', ']']).split(", ").map(|n| n.parse().unwrap()).collect();
        assert!(seen.iter().zip(1..).all(|(&word, round)| word >= round), "{memory} {seen:?}");
        assert!(t.counters().writes > ROUNDS, "{:?}", t.counters());
    }
}

#[test]
fn an_atomic_whose_result_has_no_place_runs_once() {
    let mut t = Rig::new("mapped");
    t.until_direct();
    t.end.fill(0, &5_u64.to_ne_bytes());
    assert_eq!(t.run(SendOp::Write(t.at(64)), &[t.end.sge(0, 8)]), WcStatus::Success);
    // SAFETY: what is named in it is not mapped.
    let everything = unsafe { t.end.pd.reg_address_space(Access::LOCAL_WRITE) }.unwrap();
    let nowhere = Sge { addr: 8, length: 8, lkey: everything.lkey() };
    let op = SendOp::FetchAdd { remote: t.at(64), add: 1 };
    assert_eq!(t.run(op, &[nowhere]), WcStatus::LocalProtection);
    assert_eq!(t.other.ask("sum 64 8"), sum(&6_u64.to_ne_bytes()).to_string());
}

#[test]
fn a_flood_of_small_requests_leaves_the_lane_to_others_in_between() {
    for memory in ["mapped", "private"] {
        let mut t = Rig::new(memory);
        t.until_direct();
        let cap = QpCap { max_send_wr: 4096, max_send_sge: 1, ..QpCap::default() };
        let flood = t.second_qp(cap);
        let sges = [t.end.sge(0, 8)];
        // Until its key is known.
        let since = Instant::now();
        let mut before = t.counters().writes;
        loop {
            flood.post_send(&[wr(1, SendOp::Write(t.remote), &sges)]).unwrap();
            assert_eq!(t.end.wait(1)[0].status, WcStatus::Success);
            if t.counters().writes != before {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        let list = vec![wr(2, SendOp::Write(t.remote), &sges); 4000];
        // The background thread may go on with what a post left.
        let mut most = 4000;
        for _ in 0..50 {
            before = t.counters().writes;
            flood.post_send(&list).unwrap();
            most = most.min(t.counters().writes - before);
            let wcs = t.end.wait(4000);
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        }
        // One call of the lane writes half a mebibyte, in which each counts as one kibibyte at
        // least.
        assert!(most < 1000, "{memory}: {most} of 4000 in one call");
    }
}

#[test]
fn keys_that_are_used_once_each_are_not_asked_for_and_those_that_come_again_are() {
    let mut t = Rig::new("private");
    t.until_direct();
    const KEYS: usize = 100;
    let write = |t: &Rig, rkey: u64| {
        let remote = Remote { rkey: Rkey(rkey as u32), ..t.remote };
        assert_eq!(t.run(SendOp::Write(remote), &[t.end.sge(0, 5000)]), WcStatus::Success);
    };
    let mut last = 0;
    for _ in 0..KEYS {
        last = numbers(&t.other.ask("renew"))[0];
        write(&t, last);
    }
    // Each question is answered, by one or the other.
    let there = t.other.ask("counters");
    let counter = |name: &str| {
        let mut words = there.split_whitespace().skip_while(|word| !word.starts_with(name));
        words.next().map_or(0, |word| word.rsplit('=').next().unwrap().parse::<usize>().unwrap())
    };
    let answered = counter("direct_granted") + counter("direct_denied");
    assert!(answered < KEYS / 4, "{answered} of {KEYS}: {there}");
    let (since, before) = (Instant::now(), t.counters().writes);
    while t.counters().writes == before {
        write(&t, last);
        assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
    }
}

/// How a request ends: at both ends, and in whose words.
fn outcome(
    config: Config,
    op: impl FnOnce(&Rig) -> (SendOp, Vec<Sge>),
) -> (WcStatus, String, String) {
    let mut t = Rig::with("mapped", config);
    if t.end.context.counters().neighbours.met == 0 {
        // Over the wire.
        assert_eq!(t.run(SendOp::Write(t.remote), &[t.end.sge(0, 8)]), WcStatus::Success);
    } else {
        t.until_direct();
    }
    let (op, sges) = op(&t);
    let status = t.run(op, &sges);
    let since = Instant::now();
    // The target may still be about to notice.
    let mut state = t.other.ask("state");
    while status != WcStatus::LocalProtection && state == "Rts" && since.elapsed() < PATIENCE {
        state = t.other.ask("state");
    }
    (status, t.qp.explain().map_or_else(String::new, |e| format!("{:?}", e.failure.cause)), state)
}

#[test]
fn memory_that_may_only_be_read_cannot_be_mapped_for_writing() {
    let t = Rig::new("readable");
    let since = Instant::now();
    while t.counters().reads == 0 {
        assert_eq!(t.run(SendOp::Read(t.remote), &[t.end.sge(0, 8)]), WcStatus::Success);
        assert!(since.elapsed() < PATIENCE, "never direct: {}", t.end.context.counters());
    }
    // Those of the other process's memory that are there now: what may become of them.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = 0;
    for map in maps.split("VmFlags:").collect::<Vec<_>>().windows(2) {
        let (head, flags) = (map[0], map[1].lines().next().unwrap());
        if head.contains(" r--s ") && head.contains("memfd:vernic") && is_of_bytes(head) {
            assert!(!flags.split_whitespace().any(|flag| flag == "mw"), "{head}{flags}");
            found += 1;
        }
    }
    assert_eq!(found, 1, "{maps}");
}

/// How many times this process has the file of the other one's memory mapped.
fn maps_of(file: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(file)).count()
}

/// Waits until the other process's memory is not mapped here, which the device's thread sees to.
fn until_unmapped(t: &Rig, file: &str) {
    let since = Instant::now();
    while maps_of(file) != 0 {
        assert!(since.elapsed() < PATIENCE, "still mapped: {}", t.end.context.counters());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn memory_of_which_a_part_is_registered_is_reached_and_not_handed_over() {
    let mut t = Rig::new("part");
    let file = t.other.ask("file");
    t.until_direct();
    assert_eq!(maps_of(&file), 0);
    let data = pattern(100_000, 3);
    t.end.fill(0, &data);
    let before = t.counters();
    assert_eq!(t.run(SendOp::Write(t.at(5)), &[t.end.sge(0, 100_000)]), WcStatus::Success);
    assert_eq!(t.other.ask("sum 5 100000"), sum(&data).to_string());
    assert_eq!(t.run(SendOp::Read(t.at(5)), &[t.end.sge(200_000, 50_000)]), WcStatus::Success);
    assert_eq!(t.end.bytes(200_000, 50_000), data[..50_000]);
    let now = t.counters();
    assert_eq!((now.writes - before.writes, now.reads - before.reads), (1, 1), "without packets");
    assert_eq!(maps_of(&file), 0);
}

#[test]
fn memory_is_unmapped_when_its_region_ends_and_mapped_anew_when_it_changes() {
    let mut t = Rig::new("mapped");
    let file = t.other.ask("file");
    t.until_direct();
    assert_eq!(maps_of(&file), 1);
    // One more queue pair reaches it by the same mapping.
    let second = t.second_qp(QpCap { max_send_wr: 1, max_send_sge: 1, ..QpCap::default() });
    let (since, before) = (Instant::now(), t.counters().writes);
    while t.counters().writes == before {
        second.post_send(&[wr(1, SendOp::Write(t.remote), &[t.end.sge(0, 8)])]).unwrap();
        assert_eq!(t.end.wait(1)[0].status, WcStatus::Success);
        assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
    }
    assert_eq!(maps_of(&file), 1);

    assert_eq!(t.other.ask("rights"), "changed");
    until_unmapped(&t, &file);
    t.until_direct();
    assert_eq!(maps_of(&file), 1);

    assert_eq!(t.other.ask("dereg"), "quiet true soon true");
    until_unmapped(&t, &file);
    let there = t.other.ask("counters");
    assert!(!there.contains("direct_ends_untold"), "{there}");
}

/// Whether an entry of `smaps` is as long as the other process's memory.
fn is_of_bytes(entry: &str) -> bool {
    let size = entry.lines().find_map(|line| line.strip_prefix("Size:")).unwrap();
    size.trim().strip_suffix(" kB").unwrap().parse() == Ok(BYTES / 1024)
}

#[test]
fn consent_ends_with_the_path_of_either_end_and_is_given_anew() {
    let mut t = Rig::new("mapped");
    t.until_direct();
    let before = t.counters();
    assert_eq!(t.other.ask("repath"), "changed");
    let write = |t: &Rig| t.run(SendOp::Write(t.remote), &[t.end.sge(0, 8)]);
    assert_eq!(write(&t), WcStatus::Success);
    let now = t.counters();
    assert_eq!((now.writes, now.refused_closed), (before.writes, before.refused_closed + 1));
    t.until_direct();

    let before = t.counters();
    repath(&t.end, &t.qp);
    assert_eq!(write(&t), WcStatus::Success);
    assert_eq!(t.counters().writes, before.writes, "by the consent for the path before");
    t.until_direct();
}

#[test]
fn wrong_requests_end_as_they_do_with_packets() {
    type Wrong = fn(&Rig) -> (SendOp, Vec<Sge>);
    let wrong: [(&str, Wrong, WcStatus); 6] = [
        (
            "bounds",
            |t| (SendOp::Write(t.at(BYTES as u64 - 4)), vec![t.end.sge(0, 8)]),
            WcStatus::RemoteAccess,
        ),
        (
            "below",
            |t| {
                (
                    SendOp::Read(Remote { addr: t.remote.addr - 1, ..t.remote }),
                    vec![t.end.sge(0, 8)],
                )
            },
            WcStatus::RemoteAccess,
        ),
        (
            "key",
            |t| {
                (
                    SendOp::Write(Remote {
                        rkey: Rkey(t.remote.rkey.value() ^ 0x5500),
                        ..t.remote
                    }),
                    vec![t.end.sge(0, 8)],
                )
            },
            WcStatus::RemoteAccess,
        ),
        (
            "misaligned",
            |t| (SendOp::FetchAdd { remote: t.at(4), add: 1 }, vec![t.end.sge(0, 8)]),
            WcStatus::RemoteInvalidRequest,
        ),
        (
            "local key",
            |t| (SendOp::Write(t.remote), vec![Sge { lkey: Lkey(1), ..t.end.sge(0, 8) }]),
            WcStatus::LocalProtection,
        ),
        (
            "local bounds",
            |t| (SendOp::Read(t.remote), vec![t.end.sge(MEMORY as u64 - 4, 8)]),
            WcStatus::LocalProtection,
        ),
    ];
    for (what, op, status) in wrong {
        let mut wire = direct_config();
        wire.set("force_wire", "on").unwrap();
        let by_packets = outcome(wire, op);
        let direct = outcome(direct_config(), op);
        assert_eq!(direct.0, status, "{what}");
        assert_eq!((direct.0, &direct.2), (by_packets.0, &by_packets.2), "{what}");
        // Keys and addresses are drawn anew.
        let cause = |text: &str| {
            let end = [text.find("key"), text.find("addr")].into_iter().flatten().min();
            text[..end.unwrap_or(text.len())].to_owned()
        };
        assert_eq!(cause(&direct.1), cause(&by_packets.1), "{what}");
    }
}
