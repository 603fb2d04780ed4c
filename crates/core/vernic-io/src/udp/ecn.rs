//! IP header fields beside the addresses: TOS (with the ECN bits, RFC 3168) and hop limit.
//!
//! They are received through control messages, per datagram (after GRO, per buffer: the kernel
//! joins only datagrams with equal TOS). They are sent through the socket's defaults, and a control
//! message where a path differs from them. If a kernel refuses an option, the link still works, but
//! the fields read 0.

use std::os::fd::BorrowedFd;

use vernic_sys as sys;

use crate::path::TxPath;

/// The traffic class of a socket on which none was set.
pub(crate) const DEFAULT_TRAFFIC_CLASS: u8 = 0;

/// Asks for TOS and TTL (IPv6: traffic class and hop limit) of received datagrams.
pub(crate) fn enable_receive(fd: BorrowedFd<'_>, v4: bool) {
    let options: [(i32, i32); 2] = if v4 {
        [(libc::IPPROTO_IP, libc::IP_RECVTOS), (libc::IPPROTO_IP, libc::IP_RECVTTL)]
    } else {
        [(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)]
    };
    for (level, name) in options {
        let _ = sys::set_option(fd, level, name, 1);
    }
}

/// Gives a socket the hop limit that most paths have, so that they need no control message.
pub(crate) fn set_send_defaults(fd: BorrowedFd<'_>, v4: bool) {
    let hops = i32::from(TxPath::DEFAULT_HOP_LIMIT);
    let options: [(i32, i32); 2] = if v4 {
        [(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL)]
    } else {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
        ]
    };
    for (level, name) in options {
        let _ = sys::set_option(fd, level, name, hops);
    }
}
