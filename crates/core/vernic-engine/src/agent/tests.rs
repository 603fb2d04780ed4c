//! Tests of how CM datagrams are routed between processes, without a real peer.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;

use vernic_io::{Icrc, Peer, ROCE_PORT, RxMeta, RxPacket, TxPath};
use vernic_proto::DropReason;
use vernic_proto::cm::{CmPath, Datagram, Event};
use vernic_wire::cm::{
    CmMessage, CommId, Dreq, GSI_QKEY, PortSpace, Rej, RejectedMessage, Req, ReqPath, Rtu,
    ServiceId,
};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Bth, Deth, Gid, Headers, Opcode, Psn, Qpn};

use super::*;
use crate::cm::{NUMBER_BITS, slot_of};
use crate::{Config, Context, ServiceScope};

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

struct Deaf;

impl CmSink for Deaf {
    fn event(&self, _: Event) {}
}

fn open() -> Arc<Context> {
    let context = Context::open(Some("lo"), Config::default()).unwrap();
    context.cm().attach(Arc::new(Deaf)).unwrap();
    context
}

fn datagram(message: impl Into<CmMessage>, repeats: u8) -> Datagram {
    let mut mad = [0; MAD_LEN];
    message.into().emit(1, &mut mad);
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME));
    Datagram { path, mad, repeats }
}

#[test]
fn a_datagram_that_was_not_answered_takes_every_way_there_is() {
    let context = open();
    let engine = context.engine();
    let req = Req { local_comm_id: CommId(5), ..Req::default() };
    let paths: Vec<_> = (0..16).map(|n| engine.cm.mad_path(&datagram(req, n))).collect();
    assert_eq!(paths.iter().map(TxPath::flow).collect::<HashSet<_>>().len(), 16);
    assert!(paths.iter().all(|path| !path.is_local()), "no listener is known");
}

#[test]
fn of_threads_that_listen_at_once_one_has_the_service_and_uses_what_was_reserved() {
    let context = open();
    let service = PortSpace::TCP.service_id(64_017);
    let scope = ServiceScope::Address(HOME.into());
    let listen_at_once = || {
        std::thread::scope(|threads| {
            let all = [(); 8].map(|()| threads.spawn(|| context.cm().listen(service, scope, 1)));
            let all = all.map(|thread| thread.join().unwrap());
            all.into_iter().filter_map(|listened| match listened {
                Err(ListenError::InUse(_)) => None,
                other => Some(other.unwrap()),
            })
        })
    };
    for is_reserved in [false, true] {
        if is_reserved {
            context.cm().reserve(service, scope).unwrap();
        }
        let listeners: Vec<_> = listen_at_once().collect();
        assert_eq!(listeners.len(), 1);
        assert!(matches!(context.cm().reserve(service, scope), Err(ListenError::InUse(_))));
        context.cm().stop_listening(listeners[0]);
        assert!(!context.cm().is_claimed(service, scope).unwrap());
    }
}

#[test]
fn messages_to_a_process_of_this_host_go_straight_there_but_not_each_time() {
    let (here, there) = (open(), open());
    let service = PortSpace::TCP.service_id(64_001);
    there.cm().listen(service, ServiceScope::Address(HOME.into()), 1).unwrap();
    let slot = there.engine().with_lane(|lane| lane.first_slot(there.engine().slots())).unwrap();
    let theirs = CommId(u32::from(slot.value()) << NUMBER_BITS | 77);
    assert_eq!(slot_of(theirs), slot);
    let req = Req { service_id: service, ..Req::default() };
    let dreq = Dreq { remote_comm_id: theirs, ..Dreq::default() };
    for (message, nobodys) in [
        (CmMessage::from(req), Req { service_id: ServiceId(1), ..req }.into()),
        (dreq.into(), Dreq { remote_comm_id: CommId(1), ..dreq }.into()),
    ] {
        let peer = |message: CmMessage, n| here.engine().cm.mad_path(&datagram(message, n)).peer();
        assert_ne!(peer(message, 0), Peer::Remote);
        assert_eq!(peer(message, 1), Peer::Remote);
        assert_eq!(peer(message, 2), peer(message, 0));
        assert_eq!(peer(nobodys, 0), Peer::Remote);
    }
}

/// Makes a packet for QP1, without ICRC.
fn packet_with(message: impl Into<CmMessage>) -> Vec<u8> {
    let Datagram { mad, .. } = datagram(message, 0);
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
    headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
    let mut bytes = vec![0; headers.len() + MAD_LEN + 4];
    let start = headers.emit(&mut bytes);
    bytes[start..start + MAD_LEN].copy_from_slice(&mad);
    bytes
}

/// Sends `other` more messages for a connection of `owner` than fit into the queue between the two.
/// Returns the number of messages. Neither has a background thread.
fn overrun(other: &Context, owner: &Context) -> u64 {
    let queue = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    let count = queue.trim().parse::<u64>().unwrap() + 30;
    let slot = |engine: &Engine| engine.with_lane(|lane| lane.first_slot(engine.slots()));
    let id = u32::from(slot(owner.engine()).unwrap().value()) << NUMBER_BITS;
    let rtu = Rtu { local_comm_id: CommId(1), remote_comm_id: CommId(id), ..Rtu::default() };
    let bytes = packet_with(rtu);
    let (src, dst) = ((HOME, 50_000).into(), (HOME, ROCE_PORT).into());
    let icrc = Icrc::Good;
    let meta = RxMeta { icrc, ..vernic_io::udp::arrival(src, dst) };
    let packets = vec![RxPacket { bytes: &bytes, meta: &meta, segment: 0 }; count as usize];
    let engine = other.engine();
    engine.with_lane(|lane| {
        lane.handle_mads(engine, &packets, engine.now());
    });
    count
}

