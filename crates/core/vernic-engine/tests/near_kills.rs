//! Two processes of one host that send each other messages of all sizes through memory, of which
//! one is killed at a random moment: whatever the other has on its way ends soon, what came before
//! is whole, and no descriptor or file is left.
//!
//! `VERNIC_TEST_KILLS` says how many are killed, if it is set.

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::direct::direct_config;
use common::near::near_config;
use common::other::{Other, ROLE};
use common::*;
use vernic_engine::*;

/// How soon after the kill everything has ended.
const BOUND: Duration = Duration::from_secs(2);
/// How many are killed by default.
const KILLS: u64 = 24;
/// The latest kill, after both are connected: some have not met by then, others send large messages
/// by one copy.
const LATEST_US: u64 = 150_000;

const LENGTHS: [u32; 12] =
    [0, 8, 48, 49, 200, 4096, 4097, 60_000, 128 << 10, 200_001, 777_777, 1 << 20];
/// Messages that are on their way at a time.
const SENDS: usize = 16;
/// Receives that are posted at a time, 1 MiB each.
const RECEIVES: u64 = 4;
const MIB: u32 = 1 << 20;
/// Bytes that are sent; the receives are behind them.
const SENT: u32 = 4 * MIB;
/// Set in the id of a receive.
const RECEIVE: u64 = 1 << 32;

/// Xorshift: a test needs variety, not quality.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One process's half of the traffic.
struct Traffic {
    end: Arc<End>,
    qp: Arc<Qp>,
    random: Random,
    /// What both processes send out of.
    bytes: Vec<u8>,
    /// Sends on their way.
    sends: usize,
    /// Receives that are not posted.
    idle: Vec<u64>,
    late_until: Instant,
    received: u64,
    has_failed: bool,
}

impl Traffic {
    fn new(end: Arc<End>, seed: u64) -> Self {
        let (qp, bytes) = (end.qp(Service::Rc), pattern(SENT as usize, 5));
        end.fill(0, &bytes);
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (idle, late_until) = ((0..RECEIVES).collect(), Instant::now());
        Self { end, qp, random, bytes, sends: 0, idle, late_until, received: 0, has_failed: false }
    }

    fn connect(&self, peer: Qpn) {
        let setup = Setup {
            timeout: AckTimeout::new(18),
            min_rnr_timer: RnrTimer::new(1),
            ..Setup::default()
        };
        connect(&self.end, &self.qp, self.end.gid().1, peer, setup);
    }

    /// Posts what there is room for. The receiver is late at times.
    fn post(&mut self) {
        while self.sends < SENDS {
            let length = LENGTHS[self.random.below(LENGTHS.len() as u64) as usize];
            let at = self.random.below(u64::from((SENT - length) / 64 + 1)) * 64;
            let op = SendOp::SendImm((at / 64) as u32);
            self.qp.post_send(&[wr(1, op, &[self.end.sge(at, length)])]).unwrap();
            self.sends += 1;
        }
        if Instant::now() < self.late_until {
            return;
        }
        while let Some(slot) = self.idle.pop() {
            let at = u64::from(SENT) + slot * u64::from(MIB);
            let sges = [self.end.sge(at, MIB)];
            self.qp.post_recv(&[RecvWr { wr_id: RECEIVE | slot, sges: &sges }]).unwrap();
        }
        if self.random.below(64) == 0 {
            self.late_until = Instant::now() + Duration::from_micros(self.random.below(3000));
        }
    }

    /// Takes what has ended.
    fn poll(&mut self) {
        let mut done = [EMPTY_WC; 16];
        let count = self.end.cq.poll(&mut done).unwrap();
        for wc in &done[..count] {
            let has_failed = wc.status != WcStatus::Success;
            assert!(has_failed || !self.has_failed, "{wc:?} after a failure");
            self.has_failed = has_failed;
            if wc.wr_id & RECEIVE == 0 {
                self.sends -= 1;
                continue;
            }
            let slot = wc.wr_id & !RECEIVE;
            if !has_failed {
                self.check(slot, wc);
                self.received += 1;
            }
            self.idle.push(slot);
        }
    }

    /// Checks every byte of what came.
    fn check(&self, slot: u64, wc: &Wc) {
        let Tag::Imm(at) = wc.tag else { panic!("{wc:?}") };
        let (at, len) = (at as usize * 64, wc.byte_len as usize);
        let came = self.end.bytes((SENT + slot as u32 * MIB) as usize, len);
        assert!(came == self.bytes[at..at + len], "other bytes came: {wc:?}");
    }

    /// Whether nothing is on its way.
    fn is_over(&self) -> bool {
        self.sends == 0 && self.idle.len() as u64 == RECEIVES
    }
}

