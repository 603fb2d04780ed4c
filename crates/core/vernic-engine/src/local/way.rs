//! The route of a queue pair's packets: by the link, or through the ring of a local peer.

use vernic_io::neighbour::NeighbourId;

/// The route of a connected queue pair's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the link, until there is a ring.
    #[default]
    Wire,
    /// Through the ring to this local peer.
    Ring(NeighbourId),
    /// By the link until the queue pair is connected anew. The process that it was connected to is
    /// gone, and another process may have the slot now.
    Barred,
}

/// The routes of a queue pair's packets. Protected by the lock of the queue pair's core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpWay {
    pub(crate) requests: Way,
    /// The local peer that sent the last request through a ring; `None` if it came by the link.
    pub(crate) answers: Option<NeighbourId>,
    /// Whether the last response came through a ring.
    pub(crate) is_answered: bool,
    /// The process of this host that the queue pair is connected to. This process had the peer's
    /// slot when the path was found.
    pub(crate) process: Option<u32>,
}

impl QpWay {
    /// Whether the queue pair's requests go through memory.
    #[inline]
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.requests, Way::Ring(_))
    }

    /// Whether packets of the peer come through memory alone, so that packets by the link are not
    /// from the peer.
    ///
    /// Requests switch to a ring when all earlier requests are acknowledged, and never switch back.
    /// Responses take the route of their requests. So a packet that comes late by the link is a
    /// copy of one that was handled. This holds as long as the local peer stays connected: when
    /// either end disconnects, the queue pair's route begins anew.
    #[inline]
    pub(crate) fn excludes_link(&self, is_request: bool) -> bool {
        if is_request { self.answers.is_some() } else { self.is_answered }
    }
}

/// The route of a packet of an unreliable service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramWay {
    Wire,
    Ring(NeighbourId),
    /// Through a ring soon: the packet waits until none sent before it is on the wire.
    Wait,
}
