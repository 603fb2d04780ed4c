//! `poll` and `epoll` over sockets of one process, and other descriptors.

mod common;

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, POLLHUP,
    POLLIN, POLLOUT, POLLRDHUP,
};
use vernic_rsocket::{
    Epoll, EpollReport, EpollTarget, Numbered, PollItem, Polled, Socket, Table, poll,
};

const POLLING: Duration = Duration::from_micros(10);

fn item(what: Polled, events: i16) -> PollItem {
    PollItem { what, events, revents: 0 }
}

#[test]
fn a_poll_sleeps_until_one_of_many_has_something() {
    let _alone = alone();
    let runtime = runtime();
    let pairs: Vec<(Socket, Socket)> = (0..8).map(|_| pair(&runtime)).collect();
    let (mut local, remote) = UnixStream::pair().unwrap();
    for turn in 0..9 {
        let mut items: Vec<PollItem> =
            pairs.iter().map(|(_, s)| item(Polled::Socket(s.clone()), POLLIN)).collect();
        items.push(item(Polled::Other(remote.as_raw_fd()), POLLIN));
        items.push(item(Polled::Other(-1), POLLIN));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                match pairs.get(turn) {
                    Some((client, _)) => send_all(client, b"x"),
                    None => local.write_all(b"x").unwrap(),
                }
            });
            assert_eq!(poll(&mut items, Some(SOON), POLLING).unwrap(), 1);
        });
        let found: Vec<usize> =
            (0..items.len()).filter(|index| items[*index].revents == POLLIN).collect();
        assert_eq!(found, [turn]);
        match pairs.get(turn) {
            Some((_, server)) => _ = recv(server, 1).unwrap(),
            None => (&remote).read_exact(&mut [0]).unwrap(),
        }
    }
    let begun = Instant::now();
    let mut items = [item(Polled::Socket(pairs[0].0.clone()), POLLIN)];
    assert_eq!(poll(&mut items, Some(Duration::from_millis(20)), POLLING).unwrap(), 0);
    assert!(begun.elapsed() >= Duration::from_millis(20));
}

#[test]
fn who_polls_is_woken_by_what_another_thread_does_to_the_socket() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    client.set_nonblocking(true);
    while send(&client, &[0; 4096]).is_ok() || wait_for(&client, POLLOUT, POLLING * 1000) != 0 {}
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&client, POLLOUT, SOON));
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            recv_exact(&server, 100_000);
        });
        // This thread takes the completions before the other can.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let _ = recv_flags(&client, 1, libc::MSG_DONTWAIT);
        }
        assert_eq!(waiting.join().unwrap(), POLLOUT);
    });
}

/// Waits and tells data and events, in the order of data.
fn wait(epoll: &Epoll, timeout: Duration) -> Vec<(u64, u32)> {
    let mut reports = [EpollReport { events: 0, data: 0 }; 16];
    let count = epoll.wait(&mut reports, Some(timeout)).unwrap();
    let mut found: Vec<_> = reports[..count].iter().map(|r| (r.data, r.events)).collect();
    found.sort_unstable();
    found
}

fn add(epoll: &Epoll, socket: &Socket, events: i32, data: u64) {
    epoll.ctl(EPOLL_CTL_ADD, &EpollTarget::Socket(socket.clone()), events as u32, data).unwrap();
}

const IN: u32 = EPOLLIN as u32;
const OUT: u32 = EPOLLOUT as u32;
const SHORT: Duration = Duration::from_millis(30);

#[test]
fn a_set_reports_what_is_ready_for_as_long_as_it_is() {
    let _alone = alone();
    let runtime = runtime();
    let epoll = Epoll::new(POLLING).unwrap();
    let (client, server) = pair(&runtime);
    let (mut local, remote) = UnixStream::pair().unwrap();
    add(&epoll, &server, EPOLLIN, 7);
    epoll.ctl(EPOLL_CTL_ADD, &EpollTarget::Other(remote.as_raw_fd()), IN, u64::MAX - 1).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            send_all(&client, b"ab");
        });
        assert_eq!(wait(&epoll, SOON), [(7, IN)]);
    });
    assert_eq!(wait(&epoll, SOON), [(7, IN)], "still");
    local.write_all(b"x").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN), (u64::MAX - 1, IN)]);
    recv(&server, 1).unwrap();
    (&remote).read_exact(&mut [0]).unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN)]);
    recv(&server, 1).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    let target = EpollTarget::Socket(server.clone());
    epoll.ctl(EPOLL_CTL_MOD, &target, IN | OUT, 8).unwrap();
    assert_eq!(wait(&epoll, SOON), [(8, OUT)]);
    epoll.ctl(EPOLL_CTL_DEL, &target, 0, 0).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    let gone = epoll.ctl(EPOLL_CTL_DEL, &target, 0, 0).unwrap_err();
    assert_eq!(gone.errno(), libc::ENOENT);
}

