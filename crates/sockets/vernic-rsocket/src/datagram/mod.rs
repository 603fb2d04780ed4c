//! A datagram socket: a UDP socket that finds peers' queue pairs, and a UD queue pair per local
//! address.
//!
//! The first datagram to a peer goes through the UDP socket, behind a header that names the queue
//! pair of this side ([`LookupHeader`](crate::wire::LookupHeader)). The peer's service thread
//! learns it, answers with its own, and hands the datagram to its user. From then on datagrams go
//! from queue pair to queue pair. What is too long for the path MTU goes through the UDP sockets
//! always.
//!
//! On InfiniBand the way to a peer is asked for when the peer has named its queue pair, and
//! datagrams go through the UDP socket until it is known ([`peers`]).
//!
//! Limits: [`MAX_PEERS`] peers are remembered, the oldest are forgotten first and looked up anew;
//! [`MAX_PORTS`] local addresses; as many datagrams wait for the user as there are receives, and
//! more are lost, as of UDP.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::family::{Family, unmapped};
use crate::options::Options;
use crate::pieces::{Incoming, Outgoing};
use crate::shared::Shared;
use crate::sys;
use crate::wake::{Entered, Sleeper, Wakers, lock};
use crate::wire::LookupOp;
use crate::{Error, Readiness};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, socket};

mod destination;
mod lookup;
mod peers;
mod port;

use destination::Destination;
use peers::{Asked, Peer};
use port::{Arrived, Port, SLOT_BYTES};

/// Peers that are remembered.
const MAX_PEERS: usize = 4096;

/// Local addresses of one socket.
const MAX_PORTS: usize = 64;

/// Longest datagram of the UDP socket, bytes: what peers of this protocol read.
const MAX_UDP: usize = SLOT_BYTES;

/// How long closing waits for what was sent to leave.
const PATIENCE: Duration = Duration::from_secs(1);

/// A datagram that waits for the user.
#[derive(Debug)]
enum Waiting {
    /// In a slot of a queue pair.
    Slot(Arc<Port>, Arrived),
    /// A datagram that came through the UDP socket.
    Udp(SocketAddr, Vec<u8>),
}

/// What changes of a socket.
#[derive(Debug, Default)]
struct Core {
    ports: Vec<Arc<Port>>,
    peers: HashMap<SocketAddr, Peer>,
    /// In the order in which they came.
    order: VecDeque<SocketAddr>,
    waiting: VecDeque<Waiting>,
    /// Paths that are being asked for.
    asked: Vec<Asked>,
    /// Datagrams whose sender's path is being asked for.
    held: Vec<(Arc<Port>, Arrived)>,
    /// Where datagrams without a destination go.
    connected: Option<SocketAddr>,
    /// The service thread reads the UDP socket.
    started: bool,
    closed: bool,
}

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    shared: Arc<Shared>,
    key: usize,
    udp: UdpSocket,
    family: Family,
    core: Mutex<Core>,
    pub(crate) options: Mutex<Options>,
    nonblocking: AtomicBool,
    pub(crate) wakers: Arc<Wakers>,
    /// Datagrams that came and were dropped: no room, no sense, or a sender that lies.
    dropped: AtomicU64,
}

/// How to receive a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramMode {
    pub(crate) nonblocking: bool,
    pub(crate) peek: bool,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes that were copied.
    pub(crate) copied: usize,
    /// Bytes that there were.
    pub(crate) len: usize,
    pub(crate) from: SocketAddr,
}

impl DatagramSocket {
    pub(crate) fn new(shared: &Arc<Shared>, family: Family) -> Result<Arc<Self>, Error> {
        let domain = match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(domain, SockType::Datagram, flags, None)
            .map_err(|errno| Error::os("open a UDP socket", errno))?;
        Ok(Arc::new(Self {
            shared: shared.clone(),
            key: shared.next_key(),
            udp: UdpSocket::from(fd),
            family,
            core: Mutex::default(),
            options: Mutex::new(Options::new(shared.settings.limits)),
            nonblocking: AtomicBool::new(false),
            wakers: Arc::default(),
            dropped: AtomicU64::new(0),
        }))
    }

