//! The agent of communication management (CM): the calls of the layers above.
//!
//! `vernic-cm` calls it through [`CmAgent`]. A command changes the machine (`cm.rs`) and unlocks
//! it. Before the command returns, the lane sends the resulting messages (`Engine::send_promised`).
//!
//! | file | what |
//! |---|---|
//! | `agent.rs` | the commands |
//! | `agent/impatient.rs` | requests that must not wait for a listener |
//! | `agent/listen.rs` | listeners and their names among the processes of this host |
//! | `agent/promise.rs` | what is sent before a call returns, and what a process repeats when it
//! ends |

use std::fmt;
use std::sync::Arc;

use vernic_io::host::SlotError;
use vernic_proto::Time;
use vernic_proto::cm::{
    AcceptParams, Cm, CmError, CmOccupancy, ConnId, ConnectParams, SidrParams, SidrReply,
};
use vernic_wire::cm::RejReason;

use crate::cm::{CmSink, State};
use crate::config::PeerRefused;
use crate::error::ORPHAN;
use crate::progress::engine::Engine;
use crate::support::events::lock;

mod impatient;
mod listen;
mod promise;

pub use listen::ListenError;

/// The reason why the agent refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmCallError {
    /// The device was opened before this process was forked.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// No sink is attached for the device's events.
    #[error("no sink is attached to the device's connection manager: CmAgent::attach comes first")]
    NotAttached,
    /// The peer is outside of the setting `peers`.
    #[error(transparent)]
    NotAllowed(#[from] PeerRefused),
    /// The CM machine refuses.
    #[error(transparent)]
    Cm(#[from] CmError),
}

/// The reason why a sink cannot be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmAttachError {
    /// The device was opened before this process was forked.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// A sink is attached already.
    #[error("the device's connection manager tells its events to somebody else")]
    Busy,
    /// There is no process slot for the communication ids.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

impl Engine {
    /// Gives the machine a command, reports the resulting events, and sends the resulting messages
    /// as far as that is possible soon.
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

/// The connection manager of a device: the machine `vernic_proto::cm::Cm`, connected to the
/// network.
///
/// Its calls do not wait for peers. A call that sends a message may wait until another process of
/// this host says where it receives, for the setting `peer_query_us` at most.
///
/// When a call returns, the kernel has its message, as with a kernel driver. The message arrives
/// even if the process is then killed or ends by `_exit`. The message leaves later only if the lane
/// stays taken for 100 ms, or the socket stays full for as long.
pub struct CmAgent {
    engine: Arc<Engine>,
}

impl fmt::Debug for CmAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmAgent({})", self.engine.info().name)
    }
}

impl CmAgent {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Sends events to `sink` from now on; all other calls need a sink. The device keeps the sink
    /// until it is closed, so a sink that holds the device keeps it open for ever.
    ///
    /// # Errors
    /// [`CmAttachError`].
    pub fn attach(&self, sink: Arc<dyn CmSink>) -> Result<(), CmAttachError> {
        let engine = &*self.engine;
        if engine.is_orphan() {
            return Err(CmAttachError::Orphan);
        }
        let slot = engine.with_lane(|lane| lane.first_slot(engine.slots()))?;
        {
            let mut state = lock(&engine.cm.state);
            if state.sink.is_some() {
                return Err(CmAttachError::Busy);
            }
            state.machine(slot, engine.config().cm_response_timeout);
            state.sink = Some(sink);
        }
        // There may be a new slot, whose sockets the background thread must watch.
        engine.waker().wake();
        Ok(())
    }

    /// Requests a connection: REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.config().peers.check(params.path.remote.to_ip())?;
        self.engine.cm.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.connect(now, params))
    }

    /// Accepts a requested connection: REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.accept(now, conn, params))
    }

    /// Reports to the peer that the queue pair of an accepted connection is up: RTU.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn ready_to_use(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, _| machine.ready_to_use(conn, private_data))
    }

    /// Rejects a connection that was requested or accepted: REJ.
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
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.reject(now, conn, reason, info, private_data))
    }

    /// Ends a connection, or answers the peer's end of it: DREQ or DREP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn disconnect(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.disconnect(now, conn, private_data))
    }

    /// Notes that the queue pair has received its first message, so that the RTU is not waited for.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn notify_established(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.engine.command(|machine, _| machine.notify_established(conn))
    }

    /// Requests the datagram queue pair of a service: SIDR_REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_request(&self, params: &SidrParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.config().peers.check(params.path.remote.to_ip())?;
        self.engine.cm.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.sidr_request(now, params))
    }

    /// Answers such a request: SIDR_REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Result<(), CmCallError> {
        self.engine.command(|machine, now| machine.sidr_reply(now, conn, reply))
    }

    /// Notes that the application has taken the request, which no longer counts in its listener's
    /// backlog. Unknown connections are ignored.
    pub fn request_taken(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.request_taken(conn);
            Ok(())
        });
    }

    /// Drops a request for which the application has no room, as if the request had not come. The
    /// peer asks again. Unknown connections are ignored.
    pub fn ignore(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.ignore(conn);
            Ok(())
        });
    }

    /// Forgets a connection or exchange, and notifies the peer where necessary. Unknown ones are
    /// ignored.
    pub fn destroy(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, now| {
            machine.destroy(now, conn);
            Ok(())
        });
    }

    /// Brings the background thread back to the sockets at once. A thread calls this before it
    /// waits for an event. While a thread polls completions, the background thread stays away, and
    /// otherwise returns only after the setting `takeover_us`. Costs nothing if no thread polls.
    pub fn about_to_wait(&self) {
        if !self.engine.is_orphan() {
            self.engine.caller_rests();
        }
    }

    /// Returns how many connections, exchanges and listeners there are.
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
