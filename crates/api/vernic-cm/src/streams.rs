//! iWARP connections before they belong to a queue pair: listening sockets, and start-ups.
//!
//! Owns both, for all devices of the process, under one lock. Ids call; the worker's thread
//! (`worker.rs`) handles what becomes ready ([`Streams::progress`], `streams/progress.rs`) and
//! queues events for the ids. Once a queue pair has a connection, the engine reports its end
//! ([`Notifier`]), under its own locks. Lock order: id, table, registry; the engine's lane,
//! registry.
//!
//! ```text
//!   active    Asking ---- reply ----> Replied   the call that takes the event starts the stream
//!   passive   Greeting -- request --> Asked     accepted: Answering, then the queue pair has it;
//!                                               rejected: Refusing
//! ```
//!
//! Limits: [`MAX_GREETING`] connections of a listener without a request, and at most a quarter of
//! the descriptors that the process may have. Beyond that, or without a free descriptor, the oldest
//! connection of the address that has most is closed. Each start-up has a time limit. Untaken
//! requests are limited by the listener's backlog.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use vernic_engine::iwarp::{
    ConnectError, Ending, Handshake, HandshakeState, RtrSet, StartupConfig, StartupError,
    StartupState, StreamSink, Watch,
};
use vernic_engine::{Config, Qp, Qpn};
use vernic_io::tcp::{Bound, Listener, Readiness};
use vernic_proto::cm::ConnId;
use vernic_proto::{Shares, Source};
use vernic_wire::cm::CommId;

use crate::device::Device;
use crate::error::{Error, StreamError};
use crate::event::{ConnInfo, EventKind};
use crate::key::{DeviceKey, IdKey};
use crate::param::Depths;
use crate::registry::{Registry, StreamEvent};
use crate::sync::lock;
use crate::worker::Worker;

mod due;
mod progress;

use due::Due;

/// Most connections of a listener that have not sent a request; few in tests.
const MAX_GREETING: usize = if cfg!(test) { 4 } else { 1024 };

/// The part of the process's descriptors that connections of a listener without a request may use.
const GREETING_SHARE: u64 = 4;

/// Most private data of a request: 512 bytes (RFC 5044, 7.1.1), less the depths and the kind of the
/// first message (RFC 6581, 9).
pub(crate) const MAX_PRIVATE_DATA: usize = 512 - 4;

/// The lowest readiness key of a listener: above the keys of start-ups.
const LISTENER: u64 = 1 << 32;

/// Counters of connections that peers have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupCounters {
    /// Connections accepted from listening sockets.
    pub begun: u64,
    /// Connections whose request came, and whose listener had room for it.
    pub asked: u64,
    /// Connections that ended before their request came: by the peer, by timeout, or by an invalid
    /// request.
    pub failed: u64,
    /// Connections closed to make room for newer ones: 1024 of a listener had sent no request, or
    /// there were no descriptors for both. They were the oldest of the address that had most.
    pub displaced: u64,
    /// How often a connection could not be accepted because the process had no descriptor left. The
    /// connection waits in the listening socket, which is paused for a moment.
    pub no_descriptor: u64,
    /// Connections refused because the listener's backlog was full.
    pub refused: u64,
}

/// The stage of a start-up.
#[derive(Debug)]
enum Stage {
    /// The request is on its way to the peer.
    Asking,
    /// The peer has accepted, and the event waits to be taken.
    Replied,
    /// A peer has connected to a listener, and has sent no request yet.
    Greeting { listener: u32, device: Arc<Device>, arrival: Arrival },
    /// The request waits to be taken, or was taken.
    Asked,
    /// The acceptance is being sent; after that, the queue pair gets the connection.
    Answering { qp: Arc<Qp>, notifier: Arc<Notifier> },
    /// The rejection is being sent.
    Refusing,
}

/// The position of a connection among those of a listener without a request: the peer's address,
/// and a number that grows with each connection.
type Arrival = (Source, u64);

#[derive(Debug)]
struct Startup {
    handshake: Handshake,
    device: DeviceKey,
    stage: Stage,
}

#[derive(Debug)]
struct Listening {
    socket: Arc<Listener>,
    id: IdKey,
    port: u16,
    backlog: usize,
    /// Connections in [`Stage::Greeting`].
    greeting: Shares<ConnId>,
    /// When the socket is watched again; it is paused while a connection waits and no descriptor is
    /// left.
    paused: Option<Instant>,
}