/// Delivers a message to QP1 of `context`.
fn receive(context: &Context, message: impl Into<CmMessage>) {
    receive_from(HOME, context, message);
}

/// Delivers a message from the address `ip`.
fn receive_from(ip: IpAddr, context: &Context, message: impl Into<CmMessage>) {
    let bytes = packet_with(message);
    let (src, dst) = ((ip, 50_000).into(), (HOME, ROCE_PORT).into());
    let icrc = Icrc::Good;
    let meta = RxMeta { icrc, ..vernic_io::udp::arrival(src, dst) };
    let packet = RxPacket { bytes: &bytes, meta: &meta, segment: 0 };
    let engine = context.engine();
    engine.with_lane(|lane| {
        lane.handle_mads(engine, &[packet], engine.now());
    });
}

#[test]
fn a_request_that_its_sender_takes_back_is_found_by_the_way_that_it_took() {
    let (owner, other) = (open(), open());
    let service = PortSpace::TCP.service_id(64_002);
    owner.cm().listen(service, ServiceScope::Address(HOME.into()), 4).unwrap();
    let home = Gid::from_ip(HOME);
    let primary = ReqPath { local_gid: home, remote_gid: home, ..ReqPath::default() };
    let (local_comm_id, path_mtu) = (CommId(5), 3);
    let req = Req { local_comm_id, service_id: service, path_mtu, primary, ..Req::default() };
    let (message, reason) = (RejectedMessage::OTHER, RejReason::TIMEOUT);
    let rej = Rej { local_comm_id, message, reason, ..Rej::default() };
    let becomes = |half_open| {
        let start = std::time::Instant::now();
        while owner.cm().occupancy().half_open != half_open {
            assert!(start.elapsed().as_secs() < 10, "{:?}", owner.cm().occupancy());
            owner.progress();
        }
    };
    receive(&other, req);
    becomes(1);
    // A REJ of another connection changes nothing.
    receive(&other, Rej { local_comm_id: CommId(6), ..rej });
    receive(&other, rej);
    becomes(0);
    assert_eq!(other.counters().mads_handed_over, 2);
    // The process that the REQ was for takes the REJ itself and does not hand it over.
    receive(&owner, Req { local_comm_id: CommId(7), local_qpn: Qpn::new(9), ..req });
    becomes(1);
    receive(&owner, Rej { local_comm_id: CommId(7), ..rej });
    becomes(0);
}

#[test]
fn no_process_of_this_host_is_asked_for_peers_of_other_hosts() {
    let context = open();
    // A process slot that no other test uses.
    let bind = |number: u32| {
        let name = format!("vernic/{number}");
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        Some((number, std::os::unix::net::UnixDatagram::bind_addr(&name).ok()?))
    };
    let (slot, asked) = (1..1023).rev().find_map(bind).unwrap();
    let there = [127, 0, 0, 9].into();
    asked.set_nonblocking(true).unwrap();
    let ids = slot << NUMBER_BITS;
    let questions = |from: IpAddr, id| {
        let dreq =
            Rtu { local_comm_id: CommId(ids + id), remote_comm_id: CommId(5), ..Rtu::default() };
        receive_from(from, &context, dreq);
        let req =
            Req { local_comm_id: CommId(ids + id), service_id: ServiceId(1), ..Req::default() };
        for _ in 0..2 * 64 {
            receive_from(from, &context, req);
        }
        std::iter::from_fn(|| asked.recv(&mut [0; 256]).ok()).count()
    };
    assert_eq!(questions([192, 0, 2, 1].into(), 1), 0);
    assert!(questions(there, 2) > 0, "a peer of this host is looked for");
}

#[test]
fn datagrams_wait_for_the_process_they_are_for_while_its_queue_is_full() {
    let (owner, other) = (open(), open());
    owner.stop_background();
    other.stop_background();
    let count = overrun(&other, &owner);
    let handed_over = || other.counters().mads_handed_over;
    assert!(handed_over() < count, "{} of {count}", handed_over());
    // A REJ is the answer to an RTU of an unknown connection.
    let start = std::time::Instant::now();
    while owner.counters().cm.sent.iter().sum::<u64>() < count {
        assert!(start.elapsed().as_secs() < 10, "{:?}", owner.counters());
        owner.progress();
        other.progress();
    }
    assert_eq!(handed_over(), count);
}

#[test]
fn datagrams_for_a_process_that_never_takes_them_are_dropped_and_counted() {
    let (owner, other) = (open(), open());
    owner.stop_background();
    other.stop_background();
    let count = overrun(&other, &owner);
    let dropped = || other.engine().counts().drops(DropReason::MadOverflow);
    let start = std::time::Instant::now();
    while other.counters().mads_handed_over + dropped() < count {
        assert!(start.elapsed().as_secs() < 10, "{:?}", other.counters());
        other.progress();
    }
    assert!(dropped() >= 20, "{} of {count}", dropped());
    let next = other.engine().with_lane(|lane| lane.mad_deadline());
    assert_eq!(next, None, "nobody waits any more");
}

#[test]
fn who_may_have_interrupted_a_call_of_the_connection_manager_waits_for_no_counters() {
    let context = open();
    let state = lock(&context.engine().cm.state);
    assert!(context.try_counters().is_none());
    drop(state);
    // The background thread has the lane at times.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while context.try_counters().is_none() {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
}
