//! One-sided requests between processes of one host that take no packets: that they are done, that nothing but
//! their way differs from packets, and that whoever takes memory back, or dies, is safe.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`], line by line as it is told.

#![allow(clippy::print_stdout, unsafe_code)] // how the processes talk; memory that is registered

mod common;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::other::{Other, ROLE};
use common::*;
use vernic_engine::*;
use vernic_mem::HostBuffer;

/// Bytes of that memory.
const BYTES: usize = 4 << 20;
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

impl Other {
    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// A number that stands for bytes.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// What the other process has.
struct There {
    end: End,
    qp: Arc<Qp>,
    buffer: HostBuffer,
    mr: Option<Arc<Mr>>,
}

impl There {
    fn new(memory: &str) -> Self {
        let mut config = direct_config();
        if memory == "hasty" {
            // No process answers that soon: its peers are strangers to it.
            config.set("peer_query_us", "1").unwrap();
        }
        if memory == "unwilling" {
            config.set("direct", "off").unwrap();
        }
        let end = End::with(config);
        let qp = end.qp(Service::Rc);
        let buffer = match memory {
            "private" => HostBuffer::private(BYTES),
            _ => HostBuffer::new(BYTES),
        };
        let mut this = Self { end, qp, buffer: buffer.unwrap(), mr: None };
        this.register();
        this
    }

    fn register(&mut self) {
        let at = self.buffer.as_mut_ptr();
        // SAFETY: the buffer goes after the region, and is accessed by its racy copies only.
        let mr = unsafe { self.end.pd.reg_mr(at, BYTES as u64, at.addr() as u64, RIGHTS) };
        self.mr = Some(mr.unwrap());
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read_at(at, &mut bytes).unwrap();
        bytes
    }

    fn describe(&self) -> String {
        let mr = self.mr.as_ref().unwrap();
        format!("{} {} {}", self.qp.qpn().value(), mr.iova(), mr.rkey().value())
    }

    /// Does what a line says and returns the answer.
    fn obey(&mut self, line: &str) -> String {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let n: Vec<u64> =
            if word == "connect" || !rest.is_empty() { numbers(rest) } else { vec![] };
        match word {
            "connect" => {
                connect(&self.end, &self.qp, self.end.gid().1, Qpn::new(n[0] as u32), setup());
                "connected".to_owned()
            }
            "receive" => {
                for wr_id in 0..n[0] {
                    self.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
                }
                "receiving".to_owned()
            }
            // After each of so many receives, the word at the start of memory.
            "watch" => {
                let mut seen = Vec::new();
                while seen.len() < n[0] as usize {
                    for wc in self.end.wait(1) {
                        assert_eq!(wc.status, WcStatus::Success);
                        let word = self.bytes(0, 8);
                        seen.push(u64::from_ne_bytes(word.try_into().unwrap()));
                    }
                }
                format!("{seen:?}")
            }
            "sum" => sum(&self.bytes(n[0] as usize, n[1] as usize)).to_string(),
            "fill" => {
                self.buffer.write_at(n[0] as usize, &pattern(n[1] as usize, n[2] as u32)).unwrap();
                "filled".to_owned()
            }
            // Takes the memory back, and looks whether anybody still writes to it.
            "dereg" => {
                let since = Instant::now();
                self.mr.take().unwrap().deregister().unwrap();
                self.is_quiet(since)
            }
            "reset" => {
                let since = Instant::now();
                let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                self.qp.modify(&attr, AttrMask::STATE).unwrap();
                self.is_quiet(since)
            }
            "state" => format!("{:?}", self.qp.state()),
            "counters" => self.end.context.counters().to_string(),
            // Nobody without privilege may look into this process.
            "hide" => {
                // SAFETY: no pointers are passed.
                let ret = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
                format!("hidden {ret}")
            }
            // Writes to a peer until it cannot.
            "hammer" => {
                let remote = Remote { addr: n[0], rkey: Rkey(n[1] as u32) };
                println!("> hammering");
                std::io::stdout().flush().unwrap();
                hammer(&self.end, &self.qp, remote)
            }
            other => panic!("{other:?} means nothing"),
        }
    }

