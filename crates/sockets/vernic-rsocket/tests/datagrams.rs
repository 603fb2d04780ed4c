//! Datagrams between sockets of one process, over `lo`.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use libc::{POLLIN, POLLOUT};
use vernic_cm::{Config, Id, Manager, PortSpace, QpType, UDP_QKEY};
use vernic_engine::{
    AddressVector, Cq, Dest, Payload, Pd, PortNum, Qp, QpCap, QpInit, Qpn, SendFlags, SendOp,
    SendWr, Service,
};
use vernic_rsocket::wire::{DatagramHeader, LookupHeader, LookupOp};
use vernic_rsocket::{
    Family, MsgFlags, RDMA_DROPPED, Runtime, SOL_RDMA, Settings, Socket, SocketKind,
};
use vernic_wire::Gid;

fn bound(runtime: &Runtime, place: &str) -> Socket {
    let place: SocketAddr = place.parse().unwrap();
    let family = if place.is_ipv4() { Family::V4 } else { Family::V6 };
    let socket = runtime.socket(family, SocketKind::Datagram).unwrap();
    socket.bind(place).unwrap();
    socket
}

#[test]
fn datagrams_go_back_and_forth_whole_and_say_where_they_are_from() {
    let _alone = alone();
    for place in ["127.0.0.1:0", "[::1]:0"] {
        let runtime = runtime();
        let (a, b) = (bound(&runtime, place), bound(&runtime, place));
        let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        // The first go by UDP, the others from queue pair to queue pair.
        for len in [0, 1, 100, 2000, 1, 300] {
            let bytes = content(len as u64, len);
            send_to(&a, &bytes, at_b);
            assert_eq!(recv_from(&b), (bytes.clone(), at_a));
            send_to(&b, &bytes, at_a);
            assert_eq!(recv_from(&a), (bytes, at_b));
        }
    }
}

#[test]
fn a_connected_socket_needs_no_destination_and_an_unconnected_one_does() {
    let _alone = alone();
    let runtime = runtime();
    let server = bound(&runtime, "127.0.0.1:0");
    let client = runtime.socket(Family::V4, SocketKind::Datagram).unwrap();
    assert_eq!(errno(send(&client, b"x")), libc::EDESTADDRREQ);
    assert_eq!(errno(client.peer_addr()), libc::ENOTCONN);
    client.connect(server.local_addr().unwrap()).unwrap();
    assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    for turn in 0..50_u8 {
        send_all(&client, &[turn]);
        let (bytes, from) = recv_from(&server);
        assert_eq!((bytes, from), (vec![turn], client.local_addr().unwrap()));
        send_to(&server, &[turn], from);
        assert_eq!(recv(&client, 9).unwrap(), [turn]);
    }
}

#[test]
fn a_datagram_that_is_too_long_is_refused_and_one_that_does_not_fit_is_cut() {
    let _alone = alone();
    let runtime = runtime();
    let (a, b) = (bound(&runtime, "127.0.0.1:0"), bound(&runtime, "127.0.0.1:0"));
    let to = b.local_addr().unwrap();
    let long = [IoSlice::new(&[0; 2100])];
    assert_eq!(errno(a.send(&long, Some(to), MsgFlags::NONE)), libc::EMSGSIZE);
    for _ in 0..2 {
        send_to(&a, b"abcdef", to);
        let mut room = [0; 2];
        let received = b.recv(&mut [IoSliceMut::new(&mut room)], MsgFlags::NONE).unwrap();
        assert_eq!((&room, received.copied, received.len), (b"ab", 2, 6));
    }
    send_to(&a, b"xyz", to);
    assert_eq!(recv_flags(&b, 9, libc::MSG_PEEK).unwrap(), b"xyz");
    assert_eq!(recv(&b, 9).unwrap(), b"xyz");
}

#[test]
fn one_socket_serves_many() {
    let _alone = alone();
    let runtime = runtime();
    let server = bound(&runtime, "0.0.0.0:0");
    let port = server.local_addr().unwrap().port();
    let to = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    let clients: Vec<Socket> = (0..20).map(|_| bound(&runtime, "127.0.0.1:0")).collect();
    for _ in 0..3 {
        for (n, client) in clients.iter().enumerate() {
            send_to(client, &[n as u8], to);
        }
        for _ in &clients {
            let (bytes, from) = recv_from(&server);
            let client = &clients[usize::from(bytes[0])];
            assert_eq!(from, client.local_addr().unwrap());
            send_to(&server, &bytes, from);
            assert_eq!(recv(client, 9).unwrap(), bytes);
        }
    }
}

#[test]
fn waiting_is_for_what_comes_by_either_way() {
    let _alone = alone();
    let runtime = runtime();
    let (a, b) = (bound(&runtime, "127.0.0.1:0"), bound(&runtime, "127.0.0.1:0"));
    let to = b.local_addr().unwrap();
    b.set_nonblocking(true);
    assert_eq!(errno(recv(&b, 1)), libc::EAGAIN);
    assert_eq!(wait_for(&b, POLLIN | POLLOUT, Duration::ZERO), POLLOUT);
    for _ in 0..4 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                send_to(&a, b"x", to);
            });
            assert_eq!(wait_for(&b, POLLIN, SOON), POLLIN);
        });
        assert_eq!(recv(&b, 9).unwrap(), b"x");
        assert_eq!(wait_for(&b, POLLIN, Duration::ZERO), 0);
    }
}

