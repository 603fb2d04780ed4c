//! Ids over iWARP: the same calls and events, over connections of TCP.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use common::*;
use vernic_cm::{Config, ConnParam, EventKind, Id, IdOption, PortSpace, QpState, QpType, State};
use vernic_engine::{Access, TransportChoice};

fn side() -> Side {
    Side::with(Config { transport: TransportChoice::Iwarp, ..Config::default() })
}

fn pair() -> Pair {
    let defaults = ConnParam::default();
    Pair::between((side(), side()), "127.0.0.1:0", &defaults, &defaults)
}

/// A listener of `side` on a free port of the loopback.
fn listener(side: &Side) -> (Arc<Id>, SocketAddr) {
    side.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0")
}

/// Waits until a queue pair that closes is in Error.
fn ends(end: &End) {
    let until = std::time::Instant::now() + LONG;
    while end.qp.state() != QpState::Error {
        assert!(std::time::Instant::now() < until, "still in {:?}", end.qp.state());
        end.context.progress();
        std::thread::yield_now();
    }
}

#[test]
fn both_sides_learn_who_the_other_is_and_what_it_wants() {
    let (server, client) = (side(), side());
    let (listener, place) = listener(&server);
    listener.set_user_context(77);
    let asks = ConnParam {
        private_data: b"hello",
        responder_resources: 3,
        initiator_depth: 5,
        ..ConnParam::default()
    };
    let (id, end) = client.connecting(place, &asks);
    assert!(id.context().unwrap().info().name.starts_with("viw"));

    let event = server.expect(EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(event.listen_id.as_ref().unwrap(), &listener));
    let info = conn(&event);
    assert_eq!(info.private_data, b"hello");
    assert_eq!((info.responder_resources, info.initiator_depth), (5, 3));
    let accepted = event.id.clone();
    drop(event);
    assert_eq!(accepted.user_context(), 77);
    assert_eq!((accepted.local_addr(), accepted.peer_addr()), (Some(place), id.local_addr()));
    assert!(Arc::ptr_eq(
        &accepted.context().unwrap(),
        &server.manager.context(&accepted.context().unwrap().info().name).unwrap()
    ));

    let accepted_end = End::new(&accepted);
    accepted.attach_qp(accepted_end.qp.clone()).unwrap();
    assert_eq!(accepted_end.qp.state(), QpState::Init);
    let answers =
        ConnParam { private_data: b"welcome", responder_resources: 2, ..ConnParam::default() };
    accepted.accept(&answers).unwrap();
    let event = client.expect(EventKind::Established);
    let info = conn(&event);
    assert_eq!(info.private_data, b"welcome");
    // The responder may have room for more than it says, and the peer keeps to what it asked for.
    assert_eq!((info.responder_resources, info.initiator_depth), (3, 5));
    server.expect(EventKind::Established);
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    for qp in [&end.qp, &accepted_end.qp] {
        assert_eq!((qp.state(), qp.query().access), (QpState::Rts, rights.bits()));
    }
    exchange(&end, &accepted_end);
    // Either may speak first.
    exchange(&accepted_end, &end);
}

#[test]
fn either_side_may_disconnect_and_both_are_told_once() {
    for active in [true, false] {
        let pair = pair();
        exchange(&pair.connected_end, &pair.accepted_end);
        for end in [&pair.connected_end, &pair.accepted_end] {
            end.post_recv();
        }
        let ids = [&pair.connected, &pair.accepted];
        ids[usize::from(!active)].disconnect().unwrap();
        for side in [&pair.client, &pair.server] {
            side.expect(EventKind::Disconnected);
        }
        for (id, end) in [(ids[0], &pair.connected_end), (ids[1], &pair.accepted_end)] {
            ends(end);
            assert_eq!(end.complete().status, vernic_engine::WcStatus::Flushed);
            assert_eq!(id.state(), State::Disconnect);
            id.disconnect().unwrap();
        }
        pair.client.expect_nothing();
        pair.server.expect_nothing();
    }
}

