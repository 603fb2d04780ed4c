//! The lane's part of iWARP: TCP connections, and the protocol machines that they belong to.
//!
//! Owns the connections of queue pairs. A connection stays here from [`Streams::bind`] until both
//! ends have closed, the connection is lost, or the queue pair is reset or destroyed. Reports to
//! the maker of a connection how the connection ends ([`StreamSink`]). The lane calls this module
//! to receive bytes ([`Streams::receive_ready`]) and to send FPDUs ([`Streams::transmit_ready`]).
//! Runs under the lane's lock and takes a queue pair's core after that lock, as the packet path
//! does.
//!
//! ```text
//!   socket -> buffer -> iwarp::Qp::handle_bytes      unconsumed bytes wait in Conn::rest
//!          \-> registered memory                     long payload (`streams/receive.rs`)
//!   iwarp::Qp::write_fpdu -> buffer -> socket        unsent bytes wait in Conn::out
//!            registered memory -/                    long payload (`streams/transmit.rs`)
//! ```
//!
//! Limits: a turn receives and sends [`TURN_BYTES`] of one connection; the rest waits for the next
//! round. A connection whose message waits for a receive is not read, and the message is tried
//! again each round. The bytes that all such connections hold are bounded (`streams/holding.rs`).

mod holding;
mod orphan;
mod ready;
mod receive;
#[cfg(test)]
mod testing;
mod transmit;
mod unanswered;
mod vitals;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

pub(crate) use orphan::{CLOSE_PATIENCE, EXIT_PATIENCE, Hold, Orphan, settle as settle_orphans};
pub(crate) use unanswered::Unanswered;
use vernic_io::tcp::{Connection, Interest, Ready};
use vernic_proto::iwarp::{
    self, Agreed, Ending, Greeting, MAX_FPDU, Shutdown, StartError, StreamConfig, StreamEnd,
};
use vernic_proto::{QpCounters, Time};
use vernic_wire::Qpn;

use crate::counters::StreamCounts;
use crate::device::opened::Device;
use crate::qp::host::QpHost;
use crate::qp::state::{QpCore, QpInner};
use crate::sched::{Event, Scheduler};
use crate::support::events::lock;
use holding::{Held, Holding};
use orphan::{LIMITS, Orphans};
use ready::Watch;
use vitals::Vital;

/// Size of the buffer that all connections share, in bytes: eight of the longest FPDUs. With half
/// that size, the kernel makes shorter segments, which cost a tenth of the throughput. With twice
/// that size, the buffer does not fit the second-level cache.
const BUFFER_BYTES: usize = 8 * MAX_FPDU;

/// Bytes of one connection, in one direction, that a turn moves.
const TURN_BYTES: usize = BUFFER_BYTES;

/// Nanoseconds until the background thread tries again to deliver a message that waits for a
/// receive. Applications that poll try by themselves.
pub(crate) const HELD_NANOS: u64 = 1_000_000;

/// The receiver of a connection's events.
///
/// Called under locks of the engine, on any thread. An implementation may take note of the event
/// and wake a thread, but must not call the engine or wait.
pub trait StreamSink: Send + Sync {
    /// Reports that both ends may send. The initiator may from the start, the responder once the
    /// initiator's first message has arrived. Called once, or never.
    fn established(&self, qpn: Qpn) {
        let _ = qpn;
    }
    /// Reports that the connection is over, or about to be. The queue pair leaves RTS by itself,
    /// finishes what it can and enters Error, where the remaining requests are flushed. Called
    /// exactly once, whatever ends the connection.
    fn ended(&self, qpn: Qpn, ending: Ending);
}

/// The sink of a connection's events, and which events were reported already.
struct Told {
    qpn: Qpn,
    /// The sink; `None` after the last event.
    sink: Option<Arc<dyn StreamSink>>,
    established: bool,
    ended: bool,
}

