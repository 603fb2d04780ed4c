//! A socket as its user has it: the calls of the socket interface, for streams and datagrams alike.
//! What options say is in `query`.

use std::ffi::c_int;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::connection::{Connection, RecvMode};
use crate::datagram::{DatagramMode, DatagramSocket};
use crate::family::Family;
use crate::pieces::{Incoming, Outgoing};
use crate::shared::Runtime;
use crate::stream::Shutdown;
use crate::stream_socket::StreamSocket;
use crate::wake::{Wakers, lock};
use crate::{Error, Readiness};

mod query;

/// Kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// `SOCK_STREAM`.
    Stream,
    /// `SOCK_DGRAM`.
    Datagram,
}

/// Flags of a call, the `MSG_*` of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsgFlags(pub c_int);

impl MsgFlags {
    /// No flags.
    pub const NONE: Self = Self(0);

    const fn has(self, flag: c_int) -> bool {
        self.0 & flag != 0
    }

    fn check(self) -> Result<(), Error> {
        // There is no urgent data, and no queue of errors.
        match self.has(libc::MSG_OOB) {
            true => Err(Error::Unsupported("MSG_OOB")),
            false if self.has(libc::MSG_ERRQUEUE) => Err(Error::WouldBlock),
            false => Ok(()),
        }
    }
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied; 0 at the end of a stream.
    pub copied: usize,
    /// Bytes that there were: more than `copied` of a datagram that was cut.
    pub len: usize,
    /// Who sent the datagram.
    pub from: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub(crate) enum Inner {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

/// What the copies of a socket share.
struct Whole {
    inner: Inner,
    family: Family,
    /// Of streams: so that the number is theirs alone. Nobody reads it.
    number: Option<OwnedFd>,
    fd_flags: AtomicI32,
    status_flags: AtomicI32,
}

/// A socket over RDMA. Copies are the same socket; it is closed by [`close`](Self::close).
#[derive(Clone)]
pub struct Socket(Arc<Whole>);

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.inner {
            Inner::Stream(_) => write!(f, "Socket(stream {})", self.number()),
            Inner::Datagram(_) => write!(f, "Socket(datagram {})", self.number()),
        }
    }
}

impl Runtime {
    /// A socket.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor left.
    pub fn socket(&self, family: Family, kind: SocketKind) -> Result<Socket, Error> {
        let inner = match kind {
            SocketKind::Stream => Inner::Stream(self.stream(family)?),
            SocketKind::Datagram => Inner::Datagram(self.datagram(family)?),
        };
        Socket::new(inner, family)
    }
}

impl Socket {
    fn new(inner: Inner, family: Family) -> Result<Self, Error> {
        let number = match inner {
            Inner::Stream(_) => Some(match EventFd::from_flags(EfdFlags::EFD_CLOEXEC) {
                Ok(fd) => fd.into(),
                Err(errno) => vernic_io::bell(false)
                    .map_err(|_| Error::os("take a number for a socket", errno))?,
            }),
            Inner::Datagram(_) => None,
        };
        let (fd_flags, status_flags) = (AtomicI32::new(0), AtomicI32::new(libc::O_RDWR));
        Ok(Self(Arc::new(Whole { inner, family, number, fd_flags, status_flags })))
    }

    /// Its number, which no other descriptor of the process has while the socket exists.
    pub fn number(&self) -> RawFd {
        match (&self.0.inner, &self.0.number) {
            (Inner::Datagram(socket), _) => socket.number(),
            (_, Some(number)) => number.as_fd().as_raw_fd(),
            (_, None) => -1,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> SocketKind {
        match self.0.inner {
            Inner::Stream(_) => SocketKind::Stream,
            Inner::Datagram(_) => SocketKind::Datagram,
        }
    }

    /// IP version of its addresses.
    pub fn family(&self) -> Family {
        self.0.family
    }

    fn stream(&self, call: &'static str) -> Result<&Arc<StreamSocket>, Error> {
        match &self.0.inner {
            Inner::Stream(stream) => Ok(stream),
            Inner::Datagram(_) => Err(Error::Unsupported(call)),
        }
    }

    pub(crate) fn wakers(&self) -> &Arc<Wakers> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.wakers(),
            Inner::Datagram(datagram) => &datagram.wakers,
        }
    }

