//! What carries the exchanges of a device's ids with their peers: the seam between RoCE and iWARP.
//!
//! What both have is a method here. Connecting, accepting and listening differ in what they take,
//! and each has its own in `id/`.

use std::sync::Arc;

use vernic_proto::cm::ConnId;
use vernic_wire::cm::RejReason;

use crate::device::Agent;
use crate::error::Error;
use crate::streams::Streams;

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    /// RoCE: messages over QP1.
    Messages(Arc<dyn Agent>),
    /// iWARP: a TCP connection per exchange.
    Streams(Arc<Streams>),
}

impl Carrier {
    /// Of RoCE, whom to ask for the rest.
    pub(crate) fn agent(&self) -> Option<&Arc<dyn Agent>> {
        match self {
            Self::Messages(agent) => Some(agent),
            Self::Streams(_) => None,
        }
    }

    /// Refuses a request; streams know no reason, nor what goes with it (`info`).
    ///
    /// # Errors
    /// [`Error::Cm`], [`Error::Stream`]: the peer has given up.
    pub(crate) fn reject(
        &self,
        conn: ConnId,
        reason: RejReason,
        info: &[u8],
        data: &[u8],
    ) -> Result<(), Error> {
        match self {
            Self::Messages(agent) => Ok(agent.reject(conn, reason, info, data)?),
            Self::Streams(streams) => streams.reject(conn, data),
        }
    }

    /// The program has the request.
    pub(crate) fn request_taken(&self, conn: ConnId) {
        if let Self::Messages(agent) = self {
            agent.request_taken(conn);
        }
    }

    /// Forgets a request for which there is no room.
    pub(crate) fn ignore(&self, conn: ConnId) {
        match self {
            Self::Messages(agent) => agent.ignore(conn),
            Self::Streams(streams) => streams.destroy(conn),
        }
    }

    /// Ends an exchange as its state asks for, and forgets it.
    pub(crate) fn destroy(&self, conn: ConnId) {
        match self {
            Self::Messages(agent) => agent.destroy(conn),
            Self::Streams(streams) => streams.destroy(conn),
        }
    }
}
