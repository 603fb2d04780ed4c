//! Streams between two sockets of one process, over `lo`.

#![expect(clippy::print_stdout, reason = "how a process of the test tells another its port")]

mod common;
mod late;
mod reset;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use vernic_cm::Config;
use vernic_engine::TransportChoice;
use vernic_rsocket::{
    Error, Family, MsgFlags, RDMA_IOMAPSIZE, SOL_RDMA, Shutdown, Socket, SocketKind,
};

/// Sockets over iWARP.
fn over_tcp() -> std::sync::Arc<vernic_rsocket::Runtime> {
    runtime_with(Config { transport: TransportChoice::Iwarp, ..Config::default() })
}

#[test]
fn bytes_arrive_in_order_in_both_directions_at_once() {
    let _alone = alone();
    pass_bytes(&runtime());
}

#[test]
fn they_do_over_iwarp_which_has_no_immediate_data() {
    let _alone = alone();
    pass_bytes(&over_tcp());
}

#[test]
fn the_end_of_a_stream_over_iwarp_comes_behind_its_bytes() {
    let _alone = alone();
    let (client, server) = pair(&over_tcp());
    send_all(&client, b"last");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv(&server, 9).unwrap(), b"last");
    assert!(recv(&server, 9).unwrap().is_empty());
    send_all(&server, b"answer");
    drop(server);
    assert_eq!(recv(&client, 9).unwrap(), b"answer");
    assert!(recv(&client, 9).unwrap().is_empty());
}

#[test]
fn the_loss_of_a_stream_over_iwarp_is_an_error_and_not_its_end() {
    let _alone = alone();
    let (client, server) = pair(&over_tcp());
    send_all(&server, b"first");
    assert_eq!(recv(&client, 9).unwrap(), b"first");
    reset::between(server.local_addr().unwrap(), server.peer_addr().unwrap());
    let error = recv(&client, 9).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNRESET, "{error}");
    assert!(recv(&client, 9).unwrap().is_empty());
}

fn pass_bytes(runtime: &std::sync::Arc<vernic_rsocket::Runtime>) {
    let (client, server) = pair(runtime);
    const LEN: usize = 3_000_000;
    std::thread::scope(|scope| {
        for (from, to, seed) in [(&client, &server, 1), (&server, &client, 2)] {
            scope.spawn(move || {
                let bytes = content(seed, LEN);
                // Pieces of every size, so that messages and rings do not line up.
                let mut left = &bytes[..];
                let mut len = 1;
                while !left.is_empty() {
                    let (now, rest) = left.split_at(len.min(left.len()));
                    send_all(from, now);
                    left = rest;
                    len = len * 7 % 100_003 + 1;
                }
            });
            scope.spawn(move || {
                let bytes = content(seed, LEN);
                let mut at = 0;
                while at < LEN {
                    let got = recv(to, 70_000).unwrap();
                    assert!(!got.is_empty() && bytes[at..].starts_with(&got), "at {at}");
                    at += got.len();
                }
            });
        }
    });
}

#[test]
fn a_buffer_that_is_mapped_while_another_thread_sends_costs_no_bytes() {
    let _alone = alone();
    let runtime = runtime();
    let listener = stream(&runtime);
    set_int(&listener, SOL_RDMA, RDMA_IOMAPSIZE, 16);
    listener.bind(home()).unwrap();
    listener.listen(1).unwrap();
    let client = stream(&runtime);
    client.connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap();
    // A page, then twice as many with each message: all but the first are copied under no lock.
    const PAGES: usize = 1 + 2 + 4 + 8;
    let Some(cold) = late::Memory::new(PAGES) else {
        println!("skipped: this user must not fill memory when it is looked at (userfaultfd)");
        return;
    };
    let bytes = content(3, PAGES * late::PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in bytes.chunks(late::PAGE) {
                let number = cold.wait_for_a_look();
                if number > 0 {
                    map(&client);
                }
                cold.fill(number, page);
            }
        });
        scope.spawn(|| {
            send_all(&client, cold.bytes());
            client.shutdown(Shutdown::Write).unwrap();
        });
        assert!(recv_to_end(&server) == bytes);
    });
}

