//! iWARP connections: TCP connections, their MPA start-up, and the queue pairs that take them over.
//!
//! Owns a TCP connection until [`Handshake::start`] gives it to a queue pair; from then on the lane
//! owns it (`streams.rs`). Called by connection managers. Only [`Handshake::wait`],
//! [`Listener::wait`] and [`Listener::wait_request`] block.
//!
//! ```text
//!   Handshake::connect                        Listener::accept
//!     Connecting, Waiting   -- request -->      Waiting, Asked: accept or reject
//!     Agreed                <-- reply ---       Replying, Agreed
//!     start(qp)             == FPDUs ===        start(qp)
//! ```
//!
//! A queue pair of an iWARP device is created as an RC queue pair of any device. The application
//! brings it to Init, and [`Handshake::start`] brings it to RTS. Its peer and its addresses are
//! those of the connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use vernic_io::tcp::{Bound, Connecting, Connection, Interest, Readiness, Received, Sent};
use vernic_io::{LocalAddr, Sleeper};
use vernic_proto::Time;
use vernic_proto::iwarp::{Startup, StreamEnd};

pub use vernic_proto::iwarp::{
    Agreed, Ending, Extensions, RtrSet, StartError as StreamRefusal, StartupConfig, StartupError,
    StartupState, StreamConfig,
};

use crate::config::{Config, PeerRefused};
use crate::device::transport::Transport;
use crate::progress::engine::Engine;
use crate::streams::{BindStreamError, StreamTerms};
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::handle::Qp;

pub use crate::streams::StreamSink;

mod leaving;
mod listener;

pub use listener::Listener;

use leaving::say_last;

/// Time in nanoseconds until an initiator repeats its ready-to-receive indication to a peer that
/// has not answered. It is longer than an answer takes, and short compared to connecting.
const RTR_REPEAT_NANOS: u64 = 10_000_000;

/// Time in nanoseconds that a responder waits for the first message of an initiator that has not
/// agreed to send first. It is far longer than a reply travels.
const FENCE_NANOS: u64 = 100_000_000;

/// The number of bytes that one call receives during the start-up: a whole MPA frame, and some of
/// what follows it.
const START_BYTES: usize = 1024;

/// The reason why a connection could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device is not an iWARP device.
    #[error("{device} is no iWARP device: open one with Context::open_iwarp")]
    NotIwarp {
        /// The name of the device.
        device: String,
    },
    /// The device is closed, or was opened by the parent of this process, before a `fork`.
    #[error("{device} is closed here, or belongs to the process that this one was forked from")]
    Gone {
        /// The name of the device.
        device: String,
    },
    /// The setting `peers` does not allow the peer.
    #[error(transparent)]
    NotAllowed(#[from] PeerRefused),
    /// The system refused an operation on a socket.
    #[error("cannot {what} {addr}: {source}")]
    Os {
        /// The operation that failed, for example `connect to`.
        what: &'static str,
        /// The address that the operation was for.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no file descriptor left to watch the connection.
    #[error("no descriptor left: {0}")]
    Descriptors(io::Error),
    /// The private data is too long, or the MPA start-up failed.
    #[error(transparent)]
    Startup(#[from] StartupError),
}

/// The reason why a queue pair did not take over a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The start-up is not complete.
    #[error("the start-up is not complete: {0:?}")]
    NotAgreed(HandshakeState),
    /// The queue pair and the connection belong to different devices.
    #[error("queue pair {0} is of another device than the connection")]
    OtherDevice(vernic_wire::Qpn),
    /// The queue pair was destroyed, or its device is closed.
    #[error("queue pair {0} is destroyed")]
    Destroyed(vernic_wire::Qpn),
    /// The queue pair is in a state that does not allow a start, or already has a connection.
    #[error("queue pair {qpn}: {source}")]
    Refused {
        /// The number of the queue pair.
        qpn: vernic_wire::Qpn,
        /// The reason for which the queue pair refused the connection.
        source: StreamRefusal,
    },
    /// The system cannot watch one more descriptor with epoll.
    #[error("the connection cannot be watched: {0}")]
    Os(io::Error),
}

fn check_device(context: &Context) -> Result<(), ConnectError> {
    let device = || context.info().name.clone();
    match context.info().transport {
        _ if context.alive().is_err() => Err(ConnectError::Gone { device: device() }),
        Transport::Iwarp => Ok(()),
        _ => Err(ConnectError::NotIwarp { device: device() }),
    }
}

/// Sleeps until a descriptor is readable, or for `timeout`.
fn sleep_on(fd: RawFd, timeout: Duration) -> io::Result<()> {
    let mut sleeper = Sleeper::new()?;
    sleeper.watch([fd]);
    sleeper.sleep(Some(timeout));
    Ok(())
}

/// The progress of a connection, from TCP to the end of the MPA start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeState {
    /// TCP is connecting.
    Connecting,
    /// TCP could not connect, with this error.
    Unreachable(io::ErrorKind),
    /// The MPA start-up is in progress, complete or failed.
    Startup(StartupState),
}