impl Told {
    /// Reports events that have not been reported yet.
    fn look(&mut self, engine: &Device, machine: &iwarp::Qp) {
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
    told: Told,
    /// Bytes received and not consumed: the beginning of an FPDU, or a message that waits for a
    /// receive.
    rest: Vec<u8>,
    /// Bytes of FPDUs that the socket has not taken yet.
    out: Vec<u8>,
    /// Bytes that the socket has taken.
    sent: u64,
    /// The readiness that the connection is watched for.
    watched: Interest,
    /// Whether nothing more can be received.
    ended: bool,
    /// Whether a message waits for a receive.
    held: bool,
    /// The share of the connection in what all connections hold while messages wait.
    holds: Option<Held>,
    /// Whether messages may no longer wait for a receive.
    is_impatient: bool,
    /// Whether the last FPDUs were long enough to be received directly into their destination.
    is_long: bool,
    /// FPDUs and bytes received when `is_long` was determined.
    measured: (u64, u64),
    /// FPDUs received and sent that the device's counters include already.
    counted: (u64, u64),
    /// The shutdown to do when `out` is empty.
    shutdown: Option<Shutdown>,
    /// Whether the peer's host answers.
    vital: Vital,
    agreed: Agreed,
    /// Whether the peer may not be in full operation yet.
    unheard: bool,
}

/// The iWARP connections of a device.
pub(crate) struct Streams {
    watch: Watch,
    connections: HashMap<u32, Conn>,
    orphans: Orphans,
    /// The time of the next check of all peers; `None` without connections.
    look_at: Option<Time>,
    /// Queue pair numbers of connections with a message that waits for a receive.
    held: Vec<u32>,
    holding: Holding,
    buffer: Box<[u8]>,
    ready: Vec<Ready>,
}

/// Runs `call` with the machine of a stream and its host.
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

/// Returns how a lost connection is reported to the machine.
fn end_of(error: &io::Error) -> StreamEnd {
    match error.kind() {
        // When the kernel gives up for want of an answer, it reports the network's last error.
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => StreamEnd::TimedOut,
        _ => StreamEnd::Reset,
    }
}

impl Streams {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new()?,
            connections: HashMap::new(),
            orphans: Orphans::new(LIMITS),
            look_at: None,
            held: Vec::new(),
            holding: Holding::default(),
            buffer: vec![0; BUFFER_BYTES].into(),
            ready: Vec::new(),
        })
    }

    /// Returns the descriptor that is readable while a connection is ready.
    pub(crate) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.watch.raw_fd()
    }

    /// Whether a message waits for a receive.
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes all connections out because the device is closed. Requests posted from now on are
    /// flushed.
    pub(crate) fn close(&mut self, engine: &Device) -> Vec<Orphan> {
        self.held.clear();
        self.look_at = None;
        self.holding = Holding::default();
        let connections = std::mem::take(&mut self.connections);
        let now = engine.now();
        let connections = connections.into_values().map(|conn| conn.orphan(engine, now));
        connections.chain(self.orphans.take()).collect()
    }

    /// Takes all connections out because the process ends. No sink is called.
    pub(crate) fn leave(&mut self, engine: &Device) -> Vec<Orphan> {
        self.connections.values_mut().for_each(|conn| conn.told.sink = None);
        self.close(engine)
    }

    /// Takes a connection out because its queue pair gives it up. Bytes that the connection was
    /// given still arrive.
    pub(crate) fn remove(&mut self, engine: &Device, qpn: Qpn, now: Time) {
        let Some(mut conn) = self.connections.remove(&qpn.value()) else { return };
        self.holding.forget(&mut conn);
        let watched = Some((u64::from(qpn.value()), conn.watched));
        let Self { watch, orphans, buffer, .. } = self;
        let counts = &engine.counts().streams;
        orphans.adopt(watch, buffer, counts, watched, conn.orphan(engine, now), now);
    }

    /// Adopts a connection that no queue pair has taken.
    fn adopt(&mut self, counts: &StreamCounts, orphan: Orphan, now: Time) {
        let Self { watch, orphans, buffer, .. } = self;
        orphans.adopt(watch, buffer, counts, None, orphan, now);
    }

    /// Takes a connection out of the table, to be reset.
    fn take_out(&mut self, key: u32) -> Option<Conn> {
        let mut conn = self.connections.remove(&key)?;
        self.holding.forget(&mut conn);
        self.watch.remove(u64::from(key), conn.watched);
        Some(conn)
    }

    /// Does to the connection what the machine asks for, and watches the connection for what is
    /// due.
    fn settle(&mut self, engine: &Device, qp: &QpInner, core: &mut QpCore, now: Time) {
        let key = qp.qpn().value();
        let Some(conn) = self.connections.get_mut(&key) else { return };
        conn.count(engine, core);
        if let Some(machine) = core.machine.stream() {
            conn.told.look(engine, machine);
            conn.shutdown = machine.poll_shutdown().or(conn.shutdown);
            // A machine that was reset no longer knows whether the peer was heard.
            conn.unheard &= machine.is_unheard() || conn.shutdown == Some(Shutdown::Reset);
        }
        match conn.shutdown {
            Some(Shutdown::Reset) if conn.unheard => {
                self.remove(engine, qp.qpn(), now);
                return;
            }
            Some(Shutdown::Close | Shutdown::Abandon) if !conn.vital.is_gone() => {
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
            self.holding.update(key, conn);
        }
        let wants = Interest { receive: !conn.ended && !conn.held, send: !conn.out.is_empty() };
        if wants != conn.watched {
            self.watch.change(&conn.connection, u64::from(key), conn.watched, wants);
            conn.watched = wants;
        }
        self.let_go_of_held(engine);
    }

    /// Ends the waiting of connections while too many bytes wait. Their streams end at the next
    /// try.
    fn let_go_of_held(&mut self, engine: &Device) {
        while let Some(victim) = self.holding.victim() {
            let Some(conn) = self.connections.get_mut(&victim) else { return };
            engine.counts().streams.held_refused.add(1);
            conn.is_impatient = true;
            self.holding.forget(conn);
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

    /// Gives up the connection. Reports its end to the owner now, if that was not done before.
    fn end(mut self, engine: &Device) -> Connection {
        self.told.end(engine, Ending::Closed);
        self.connection
    }

    /// Gives up the connection like [`end`](Self::end), but lets it send what is left.
    fn orphan(mut self, engine: &Device, now: Time) -> Orphan {
        let (out, ended) = (std::mem::take(&mut self.out), self.ended);
        let hold = self.unheard.then(|| Hold::new(&self.agreed, Vec::new(), now)).flatten();
        Orphan::new(self.end(engine), out, ended, &LIMITS).held(hold)
    }
}

/// How a connection is to be used, and the sink of its events.
pub(crate) struct StreamTerms<'a> {
    pub(crate) agreed: &'a Agreed,
    pub(crate) config: StreamConfig,
    pub(crate) sink: Option<Arc<dyn StreamSink>>,
}

impl Streams {
    /// Binds a connection whose start-up is complete to a queue pair. `rest` is what was received
    /// behind the start-up.
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
        // A shutdown from before the queue pair was reset, if the lane has not handled that yet.
        let _ = machine.poll_shutdown();
        if let Some(old) = self.take_out(key) {
            old.end(engine).reset();
        }
        side.set_stream(connection.local_addr().ok().zip(connection.peer_addr().ok()));
        let conn = Conn {
            connection,
            qp: qp.clone(),
            told: Told { qpn: qp.qpn(), sink: terms.sink, established: false, ended: false },
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
            vital: Vital::default(),
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
            // A connection that is not watched would never be read. The caller learns of it by the
            // result, so the sink is not called.
            conn.told.sink = None;
            with_stream(engine, qp, now, &mut core, |machine, host| {
                machine.handle_end(now, StreamEnd::Reset, 0, host);
            });
        }
        self.end_turn(engine, sched, qp, &mut core, now, true);
        result.map_err(|error| (BindStreamError::Os(error), None))
    }

    /// Takes over a connection whose start-up is complete, but that no queue pair has taken. Sends
    /// its ready-to-receive indication, if there is one, and then `last`.
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
        let orphan = Orphan::new(connection, out, false, &LIMITS).held(hold);
        self.adopt(&engine.counts().streams, orphan, now);
    }

    /// Takes over a connection that its owner gave up before the peer's reply. If the peer accepts,
    /// sends the ready-to-receive indication and then closes.
    pub(crate) fn adopt_unanswered(
        &mut self,
        engine: &Device,
        connection: Connection,
        unanswered: Unanswered,
    ) {
        let orphan = Orphan::new(connection, Vec::new(), false, &LIMITS).asked(unanswered);
        self.adopt(&engine.counts().streams, orphan, engine.now());
    }

    /// Receives from connections that are ready, and tries again messages that wait for receives.
    /// Returns how many connections had something. Not every call asks epoll about all connections,
    /// unless `all` is set.
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
            if Orphans::owns(one.key) {
                let Self { watch, orphans, buffer, .. } = self;
                orphans.handle_ready(watch, buffer, one, now);
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

    /// Sends for the queue pairs that are ready, one turn each.
    pub(crate) fn transmit_ready(&mut self, engine: &Device, sched: &mut Scheduler, now: Time) {
        for _ in 0..sched.ready_len() {
            let Some(qp) = sched.take() else { return };
            let mut core = lock(&qp.core);
            let again = self.transmit(engine, &qp, &mut core, now);
            self.end_turn(engine, sched, &qp, &mut core, now, again);
        }
    }

    /// Ends a turn: updates the connection, the state and the timer, and schedules another turn if
    /// there is more to send.
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

/// The reason why a connection was not bound to a queue pair.
#[derive(Debug)]
pub(crate) enum BindStreamError {
    /// The queue pair is destroyed, or its device is closed.
    Gone,
    /// The queue pair's state does not allow a start, or the queue pair has a stream already.
    Start(StartError),
    /// The system cannot watch one more descriptor.
    Os(io::Error),
}