#[test]
fn names_of_both_ends_are_those_of_tcp() {
    let _alone = alone();
    let runtime = runtime();
    let listener = listener(&runtime);
    let place = listener.local_addr().unwrap();
    assert_ne!(place.port(), 0);
    let client = stream(&runtime);
    assert_eq!(errno(client.peer_addr()), libc::ENOTCONN);
    client.connect(place).unwrap();
    let server = listener.accept().unwrap();
    assert_eq!(client.peer_addr().unwrap(), place);
    assert_eq!(server.local_addr().unwrap(), place);
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    assert!(int(&client, libc::IPPROTO_TCP, libc::TCP_MAXSEG) >= 1024);
}

#[test]
fn a_peer_of_ipv4_is_seen_mapped_by_a_listener_of_ipv6() {
    let _alone = alone();
    let runtime = runtime();
    let listener = runtime.socket(Family::V6, SocketKind::Stream).unwrap();
    listener.bind("[::]:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let port = listener.local_addr().unwrap().port();
    for (family, place) in
        [(Family::V4, "127.0.0.1"), (Family::V6, "::1"), (Family::V6, "::ffff:127.0.0.1")]
    {
        let client = runtime.socket(family, SocketKind::Stream).unwrap();
        let to = SocketAddr::new(place.parse().unwrap(), port);
        client.connect(to).unwrap();
        assert_eq!(client.peer_addr().unwrap(), to);
        let server = listener.accept().unwrap();
        let seen = server.peer_addr().unwrap();
        let expected = if place == "::1" { "::1" } else { "::ffff:127.0.0.1" };
        assert_eq!(seen.ip().to_string(), expected);
        send_all(&client, b"x");
        assert_eq!(recv(&server, 9).unwrap(), b"x");
    }
    let other = runtime.socket(Family::V4, SocketKind::Stream).unwrap();
    assert_eq!(errno(other.connect("[::1]:1".parse().unwrap())), libc::EAFNOSUPPORT);
}

#[test]
fn a_port_where_nobody_listens_refuses_and_an_address_without_device_is_unreachable() {
    let _alone = alone();
    let runtime = runtime();
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let socket = stream(&runtime);
    let error = socket.connect(nobody).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let foreign = stream(&runtime);
    let errno = errno(foreign.bind("192.0.2.200:7".parse().unwrap()));
    assert!([libc::EADDRNOTAVAIL, libc::ENODEV].contains(&errno), "{errno}");
}

#[test]
fn a_call_that_shall_not_wait_tells_that_the_connection_is_on_its_way() {
    let _alone = alone();
    let runtime = runtime();
    let listener = listener(&runtime);
    listener.set_nonblocking(true);
    assert_eq!(errno(listener.accept().map(drop)), libc::EAGAIN);
    let client = stream(&runtime);
    client.set_nonblocking(true);
    let place = listener.local_addr().unwrap();
    assert_eq!(errno(client.connect(place)), libc::EINPROGRESS);
    assert_ne!(wait_for(&client, POLLOUT, SOON) & POLLOUT, 0);
    assert_eq!(int(&client, libc::SOL_SOCKET, libc::SO_ERROR), 0);
    assert_eq!(errno(client.connect(place)), libc::EISCONN);
    assert_eq!(wait_for(&listener, POLLIN, SOON), POLLIN);
    let server = listener.accept().unwrap();
    assert_eq!(errno(recv(&client, 1)), libc::EAGAIN);
    assert_eq!(errno(recv_flags(&server, 1, libc::MSG_DONTWAIT)), libc::EAGAIN);

    let lost = stream(&runtime);
    lost.set_nonblocking(true);
    assert_eq!(errno(lost.connect("127.0.0.1:1".parse().unwrap())), libc::EINPROGRESS);
    assert_ne!(wait_for(&lost, POLLOUT, SOON) & POLLERR, 0);
    assert_eq!(int(&lost, libc::SOL_SOCKET, libc::SO_ERROR), libc::ECONNREFUSED);
    assert_eq!(int(&lost, libc::SOL_SOCKET, libc::SO_ERROR), 0, "told once");
}

#[test]
fn a_send_that_shall_not_wait_sends_what_there_is_room_for() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    client.set_nonblocking(true);
    let bytes = content(3, 10 << 20);
    let first = send(&client, &bytes).unwrap();
    assert!(first < bytes.len());
    // Until nothing goes any more: rings of both sides are full.
    let mut sent = first;
    eventually("the rings are full", || {
        match send(&client, &bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.errno(), libc::EAGAIN),
        }
        wait_for(&client, POLLOUT, Duration::from_millis(100)) == 0
    });
    assert_eq!(recv_exact(&server, sent), bytes[..sent]);
    assert_eq!(wait_for(&client, POLLOUT, SOON), POLLOUT);
}