#[test]
fn what_strangers_send_to_the_udp_socket_is_dropped() {
    let _alone = alone();
    let runtime = runtime();
    let (a, b) = (bound(&runtime, "127.0.0.1:0"), bound(&runtime, "127.0.0.1:0"));
    let to = b.local_addr().unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [&b""[..], b"hello", &[0x55; 40], &[0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0]] {
        stranger.send_to(bytes, to).unwrap();
    }
    send_to(&a, b"friend", to);
    assert_eq!(recv_from(&b), (b"friend".to_vec(), a.local_addr().unwrap()));
    b.set_nonblocking(true);
    assert_eq!(errno(recv(&b, 1)), libc::EAGAIN);
}

/// A queue pair for datagrams that is no socket's, and what it takes to send from it.
struct Stranger {
    id: Arc<Id>,
    qp: Arc<Qp>,
    _cq: Arc<Cq>,
    pd: Arc<Pd>,
}

impl Stranger {
    fn new(manager: &Arc<Manager>, place: SocketAddr) -> Self {
        let id = manager.create_id(None, PortSpace::UDP, QpType::Ud).unwrap();
        id.bind_addr(SocketAddr::new(place.ip(), 0)).unwrap();
        let context = id.context().unwrap();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16, None).unwrap());
        let cap = QpCap { max_send_wr: 16, max_inline: 64, ..QpCap::default() };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let service = Service::Ud;
        let init = QpInit {
            service,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: true,
            congestion: None,
        };
        let qp = pd.create_qp(init).unwrap();
        id.attach_qp(qp.clone()).unwrap();
        Self { id, qp, _cq: cq, pd }
    }

    /// A datagram to a queue pair that names `source` as its sender.
    fn send(&self, to: (IpAddr, Qpn), source: SocketAddr, bytes: &[u8]) {
        let mut datagram = [0; 64];
        let header = DatagramHeader { source };
        header.emit(&mut datagram);
        let end = header.len() + bytes.len();
        datagram[header.len()..end].copy_from_slice(bytes);
        let sgid_index = self.id.local_gid_index().unwrap();
        let dgid = Gid::from_ip(to.0);
        let port = PortNum(1);
        let av = AddressVector { dgid, sgid_index, hop_limit: 64, port, ..Default::default() };
        let ah = self.pd.create_ah(av).unwrap();
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::InlineBytes(&datagram[..end]),
            dest: Some(Dest { ah: &ah, qpn: to.1, qkey: UDP_QKEY }),
            srqn: None,
        };
        self.qp.post_send(&[wr]).unwrap();
    }
}

/// The queue pair behind a socket, as a peer without one asks for it.
fn qpn_of(at: SocketAddr, udp: &UdpSocket) -> Qpn {
    let address = udp.local_addr().unwrap().ip();
    let header = LookupHeader { op: LookupOp::DATA, qpn: Qpn::new(2), address };
    let mut bytes = [0; LookupHeader::MAX_LEN];
    header.emit(&mut bytes);
    udp.send_to(&bytes[..header.len()], at).unwrap();
    let count = udp.recv(&mut bytes).unwrap();
    LookupHeader::parse(&bytes[..count]).unwrap().qpn
}

#[test]
fn a_datagram_that_names_another_sender_is_dropped_and_counted() {
    let _alone = alone();
    for (place, other) in [("127.0.0.1:0", "10.9.8.7:77"), ("[::1]:0", "[2001:db8::1]:77")] {
        let manager = Manager::new(Config::default());
        let runtime = Runtime::new(&manager, Settings::default()).unwrap();
        let (a, b) = (bound(&runtime, place), bound(&runtime, place));
        let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        // Both know each other's queue pair then.
        for (from, to) in [(&a, &b), (&b, &a), (&a, &b)] {
            send_to(from, b"hello", to.local_addr().unwrap());
            assert_eq!(recv(to, 9).unwrap(), b"hello");
        }
        let to_b = (at_b.ip(), qpn_of(at_b, &UdpSocket::bind(place).unwrap()));
        assert_eq!(recv(&b, 9).unwrap(), b"");
        let stranger = Stranger::new(&manager, at_b);
        let own = SocketAddr::new(at_b.ip(), 77);
        // Another host's address; the address of a socket whose queue pair is another; the truth.
        stranger.send(to_b, other.parse().unwrap(), b"lie");
        stranger.send(to_b, at_a, b"lie");
        stranger.send(to_b, own, b"truth");
        assert_eq!(recv_from(&b), (b"truth".to_vec(), own));
        assert_eq!(int(&b, SOL_RDMA, RDMA_DROPPED), 2);
        send_to(&a, b"friend", at_b);
        assert_eq!(recv_from(&b), (b"friend".to_vec(), at_a));
    }
}