impl HandshakeState {
    /// Whether the state will not change until the application calls a method that decides (for
    /// example [`Handshake::accept`] or [`Handshake::start`]).
    pub fn is_settled(&self) -> bool {
        !matches!(
            self,
            Self::Connecting | Self::Startup(StartupState::Waiting | StartupState::Replying)
        )
    }
}

#[derive(Debug)]
enum Phase {
    /// TCP is connecting. The value is the private data for the request.
    Connecting(Vec<u8>),
    Unreachable(io::ErrorKind),
    Startup(Startup),
}

/// The epoll instance that reports when a [`Handshake`] has something to do, and the handshake's
/// key in it.
#[derive(Clone, Debug)]
pub struct Watch {
    readiness: Arc<Readiness>,
    key: u64,
}

impl Watch {
    /// Makes a watch with an epoll instance of its own.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`].
    pub fn own() -> Result<Self, ConnectError> {
        let readiness = Readiness::new().map_err(ConnectError::Descriptors)?;
        Ok(Self { readiness: Arc::new(readiness), key: 0 })
    }

    /// Makes a watch in a shared epoll instance, under `key`. A handshake removes its connection
    /// from the instance when it is settled.
    pub fn shared(readiness: &Arc<Readiness>, key: u64) -> Self {
        Self { readiness: readiness.clone(), key }
    }
}

/// A connection that does not belong to a queue pair yet. Dropping the handshake closes the
/// connection.
#[derive(Debug)]
pub struct Handshake {
    context: Arc<Context>,
    connection: Connection,
    watch: Watch,
    /// The events for which epoll watches the connection; `None` if epoll does not watch it at all,
    /// not even for its loss.
    watched: Option<Interest>,
    phase: Phase,
    config: StartupConfig,
    /// Bytes that were received after the peer's frame.
    rest: Vec<u8>,
}

