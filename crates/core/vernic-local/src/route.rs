//! The route of a queue pair's packets: by the link, or through the ring to a local peer.

use crate::process::LocalPeerId;

/// The route of a connected queue pair's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestRoute {
    /// By the link. The queue pair changes to a ring when there is one.
    #[default]
    Wire,
    /// Through the ring to this local peer.
    Ring(LocalPeerId),
    /// By the link, without a change to a ring, until the queue pair is connected anew: the peer's
    /// process is gone, and another process may have its slot now.
    PeerGone,
}

/// The routes of a queue pair's packets. Protected by the queue pair's lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpRoute {
    requests: RequestRoute,
    /// The local peer from whose ring the last request came; `None` if it came by the link.
    /// Responses take the same route.
    responses: Option<LocalPeerId>,
    /// Whether the last response to this queue pair came through a ring.
    is_answered: bool,
}

impl QpRoute {
    /// Returns the route of requests.
    #[inline]
    pub fn requests(&self) -> RequestRoute {
        self.requests
    }

    /// Whether the queue pair's requests go through memory.
    #[inline]
    pub fn is_ring(&self) -> bool {
        matches!(self.requests, RequestRoute::Ring(_))
    }

    /// Whether requests take the link until the queue pair is connected anew.
    #[inline]
    pub fn is_peer_gone(&self) -> bool {
        self.requests == RequestRoute::PeerGone
    }

    /// Returns the local peer through whose ring requests go, if they do.
    #[inline]
    pub fn request_ring(&self) -> Option<LocalPeerId> {
        match self.requests {
            RequestRoute::Ring(id) => Some(id),
            RequestRoute::Wire | RequestRoute::PeerGone => None,
        }
    }

    /// Returns the local peer through whose ring responses go, if they do.
    #[inline]
    pub fn answer_ring(&self) -> Option<LocalPeerId> {
        self.responses
    }

    /// Whether answers go through the ring that requests go through, so that they may go together.
    #[inline]
    pub fn answers_beside_requests(&self) -> bool {
        self.responses.is_some() && self.responses == self.request_ring()
    }

    /// Whether packets go through a ring of this local peer.
    pub fn uses(&self, id: LocalPeerId) -> bool {
        self.requests == RequestRoute::Ring(id) || self.responses == Some(id)
    }

    /// Whether packets of the peer come through memory alone, so that packets by the link are not
    /// from the peer.
    ///
    /// The peer's requests change to a ring only when all earlier ones are acknowledged, and do not
    /// change back. Its responses take the route of the requests. So a packet of the peer that
    /// comes late by the link is a copy of one that was handled before. When either process
    /// disconnects, the queue pair's routes begin anew.
    #[inline]
    pub fn excludes_link(&self, is_request: bool) -> bool {
        if is_request { self.responses.is_some() } else { self.is_answered }
    }

    /// Notes the route that a packet came by: the ring of a local peer, or the link. Returns true
    /// if it was a request that came by another route than the one before. The caller chooses the
    /// route of responses then.
    #[inline]
    pub fn note_arrival(&mut self, is_request: bool, via: Option<LocalPeerId>) -> bool {
        if !is_request {
            self.is_answered = via.is_some_and(|id| self.requests == RequestRoute::Ring(id));
        }
        is_request && self.responses != via
    }

    /// Sends responses through the ring of this local peer from now on, or by the link.
    pub fn answer_through(&mut self, ring: Option<LocalPeerId>) {
        self.responses = ring;
    }

    /// Sends requests through the ring to this local peer from now on.
    pub fn switch_to(&mut self, id: LocalPeerId) {
        self.requests = RequestRoute::Ring(id);
    }

    /// Sends everything by the link until the queue pair is connected anew.
    pub fn bar(&mut self) {
        *self = Self { requests: RequestRoute::PeerGone, ..Self::default() };
    }
}

/// The route of a request of UC or UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramRoute {
    /// By the link.
    Wire,
    /// Through the ring to this local peer.
    Ring(LocalPeerId),
    /// Through a ring soon. The packet waits until all packets that were sent by the link before it
    /// have arrived.
    Wait,
}
