//! iWARP connections: TCP connections, their MPA start-up, and the queue pairs that take them over.
//!
//! Owns a connection until [`Handshake::start`] gives it to a queue pair; from then on the lane
//! owns the connection (`streams.rs`). Called by connection managers. Nothing here waits except
//! [`Handshake::wait`], [`Listener::wait`] and [`Listener::wait_request`].
//!
//! ```text
//!   Handshake::connect                        Listener::accept
//!     Connecting, Waiting   -- request -->      Waiting, Asked: accept or reject
//!     Agreed                <-- reply ---       Replying, Agreed
//!     start(qp)             == FPDUs ===        start(qp)
//! ```
//!
//! A queue pair of an iWARP device is created like any other, with service RC. The application
//! brings it to Init, and [`Handshake::start`] brings it to RTS. The connection determines its peer
//! and the addresses.

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
use crate::device::listing::Transport;
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

/// Nanoseconds before an initiator's ready-to-receive indication is repeated to a silent peer:
/// longer than responses take, and short compared to connecting.
const RTR_REPEAT_NANOS: u64 = 10_000_000;

/// Nanoseconds that a responder waits for an initiator that has not agreed to send first: far
/// longer than a reply travels.
const FENCE_NANOS: u64 = 100_000_000;

/// Bytes received at once during the start-up: a whole frame, and some of what follows the frame.
const START_BYTES: usize = 1024;

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device has another transport.
    #[error("{device} is no iWARP device: open one with Context::open_iwarp")]
    NotIwarp {
        /// The name of the device.
        device: String,
    },
    /// The device is closed, or was opened before this process was forked.
    #[error("{device} is closed here, or belongs to the process that this one was forked from")]
    Gone {
        /// The name of the device.
        device: String,
    },
    /// The peer is outside of the setting `peers`.
    #[error(transparent)]
    NotAllowed(#[from] PeerRefused),
    /// The system refused.
    #[error("cannot {what} {addr}: {source}")]
    Os {
        /// The operation that was tried.
        what: &'static str,
        /// The address of the operation.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no descriptor left to watch the connection.
    #[error("no descriptor left: {0}")]
    Descriptors(io::Error),
    /// The private data does not fit, or the start-up failed.
    #[error(transparent)]
    Startup(#[from] StartupError),
}

/// The reason why a queue pair did not take a connection over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The start-up is not complete.
    #[error("the start-up is not complete: {0:?}")]
    NotAgreed(HandshakeState),
    /// The queue pair belongs to another device than the connection.
    #[error("queue pair {0} is of another device than the connection")]
    OtherDevice(vernic_wire::Qpn),
    /// The queue pair is destroyed, or its device is closed.
    #[error("queue pair {0} is destroyed")]
    Destroyed(vernic_wire::Qpn),
    /// The queue pair's state does not allow it, or the queue pair has a stream.
    #[error("queue pair {qpn}: {source}")]
    Refused {
        /// The queue pair.
        qpn: vernic_wire::Qpn,
        /// The reason.
        source: StreamRefusal,
    },
    /// The system cannot watch one more descriptor.
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

/// Sleeps until a descriptor is readable or the time is over.
fn sleep_on(fd: RawFd, timeout: Duration) -> io::Result<()> {
    let mut sleeper = Sleeper::new()?;
    sleeper.watch([fd]);
    sleeper.sleep(Some(timeout));
    Ok(())
}

/// The progress of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeState {
    /// TCP connects.
    Connecting,
    /// TCP could not connect.
    Unreachable(io::ErrorKind),
    /// MPA's start-up is under way, or over.
    Startup(StartupState),
}

impl HandshakeState {
    /// Whether nothing more happens without a call.
    pub fn is_settled(&self) -> bool {
        !matches!(
            self,
            Self::Connecting | Self::Startup(StartupState::Waiting | StartupState::Replying)
        )
    }
}

#[derive(Debug)]
enum Phase {
    /// TCP connects; holds the private data for the request.
    Connecting(Vec<u8>),
    Unreachable(io::ErrorKind),
    Startup(Startup),
}

/// The readiness set and key that report when a [`Handshake`] has something to do.
#[derive(Clone, Debug)]
pub struct Watch {
    readiness: Arc<Readiness>,
    key: u64,
}

impl Watch {
    /// Makes a watch with a descriptor of its own.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`].
    pub fn own() -> Result<Self, ConnectError> {
        let readiness = Readiness::new().map_err(ConnectError::Descriptors)?;
        Ok(Self { readiness: Arc::new(readiness), key: 0 })
    }

    /// Makes a watch at a shared readiness set, under `key`. A settled handshake leaves the set.
    pub fn shared(readiness: &Arc<Readiness>, key: u64) -> Self {
        Self { readiness: readiness.clone(), key }
    }
}

/// A connection that no queue pair has yet. Dropping the handshake closes the connection.
#[derive(Debug)]
pub struct Handshake {
    context: Arc<Context>,
    connection: Connection,
    watch: Watch,
    /// The watched readiness; `None` if the connection is not watched at all, so that not even its
    /// loss is reported.
    watched: Option<Interest>,
    phase: Phase,
    config: StartupConfig,
    /// Bytes received behind the peer's frame.
    rest: Vec<u8>,
}

impl Handshake {
    /// Begins to connect to a peer, from an address of this machine, with up to 512 bytes of
    /// private data (508 where depths or peer-to-peer are negotiated).
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

    /// Connects like [`connect`](Self::connect), but from a socket that has an address, and with
    /// the given watch.
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
        // Checks only the length; the time counts from when the connection is made.
        Startup::initiate(config, private, Time(0))?;
        let os = |source| ConnectError::Os { what: "connect to", addr: peer, source };
        let connection = socket.connect(&peer).map_err(os)?;
        Self::new(context, connection, Phase::Connecting(private.to_vec()), config, watch)
    }

    /// Waits for the request of a peer that has connected. The start-up uses the terms of `config`,
    /// unless the connection is accepted with others.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`]; [`ConnectError::NotAllowed`], and the
    /// connection is closed.
    pub fn respond(
        context: &Arc<Context>,
        connection: Connection,
        config: StartupConfig,
        watch: Watch,
    ) -> Result<Self, ConnectError> {
        check_device(context)?;
        // A connection that is gone again has no peer address.
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

    /// Returns a descriptor that is readable while [`poll`](Self::poll) has something to do.
    pub fn raw_fd(&self) -> RawFd {
        self.watch.readiness.raw_fd()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// Of the system: it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }

    /// Returns how far the connection has come.
    pub fn state(&self) -> HandshakeState {
        match &self.phase {
            Phase::Connecting(_) => HandshakeState::Connecting,
            Phase::Unreachable(kind) => HandshakeState::Unreachable(*kind),
            Phase::Startup(startup) => HandshakeState::Startup(startup.state()),
        }
    }

    /// Returns the agreed terms, once both ends have agreed.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.startup().and_then(Startup::agreed)
    }

    /// Returns the peer's private data, once its frame is here: 0 to 512 bytes.
    pub fn private(&self) -> &[u8] {
        self.startup().map_or(&[], Startup::private)
    }

    /// Returns the numbers of READs and atomics that the peer accepts, and wants to have in flight,
    /// once its frame is here. `None` if the peer does not say.
    pub fn peer_depths(&self) -> Option<(u32, u32)> {
        let enhanced = self.startup()?.peer_enhanced()?;
        Some((enhanced.ird.depth()?, enhanced.ord.depth()?))
    }

    /// Returns the longest time until [`poll`](Self::poll) must be called, whatever the descriptor
    /// says. After that, the peer's time is over.
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

    /// Continues as far as possible without waiting. Does nothing in a child of the process that
    /// made the handshake.
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
                    // The length was checked before.
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

    /// Polls like [`poll`](Self::poll), until the connection is
    /// [settled](HandshakeState::is_settled) or the time is over.
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

    /// Accepts the peer's request, with private data, under the terms of `config`. For a responder
    /// that was asked.
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

    /// Rejects the peer's request, with private data. For a responder that was asked.
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

    /// Returns the stream configuration that follows from the settings of the device.
    pub fn stream_config(&self) -> StreamConfig {
        stream_of(self.context.config())
    }

    /// Gives the connection to a queue pair in Init (or RTR, RTS), which is in RTS from then on.
    /// TCP's segment size replaces the one in `config`. Where both ends are on this host and there
    /// are no CRCs, FPDUs longer than a segment are sent, whatever `config` says.
    ///
    /// # Errors
    /// [`StartError`]; the connection is closed, and the peer is told the reason if both ends had
    /// agreed.
    pub fn start(self, qp: &Qp, config: StreamConfig) -> Result<(), StartError> {
        self.start_with(qp, config, None)
    }

    /// Starts like [`start`](Self::start), and reports to `sink` how the connection goes on. If
    /// this fails, `sink` gets nothing; otherwise it gets the end at some time, and is dropped
    /// after that.
    ///
    /// # Errors
    /// The same as of [`start`](Self::start).
    pub fn start_with(
        mut self,
        qp: &Qp,
        config: StreamConfig,
        sink: Option<Arc<dyn StreamSink>>,
    ) -> Result<(), StartError> {
        let terms = self.check_start(qp);
        if !self.context.is_orphan() {
            // The lane is about to watch the connection.
            self.watch_for(None);
        }
        let Self { context, connection, phase, rest, .. } = self;
        let (error, connection) = match terms {
            Err(error) => (error, Some(connection)),
            Ok((agreed, emss)) => {
                // Within a host, TCP crosses no network, and the other end is no adapter that takes
                // FPDUs in whole segments only. With CRCs, short FPDUs are faster, since they stay
                // in the first-level cache.
                let large_fpdus = config.large_fpdus || !agreed.crc && connection.is_within_host();
                let config = StreamConfig { emss, large_fpdus, ..config };
                let terms = StreamTerms { agreed: &agreed, config, sink };
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

    /// Returns the agreed terms and the size of segments, if this queue pair can take the
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

/// Gives a connection to the lane, or returns it with the error.
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
            // Destroying a queue pair and closing a device set their flags before they take the
            // lane.
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

/// Returns how the connection of a queue pair ended, or why it is about to. `None` without a
/// connection, and once the queue pair is reset. A [`StreamSink`] gets the same without asking.
pub fn ending(qp: &Qp) -> Option<Ending> {
    if qp.context().is_orphan() { None } else { lock(&qp.inner().core).machine.ending() }
}

/// Returns the default stream configuration.
pub fn default_stream() -> StreamConfig {
    stream_of(&Config::default())
}

/// Returns the stream configuration for these settings.
fn stream_of(config: &Config) -> StreamConfig {
    StreamConfig {
        recv_wait_ns: config.iwarp_recv_wait_us * 1000,
        // A peer may be stopped for any time while its host answers.
        stall_ns: 0,
        rtr_repeat_ns: RTR_REPEAT_NANOS,
        fence_ns: FENCE_NANOS,
        ..StreamConfig::default()
    }
}

/// Receives the bytes of the start-up, and keeps what came behind them in `rest`.
fn receive(connection: &Connection, startup: &mut Startup, rest: &mut Vec<u8>) {
    let mut buffer = [0; START_BYTES];
    // Bounded: a start-up takes one frame.
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

/// Sends the bytes of the start-up; true if the socket is full.
fn send(connection: &Connection, startup: &mut Startup) -> bool {
    // Bounded: there is one frame, or a Terminate.
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