impl Handshake {
    /// Begins to connect to a peer from an address of this host, with up to 512 bytes of private
    /// data (508 if depths or peer-to-peer mode are negotiated).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(
        context: &Arc<Context>,
        local: LocalAddr,
        peer: SocketAddr,
        config: StartupConfig,
        private: &[u8],
    ) -> Result<Self, ConnectError> {
        let os = |source| ConnectError::Os { what: "connect to", addr: peer, source };
        let socket = Bound::new(&local.with_port(0), true, false).map_err(os)?;
        Self::connect_from(context, socket, peer, config, private, Watch::own()?)
    }

    /// Begins to connect as [`connect`](Self::connect) does, but from a socket that has an address
    /// already, and with a given watch.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_from(
        context: &Arc<Context>,
        socket: Bound,
        peer: SocketAddr,
        config: StartupConfig,
        private: &[u8],
        watch: Watch,
    ) -> Result<Self, ConnectError> {
        check_device(context)?;
        context.config().peers.check(peer.ip())?;
        // This only checks the length of the private data. The start-up begins when TCP is
        // connected.
        Startup::initiate(config, private, Time(0))?;
        let os = |source| ConnectError::Os { what: "connect to", addr: peer, source };
        let connection = socket.connect(&peer).map_err(os)?;
        Self::new(context, connection, Phase::Connecting(private.to_vec()), config, watch)
    }

    /// Begins to wait for the request of a peer that has connected. The start-up uses the terms of
    /// `config`, unless [`accept`](Self::accept) is called with others.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`] or [`ConnectError::Gone`]; or [`ConnectError::NotAllowed`],
    /// after which the connection is closed.
    pub fn respond(
        context: &Arc<Context>,
        connection: Connection,
        config: StartupConfig,
        watch: Watch,
    ) -> Result<Self, ConnectError> {
        check_device(context)?;
        // A connection that the peer has reset already has no peer address.
        if let Ok(peer) = connection.peer_addr() {
            context.engine().check_connection(peer.ip())?;
        }
        let startup = Startup::respond(config, context.now());
        Self::new(context, connection, Phase::Startup(startup), config, watch)
    }

    fn new(
        context: &Arc<Context>,
        connection: Connection,
        phase: Phase,
        config: StartupConfig,
        watch: Watch,
    ) -> Result<Self, ConnectError> {
        let watched = Interest { receive: true, send: matches!(phase, Phase::Connecting(_)) };
        let added = watch.readiness.watch(&connection, watch.key, watched);
        added.map_err(ConnectError::Descriptors)?;
        let (context, rest, watched) = (context.clone(), Vec::new(), Some(watched));
        Ok(Self { context, connection, watch, watched, phase, config, rest })
    }

    /// Returns the epoll descriptor, which is readable while [`poll`](Self::poll) has something to
    /// do.
    pub fn raw_fd(&self) -> RawFd {
        self.watch.readiness.raw_fd()
    }

    /// Returns the local address of the connection.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// The error of the system, if the connection is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }

    /// Returns the progress of the connection.
    pub fn state(&self) -> HandshakeState {
        match &self.phase {
            Phase::Connecting(_) => HandshakeState::Connecting,
            Phase::Unreachable(kind) => HandshakeState::Unreachable(*kind),
            Phase::Startup(startup) => HandshakeState::Startup(startup.state()),
        }
    }

    /// Returns the terms that both ends have agreed on; `None` before that.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.startup().and_then(Startup::agreed)
    }

    /// Returns the private data of the peer's frame, 0 to 512 bytes; empty until the frame has
    /// come.
    pub fn private(&self) -> &[u8] {
        self.startup().map_or(&[], Startup::private)
    }

    /// Returns how many READs and atomics the peer accepts, and how many it wants to have in
    /// flight. `None` until the peer's frame has come, or if the frame does not say.
    pub fn peer_depths(&self) -> Option<(u32, u32)> {
        let enhanced = self.startup()?.peer_enhanced()?;
        Some((enhanced.ird.depth()?, enhanced.ord.depth()?))
    }

    /// Returns the longest time until [`poll`](Self::poll) must be called even if the descriptor is
    /// not readable: the time left for the peer to answer. `None` if nothing is awaited.
    pub fn patience(&self) -> Option<Duration> {
        let deadline = self.startup()?.next_deadline()?;
        Some(Duration::from_nanos(deadline.since(self.context.now())))
    }

    fn startup(&self) -> Option<&Startup> {
        match &self.phase {
            Phase::Startup(startup) => Some(startup),
            _ => None,
        }
    }

    /// Continues the connection as far as possible without blocking. Does nothing in a child of the
    /// process that made the handshake.
    pub fn poll(&mut self) -> HandshakeState {
        if self.context.is_orphan() {
            return self.state();
        }
        let now = self.context.now();
        if let Phase::Connecting(private) = &self.phase {
            match self.connection.connecting() {
                Connecting::Pending => {}
                Connecting::Failed(error) => self.phase = Phase::Unreachable(error.kind()),
                Connecting::Done => {
                    // The length of the private data was checked before.
                    if let Ok(startup) = Startup::initiate(self.config, private, now) {
                        self.phase = Phase::Startup(startup);
                    }
                }
            }
        }
        let mut is_full = false;
        if let Phase::Startup(startup) = &mut self.phase {
            receive(&self.connection, startup, &mut self.rest);
            startup.handle_timeout(now);
            is_full = send(&self.connection, startup);
        }
        let is_connecting = matches!(self.phase, Phase::Connecting(_));
        let waits = matches!(self.state(), HandshakeState::Startup(StartupState::Waiting));
        let wants = Interest { receive: waits, send: is_full || is_connecting };
        self.watch_for((wants != Interest::default()).then_some(wants));
        self.state()
    }

    fn watch_for(&mut self, wants: Option<Interest>) {
        let Watch { readiness, key } = &self.watch;
        let changed = match (self.watched, wants) {
            (was, wants) if was == wants => return,
            (_, None) => readiness.unwatch(&self.connection),
            (None, Some(wants)) => readiness.watch(&self.connection, *key, wants),
            (Some(_), Some(wants)) => readiness.change(&self.connection, *key, wants),
        };
        if changed.is_ok() {
            self.watched = wants;
        }
    }

    /// Calls [`poll`](Self::poll) and sleeps until the connection is
    /// [settled](HandshakeState::is_settled) or `timeout` is over.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn wait(&mut self, timeout: Duration) -> Result<HandshakeState, ConnectError> {
        check_device(&self.context)?;
        let end = self.context.now() + timeout.as_nanos().min(u128::from(u64::MAX)) as u64;
        loop {
            let state = self.poll();
            let now = self.context.now();
            if state.is_settled() || now >= end {
                return Ok(state);
            }
            let next = self.startup().and_then(Startup::next_deadline).map_or(end, |d| d.min(end));
            let pause = Duration::from_nanos(next.since(now));
            sleep_on(self.raw_fd(), pause).map_err(ConnectError::Descriptors)?;
        }
    }

    /// Accepts the peer's request under the terms of `config`, with private data. For a responder
    /// in the state [`StartupState::Asked`].
    ///
    /// # Errors
    /// [`StartupError::PrivateTooLong`].
    pub fn accept(&mut self, config: &StartupConfig, private: &[u8]) -> Result<(), StartupError> {
        let now = self.context.now();
        if let Phase::Startup(startup) = &mut self.phase {
            startup.accept(config, private, now)?;
        }
        self.poll();
        Ok(())
    }

    /// Rejects the peer's request, with private data. For a responder in the state
    /// [`StartupState::Asked`].
    ///
    /// # Errors
    /// [`StartupError::PrivateTooLong`].
    pub fn reject(&mut self, private: &[u8]) -> Result<(), StartupError> {
        let now = self.context.now();
        if let Phase::Startup(startup) = &mut self.phase {
            startup.reject(private, now)?;
        }
        self.poll();
        Ok(())
    }

    /// Returns the stream configuration that the settings of the device give.
    pub fn stream_config(&self) -> StreamConfig {
        stream_of(self.context.config())
    }

    /// Gives the connection to a queue pair in Init (or RTR, RTS), and brings the queue pair to
    /// RTS. The size of TCP's segments replaces the one in `config`. If both ends are on this host
    /// and there are no CRCs, FPDUs may be longer than a segment, whatever `config` says.
    ///
    /// # Errors
    /// [`StartError`]. The connection is then closed; if both ends had agreed, the peer is informed
    /// of the failure first.
    pub fn start(self, qp: &Qp, config: StreamConfig) -> Result<(), StartError> {
        self.start_with(qp, config, None)
    }

    /// Starts as [`start`](Self::start) does, and reports the further events of the connection to
    /// `sink`. If the start fails, `sink` gets nothing. Otherwise it gets the end of the connection
    /// at some time, and is dropped after that.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_with(
        mut self,
        qp: &Qp,
        config: StreamConfig,
        sink: Option<Arc<dyn StreamSink>>,
    ) -> Result<(), StartError> {
        let terms = self.check_start(qp);
        if !self.context.is_orphan() {
            // The lane watches the connection from now on.
            self.watch_for(None);
        }
        let Self { context, connection, phase, rest, .. } = self;
        let (error, connection) = match terms {
            Err(error) => (error, Some(connection)),
            Ok((agreed, emss)) => {
                // Within a host, TCP crosses no network, and the other end is not an adapter, which
                // might take only FPDUs that are whole segments. With CRCs, short FPDUs are faster,
                // because they stay in the first-level cache.
                let large_fpdus = config.large_fpdus || !agreed.crc && connection.is_within_host();
                let config = StreamConfig { emss, large_fpdus, ..config };
                let terms = StreamTerms::new(&agreed, config, sink);
                match bind(qp.engine(), qp, connection, terms, rest) {
                    Ok(()) => return Ok(()),
                    Err(refused) => refused,
                }
            }
        };
        if let (Some(connection), Phase::Startup(mut startup)) = (connection, phase) {
            let agreed = startup.agreed().copied();
            startup.abort();
            say_last(&context, connection, agreed.as_ref(), startup.transmit().to_vec());
        }
        Err(error)
    }

    /// Returns the agreed terms and the size of TCP's segments, if the queue pair can take over the
    /// connection.
    fn check_start(&self, qp: &Qp) -> Result<(Agreed, u32), StartError> {
        if self.context.is_orphan() {
            return Err(StartError::Destroyed(qp.qpn()));
        }
        let Some(agreed) = self.agreed().copied() else {
            return Err(StartError::NotAgreed(self.state()));
        };
        if !Arc::ptr_eq(qp.context(), &self.context) {
            return Err(StartError::OtherDevice(qp.qpn()));
        }
        let emss = self.connection.segment_bytes().map_err(StartError::Os)?;
        Ok((agreed, emss))
    }
}