    fn is_quiet(&self, since: Instant) -> String {
        let took = since.elapsed();
        self.buffer.write_at(0, &vec![0xA5; BYTES]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let quiet = self.bytes(0, BYTES).iter().all(|&byte| byte == 0xA5);
        // The patience with a visitor that is stopped is a second.
        let soon = took < Duration::from_secs(10);
        format!("quiet {quiet} soon {soon}")
    }
}

/// Writes 1 MiB over and over until that fails, and says with what.
fn hammer(end: &End, qp: &Qp, remote: Remote) -> String {
    let since = Instant::now();
    let sges = [end.sge(0, 1 << 20)];
    loop {
        if qp.post_send(&[wr(1, SendOp::Write(remote), &sges)]).is_err() {
            return "post refused".to_owned();
        }
        let wc = end.wait(1)[0];
        if wc.status != WcStatus::Success {
            return format!("{:?}", wc.status);
        }
        assert!(since.elapsed() < PATIENCE, "nothing ever failed");
    }
}

fn direct_config() -> Config {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    config.set("direct", "on").unwrap();
    config
}

fn setup() -> Setup {
    Setup { timeout: AckTimeout::new(14), retry_cnt: 3, ..Setup::default() }
}

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(memory) = std::env::var(ROLE) else { return };
    let mut there = There::new(&memory);
    println!("> {}", there.describe());
    std::io::stdout().flush().unwrap();
    for line in std::io::stdin().lines() {
        let answer = there.obey(&line.unwrap());
        println!("> {answer}");
        std::io::stdout().flush().unwrap();
    }
}

/// This process, connected to another one.
struct Rig {
    other: Other,
    end: End,
    qp: Arc<Qp>,
    remote: Remote,
}

impl Rig {
    fn new(memory: &str) -> Self {
        Self::with(memory, direct_config())
    }

    fn with(memory: &str, config: Config) -> Self {
        let mut other = Other::start(memory);
        let end = End::with(config);
        let qp = end.qp(Service::Rc);
        let n = numbers(&other.hear());
        let remote = Remote { addr: n[1], rkey: Rkey(n[2] as u32) };
        assert_eq!(other.ask(&format!("connect {}", qp.qpn().value())), "connected");
        connect(&end, &qp, end.gid().1, Qpn::new(n[0] as u32), setup());
        Self { other, end, qp, remote }
    }

    fn at(&self, offset: u64) -> Remote {
        Remote { addr: self.remote.addr + offset, ..self.remote }
    }

    fn counters(&self) -> DirectCounters {
        self.end.context.counters().direct
    }

    fn run(&self, op: SendOp, sges: &[Sge]) -> WcStatus {
        self.qp.post_send(&[wr(1, op, sges)]).unwrap();
        self.end.wait(1)[0].status
    }

    /// Writes until that takes no packets: until the other process has consented.
    fn until_direct(&self) {
        let since = Instant::now();
        let at_first = self.counters().writes;
        while self.counters().writes == at_first {
            let status = self.run(SendOp::Write(self.remote), &[self.end.sge(0, 8)]);
            assert_eq!(status, WcStatus::Success);
            assert!(since.elapsed() < PATIENCE, "never direct: {}", self.end.context.counters());
        }
    }
}

#[test]
fn what_is_written_and_read_without_packets_is_what_was_there() {
    for memory in ["mapped", "private"] {
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
    for memory in ["mapped", "private"] {
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
        assert_eq!(direct, if memory == "mapped" { 3 } else { 0 });
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

#[test]
fn who_takes_memory_back_has_it_for_himself() {
    for memory in ["mapped", "private"] {
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
    // As it is unless somebody asks for it.
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    let t = Rig::with("mapped", config);
    for _ in 0..200 {
        let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100)]);
        assert_eq!(status, WcStatus::Success);
    }
    assert_eq!(t.counters(), DirectCounters::default());
}

/// Takes from the calling thread, and from those that it starts, the right to look into other processes.
fn give_up_privilege() {
    /// Version 3 of `capget` and `capset`, and the number of the right (`linux/capability.h`).
    const VERSION: u32 = 0x2008_0522;
    const SYS_PTRACE: u32 = 19;
    let header = [VERSION, 0];
    // Effective, permitted and inheritable rights, twice 32 of them.
    let mut rights = [0_u32; 6];
    // SAFETY: the structures are as the kernel has them, and live through the calls.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), rights.as_mut_ptr()), 0);
        rights[..3].iter_mut().for_each(|set| *set &= !(1 << SYS_PTRACE));
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), rights.as_ptr()), 0);
    }
}

#[test]
fn where_the_kernel_forbids_access_everything_takes_packets_and_is_counted() {
    // Rights are those of a thread.
    let unprivileged = std::thread::spawn(|| {
        give_up_privilege();
        let mut t = Rig::new("private");
        assert_eq!(t.other.ask("hide"), "hidden 0");
        let since = Instant::now();
        while t.counters().refused_not_permitted == 0 {
            let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100)]);
            assert_eq!(status, WcStatus::Success);
            assert!(since.elapsed() < PATIENCE, "{}", t.end.context.counters());
        }
        t.end.fill(0, &pattern(100_000, 9));
        for _ in 0..20 {
            let status = t.run(SendOp::Write(t.remote), &[t.end.sge(0, 100_000)]);
            assert_eq!(status, WcStatus::Success);
        }
        assert_eq!(t.other.ask("sum 0 100000"), sum(&pattern(100_000, 9)).to_string());
        // It was tried once.
        let counters = t.counters();
        assert_eq!((counters.writes, counters.refused_not_permitted), (0, 1));
    });
    unprivileged.join().unwrap();
}
