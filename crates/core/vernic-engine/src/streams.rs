//! The lane's part of iWARP: TCP connections, and the queue pairs that own them.
//!
//! Owns the connections of queue pairs. A connection is here from [`Streams::bind`] until both ends
//! have closed it, it is lost, or the queue pair is reset or destroyed. How a connection ends is
//! reported to the code that bound it ([`StreamSink`]). The lane calls this module to receive bytes
//! ([`Streams::receive_ready`]) and to send FPDUs ([`Streams::transmit_ready`]). Runs under the
//! lane's lock and takes a queue pair's lock after it, as the code for packets does.
//!
//! ```text
//!   socket -> buffer -> iwarp::Qp::handle_bytes      unconsumed bytes wait in Conn::rest
//!          \-> registered memory                     long payload (`streams/receive.rs`)
//!   iwarp::Qp::write_fpdu -> buffer -> socket        unsent bytes wait in Conn::out
//!            registered memory -/                    long payload (`streams/transmit.rs`)
//! ```
//!
//! Limits: one turn receives, or sends, [`TURN_BYTES`] of one connection; what is left waits for
//! the next poll. While a message waits for the application to post a receive, its connection is
//! not read, and each poll tries to deliver the message again. All messages that wait together hold
//! a bounded number of bytes (`streams/held_messages.rs`).

mod held_messages;
mod lingering;
mod peer_progress;
mod pending_startup;
mod ready;
mod receive;
#[cfg(test)]
mod testing;
mod transmit;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

pub(crate) use lingering::{
    CLOSE_PATIENCE, EXIT_PATIENCE, Hold, LingeringConnection, settle as settle_lingering,
};
pub(crate) use pending_startup::PendingStartup;
use vernic_io::tcp::{Connection, Interest, Ready};
use vernic_proto::iwarp::{
    self, Agreed, Ending, Greeting, MAX_FPDU, Shutdown, StartError, StreamConfig, StreamEnd,
};
use vernic_proto::{QpCounters, RateLimit, Time};
use vernic_wire::Qpn;

use crate::counters::StreamCounts;
use crate::device::opened::Device;
use crate::qp::host::QpHost;
use crate::qp::state::{QpCore, QpInner};
use crate::sched::{Event, Scheduler};
use crate::support::events::lock;
use held_messages::{HeldMessage, HeldMessages};
use lingering::{LIMITS, LingeringConnections};
use peer_progress::PeerProgress;
use ready::Watch;

/// Size in bytes of the buffer that all connections share: eight FPDUs of the largest size. With
/// half that size, the kernel makes shorter segments, which costs a tenth of the throughput. With
/// twice that size, the buffer does not fit into the second-level cache.
const BUFFER_BYTES: usize = 8 * MAX_FPDU;

/// Largest number of bytes that one turn moves in one direction of a connection.
const TURN_BYTES: usize = BUFFER_BYTES;

/// Time in nanoseconds until the background thread tries again to deliver a message that waits for
/// a receive. An application that polls tries with each poll.
pub(crate) const HELD_NANOS: u64 = 1_000_000;

/// A listener for the events of a connection.
///
/// Called under locks of the engine, on any thread. An implementation may record the event and wake
/// a thread, but must neither call the engine nor block.
pub trait StreamSink: Send + Sync {
    /// Reports that both ends may send: the initiator once the connection is bound, the responder
    /// once the initiator's first message has arrived. Called at most once.
    fn established(&self, qpn: Qpn) {
        let _ = qpn;
    }
    /// Reports that the connection has ended or is about to end. The queue pair leaves RTS without
    /// a call of the application, completes what it can and enters Error, where the remaining
    /// requests are flushed. Called exactly once, whatever ends the connection.
    fn ended(&self, qpn: Qpn, ending: Ending);
}

/// The [`StreamSink`] of a connection, and which events were reported to it.
struct StreamObserver {
    qpn: Qpn,
    /// The sink; `None` after the last event.
    sink: Option<Arc<dyn StreamSink>>,
    established: bool,
    ended: bool,
}

impl StreamObserver {
    /// Reports the events of `machine` that have not been reported yet.
    fn report(&mut self, engine: &Device, machine: &iwarp::Qp) {
        if !self.established && machine.is_established() {
            self.established = true;
            if let Some(sink) = &self.sink {
                sink.established(self.qpn);
            }
        }
        if let Some(ending) = machine.ending() {
            self.end(engine, ending);
        }
    }

