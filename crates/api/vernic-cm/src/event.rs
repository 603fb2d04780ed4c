//! What events of ids carry.

use vernic_engine::AddressVector;
use vernic_wire::{Qkey, Qpn};

/// What happened to an id. The values are those of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// The destination has a device and a path.
    AddrResolved = 0,
    /// The destination has no device or no path.
    AddrError = 1,
    /// The route is known, and the id may connect.
    RouteResolved = 2,
    /// There is no route.
    RouteError = 3,
    /// A peer wants to connect: [`Event::id`](crate::Event::id) is the new id,
    /// [`Event::listen_id`](crate::Event::listen_id) the listener.
    ConnectRequest = 4,
    /// The peer accepted. The program brings its own queue pair up, and then calls
    /// [`Id::establish`](crate::Id::establish).
    ConnectResponse = 5,
    /// The connection failed on this side.
    ConnectError = 6,
    /// The peer does not answer, or does not serve datagrams there.
    Unreachable = 7,
    /// The peer refused.
    Rejected = 8,
    /// The connection is established; for a datagram id, the peer's queue pair is known.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The device was removed.
    DeviceRemoval = 11,
    /// The group is joined.
    MulticastJoin = 12,
    /// The group could not be joined, or the membership ended.
    MulticastError = 13,
    /// The address moved to another device.
    AddrChange = 14,
    /// No packet of the ended connection can come any more: its queue pair may be used again.
    TimewaitExit = 15,
    /// The program resolved a name to addresses.
    AddrInfoResolved = 16,
    /// The program found no address for a name.
    AddrInfoError = 17,
    /// The program's own event, with [`Param::Arg`].
    User = 18,
    /// As `User`, but written by a library for the program.
    Internal = 19,
}

impl EventKind {
    /// Whether only programs write events of this kind
    /// ([`Id::write_event`](crate::Id::write_event)).
    pub fn is_written(self) -> bool {
        self >= Self::AddrInfoResolved
    }
}

/// What an event carries beside its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// Nothing.
    None,
    /// The peer's side of a connection.
    Conn(ConnInfo),
    /// The address of a datagram peer or of a multicast group.
    Ud(UdInfo),
    /// The argument of an event that the program wrote.
    Arg(u64),
}

/// The peer's side of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnInfo {
    /// The peer's private data. Its length on the wire is fixed, so the data end in zeros: 56 bytes
    /// in a request, 196 in an acceptance, 148 in a rejection; empty where the message carries
    /// none.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer that this side may have to keep: the peer's initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding: the peer's responder resources.
    pub initiator_depth: u8,
    /// Whether the peer's receive queue gives credits.
    pub flow_control: bool,
    /// How often the active side wants to retransmit after silence.
    pub retry_count: u8,
    /// How often the peer wants to retransmit after RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer receives from a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: Qpn,
}

/// Where to send datagrams: to a peer, or to a multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdInfo {
    /// The peer's private data: 180 bytes in a request, 136 in an answer; they end in zeros.
    pub private_data: Vec<u8>,
    /// The address vector for an address handle.
    pub av: AddressVector,
    /// The destination queue pair; [`Qpn::MULTICAST`] for a group.
    pub qp_num: Qpn,
    /// The Q_Key of the destination queue pair.
    pub qkey: Qkey,
    /// The context that [`Id::join_multicast`](crate::Id::join_multicast) was given; 0 in other
    /// events.
    pub context: usize,
}
