//! Two processes of one host that send each other messages of all sizes through memory, of which
//! one is killed at a random moment: whatever the other has on its way ends soon, and what came
//! before is whole.
//!
//! `VERNIC_TEST_KILLS` says how many are killed, if it is set.

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::io::Write;
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
    end: End,
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
    fn new(direct: bool, seed: u64) -> Self {
        let end = End::with(if direct { direct_config() } else { near_config() });
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

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (kind, seed) = role.split_once(' ').unwrap();
    let mut traffic = Traffic::new(kind == "direct", seed.parse().unwrap());
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

/// Kills the other process of a pair. Returns how many messages came before, and how long what was
/// on its way took to end.
fn kill(seed: u64) -> (u64, Duration) {
    let direct = seed.is_multiple_of(2);
    let mut other =
        Other::start(&format!("{} {}", if direct { "direct" } else { "near" }, seed + 1000));
    let mut traffic = Traffic::new(direct, seed);
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
    for seed in 0..kills {
        let (count, took) = kill(seed);
        received += count;
        longest = longest.max(took);
    }
    println!("{kills} kills, {received} messages before them, the longest end {longest:?}");
    assert_ne!(received, 0);
}