#[test]
fn half_of_a_connection_can_be_shut() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    send_all(&client, b"question");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(errno(send(&client, b"more")), libc::EPIPE);
    assert_eq!(recv_to_end(&server), b"question");
    let events = wait_for(&server, POLLIN | POLLOUT | POLLRDHUP, SOON);
    assert_eq!(events, POLLIN | POLLOUT | POLLRDHUP);
    send_all(&server, b"answer");
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv_to_end(&client), b"answer");
    eventually("both are over", || wait_for(&server, 0, Duration::ZERO) & POLLHUP != 0);
}

#[test]
fn what_was_sent_before_close_arrives() {
    let _alone = alone();
    let runtime = runtime();
    for len in [1, 1000, 100_000, 200_000] {
        let (client, server) = pair(&runtime);
        let bytes = content(len as u64, len);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&client, &bytes);
                client.close();
            });
            assert_eq!(recv_to_end(&server), bytes);
        });
        assert_eq!(errno(send(&server, b"x")), libc::EPIPE);
        server.close();
    }
}

#[test]
fn a_reader_sleeps_until_bytes_come_and_for_no_longer_than_it_wants() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            send_all(&client, b"late");
        });
        let begun = Instant::now();
        assert_eq!(recv(&server, 9).unwrap(), b"late");
        assert!(begun.elapsed() >= Duration::from_millis(40));
    });
    let timeout = [0_i64.to_ne_bytes(), 30_000_i64.to_ne_bytes()].concat();
    server.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout).unwrap();
    let begun = Instant::now();
    assert_eq!(errno(recv(&server, 9)), libc::EAGAIN);
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[test]
fn peeked_bytes_stay_and_all_that_was_asked_for_is_waited_for() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    send_all(&client, b"abcdef");
    assert_eq!(recv_flags(&server, 4, libc::MSG_PEEK).unwrap(), b"abcd");
    assert_eq!(recv_flags(&server, 6, libc::MSG_PEEK | libc::MSG_WAITALL).unwrap(), b"abcdef");
    assert_eq!(recv(&server, 3).unwrap(), b"abc");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in b"ghij" {
                std::thread::sleep(Duration::from_millis(5));
                send_all(&client, &[*byte]);
            }
        });
        assert_eq!(recv_exact(&server, 7), b"defghij");
    });
    send_all(&client, b"end");
    client.close();
    assert_eq!(recv_exact(&server, 100), b"end", "the end ends the wait");
}

#[test]
fn pieces_are_sent_and_filled_one_behind_the_other() {
    use std::io::{IoSlice, IoSliceMut};
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    let long = content(5, 50_000);
    let pieces = [IoSlice::new(b"ab"), IoSlice::new(&long), IoSlice::new(b""), IoSlice::new(b"yz")];
    let sent = client.send(&pieces, None, MsgFlags::NONE).unwrap();
    assert_eq!(sent, 50_004);
    let (mut first, mut rest) = ([0; 3], vec![0; 50_001]);
    let mut room = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
    server.recv(&mut room, MsgFlags(libc::MSG_WAITALL)).unwrap();
    assert_eq!([&first[..], &rest].concat(), [b"ab", &long[..], b"yz"].concat());
    assert_eq!(errno(client.send(&pieces, None, MsgFlags(libc::MSG_OOB))), libc::EOPNOTSUPP);
}

#[test]
fn more_peers_than_the_backlog_wait_and_are_served() {
    let _alone = alone();
    let runtime = runtime();
    let listener = stream(&runtime);
    listener.bind(home()).unwrap();
    listener.listen(1).unwrap();
    let place = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12_u8)
            .map(|n| {
                let runtime = &runtime;
                scope.spawn(move || {
                    let client = stream(runtime);
                    client.connect(place).unwrap();
                    send_all(&client, &[n]);
                    client
                })
            })
            .collect();
        let mut seen: Vec<u8> = (0..12)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                recv(&listener.accept().unwrap(), 1).unwrap()[0]
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..12).collect::<Vec<_>>());
        clients.into_iter().for_each(|client| drop(client.join().unwrap()));
    });
}

