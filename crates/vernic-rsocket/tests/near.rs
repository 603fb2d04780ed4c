//! Streams between processes of one host that may write into each other's memory.
//!
//! The test starts this program again as the other process: see [`the_other_process`].
#![allow(clippy::print_stdout)] // the test harness

mod common;

use std::process::Command;
use std::sync::Arc;

use common::*;
use vernic_cm::{Config, Manager};
use vernic_rsocket::{Runtime, Settings};

/// Tells the other process where to connect to.
const PEER: &str = "VERNIC_NEAR_TEST_PEER";

fn runtime_and_manager() -> (Arc<Runtime>, Arc<Manager>) {
    let mut config = Config::default();
    config.set("same_host", "on").unwrap();
    config.set("direct", "on").unwrap();
    let manager = Manager::new(config);
    (Arc::new(Runtime::new(&manager, Settings::default()).unwrap()), manager)
}

/// Not a test of its own: what the other process runs. It sends back what comes.
#[test]
fn the_other_process() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let (runtime, _manager) = runtime_and_manager();
    let socket = stream(&runtime);
    socket.connect(peer.parse().unwrap()).unwrap();
    loop {
        let bytes = recv(&socket, 100_000).unwrap();
        if bytes.is_empty() {
            return;
        }
        send_all(&socket, &bytes);
    }
}

#[test]
fn long_messages_to_a_neighbour_go_straight_into_its_memory_and_arrive_in_order() {
    let (runtime, manager) = runtime_and_manager();
    let listener = listener(&runtime);
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process"])
        .env(PEER, listener.local_addr().unwrap().to_string())
        .spawn()
        .unwrap();
    let socket = listener.accept().unwrap();
    let info = manager.devices().unwrap().into_iter().find(|device| device.netdev == "lo");
    let context = manager.context(&info.unwrap().name).unwrap();
    let placed = || context.counters().direct.bytes;
    let lengths = [1, 1000, 1023, 1024, 5000, 65_536, 65_537, 300_000, 3 << 20];
    let mut round = 0;
    // Until both have met and consented, and once more.
    while round < 3 || placed() == 0 {
        round += 1;
        let before = placed();
        for (seed, len) in lengths.into_iter().enumerate() {
            let bytes = content(round * 100 + seed as u64, len);
            std::thread::scope(|scope| {
                scope.spawn(|| send_all(&socket, &bytes));
                assert!(recv_exact(&socket, len) == bytes, "{len} bytes in round {round}");
            });
        }
        let all: usize = lengths.iter().filter(|len| **len >= 1024).sum();
        let share = placed() - before;
        println!("round {round}: {share} of {all} bytes");
        assert!(round < 1000, "nothing was ever placed: {}", context.counters());
    }
    socket.close();
    assert!(other.wait().unwrap().success());
}
