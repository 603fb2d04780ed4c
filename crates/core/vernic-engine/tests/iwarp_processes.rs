//! The iWARP device between two processes over 127.0.0.1, and the death of one of them.
//!
//! The test starts this program again as the other process; what that one does is in
//! [`the_other_process`].

#![allow(clippy::print_stdout)] // how the processes talk

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::other::{Other, ROLE};
use common::{End, PATIENCE, pattern, test_config, wr};
use vernic_engine::iwarp::{
    Handshake, HandshakeState, Listener, RtrSet, StartupConfig, StartupState, default_stream,
};
use vernic_engine::*;

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LEN: usize = 1 << 20;

fn end() -> (End, std::sync::Arc<Qp>) {
    let end = End::on(Context::open_iwarp(Some("lo"), test_config()).unwrap(), None);
    let qp = end.qp(Service::Rc);
    let attr = QpAttr { state: QpState::Init, access: 0xF, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS).unwrap();
    (end, qp)
}

fn config() -> StartupConfig {
    StartupConfig { rtr: RtrSet::all(), ..StartupConfig::default() }
}

/// Listens, says where, offers its memory as private data, receives until it is killed.
#[test]
fn the_other_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (end, qp) = end();
    let listener = Listener::bind(&end.context, SocketAddr::new(LO, 0), config()).unwrap();
    println!("> {}", listener.local_addr().unwrap());
    let mut handshake = listener.wait(PATIENCE).unwrap().unwrap();
    handshake.wait(PATIENCE).unwrap();
    let remote = end.remote(0);
    let offer = [&remote.addr.to_be_bytes()[..], &remote.rkey.value().to_be_bytes()].concat();
    handshake.accept(&config(), &offer).unwrap();
    handshake.wait(PATIENCE).unwrap();
    qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(2 << 20, LEN as u32)] }]).unwrap();
    handshake.start(&qp, default_stream()).unwrap();
    // What came goes back; then it sleeps, until it is killed.
    assert_eq!(end.wait(1)[0].byte_len as usize, LEN);
    qp.post_send(&[wr(2, SendOp::Send, &[end.sge(2 << 20, LEN as u32)])]).unwrap();
    std::thread::sleep(PATIENCE);
}

#[test]
fn two_processes_exchange_messages_and_the_death_of_one_fails_what_is_in_flight() {
    let mut other = Other::start("responder");
    let addr: SocketAddr = other.hear().parse().unwrap();
    let (end, qp) = end();
    let mut handshake =
        Handshake::connect(&end.context, LO.into(), addr, config(), b"hello").unwrap();
    let agreed = HandshakeState::Startup(StartupState::Agreed);
    assert_eq!(handshake.wait(PATIENCE).unwrap(), agreed);
    let (addr, rkey) = handshake.private().split_at(8);
    let remote = Remote {
        addr: u64::from_be_bytes(addr.try_into().unwrap()),
        rkey: Rkey(u32::from_be_bytes(rkey.try_into().unwrap())),
    };
    qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(2 << 20, LEN as u32)] }]).unwrap();
    handshake.start(&qp, default_stream()).unwrap();
    let bytes = pattern(LEN, 3);
    end.fill(0, &bytes);
    let here = [end.sge(0, LEN as u32)];
    let back = [end.sge(4 << 20, LEN as u32)];
    qp.post_send(&[
        wr(1, SendOp::Write(remote), &here),
        wr(2, SendOp::Read(remote), &back),
        wr(3, SendOp::Send, &here),
    ])
    .unwrap();
    let done = end.wait(4);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    assert!(end.bytes(4 << 20, LEN) == bytes && end.bytes(2 << 20, LEN) == bytes);
    qp.post_recv(&[RecvWr { wr_id: 9, sges: &[] }]).unwrap();
    qp.post_send(&[wr(4, SendOp::Read(remote), &back)]).unwrap();
    drop(other);
    // The answer may have been on its way, and then the peer has closed in order as far as anybody
    // can see.
    let done = end.wait(2);
    let flushed = done.iter().find(|wc| wc.wr_id == 9).unwrap();
    assert_eq!((flushed.status, qp.state()), (WcStatus::Flushed, QpState::Error));
}