#[derive(Debug, Default)]
struct Table {
    next: u32,
    listeners: HashMap<u32, Listening>,
    startups: HashMap<ConnId, Startup>,
    /// When start-ups must be polled, whatever their sockets report.
    due: Due,
    counters: StartupCounters,
}

/// The listening sockets and start-ups of a process.
#[derive(Debug)]
pub(crate) struct Streams {
    registry: Arc<Registry>,
    worker: Arc<Worker>,
    /// The settings of every start-up.
    startup: StartupConfig,
    readiness: OnceLock<Arc<Readiness>>,
    table: Mutex<Table>,
}

/// What an id asks a peer for.
pub(crate) struct ConnectRequest<'a> {
    pub(crate) id: IdKey,
    pub(crate) device: &'a Device,
    /// The socket to connect from.
    pub(crate) socket: Bound,
    pub(crate) peer: SocketAddr,
    pub(crate) depths: Depths,
    pub(crate) private_data: &'a [u8],
}

/// Reports the events of a connection that a queue pair has.
#[derive(Debug)]
struct Notifier {
    registry: Arc<Registry>,
    device: DeviceKey,
    conn: ConnId,
    /// Whether `Established` was reported: to the passive side; the active side knows.
    established: AtomicBool,
    /// Whether that waits for the initiator's first message.
    waits: bool,
}

impl Notifier {
    fn establish(&self) {
        if !self.established.swap(true, Ordering::AcqRel) {
            self.registry.push_stream(self.device, self.conn, StreamEvent::Established);
        }
    }
}

impl StreamSink for Notifier {
    fn established(&self, _: Qpn) {
        self.establish();
    }

    fn ended(&self, qpn: Qpn, ending: Ending) {
        tracing::debug!(%qpn, %ending, "iWARP connection over");
        if !self.waits {
            // The connection was established, even if no report came.
            self.establish();
        }
        self.registry.push_stream(self.device, self.conn, StreamEvent::Ended);
    }
}

impl Table {
    /// Adds a start-up.
    fn insert(&mut self, conn: ConnId, startup: Startup) {
        self.startups.insert(conn, startup);
        self.arm(conn);
    }

    /// Removes a start-up.
    fn remove(&mut self, conn: ConnId) -> Option<Startup> {
        self.due.set(conn, None);
        self.startups.remove(&conn)
    }

    /// Sets the timer of a start-up anew.
    fn arm(&mut self, conn: ConnId) {
        let patience = self.startups.get(&conn).and_then(|startup| startup.handshake.patience());
        self.due.set(conn, patience.map(|patience| Instant::now() + patience));
    }

    /// A number that no start-up has. A connection of a queue pair keeps its number, as its id
    /// remembers it, until 2^32 others have come.
    fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            let conn = ConnId(CommId(self.next), 0);
            let taken =
                self.startups.contains_key(&conn) || self.listeners.contains_key(&self.next);
            if self.next != 0 && !taken {
                return self.next;
            }
        }
    }
}

impl Streams {
    pub(crate) fn new(registry: Arc<Registry>, worker: Arc<Worker>, config: &Config) -> Self {
        let startup = StartupConfig {
            crc: config.iwarp_crc,
            reply_ns: u64::from(config.iwarp_reply_timeout_s) * 1_000_000_000,
            ..StartupConfig::default()
        };
        let (readiness, table) = Default::default();
        Self { registry, worker, startup, readiness, table }
    }

