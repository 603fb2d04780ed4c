//! Streams between processes of one host that may write into each other's memory.
//!
//! The test starts this program again as the other process: see [`the_other_process`].
#![allow(clippy::print_stdout)] // the test harness

mod common;
mod late;

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use vernic_cm::{Config, Manager};
use vernic_engine::Context;
use vernic_rsocket::{RDMA_IOMAPSIZE, Runtime, SOL_RDMA, Settings, Socket};

/// Tells the other process where to connect to.
const PEER: &str = "VERNIC_NEAR_TEST_PEER";

/// Bytes that the other process has room for on a connection that it closes: a copy takes so long
/// that it closes in the middle of some.
const RING: i32 = 32 << 20;
/// Bytes that it takes before.
const CLOSES_AFTER: usize = 16 << 20;

/// Tells it to close so many connections, one after the other, while bytes come.
const CLOSES: &str = "VERNIC_NEAR_TEST_CLOSES";

fn runtime_and_manager() -> (Arc<Runtime>, Arc<Manager>) {
    let mut config = Config::default();
    config.set("same_host", "on").unwrap();
    config.set("direct", "on").unwrap();
    let manager = Manager::new(config);
    (Arc::new(Runtime::new(&manager, Settings::default()).unwrap()), manager)
}

/// Not a test of its own: what the other process runs. It sends back what comes, on each of two
/// connections, or closes them.
#[test]
fn the_other_process() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let (runtime, _manager) = runtime_and_manager();
    if let Ok(count) = std::env::var(CLOSES) {
        for _ in 0..count.parse().unwrap() {
            let socket = stream(&runtime);
            set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RING / 2);
            socket.connect(peer.parse().unwrap()).unwrap();
            recv_exact(&socket, CLOSES_AFTER);
            socket.close();
        }
        return;
    }
    let send_back = |socket: Socket| {
        loop {
            let bytes = recv(&socket, 100_000).unwrap();
            if bytes.is_empty() {
                return;
            }
            send_all(&socket, &bytes);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let socket = stream(&runtime);
            set_int(&socket, SOL_RDMA, RDMA_IOMAPSIZE, 16);
            socket.connect(peer.parse().unwrap()).unwrap();
            scope.spawn(move || send_back(socket));
        }
    });
}

/// The other process, and two connections with it.
struct Neighbour {
    sockets: [Socket; 2],
    context: Arc<Context>,
    other: Child,
    _runtime: Arc<Runtime>,
}

fn start(listener: &Socket, closes: Option<usize>) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process"])
        .env(PEER, listener.local_addr().unwrap().to_string())
        .envs(closes.map(|count| (CLOSES, count.to_string())))
        .spawn()
        .unwrap()
}

impl Neighbour {
    fn new() -> Self {
        let (runtime, manager) = runtime_and_manager();
        let listener = listener(&runtime);
        let other = start(&listener, None);
        let sockets = [(); 2].map(|()| listener.accept().unwrap());
        let info = manager.devices().unwrap().into_iter().find(|device| device.port.netdev == "lo");
        let context = manager.context(&info.unwrap().name).unwrap();
        Self { sockets, context, other, _runtime: runtime }
    }

    /// Bytes that went straight into its memory.
    fn placed(&self) -> u64 {
        self.context.counters().direct.bytes
    }

    /// Sends bytes there and back.
    fn echo(&self, socket: usize, bytes: &[u8]) {
        let socket = &self.sockets[socket];
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(socket, bytes));
            assert!(recv_exact(socket, bytes.len()) == bytes, "{} bytes", bytes.len());
        });
    }

    /// Until both have met and consented.
    fn until_placed(&self) {
        let bytes = content(0, 100_000);
        for socket in 0..2 {
            let before = self.placed();
            let mut rounds = 0;
            while self.placed() == before {
                self.echo(socket, &bytes);
                rounds += 1;
                assert!(rounds < 1000, "nothing was ever placed: {}", self.context.counters());
            }
        }
    }

    fn end(mut self) {
        self.sockets.iter().for_each(Socket::close);
        assert!(self.other.wait().unwrap().success());
    }
}