    /// The UDP socket's descriptor, which is the number of the socket.
    pub(crate) fn number(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// A number that names the socket for ever.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Binds the UDP socket.
    pub(crate) fn bind(self: &Arc<Self>, addr: SocketAddr) -> Result<(), Error> {
        let bound = match addr {
            SocketAddr::V4(addr) => bind(self.number(), &SockaddrIn::from(addr)),
            SocketAddr::V6(addr) => bind(self.number(), &SockaddrIn6::from(addr)),
        };
        bound.map_err(|errno| Error::os("bind the UDP socket", errno))?;
        self.start()
    }

    /// Sets where datagrams go that name no destination, and from where they come.
    pub(crate) fn connect(self: &Arc<Self>, peer: SocketAddr) -> Result<(), Error> {
        self.udp.connect(peer).map_err(|error| Error::os("connect the UDP socket", error))?;
        self.start()?;
        let peer = unmapped(peer);
        self.peer(peer)?;
        lock(&self.core).connected = Some(peer);
        Ok(())
    }

    fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.shared.check()?;
        let first = !std::mem::replace(&mut lock(&self.core).started, true);
        if first {
            self.shared.service.start(&self.shared)?;
            self.shared.service.read(self);
        }
        Ok(())
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.udp.local_addr().map_err(|error| Error::os("name the UDP socket", error))
    }

    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, Error> {
        let peer = lock(&self.core).connected.ok_or(Error::NotConnected)?;
        Ok(self.family.outwards(peer))
    }

    /// A datagram to `to`, or to where the socket is connected. All of it or none is sent.
    pub(crate) fn send(
        self: &Arc<Self>,
        bytes: &mut Outgoing<'_>,
        to: Option<SocketAddr>,
        nonblocking: bool,
    ) -> Result<usize, Error> {
        let connected = lock(&self.core).connected;
        let to = to.map(unmapped).or(connected).ok_or(Error::NoDestination)?;
        if connected.is_none() {
            self.bind_if_new(to)?;
        }
        self.start()?;
        let peer = self.peer(to)?;
        let len = bytes.left();
        match peer.known() {
            Some((at, qpn)) if len <= peer.port.max_payload(at) => {
                let deadline = lock(&self.options).send_timeout.map(|time| Instant::now() + time);
                while !peer.port.send(&at.ah, qpn, bytes)? {
                    self.wait(nonblocking, deadline, |_| peer.port.can_send())?;
                }
            }
            _ => self.send_udp(&peer.port, to, LookupOp::DATA, bytes, nonblocking)?,
        }
        Ok(len)
    }

    /// An unbound socket is bound by the system when it sends first; its port has to be known
    /// before.
    fn bind_if_new(self: &Arc<Self>, to: SocketAddr) -> Result<(), Error> {
        if self.local_addr()?.port() != 0 {
            return Ok(());
        }
        if to.is_ipv6() && self.family == Family::V4 {
            return Err(Error::Family(to));
        }
        self.bind(self.family.any())
    }

    /// The queue pair on an own address.
    fn port(&self, source: SocketAddr) -> Result<Arc<Port>, Error> {
        let find = |core: &Core| core.ports.iter().find(|port| port.source == source).cloned();
        if let Some(port) = find(&lock(&self.core)) {
            return Ok(port);
        }
        let (sends, receives) = self.queues();
        let port = Arc::new(Port::new(&self.shared, source, sends, receives)?);
        let mut core = lock(&self.core);
        if let Some(port) = find(&core) {
            return Ok(port);
        }
        if core.ports.len() >= MAX_PORTS {
            return Err(Error::Mapping("too many local addresses for one datagram socket"));
        }
        core.ports.push(port.clone());
        drop(core);
        // Who sleeps must sleep on its descriptor, too.
        self.wakers.wake();
        Ok(port)
    }

    /// Requests of the queues: as many as were asked for, and as the buffers have slots.
    fn queues(&self) -> (usize, usize) {
        let limits = lock(&self.options).limits.clamped();
        let slots = |requests: u16, bytes: u32| {
            usize::from(requests).min((bytes as usize / SLOT_BYTES).max(1))
        };
        (
            slots(limits.send_requests, limits.send_bytes),
            slots(limits.recv_messages, limits.recv_bytes),
        )
    }

    /// A datagram; bytes that there is no room for are lost.
    pub(crate) fn recv(
        self: &Arc<Self>,
        room: &mut Incoming<'_, '_>,
        mode: DatagramMode,
    ) -> Result<Received, Error> {
        self.shared.check()?;
        if !lock(&self.core).started {
            self.start()?;
        }
        let deadline = lock(&self.options).recv_timeout.map(|time| Instant::now() + time);
        loop {
            if let Some(received) = self.take(room, mode.peek)? {
                return Ok(received);
            }
            self.progress(true);
            if !lock(&self.core).waiting.is_empty() {
                continue;
            }
            self.wait(mode.nonblocking, deadline, |core| !core.waiting.is_empty() || core.closed)?;
            if lock(&self.core).closed {
                return Err(Error::NotConnected);
            }
        }
    }

