//! Bytes that are put into a local peer's memory outside of the send queue.
//!
//! The tests start this program again as the other process; what that one does is in
//! [`the_other_process`], line by line as it is told.

#![allow(clippy::print_stdout, unsafe_code)] // how the processes talk; memory that is registered

mod common;

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use common::other::{Other, ROLE};
use common::*;
use vernic_engine::*;
use vernic_mem::HostBuffer;

/// Bytes of the other process's memory.
const BYTES: usize = 1 << 20;

fn config() -> Config {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    config.set("direct", "on").unwrap();
    config
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, &byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Not a test of its own: what the other process runs.
#[test]
fn the_other_process() {
    let Ok(memory) = std::env::var(ROLE) else { return };
    let end = End::with(config());
    let qp = end.qp(Service::Rc);
    let buffer = match memory.as_str() {
        "private" => HostBuffer::private(BYTES),
        _ => HostBuffer::new(BYTES),
    };
    let buffer = buffer.unwrap();
    let (at, rights) = (buffer.as_mut_ptr(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    // SAFETY: the buffer goes after the region, and is accessed by its racy copies only.
    let mr = unsafe { end.pd.reg_mr(at, BYTES as u64, at.addr() as u64, rights) }.unwrap();
    let say = |text: String| {
        println!("> {text}");
        std::io::stdout().flush().unwrap();
    };
    say(format!("{} {} {}", qp.qpn().value(), mr.iova(), mr.rkey().value()));
    let bytes = |at: u64, len: u64| {
        let mut bytes = vec![0; len as usize];
        buffer.read_at(at as usize, &mut bytes).unwrap();
        bytes
    };
    let mut mr = Some(mr);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let n = numbers(rest);
        match word {
            "connect" => {
                connect(&end, &qp, end.gid().1, Qpn::new(n[0] as u32), Setup::default());
                say("connected".to_owned());
            }
            "sum" => say(sum(&bytes(n[0], n[1])).to_string()),
            // After each of so many messages without bytes, the word at the start of memory.
            "watch" => {
                let receive = || qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
                receive();
                say("watching".to_owned());
                for _ in 0..n[0] {
                    assert_eq!(end.wait(1)[0].status, WcStatus::Success);
                    receive();
                    say(u64::from_ne_bytes(bytes(0, 8).try_into().unwrap()).to_string());
                }
            }
            "dereg" => {
                mr.take().unwrap().deregister().unwrap();
                say("gone".to_owned());
            }
            other => panic!("{other:?} means nothing"),
        }
    }
}

struct Rig {
    other: Other,
    end: End,
    qp: Arc<Qp>,
    remote: Remote,
}

impl Rig {
    fn new(memory: &str) -> Self {
        let mut other = Other::start(memory);
        let end = End::with(config());
        let qp = end.qp(Service::Rc);
        let n = numbers(&other.hear());
        let remote = Remote { addr: n[1], rkey: Rkey(n[2] as u32) };
        let mut this = Self { other, end, qp, remote };
        let own = this.qp.qpn().value();
        assert_eq!(this.ask(&format!("connect {own}")), "connected");
        let peer = Qpn::new(n[0] as u32);
        connect(&this.end, &this.qp, this.end.gid().1, peer, Setup::default());
        this
    }

    fn ask(&mut self, line: &str) -> String {
        self.other.tell(line);
        self.other.hear()
    }

    fn place(&self, offset: u64, bytes: &[u8]) -> Placed {
        let to = Remote { addr: self.remote.addr + offset, ..self.remote };
        self.qp.place(to, bytes.len() as u32, |write| bytes.chunks(1000).for_each(write))
    }

    /// Places the bytes as soon as no other thread makes progress on the device.
    fn put(&self, offset: u64, bytes: &[u8]) {
        let since = Instant::now();
        loop {
            match self.place(offset, bytes) {
                Placed::Whole => return,
                Placed::Not => assert!(since.elapsed() < PATIENCE, "never placed"),
                Placed::Cut => panic!("nobody took anything back"),
            }
        }
    }

    fn run(&self, op: SendOp, sges: &[Sge]) {
        self.qp.post_send(&[wr(1, op, sges)]).unwrap();
        assert_eq!(self.end.wait(1)[0].status, WcStatus::Success);
    }

    /// Until the other process is connected, and has answered: by packets or not.
    fn until_granted(&self) {
        let since = Instant::now();
        while self.end.context.counters().direct.writes == 0 {
            self.run(SendOp::Write(self.remote), &[self.end.sge(0, 8)]);
            assert!(since.elapsed() < PATIENCE, "never: {}", self.end.context.counters());
        }
    }
}

#[test]
fn what_is_placed_is_there_and_took_no_packets() {
    let mut t = Rig::new("mapped");
    assert_eq!(t.place(0, b"too soon"), Placed::Not, "nobody was asked");
    t.until_granted();
    let before = t.end.context.counters();
    let data = pattern(100_000, 3);
    for len in [1, 8, 999, 1000, 4097, 100_000] {
        t.put(len as u64, &data[..len]);
        assert_eq!(t.ask(&format!("sum {len} {len}")), sum(&data[..len]).to_string());
    }
    let now = t.end.context.counters();
    assert_eq!(now.direct.writes - before.direct.writes, 6);
    assert_eq!(now.direct.bytes - before.direct.bytes, 106_105);
    assert_eq!(now.near_tx_packets, before.near_tx_packets);
    // What is beyond the length is left out.
    t.put(0, b"1234");
    let pieces = [&b"ab"[..], b"", b"cd"];
    let put = || t.qp.place(t.remote, 3, |write| pieces.into_iter().for_each(write));
    assert!((0..1_000_000).any(|_| put() == Placed::Whole));
    assert_eq!(t.ask("sum 0 4"), sum(b"abc4").to_string());
}

#[test]
fn a_message_that_is_posted_later_is_seen_later() {
    const TURNS: u64 = 500;
    let mut t = Rig::new("mapped");
    t.until_granted();
    assert_eq!(t.ask(&format!("watch {TURNS}")), "watching");
    for turn in 1..=TURNS {
        t.put(0, &turn.to_ne_bytes());
        t.run(SendOp::WriteImm(t.remote, 7), &[]);
        assert_eq!(t.other.hear(), turn.to_string());
    }
}

#[test]
fn nothing_is_placed_where_it_was_not_permitted() {
    let mut t = Rig::new("mapped");
    t.until_granted();
    let refused = t.end.context.counters().direct.refused_range;
    let beyond = Remote { addr: t.remote.addr + BYTES as u64 - 7, ..t.remote };
    let range_refused = || t.end.context.counters().direct.refused_range - refused;
    while range_refused() == 0 {
        let placed = t.qp.place(beyond, 8, |_| panic!("there is no room"));
        assert_eq!(placed, Placed::Not);
    }
    assert_eq!(range_refused(), 1);
    t.put(BYTES as u64 - 8, &[1; 8]);
    assert_eq!(t.ask("dereg"), "gone");
    // At first by the revocation word, then for lack of a grant, which it is notified to give up.
    for _ in 0..1000 {
        assert_eq!(t.place(0, b"after"), Placed::Not);
    }
    // Memory that is not mapped could fail half-way.
    let t = Rig::new("private");
    t.until_granted();
    assert_eq!(t.place(0, b"private"), Placed::Not);
}
