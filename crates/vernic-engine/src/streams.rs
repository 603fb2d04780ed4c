//! The lane's part of iWARP: connections, and the machines that they belong to.
//!
//! Owns the connections of queue pairs, each from [`Lane::bind_stream`] until both ends have closed, the
//! connection is lost, or the queue pair is reset or destroyed; and tells whoever made a connection how it
//! ends ([`StreamSink`]). Called by the lane: bytes in
//! ([`Lane::receive_streams`]), FPDUs out ([`Lane::transmit_streams`]). Runs under the lane's lock, and
//! takes a queue pair's core after it, as packets do.
//!
//! ```text
//!   socket -> buffer -> iwarp::Qp::handle_bytes      what is left over waits in Conn::rest
//!   iwarp::Qp::poll_transmit -> buffer -> socket     what the socket does not take, in Conn::out
//! ```
//!
//! Limits: a turn receives and sends [`TURN_BYTES`] of one connection; the rest waits for the next
//! round. A connection whose message waits for a receive is not read, and is tried again each round.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vernic_io::tcp::{Connection, Interest, Readiness, Ready, Received, Sent};
use vernic_proto::iwarp::{
    self, Agreed, Ending, MAX_FPDU, RxNext, Shutdown, StartError, StreamConfig, StreamEnd,
};
use vernic_proto::{QpState, Time};
use vernic_wire::Qpn;

use crate::events::lock;
use crate::host::QpHost;
use crate::lane::{Lane, make_ready};
use crate::progress::Engine;
use crate::qp_state::{QpCore, QpInner};

/// Bytes of the buffers that all connections use in turn: four of the longest FPDUs.
const BUFFER_BYTES: usize = 4 * MAX_FPDU;

/// Bytes of one connection and direction in a turn.
const TURN_BYTES: usize = BUFFER_BYTES;

/// How soon the background thread tries again to deliver a message that waits for a receive,
/// nanoseconds: applications that poll do so themselves.
pub(crate) const HELD_NANOS: u64 = 1_000_000;

/// Where the news of a connection go.
///
/// Called under locks of the engine, on any thread: it may take note and wake somebody, but must not call
/// the engine or wait.
pub trait StreamSink: Send + Sync {
    /// Both ends may send: the initiator from the start, the responder once the initiator's first message
    /// is here. Told once, or never.
    fn established(&self, qpn: Qpn) {
        let _ = qpn;
    }
    /// The connection is over, or about to be: the queue pair leaves RTS by itself, finishes what it can
    /// and enters Error, where what is left is flushed. Told exactly once, whatever ends it.
    fn ended(&self, qpn: Qpn, ending: Ending);
}

/// Who is told of a connection, and of what it was not told yet.
struct Told {
    qpn: Qpn,
    /// Gone with the last news.
    sink: Option<Arc<dyn StreamSink>>,
    established: bool,
}

impl Told {
    /// Tells what is news.
    fn look(&mut self, machine: &iwarp::Qp) {
        let Some(sink) = &self.sink else { return };
        if !self.established && machine.is_established() {
            self.established = true;
            sink.established(self.qpn);
        }
        if let Some(ending) = machine.ending() {
            self.end(ending);
        }
    }

    fn end(&mut self, ending: Ending) {
        if let Some(sink) = self.sink.take() {
            sink.ended(self.qpn, ending);
        }
    }
}

/// A connection of a queue pair.
struct Conn {
    connection: Connection,
    qp: Arc<QpInner>,
    told: Told,
    /// Received and not consumed: the beginning of an FPDU, or what waits for a receive.
    rest: Vec<u8>,
    /// Made and not taken by the socket.
    out: Vec<u8>,
    /// Bytes that the socket has taken.
    sent: u64,
    /// What it is watched for.
    watched: Interest,
    /// Nothing more comes.
    ended: bool,
    /// A message waits for a receive.
    held: bool,
    /// What is to be done when `out` is empty.
    shutdown: Option<Shutdown>,
}

/// The connections of a device.
pub(crate) struct Streams {
    readiness: Readiness,
    connections: HashMap<u32, Conn>,
    /// Those with a message that waits for a receive.
    held: Vec<u32>,
    buffer: Box<[u8]>,
    ready: Vec<Ready>,
}

