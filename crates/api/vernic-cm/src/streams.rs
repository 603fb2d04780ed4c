//! Connections of iWARP until a queue pair has them: listening sockets, and start-ups under way.
//!
//! Owns both, of all devices of the process, under one lock. Ids give commands; the keeper's thread
//! (`keeper.rs`) sees to what becomes ready ([`Streams::progress`], `streams/progress.rs`) and puts
//! what happens into the queues of the ids. Once a queue pair has a connection, the engine tells
//! its end ([`Notifier`]), under its own locks. Lock order: id, table, registry; the engine's lane,
//! registry.
//!
//! ```text
//!   active    Asking ---- reply ----> Replied   whoever takes the event gives it to the queue pair
//!   passive   Greeting -- request --> Asked     accepted: Answering, then the queue pair has it;
//!                                               rejected: Refusing
//! ```
//!
//! Limits: connections of a listener whose request is not here are at most [`MAX_GREETING`], and a
//! quarter of the descriptors that the process may have, beyond that the oldest of the address that
//! has most goes; so it does where no descriptor is left for another. Each has the time of its
//! start-up. Requests that the program has not taken are at most the listener's backlog.

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
use crate::keeper::Keeper;
use crate::key::{DeviceKey, IdKey};
use crate::param::Depths;
use crate::registry::{Registry, StreamEvent};
use crate::sync::lock;

mod due;
mod progress;

use due::Due;

/// Connections of a listener that have not said what they want; few in tests.
const MAX_GREETING: usize = if cfg!(test) { 4 } else { 1024 };

/// The part of a process's descriptors that connections of a listener may take which have not said
/// what they want.
const GREETING_SHARE: u64 = 4;

/// Private data of a request: 512 bytes (RFC 5044, 7.1.1), less what says depths and the first
/// message (RFC 6581, 9).
pub(crate) const MAX_PRIVATE_DATA: usize = 512 - 4;

/// Key of a listener among what is watched: above those of start-ups.
const LISTENER: u64 = 1 << 32;

/// What became of connections that peers have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupCounters {
    /// Taken from listening sockets.
    pub begun: u64,
    /// Their request came, and its listener had room for it.
    pub asked: u64,
    /// Ended before their request came: by the peer, for want of time, or since it was none.
    pub failed: u64,
    /// Ended for newer ones: 1024 of a listener had not asked yet, or there were no descriptors for
    /// both. They were the oldest of the address that had most.
    pub displaced: u64,
    /// Times that a connection could not be taken, since the process had no descriptor left: it
    /// waits in the listening socket, which is left alone for a moment.
    pub no_descriptor: u64,
    /// Refused: the listener's backlog was full.
    pub refused: u64,
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// We asked.
    Asking,
    /// The peer has accepted, and nobody has taken the event.
    Replied,
    /// A peer has connected to a listener, and its request is not here.
    Greeting { listener: u32, device: Arc<Device>, arrival: Arrival },
    /// The program has the request, or will take it.
    Asked,
    /// The acceptance is on its way; then the queue pair gets the connection.
    Answering { qp: Arc<Qp>, notifier: Arc<Notifier> },
    /// The refusal is on its way.
    Refusing,
}

/// Where a connection stands among those of a listener that have not said what they want: whose it
/// is, and the how-manieth.
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
    /// Those that are [`Stage::Greeting`].
    greeting: Shares<ConnId>,
    /// It is not watched until then: no descriptor was left for a connection that waits.
    paused: Option<Instant>,
}

#[derive(Debug, Default)]
struct Table {
    next: u32,
    listeners: HashMap<u32, Listening>,
    startups: HashMap<ConnId, Startup>,
    /// When they want to be looked at, whatever their sockets say.
    due: Due,
    counters: StartupCounters,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Streams {
    registry: Arc<Registry>,
    keeper: Arc<Keeper>,
    /// What every start-up begins with.
    startup: StartupConfig,
    readiness: OnceLock<Arc<Readiness>>,
    table: Mutex<Table>,
}

/// What an id asks for.
pub(crate) struct Ask<'a> {
    pub(crate) id: IdKey,
    pub(crate) device: &'a Device,
    /// Where it connects from.
    pub(crate) socket: Bound,
    pub(crate) peer: SocketAddr,
    pub(crate) depths: Depths,
    pub(crate) private_data: &'a [u8],
}

/// Who hears of a connection that a queue pair has.
#[derive(Debug)]
struct Notifier {
    registry: Arc<Registry>,
    device: DeviceKey,
    conn: ConnId,
    /// The passive side is told that it may send, the active side knows.
    established: AtomicBool,
    /// That is when the initiator's first message is here.
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
            // It was there before, even if nobody came to say so.
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