    /// Gives it an address; port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Cm`], [`Error::Os`], [`Error::Family`].
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.bind(addr),
            Inner::Datagram(datagram) => datagram.bind(addr),
        }
    }

    /// Waits for peers; `backlog` connections that nobody has accepted are kept.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for datagrams, [`Error::State`], [`Error::Cm`].
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.stream("listen")?.listen(backlog)
    }

    /// A connection that a peer has made, and who that is.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::Interrupted`], [`Error::State`] for one that does not
    /// listen.
    pub fn accept(&self) -> Result<Self, Error> {
        let stream = self.stream("accept")?;
        let accepted = stream.accept(stream.is_nonblocking())?;
        Self::new(Inner::Stream(accepted), self.0.family)
    }

    /// Connects to a peer.
    ///
    /// # Errors
    /// [`Error::InProgress`] if it does not wait; [`Error::Failed`] with the reason;
    /// [`Error::Connected`], [`Error::Already`], [`Error::Cm`].
    pub fn connect(&self, peer: SocketAddr) -> Result<(), Error> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.connect(peer),
            Inner::Datagram(datagram) => datagram.connect(peer),
        }
    }

    /// Sends. Of a stream the first bytes, as many as there is room for if it does not wait; a
    /// datagram goes to `to` (streams do not look at it), or to where the socket is connected.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::Interrupted`]; [`Error::Shut`], [`Error::Failed`],
    /// [`Error::NotConnected`] of streams; [`Error::TooLong`], [`Error::NoDestination`] of
    /// datagrams.
    pub fn send(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        flags.check()?;
        let bytes = &mut Outgoing::new(pieces);
        let nonblocking = self.is_nonblocking() || flags.has(libc::MSG_DONTWAIT);
        match &self.0.inner {
            Inner::Stream(stream) => {
                let timeout = lock(&stream.options).send_timeout;
                stream.connection(nonblocking)?.send(bytes, nonblocking, timeout)
            }
            Inner::Datagram(datagram) => datagram.send(bytes, to, nonblocking),
        }
    }

    /// Receives. Of a stream what there is, or all that there is room for with `MSG_WAITALL`; a
    /// whole datagram.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::Interrupted`], [`Error::Failed`], [`Error::NotConnected`].
    pub fn recv(&self, pieces: &mut [IoSliceMut<'_>], flags: MsgFlags) -> Result<Received, Error> {
        flags.check()?;
        let room = &mut Incoming::new(pieces);
        let nonblocking = self.is_nonblocking() || flags.has(libc::MSG_DONTWAIT);
        let peek = flags.has(libc::MSG_PEEK);
        match &self.0.inner {
            Inner::Stream(stream) => {
                let timeout = lock(&stream.options).recv_timeout;
                let all = flags.has(libc::MSG_WAITALL);
                let mode = RecvMode { nonblocking, peek, all, timeout };
                let copied = stream.connection(nonblocking)?.recv(room, mode)?;
                Ok(Received { copied, len: copied, from: None })
            }
            Inner::Datagram(datagram) => {
                let received = datagram.recv(room, DatagramMode { nonblocking, peek })?;
                let crate::datagram::Received { copied, len, from } = received;
                Ok(Received { copied, len, from: Some(from) })
            }
        }
    }

    /// Shuts down one direction or both. What was sent before still arrives.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.shutdown(how),
            Inner::Datagram(datagram) => datagram.peer_addr().map(drop),
        }
    }

    /// Ends it. What was sent before still arrives; with `SO_LINGER` this waits for it.
    pub fn close(&self) {
        match &self.0.inner {
            Inner::Stream(stream) => stream.close(),
            Inner::Datagram(datagram) => datagram.close(),
        }
    }

    /// Its own address.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        match &self.0.inner {
            Inner::Stream(stream) => Ok(stream.local_addr()),
            Inner::Datagram(datagram) => datagram.local_addr(),
        }
    }

    /// The address of its peer.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.peer_addr(),
            Inner::Datagram(datagram) => datagram.peer_addr(),
        }
    }

    /// Whether its calls do not wait.
    pub fn is_nonblocking(&self) -> bool {
        match &self.0.inner {
            Inner::Stream(stream) => stream.is_nonblocking(),
            Inner::Datagram(datagram) => datagram.is_nonblocking(),
        }
    }

    /// Whether its calls shall not wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        match &self.0.inner {
            Inner::Stream(stream) => stream.set_nonblocking(nonblocking),
            Inner::Datagram(datagram) => datagram.set_nonblocking(nonblocking),
        }
    }

    /// Flags of `F_GETFL`.
    pub fn status_flags(&self) -> c_int {
        let others = self.0.status_flags.load(Ordering::Relaxed) & !libc::O_NONBLOCK;
        others | if self.is_nonblocking() { libc::O_NONBLOCK } else { 0 }
    }

    /// Flags of `F_SETFL`; those beside `O_NONBLOCK` are stored and told back.
    pub fn set_status_flags(&self, flags: c_int) {
        let flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
        self.0.status_flags.store(flags, Ordering::Relaxed);
        self.set_nonblocking(flags & libc::O_NONBLOCK != 0);
    }

    /// Flags of `F_GETFD`.
    pub fn fd_flags(&self) -> c_int {
        self.0.fd_flags.load(Ordering::Relaxed)
    }

    /// Flags of `F_SETFD`, stored and told back: no socket over RDMA survives exec.
    pub fn set_fd_flags(&self, flags: c_int) {
        self.0.fd_flags.store(flags, Ordering::Relaxed);
    }

    /// What it is ready for; makes progress on the caller's thread.
    pub fn readiness(&self) -> Readiness {
        self.look(true)
    }

    /// Whether a look at it can make progress.
    pub(crate) fn makes_progress(&self) -> bool {
        match &self.0.inner {
            Inner::Stream(stream) => stream.connected().is_some(),
            Inner::Datagram(_) => true,
        }
    }

    pub(crate) fn look(&self, with_progress: bool) -> Readiness {
        match &self.0.inner {
            Inner::Stream(stream) => stream.readiness(with_progress),
            Inner::Datagram(datagram) => datagram.readiness(with_progress),
        }
    }

    /// The connection of a stream that is or was connected.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub(crate) fn connection(&self) -> Result<&Arc<Connection>, Error> {
        match &self.0.inner {
            Inner::Stream(stream) => stream.connected().ok_or(Error::NotConnected),
            Inner::Datagram(_) => Err(Error::NotConnected),
        }
    }

    /// Makes sure that what comes next can be slept for, on these descriptors. Look again after
    /// that.
    pub(crate) fn arm(&self, fds: &mut Vec<RawFd>) {
        match &self.0.inner {
            Inner::Stream(stream) => {
                if let Some(connection) = stream.connected() {
                    connection.arm();
                    fds.push(connection.fd().as_raw_fd());
                }
            }
            Inner::Datagram(datagram) => datagram.arm(fds),
        }
    }

    /// Takes the events that the descriptors have.
    pub(crate) fn take_events(&self) {
        match &self.0.inner {
            Inner::Stream(stream) => {
                if let Some(connection) = stream.connected() {
                    connection.take_events();
                }
            }
            Inner::Datagram(datagram) => datagram.take_events(),
        }
    }

    /// Sets an option, its value as bytes of C.
    ///
    /// # Errors
    /// [`Error::NoOption`], [`Error::Value`], [`Error::State`] for one that comes too late.
    pub fn set_option(&self, level: c_int, option: c_int, value: &[u8]) -> Result<(), Error> {
        match &self.0.inner {
            Inner::Stream(stream) => {
                let is_open = stream.is_open();
                lock(&stream.options).set(level, option, value, is_open)?;
                let alive = [libc::SO_KEEPALIVE, libc::TCP_KEEPIDLE];
                if matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP) && alive.contains(&option)
                {
                    stream.keep_alive_as_set();
                }
                Ok(())
            }
            Inner::Datagram(datagram) => lock(&datagram.options).set(level, option, value, true),
        }
    }

    /// Maps a buffer of the program's, so that the peer writes directly into it (with an `offset`,
    /// which stands for its first byte), or for use on this side alone.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::Unsupported`] for datagrams, [`Error::Mapping`],
    /// [`Error::Create`].
    ///
    /// # Safety
    /// Until [`unmap`](Self::unmap) has returned, or the socket was closed and its connection has
    /// ended: `addr..addr + len` stays mapped, readable and writable; all other accesses to it are
    /// atomic or volatile, from another language or process, or do not overlap in time with the
    /// peer's writes.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn map(&self, addr: *mut u8, len: usize, offset: Option<u64>) -> Result<(), Error> {
        let connection = self.stream("map")?.connection(true)?;
        // SAFETY: the caller's promise.
        unsafe { connection.map(addr, len, offset) }
    }

    /// Ends a mapping. When it has returned nothing accesses the buffer any more.
    ///
    /// # Errors
    /// [`Error::Mapping`] if there is none.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Error> {
        self.stream("unmap")?.connection(true)?.unmap(addr, len)
    }

    /// Writes to where the peer has mapped `offset` and on; ends early where nothing is mapped.
    /// Data that is sent afterwards arrives afterwards.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub fn write_direct(
        &self,
        pieces: &[IoSlice<'_>],
        offset: u64,
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        let stream = self.stream("write_direct")?;
        let nonblocking = self.is_nonblocking() || flags.has(libc::MSG_DONTWAIT);
        let timeout = lock(&stream.options).send_timeout;
        let connection = stream.connection(nonblocking)?;
        connection.write_direct(&mut Outgoing::new(pieces), offset, nonblocking, timeout)
    }
}

/// The end of a wait; `None` for ever.
pub(crate) fn deadline_of(timeout: Option<std::time::Duration>) -> Option<Instant> {
    timeout.map(|timeout| Instant::now() + timeout)
}
