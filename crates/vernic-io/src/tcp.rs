//! Connections of TCP: what carries iWARP.
//!
//! Owns the sockets, and knows nothing of what goes over them. Called by the engine, under its lane;
//! nothing here waits. A child of fork keeps none of the descriptors (`sys/fork.rs`).
//!
//! ```text
//!   Bound --listen--> Listener --accept--> Connection   one per peer: recv, send, shutdown, reset
//!     |                                      ^   |
//!     +---------------connect----------------+   |
//!   Readiness <-----------watch------------------+      one descriptor to sleep on for all of them
//! ```

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use vernic_mem::{RacySlice, RacySliceMut};

use crate::link::LocalAddr;
use crate::sys::{self, EpollOp, OwnFd};

/// A listening socket's queue: connections whose handshake is done and which nobody has accepted. The
/// kernel's own default bound (`net.core.somaxconn`) cuts it where that is lower.
const BACKLOG: i32 = 1024;

/// Longest silence that the kernel can be told to notice, seconds (`MAX_TCP_KEEPIDLE`).
const MAX_KEEP_ALIVE_S: u64 = 32767;

/// Most pieces of memory of one call.
pub const MAX_PIECES: usize = sys::MAX_PIECES;

/// What a connection had to say.
#[derive(Debug)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The peer has closed its half, behind all bytes that were received before.
    End,
    /// The connection is lost.
    Lost(io::Error),
}

/// What became of bytes to be sent.
#[derive(Debug)]
pub enum Sent {
    /// So many were taken, at least one, or none of none.
    Bytes(usize),
    /// There is no room now.
    Full,
    /// The connection is lost.
    Lost(io::Error),
}

impl Received {
    fn of(result: io::Result<usize>) -> Self {
        match result {
            Ok(0) => Self::End,
            Ok(len) => Self::Bytes(len),
            Err(error) if is_for_later(&error) => Self::Nothing,
            Err(error) => Self::Lost(error),
        }
    }
}

impl Sent {
    fn of(result: io::Result<usize>) -> Self {
        match result {
            Ok(len) => Self::Bytes(len),
            Err(error) if is_for_later(&error) => Self::Full,
            Err(error) => Self::Lost(error),
        }
    }
}

/// How far a connection has come that is being made.
#[derive(Debug)]
pub enum Connecting {
    /// The peer has not answered.
    Pending,
    /// It is made.
    Done,
    /// It cannot be made.
    Failed(io::Error),
}

fn family(addr: &SocketAddr) -> i32 {
    if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// A socket that has an address of this machine, and a port that no other socket listens on: to listen, or
/// to connect from.
#[derive(Debug)]
pub struct Bound {
    fd: OwnFd,
}

impl Bound {
    /// Takes an address and a port; port 0 takes one that is free. `v6_only` lets the IPv6 wildcard stand
    /// for IPv6 alone; else it stands for IPv4 as well. No other socket gets the port, of whichever process,
    /// unless both say that they `share` it: then one of them may listen. A port whose earlier owner has
    /// connections in TIME-WAIT may be taken, and then that is not so until it listens.
    ///
    /// # Errors
    /// Of the system: the address is not this machine's, or the port is taken.
    pub fn new(addr: &SocketAddr, v6_only: bool, share: bool) -> io::Result<Self> {
        let fd = sys::socket(family(addr), libc::SOCK_STREAM, 0)?;
        if addr.is_ipv6() {
            let only = i32::from(v6_only);
            sys::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
        }
        let this = Self { fd };
        if share {
            this.set_reuse()?;
        }
        match sys::bind(this.fd.as_fd(), addr) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !share => {
                // A socket that did not say so itself still has it for itself.
                this.set_reuse()?;
                sys::bind(this.fd.as_fd(), addr)?;
            }
            bound => bound?,
        }
        Ok(this)
    }

    /// Lets the port be taken anew while connections over it are in TIME-WAIT: they have this from the socket
    /// that made them.
    fn set_reuse(&self) -> io::Result<()> {
        sys::set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
    }

    /// The type of service, or traffic class, of all that is sent, also of connections that it will take when
    /// it listens. Its two low bits are TCP's (ECN).
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let (level, name) = match self.local_addr()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        sys::set_option(self.fd.as_fd(), level, name, tos.into())
    }

    /// Its address, its port chosen.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Takes connections from now on.
    ///
    /// # Errors
    /// Of the system: another socket listens on the port. This one stays as it is.
    pub fn listen(self) -> Result<Listener, (Self, io::Error)> {
        match self.set_reuse().and_then(|()| sys::listen(self.fd.as_fd(), BACKLOG)) {
            Ok(()) => Ok(Listener { fd: self.fd }),
            Err(error) => Err((self, error)),
        }
    }

    /// Begins to connect to `peer`. [`Connection::connecting`] tells how it goes; it can be sent to when it
    /// is done.
    ///
    /// # Errors
    /// Of the system: there is no way to the peer, or nobody listens there.
    pub fn connect(self, peer: &SocketAddr) -> io::Result<Connection> {
        self.set_reuse()?;
        let connection = Connection::new(self.fd)?;
        match sys::connect(connection.fd.as_fd(), peer) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(connection),
        }
    }
}