    /// Makes the descriptor that is readable while [`progress`](Self::progress) has something to
    /// do.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn open(&self) -> Result<RawFd, Error> {
        if let Some(readiness) = self.readiness.get() {
            return Ok(readiness.raw_fd());
        }
        let os = |source| Error::Os { what: "make an epoll descriptor for connections", source };
        let readiness = Arc::new(Readiness::new().map_err(os)?);
        // Of two threads that come here at once, one makes the descriptor that both return.
        Ok(self.readiness.get_or_init(|| readiness).raw_fd())
    }

    fn readiness(&self) -> Result<&Arc<Readiness>, Error> {
        let source = || io::Error::from(io::ErrorKind::NotConnected);
        let what = "watch connections before the manager's thread runs";
        self.readiness.get().ok_or_else(|| Error::Os { what, source: source() })
    }

    pub(crate) fn counters(&self) -> StartupCounters {
        lock(&self.table).counters
    }

    fn config(&self, depths: Depths) -> StartupConfig {
        StartupConfig { ird: depths.ird.into(), ord: depths.ord.into(), ..self.startup }
    }

    /// Asks a peer for a connection, with at most [`MAX_PRIVATE_DATA`]. The outcome is an event of
    /// the id, also if nothing listens there.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::Os`].
    pub(crate) fn connect(&self, ask: ConnectRequest<'_>) -> Result<ConnId, Error> {
        let ConnectRequest { id, device, socket, peer, depths, private_data } = ask;
        // Either side of an application may send first. The initiator shows that it is ready by a
        // READ, whose answer shows that the responder is ready. (siw would choose the WRITE if it
        // could.)
        let rtr = RtrSet::READ;
        let config = StartupConfig { rtr, ..self.config(depths) };
        let readiness = self.readiness()?;
        let key = device.key();
        let mut table = lock(&self.table);
        let conn = ConnId(CommId(table.number()), 0);
        let watch = Watch::shared(readiness, conn.0.value().into());
        let context = &device.context;
        match Handshake::connect_from(context, socket, peer, config, private_data, watch) {
            Ok(handshake) => {
                self.registry.bind_conn(id, key, conn);
                let startup = Startup { handshake, device: key, stage: Stage::Asking };
                table.insert(conn, startup);
            }
            // On the loopback, the failure comes at once.
            Err(ConnectError::Os { source, .. }) => {
                self.registry.bind_conn(id, key, conn);
                self.registry.push_stream(key, conn, progress::unreachable(source.kind()));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(conn)
    }

    /// Gives the connection to a peer that has accepted to the queue pair, after the event was
    /// taken. Returns the peer's side of the connection.
    ///
    /// # Errors
    /// [`Error::Stream`].
    pub(crate) fn start(&self, conn: ConnId, qp: &Qp) -> Result<ConnInfo, Error> {
        let startup = lock(&self.table).remove(conn);
        let Some(Startup { handshake, device, stage: Stage::Replied }) = startup else {
            return Err(Error::Stream(StreamError::Gone(String::new())));
        };
        let agreed = handshake.agreed().copied();
        let info = ConnInfo {
            private_data: handshake.private().to_vec(),
            responder_resources: agreed.map_or(0, |agreed| in_byte(agreed.ird)),
            initiator_depth: agreed.map_or(0, |agreed| in_byte(agreed.ord)),
            ..ConnInfo::default()
        };
        let notifier = self.notifier(device, conn, &handshake);
        notifier.established.store(true, Ordering::Relaxed);
        let config = handshake.stream_config();
        handshake.start_with(qp, config, Some(notifier))?;
        Ok(info)
    }

    fn notifier(&self, device: DeviceKey, conn: ConnId, handshake: &Handshake) -> Arc<Notifier> {
        let waits = handshake.agreed().is_some_and(|agreed| !agreed.rtr.is_empty());
        let (registry, established) = (self.registry.clone(), AtomicBool::new(false));
        Arc::new(Notifier { registry, device, conn, established, waits })
    }

    /// Accepts the request of a peer, with a queue pair in Init.
    ///
    /// # Errors
    /// [`Error::TooLong`], after which the request still waits; [`Error::Stream`].
    pub(crate) fn accept(
        &self,
        conn: ConnId,
        depths: Depths,
        private_data: &[u8],
        qp: &Arc<Qp>,
    ) -> Result<(), Error> {
        let config = self.config(depths);
        let mut table = lock(&self.table);
        let startup = asked(&mut table, conn)?;
        let accepted = startup.handshake.accept(&config, private_data);
        accepted.map_err(|error| refused("accept", private_data, error))?;
        match startup.handshake.state() {
            HandshakeState::Startup(StartupState::Replying) => {
                let notifier = self.notifier(startup.device, conn, &startup.handshake);
                startup.stage = Stage::Answering { qp: qp.clone(), notifier };
                table.arm(conn);
                // The worker must learn the time limit of the peer.
                self.worker.wake();
                return Ok(());
            }
            HandshakeState::Startup(StartupState::Agreed) => {}
            state => {
                table.remove(conn);
                return Err(Error::Stream(StreamError::Gone(format!(": {}", in_words(&state)))));
            }
        }
        let startup = table.remove(conn);
        drop(table);
        let Some(Startup { handshake, device, .. }) = startup else { return Ok(()) };
        let notifier = self.notifier(device, conn, &handshake);
        self.bind(handshake, qp, notifier)
    }

    /// Gives an accepted connection to the queue pair.
    fn bind(&self, handshake: Handshake, qp: &Qp, notifier: Arc<Notifier>) -> Result<(), Error> {
        let config = handshake.stream_config();
        handshake.start_with(qp, config, Some(notifier.clone()))?;
        if !notifier.waits {
            notifier.establish();
        }
        Ok(())
    }

    /// Rejects the request of a peer.
    ///
    /// # Errors
    /// As those of [`accept`](Self::accept).
    pub(crate) fn reject(&self, conn: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let mut table = lock(&self.table);
        let startup = asked(&mut table, conn)?;
        let rejected = startup.handshake.reject(private_data);
        rejected.map_err(|error| refused("reject", private_data, error))?;
        match startup.handshake.state() {
            HandshakeState::Startup(StartupState::Replying) => {
                startup.stage = Stage::Refusing;
                table.arm(conn);
                self.worker.wake();
            }
            _ => drop(table.remove(conn)),
        }
        Ok(())
    }

    /// Ends a connection that no queue pair has: rejects a request, and closes an accepted
    /// connection in order.
    pub(crate) fn destroy(&self, conn: ConnId) {
        if self.reject(conn, &[]).is_err() {
            let startup = lock(&self.table).remove(conn);
            if let Some(startup) = startup {
                startup.handshake.leave();
            }
        }
    }

    /// Ends a connection as [`destroy`](Self::destroy) does, for an id that lives on. If the peer's
    /// answer was still to come, or this side's was being sent, the id gets an event that the
    /// connection failed, because nothing else would report it.
    pub(crate) fn disconnect(&self, conn: ConnId) {
        let mut table = lock(&self.table);
        let startup = match table.startups.get(&conn).map(|startup| &startup.stage) {
            Some(Stage::Asking | Stage::Answering { .. }) => table.remove(conn),
            _ => None,
        };
        drop(table);
        let Some(Startup { handshake, device, .. }) = startup else { return self.destroy(conn) };
        handshake.leave();
        let (kind, status) = (EventKind::ConnectError, -libc::ECONNABORTED);
        let event = StreamEvent::Failed { kind, status, private_data: Vec::new() };
        self.registry.push_stream(device, conn, event);
    }

    /// Listens for an id.
    ///
    /// # Errors
    /// [`Error::Os`], with the socket as it was.
    pub(crate) fn listen(
        &self,
        id: IdKey,
        socket: Bound,
        port: u16,
        backlog: usize,
    ) -> Result<u32, (Option<Bound>, Error)> {
        let readiness = self.readiness().map_err(|error| (None, error))?;
        let os = |source| Error::Os { what: "listen", source };
        let socket = socket.listen().map_err(|(socket, error)| (Some(socket), os(error)))?;
        let mut table = lock(&self.table);
        let number = table.number();
        let watched = readiness.watch_listener(&socket, LISTENER | u64::from(number));
        watched.map_err(|error| (None, os(error)))?;
        let (socket, greeting) = (Arc::new(socket), Shares::default());
        let paused = None;
        let listening = Listening { socket, id, port, backlog, greeting, paused };
        table.listeners.insert(number, listening);
        Ok(number)
    }

    /// Stops listening, and closes the connections without a request.
    pub(crate) fn stop_listening(&self, number: u32) {
        let mut table = lock(&self.table);
        let listening = table.listeners.remove(&number);
        let greeting = listening.iter().flat_map(|listening| listening.greeting.entries());
        let gone: Vec<_> = greeting.map(|conn| table.remove(conn)).collect();
        drop(table);
        drop((listening, gone));
    }
}

/// The start-up of a request that waits for an answer.
fn asked(table: &mut Table, conn: ConnId) -> Result<&mut Startup, Error> {
    let startup = table.startups.get_mut(&conn);
    let startup = startup.filter(|startup| matches!(startup.stage, Stage::Asked));
    startup.ok_or_else(|| Error::Stream(StreamError::Gone(String::new())))
}

/// The error of a refused call.
fn refused(call: &'static str, private_data: &[u8], error: StartupError) -> Error {
    match error {
        StartupError::PrivateTooLong { limit, .. } => {
            let (given, kind) = (private_data.len(), "a connection");
            Error::TooLong { call, kind, given, max: limit }
        }
        error => ConnectError::Startup(error).into(),
    }
}

fn in_words(state: &HandshakeState) -> String {
    match state {
        HandshakeState::Unreachable(kind) => kind.to_string(),
        HandshakeState::Startup(StartupState::Failed(error)) => error.to_string(),
        state => format!("{state:?}"),
    }
}

/// A depth as events carry it.
fn in_byte(depth: u32) -> u8 {
    depth.min(u8::MAX.into()) as u8
}