/// Runs `call` with the machine of a stream and its host.
fn with_stream<T>(
    engine: &Engine,
    qp: &QpInner,
    now: Time,
    core: &mut QpCore,
    call: impl FnOnce(&mut iwarp::Qp, &mut QpHost<'_>) -> T,
) -> Option<T> {
    qp.with_host(engine, now, core, |machine, host| {
        machine.stream().map(|machine| call(machine, host))
    })
}

/// How the machine is told of a lost connection.
fn end_of(error: &io::Error) -> StreamEnd {
    match error.kind() {
        io::ErrorKind::TimedOut => StreamEnd::TimedOut,
        _ => StreamEnd::Reset,
    }
}

impl Streams {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            readiness: Readiness::new()?,
            connections: HashMap::new(),
            held: Vec::new(),
            buffer: vec![0; BUFFER_BYTES].into(),
            ready: Vec::new(),
        })
    }

    /// The descriptor that is readable while a connection is ready.
    pub(crate) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.readiness.raw_fd()
    }

    /// Whether a message waits for a receive.
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes all connections out: the device is closed. What is posted from now on is flushed.
    pub(crate) fn close(&mut self) -> Vec<Connection> {
        self.held.clear();
        let connections = std::mem::take(&mut self.connections);
        connections.into_values().map(Conn::end).collect()
    }

    /// Takes a connection out: its queue pair is destroyed.
    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Connection> {
        let conn = self.connections.remove(&qpn.value())?;
        let is_sent = conn.out.is_empty();
        let connection = conn.end();
        if is_sent {
            // What the socket has taken still arrives.
            return Some(connection);
        }
        connection.reset();
        None
    }

    /// Receives a turn's bytes, or hears that the connection is `broken`.
    fn receive(
        &mut self,
        engine: &Engine,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        broken: bool,
    ) {
        let Some(conn) = self.connections.get_mut(&qp.qpn.value()) else { return };
        if conn.ended || conn.held && !conn.retry(engine, qp, core, now) {
            // Nobody reads it, so nobody else would notice.
            if broken {
                conn.ended = true;
                with_stream(engine, qp, now, core, |machine, host| {
                    machine.handle_end(now, StreamEnd::Reset, 0, host);
                });
            }
            return;
        }
        let mut left = TURN_BYTES;
        while left > 0 && !conn.held {
            let rest = conn.rest.len();
            self.buffer[..rest].copy_from_slice(&conn.rest);
            let room = self.buffer.len() - rest;
            let end = match conn.connection.recv(&mut self.buffer[rest..]) {
                Received::Bytes(len) => {
                    conn.pass(engine, qp, core, now, &self.buffer[..rest + len]);
                    if len < room {
                        return;
                    }
                    left = left.saturating_sub(len);
                    continue;
                }
                Received::Nothing => return,
                Received::End => StreamEnd::Closed,
                Received::Lost(error) => end_of(&error),
            };
            conn.ended = true;
            with_stream(engine, qp, now, core, |machine, host| {
                machine.handle_end(now, end, rest, host);
                // The peer is done, so this end has nothing to stay for.
                if machine.state() == QpState::Rts {
                    machine.close(now, host);
                }
            });
            return;
        }
    }

    /// Sends a turn's bytes; true if there are more.
    fn transmit(&mut self, engine: &Engine, qp: &QpInner, core: &mut QpCore, now: Time) -> bool {
        let Some(conn) = self.connections.get_mut(&qp.qpn.value()) else {
            // Without a connection nothing is sent, and in Error what is posted is flushed.
            with_stream(engine, qp, now, core, |machine, host| {
                machine.poll_transmit(now, host, &mut self.buffer)
            });
            return false;
        };
        let out = std::mem::take(&mut conn.out);
        if !conn.send(engine, qp, core, now, &out) {
            return false;
        }
        let buffer = &mut self.buffer;
        let made = with_stream(engine, qp, now, core, |machine, host| {
            machine.begin_batch();
            let mut len = 0;
            while buffer.len() - len >= MAX_FPDU
                && let Some(one) = machine.poll_transmit(now, host, &mut buffer[len..])
            {
                len += one;
            }
            len
        });
        let made = made.unwrap_or(0);
        let taken = conn.send(engine, qp, core, now, &self.buffer[..made]);
        made != 0 && taken && core.machine.wants_transmit()
    }

    /// Does what the machine wants done with the connection, and watches it for what is due.
    fn settle(&mut self, qp: &QpInner, core: &mut QpCore) {
        let key = qp.qpn.value();
        let Some(conn) = self.connections.get_mut(&key) else { return };
        if let Some(machine) = core.machine.stream() {
            conn.told.look(machine);
            conn.shutdown = machine.poll_shutdown().or(conn.shutdown);
        }
        match conn.shutdown {
            Some(Shutdown::Reset) => {
                if let Some(conn) = self.connections.remove(&key) {
                    conn.end().reset();
                }
                return;
            }
            Some(Shutdown::Close) if conn.out.is_empty() => {
                self.connections.remove(&key).map(Conn::end);
                return;
            }
            Some(Shutdown::Write) if conn.out.is_empty() => {
                conn.shutdown = None;
                conn.connection.shutdown();
            }
            _ => {}
        }
        if conn.held && !self.held.contains(&key) {
            self.held.push(key);
        }
        let wants = Interest { receive: !conn.ended && !conn.held, send: !conn.out.is_empty() };
        if wants != conn.watched {
            // It fails for no connection that is watched.
            let _ = self.readiness.change(&conn.connection, u64::from(key), wants);
            conn.watched = wants;
        }
    }
}

