//! The setting `peers`, and what is counted of peers that send what they must not.

mod common;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::cm::{Node, port};
use common::iwarp::{LO, end_with};
use common::*;
use vernic_engine::iwarp::{ConnectError, Handshake, Listener, StartupConfig};
use vernic_engine::*;

const QKEY: Qkey = Qkey(0x1111);

/// A list that `lo` is not in.
const OTHERS: &str = "10.0.0.0/8, fd00::/8";
/// One that it is in.
const HOME: &str = "127.0.0.0/8";

fn config(peers: &str) -> Config {
    let mut config = test_config();
    config.set("peers", peers).unwrap();
    config
}

fn by_wire(mut config: Config) -> Config {
    config.set("same_host", "off").unwrap();
    config
}

/// Looks until a counter of the device has this value.
fn await_counter(end: &Context, name: &str, value: u64) {
    let start = Instant::now();
    loop {
        end.progress();
        let counters = end.counters();
        let found = counters.iter().find(|(counter, _)| counter == name).unwrap().1;
        if found >= value {
            return assert_eq!(found, value, "{name}: {counters}");
        }
        assert!(start.elapsed() < PATIENCE, "{name} is {found}: {counters}");
    }
}

#[test]
fn a_queue_pair_is_not_connected_to_a_peer_outside_of_the_list() {
    let end = End::with(config(OTHERS));
    let qp = end.qp(Service::Rc);
    let av = AddressVector {
        dgid: end.gid().1,
        sgid_index: end.gid().0,
        port: PortNum(1),
        ..AddressVector::default()
    };
    let attr = QpAttr { state: QpState::Init, av, dest_qpn: Qpn::new(77), ..QpAttr::default() };
    use AttrMask as M;
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let mask = mask | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let error = qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("127.0.0.1") && text.contains("peers (VERNIC_PEERS)"), "{text}");
    assert_eq!(qp.query().state, QpState::Init);
    let error = end.pd.create_ah(av).unwrap_err().to_string();
    assert!(error.contains("VERNIC_PEERS"), "{error}");
    // A group is no peer.
    let group = Gid::from_ip("239.77.1.9".parse().unwrap());
    end.pd.create_ah(AddressVector { dgid: group, ..av }).unwrap();
}

#[test]
fn datagrams_from_outside_of_the_list_are_dropped_and_counted_by_wire_and_by_memory() {
    for (a, b) in
        [(test_config(), config(OTHERS)), (by_wire(test_config()), by_wire(config(OTHERS)))]
    {
        let (a, b, friend) = (End::with(a), End::with(b), End::with(config(HOME)));
        let (from, to) = (a.qp(Service::Ud), [b.qp(Service::Ud), friend.qp(Service::Ud)]);
        for qp in [&from, &to[0], &to[1]] {
            bring_up_ud(qp, QKEY);
        }
        let (sgid_index, dgid) = a.gid();
        let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
        let ah = a.pd.create_ah(av).unwrap();
        for (end, qp) in [(&b, &to[0]), (&friend, &to[1])] {
            qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(0, 2000)] }]).unwrap();
            let dest = Some(Dest { ah: &ah, qpn: qp.qpn(), qkey: QKEY });
            let sges = [a.sge(0, 100)];
            from.post_send(&[SendWr { dest, ..wr(1, SendOp::Send, &sges) }]).unwrap();
            a.wait(1);
        }
        assert_eq!(friend.wait(1)[0].status, WcStatus::Success);
        await_counter(&b.context, "drop_peer_not_allowed", 1);
        assert_eq!(b.cq.poll(&mut [EMPTY_WC; 4]).unwrap(), 0);
        let offenders = b.context.offenders();
        assert_eq!((offenders[0].peer, offenders[0].not_allowed), (LO, 1), "{offenders:?}");
        assert!(friend.context.offenders().is_empty());
    }
}

#[test]
fn requests_for_connections_from_outside_of_the_list_never_reach_who_listens() {
    let (server, client) = (Node::with(config(OTHERS)), Node::new());
    let service = port(21_000);
    let listener = server.listen(service, server.everywhere());
    client.connect(LO, service, b"hello");
    let start = Instant::now();
    // It is repeated.
    let refused = || {
        let drops = server.context.counters().drops;
        drops.iter().find(|(reason, _)| *reason == DropReason::PeerNotAllowed).unwrap().1
    };
    while refused() == 0 {
        server.context.progress();
        client.context.progress();
        assert!(start.elapsed() < PATIENCE, "{}", server.context.counters());
    }
    assert!(server.peek().is_none(), "nobody is told");
    server.cm().stop_listening(listener);
    // Nor does it ask others.
    let error = server.try_connect(LO, service, b"").unwrap_err();
    assert!(matches!(error, CmCallError::NotAllowed(_)), "{error}");
    assert!(error.to_string().contains("VERNIC_PEERS"), "{error}");
}

#[test]
fn connections_of_tcp_from_outside_of_the_list_are_closed_and_counted() {
    let server = end_with(config(OTHERS));
    let listener =
        Listener::bind(&server.context, SocketAddr::new(LO, 0), StartupConfig::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut stranger = TcpStream::connect(addr).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(listener.wait_request(Duration::from_millis(200)).unwrap().is_none());
    let read = std::io::Read::read(&mut stranger, &mut [0; 16]);
    assert!(
        matches!(read, Ok(0))
            || read.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
    );
    assert_eq!((server.context.counters().refused_peers, listener.passed_over()), (1, 1));
    assert!(listener.accept().unwrap().is_none());
    let config = StartupConfig::default();
    let error = Handshake::connect(&server.context, LO.into(), addr, config, &[]).unwrap_err();
    assert!(matches!(error, ConnectError::NotAllowed(_)), "{error}");
}

#[test]
fn wrong_keys_and_fatal_naks_are_counted_for_the_peer_that_caused_them() {
    let t = Pair::new(Service::Rc);
    let stale = Remote { addr: t.b.mr.iova(), rkey: Rkey(t.b.mr.rkey().value() ^ 0x5555_0000) };
    t.a_qp.post_send(&[wr(1, SendOp::Write(stale), &[t.a.sge(0, 64)])]).unwrap();
    let progress = || {
        t.b.context.progress();
    };
    assert_eq!(t.a.wait_beside(1, progress)[0].status, WcStatus::RemoteAccess);
    let counters = t.b.context.counters();
    assert_eq!((counters.bad_keys, counters.fatal_naks_sent), (1, 1), "{counters}");
    let peer: IpAddr = LO;
    let offender = t.b.context.offenders()[0];
    assert_eq!((offender.peer, offender.bad_keys, offender.fatal_naks), (peer, 1, 1));
    assert!(t.a.context.offenders().is_empty(), "who asked wrongly is told by its completion");
}