#[test]
fn a_set_of_changes_reports_each_once_and_one_of_single_shots_one() {
    let _alone = alone();
    let runtime = runtime();
    let epoll = Epoll::new(POLLING).unwrap();
    let (client, server) = pair(&runtime);
    add(&epoll, &server, EPOLLIN | EPOLLET, 1);
    add(&epoll, &client, EPOLLIN | EPOLLONESHOT, 2);
    for _ in 0..3 {
        send_all(&client, b"x");
        assert_eq!(wait(&epoll, SOON), [(1, IN)]);
        assert_eq!(wait(&epoll, SHORT), [], "it was told");
    }
    assert_eq!(recv(&server, 9).unwrap(), b"xxx");
    send_all(&server, b"y");
    assert_eq!(wait(&epoll, SOON), [(2, IN)]);
    send_all(&server, b"y");
    assert_eq!(wait(&epoll, SHORT), []);
    let target = EpollTarget::Socket(client.clone());
    epoll.ctl(EPOLL_CTL_MOD, &target, IN | EPOLLONESHOT as u32, 3).unwrap();
    assert_eq!(wait(&epoll, SOON), [(3, IN)]);
}

#[test]
fn a_set_follows_a_socket_from_listening_or_connecting_to_its_end() {
    let _alone = alone();
    let runtime = runtime();
    let epoll = Epoll::new(POLLING).unwrap();
    let listener = listener(&runtime);
    add(&epoll, &listener, EPOLLIN, 1);
    let client = stream(&runtime);
    client.set_nonblocking(true);
    add(&epoll, &client, EPOLLOUT | EPOLLONESHOT, 2);
    let begun = client.connect(listener.local_addr().unwrap());
    assert_eq!(errno(begun), libc::EINPROGRESS);
    let mut seen = Vec::new();
    eventually("both sides are connected", || {
        seen.extend(wait(&epoll, SHORT));
        seen.contains(&(1, IN)) && seen.contains(&(2, OUT))
    });
    let server = listener.accept().unwrap();
    epoll.ctl(EPOLL_CTL_MOD, &EpollTarget::Socket(client.clone()), IN, 2).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    server.close();
    let found = wait(&epoll, SOON);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0, found[0].1 & IN), (2, IN));
}

#[test]
fn a_closed_socket_leaves_its_sets() {
    let _alone = alone();
    let runtime = runtime();
    let table = Table::default();
    let epoll = Arc::new(Epoll::new(POLLING).unwrap());
    let set = table.insert(Numbered::Epoll(epoll.clone()));
    let (client, server) = pair(&runtime);
    let number = table.insert(Numbered::Socket(server.clone()));
    assert_ne!(set, number);
    add(&epoll, &server, EPOLLIN, 1);
    send_all(&client, b"x");
    assert_eq!(wait(&epoll, SOON), [(1, IN)]);
    assert!(matches!(table.remove(number), Some(Numbered::Socket(_))));
    assert!(table.find(number).is_none() && table.remove(number).is_none());
    server.close();
    assert_eq!(wait(&epoll, SHORT), []);
}

#[test]
fn more_ready_sockets_than_there_is_room_for_are_reported_in_turn() {
    let _alone = alone();
    let runtime = runtime();
    let epoll = Epoll::new(POLLING).unwrap();
    let pairs: Vec<(Socket, Socket)> = (0..6).map(|_| pair(&runtime)).collect();
    for (n, (client, server)) in pairs.iter().enumerate() {
        add(&epoll, server, EPOLLIN, n as u64);
        send_all(client, b"x");
    }
    let mut reports = [EpollReport { events: 0, data: 0 }; 2];
    let mut seen = Vec::new();
    eventually("each had its turn", || {
        let count = epoll.wait(&mut reports, Some(SOON)).unwrap();
        seen.extend(reports[..count].iter().map(|report| report.data));
        (0..6).all(|n| seen.contains(&n))
    });
    assert!(seen.len() < 20, "{seen:?}");
}

#[test]
fn a_peer_that_has_closed_hangs_up_when_all_it_sent_is_read() {
    let _alone = alone();
    let runtime = runtime();
    let (client, server) = pair(&runtime);
    send_all(&client, b"last words");
    client.close();
    // The end has come, too, when this is there.
    eventually("the end comes", || wait_for(&server, POLLRDHUP, SOON) & POLLRDHUP != 0);
    assert_eq!(wait_for(&server, POLLIN, SOON), POLLIN);
    assert_eq!(recv(&server, 5).unwrap(), b"last ");
    assert_eq!(wait_for(&server, POLLIN, SOON), POLLIN);
    assert_eq!(recv(&server, 5).unwrap(), b"words");
    assert_eq!(wait_for(&server, POLLIN, SOON), POLLIN | POLLHUP);
    assert_eq!(recv(&server, 5).unwrap(), b"");
}