impl Conn {
    /// Its owner has heard how it ended, at the latest now: this end lets go of it.
    fn end(mut self) -> Connection {
        self.told.end(Ending::Closed);
        self.connection
    }

    /// Passes bytes to the machine; what it does not take waits.
    fn pass(
        &mut self,
        engine: &Engine,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        bytes: &[u8],
    ) -> usize {
        let taken = with_stream(engine, qp, now, core, |machine, host| {
            let mut taken = 0;
            // Bounded: each round consumes something.
            loop {
                match machine.handle_bytes(now, &bytes[taken..], host) {
                    0 => break,
                    more => taken += more,
                }
                if taken == bytes.len() {
                    break;
                }
            }
            self.held = machine.rx_next() == RxNext::Hold;
            taken
        });
        let taken = taken.unwrap_or(bytes.len());
        self.rest.clear();
        self.rest.extend_from_slice(&bytes[taken..]);
        taken
    }

    /// A receive may have been posted meanwhile; true if nothing waits any more.
    fn retry(&mut self, engine: &Engine, qp: &QpInner, core: &mut QpCore, now: Time) -> bool {
        let rest = std::mem::take(&mut self.rest);
        self.pass(engine, qp, core, now, &rest);
        !self.held
    }

    /// Sends bytes behind those that were sent before; true if all were taken.
    fn send(
        &mut self,
        engine: &Engine,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        bytes: &[u8],
    ) -> bool {
        let mut done = 0;
        let mut lost = None;
        while done < bytes.len() {
            match self.connection.send(&bytes[done..]) {
                Sent::Bytes(len) => done += len,
                Sent::Full => break,
                Sent::Lost(error) => {
                    lost = Some(end_of(&error));
                    break;
                }
            }
        }
        self.sent += done as u64;
        let total = self.sent;
        with_stream(engine, qp, now, core, |machine, host| {
            machine.handle_sent(now, total, host);
            if let Some(end) = lost {
                machine.handle_end(now, end, 0, host);
            }
        });
        if lost.is_none() {
            self.out.extend_from_slice(&bytes[done..]);
        }
        lost.is_none() && done == bytes.len()
    }
}

/// How a connection is to be used, and who wants to know of it.
pub(crate) struct StreamTerms<'a> {
    pub(crate) agreed: &'a Agreed,
    pub(crate) config: StreamConfig,
    pub(crate) sink: Option<Arc<dyn StreamSink>>,
}