    fn end(&mut self, engine: &Device, ending: Ending) {
        if !self.ended {
            self.ended = true;
            engine.counts().streams.count_ending(ending);
            if let Some(sink) = self.sink.take() {
                sink.ended(self.qpn, ending);
            }
        }
    }
}

/// A connection of a queue pair.
struct Conn {
    connection: Connection,
    qp: Arc<QpInner>,
    observer: StreamObserver,
    /// Bytes that were received and not consumed: the beginning of an FPDU, or a message for which
    /// no receive is posted yet.
    rest: Vec<u8>,
    /// Bytes of FPDUs that the socket had no room for yet.
    out: Vec<u8>,
    /// The number of bytes that the socket has taken.
    sent: u64,
    /// The events for which epoll watches the connection.
    watched: Interest,
    /// Whether nothing more can be received: the peer has closed, or the connection is lost.
    ended: bool,
    /// Whether a message waits for the application to post a receive.
    held: bool,
    /// The connection's entry in [`Streams::held_messages`] while a message waits.
    holds: Option<HeldMessage>,
    /// Whether a message must no longer wait for a receive; its stream ends instead.
    is_impatient: bool,
    /// Whether the last FPDUs were long enough to receive such FPDUs directly into registered
    /// memory.
    is_long: bool,
    /// The numbers of FPDUs and bytes received when `is_long` was last computed.
    measured: (u64, u64),
    /// The numbers of FPDUs received and sent that the device's counters already include.
    counted: (u64, u64),
    /// The shutdown that the machine wants as soon as `out` is empty.
    shutdown: Option<Shutdown>,
    /// Whether the peer's host still answers.
    peer_progress: PeerProgress,
    agreed: Agreed,
    /// Whether the peer may not be ready for the end of the connection, because it has not
    /// answered the ready-to-receive indication.
    unheard: bool,
}

/// The iWARP connections of a device, with those that queue pairs have given up.
pub(crate) struct Streams {
    watch: Watch,
    connections: HashMap<u32, Conn>,
    lingering: LingeringConnections,
    /// The time of the next check whether the peers' hosts answer; `None` without connections.
    check_at: Option<Time>,
    /// The numbers of queue pairs with a message that waits for a receive.
    held: Vec<u32>,
    held_messages: HeldMessages,
    buffer: Box<[u8]>,
    ready: Vec<Ready>,
}

