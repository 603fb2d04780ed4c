//! Which way the packets of a queue pair go: by the link, or through the ring of a neighbour.

use vernic_io::neighbour::NeighbourId;

/// Which way the requests of a connected queue pair go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the link, until there is a ring.
    #[default]
    Wire,
    /// Through the ring to this neighbour.
    Ring(NeighbourId),
    /// By the link until it is connected anew: the process that it was connected to is gone, and
    /// who has its slot now is another.
    Barred,
}

/// What a queue pair knows of its way. Under its core's lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpWay {
    pub(crate) requests: Way,
    /// Where the last request came from, if through a ring.
    pub(crate) answers: Option<NeighbourId>,
    /// The last response has come through a ring.
    pub(crate) is_answered: bool,
    /// The process of this host that it is connected to: who had the peer's slot when the path was
    /// found.
    pub(crate) process: Option<u32>,
}

impl QpWay {
    /// Whether its requests go through memory.
    #[inline]
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.requests, Way::Ring(_))
    }

    /// Whether packets of the peer's come through memory alone, so that those by the link are not
    /// its. Requests go over to a ring when none is without its acknowledgement, and never back,
    /// responses go the way of their requests; what is late on the link then is a copy of what was
    /// handled. It holds as long as the neighbour: when that is lost, by whichever end, the queue
    /// pair's way begins anew.
    #[inline]
    pub(crate) fn excludes_link(&self, is_request: bool) -> bool {
        if is_request { self.answers.is_some() } else { self.is_answered }
    }
}

/// Which way a packet of an unreliable service goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramWay {
    Wire,
    Ring(NeighbourId),
    /// To a ring soon: it waits until nothing is on the wire.
    Wait,
}