#[test]
fn long_messages_to_a_neighbour_go_straight_into_its_memory_and_arrive_in_order() {
    let _alone = alone();
    let neighbour = Neighbour::new();
    neighbour.until_placed();
    let lengths = [1, 1000, 1023, 1024, 5000, 65_536, 65_537, 300_000, 3 << 20];
    for round in 0..3 {
        let before = neighbour.placed();
        for (seed, len) in lengths.into_iter().enumerate() {
            neighbour.echo(0, &content(round * 100 + seed as u64, len));
        }
        let all: usize = lengths.iter().filter(|len| **len >= 1024).sum();
        let share = neighbour.placed() - before;
        println!("round {round}: {share} of {all} bytes");
        assert!(share > 0);
    }
    neighbour.end();
}

#[test]
fn a_buffer_that_is_mapped_while_bytes_go_there_costs_none_of_them() {
    let _alone = alone();
    let neighbour = Neighbour::new();
    neighbour.until_placed();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| map_again_and_again(&neighbour.sockets[0], &is_over));
        for round in 0..20 {
            neighbour.echo(0, &content(round, 1 << 20));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    neighbour.end();
}

#[test]
fn who_sends_to_a_neighbour_that_closes_is_told_of_its_end_and_of_no_reset() {
    const ROUNDS: usize = 60;
    let _alone = alone();
    let (runtime, _manager) = runtime_and_manager();
    let listener = listener(&runtime);
    let mut other = start(&listener, Some(ROUNDS));
    let bytes = content(1, RING as usize);
    for round in 0..ROUNDS {
        let socket = listener.accept().unwrap();
        let error = loop {
            match send(&socket, &bytes) {
                Ok(count) if count > 0 => {}
                sent => break sent.unwrap_err(),
            }
        };
        assert_eq!(error.errno(), libc::EPIPE, "in round {round}: {error}");
        let rest = recv(&socket, 1).map_err(|error| error.to_string());
        assert_eq!(rest, Ok(Vec::new()), "in round {round}");
        socket.close();
    }
    assert!(other.wait().unwrap().success());
}

/// A program may have what it sends in memory that is filled only when it is looked at, by one who
/// needs the network for it.
#[test]
fn bytes_that_must_be_fetched_first_keep_nobody_from_the_device() {
    let _alone = alone();
    let neighbour = Neighbour::new();
    neighbour.until_placed();
    let Some(cold) = late::Memory::new(16) else {
        println!("skipped: this user must not fill memory when it is looked at (userfaultfd)");
        return neighbour.end();
    };
    let (first, second) = (&neighbour.sockets[0], &neighbour.sockets[1]);
    let patience = libc::timeval { tv_sec: 10, tv_usec: 0 };
    second.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &bytes_of(patience)).unwrap();
    let expected: Vec<Vec<u8>> = (0..16).map(|page| content(page, late::PAGE)).collect();
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            let mut all_came = true;
            for _ in 0..expected.len() {
                let page = cold.wait_for_a_look();
                if all_came {
                    // It comes by the same device.
                    send_all(second, &expected[page]);
                    let came = recv_flags(second, late::PAGE, libc::MSG_WAITALL);
                    all_came = came.is_ok_and(|came| came == expected[page]);
                }
                cold.fill(page, &expected[page]);
            }
            all_came
        });
        scope.spawn(|| send_all(first, cold.bytes()));
        assert!(recv_exact(first, expected.len() * late::PAGE) == expected.concat());
        assert!(fetching.join().unwrap(), "the device was held while its user waited");
    });
    neighbour.end();
}

fn bytes_of(time: libc::timeval) -> Vec<u8> {
    [time.tv_sec.to_ne_bytes(), time.tv_usec.to_ne_bytes()].concat()
}
