//! The agent of communication management (CM): connections are made and ended here.
//!
//! Owns the machine ([`Cm`], `vernic_proto::cm`), which knows all about messages and nothing about
//! the world, and brings it the world: commands of the layers above, datagrams from QP1 (`gsi.rs`),
//! time. What it has to say goes to one [`CmSink`]; what it has to send, out through the lane.
//! Called through [`CmAgent`] by `vernic-cm`, and by whoever has the lane.
//!
//! | file | what |
//! |---|---|
//! | `cm.rs` | the machine behind its lock, and the commands |
//! | `cm/early.rs` | requests that came before somebody listens |
//! | `cm/forwarded.rs` | requests that were handed to other processes |
//! | `cm/host.rs` | the addresses of this host |
//! | `cm/impatient.rs` | requests that shall not wait for somebody to listen |
//! | `cm/listen.rs` | listeners and their names among the processes of this host |
//! | `cm/neighbours.rs` | processes of this host at the other end, and how it is noticed that one is gone |
//! | `cm/promise.rs` | what was sent when a call returns, and what is still repeated when the process ends |
//! | `cm/route.rs` | whose a datagram is that came in, and by which path one goes out |
//!
//! # Locks
//!
//! The machine has a lock of its own, taken by commands alone or by the holder of the lane: lane,
//! then machine, and from there a queue pair's core, to look when it heard its peer; never the
//! other way. A command changes the machine, lets go of it, and has the lane send what is to be
//! sent before it returns ([`Engine::send_promised`]). Events are told under the machine's lock, so
//! that they are in order; a sink may only take note of them.
//!
//! # Communication ids
//!
//! An id is a process slot (10 high bits), as a QPN is, and a number (22 bits) that nobody can tell
//! beforehand. So a datagram that reached the wrong process of this host says whose it is.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::SlotError;
use vernic_io::{Slot, random};
use vernic_proto::Time;
use vernic_proto::cm::{
    AcceptParams, Cm, CmConfig, CmCounters, CmError, CmOccupancy, ConnId, ConnectParams, Datagram,
    Event, SidrParams, SidrReply,
};
use vernic_wire::cm::{CommId, RejReason, ServiceId};
use vernic_wire::{Gid, Qpn};

use crate::config::PeerRefused;
use crate::error::ORPHAN;
use crate::lane::qp_table::QpTable;
use crate::progress::engine::Engine;
use crate::support::events::{lock, try_lock};

mod early;
mod forwarded;
mod host;
mod impatient;
mod listen;
mod neighbours;
mod promise;
mod route;

use early::EarlyRequests;
use forwarded::Forwarded;
use host::HostAddresses;
pub use listen::ListenError;
use listen::Listening;
use neighbours::Neighbours;

/// Bits of a communication id that are a number; those above are the slot.
const NUMBER_BITS: u32 = 32 - Slot::BITS;

/// The slot of the process (more exactly, of the device) that made an id.
fn slot_of(id: CommId) -> Slot {
    // A slot is the high bits of a QPN's 24 as well.
    Slot::of(Qpn::new(id.value() >> 8))
}

/// Where the events of connections go.
///
/// Called under locks of the engine, on any thread: it may take note of the event and wake
/// somebody, but must not call the engine or wait.
pub trait CmSink: Send + Sync {
    /// Something happened to a connection or an exchange.
    fn event(&self, event: Event);
    /// The device's netdev is gone, for good. Told once.
    fn removed(&self) {}
}

