//! GIDs, flows and doors in the form of links over UDP: IP addresses and ports.
//!
//! Called by the UDP link and by code that shows or checks its packets; all layers above use GIDs.

use std::net::{IpAddr, SocketAddr};

use vernic_wire::{Gid, LocalRoute};

use crate::ROCE_PORT;
use crate::address::LocalAddr;
use crate::batch::{Door, Icrc, RxMeta};
use crate::path::{PathId, TxPath};

/// Returns the path from the local address `src` to an address and UDP port: flow 0, traffic class
/// 0.
///
/// A link-local IPv6 `dst` must carry its scope id (the index of the netdev), which then holds for
/// `src` too. Both ends must be of one family, else the link refuses the packets and counts them as
/// send errors.
pub fn path(src: IpAddr, dst: SocketAddr) -> TxPath {
    let scope_id = match dst {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    TxPath::new(Gid::from_ip(src), Gid::from_ip(dst.ip()), PathId(scope_id), dst.port())
}

/// Returns the source of packets on a path, as [`Link::activate`](crate::Link::activate) takes it.
#[inline]
pub fn local_of(path: &TxPath) -> LocalAddr {
    LocalAddr::new(path.local().to_ip(), path.id().0)
}

/// Returns the destination of packets on a path.
#[inline]
pub fn destination_of(path: &TxPath) -> SocketAddr {
    LocalAddr::new(path.remote().to_ip(), path.id().0).with_port(path.door())
}

/// Returns how a packet came from one address and UDP port to another: no traffic class, the usual
/// hop limit, its ICRC unchecked.
#[inline]
pub fn arrival(src: SocketAddr, dst: SocketAddr) -> RxMeta {
    let scope_of = |addr: &SocketAddr| match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    RxMeta {
        src: src.ip().into(),
        dst: dst.ip().into(),
        flow: src.port(),
        door: door_of(dst.port()),
        netdev: scope_of(&src).max(scope_of(&dst)),
        traffic_class: 0,
        hop_limit: TxPath::DEFAULT_HOP_LIMIT,
        flow_label: 0,
        route: LocalRoute::NONE,
        icrc: Icrc::Unchecked,
        handed_over: false,
    }
}

/// Returns the address and port of the sender of packets.
#[inline]
pub fn sender_of(meta: &RxMeta) -> SocketAddr {
    LocalAddr::new(meta.src.ip(), meta.netdev).with_port(meta.flow)
}

/// Returns the address and port that packets were sent to.
#[inline]
pub fn receiver_of(meta: &RxMeta) -> SocketAddr {
    LocalAddr::new(meta.dst.ip(), meta.netdev).with_port(port_of(meta.door))
}

/// Returns the port of a door.
#[inline]
pub(crate) fn port_of(door: Door) -> u16 {
    match door {
        Door::Shared => ROCE_PORT,
        Door::Private(port) => port,
    }
}

/// Returns the door of a port.
#[inline]
pub(crate) fn door_of(port: u16) -> Door {
    if port == ROCE_PORT { Door::Shared } else { Door::Private(port) }
}
