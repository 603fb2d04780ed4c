//! Events before they are taken: entries of the queues of channels.

use std::net::SocketAddr;
use std::sync::Arc;

use vernic_proto::cm::{self, CmPath, ConnId};
use vernic_wire::cm::{Req, SidrReq};
use vernic_wire::{Gid, Mtu};

use super::order::IdEvents;
use crate::device::Device;
use crate::event::{EventKind, Param};
use crate::param::Depths;

/// An event before it is taken.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The id that it counts on: the listener's, of a request.
    pub(crate) events: Arc<IdEvents>,
    pub(crate) what: What,
}

/// What an entry says.
#[derive(Debug)]
pub(crate) enum What {
    /// Something that is decided already.
    Decided { kind: EventKind, status: i32, param: Param },
    /// A multicast group is joined.
    Joined { gid: Gid },
    /// A peer asks.
    Request(Box<Request>),
    /// Something came of the exchange with the peer.
    Cm(cm::EventKind),
    /// The same, of iWARP.
    Stream(StreamEvent),
}

/// A request that nobody has taken.
#[derive(Debug)]
pub(crate) struct Request {
    /// Of the id that it becomes.
    pub(crate) events: Arc<IdEvents>,
    pub(crate) device: Arc<Device>,
    pub(crate) conn: ConnId,
    pub(crate) path: CmPath,
    /// Our address, with the listener's port.
    pub(crate) local: SocketAddr,
    /// The peer's address and port.
    pub(crate) peer: SocketAddr,
    pub(crate) asked: Asked,
}

/// What a peer asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    Connection(Box<Req>),
    Datagrams(Box<SidrReq>),
    Stream(StreamRequest),
}

impl Asked {
    /// Bytes that packets on the path are to have at most, if any are to go there.
    pub(super) fn path_mtu(&self) -> Option<Mtu> {
        match self {
            Self::Connection(req) => Mtu::from_code(req.path_mtu),
            Self::Datagrams(_) | Self::Stream(_) => None,
        }
    }
}

/// What a peer asks for over a stream.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) private_data: Vec<u8>,
    /// From this side's point of view, as far as the device goes.
    pub(crate) depths: Depths,
}

/// What came of a connection over a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The peer has accepted.
    Replied,
    /// It came to nothing, in these words.
    Failed { kind: EventKind, status: i32, private_data: Vec<u8> },
    /// The passive side may send.
    Established,
    /// It is over.
    Ended,
}
