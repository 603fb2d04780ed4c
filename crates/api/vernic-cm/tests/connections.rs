//! Connections between two managers: what each side is told, and what becomes of its queue pair.

mod common;

use std::sync::Arc;

use common::*;
use vernic_cm::{ConnParam, EventKind, IdOption, PortSpace, QpState, QpType, RejReason, State};
use vernic_engine::{Access, Mtu};

#[test]
fn both_sides_learn_who_the_other_is_and_what_it_wants() {
    let (server, client) = (Side::new(), Side::new());
    let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    listener.set_user_context(77);
    let id = client.routed(PortSpace::TCP, QpType::Rc, place);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    assert_eq!(end.qp.state(), QpState::Init);
    let asks = ConnParam {
        private_data: b"hello",
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 4,
        ..ConnParam::default()
    };
    id.connect(&asks).unwrap();

    let event = server.expect(EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(event.listen_id.as_ref().unwrap(), &listener));
    let info = conn(&event);
    starts(&info.private_data, 56, b"hello");
    assert_eq!((info.responder_resources, info.initiator_depth), (5, 3));
    assert_eq!((info.retry_count, info.rnr_retry_count), (6, 4));
    assert_eq!((info.qp_num, info.srq), (end.qp.qpn(), false));
    let accepted = event.id.clone();
    drop(event);
    assert_eq!(accepted.user_context(), 77);
    assert_eq!(accepted.local_addr(), Some(place));
    assert_eq!(accepted.peer_addr(), id.local_addr());
    assert_eq!(accepted.context().unwrap().info().port.netdev, "lo");

    let accepted_end = End::new(&accepted);
    accepted.attach_qp(accepted_end.qp.clone()).unwrap();
    let answers = ConnParam {
        private_data: b"welcome",
        responder_resources: 2,
        rnr_retry_count: 1,
        ..ConnParam::default()
    };
    accepted.accept(&answers).unwrap();
    let event = client.expect(EventKind::Established);
    let info = conn(&event);
    starts(&info.private_data, 196, b"welcome");
    assert_eq!((info.responder_resources, info.initiator_depth), (3, 2));
    assert_eq!(info.qp_num, accepted_end.qp.qpn());
    server.expect(EventKind::Established);

    let (active, passive) = (end.qp.query(), accepted_end.qp.query());
    assert_eq!((active.state, passive.state), (QpState::Rts, QpState::Rts));
    // What one has outstanding, the other keeps.
    assert_eq!((active.max_rd_atomic, passive.max_dest_rd_atomic), (2, 2));
    assert_eq!((active.max_dest_rd_atomic, passive.max_rd_atomic), (3, 3));
    assert_eq!((active.rq_psn, active.sq_psn), (passive.sq_psn, passive.rq_psn));
    assert_eq!((active.retry_cnt, passive.retry_cnt), (6, 6));
    assert_eq!((active.rnr_retry, passive.rnr_retry), (1, 4));
    assert_eq!((active.timeout.exponent(), passive.timeout.exponent()), (17, 17));
    assert_eq!((active.min_rnr_timer.code(), passive.min_rnr_timer.code()), (12, 12));
    assert_eq!((active.path_mtu, passive.path_mtu), (Mtu::B4096, Mtu::B4096));
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    assert_eq!((active.access, passive.access), (rights.bits(), rights.bits()));
    exchange(&end, &accepted_end);
}

#[test]
fn either_side_may_disconnect_and_both_are_told() {
    for active in [true, false] {
        let pair = Pair::new("127.0.0.1:0");
        exchange(&pair.connected_end, &pair.accepted_end);
        let sides = [(&pair.connected, &pair.client), (&pair.accepted, &pair.server)];
        let [first, second] = if active { sides } else { [sides[1], sides[0]] };
        first.0.disconnect().unwrap();
        assert_eq!(first.0.qp().unwrap().state(), QpState::Error);
        second.1.expect(EventKind::Disconnected);
        assert_eq!(second.0.state(), State::Disconnect);
        second.0.disconnect().unwrap();
        assert_eq!(second.0.qp().unwrap().state(), QpState::Error);
        first.1.expect(EventKind::Disconnected);
        for side in [first, second] {
            side.1.expect(EventKind::TimewaitExit);
            side.0.disconnect().unwrap();
        }
    }
}

