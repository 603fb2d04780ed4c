//! How an initiator of iWARP leaves a peer that has accepted, and may not be in full operation: it
//! waits for the answer to its first word, an empty READ.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use common::iwarp::{AGREED, LO, end, queue_pair};
use common::{End, PATIENCE};
use vernic_engine::iwarp::{Handshake, HandshakeState, RtrSet, StartupConfig, default_stream};
use vernic_engine::*;
use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    Control, DdpHeader, DepthCode, FpduHeader, MpaEnhanced, MpaKey, MpaStart, RdmapOpcode,
    ReadRequest, Segment, Tagged,
};

/// A frame of the start-up with depths.
type Frame = [u8; MpaStart::LEN + MpaEnhanced::LEN];

/// An initiator that TCP has just connected to a peer, made by hand, and that has not looked yet.
/// It wants no CRCs.
fn connected() -> (End, Handshake, TcpStream) {
    let end = end();
    let listener = TcpListener::bind(SocketAddr::new(LO, 0)).unwrap();
    let config = StartupConfig { crc: false, rtr: RtrSet::READ, ..StartupConfig::default() };
    let addr = listener.local_addr().unwrap();
    let ours = Handshake::connect(&end.context, LO.into(), addr, config, &[]).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (end, ours, peer)
}

/// An initiator whose peer has its request.
fn asked() -> (End, Handshake, TcpStream, Frame) {
    let (end, mut ours, mut peer) = connected();
    let start = Instant::now();
    while ours.poll() == HandshakeState::Connecting {
        assert!(start.elapsed() < PATIENCE);
    }
    let request = read_request(&mut peer);
    (end, ours, peer, request)
}

fn read_request(peer: &mut TcpStream) -> Frame {
    let mut request = [0; _];
    peer.read_exact(&mut request).unwrap();
    request
}

/// What a peer says that accepts a request.
fn acceptance(request: &Frame) -> Frame {
    let asked = MpaEnhanced::parse(&request[MpaStart::LEN..]).unwrap();
    assert!(asked.peer_to_peer && asked.rtr_read && !asked.rtr_write);
    let start = MpaStart::parse(request).unwrap();
    let (mut reply, depth) = (*request, DepthCode::of_depth(1));
    MpaStart { key: MpaKey::Reply, ..start }.emit(&mut reply);
    MpaEnhanced { ird: depth, ord: depth, ..asked }.emit(&mut reply[MpaStart::LEN..]);
    reply
}

/// An initiator whose peer has accepted.
fn accepted() -> (End, Handshake, TcpStream) {
    let (end, mut ours, mut peer, request) = asked();
    peer.write_all(&acceptance(&request)).unwrap();
    assert_eq!(ours.wait(PATIENCE).unwrap(), AGREED);
    (end, ours, peer)
}

/// The next FPDU without a payload, or the end.
fn read_fpdu(peer: &mut TcpStream) -> Option<(DdpHeader, Vec<u8>)> {
    let mut head = [0; FpduHeader::LEN];
    match peer.read(&mut head).unwrap() {
        0 => return None,
        len => peer.read_exact(&mut head[len..]).unwrap(),
    }
    let header = FpduHeader::parse(&head).unwrap();
    let mut rest = vec![0; header.fpdu_len() - head.len()];
    peer.read_exact(&mut rest).unwrap();
    let segment = Segment::parse(&rest[..usize::from(header.ulpdu_len)]).unwrap();
    Some((segment.header, segment.body.to_vec()))
}

/// The first word comes, and then a reminder of it, not the end. The number that the answer
/// carries.
fn expect_word(peer: &mut TcpStream) -> Rkey {
    let (header, body) = read_fpdu(peer).unwrap();
    assert_eq!(header.control().opcode, RdmapOpcode::READ_REQUEST);
    let (reminder, _) = read_fpdu(peer).expect("no end before the answer");
    assert_eq!(reminder.control().opcode, RdmapOpcode::WRITE);
    ReadRequest::parse(&body).unwrap().sink_stag
}

/// What is left but for reminders.
fn until_end(peer: &mut TcpStream) -> Vec<RdmapOpcode> {
    let left = std::iter::from_fn(|| read_fpdu(peer)).map(|(header, _)| header.control().opcode);
    left.filter(|opcode| *opcode != RdmapOpcode::WRITE).collect()
}

fn answer(peer: &mut TcpStream, stag: Rkey) {
    let control = Control::new(RdmapOpcode::READ_RESPONSE, true);
    let header = DdpHeader::Tagged(Tagged { control, stag, offset: 0 });
    let mut fpdu = vec![0; FpduHeader::LEN + header.len() + 4];
    FpduHeader { ulpdu_len: header.len() as u16 }.emit(&mut fpdu);
    header.emit(&mut fpdu[FpduHeader::LEN..]);
    peer.write_all(&fpdu).unwrap();
}