fn survivor(direct: bool) -> Arc<End> {
    Arc::new(End::with(if direct { direct_config() } else { near_config() }))
}

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (kind, seed) = role.split_once(' ').unwrap();
    let mut traffic = Traffic::new(survivor(kind == "direct"), seed.parse().unwrap());
    println!("> {}", traffic.qp.qpn().value());
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    traffic.connect(Qpn::new(line.trim().parse().unwrap()));
    println!("> connected");
    std::io::stdout().flush().unwrap();
    // Until it is killed.
    loop {
        traffic.post();
        traffic.poll();
        assert!(!traffic.has_failed, "{:?}", traffic.qp.explain());
    }
}

/// What this process has open, and the files in shared memory. UDP sockets are left out: a link
/// opens more of them with the number of queue pairs, up to a limit.
fn open_files() -> BTreeMap<String, usize> {
    let named = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let udp: Vec<_> = ["/proc/self/net/udp", "/proc/self/net/udp6"]
        .map(|path| std::fs::read_to_string(path).unwrap())
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(9)?)))
        .collect();
    let is_udp = |name: &PathBuf| udp.iter().any(|udp| name.as_os_str() == udp.as_str());
    // The directory that is being read is gone when its own entry is looked up.
    let open = named("/proc/self/fd").into_iter().filter_map(|fd| std::fs::read_link(fd).ok());
    let ours = |path: &PathBuf| path.to_string_lossy().contains("vernic");
    let shared = named("/dev/shm").into_iter().filter(ours);
    // Sockets and other nameless files have a number, which is another each time.
    let kind = |name: PathBuf| {
        name.to_string_lossy().trim_end_matches(|c: char| c.is_ascii_digit() || c == ']').to_owned()
    };
    let mut all = BTreeMap::new();
    open.filter(|name| !is_udp(name))
        .chain(shared)
        .map(kind)
        .for_each(|kind| *all.entry(kind).or_insert(0) += 1);
    all
}

/// Kills the other process of a pair. Returns how many messages came before, and how long what was
/// on its way took to end.
fn kill(end: &Arc<End>, direct: bool, seed: u64) -> (u64, Duration) {
    let mut other =
        Other::start(&format!("{} {}", if direct { "direct" } else { "near" }, seed + 1000));
    let mut traffic = Traffic::new(end.clone(), seed);
    let peer = Qpn::new(other.hear().parse().unwrap());
    other.tell(&traffic.qp.qpn().value().to_string());
    assert_eq!(other.hear(), "connected");
    traffic.connect(peer);
    let (since, delay) = (Instant::now(), traffic.random.below(LATEST_US));
    while since.elapsed() < Duration::from_micros(delay) {
        traffic.post();
        traffic.poll();
        assert!(!traffic.has_failed, "seed {seed}: {:?}", traffic.qp.explain());
    }
    other.signal(libc::SIGKILL);
    let killed = Instant::now();
    while !(traffic.has_failed && traffic.is_over()) {
        if !traffic.has_failed {
            traffic.post();
        }
        traffic.poll();
        let left = (traffic.sends, RECEIVES - traffic.idle.len() as u64);
        let context = &traffic.end.context;
        assert!(
            killed.elapsed() < BOUND,
            "seed {seed}, killed after {delay} us: {left:?} left, {}, {}",
            traffic.qp.route(),
            context.counters()
        );
    }
    let took = killed.elapsed();
    assert_eq!(traffic.qp.state(), QpState::Error, "seed {seed}");
    let cause = traffic.qp.explain().unwrap().failure.cause;
    assert_eq!(cause, Cause::PeerGone, "seed {seed}, killed after {delay} us");
    (traffic.received, took)
}

#[test]
fn a_process_that_is_killed_while_messages_are_on_their_way_ends_them_all_soon() {
    let kills = std::env::var("VERNIC_TEST_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let (mut received, mut longest) = (0, Duration::ZERO);
    let survivors = [survivor(true), survivor(false)];
    let mut open = BTreeMap::new();
    for seed in 0..kills {
        let direct = seed.is_multiple_of(2);
        let end = &survivors[usize::from(!direct)];
        let (count, took) = kill(end, direct, seed);
        received += count;
        longest = longest.max(took);
        // The first deaths leave what a device keeps: its files of revocation words, say.
        if seed < 4 {
            open = open_files();
        }
        let since = Instant::now();
        while open_files() != open {
            let more = open_files();
            assert!(since.elapsed() < BOUND, "seed {seed}: {more:?} are open, before {open:?}");
            for end in &survivors {
                end.context.progress();
            }
        }
    }
    println!("{kills} kills, {received} messages before them, the longest end {longest:?}");
    assert_ne!(received, 0);
}