/// Runs `call` with a queue pair's machine for streams and its host.
fn with_stream<T>(
    engine: &Device,
    qp: &QpInner,
    now: Time,
    core: &mut QpCore,
    call: impl FnOnce(&mut iwarp::Qp, &mut QpHost<'_>) -> T,
) -> Option<T> {
    qp.with_host(engine, now, core, |machine, host| {
        machine.stream().map(|machine| call(machine, host))
    })
}

/// Returns the kind of end that the machine gets for an error of the socket.
fn end_of(error: &io::Error) -> StreamEnd {
    match error.kind() {
        // If no answer comes, the kernel reports the network's last error when it gives up.
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => StreamEnd::TimedOut,
        _ => StreamEnd::Reset,
    }
}

/// Limits the rate at which a connection sends. TCP says itself how much leaves together.
fn limit_rate(connection: &Connection, qpn: Qpn, limit: RateLimit) {
    let bytes_per_s = (limit != RateLimit::NONE).then(|| u64::from(limit.kbps) * 125);
    if let Err(error) = connection.limit_rate(bytes_per_s) {
        // No system is known that refuses it.
        tracing::warn!(%qpn, %error, "the rate of the TCP connection cannot be limited");
    }
}

impl Streams {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new()?,
            connections: HashMap::new(),
            lingering: LingeringConnections::new(LIMITS),
            check_at: None,
            held: Vec::new(),
            held_messages: HeldMessages::default(),
            buffer: vec![0; BUFFER_BYTES].into(),
            ready: Vec::new(),
        })
    }

    /// Returns the epoll descriptor, which is readable while some connection is ready.
    pub(crate) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.watch.raw_fd()
    }

    /// Whether some message waits for the application to post a receive.
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Removes all connections because the device is closed or the process ends, and returns them
    /// to be finished by [`settle_lingering`]. Requests that are posted from now on are flushed.
    pub(crate) fn take_connections(&mut self, engine: &Device) -> Vec<LingeringConnection> {
        self.held.clear();
        self.check_at = None;
        self.held_messages = HeldMessages::default();
        let connections = std::mem::take(&mut self.connections);
        let now = engine.now();
        let connections = connections.into_values().map(|conn| conn.into_lingering(engine, now));
        connections.chain(self.lingering.take()).collect()
    }

    /// Lets connections end without calling their sinks.
    pub(crate) fn silence_sinks(&mut self) {
        self.connections.values_mut().for_each(|conn| conn.observer.sink = None);
    }

    /// Removes a connection because its queue pair gives it up. It becomes a lingering connection
    /// (`lingering.rs`), so what was sent still arrives.
    pub(crate) fn remove(&mut self, engine: &Device, qpn: Qpn, now: Time) {
        let Some(mut conn) = self.connections.remove(&qpn.value()) else { return };
        self.held_messages.forget(&mut conn);
        let watched = Some((u64::from(qpn.value()), conn.watched));
        let Self { watch, lingering, buffer, .. } = self;
        let counts = &engine.counts().streams;
        lingering.adopt(watch, buffer, counts, watched, conn.into_lingering(engine, now), now);
    }

    /// Makes a lingering connection of one that never had a queue pair.
    fn adopt(&mut self, counts: &StreamCounts, left: LingeringConnection, now: Time) {
        let Self { watch, lingering, buffer, .. } = self;
        lingering.adopt(watch, buffer, counts, None, left, now);
    }

    /// Removes a connection without sending anything more. The caller resets it.
    fn take_out(&mut self, key: u32) -> Option<Conn> {
        let mut conn = self.connections.remove(&key)?;
        self.held_messages.forget(&mut conn);
        self.watch.remove(u64::from(key), conn.watched);
        Some(conn)
    }

    /// Does what the machine wants of the connection (report events, shut down), and watches the
    /// socket for what is needed next.
    fn settle(&mut self, engine: &Device, qp: &QpInner, core: &mut QpCore, now: Time) {
        let key = qp.qpn().value();
        let Some(conn) = self.connections.get_mut(&key) else { return };
        conn.count(engine, core);
        if let Some(machine) = core.machine.stream() {
            conn.observer.report(engine, machine);
            conn.shutdown = machine.poll_shutdown().or(conn.shutdown);
            // A machine that was reset no longer knows whether anything came from the peer.
            conn.unheard &= machine.is_unheard() || conn.shutdown == Some(Shutdown::Reset);
        }
        match conn.shutdown {
            Some(Shutdown::Reset) if conn.unheard => {
                self.remove(engine, qp.qpn(), now);
                return;
            }
            Some(Shutdown::Close | Shutdown::Abandon) if !conn.peer_progress.is_gone() => {
                self.remove(engine, qp.qpn(), now);
                return;
            }
            Some(Shutdown::Reset | Shutdown::Close | Shutdown::Abandon) => {
                if let Some(conn) = self.take_out(key) {
                    conn.end(engine).reset();
                }
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
        if conn.held || conn.holds.is_some() {
            self.held_messages.update(key, conn);
        }
        let wants = Interest { receive: !conn.ended && !conn.held, send: !conn.out.is_empty() };
        if wants != conn.watched {
            self.watch.change(&conn.connection, u64::from(key), conn.watched, wants);
            conn.watched = wants;
        }
        self.let_go_of_held(engine);
    }

    /// Makes connections stop waiting for a receive while all that wait hold too many bytes. Their
    /// streams end at the next try to deliver.
    fn let_go_of_held(&mut self, engine: &Device) {
        while let Some(victim) = self.held_messages.victim() {
            let Some(conn) = self.connections.get_mut(&victim) else { return };
            engine.counts().streams.held_refused.add(1);
            conn.is_impatient = true;
            self.held_messages.forget(conn);
        }
    }
}

/// Returns the numbers of FPDUs received and sent.
fn fpdus(counters: &QpCounters) -> (u64, u64) {
    (counters.rx_packets, counters.tx_packets)
}

impl Conn {
    /// Adds the FPDUs received and sent since the last call to the device's counters.
    fn count(&mut self, engine: &Device, core: &QpCore) {
        let now = fpdus(core.machine.counters());
        let before = std::mem::replace(&mut self.counted, now);
        // The counters of a queue pair that was reset start again at 0.
        engine.counts().streams.rx_fpdus.add(now.0.saturating_sub(before.0));
        engine.counts().streams.tx_fpdus.add(now.1.saturating_sub(before.1));
    }

    /// Gives up the connection, to be reset or closed by the caller. Reports its end to the sink if
    /// it has not been reported.
    fn end(mut self, engine: &Device) -> Connection {
        self.observer.end(engine, Ending::Closed);
        self.connection
    }

    /// Gives up the connection as [`end`](Self::end) does, but returns it so that it can send what
    /// is left.
    fn into_lingering(mut self, engine: &Device, now: Time) -> LingeringConnection {
        let (out, ended) = (std::mem::take(&mut self.out), self.ended);
        let hold = self.unheard.then(|| Hold::new(&self.agreed, Vec::new(), now)).flatten();
        LingeringConnection::new(self.end(engine), out, ended, &LIMITS).held(hold)
    }
}

/// The terms on which a connection is bound to a queue pair: what the ends have agreed, and the
/// sink of its events.
pub(crate) struct StreamTerms<'a> {
    agreed: &'a Agreed,
    config: StreamConfig,
    sink: Option<Arc<dyn StreamSink>>,
}