#[test]
fn both_sides_may_disconnect_at_once_and_each_is_told_once() {
    let pair = Pair::new("127.0.0.1:0");
    let _ = (pair.connected.disconnect(), pair.accepted.disconnect());
    for side in [&pair.client, &pair.server] {
        side.expect(EventKind::Disconnected);
        side.expect(EventKind::TimewaitExit);
        side.expect_nothing();
    }
}

#[test]
fn a_destroyed_id_disconnects_its_peer() {
    let pair = Pair::new("127.0.0.1:0");
    pair.accepted.destroy();
    pair.client.expect(EventKind::Disconnected);
    pair.connected.disconnect().unwrap();
    pair.server.expect_nothing();
}

#[test]
fn a_rejected_peer_gets_the_reason_and_the_data() {
    let (server, client) = (Side::new(), Side::new());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let (_id, end) = client.connecting(place, &ConnParam::default());
    let event = server.expect(EventKind::ConnectRequest);
    event.id.reject(b"no room").unwrap();
    assert_eq!(event.id.accept(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
    let reason = i32::from(RejReason::CONSUMER.value());
    let event = client.expect_failure(EventKind::Rejected, reason);
    starts(&conn(&event).private_data, 148, b"no room");
    assert_eq!(end.qp.state(), QpState::Error);
}

#[test]
fn what_nobody_takes_is_rejected_when_its_listener_or_its_id_goes() {
    let (server, client) = (Side::new(), Side::new());
    let consumer = i32::from(RejReason::CONSUMER.value());
    let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let _first = client.connecting(place, &ConnParam::default());
    drop(server.expect(EventKind::ConnectRequest));
    client.expect_failure(EventKind::Rejected, consumer);
    let _second = client.connecting(place, &ConnParam::default());
    // It waits at the listener; nobody takes it.
    wait_readable(&server);
    listener.destroy();
    client.expect_failure(EventKind::Rejected, consumer);
    server.expect_nothing();
    let _third = client.connecting(place, &ConnParam::default());
    client.expect_failure(EventKind::Rejected, i32::from(RejReason::INVALID_SERVICE_ID.value()));
}

fn wait_readable(side: &Side) {
    use std::os::fd::AsRawFd;
    let fd = side.channel.as_raw_fd();
    let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which the channel keeps open.
    assert_eq!(unsafe { libc::poll(&mut fds, 1, LONG.as_millis() as i32) }, 1);
}

#[test]
fn programs_may_bring_their_own_queue_pairs_up() {
    let (server, client) = (Side::new(), Side::new());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let id = client.routed(PortSpace::TCP, QpType::Rc, place);
    let end = End::new(&id);
    let bring = |id: &vernic_cm::Id, end: &End, state| {
        let (attr, mask) = id.init_qp_attr(state).unwrap();
        end.qp.modify(&attr, mask).unwrap();
    };
    assert_eq!(id.connect(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
    assert!(id.init_qp_attr(QpState::Rtr).is_err());
    bring(&id, &end, QpState::Init);
    let own = |end: &End| ConnParam { qp_num: Some(end.qp.qpn()), ..ConnParam::default() };
    id.connect(&own(&end)).unwrap();
    let accepted = server.expect(EventKind::ConnectRequest).id.clone();
    let accepted_end = End::new(&accepted);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        bring(&accepted, &accepted_end, state);
    }
    accepted.accept(&own(&accepted_end)).unwrap();
    let event = client.expect(EventKind::ConnectResponse);
    assert_eq!(conn(&event).qp_num, accepted_end.qp.qpn());
    bring(&id, &end, QpState::Rtr);
    bring(&id, &end, QpState::Rts);
    server.expect_nothing();
    id.establish().unwrap();
    assert_eq!(id.establish().unwrap_err().errno(), libc::EINVAL);
    server.expect(EventKind::Established);
    exchange(&end, &accepted_end);
    id.disconnect().unwrap();
    server.expect(EventKind::Disconnected);
}

#[test]
fn unreliable_connections_are_made_the_same_way() {
    let (server, client) = (Side::new(), Side::new());
    let (_listener, place) = server.listener(PortSpace::IB, QpType::Uc, "127.0.0.1:0");
    let id = client.routed(PortSpace::IB, QpType::Uc, place);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let accepted = server.expect(EventKind::ConnectRequest).id.clone();
    let accepted_end = End::new(&accepted);
    accepted.attach_qp(accepted_end.qp.clone()).unwrap();
    accepted.accept(&ConnParam::default()).unwrap();
    client.expect(EventKind::Established);
    server.expect(EventKind::Established);
    exchange(&end, &accepted_end);
}

#[test]
fn options_of_the_active_side_are_heard_by_the_passive_one() {
    let (server, client) = (Side::new(), Side::new());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let id = client.id(PortSpace::TCP, QpType::Rc);
    id.set_option(IdOption::Tos(0x40)).unwrap();
    id.set_option(IdOption::AckTimeout(14)).unwrap();
    id.resolve_addr(None, place, SOON).unwrap();
    client.expect(EventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
    client.expect(EventKind::RouteResolved);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let accepted = server.expect(EventKind::ConnectRequest).id.clone();
    assert_eq!(accepted.path().unwrap().traffic_class, 0x40);
    let accepted_end = End::new(&accepted);
    accepted.attach_qp(accepted_end.qp.clone()).unwrap();
    accepted.accept(&ConnParam::default()).unwrap();
    client.expect(EventKind::Established);
    for end in [&end, &accepted_end] {
        let attr = end.qp.query();
        assert_eq!((attr.timeout.exponent(), attr.av.traffic_class), (14, 0x40));
    }
}

#[test]
fn a_wildcard_hears_of_its_ip_version_and_both_if_it_is_ipv6() {
    let hears = |place: &str, only: bool, to: &str| {
        let (server, client) = (Side::new(), Side::new());
        let listener = server.tcp();
        listener.bind_addr(addr(place)).unwrap();
        listener.set_option(IdOption::AfOnly(only)).unwrap();
        listener.listen(4).unwrap();
        let mut to = addr(to);
        to.set_port(listener.port());
        let (id, _end) = client.connecting(to, &ConnParam::default());
        std::thread::scope(|scope| {
            // Whoever is refused hears it; who is heard is told to the server.
            let refused = scope.spawn(|| client.event());
            loop {
                if let Some(event) = server.channel.try_next() {
                    assert_eq!(event.id.local_addr().unwrap(), to);
                    assert_eq!(event.id.peer_addr(), id.local_addr());
                    event.id.reject(&[]).unwrap();
                    let reason = refused.join().unwrap().status;
                    assert_eq!(reason, i32::from(RejReason::CONSUMER.value()));
                    return true;
                }
                if refused.is_finished() {
                    let reason = refused.join().unwrap().status;
                    assert_eq!(reason, i32::from(RejReason::INVALID_SERVICE_ID.value()));
                    return false;
                }
                std::thread::yield_now();
            }
        })
    };
    assert!(hears("0.0.0.0:0", false, "127.0.0.1:0"));
    assert!(!hears("0.0.0.0:0", false, "[::1]:0"));
    assert!(hears("[::]:0", false, "127.0.0.1:0"));
    assert!(hears("[::]:0", false, "[::1]:0"));
    assert!(hears("[::]:0", true, "[::1]:0"));
    assert!(!hears("[::]:0", true, "127.0.0.1:0"));
}

#[test]
fn wildcards_of_both_ip_versions_may_share_a_port() {
    let (server, client) = (Side::new(), Side::new());
    let v4 = server.tcp();
    v4.listen(4).unwrap();
    let v6 = server.tcp();
    v6.set_option(IdOption::AfOnly(true)).unwrap();
    v6.bind_addr(addr(&format!("[::]:{}", v4.port()))).unwrap();
    v6.listen(4).unwrap();
    for (listener, to) in [(&v4, "127.0.0.1"), (&v6, "[::1]")] {
        let to = addr(&format!("{to}:{}", v4.port()));
        let _asking = client.connecting(to, &ConnParam::default());
        let event = server.expect(EventKind::ConnectRequest);
        assert!(Arc::ptr_eq(event.listen_id.as_ref().unwrap(), listener));
        drop(event);
        client.event();
    }
    // The one goes on when the other has gone.
    v4.destroy();
    let to = addr(&format!("[::1]:{}", v6.port()));
    let _asking = client.connecting(to, &ConnParam::default());
    server.expect(EventKind::ConnectRequest);
}

#[test]
fn a_port_that_another_manager_listens_on_is_in_use() {
    let (server, other) = (Side::new(), Side::new());
    let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let error = other.tcp().bind_addr(place).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE);
    assert!(error.to_string().contains("another process"), "{error}");
    let (wildcard, everywhere) = (other.tcp(), addr(&format!("0.0.0.0:{}", place.port())));
    assert_eq!(wildcard.bind_addr(everywhere).unwrap_err().errno(), libc::EADDRNOTAVAIL);
    assert_eq!(wildcard.state(), State::Idle);
    // Who shares learns of it when it listens.
    let sharing = other.tcp();
    sharing.set_option(IdOption::ReuseAddr(true)).unwrap();
    sharing.bind_addr(everywhere).unwrap();
    assert_eq!(sharing.listen(1).unwrap_err().errno(), libc::EADDRNOTAVAIL);
    assert_eq!(sharing.state(), State::Bound);
    sharing.destroy();
    listener.destroy();
    wildcard.bind_addr(everywhere).unwrap();
    wildcard.listen(1).unwrap();
    assert_eq!(server.tcp().bind_addr(place).unwrap_err().errno(), libc::EADDRNOTAVAIL);
}

#[test]
fn a_wildcard_has_its_port_on_every_device_from_when_it_is_bound() {
    let (server, other, client) = (Side::new(), Side::new(), Side::new());
    // A port that is free.
    let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    listener.destroy();
    let port = place.port();
    let at = |ip: &str| addr(&format!("{ip}:{port}"));
    let v4 = server.tcp();
    v4.bind_addr(at("0.0.0.0")).unwrap();
    // Both IP versions of one process share.
    let v6 = server.tcp();
    v6.set_option(IdOption::AfOnly(true)).unwrap();
    v6.bind_addr(at("[::]")).unwrap();
    let is_taken = || {
        ["0.0.0.0", "127.0.0.1", "[::]"].map(|place| match other.tcp().bind_addr(at(place)) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{place}");
                true
            }
        })
    };
    assert_eq!(is_taken(), [true; 3]);
    v4.listen(1).unwrap();
    let _asking = client.connecting(at("127.0.0.1"), &ConnParam::default());
    drop(server.expect(EventKind::ConnectRequest));
    // One listens no more, the other is bound still; then it is gone, too.
    v4.destroy();
    assert_eq!(is_taken(), [true; 3]);
    v6.destroy();
    assert_eq!(is_taken(), [false; 3]);
}

#[test]
fn a_peer_that_asks_for_a_larger_path_mtu_is_told_so_at_once() {
    let mut config = vernic_cm::Config::default();
    config.set("mtu", "1024").unwrap();
    let (server, client) = (Side::with(config), Side::new());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let _asking = client.connecting(place, &ConnParam::default());
    let reason = i32::from(RejReason::INVALID_MTU.value());
    client.expect_failure(EventKind::Rejected, reason);
    server.expect_nothing();
}

#[test]
fn requests_move_with_their_listener_to_another_channel() {
    let (server, client) = (Side::new(), Side::new());
    let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let (_id, _end) = client.connecting(place, &ConnParam::default());
    wait_readable(&server);
    let other = server.manager.create_channel().unwrap();
    listener.migrate(&other).unwrap();
    server.expect_nothing();
    let request = next(&other);
    assert_eq!(request.kind, EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(&request.id.channel().unwrap(), &other));
    // What happens to it comes there, too.
    let end = End::new(&request.id);
    request.id.attach_qp(end.qp.clone()).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    client.expect(EventKind::Established);
    assert_eq!(next(&other).kind, EventKind::Established);
}

#[test]
fn connections_in_ipv6_are_as_those_in_ipv4() {
    let pair = Pair::new("[::1]:0");
    exchange(&pair.connected_end, &pair.accepted_end);
    assert_eq!(pair.accepted.peer_addr(), pair.connected.local_addr());
    assert_eq!(pair.accepted.local_addr(), pair.connected.peer_addr());
}

#[test]
fn an_id_with_a_channel_of_its_own_waits_for_each_outcome() {
    let server = Side::new();
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let client = Side::new();
    let id = client.manager.create_id(None, PortSpace::TCP, QpType::Rc).unwrap();
    id.resolve_addr(None, place, SOON).unwrap();
    assert_eq!(id.complete().unwrap().kind, EventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
    assert_eq!(id.complete().unwrap().kind, EventKind::RouteResolved);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.expect(EventKind::ConnectRequest).id.reject(&[]).unwrap());
        let error = id.complete().unwrap_err();
        assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
    });
}