#[test]
fn a_destroyed_queue_pair_leaves_when_the_peer_has_answered() {
    let (end, ours, mut peer) = accepted();
    let qp = queue_pair(&end);
    ours.start(&qp, default_stream()).unwrap();
    qp.destroy().unwrap();
    let stag = expect_word(&mut peer);
    answer(&mut peer, stag);
    assert!(until_end(&mut peer).is_empty());
}

#[test]
fn a_queue_pair_that_is_reset_or_closed_or_fails_waits_for_the_answer_too() {
    for (state, last) in [
        (QpState::Reset, vec![]),
        (QpState::Sqd, vec![]),
        (QpState::Error, vec![RdmapOpcode::TERMINATE]),
    ] {
        let (end, ours, mut peer) = accepted();
        let qp = queue_pair(&end);
        ours.start(&qp, default_stream()).unwrap();
        qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        let stag = expect_word(&mut peer);
        answer(&mut peer, stag);
        assert_eq!(until_end(&mut peer), last, "{state:?}");
    }
}

#[test]
fn a_device_that_closes_waits_for_the_answer() {
    let (end, ours, mut peer) = accepted();
    let qp = queue_pair(&end);
    ours.start(&qp, default_stream()).unwrap();
    let peer = std::thread::spawn(move || {
        let stag = expect_word(&mut peer);
        answer(&mut peer, stag);
        until_end(&mut peer)
    });
    end.context.close();
    assert!(peer.join().unwrap().is_empty());
}

#[test]
fn a_connection_that_no_queue_pair_takes_is_left_in_order() {
    let (end, ours, mut peer) = accepted();
    ours.leave();
    let stag = expect_word(&mut peer);
    answer(&mut peer, stag);
    assert!(until_end(&mut peer).is_empty());
    // One that a queue pair refuses, likewise, and the peer is told.
    let (_other, ours, mut peer) = accepted();
    let qp = queue_pair(&end);
    ours.start(&qp, default_stream()).unwrap_err();
    let stag = expect_word(&mut peer);
    answer(&mut peer, stag);
    assert_eq!(until_end(&mut peer), [RdmapOpcode::TERMINATE]);
}

#[test]
fn a_peer_that_never_answers_is_left_after_a_second() {
    let (_end, ours, mut peer) = accepted();
    let start = Instant::now();
    ours.leave();
    expect_word(&mut peer);
    assert!(until_end(&mut peer).is_empty());
    assert!(start.elapsed().as_millis() >= 1000);
}

#[test]
fn a_reply_that_is_on_its_way_is_answered_though_nobody_waits_for_it_any_more() {
    let (_end, ours, mut peer, request) = asked();
    ours.leave();
    peer.write_all(&acceptance(&request)).unwrap();
    let stag = expect_word(&mut peer);
    answer(&mut peer, stag);
    assert!(until_end(&mut peer).is_empty());
}

#[test]
fn a_device_that_closes_waits_for_a_reply_that_is_on_its_way() {
    let (end, ours, mut peer, request) = asked();
    ours.leave();
    let peer = std::thread::spawn(move || {
        peer.write_all(&acceptance(&request)).unwrap();
        let stag = expect_word(&mut peer);
        answer(&mut peer, stag);
        until_end(&mut peer)
    });
    end.context.close();
    assert!(peer.join().unwrap().is_empty());
}

#[test]
fn a_peer_that_never_replies_is_left_after_a_second_and_one_that_rejects_at_once() {
    let (_end, ours, mut peer, _) = asked();
    let start = Instant::now();
    ours.leave();
    assert!(read_fpdu(&mut peer).is_none());
    assert!(start.elapsed().as_millis() >= 1000);
    let (_end, ours, mut peer, request) = asked();
    ours.leave();
    let start = MpaStart::parse(&request).unwrap();
    let mut reply = acceptance(&request);
    MpaStart { key: MpaKey::Reply, rejected: true, ..start }.emit(&mut reply);
    peer.write_all(&reply).unwrap();
    assert!(read_fpdu(&mut peer).is_none());
}

#[test]
fn a_reply_that_nothing_can_come_of_is_told_so_though_nobody_waits_for_it() {
    let (_end, ours, mut peer, request) = asked();
    ours.leave();
    let mut reply = acceptance(&request);
    let offered = MpaEnhanced::parse(&request[MpaStart::LEN..]).unwrap();
    // Of all it takes, none was offered.
    MpaEnhanced { rtr_read: false, rtr_write: true, ..offered }.emit(&mut reply[MpaStart::LEN..]);
    peer.write_all(&reply).unwrap();
    assert_eq!(until_end(&mut peer), [RdmapOpcode::TERMINATE]);
}

#[test]
fn a_connection_that_is_just_made_is_asked_for_before_it_is_left() {
    let (_end, ours, mut peer) = connected();
    ours.leave();
    let request = read_request(&mut peer);
    peer.write_all(&acceptance(&request)).unwrap();
    let stag = expect_word(&mut peer);
    answer(&mut peer, stag);
    assert!(until_end(&mut peer).is_empty());
}