    /// Takes a start-up out.
    fn remove(&mut self, conn: ConnId) -> Option<Startup> {
        self.due.set(conn, None);
        self.startups.remove(&conn)
    }

    /// The time of a start-up may be another one now.
    fn arm(&mut self, conn: ConnId) {
        let patience = self.startups.get(&conn).and_then(|startup| startup.handshake.patience());
        self.due.set(conn, patience.map(|patience| Instant::now() + patience));
    }

    /// A number that no start-up has. Connections that queue pairs have keep theirs as ids remember
    /// it: after 2^32 others nobody does.
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
    pub(crate) fn new(registry: Arc<Registry>, keeper: Arc<Keeper>, config: &Config) -> Self {
        let startup = StartupConfig {
            crc: config.iwarp_crc,
            reply_ns: u64::from(config.iwarp_reply_timeout_s) * 1_000_000_000,
            ..StartupConfig::default()
        };
        let (readiness, table) = Default::default();
        Self { registry, keeper, startup, readiness, table }
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
        // Callers have one lock around it.
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

    /// Asks a peer for a connection, with [`MAX_PRIVATE_DATA`] at most. What comes of it is told to
    /// the id, also if nobody listens there.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::Os`].
    pub(crate) fn connect(&self, ask: Ask<'_>) -> Result<ConnId, Error> {
        let Ask { id, device, socket, peer, depths, private_data } = ask;
        // Either side of an application may send first: the initiator says that it is ready, by a
        // READ, whose answer tells when the responder is (siw would choose the WRITE if it could).
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
            // At once, as on the loopback.
            Err(ConnectError::Os { source, .. }) => {
                self.registry.bind_conn(id, key, conn);
                self.registry.push_stream(key, conn, progress::unreachable(source.kind()));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(conn)
    }

    /// Takes the connection to a peer that has accepted, whose event was taken, and gives it to the
    /// queue pair. Returns what the peer says.
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
    /// [`Error::TooLong`], and then the request waits on; [`Error::Stream`].
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
                // For the peer's time to take it.
                self.keeper.wake();
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

    /// Gives a connection that was accepted to the queue pair.
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
    /// As of [`accept`](Self::accept).
    pub(crate) fn reject(&self, conn: ConnId, private_data: &[u8]) -> Result<(), Error> {
        let mut table = lock(&self.table);
        let startup = asked(&mut table, conn)?;
        let rejected = startup.handshake.reject(private_data);
        rejected.map_err(|error| refused("reject", private_data, error))?;
        match startup.handshake.state() {
            HandshakeState::Startup(StartupState::Replying) => {
                startup.stage = Stage::Refusing;
                table.arm(conn);
                self.keeper.wake();
            }
            _ => drop(table.remove(conn)),
        }
        Ok(())
    }

    /// Ends a connection that no queue pair has: a request is rejected, and a peer that has
    /// accepted is left in order.
    pub(crate) fn destroy(&self, conn: ConnId) {
        if self.reject(conn, &[]).is_err() {
            let startup = lock(&self.table).remove(conn);
            if let Some(startup) = startup {
                startup.handshake.leave();
            }
        }
    }

    /// As [`destroy`](Self::destroy), at the wish of its owner, who goes on: where the peer's
    /// answer was still to come, or this side's was on its way, it hears that nothing comes of it,
    /// which nobody else would tell.
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
    /// The socket, as it was, and [`Error::Os`].
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

    /// Listens no more, and ends what has not become a request.
    pub(crate) fn stop_listening(&self, number: u32) {
        let mut table = lock(&self.table);
        let listening = table.listeners.remove(&number);
        let greeting = listening.iter().flat_map(|listening| listening.greeting.entries());
        let gone: Vec<_> = greeting.map(|conn| table.remove(conn)).collect();
        drop(table);
        drop((listening, gone));
    }
}

/// A request that waits for an answer.
fn asked(table: &mut Table, conn: ConnId) -> Result<&mut Startup, Error> {
    let startup = table.startups.get_mut(&conn);
    let startup = startup.filter(|startup| matches!(startup.stage, Stage::Asked));
    startup.ok_or_else(|| Error::Stream(StreamError::Gone(String::new())))
}

/// The refusal of a call, in its words.
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

/// A depth as programs are told it.
fn in_byte(depth: u32) -> u8 {
    depth.min(u8::MAX.into()) as u8
}