/// Why the agent does not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmCallError {
    /// The device was opened before this process was forked.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// Nobody listens to its events.
    #[error("no sink is attached to the device's connection manager: CmAgent::attach comes first")]
    NotAttached,
    /// The peer is outside of the setting `peers`.
    #[error(transparent)]
    NotAllowed(#[from] PeerRefused),
    /// The machine refuses.
    #[error(transparent)]
    Cm(#[from] CmError),
}

/// Why a sink cannot be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmAttachError {
    /// The device was opened before this process was forked.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// There is one already.
    #[error("the device's connection manager tells its events to somebody else")]
    Busy,
    /// There is no process slot for the communication ids.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

/// The machine and whom it tells.
#[derive(Default)]
struct State {
    /// Made when it is first needed: it needs a process slot.
    machine: Option<Cm>,
    sink: Option<Arc<dyn CmSink>>,
}

impl State {
    fn machine(&mut self, slot: Slot, response_timeout: u8) -> &mut Cm {
        self.machine.get_or_insert_with(|| {
            let base = u32::from(slot.value()) << NUMBER_BITS;
            let seed = u128::from(random()) << 64 | u128::from(random());
            let usual = CmConfig::new(base, NUMBER_BITS, seed);
            Cm::new(CmConfig { response_timeout, ..usual })
        })
    }

    fn counters(&self) -> CmCounters {
        self.machine.as_ref().map(|machine| *machine.counters()).unwrap_or_default()
    }

    /// Tells what has happened.
    fn tell(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        // Bounded: the machine makes events when it is called only.
        while let Some(event) = machine.poll_event() {
            if let Some(sink) = &self.sink {
                sink.event(event);
            }
        }
    }
}

/// What the agent is in the engine.
#[derive(Default)]
pub(crate) struct CmShared {
    state: Mutex<State>,
    /// A command has changed the machine since the lane last looked.
    work: AtomicBool,
    /// Datagrams that went to port 4791 of this host.
    sent_home: AtomicU64,
    listening: Mutex<Listening>,
    early: Mutex<EarlyRequests>,
    forwarded: Mutex<Forwarded>,
    host: Mutex<HostAddresses>,
    neighbours: Mutex<Neighbours>,
}

impl CmShared {
    /// Step P1 of the proof at the head of `progress.rs`.
    pub(crate) fn leave_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// The netdev is gone.
    pub(crate) fn tell_removed(&self) {
        if let Some(sink) = &lock(&self.state).sink {
            sink.removed();
        }
    }

    /// Whether work was left.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, Ordering::AcqRel)
    }

    /// For the holder of the lane: the deadline has come.
    pub(crate) fn handle_timeout(&self, table: &QpTable, now: Time) {
        let mut state = lock(&self.state);
        if let Some(machine) = &mut state.machine {
            machine.handle_timeout_with(now, &|qpn| table.heard(qpn));
            state.tell();
        }
    }

    /// For the holder of the lane: `send` calls what it is given for the next datagram to send,
    /// until there is none. Returns when the machine wants to be called next.
    pub(crate) fn drain(
        &self,
        send: impl FnOnce(&mut dyn FnMut() -> Option<Datagram>),
    ) -> Option<Time> {
        let others = [lock(&self.early).next_due(), lock(&self.neighbours).due()];
        let mut state = lock(&self.state);
        let machine = state.machine.as_mut().and_then(|machine| {
            send(&mut || machine.poll_transmit());
            machine.next_deadline()
        });
        others.into_iter().chain([machine]).flatten().min()
    }

    /// Whether a request for `service` at `local` finds a listener in this process.
    fn has_listener(&self, service: ServiceId, local: Gid) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.has_listener(service, local))
    }

    /// Whether the peer at `remote` has asked this process for a connection that it calls `id`.
    fn was_asked(&self, remote: Gid, id: CommId) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.was_asked(remote, id))
    }

    pub(crate) fn counters(&self) -> CmCounters {
        lock(&self.state).counters()
    }

    /// As [`counters`](Self::counters), without waiting.
    pub(crate) fn try_counters(&self) -> Option<CmCounters> {
        try_lock(&self.state).map(|state| state.counters())
    }
}

impl Engine {
    /// The machine, for the holder of the lane: for a datagram that nobody may have waited for.
    fn with_machine<T>(
        &self,
        table: &mut QpTable,
        f: impl FnOnce(&mut Cm, &QpTable) -> T,
    ) -> Result<T, SlotError> {
        let mut state = lock(&self.cm.state);
        let slot = match state.machine {
            Some(_) => Slot::FIRST,
            None => table.first_slot(&self.slots)?,
        };
        let result = f(state.machine(slot, self.config.cm_response_timeout), table);
        state.tell();
        Ok(result)
    }

    /// Gives the machine a command, tells what happened, and sends what is to be sent, as far as
    /// that is possible soon.
    fn command<T>(
        &self,
        f: impl FnOnce(&mut Cm, Time) -> Result<T, CmError>,
    ) -> Result<T, CmCallError> {
        if self.is_orphan() {
            return Err(CmCallError::Orphan);
        }
        let (result, has_message) = {
            let mut state = lock(&self.cm.state);
            let State { machine: Some(machine), sink: Some(_) } = &mut *state else {
                return Err(CmCallError::NotAttached);
            };
            let result = f(machine, self.now());
            let has_message = machine.wants_transmit();
            state.tell();
            (result, has_message)
        };
        if has_message {
            self.send_promised();
        } else {
            self.kick_cm();
        }
        Ok(result?)
    }
}