#[test]
fn what_was_sent_before_a_disconnection_arrives_before_it() {
    let pair = pair();
    for _ in 0..30 {
        pair.accepted_end.post_recv();
    }
    for _ in 0..30 {
        pair.connected_end.send();
    }
    pair.connected.disconnect().unwrap();
    pair.server.expect(EventKind::Disconnected);
    for _ in 0..30 {
        assert_eq!(pair.accepted_end.complete().status, vernic_engine::WcStatus::Success);
    }
}

#[test]
fn a_destroyed_id_and_a_destroyed_queue_pair_disconnect_the_peer() {
    let pair = pair();
    pair.accepted.destroy();
    pair.client.expect(EventKind::Disconnected);
    let Pair { server, client, accepted, connected, accepted_end, .. } = self::pair();
    drop(accepted.detach_qp());
    drop(accepted_end);
    client.expect(EventKind::Disconnected);
    server.expect(EventKind::Disconnected);
    drop(connected);
}

#[test]
fn a_rejected_peer_gets_the_data() {
    let (server, client) = (side(), side());
    let (_listener, place) = listener(&server);
    let (_id, end) = client.connecting(place, &ConnParam::default());
    let event = server.expect(EventKind::ConnectRequest);
    event.id.reject(b"no room").unwrap();
    assert_eq!(event.id.accept(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
    let event = client.expect_failure(EventKind::Rejected, -libc::ECONNRESET);
    assert_eq!(conn(&event).private_data, b"no room");
    assert_eq!(end.qp.state(), QpState::Error);
}

#[test]
fn a_port_that_nobody_listens_on_rejects() {
    let client = side();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _id = client.connecting(free, &ConnParam::default());
    client.expect_failure(EventKind::Rejected, -libc::ECONNREFUSED);
}

#[test]
fn a_server_that_hangs_up_rejects_and_one_that_speaks_something_else_is_an_error() {
    for (answer, kind, status) in [
        (&b""[..], EventKind::Rejected, -libc::ECONNRESET),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", EventKind::ConnectError, -libc::EPROTO),
    ] {
        let client = side();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let _id = client.connecting(other.local_addr().unwrap(), &ConnParam::default());
        let (mut stream, _) = other.accept().unwrap();
        // The request is read, so that what follows is no reset.
        stream.read_exact(&mut [0; 20]).unwrap();
        stream.write_all(answer).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        client.expect_failure(kind, status);
    }
}

/// What a peer says that accepts the request that comes.
fn acceptance(peer: &mut TcpStream) -> [u8; 24] {
    let mut request = [0; 24];
    peer.read_exact(&mut request).unwrap();
    // An empty READ is offered as the first word, and nothing else (RFC 6581, 9).
    assert_eq!((request[20] & 0xC0, request[22] & 0xC0), (0x80, 0x40));
    request[..16].copy_from_slice(b"MPA ID Rep Frame");
    request
}

/// An id of `client` that waits for the reply of its peer, which is ready.
fn asked(client: &Side) -> (Arc<Id>, End, TcpStream, [u8; 24]) {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let (id, end) = client.connecting(other.local_addr().unwrap(), &ConnParam::default());
    let (mut peer, _) = other.accept().unwrap();
    let reply = acceptance(&mut peer);
    (id, end, peer, reply)
}

/// A peer that has accepted, and whose initiator's id is gone, hears its first word, and the end
/// when it has answered.
fn expect_leave(mut peer: TcpStream) {
    peer.set_read_timeout(Some(LONG)).unwrap();
    // RFC 5044, 4.1; RFC 5041, 4.3; RFC 5040, 4.4: 46 bytes and a CRC, then an empty WRITE as a
    // reminder.
    let mut first = [0; 52];
    peer.read_exact(&mut first).unwrap();
    assert_eq!((first[1], first[3]), (46, 0x41));
    let mut reminder = [0; 20];
    peer.read_exact(&mut reminder).unwrap();
    assert_eq!((reminder[1], reminder[2], reminder[3]), (14, 0xC1, 0x40));
    // Whatever it says.
    peer.write_all(&[0]).unwrap();
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() % 20, 0);
}

#[test]
fn a_peer_that_has_accepted_hears_the_first_word_before_the_end_though_the_id_is_gone() {
    let client = side();
    let (id, end, mut peer, reply) = asked(&client);
    peer.write_all(&reply).unwrap();
    let mut sleeper = vernic_io::Sleeper::new().unwrap();
    sleeper.watch([client.channel.as_raw_fd()]);
    sleeper.sleep(Some(LONG));
    // Nobody takes the event.
    id.destroy();
    drop(end);
    expect_leave(peer);
}

#[test]
fn a_peer_whose_acceptance_is_on_its_way_hears_the_first_word_though_the_id_is_gone() {
    let client = side();
    let (id, end, mut peer, reply) = asked(&client);
    id.destroy();
    drop(end);
    peer.write_all(&reply).unwrap();
    expect_leave(peer);
}

#[test]
fn a_peer_whose_acceptance_is_on_its_way_hears_the_first_word_though_the_program_ends() {
    let client = side();
    let (_id, _end, mut peer, reply) = asked(&client);
    let peer = std::thread::spawn(move || {
        peer.write_all(&reply).unwrap();
        expect_leave(peer);
    });
    client.manager.disconnect_all();
    peer.join().unwrap();
}

#[test]
fn who_disconnects_before_the_answer_hears_that_nothing_comes_of_it() {
    let client = side();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (id, _end) = client.connecting(silent.local_addr().unwrap(), &ConnParam::default());
    let (mut peer, _) = silent.accept().unwrap();
    peer.read_exact(&mut [0; 24]).unwrap();
    id.disconnect().unwrap();
    client.expect_failure(EventKind::ConnectError, -libc::ECONNABORTED);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    client.expect_nothing();
}

#[test]
fn what_nobody_takes_is_rejected_when_its_listener_or_its_id_goes() {
    let (server, client) = (side(), side());
    let (listener, place) = listener(&server);
    let _first = client.connecting(place, &ConnParam::default());
    drop(server.expect(EventKind::ConnectRequest));
    client.expect_failure(EventKind::Rejected, -libc::ECONNRESET);
    let _second = client.connecting(place, &ConnParam::default());
    while server.manager.startup_counters().asked < 2 {
        std::thread::yield_now();
    }
    listener.destroy();
    client.expect_failure(EventKind::Rejected, -libc::ECONNRESET);
    let _third = client.connecting(place, &ConnParam::default());
    client.expect_failure(EventKind::Rejected, -libc::ECONNREFUSED);
}

#[test]
fn a_full_backlog_refuses_and_is_counted() {
    let (server, client) = (side(), side());
    let id = server.tcp();
    id.bind_addr(addr("127.0.0.1:0")).unwrap();
    id.listen(2).unwrap();
    let place = id.local_addr().unwrap();
    let ids: Vec<_> = (0..3).map(|_| client.connecting(place, &ConnParam::default())).collect();
    client.expect_failure(EventKind::Rejected, -libc::ECONNRESET);
    let counters = server.manager.startup_counters();
    assert_eq!((counters.begun, counters.asked, counters.refused), (3, 2, 1));
    drop(ids);
}

#[test]
fn ports_are_those_of_tcp() {
    let server = side();
    let (listener, place) = listener(&server);
    assert_eq!(TcpListener::bind(place).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let second = server.tcp();
    assert_eq!(second.bind_addr(place).unwrap_err().errno(), libc::EADDRINUSE);
    // Another process's.
    let other = side().tcp();
    let error = other.bind_addr(place).and_then(|()| other.listen(1)).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    drop(listener);
    let socket = TcpListener::bind(place).unwrap();
    assert_eq!(second.bind_addr(place).unwrap_err().errno(), libc::EADDRINUSE);
    drop(socket);
    second.bind_addr(place).unwrap();
    second.listen(1).unwrap();
    let foreign = server.tcp().bind_addr(addr("192.0.2.77:0")).unwrap_err();
    assert_eq!(foreign.errno(), libc::EADDRNOTAVAIL);
}

#[test]
fn wildcards_hear_of_every_address() {
    let server = side();
    let any = server.listener(PortSpace::TCP, QpType::Rc, "[::]:0").0;
    let port = any.local_addr().unwrap().port();
    for home in ["127.0.0.1", "[::1]"] {
        let client = side();
        let place = addr(&format!("{home}:{port}"));
        let (_id, end) = client.connecting(place, &ConnParam::default());
        let accepted = server.expect(EventKind::ConnectRequest).id.clone();
        assert_eq!(accepted.local_addr(), Some(place));
        let accepted_end = End::new(&accepted);
        accepted.attach_qp(accepted_end.qp.clone()).unwrap();
        accepted.accept(&ConnParam::default()).unwrap();
        client.expect(EventKind::Established);
        server.expect(EventKind::Established);
        exchange(&end, &accepted_end);
        accepted.disconnect().unwrap();
        server.expect(EventKind::Disconnected);
    }
}

#[test]
fn connections_that_are_none_are_counted_and_closed() {
    let server = side();
    let (_listener, place) = listener(&server);
    let mut stream = TcpStream::connect(place).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    // Closed with what was not read: a reset, or an end.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    drop(TcpStream::connect(place).unwrap());
    while server.manager.startup_counters().failed < 2 {
        std::thread::yield_now();
    }
    assert_eq!(server.manager.startup_counters().begun, 2);
    server.expect_nothing();
}

#[test]
fn too_much_private_data_is_refused_and_the_most_passes() {
    let (server, client) = (side(), side());
    let (_listener, place) = listener(&server);
    let id = client.routed(PortSpace::TCP, QpType::Rc, place);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    let most = [7; 508];
    let (_other, _end) =
        client.connecting(place, &ConnParam { private_data: &most, ..ConnParam::default() });
    let event = server.expect(EventKind::ConnectRequest);
    assert_eq!(conn(&event).private_data, most);
    let accepted_end = End::new(&event.id);
    event.id.attach_qp(accepted_end.qp.clone()).unwrap();
    let long = ConnParam { private_data: &[7; 509], ..ConnParam::default() };
    let error = event.id.accept(&long).unwrap_err();
    assert!(error.to_string().contains("at most 508"), "{error}");
    event.id.accept(&ConnParam { private_data: &most, ..ConnParam::default() }).unwrap();
    assert_eq!(conn(&client.expect(EventKind::Established)).private_data, most);
    assert_eq!(id.connect(&long).unwrap_err().errno(), libc::EINVAL);
    let deep = ConnParam { initiator_depth: 129, ..ConnParam::default() };
    let error = id.connect(&deep).unwrap_err();
    assert!(error.to_string().contains("initiator_depth is 129"), "{error}");
    assert_eq!(
        id.connect(&ConnParam { private_data: &[], ..long }).map_err(|e| e.to_string()),
        Ok(())
    );
}

#[test]
fn datagrams_are_refused() {
    let side = side();
    let id = side.udp();
    let error = id.bind_addr(addr("127.0.0.1:0")).unwrap_err();
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
    let error = side.udp().resolve_addr(None, addr("127.0.0.1:9"), SOON).unwrap_err();
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
}

#[test]
fn a_port_that_is_bound_is_no_other_ids_unless_both_share_it() {
    let (one, other) = (side(), side());
    let bind = |side: &Side, place: SocketAddr, share: bool| {
        let id = side.tcp();
        id.set_option(IdOption::ReuseAddr(share)).unwrap();
        id.bind_addr(place).map(|()| id)
    };
    for place in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"].map(addr) {
        let taken_says = match place.ip().is_unspecified() {
            true => libc::EADDRNOTAVAIL,
            false => libc::EADDRINUSE,
        };
        let first = bind(&one, place, false).unwrap();
        let taken = first.local_addr().unwrap();
        for share in [false, true] {
            let error = bind(&other, taken, share).unwrap_err();
            assert_eq!(error.errno(), taken_says, "{error}");
        }
        drop(first);
        let shared = [&one, &other].map(|side| bind(side, taken, true).unwrap());
        shared[1].listen(1).unwrap();
        assert_eq!(shared[0].listen(1).unwrap_err().errno(), taken_says);
    }
}

#[test]
fn a_connection_that_could_not_be_begun_leaves_the_id_its_port() {
    let (server, client) = (side(), side());
    let (_listener, place) = listener(&server);
    let id = client.routed(PortSpace::TCP, QpType::Rc, place);
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.context().unwrap().close();
    // The second time for the same reason as the first, and with the same port.
    let errors = [(); 2].map(|()| id.connect(&ConnParam::default()).unwrap_err().to_string());
    assert!(errors[0].contains("is closed"), "{errors:?}");
    assert_eq!(errors[0], errors[1]);
}