impl<'a> StreamTerms<'a> {
    /// Returns the terms: what the ends have agreed, the settings that follow from it, and the sink
    /// of the connection's events.
    pub(crate) fn new(
        agreed: &'a Agreed,
        config: StreamConfig,
        sink: Option<Arc<dyn StreamSink>>,
    ) -> Self {
        Self { agreed, config, sink }
    }
}

impl Streams {
    /// Binds a connection whose start-up is complete to a queue pair. `rest` is what has been
    /// received after the start-up.
    pub(crate) fn bind(
        &mut self,
        engine: &Device,
        sched: &mut Scheduler,
        qp: &Arc<QpInner>,
        connection: Connection,
        terms: StreamTerms<'_>,
        rest: &[u8],
    ) -> Result<(), (BindStreamError, Option<Connection>)> {
        let now = engine.now();
        let key = qp.qpn().value();
        let watched = Interest { receive: true, send: false };
        let mut core = lock(&qp.core);
        let QpCore { machine, side } = &mut *core;
        let Some(machine) = machine.stream() else {
            return Err((BindStreamError::Gone, Some(connection)));
        };
        if let Err(error) = machine.start(terms.agreed, terms.config) {
            return Err((BindStreamError::Start(error), Some(connection)));
        }
        // Drops a shutdown that the machine wanted before it was reset, if the lane has not done it
        // yet.
        let _ = machine.poll_shutdown();
        if let Some(old) = self.take_out(key) {
            old.end(engine).reset();
        }
        side.set_stream(connection.local_addr().ok().zip(connection.peer_addr().ok()));
        let limit = machine.attr().rate_limit;
        if limit != RateLimit::NONE {
            limit_rate(&connection, qp.qpn(), limit);
        }
        let conn = Conn {
            connection,
            qp: qp.clone(),
            observer: StreamObserver {
                qpn: qp.qpn(),
                sink: terms.sink,
                established: false,
                ended: false,
            },
            rest: Vec::new(),
            out: Vec::new(),
            sent: 0,
            watched,
            ended: false,
            held: false,
            holds: None,
            is_impatient: false,
            is_long: false,
            measured: (0, 0),
            counted: fpdus(machine.counters()),
            shutdown: None,
            peer_progress: PeerProgress::default(),
            agreed: *terms.agreed,
            unheard: machine.is_unheard(),
        };
        self.expect_life(engine, &conn.connection, now);
        let conn = self.connections.entry(key).insert_entry(conn).into_mut();
        let result = self.watch.add(&conn.connection, u64::from(key)).map(drop);
        let counts = &engine.counts().streams;
        counts.connections.add(1);
        if terms.agreed.crc { &counts.with_crc } else { &counts.without_crc }.add(1);
        tracing::debug!(
            qpn = %qp.qpn(),
            path = %side.stream().map(|(local, peer)| format!("{local}->{peer}")).unwrap_or_default(),
            crc = terms.agreed.crc,
            revision = terms.agreed.revision,
            "iWARP connection"
        );
        conn.pass(engine, qp, &mut core, now, rest);
        if result.is_err() {
            // A connection that epoll does not watch would never be read. The caller learns of the
            // failure from the result, so the sink is not called.
            conn.observer.sink = None;
            with_stream(engine, qp, now, &mut core, |machine, host| {
                machine.handle_end(now, StreamEnd::Reset, 0, host);
            });
        }
        self.end_turn(engine, sched, qp, &mut core, now, true);
        result.map_err(|error| (BindStreamError::Os(error), None))
    }