#[test]
fn a_listener_that_is_closed_refuses_and_ends_those_it_had() {
    let _alone = alone();
    let runtime = runtime();
    let listener = listener(&runtime);
    let place = listener.local_addr().unwrap();
    let client = stream(&runtime);
    client.connect(place).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let _ = listener.accept().unwrap();
            listener.accept().map(drop)
        });
        std::thread::sleep(Duration::from_millis(20));
        listener.close();
        assert_eq!(errno(waiting.join().unwrap()), libc::EINVAL);
    });
    assert_eq!(errno(stream(&runtime).connect(place)), libc::ECONNREFUSED);
}

/// Descriptors that sockets have; the device opens and closes some of other kinds as it likes.
fn open_descriptors() -> usize {
    let is_ours = |link: &std::path::PathBuf| link.to_string_lossy().contains("eventfd");
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).filter(is_ours).count()
}

#[test]
fn hundreds_of_connections_work_side_by_side_and_leave_nothing_behind() {
    const COUNT: usize = 200;
    let _alone = alone();
    let runtime = runtime();
    drop(pair(&runtime));
    let before = open_descriptors();
    let listener = stream(&runtime);
    listener.bind(home()).unwrap();
    listener.listen(COUNT as u32).unwrap();
    let place = listener.local_addr().unwrap();
    let mut pairs: Vec<(Socket, Socket)> = Vec::new();
    for _ in 0..COUNT {
        let client = stream(&runtime);
        client.connect(place).unwrap();
        pairs.push((client, listener.accept().unwrap()));
    }
    // Two descriptors for each end, and two of the listener and this thread, which sleeps on one
    // from its first wait on.
    let taken = open_descriptors() - before;
    assert!(taken <= 4 * COUNT + 2, "{taken}");
    for (n, (client, _)) in pairs.iter().enumerate() {
        send_all(client, &(n as u32).to_be_bytes());
    }
    for (n, (_, server)) in pairs.iter().enumerate() {
        assert_eq!(recv_exact(server, 4), (n as u32).to_be_bytes());
    }
    for (client, server) in pairs.drain(..) {
        client.close();
        assert_eq!(recv_to_end(&server), b"");
        server.close();
    }
    listener.close();
    drop(listener);
    eventually("every other descriptor is closed", || open_descriptors() <= before + 1);
}

/// Which part a process of this test has.
const ROLE: &str = "VERNIC_TEST_ROLE";

/// Starts the process that is to be killed; returns its port.
fn peer_to_be_killed() -> (Child, u16) {
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_peer_to_be_killed", "--nocapture"])
        .env(ROLE, "peer")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines();
    let port = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("port ")?.parse().ok());
    (peer, port.unwrap())
}

#[test]
fn a_peer_that_is_killed_has_closed_its_streams() {
    let _alone = alone();
    let (mut peer, port) = peer_to_be_killed();
    let client = stream(&runtime());
    client.connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert_eq!(recv(&client, 9).unwrap(), b"hello");
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert_eq!(recv_to_end(&client), b"");
}

