//! Management agents of programs on a RoCE device: the calls that the layers above make.
//!
//! Called by `libibumad.so.3` through [`MadAgents`]. A command changes the agents (`mad.rs`) under
//! their lock, and rings the lane, which sends.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vernic_io::NameError;
use vernic_io::host::SlotError;
use vernic_proto::mad::{Agents, AgentsConfig};
use vernic_wire::{Lid, Qpn};

pub use vernic_proto::mad::{
    AgentId, Delivery, MadAddress, MadGrh, Outcome, RegisterError, Registration, SendError,
};

use crate::error::ORPHAN;
use crate::progress::engine::Engine;
use crate::support::events::{EventQueue, lock};

/// The reason why a management call fails. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("the device was {ORPHAN}")]
    Orphan,
    /// The device has no agents of its own.
    #[error(
        "{0} has no management agents: RoCE devices have, and adapters in a fabric have theirs in the \
         fabric process"
    )]
    NoAgents(String),
    /// The agent cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Another process of the host takes the class, or no name can be had.
    #[error("the class is taken on this host: {0}")]
    Taken(NameError),
    /// There is no free process slot, which the transaction ids need.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The datagram cannot be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A datagram of subnet management.
    #[error("RoCE has no queue pair 0, and so no subnet management (classes 0x01 and 0x81)")]
    NoSubnetManagement,
    /// The datagram has a LID and no GRH.
    #[error("LID {0} without a GRH: RoCE has no LIDs, so name the other end by GID")]
    NoGrh(Lid),
    /// The GID table has no such row.
    #[error("the device has no GID of index {0}")]
    NoGid(u8),
    /// The system has no descriptor left.
    #[error("make an eventfd for datagrams: {0}")]
    Os(#[from] io::Error),
}

/// The management agents of this process on a RoCE device. They end with the device.
pub struct MadAgents {
    engine: Arc<Engine>,
    bell: Arc<EventQueue<()>>,
}

impl fmt::Debug for MadAgents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadAgents({})", self.engine.info().name)
    }
}

impl MadAgents {
    pub(crate) fn new(engine: Arc<Engine>) -> Result<Self, MadError> {
        if engine.is_orphan() {
            return Err(MadError::Orphan);
        }
        if !engine.mads.has_agents() {
            return Err(MadError::NoAgents(engine.info().name.clone()));
        }
        let slot = engine.with_lane(|lane| lane.first_slot(engine.slots()))?;
        {
            let mut state = lock(&engine.mads.state);
            // The machine that was there has answered requests, and knows no slot.
            if !state.agents.as_ref().is_some_and(Agents::has_agents) {
                let id_bits = crate::cm::NUMBER_BITS;
                let id_base = u32::from(slot.value()) << id_bits;
                let config = AgentsConfig { id_base, id_bits, ..AgentsConfig::default() };
                state.agents = Some(Agents::new(config));
            }
        }
        let bell = engine.mads.bell()?;
        // If a new process slot was taken, the background thread must watch its sockets.
        engine.waker().wake();
        Ok(Self { engine, bell })
    }

    fn check(&self) -> Result<(), MadError> {
        if self.engine.is_orphan() { Err(MadError::Orphan) } else { Ok(()) }
    }

    /// Registers an agent. If it takes requests, its class is taken from other processes of the
    /// host. An agent of subnet management that takes none is registered for nothing, since tools
    /// have one whatever they do.
    ///
    /// # Errors
    /// [`MadError`].
    pub fn register(&self, wanted: &Registration) -> Result<AgentId, MadError> {
        self.check()?;
        if wanted.qpn == Qpn::SMI && wanted.methods != 0 {
            return Err(MadError::NoSubnetManagement);
        }
        let mads = &self.engine.mads;
        let _alone = lock(&mads.registering);
        if wanted.methods != 0 {
            mads.claim(wanted).map_err(MadError::Taken)?;
        }
        let registered = {
            let mut state = lock(&mads.state);
            let agents = state.agents.get_or_insert_with(|| Agents::new(AgentsConfig::default()));
            agents.register(wanted)
        };
        if registered.is_err() && wanted.methods != 0 {
            mads.release(wanted);
        }
        self.engine.waker().wake();
        Ok(registered?)
    }

    /// Removes an agent. Returns whether there was one.
    pub fn unregister(&self, agent: AgentId) -> bool {
        if self.check().is_err() {
            return false;
        }
        let mads = &self.engine.mads;
        let _alone = lock(&mads.registering);
        let registration = {
            let mut state = lock(&mads.state);
            let Some(agents) = &mut state.agents else { return false };
            let Some(registration) = agents.registration(agent).copied() else { return false };
            agents.unregister(agent);
            state.ring_or_still();
            registration
        };
        if registration.methods != 0 {
            mads.release(&registration);
            // The background thread must stop watching the sockets of the name, which stay open
            // for as long.
            self.engine.waker().wake();
        }
        true
    }

    /// Sends a datagram, or a message in segments, as
    /// [`Agents::send`](vernic_proto::mad::Agents::send) does. Without a GRH it goes to this device
    /// itself.
    ///
    /// # Errors
    /// [`MadError`].
    pub fn send(
        &self,
        agent: AgentId,
        address: MadAddress,
        message: &[u8],
        timeout_ms: u32,
        retries: u32,
    ) -> Result<(), MadError> {
        self.check()?;
        if address.grh.is_none() && address.lid != Lid::RESERVED {
            return Err(MadError::NoGrh(address.lid));
        }
        let index = address.grh.map_or(0, |grh| grh.gid_index);
        if self.engine.gid_rows().iter().all(|row| row.index != index) {
            return Err(MadError::NoGid(index));
        }
        {
            let mut state = lock(&self.engine.mads.state);
            let agents = state.agents.as_mut().ok_or(SendError::NoAgent(agent))?;
            if agents.registration(agent).is_some_and(|agent| agent.qpn == Qpn::SMI) {
                return Err(MadError::NoSubnetManagement);
            }
            agents.send(agent, address, message, timeout_ms, retries)?;
        }
        self.engine.kick_mads();
        Ok(())
    }

    /// Returns the next datagram for an agent of this process; `None` if there is none.
    ///
    /// # Errors
    /// [`MadError::Orphan`].
    pub fn receive(&self) -> Result<Option<Delivery>, MadError> {
        self.check()?;
        Ok(lock(&self.engine.mads.state).take_delivery())
    }

    /// Whether a datagram waits.
    pub fn has_delivery(&self) -> bool {
        self.check().is_ok() && lock(&self.engine.mads.state).has_delivery()
    }

    /// Notes whether the program has put a datagram back, for which the descriptor is readable.
    pub fn set_put_back(&self, is_put_back: bool) {
        if self.check().is_ok() {
            let mut state = lock(&self.engine.mads.state);
            state.is_put_back = is_put_back;
            state.ring_or_still();
        }
    }

    /// Returns the descriptor that is readable while a datagram waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Makes the background thread watch the sockets again at once: for a thread that is about to
    /// wait.
    pub fn about_to_wait(&self) {
        if !self.engine.is_orphan() {
            self.engine.caller_sleeps();
        }
    }
}