impl Lane {
    /// Binds a connection whose start-up is complete to a queue pair; `rest` is what was received behind
    /// the start-up.
    pub(crate) fn bind_stream(
        &mut self,
        engine: &Engine,
        qp: &Arc<QpInner>,
        connection: Connection,
        terms: StreamTerms<'_>,
        rest: &[u8],
    ) -> Result<(), (BindStreamError, Option<Connection>)> {
        let now = engine.now();
        let key = qp.qpn.value();
        let watched = Interest { receive: true, send: false };
        let mut core = lock(&qp.core);
        let (Some(streams), Some(machine)) = (&mut self.streams, core.machine.stream()) else {
            return Err((BindStreamError::Gone, Some(connection)));
        };
        if let Err(error) = machine.start(terms.agreed, terms.config) {
            return Err((BindStreamError::Start(error), Some(connection)));
        }
        // One that it had before it was reset, if the lane has not seen to that yet.
        let _ = machine.poll_shutdown();
        if let Some(old) = streams.connections.remove(&key) {
            old.end().reset();
        }
        let conn = Conn {
            connection,
            qp: qp.clone(),
            told: Told { qpn: qp.qpn, sink: terms.sink, established: false },
            rest: Vec::new(),
            out: Vec::new(),
            sent: 0,
            watched,
            ended: false,
            held: false,
            shutdown: None,
        };
        let conn = streams.connections.entry(key).insert_entry(conn).into_mut();
        let result = streams.readiness.watch(&conn.connection, u64::from(key), watched);
        conn.pass(engine, qp, &mut core, now, rest);
        if result.is_err() {
            // Nobody would ever read it; and who made it is told here.
            conn.told.sink = None;
            with_stream(engine, qp, now, &mut core, |machine, host| {
                machine.handle_end(now, StreamEnd::Reset, 0, host);
            });
        }
        self.end_stream_turn(engine, qp, &mut core, true);
        drop(core);
        self.transmit_streams(engine, now);
        result.map_err(|error| (BindStreamError::Os(error), None))
    }

    /// Receives from connections that are ready, and tries again what waits for receives; returns how
    /// many there were.
    pub(crate) fn receive_streams(&mut self, engine: &Engine, now: Time) -> usize {
        let Some(streams) = &mut self.streams else { return 0 };
        let mut ready = std::mem::take(&mut streams.ready);
        ready.clear();
        // The one error possible is a signal: those that are ready come with the next call.
        let _ = streams.readiness.poll(&mut ready);
        let count = ready.len();
        for key in streams.held.drain(..) {
            if !ready.iter().any(|one| one.key == u64::from(key)) {
                ready.push(Ready { key: u64::from(key), receive: true, ..Ready::default() });
            }
        }
        for one in &ready {
            let Some(streams) = &mut self.streams else { break };
            let Some(conn) = streams.connections.get(&(one.key as u32)) else { continue };
            let qp = conn.qp.clone();
            let mut core = lock(&qp.core);
            if one.receive || one.broken {
                streams.receive(engine, &qp, &mut core, now, one.broken);
            }
            let again = one.send || core.machine.wants_transmit();
            self.end_stream_turn(engine, &qp, &mut core, again);
        }
        if let Some(streams) = &mut self.streams {
            streams.ready = ready;
        }
        count
    }

    /// Sends for the queue pairs that are ready, each a turn.
    pub(crate) fn transmit_streams(&mut self, engine: &Engine, now: Time) {
        for _ in 0..self.ready.len() {
            let Some(qp) = self.ready.pop_front() else { return };
            // Cleared before the send queue is looked at: a post from now on rings again.
            qp.queued.store(false, Ordering::Release);
            let Some(streams) = &mut self.streams else { return };
            let mut core = lock(&qp.core);
            let again = streams.transmit(engine, &qp, &mut core, now);
            self.end_stream_turn(engine, &qp, &mut core, again);
        }
    }

    /// After a turn: the connection, the state, the timer, and another turn if there is more to send.
    fn end_stream_turn(
        &mut self,
        engine: &Engine,
        qp: &Arc<QpInner>,
        core: &mut QpCore,
        again: bool,
    ) {
        let Self { streams, timers, ready, .. } = self;
        if let Some(streams) = streams {
            streams.settle(qp, core);
        }
        qp.publish_state(engine, core);
        timers.arm(qp.qpn, core);
        if again {
            make_ready(ready, qp);
        }
    }
}

/// Why a connection was not bound to a queue pair.
#[derive(Debug)]
pub(crate) enum BindStreamError {
    /// The queue pair is destroyed, or its device closed.
    Gone,
    /// The queue pair's state, or it has a stream.
    Start(StartError),
    /// The system cannot watch one more descriptor.
    Os(io::Error),
}
