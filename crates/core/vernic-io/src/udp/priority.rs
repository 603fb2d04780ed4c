//! Priorities of packets: service level n leaves with priority n (`SO_PRIORITY`), which queueing
//! disciplines, VLANs and PFC go by.
//!
//! Queue pairs share the link's sockets, so a priority goes with each send, by control message.
//! Linux takes such from 6.14 on. A system call before each packet that differs from the one before
//! would cost as much as the packet. So older kernels send all packets with the priority of the
//! socket, 0, or for IPv4 with the one that the kernel takes from the traffic class.

use std::net::SocketAddr;

use vernic_sys as sys;

use crate::udp::trial;

/// The highest service level, which as a priority needs a right.
const HIGHEST: u8 = 15;

/// The highest priority that needs no right.
pub(crate) const WITHOUT_RIGHT: u8 = 6;

/// Returns the highest priority that a packet may have of its own, 0 if none may.
pub(crate) fn probe(loopback: SocketAddr) -> u8 {
    let takes = |priority| {
        let message = sys::Outgoing::new(loopback, &[0]);
        trial::send(loopback, sys::Outgoing { priority: Some(priority), ..message }).is_ok()
    };
    [HIGHEST, WITHOUT_RIGHT].into_iter().find(|&priority| takes(priority)).unwrap_or(0)
}

/// Whether a refusal may be about a priority: the process has given up the right since it was
/// tried.
pub(crate) fn is_refusal(error: &std::io::Error, priority: u8) -> bool {
    priority > WITHOUT_RIGHT && error.raw_os_error() == Some(libc::EPERM)
}