/// By the wire, where the connection manager does not watch the other process.
#[test]
fn a_peer_that_is_killed_is_noticed_by_who_sends_and_by_who_asks_for_signs_of_life() {
    let _alone = alone();
    let mut config = Config::default();
    config.set("force_wire", "on").unwrap();
    let runtime = runtime_with(config);
    for sends in [true, false] {
        let (mut peer, port) = peer_to_be_killed();
        let client = stream(&runtime);
        if !sends {
            set_int(&client, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            set_int(&client, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1);
        }
        client.connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        assert_eq!(recv(&client, 9).unwrap(), b"hello");
        peer.kill().unwrap();
        peer.wait().unwrap();
        if sends {
            // Bytes that nobody will read are lost: that is no end.
            send_all(&client, b"is anybody there");
            let error = recv(&client, 1).unwrap_err();
            assert_eq!(error.errno(), libc::ECONNRESET, "{error}");
        } else {
            assert_eq!(recv(&client, 1).unwrap(), b"");
        }
        assert_eq!(errno(send(&client, b"x")), libc::EPIPE);
        assert_ne!(wait_for(&client, POLLIN, Duration::ZERO) & POLLHUP, 0);
    }
}

#[test]
fn who_has_sent_some_when_its_peer_is_lost_is_told_so_the_next_time() {
    let _alone = alone();
    let mut config = Config::default();
    config.set("force_wire", "on").unwrap();
    let (mut peer, port) = peer_to_be_killed();
    let client = stream(&runtime_with(config));
    client.connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert_eq!(recv(&client, 9).unwrap(), b"hello");
    peer.kill().unwrap();
    peer.wait().unwrap();
    // More than there is room for.
    let sent = send(&client, &vec![0; 64 << 20]).unwrap();
    assert!((1..64 << 20).contains(&sent), "{sent}");
    assert_eq!(errno(send(&client, b"x")), libc::ECONNRESET);
    assert_eq!(errno(send(&client, b"x")), libc::EPIPE);
}

#[test]
fn who_lingers_waits_for_its_own_connection_and_no_other() {
    let _alone = alone();
    let mut config = Config::default();
    config.set("force_wire", "on").unwrap();
    let runtime = runtime_with(config);
    // The end of a connection whose peer is gone takes seconds. Should the machine have stood still
    // for as long, it is tried again.
    let waits_for_its_own = (0..3).any(|_| {
        let (mut peer, port) = peer_to_be_killed();
        let lost = stream(&runtime);
        lost.connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        assert_eq!(recv(&lost, 9).unwrap(), b"hello");
        let (client, server) = pair(&runtime);
        let on_and_seconds = [1_i32.to_ne_bytes(), 60_i32.to_ne_bytes()].concat();
        client.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &on_and_seconds).unwrap();
        peer.kill().unwrap();
        peer.wait().unwrap();
        send_all(&lost, b"is anybody there");
        lost.close();
        drop(lost);
        let before = open_descriptors();
        send_all(&client, b"last words");
        client.close();
        // The other's are among them.
        let other_goes_on = open_descriptors() == before;
        assert_eq!(recv_to_end(&server), b"last words");
        other_goes_on
    });
    assert!(waits_for_its_own);
}

#[test]
fn a_peer_to_be_killed() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let runtime = runtime();
    let listener = listener(&runtime);
    println!("\nport {}", listener.local_addr().unwrap().port());
    let socket = listener.accept().unwrap();
    send_all(&socket, b"hello");
    // Ended by its parent; by itself, should that be gone.
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn options_reach_the_connection() {
    let _alone = alone();
    let runtime = runtime();
    let listener = listener(&runtime);
    let client = stream(&runtime);
    set_int(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, 5000);
    set_int(&client, vernic_rsocket::SOL_RDMA, vernic_rsocket::RDMA_SQSIZE, 16);
    set_int(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 3000);
    client.connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap();
    assert_eq!(int(&client, libc::SOL_SOCKET, libc::SO_SNDBUF), 10_000);
    assert_eq!(int(&server, libc::SOL_SOCKET, libc::SO_RCVBUF), 6000);
    let late =
        client.set_option(vernic_rsocket::SOL_RDMA, vernic_rsocket::RDMA_SQSIZE, &[1, 0, 0, 0]);
    assert_eq!(errno(late), libc::EINVAL);
    // No more than both rings hold goes without a reader.
    client.set_nonblocking(true);
    let mut sent = 0;
    eventually("the rings are full", || {
        sent += send(&client, &[0; 1000]).unwrap_or(0);
        wait_for(&client, POLLOUT, Duration::from_millis(50)) == 0
    });
    assert!(sent <= 16_000, "{sent}");
    let route = client.option(vernic_rsocket::SOL_RDMA, vernic_rsocket::RDMA_ROUTE).unwrap();
    assert_eq!(route.len(), 72);
    assert_eq!(int(&server, vernic_rsocket::SOL_RDMA, vernic_rsocket::RDMA_UNREAD) % 1000, 0);
    assert!(matches!(client.option(libc::SOL_SOCKET, 9999), Err(Error::NoOption { .. })));
}
