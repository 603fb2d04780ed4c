//! Hosts that are not there, or are there late: in network namespaces of the test's own.
#![allow(clippy::print_stdout)] // how the processes talk

mod common;
/// What the engine's tests have for it.
#[path = "../../../core/vernic-engine/tests/common/other.rs"]
#[allow(dead_code, unreachable_pub)] // these tests use their part
mod other;

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use common::*;
use other::{Other, ROLE};
use vernic_rsocket::Socket;

/// Longest wait for another process to do as it is told.
const PATIENCE: Duration = Duration::from_secs(30);

const PLACE: &str = "10.79.1.2:7471";
const NOBODY: &str = "10.79.1.9:7471";

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).status().unwrap().success()
}

fn say(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().unwrap();
}

fn told() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Not a test of its own: what the other process runs, at the far end of the cable.
#[test]
fn the_other_process() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    say("there");
    told();
    let answers =
        |how: &str| std::fs::write("/proc/sys/net/ipv4/conf/far/arp_ignore", how).unwrap();
    // For no address, at first.
    answers("8");
    assert!(ip("address add 10.79.1.2/24 dev far") && ip("link set far up"));
    let runtime = runtime();
    let listener = stream(&runtime);
    listener.bind(PLACE.parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    say("listening");
    told();
    answers("0");
    let socket = listener.accept().unwrap();
    send_all(&socket, &recv_exact(&socket, 5));
    assert!(recv_to_end(&socket).is_empty());
    // The cable goes with this process.
    told();
}

fn so_error(socket: &Socket) -> i32 {
    int(socket, libc::SOL_SOCKET, libc::SO_ERROR)
}

#[test]
fn connecting_to_a_host_that_is_not_there_fails_as_by_tcp_and_to_a_late_one_succeeds() {
    let name = "connecting_to_a_host_that_is_not_there_fails_as_by_tcp_and_to_a_late_one_succeeds";
    if std::env::var(ROLE).is_ok() || other::runs_alone(name) {
        return;
    }
    if !ip("link add near type veth peer name far") {
        println!("skipped: no veth here");
        return;
    }
    let mut other = Other::in_a_namespace("far").expect("this is one");
    assert_eq!(other.hear(), "there");
    assert!(ip(&format!("link set far netns {}", other.child.id())));
    assert!(ip("address add 10.79.1.1/24 dev near") && ip("link set near up"));
    other.tell("configure");
    assert_eq!(other.hear(), "listening");

    let runtime = runtime();
    let (nobody, place) = (NOBODY.parse().unwrap(), PLACE.parse().unwrap());
    let asking = || {
        let socket = stream(&runtime);
        socket.set_nonblocking(true);
        socket
    };
    let (later, lost, closed) = (asking(), asking(), asking());
    for (socket, peer) in [(&later, place), (&lost, nobody), (&closed, nobody)] {
        assert_eq!(socket.connect(peer).unwrap_err().errno(), libc::EINPROGRESS);
        assert_eq!(wait_for(socket, libc::POLLOUT, Duration::ZERO), 0);
    }
    closed.close();
    let patient = stream(&runtime);
    let patience = [0_i64.to_ne_bytes(), 50_000_i64.to_ne_bytes()].concat();
    patient.set_option(libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience).unwrap();
    let late = [0; 2].map(|_| patient.connect(nobody).unwrap_err().errno());
    assert_eq!(late, [libc::EINPROGRESS, libc::EALREADY]);
    other.tell("answer");
    assert_ne!(wait_for(&later, libc::POLLOUT, PATIENCE), 0);
    assert_eq!(so_error(&later), 0);
    later.set_nonblocking(false);
    send_all(&later, b"hello");
    assert_eq!(recv_exact(&later, 5), b"hello");
    later.close();

    assert_ne!(wait_for(&lost, libc::POLLOUT, PATIENCE), 0);
    assert_eq!(so_error(&lost), libc::EHOSTUNREACH);
    let error = stream(&runtime).connect(nobody).unwrap_err();
    assert_eq!(error.errno(), libc::EHOSTUNREACH, "{error}");
    assert!(error.to_string().contains(NOBODY), "{error}");
    other.tell("end");
    assert!(other.child.wait().unwrap().success());
}
