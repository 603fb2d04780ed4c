//! The route of a queue pair's packets: by the link, or through the ring to a local peer.

use vernic_io::neighbour::NeighbourId;

/// The route of a connected queue pair's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the link. The queue pair changes to a ring when there is one.
    #[default]
    Wire,
    /// Through the ring to this local peer.
    Ring(NeighbourId),
    /// By the link, without a change to a ring, until the queue pair is connected anew: the peer's
    /// process is gone, and another process may have its slot now.
    Barred,
}

/// The routes of a queue pair's packets. Protected by the queue pair's lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpWay {
    pub(crate) requests: Way,
    /// The local peer from whose ring the last request came; `None` if it came by the link.
    /// Responses take the same route.
    pub(crate) answers: Option<NeighbourId>,
    /// Whether the last response to this queue pair came through a ring.
    pub(crate) is_answered: bool,
    /// The process id of the peer, if the peer is a process of this host. That process had the
    /// peer's slot when the path was resolved.
    pub(crate) process: Option<u32>,
}

impl QpWay {
    /// Whether the queue pair's requests go through a ring.
    #[inline]
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.requests, Way::Ring(_))
    }

    /// Whether the peer now sends requests (or responses, if not `is_request`) through a ring only,
    /// so that those that come by the link are not from the peer or are old.
    ///
    /// The peer's requests change to a ring only when all earlier ones are acknowledged, and do not
    /// change back. Its responses take the route of the requests. So a packet of the peer that
    /// comes late by the link is a copy of one that was handled before. When either process
    /// disconnects, the queue pair's routes begin anew.
    #[inline]
    pub(crate) fn excludes_link(&self, is_request: bool) -> bool {
        if is_request { self.answers.is_some() } else { self.is_answered }
    }
}

/// The route of one packet of UC or UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramWay {
    Wire,
    Ring(NeighbourId),
    /// Through a ring soon. The packet waits until all packets that were sent by the link before it
    /// have arrived.
    Wait,
}