    fn take(&self, room: &mut Incoming<'_, '_>, peek: bool) -> Result<Option<Received>, Error> {
        let mut core = lock(&self.core);
        let (from, len, copied) = match core.waiting.front() {
            None => return Ok(None),
            Some(Waiting::Udp(from, bytes)) => {
                let (mut at, copied) = (0, room.left().min(bytes.len()));
                room.fill(copied, |piece| {
                    piece.copy_from_slice(&bytes[at..at + piece.len()]);
                    at += piece.len();
                });
                (*from, bytes.len(), copied)
            }
            Some(Waiting::Slot(port, at)) => {
                let (mut offset, len) = Port::payload(at);
                let copied = room.left().min(len);
                room.fill(copied, |piece| {
                    port.read(at, offset, piece);
                    offset += piece.len();
                });
                (at.source, len, copied)
            }
        };
        if !peek && let Some(Waiting::Slot(port, at)) = core.waiting.pop_front() {
            port.post_recv(at.slot)?;
        }
        Ok(Some(Received { copied, len, from: self.family.outwards(from) }))
    }

    /// Takes what has come.
    fn progress(&self, with_progress: bool) {
        let ports = lock(&self.core).ports.clone();
        let mut any = false;
        for port in &ports {
            any |= port.progress(with_progress, |arrived| match arrived {
                Ok(arrived) => self.keep(port, arrived),
                Err(error) => {
                    self.drop_one(&error);
                    false
                }
            });
        }
        if any {
            self.wakers.wake();
        }
    }

    /// Counts a datagram that was dropped.
    fn drop_one(&self, why: &Error) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(%why, dropped, "datagram dropped");
    }

    /// Datagrams that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the socket is as `ready` says.
    fn wait(
        &self,
        nonblocking: bool,
        deadline: Option<Instant>,
        ready: impl Fn(&Core) -> bool,
    ) -> Result<(), Error> {
        let is_ready = || {
            self.progress(true);
            ready(&lock(&self.core))
        };
        if is_ready() {
            return Ok(());
        }
        if nonblocking {
            return Err(Error::WouldBlock);
        }
        let polled_until = Instant::now() + self.shared.settings.polling_time;
        while Instant::now() < polled_until {
            if is_ready() {
                return Ok(());
            }
        }
        let sleeper = Sleeper::own()?;
        let _entered = Entered::new(&self.wakers, sleeper.clone(), 0);
        // Each turn sleeps until something has changed.
        loop {
            sleeper.reset();
            let mut fds = Vec::new();
            self.arm(&mut fds);
            if is_ready() {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::WouldBlock);
            }
            let mut fds: Vec<_> = fds.iter().map(|fd| sys::entry(*fd, libc::POLLIN)).collect();
            fds.push(sys::entry(sleeper.fd().as_raw_fd(), libc::POLLIN));
            sys::sleep(&mut fds, deadline)?;
            self.take_events();
        }
    }

    /// Makes sure that what comes next can be slept for, on these descriptors.
    pub(crate) fn arm(&self, fds: &mut Vec<RawFd>) {
        for port in &lock(&self.core).ports {
            port.arm();
            fds.push(port.fd().as_raw_fd());
        }
    }

    /// Takes the events that the descriptors have.
    pub(crate) fn take_events(&self) {
        let ports = lock(&self.core).ports.clone();
        ports.iter().for_each(|port| port.take_events());
    }

    pub(crate) fn readiness(&self, with_progress: bool) -> Readiness {
        self.progress(with_progress);
        let core = lock(&self.core);
        let can_send = core.ports.iter().all(|port| port.can_send());
        Readiness::READ.when(!core.waiting.is_empty() || core.closed)
            | Readiness::WRITE.when(can_send || core.closed)
            | Readiness::HUNG_UP.when(core.closed)
    }

    /// The user is done with it. Waits for a moment until what was sent has left.
    pub(crate) fn close(&self) {
        if self.shared.is_orphan() {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        let _ = self
            .wait(false, Some(deadline), |core| core.ports.iter().all(|port| port.is_flushed()));
        let mut core = lock(&self.core);
        core.closed = true;
        let gone = (
            std::mem::take(&mut core.waiting),
            std::mem::take(&mut core.peers),
            std::mem::take(&mut core.ports),
            std::mem::take(&mut core.asked),
            std::mem::take(&mut core.held),
        );
        core.order.clear();
        drop(core);
        drop(gone);
        self.wakers.wake();
        self.shared.service.rouse();
    }
}