/// Descriptors that this process may have open, at most: the soft limit, as `ulimit -n` shows it. It stays what
/// it is: a program that waits with select(2) breaks over descriptors from 1024 on.
pub fn descriptor_limit() -> u64 {
    sys::descriptor_limit()
}

/// A socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    fd: OwnFd,
}

impl Listener {
    /// Listens on an address; port 0 chooses one. An IPv6 wildcard takes IPv6 only.
    ///
    /// # Errors
    /// Of the system: the address is not this machine's, or the port is taken.
    pub fn bind(addr: &SocketAddr) -> io::Result<Self> {
        Bound::new(addr, true, false)?.listen().map_err(|(_, error)| error)
    }

    /// The address that it listens on, its port chosen.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// Of the system: no descriptor is left. A connection that was lost before it was taken is none.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        match sys::accept(self.fd.as_fd()) {
            Ok(fd) => Connection::new(fd).map(Some),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// Whether the peer's TCP answers. What its program does, it may answer without that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Something was repeated, or asked of a peer without room, and no answer has come.
    pub waits: bool,
    /// Time since the last acknowledgement came.
    pub silent: Duration,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    fd: OwnFd,
}

impl Connection {
    fn new(fd: OwnFd) -> Result<Self, io::Error> {
        // FPDUs leave when they are made; an engine has nothing to gain from waiting for more.
        sys::set_option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        Ok(Self { fd })
    }

    /// Begins to connect to `peer`, from an address of this machine. [`connecting`](Self::connecting)
    /// tells how it goes; it can be sent to when it is done.
    ///
    /// # Errors
    /// Of the system: the address is not this machine's, there is no way to the peer.
    pub fn connect(local: LocalAddr, peer: &SocketAddr) -> io::Result<Self> {
        Bound::new(&local.with_port(0), true, false)?.connect(peer)
    }

