use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use super::*;
use crate::wait::Sleeper;

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Polls until `done` returns something: everything here is within one host.
fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_000_000 {
        if let Some(value) = done() {
            return value;
        }
        std::thread::yield_now();
    }
    panic!("it never happens");
}

fn pair(ip: IpAddr) -> (Connection, Connection) {
    let listener = Listener::bind(&SocketAddr::new(ip, 0)).unwrap();
    let a = Connection::connect(ip.into(), &listener.local_addr().unwrap()).unwrap();
    let b = until(|| listener.accept().unwrap());
    until(|| matches!(a.connecting(), Connecting::Done).then_some(()));
    (a, b)
}

fn received(from: &Connection) -> Received {
    let mut buf = [0; 100];
    until(|| match from.recv(&mut buf) {
        Received::Nothing => None,
        other => Some(other),
    })
}

#[test]
fn bytes_arrive_and_so_does_the_end_of_each_half() {
    for ip in [LO, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let (a, b) = pair(ip);
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        assert!(a.segment_bytes().unwrap() > 500);
        assert!(a.is_within_host() && b.is_within_host());
        assert!(matches!(b.recv(&mut [0; 9]), Received::Nothing));
        assert!(matches!(a.send(b"hello"), Sent::Bytes(5)));
        assert!(matches!(received(&b), Received::Bytes(5)));
        a.shutdown();
        assert!(matches!(received(&b), Received::End));
        assert!(matches!(b.send(b"still"), Sent::Bytes(5)));
        assert!(matches!(received(&a), Received::Bytes(5)));
    }
}

#[test]
fn a_reset_is_heard_as_one() {
    let (a, b) = pair(LO);
    let readiness = Readiness::new().unwrap();
    readiness.watch(&b, 5, Interest::default()).unwrap();
    a.reset();
    let mut ready = Vec::new();
    until(|| (readiness.poll(&mut ready).unwrap() == 1).then_some(()));
    assert!(ready[0].broken && ready[0].key == 5);
    let Received::Lost(error) = received(&b) else { panic!("no error") };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(matches!(b.send(b"x"), Sent::Lost(_)));
}

#[test]
fn a_bound_socket_has_its_port_alone_and_listens_or_connects_with_it() {
    let any = SocketAddr::new(LO, 0);
    let bound = |share| Bound::new(&any, true, share).unwrap();
    let (a, b, shared) = (bound(false), bound(false), bound(true));
    let (at, from) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    assert!(at.port() != 0 && at.port() != from.port());
    let taken = |share| Bound::new(&at, true, share).unwrap_err().kind();
    assert_eq!([taken(false), taken(true)], [io::ErrorKind::AddrInUse; 2]);
    Bound::new(&shared.local_addr().unwrap(), true, true).unwrap();
    let listener = a.listen().unwrap();
    let ours = b.connect(&at).unwrap();
    let theirs = until(|| listener.accept().unwrap());
    assert_eq!((ours.local_addr().unwrap(), theirs.peer_addr().unwrap()), (from, from));
    // The port can be taken again though there is a connection over it.
    drop(listener);
    drop((theirs, ours));
    Bound::new(&at, true, false).unwrap().listen().unwrap();
}

#[test]
fn the_type_of_service_is_that_of_both_ends_own_sockets() {
    for ip in [LO, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let bound = Bound::new(&SocketAddr::new(ip, 0), true, false).unwrap();
        bound.set_tos(0x28).unwrap();
        let listener = bound.listen().unwrap();
        let _ours = Connection::connect(ip.into(), &listener.local_addr().unwrap()).unwrap();
        let theirs = until(|| listener.accept().unwrap());
        let (level, name) = match ip.is_ipv4() {
            true => (libc::IPPROTO_IP, libc::IP_TOS),
            false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        assert_eq!(sys::option(theirs.fd.as_fd(), level, name).unwrap(), 0x28, "{ip}");
    }
}

#[test]
fn the_ipv6_wildcard_takes_ipv4_unless_told_not_to() {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    for v6_only in [false, true] {
        let listener = Bound::new(&any, v6_only, false).unwrap().listen().unwrap();
        let port = listener.local_addr().unwrap().port();
        let ours = Connection::connect(LO.into(), &SocketAddr::new(LO, port));
        let made = ours.is_ok_and(|ours| {
            until(|| match ours.connecting() {
                Connecting::Pending => None,
                outcome => Some(matches!(outcome, Connecting::Done)),
            })
        });
        assert_eq!(made, !v6_only);
    }
}

#[test]
fn a_port_that_nobody_listens_on_refuses() {
    let listener = Listener::bind(&SocketAddr::new(LO, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let outcome = Connection::connect(LO.into(), &addr).map(|connection| {
        until(|| match connection.connecting() {
            Connecting::Pending => None,
            Connecting::Done => panic!("connected to nobody"),
            Connecting::Failed(error) => Some(error),
        })
    });
    let error = match outcome {
        Ok(error) | Err(error) => error,
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_full_connection_says_so_and_one_descriptor_tells_of_room_and_bytes() {
    let (a, b) = pair(LO);
    let readiness = Readiness::new().unwrap();
    let mut sleeper = Sleeper::new().unwrap();
    sleeper.watch([readiness.raw_fd()]);
    readiness.watch(&b, 7, Interest { receive: true, send: false }).unwrap();
    let mut ready = Vec::new();
    assert_eq!(readiness.poll(&mut ready).unwrap(), 0);
    let bytes = vec![1; 1 << 16];
    let mut total = 0;
    while let Sent::Bytes(len) = a.send(&bytes) {
        total += len;
    }
    assert!(sleeper.sleep(None).by_fd);
    assert_eq!(readiness.poll(&mut ready).unwrap(), 1);
    assert_eq!(ready, [Ready { key: 7, receive: true, send: false, broken: false }]);
    // The connection is not watched: nothing is reported, though there is something.
    readiness.change(&b, 7, Interest::default()).unwrap();
    assert_eq!(readiness.poll(&mut ready).unwrap(), 0);
    readiness.unwatch(&b).unwrap();
    assert!(readiness.change(&b, 7, Interest::default()).is_err());
    readiness.watch(&a, 8, Interest { receive: false, send: true }).unwrap();
    let mut buf = vec![0; 1 << 20];
    while total > 0 {
        let Received::Bytes(len) = until(|| match b.recv(&mut buf) {
            Received::Nothing => None,
            other => Some(other),
        }) else {
            panic!("not all of it comes")
        };
        total -= len;
    }
    ready.clear();
    until(|| (readiness.poll(&mut ready).unwrap() == 1).then_some(()));
    assert_eq!(ready, [Ready { key: 8, receive: false, send: true, broken: false }]);
}

#[test]
fn a_listener_is_ready_while_a_connection_waits() {
    let listener = Listener::bind(&SocketAddr::new(LO, 0)).unwrap();
    let readiness = Readiness::new().unwrap();
    readiness.watch_listener(&listener, 3).unwrap();
    let _a = Connection::connect(LO.into(), &listener.local_addr().unwrap()).unwrap();
    let mut ready = Vec::new();
    until(|| (readiness.poll(&mut ready).unwrap() == 1).then_some(()));
    assert_eq!(ready, [Ready { key: 3, receive: true, send: false, broken: false }]);
    assert!(listener.accept().unwrap().is_some());
    assert!(listener.accept().unwrap().is_none());
    let taken = Listener::bind(&listener.local_addr().unwrap()).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}
