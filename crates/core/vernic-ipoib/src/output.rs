//! What an interface gives its owner: where packets go, what is asked of SA and CM, events.

use std::net::IpAddr;

use vernic_wire::ipoib::{ConnectedData, Encapsulation, HardwareAddress};
use vernic_wire::sa::{McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::{Gid, Lid, Pkey, Qkey, Qpn, ServiceLevel};

use crate::connections::ConnectionId;
use crate::counters::DropReason;

/// What of a path stands in the GRH.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GlobalRoute {
    /// The destination.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// How datagrams get to a port or to a group: what an address handle is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    /// LID of the destination.
    pub dlid: Lid,
    /// Service level.
    pub service_level: ServiceLevel,
    /// Code of the path's rate (IBTA 15.2.5).
    pub rate: u8,
    /// The GRH, if there is one.
    pub global: Option<GlobalRoute>,
}

impl Route {
    /// The route of a path. It has a GRH if the path leaves the subnet.
    pub(crate) fn of_path(path: &PathRecord) -> Self {
        let global = GlobalRoute {
            dgid: path.dgid,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        };
        Self {
            dlid: path.dlid,
            service_level: path.service_level,
            rate: path.rate.value,
            global: (path.hop_limit > 1).then_some(global),
        }
    }
    /// The route to a group.
    pub(crate) fn of_group(group: &McMemberRecord) -> Self {
        Self {
            dlid: group.mlid,
            service_level: group.service_level,
            rate: group.rate.value,
            global: Some(GlobalRoute {
                dgid: group.mgid,
                flow_label: group.flow_label,
                hop_limit: group.hop_limit,
                traffic_class: group.traffic_class,
            }),
        }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Destination {
    /// By the queue pair of datagrams.
    Datagram {
        /// How to get there.
        route: Route,
        /// The queue pair; [`Qpn::MULTICAST`] of a group.
        qpn: Qpn,
        /// The Q_Key of the link.
        qkey: Qkey,
    },
    /// By a connection.
    Connection(ConnectionId),
}

/// What becomes of an IP packet of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forward {
    /// Sent at once: the encapsulation, and the packet as it is.
    Send(Destination, Encapsulation),
    /// A copy waits for an answer, and comes by [`poll_transmit`](crate::Interface::poll_transmit).
    Waits,
    /// Dropped, and counted. The host hears of it by
    /// [`poll_deliver`](crate::Interface::poll_deliver) where it can do something about it.
    Dropped(DropReason),
}

/// What becomes of what was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received<'a> {
    /// An IP packet for the host.
    Deliver(&'a [u8]),
    /// A message of address resolution, which is dealt with.
    Taken,
    /// Dropped, and counted.
    Dropped(DropReason),
}

/// A packet to send, with its encapsulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where it goes.
    pub destination: Destination,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// Where a datagram came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The LID that sent it; 0 if the owner does not know it.
    pub slid: Lid,
    /// The queue pair that sent it.
    pub qpn: Qpn,
}

/// What an interface asks of its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Join a group, by the SA. The answer is [`handle_joined`](crate::Interface::handle_joined).
    Join {
        /// The group, how it is joined, and what it must be like.
        record: McMemberRecord,
        /// What of the record counts.
        components: MemberComponents,
    },
    /// Leave a group, by the SA. There is no answer.
    Leave {
        /// The group, and how it was joined.
        record: McMemberRecord,
    },
    /// Receive from a group on the queue pair of datagrams.
    Attach {
        /// The group.
        mgid: Gid,
        /// LID of the group.
        mlid: Lid,
    },
    /// No longer do so.
    Detach {
        /// The group.
        mgid: Gid,
        /// LID of the group.
        mlid: Lid,
    },
    /// Ask the SA for a path. The answer is [`handle_path`](crate::Interface::handle_path).
    Path {
        /// Where to.
        dgid: Gid,
        /// In which partition.
        pkey: Pkey,
    },
    /// Make a reliable connection, by the CM. The answer is
    /// [`handle_connected`](crate::Interface::handle_connected) or
    /// [`handle_disconnected`](crate::Interface::handle_disconnected).
    Connect {
        /// What it is called.
        id: ConnectionId,
        /// To whom; [`service_id`](vernic_wire::ipoib::service_id) of its queue pair is asked for.
        peer: HardwareAddress,
        /// How to get there.
        path: PathRecord,
        /// Private data of the request.
        private_data: ConnectedData,
    },
    /// End a connection. There is no answer.
    Disconnect {
        /// Which.
        id: ConnectionId,
    },
}

/// Where an IP address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The hardware address.
    pub address: HardwareAddress,
    /// How to get there.
    pub path: PathRecord,
}

/// What an interface tells its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The link is up, or has other values than before.
    Up {
        /// The longest IP packet that the host may send.
        mtu: u32,
        /// The Q_Key of the queue pair of datagrams.
        qkey: Qkey,
    },
    /// The link is down.
    Down,
    /// The answer to [`resolve`](crate::Interface::resolve).
    Resolved {
        /// What was asked for, or the router to it.
        ip: IpAddr,
        /// Where it is, or why nobody knows.
        answer: Result<Resolved, DropReason>,
    },
}
