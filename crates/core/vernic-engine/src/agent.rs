//! The agent of communication management (CM): the calls that the layers above make.
//!
//! Called by `vernic-cm` through [`CmAgent`]. A command changes the CM machine (`cm.rs`) under its
//! lock. Before the command returns, the lane sends the messages that the machine has made
//! (`Engine::send_promised`).
//!
//! | file | what |
//! |---|---|
//! | `agent.rs` | the commands |
//! | `agent/connect_now.rs` | requests that fail at once if no process listens |
//! | `agent/listen.rs` | listeners, and the names by which processes of this host see them |
//! | `agent/flush.rs` | sending messages before their call returns, and DREQs at the end |

use std::fmt;
use std::sync::Arc;

use vernic_io::host::SlotError;
use vernic_proto::Time;
use vernic_proto::cm::{
    AcceptParams, AlternatePath, Cm, CmError, CmOccupancy, CmPath, ConnId, ConnectParams,
    LapParams, SidrParams, SidrReply,
};
use vernic_wire::cm::{AprStatus, RejReason};

use crate::cm::{CmSink, State};
use crate::config::PeerRefused;
use crate::error::ORPHAN;
use crate::progress::engine::Engine;
use crate::support::events::lock;

mod connect_now;
mod flush;
mod listen;

pub use listen::ListenError;

/// The reason for which the agent refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmCallError {
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// No sink for the device's events was attached.
    #[error("no sink is attached to the device's connection manager: CmAgent::attach comes first")]
    NotAttached,
    /// The setting `peers` does not allow the peer.
    #[error(transparent)]
    NotAllowed(#[from] PeerRefused),
    /// The CM machine refuses the call.
    #[error(transparent)]
    Cm(#[from] CmError),
}

/// The reason for which a sink cannot be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmAttachError {
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// Another sink is attached already.
    #[error("the device's connection manager tells its events to somebody else")]
    Busy,
    /// There is no free process slot, which the communication ids need.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

impl Engine {
    /// Refuses a peer that the setting `peers` does not allow: IP addresses, which InfiniBand has
    /// none of.
    fn check_peer(&self, path: &CmPath) -> Result<(), PeerRefused> {
        match path.lids {
            Some(_) => Ok(()),
            None => self.config().peers.check(path.remote.to_ip()),
        }
    }

    /// Runs a command of the CM machine, reports the events that follow, and sends the messages
    /// that follow, if that is possible within 100 ms (`flush.rs`).
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
            state.report_events();
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

/// The connection manager of a device: makes, accepts and ends connections with CM messages. It
/// connects the machine `vernic_proto::cm::Cm` to the network.
///
/// No call waits for a peer's answer to a message. A call that sends a message may first ask
/// another process of this host at which port that process receives, and wait up to the setting
/// `peer_query_us` for its answer.
///
/// When a call returns, the kernel has its message, as with a driver in the kernel. So the message
/// arrives even if the process is then killed or ends by `_exit`. It leaves later only if another
/// thread keeps the lane, or the socket stays full, for 100 ms.
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

    /// Sends the events of the agent to `sink` from now on. All other calls need a sink. The device
    /// keeps the sink until it is closed, so a sink that holds a reference to the device keeps it
    /// open for ever.
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
        // If a new process slot was taken, the background thread must watch its sockets.
        engine.waker().wake();
        Ok(())
    }

    /// Requests a connection. Sends REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.check_peer(&params.path)?;
        self.check_alternate(params.alternate.as_ref())?;
        self.engine.cm.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.connect(now, params))
    }

    /// Checks that the setting `peers` allows the other end of an alternate path.
    fn check_alternate(&self, alternate: Option<&AlternatePath>) -> Result<(), CmCallError> {
        let Some(alternate) = alternate else { return Ok(()) };
        Ok(self.engine.check_peer(&alternate.path)?)
    }

    /// Asks the peer to load an alternate path into its queue pair. Sends LAP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn load_alternate_path(&self, conn: ConnId, params: &LapParams) -> Result<(), CmCallError> {
        self.check_alternate(Some(&params.alternate))?;
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.load_alternate_path(now, conn, params))
    }

    /// Answers a peer that asked for an alternate path to be loaded. Sends APR.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn answer_lap(&self, conn: ConnId, status: AprStatus) -> Result<(), CmCallError> {
        self.engine.command(|machine, now| machine.answer_lap(now, conn, status))
    }

    /// Accepts a requested connection. Sends REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.accept(now, conn, params))
    }

    /// Informs the peer that the queue pair of an accepted connection is ready. Sends RTU.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn ready_to_use(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, _| machine.ready_to_use(conn, private_data))
    }

    /// Rejects a connection that the peer has requested or accepted. Sends REJ.
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

    /// Ends a connection, or confirms that the peer has ended it. Sends DREQ or DREP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn disconnect(&self, conn: ConnId, private_data: &[u8]) -> Result<(), CmCallError> {
        self.engine.cm.find_peer(conn);
        self.engine.command(|machine, now| machine.disconnect(now, conn, private_data))
    }

    /// Notes that the queue pair has received its first message, so that the connection is
    /// established without the RTU.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn notify_established(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.engine.command(|machine, _| machine.notify_established(conn))
    }

    /// Asks for the queue pair number of a datagram service. Sends SIDR_REQ.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_request(&self, params: &SidrParams<'_>) -> Result<ConnId, CmCallError> {
        self.engine.check_peer(&params.path)?;
        self.engine.cm.find_listener(&params.path, params.service);
        self.engine.command(|machine, now| machine.sidr_request(now, params))
    }

    /// Answers a request of [`sidr_request`](Self::sidr_request). Sends SIDR_REP.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sidr_reply(&self, conn: ConnId, reply: &SidrReply<'_>) -> Result<(), CmCallError> {
        self.engine.command(|machine, now| machine.sidr_reply(now, conn, reply))
    }

    /// Notes that the application has taken a request out of its event queue. From then on, the
    /// request does not count in its listener's backlog. Does nothing for an unknown connection.
    pub fn request_taken(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.request_taken(conn);
            Ok(())
        });
    }

    /// Drops a request that the application has no room for, as if it had not come. The peer will
    /// repeat it. Does nothing for an unknown connection.
    pub fn ignore(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, _| {
            machine.ignore(conn);
            Ok(())
        });
    }

    /// Forgets a connection or an exchange of SIDR messages, and notifies the peer if necessary.
    /// Does nothing for an unknown one.
    pub fn destroy(&self, conn: ConnId) {
        let _ = self.engine.command(|machine, now| {
            machine.destroy(now, conn);
            Ok(())
        });
    }

    /// Makes the background thread watch the sockets again at once. A thread calls this before it
    /// waits for an event. Without this call, the background thread leaves the sockets to threads
    /// that poll completions, and returns only when none has polled for the setting `takeover_us`.
    /// Costs nothing if no thread polls.
    pub fn about_to_wait(&self) {
        if !self.engine.is_orphan() {
            self.engine.caller_sleeps();
        }
    }

    /// Returns the numbers of connections, exchanges of SIDR messages, and listeners.
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
