//! What becomes of what was completed when an end of an iWARP connection leaves.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use common::iwarp::{queue_pair, raw_peer};
use common::{End, PATIENCE, test_config, wr};
use vernic_engine::iwarp::{StreamConfig, default_stream};
use vernic_engine::*;

/// Bytes of a WRITE: more than a peer takes that does not read, no more than a socket takes.
const LEN: u32 = 256 << 10;

/// An FPDU of a SEND without bytes, with its number (RFC 5044, 4.1; RFC 5041, 4.3; RFC 5040, 4.1).
fn empty_send(msn: u8) -> [u8; 24] {
    let mut fpdu = [0; 24];
    fpdu[1] = 18;
    // Untagged, the last segment, version 1; SEND, version 1.
    (fpdu[2], fpdu[3]) = (0x41, 0x43);
    fpdu[15] = msn;
    fpdu
}

/// An end that has completed a WRITE to a peer that reads nothing, and has itself not read all that
/// the peer has sent, for want of a receive.
fn unread() -> (End, Arc<Qp>, TcpStream) {
    let end = End::on(Context::open_iwarp(Some("lo"), test_config()).unwrap(), None);
    let qp = queue_pair(&end);
    let stream = StreamConfig { recv_wait_ns: 60_000_000_000, ..default_stream() };
    let mut peer = raw_peer(&end, &qp, stream, None);
    peer.write_all(&empty_send(1)).unwrap();
    let start = Instant::now();
    while end.context.counters().streams.rx_bytes < 24 {
        end.context.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    // From here on it reads nothing more.
    peer.write_all(&empty_send(2)).unwrap();
    let nowhere = Remote { addr: 0, rkey: Rkey(0x100) };
    qp.post_send(&[wr(1, SendOp::Write(nowhere), &[end.sge(0, LEN)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    (end, qp, peer)
}

/// All of the WRITE arrives, and then the end, in order.
fn expect_all(mut peer: TcpStream) {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() > LEN as usize, "{} bytes", bytes.len());
}

#[test]
fn what_was_completed_arrives_though_bytes_of_the_peer_are_unread() {
    let (end, qp, mut peer) = unread();
    qp.destroy().unwrap();
    // It goes on sending.
    peer.write_all(&empty_send(3)).unwrap();
    expect_all(peer);
    drop(end);
}

#[test]
fn what_was_completed_arrives_though_the_device_is_closed_at_once() {
    let (end, qp, peer) = unread();
    let reader = std::thread::spawn(move || expect_all(peer));
    qp.destroy().unwrap();
    end.context.close();
    reader.join().unwrap();
}

#[test]
fn what_is_half_sent_is_sent_to_its_end() {
    let (end, qp, peer) = unread();
    let nowhere = Remote { addr: 0, rkey: Rkey(0x100) };
    // More than any socket takes: the rest of what was begun is the connection's.
    let big = [end.sge(0, 8 << 20)];
    let wrs: Vec<_> = (0..4).map(|n| wr(n, SendOp::Write(nowhere), &big)).collect();
    qp.post_send(&wrs).unwrap();
    let start = Instant::now();
    let sent = || end.context.counters().streams.tx_bytes;
    let mut before = 0;
    // Until a call finds no room.
    while before != sent() {
        before = sent();
        end.context.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    qp.destroy().unwrap();
    expect_all(peer);
}