/// Gives a connection to the lane. With an error, returns the connection, unless it was lost.
fn bind(
    engine: &Engine,
    qp: &Qp,
    connection: Connection,
    terms: StreamTerms<'_>,
    rest: Vec<u8>,
) -> Result<(), (StartError, Option<Connection>)> {
    let qpn = qp.qpn();
    engine
        .with_lane(|lane| {
            // Code that destroys a queue pair or closes a device first sets a flag, and then takes
            // the lane. So these checks under the lane are reliable.
            if qp.is_gone() || engine.is_closed() {
                return Err((BindStreamError::Gone, Some(connection)));
            }
            lane.bind_stream(engine, qp.inner(), connection, terms, &rest)
        })
        .map_err(|(error, connection)| {
            let error = match error {
                BindStreamError::Start(source) => StartError::Refused { qpn, source },
                BindStreamError::Os(source) => StartError::Os(source),
                BindStreamError::Gone => StartError::Destroyed(qpn),
            };
            (error, connection)
        })
}

/// Returns how the connection of a queue pair has ended, or why it is about to end. `None` if it is
/// not ending, if there is no connection, and once the queue pair was reset. A [`StreamSink`] gets
/// the same report when it happens.
pub fn ending(qp: &Qp) -> Option<Ending> {
    if qp.context().is_orphan() { None } else { lock(&qp.inner().core).machine.ending() }
}