    /// How far it has come.
    pub fn connecting(&self) -> Connecting {
        match sys::option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => {}
            Ok(errno) => return Connecting::Failed(io::Error::from_raw_os_error(errno)),
            Err(error) => return Connecting::Failed(error),
        }
        match sys::peer_addr(self.fd.as_fd()) {
            Ok(_) => Connecting::Done,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Connecting::Pending,
            Err(error) => Connecting::Failed(error),
        }
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// Of the system: it is not connected, or no longer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sys::peer_addr(self.fd.as_fd())
    }

    /// Its own address.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Whether both ends have one address, so that both are within this host. False where it cannot be told.
    pub fn is_within_host(&self) -> bool {
        let ip = |addr: io::Result<SocketAddr>| addr.ok().map(|addr| addr.ip());
        let local = ip(self.local_addr());
        local.is_some() && local == ip(self.peer_addr())
    }

    /// Bytes of payload in a segment, the effective maximum segment size (RFC 5044, 2): 1460 and the
    /// like, less what options take.
    ///
    /// # Errors
    /// Of the system.
    pub fn segment_bytes(&self) -> io::Result<u32> {
        let bytes = sys::option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        Ok(bytes.max(0) as u32)
    }

    /// Receives into `buf`, which must not be empty.
    pub fn recv(&self, buf: &mut [u8]) -> Received {
        Received::of(sys::recv(self.fd.as_fd(), buf))
    }

    /// Sends as many of `bytes` as there is room for.
    pub fn send(&self, bytes: &[u8]) -> Sent {
        if bytes.is_empty() {
            return Sent::Bytes(0);
        }
        Sent::of(sys::send(self.fd.as_fd(), bytes))
    }

    /// Receives into pieces of memory, one after the other, which must not be empty and be
    /// [`MAX_PIECES`] at most.
    pub fn recv_pieces(&self, pieces: &mut [RacySliceMut<'_>]) -> Received {
        Received::of(sys::recv_pieces(self.fd.as_fd(), pieces))
    }

    /// Sends as much of some pieces of memory, [`MAX_PIECES`] at most, as there is room for.
    pub fn send_pieces(&self, pieces: &[RacySlice<'_>]) -> Sent {
        if pieces.iter().all(RacySlice::is_empty) {
            return Sent::Bytes(0);
        }
        Sent::of(sys::send_pieces(self.fd.as_fd(), pieces))
    }

    /// Asks a peer that has been silent for a while whether it is there; if nothing answers for `timeout`, in whole
    /// seconds, the connection is lost (RFC 9293, 3.8.4). That is while nothing is on its way: then
    /// [`vitals`](Self::vitals) tell.
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn keep_alive(&self, timeout: Duration) -> io::Result<()> {
        let seconds = timeout.as_secs().clamp(1, MAX_KEEP_ALIVE_S) as i32;
        // Half of the time it is silent, in the other half it is asked, up to four times.
        let probes = seconds.clamp(1, 4);
        let idle = (seconds / 2).max(1);
        let pause = ((seconds - idle) / probes).max(1);
        let fd = self.fd.as_fd();
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, pause)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
    }

    /// Whether the peer answers.
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn vitals(&self) -> io::Result<Vitals> {
        let info = sys::tcp_info(self.fd.as_fd())?;
        let waits = info.tcpi_probes > 0 || info.tcpi_retransmits > 0;
        Ok(Vitals { waits, silent: Duration::from_millis(info.tcpi_last_ack_recv.into()) })
    }

    /// Whether the peer's TCP has acknowledged all that was sent, and the closing of the sending half if
    /// that was closed. True of a connection that is lost.
    pub fn is_acknowledged(&self) -> bool {
        sys::unacknowledged(self.fd.as_fd()).is_ok_and(|bytes| bytes == 0)
    }

    /// Closes the sending half, behind what was sent. Of a connection that is lost that is nothing.
    pub fn shutdown(&self) {
        let _ = sys::shutdown_write(self.fd.as_fd());
    }

    /// Closes it so that the peer hears of a reset.
    pub fn reset(self) {
        // struct linger: on, for no time. Where that is refused the peer hears of a close.
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let _ = sys::set_option_bytes(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// What is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, connections, the end.
    pub receive: bool,
    /// Room, or the outcome of connecting.
    pub send: bool,
}

impl Interest {
    fn events(self) -> u32 {
        let mut events = 0;
        if self.receive {
            events |= libc::EPOLLIN as u32;
        }
        if self.send {
            events |= libc::EPOLLOUT as u32;
        }
        events
    }
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// As given when it was watched.
    pub key: u64,
    /// Something can be received.
    pub receive: bool,
    /// Something can be sent.
    pub send: bool,
    /// It is lost, or closed by both ends. This is told whatever was waited for.
    pub broken: bool,
}

/// Readiness of many sockets, behind one descriptor that is readable while any of them is ready. A
/// socket that is closed leaves it by itself.
#[derive(Debug)]
pub struct Readiness {
    fd: OwnFd,
}

impl Readiness {
    /// Nothing is watched.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: sys::epoll()? })
    }

    /// The descriptor to sleep on.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watches a connection.
    ///
    /// # Errors
    /// Of the system: its bound of watched descriptors is reached, or it is watched already.
    pub fn watch(&self, connection: &Connection, key: u64, interest: Interest) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Add, fd, key, interest.events())
    }

    /// Watches a listener.
    ///
    /// # Errors
    /// As of [`watch`](Self::watch).
    pub fn watch_listener(&self, listener: &Listener, key: u64) -> io::Result<()> {
        let interest = Interest { receive: true, send: false };
        let (epoll, fd) = (self.fd.as_fd(), listener.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Add, fd, key, interest.events())
    }

    /// Changes what a connection is watched for.
    ///
    /// # Errors
    /// Of the system: it is not watched.
    pub fn change(&self, connection: &Connection, key: u64, interest: Interest) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Change, fd, key, interest.events())
    }

    /// Watches a listener no more.
    ///
    /// # Errors
    /// Of the system: it is not watched.
    pub fn unwatch_listener(&self, listener: &Listener) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), listener.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Remove, fd, 0, 0)
    }

    /// Watches a connection no more, so that not even its loss is told.
    ///
    /// # Errors
    /// Of the system: it is not watched.
    pub fn unwatch(&self, connection: &Connection) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Remove, fd, 0, 0)
    }

    /// Appends those that are ready to `ready`, 64 at most; the others come with a later call.
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn poll(&self, ready: &mut Vec<Ready>) -> io::Result<usize> {
        sys::epoll_ready(self.fd.as_fd(), |key, events| {
            let has = |bits: i32| events & bits as u32 != 0;
            let broken = has(libc::EPOLLERR | libc::EPOLLHUP);
            let (receive, send) = (has(libc::EPOLLIN), has(libc::EPOLLOUT));
            ready.push(Ready { key, receive, send, broken });
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wait::Sleeper;

    const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Until `done` gives something: everything here is within one host.
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
        // The port may be had again though there is a connection over it.
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
        // Taken out: nothing is told of it, though there is something.
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
}
