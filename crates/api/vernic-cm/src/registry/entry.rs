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
    /// The counter of the id that the event belongs to; for a request, the listener's.
    pub(crate) events: Arc<IdEvents>,
    pub(crate) what: EntryContent,
}

/// The content of an entry.
#[derive(Debug)]
pub(crate) enum EntryContent {
    /// An event that is complete.
    Decided { kind: EventKind, status: i32, param: Param },
    /// The id has joined a multicast group.
    Joined { gid: Gid },
    /// A peer's request.
    Request(Box<Request>),
    /// An event of the exchange of messages.
    Cm(cm::EventKind),
    /// An event of an iWARP connection.
    Stream(StreamEvent),
}

/// A request that waits to be taken.
#[derive(Debug)]
pub(crate) struct Request {
    /// The counter of the id that the request becomes.
    pub(crate) events: Arc<IdEvents>,
    pub(crate) device: Arc<Device>,
    pub(crate) conn: ConnId,
    pub(crate) path: CmPath,
    /// Whether the addresses are GIDs.
    pub(crate) is_native: bool,
    /// The local address, with the listener's port.
    pub(crate) local: SocketAddr,
    /// The peer's address and port.
    pub(crate) peer: SocketAddr,
    pub(crate) kind: RequestKind,
}

/// What a peer asks for.
#[derive(Debug)]
pub(crate) enum RequestKind {
    Connection(Box<Req>),
    Datagrams(Box<SidrReq>),
    Stream(StreamRequest),
}

impl RequestKind {
    /// The path MTU that a connection asks for.
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
    /// The depths from this side's point of view, within the device's limits.
    pub(crate) depths: Depths,
}

/// An event of an iWARP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The peer has accepted.
    Replied,
    /// The connection failed; the event reports this kind and status.
    Failed { kind: EventKind, status: i32, private_data: Vec<u8> },
    /// The passive side may send.
    Established,
    /// The connection is over.
    Ended,
}