    /// Limits the rate at which a queue pair's connection sends.
    pub(crate) fn limit(&mut self, qpn: Qpn, limit: RateLimit) {
        if let Some(conn) = self.connections.get(&qpn.value()) {
            limit_rate(&conn.connection, qpn, limit);
        }
    }

    /// Takes over a connection whose start-up is complete but that no queue pair uses. Sends its
    /// ready-to-receive indication, if it has one to send, then the bytes `last`, and closes it.
    pub(crate) fn adopt_agreed(
        &mut self,
        engine: &Device,
        connection: Connection,
        agreed: &Agreed,
        last: Vec<u8>,
    ) {
        let now = engine.now();
        let first = Greeting::of(agreed).map(|greeting| greeting.first);
        let (out, hold) = match first {
            Some(first) => (first, Hold::new(agreed, last, now)),
            None => (last, None),
        };
        let left = LingeringConnection::new(connection, out, false, &LIMITS).held(hold);
        self.adopt(&engine.counts().streams, left, now);
    }

    /// Takes over a connection that was given up before the peer replied to the start-up. If the
    /// peer accepts, sends the ready-to-receive indication and then closes the connection.
    pub(crate) fn adopt_startup(
        &mut self,
        engine: &Device,
        connection: Connection,
        pending_startup: PendingStartup,
    ) {
        let left =
            LingeringConnection::new(connection, Vec::new(), false, &LIMITS).asked(pending_startup);
        self.adopt(&engine.counts().streams, left, engine.now());
    }

    /// Receives from connections that are ready, and tries again to deliver messages that wait for
    /// a receive. Returns how many connections had something to do. Asks epoll about all
    /// connections if `all` is set, otherwise only in some calls (`ready.rs`).
    pub(crate) fn receive_ready(
        &mut self,
        engine: &Device,
        sched: &mut Scheduler,
        now: Time,
        all: bool,
    ) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        self.watch.poll(all, &mut ready);
        for key in self.held.drain(..) {
            if !ready.iter().any(|one| one.key == u64::from(key)) {
                ready.push(Ready { key: u64::from(key), receive: true, ..Ready::default() });
            }
        }
        let mut count = 0;
        for one in &ready {
            if LingeringConnections::owns(one.key) {
                let Self { watch, lingering, buffer, .. } = self;
                lingering.handle_ready(watch, buffer, one, now);
                count += 1;
                continue;
            }
            let Some(conn) = self.connections.get(&(one.key as u32)) else { continue };
            let qp = conn.qp.clone();
            let mut core = lock(&qp.core);
            if one.receive || one.broken {
                let did = self.receive(engine, &qp, &mut core, now, one.broken);
                count += usize::from(did);
            }
            count += usize::from(one.send);
            let again = one.send || core.machine.wants_transmit();
            self.end_turn(engine, sched, &qp, &mut core, now, again);
        }
        self.ready = ready;
        if count > 0 {
            self.watch.note_received();
        }
        count
    }

    /// Gives each queue pair that is ready to send one turn.
    pub(crate) fn transmit_ready(&mut self, engine: &Device, sched: &mut Scheduler, now: Time) {
        for _ in 0..sched.ready_len() {
            let Some(qp) = sched.take() else { return };
            let mut core = lock(&qp.core);
            let again = self.transmit(engine, &qp, &mut core, now);
            self.end_turn(engine, sched, &qp, &mut core, now, again);
        }
    }

    /// Ends a queue pair's turn: updates its connection, state and timer, and schedules another
    /// turn if `again` says that there is more to send.
    fn end_turn(
        &mut self,
        engine: &Device,
        sched: &mut Scheduler,
        qp: &Arc<QpInner>,
        core: &mut QpCore,
        now: Time,
        again: bool,
    ) {
        self.settle(engine, qp, core, now);
        sched.after(engine, qp, core, Event::Stream { again }, now);
    }
}

/// The reason for which a connection was not bound to a queue pair.
#[derive(Debug)]
pub(crate) enum BindStreamError {
    /// The queue pair was destroyed, or its device is closed.
    Gone,
    /// The queue pair is in a state that does not allow a start, or already has a connection.
    Start(StartError),
    /// The system cannot watch one more descriptor with epoll.
    Os(io::Error),
}
