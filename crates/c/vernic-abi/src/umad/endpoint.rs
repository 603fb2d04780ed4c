//! The other side of an open port: the fabric process, or a RoCE device of this process.
//!
//! Both take registrations and datagrams in the words of `vernic_attach`. A RoCE device has its
//! agents in the engine ([`MadAgents`]), and refuses at once what it cannot send.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vernic_attach::{AgentId, MadPort, Registration, UserMad};
use vernic_engine::Context;
use vernic_engine::management::{self as mad, MadAgents, MadError};
use vernic_wire::Lid;
use vernic_wire::mad::MadAddress;

use crate::boundary::Failure;
use crate::object::lock;

/// What an open port sends to and receives from.
pub(super) enum Endpoint {
    /// The fabric process.
    Fabric(MadPort),
    /// A RoCE device, opened for this port alone.
    Roce {
        /// The agents of the device.
        agents: MadAgents,
        /// The device, which is closed with the port.
        context: Arc<Context>,
        /// A datagram that was put back.
        held: Mutex<Option<UserMad>>,
    },
}

impl Endpoint {
    /// Opens a RoCE device.
    pub(super) fn roce(context: Arc<Context>) -> Result<Self, Failure> {
        let agents = context.management().map_err(|error| failure(&error))?;
        Ok(Self::Roce { agents, context, held: Mutex::default() })
    }

    pub(super) fn register(&self, wanted: &Registration) -> Result<AgentId, Failure> {
        match self {
            Self::Fabric(port) => Ok(port.register(wanted)?),
            Self::Roce { agents, .. } => {
                let registered = agents.register(&registration_of(wanted));
                registered.map(|id| AgentId(id.0)).map_err(|error| failure(&error))
            }
        }
    }

    pub(super) fn unregister(&self, agent: AgentId) -> Result<(), Failure> {
        match self {
            Self::Fabric(port) => Ok(port.unregister(agent)?),
            Self::Roce { agents, .. } => {
                agents.unregister(mad::AgentId(agent.0));
                Ok(())
            }
        }
    }

    pub(super) fn send(&self, mad: &UserMad) -> Result<(), Failure> {
        match self {
            Self::Fabric(port) => {
                port.send(mad).map_err(|error| Failure::new(libc::EIO, error.to_string()))
            }
            Self::Roce { agents, .. } => {
                let (agent, to) = (mad::AgentId(mad.agent.0), mad.address);
                let sent = agents.send(agent, to, &mad.mad, mad.timeout_ms, mad.retries);
                sent.map_err(|error| failure(&error))
            }
        }
    }

    /// Returns the next datagram; `None` if there is none.
    pub(super) fn recv(&self) -> Result<Option<UserMad>, Failure> {
        match self {
            Self::Fabric(port) => match port.recv() {
                Ok(mad) => Ok(Some(mad)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(Failure::new(libc::EIO, format!("the fabric is gone: {error}"))),
            },
            Self::Roce { agents, context, held } => {
                if let Some(mad) = lock(held).take() {
                    agents.set_put_back(false);
                    return Ok(Some(mad));
                }
                context.try_progress();
                let delivery = agents.receive().map_err(|error| failure(&error))?;
                Ok(delivery.map(user_mad))
            }
        }
    }

    /// Puts back a datagram that did not fit: the next [`recv`](Self::recv) has it, and the
    /// descriptor is readable until then.
    pub(super) fn put_back(&self, mad: UserMad) {
        match self {
            Self::Fabric(port) => port.put_back(mad),
            Self::Roce { agents, held, .. } => {
                *lock(held) = Some(mad);
                agents.set_put_back(true);
            }
        }
    }

    /// Whether there is a datagram, for a caller that may wait for one next.
    pub(super) fn has_datagram(&self) -> Result<bool, Failure> {
        match self {
            Self::Fabric(port) => Ok(port.wait(Some(Duration::ZERO))?),
            Self::Roce { agents, context, held } => {
                context.try_progress();
                agents.about_to_wait();
                Ok(lock(held).is_some() || agents.has_delivery())
            }
        }
    }

    /// Prepares for a wait on the descriptor.
    pub(super) fn about_to_wait(&self) {
        if let Self::Roce { agents, .. } = self {
            agents.about_to_wait();
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        match self {
            Self::Fabric(port) => port.as_fd().as_raw_fd(),
            Self::Roce { agents, .. } => agents.fd().as_raw_fd(),
        }
    }
}

fn failure(error: &MadError) -> Failure {
    let errno = match error {
        MadError::Orphan => libc::EIO,
        MadError::NoAgents(_) => libc::EOPNOTSUPP,
        MadError::Register(mad::RegisterError::InUse { .. }) | MadError::Taken(_) => libc::EBUSY,
        MadError::Register(mad::RegisterError::TooMany(_)) | MadError::Slot(_) => libc::ENOMEM,
        MadError::Send(mad::SendError::TooMany { .. }) => libc::ENOMEM,
        MadError::NoSubnetManagement => libc::EPROTONOSUPPORT,
        MadError::Os(_) => libc::EMFILE,
        _ => libc::EINVAL,
    };
    Failure::new(errno, error.to_string())
}

fn registration_of(wanted: &Registration) -> mad::Registration {
    let Registration { class, class_version, methods, oui, .. } = *wanted;
    mad::Registration::of_user(class, class_version, methods, oui, wanted.wants_rmpp())
}

/// A delivery as a program sees it.
fn user_mad(delivery: mad::Delivery) -> UserMad {
    let status = match delivery.outcome {
        mad::Outcome::Received => 0,
        mad::Outcome::TimedOut => libc::ETIMEDOUT,
        mad::Outcome::Aborted(_) => libc::ECONNABORTED,
    };
    UserMad {
        agent: AgentId(delivery.agent.0),
        status: status as u32,
        address: MadAddress { lid: Lid::RESERVED, ..delivery.address },
        mad: delivery.mad,
        ..UserMad::default()
    }
}
