//! Connections to a listener of iWARP whose process has no descriptor left for them.
//!
//! The test starts this program again, with a low limit; what that one does is in
//! [`the_poor_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, Side};
use vernic_cm::{Config, PortSpace, QpType};
use vernic_engine::TransportChoice;

/// Tells the other process what it is.
const ROLE: &str = "VERNIC_TEST_IWARP_POOR";

fn side() -> Side {
    Side::with(Config { transport: TransportChoice::Iwarp, ..Config::default() })
}

fn say(word: &str) {
    println!("> {word}");
}

/// Listens without a descriptor to spare; then, when told to, with a few.
#[test]
fn the_poor_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let server = side();
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    say(&place.to_string());
    let until = Instant::now() + LONG;
    let counters = || server.manager.startup_counters();
    let wait = |done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < until, "{:?}", counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // One waits. Nothing spins meanwhile: it is tried ten times a second.
    wait(&|| counters().no_descriptor > 0);
    let (start, before) = (Instant::now(), counters().no_descriptor);
    wait(&|| counters().no_descriptor >= before + 3);
    let tries = counters().no_descriptor - before;
    let most = start.elapsed().as_millis() / 100 + 2;
    assert!(u128::from(tries) <= most, "{tries} tries in {:?}", start.elapsed());
    assert_eq!(counters().begun, 0);
    // Two more descriptors, and it is taken; of those that say nothing the oldest goes for another.
    files.truncate(files.len() - 2);
    wait(&|| counters().begun > 0);
    say("taken");
    wait(&|| counters().displaced > 0);
    say("displaced");
    wait(&|| counters().asked > 0);
    say("asked");
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn connections_wait_for_descriptors_and_silent_ones_give_theirs_to_others() {
    let run = "ulimit -n 64 && exec \"$0\" --exact the_poor_process --nocapture --test-threads=1";
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", run])
        .arg(exe)
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _other = Other(child);
    let mut hear = || {
        lines
            .find_map(|line| Some(line.unwrap().split_once("> ")?.1.trim().to_owned()))
            .expect("the other process goes on")
    };
    let place: SocketAddr = hear().parse().unwrap();
    let connect = || TcpStream::connect(place).unwrap();
    let mut first = connect();
    assert_eq!(hear(), "taken");
    let more: Vec<_> = (0..4).map(|_| connect()).collect();
    assert_eq!(hear(), "displaced");
    first.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    // Somebody who asks at once is heard.
    let mut last = connect();
    last.write_all(b"MPA ID Req Frame\x00\x01\x00\x00").unwrap();
    assert_eq!(hear(), "asked");
    drop(more);
}