/// Returns the stream configuration for the default settings.
pub fn default_stream() -> StreamConfig {
    stream_of(&Config::default())
}

/// Returns the stream configuration for these settings.
fn stream_of(config: &Config) -> StreamConfig {
    StreamConfig {
        recv_wait_ns: config.iwarp_recv_wait_us * 1000,
        // No limit: a peer's program may be stopped for any time while its host answers.
        stall_ns: 0,
        rtr_repeat_ns: RTR_REPEAT_NANOS,
        fence_ns: FENCE_NANOS,
        ..StreamConfig::default()
    }
}

/// Receives the bytes of the start-up, and keeps in `rest` what came after them.
fn receive(connection: &Connection, startup: &mut Startup, rest: &mut Vec<u8>) {
    let mut buffer = [0; START_BYTES];
    // Bounded, because a start-up takes one frame.
    while startup.state() == StartupState::Waiting {
        let end = match connection.recv(&mut buffer) {
            Received::Bytes(len) => {
                let taken = startup.handle_bytes(&buffer[..len]);
                rest.extend_from_slice(&buffer[taken..len]);
                continue;
            }
            Received::Nothing => return,
            Received::End => StreamEnd::Closed,
            Received::Lost(_) => StreamEnd::Reset,
        };
        startup.handle_end(end);
    }
}

/// Sends the bytes of the start-up. Returns true if the socket has no room for all of them.
fn send(connection: &Connection, startup: &mut Startup) -> bool {
    // Bounded, because there is one frame, or one Terminate message.
    while !startup.transmit().is_empty() {
        match connection.send(startup.transmit()) {
            Sent::Bytes(len) => startup.handle_sent(len),
            Sent::Full => return true,
            Sent::Lost(_) => {
                startup.handle_end(StreamEnd::Reset);
                return false;
            }
        }
    }
    false
}
