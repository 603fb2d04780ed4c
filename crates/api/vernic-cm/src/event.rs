//! Events of ids.

use vernic_engine::AddressVector;
use vernic_wire::{Qkey, Qpn};

/// What happened to an id. Values are those of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// The destination has a device and a path.
    AddrResolved = 0,
    /// It has none.
    AddrError = 1,
    /// The route is known: the id may connect.
    RouteResolved = 2,
    /// There is no route.
    RouteError = 3,
    /// A peer wants to connect: [`Event::id`](crate::Event::id) is new, [`Event::listen_id`](crate::Event::listen_id) heard of it.
    ConnectRequest = 4,
    /// The peer accepted, and the program brings its own queue pair up: then
    /// [`Id::establish`](crate::Id::establish).
    ConnectResponse = 5,
    /// The connection failed on this side.
    ConnectError = 6,
    /// The peer does not answer, or does not serve datagrams there.
    Unreachable = 7,
    /// The peer refused.
    Rejected = 8,
    /// The connection is there; of a datagram id, the peer's queue pair is known.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The group is joined.
    MulticastJoin = 12,
    /// The group is not, or no more, joined.
    MulticastError = 13,
    /// The address moved to another device.
    AddrChange = 14,
    /// No packet of the ended connection can come any more: its queue pair may be used again.
    TimewaitExit = 15,
    /// The program found the addresses that it looked for, by a name.
    AddrInfoResolved = 16,
    /// It found none.
    AddrInfoError = 17,
    /// What the program says it means, with [`Param::Arg`].
    User = 18,
    /// As `User`, of a library on the program's behalf.
    Internal = 19,
}

impl EventKind {
    /// Whether only a program writes it ([`Id::write_event`](crate::Id::write_event)).
    pub fn is_written(self) -> bool {
        self >= Self::AddrInfoResolved
    }
}

/// What an event carries beside its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// Nothing.
    None,
    /// Of a connection.
    Conn(ConnInfo),
    /// Of a datagram id or a multicast group.
    Ud(UdInfo),
    /// Of the program's own events.
    Arg(u64),
}

/// The peer's side of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnInfo {
    /// The peer's private data. Its length on the wire is fixed, so it ends in zeros: 56 bytes of a
    /// request, 196 of an acceptance, 148 of a rejection; empty where the message carries none.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer that this side may have to keep: the peer's initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding: the peer's responder resources.
    pub initiator_depth: u8,
    /// Whether the peer's receive queue gives credits.
    pub flow_control: bool,
    /// Repetitions after silence that the active side asks for.
    pub retry_count: u8,
    /// Repetitions after RNR NAK that the peer asks for.
    pub rnr_retry_count: u8,
    /// Whether the peer receives from a shared queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: Qpn,
}

/// Where datagrams go: to a peer, or to a multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdInfo {
    /// The peer's private data: 180 bytes of a request, 136 of an answer; ends in zeros.
    pub private_data: Vec<u8>,
    /// What an address handle to there is made from.
    pub av: AddressVector,
    /// The queue pair there; [`Qpn::MULTICAST`] of a group.
    pub qp_num: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// What [`Id::join_multicast`](crate::Id::join_multicast) was given; 0 of other events.
    pub context: usize,
}
