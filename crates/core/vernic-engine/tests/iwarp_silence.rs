//! Peers of iWARP connections whose host is gone, and such whose program only stands still.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::iwarp::{News, Owner, end_with, queue_pair, raw_peer, recv, until_error};
use common::{End, test_config, wr};
use vernic_engine::iwarp::{Ending, default_stream};
use vernic_engine::*;
use vernic_proto::iwarp::StreamEnd;

/// Tells this program that it runs in a network of its own.
const ROLE: &str = "VERNIC_TEST_IWARP_ALONE";

fn end(seconds: &str) -> End {
    let mut config = test_config();
    config.set("iwarp_peer_timeout_s", seconds).unwrap();
    end_with(config)
}

/// A connection to a peer made by hand.
fn connected(end: &End) -> (TcpStream, Arc<Qp>, Arc<Owner>) {
    let (qp, owner) = (queue_pair(end), Arc::new(Owner::default()));
    recv(end, &qp, 9, 0, 10);
    (raw_peer(end, &qp, default_stream(), Some(owner.clone())), qp, owner)
}

fn write(end: &End, qp: &Qp, len: u32) {
    let nowhere = Remote { addr: 0, rkey: Rkey(0x100) };
    qp.post_send(&[wr(1, SendOp::Write(nowhere), &[end.sge(0, len)])]).unwrap();
}

/// Runs in a network of its own, of which nothing is left from some moment on.
#[test]
fn the_lonely_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let end = end("2");
    let (_idle_peer, idle, idle_owner) = connected(&end);
    let (_busy_peer, busy, busy_owner) = connected(&end);
    assert!(Command::new("ip").args(["link", "set", "lo", "down"]).status().unwrap().success());
    write(&end, &busy, 100);
    for (qp, owner) in [(&idle, idle_owner), (&busy, busy_owner)] {
        assert_eq!(owner.next(), News::Ended(Ending::Lost(StreamEnd::TimedOut)));
        until_error(&end, qp);
        let why = qp.explain().unwrap().to_string();
        assert!(why.contains("127.0.0.1:") && why.contains("2 s of silence"), "{why}");
        assert!(why.contains("down, or cannot be reached"), "{why}");
    }
}

#[test]
fn a_host_that_vanishes_is_noticed_whether_or_not_something_is_on_its_way_to_it() {
    let alone = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", &format!("ip link set lo up && exec {command}")]);
        unshare
    };
    if !alone("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network namespaces here");
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let run = format!("{} --exact the_lonely_process --test-threads=1", exe.display());
    let output = alone(&run).env(ROLE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_stopped_program_whose_host_answers_is_waited_for() {
    let end = end("1");
    // It says half of something, and takes nothing.
    let (mut peer, qp, owner) = connected(&end);
    peer.write_all(&[0, 100, 0x40, 0x43]).unwrap();
    write(&end, &qp, 8 << 20);
    // Several times as long as a host may be silent.
    std::thread::sleep(Duration::from_secs(4));
    assert!(owner.is_done());
    assert_eq!(qp.state(), QpState::Rts);
    // It goes on.
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 8 << 20];
        peer.read_exact(&mut bytes).unwrap();
        peer
    });
    assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    drop(reader.join().unwrap());
}