/// The connection manager of a device: `vernic_proto::cm::Cm`, in the world. Its calls do not wait
/// for peers; those that send a message may wait for another process of this host to say where it
/// receives, for the `peer_query_us` of the settings at most. The message of a call is with the
/// kernel when the call returns, as from a driver in a kernel: it arrives though the process is
/// killed then, or ends by `_exit`. Only where nobody lets go of the lane for 100 ms, or the socket
/// is full for as long, it leaves later.
pub struct CmAgent {
    engine: Arc<Engine>,
}

impl fmt::Debug for CmAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmAgent({})", self.engine.info.name)
    }
}

impl CmAgent {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Events go to `sink` from now on; all other calls need one. The device keeps it until it is
    /// closed, so a sink that holds the device keeps it open for ever.
    ///
    /// # Errors
    /// [`CmAttachError`].
    pub fn attach(&self, sink: Arc<dyn CmSink>) -> Result<(), CmAttachError> {
        let engine = &*self.engine;
        if engine.is_orphan() {
            return Err(CmAttachError::Orphan);
        }
        let slot = engine.with_lane(|lane| lane.table.first_slot(&engine.slots))?;
        {
            let mut state = lock(&engine.cm.state);
            if state.sink.is_some() {
                return Err(CmAttachError::Busy);
            }
            state.machine(slot, engine.config.cm_response_timeout);
            state.sink = Some(sink);
        }
        // There may be a new slot, whose sockets the background thread must watch.
        engine.waker.wake();
        Ok(())
    }

    /// Asks for a connection: REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.config.peers.check(params.path.remote.to_ip())?;
        self.engine.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.connect(now, params))
    }

    /// Accepts a connection that was asked for: REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Result<(), CmCallError> {
        self.engine.find_peer(conn);
        self.engine.command(|machine, now| machine.accept(now, conn, params))
    }

    /// The queue pair of a connection that was accepted is up: RTU.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn ready_to_use(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.find_peer(conn);
        self.engine.command(|machine, _| machine.ready_to_use(conn, private_data))
    }

    /// Rejects a connection that was asked for, or was accepted: REJ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn reject(
        &self,
        conn: ConnId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmCallError> {
        self.engine.find_peer(conn);
        self.engine.command(|machine, now| machine.reject(now, conn, reason, info, private_data))
    }

    /// Ends a connection, or answers its end by the peer: DREQ or DREP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn disconnect(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.find_peer(conn);
        self.engine.command(|machine, now| machine.disconnect(now, conn, private_data))
    }

    /// The queue pair has received its first message, so the RTU will not be waited for.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn notify_established(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.engine.command(|machine, _| machine.notify_established(conn))
    }

    /// Asks for the datagram queue pair of a service: SIDR_REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_request(&self, params: &SidrParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.config.peers.check(params.path.remote.to_ip())?;
        self.engine.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.sidr_request(now, params))
    }

    /// Answers such a question: SIDR_REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Result<(), CmCallError> {
        self.engine.command(|machine, now| machine.sidr_reply(now, conn, reply))
    }

    /// The application has heard of the request: it no longer counts in its listener's backlog.
    /// Unknown connections are ignored.
    pub fn request_taken(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.request_taken(conn);
            Ok(())
        });
    }

    /// The application has no room for the request: it is as if it had not come, and the peer asks
    /// again. Unknown connections are ignored.
    pub fn ignore(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.ignore(conn);
            Ok(())
        });
    }

    /// Forgets a connection or exchange, and tells the peer where that is due. Unknown ones are
    /// ignored.
    pub fn destroy(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, now| {
            machine.destroy(now, conn);
            Ok(())
        });
    }

    /// To be called by a thread before it waits for an event. A thread that polled completions
    /// until now has kept the background thread away from the sockets; this brings it back at once,
    /// not after the `takeover_us` of the settings. Costs nothing where nobody polls.
    pub fn about_to_wait(&self) {
        if !self.engine.is_orphan() {
            self.engine.caller_rests();
        }
    }

    /// How many connections, exchanges and listeners there are.
    pub fn occupancy(&self) -> CmOccupancy {
        if self.engine.is_orphan() {
            return CmOccupancy::default();
        }
        let state = lock(&self.engine.cm.state);
        state.machine.as_ref().map(Cm::occupancy).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
