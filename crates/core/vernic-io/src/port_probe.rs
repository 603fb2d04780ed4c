//! Asking another host whether a UDP port is closed, which the host answers by ICMP (RFC 792, RFC
//! 4443: port unreachable).
//!
//! Owns a connected socket, to which the system reports such a message. The empty datagram that
//! asks has no effect where the port is open, except on RoCE adapters, which may count it as
//! damaged. So it is only for peers that have been silent. A missing answer proves nothing: the
//! port is open, or a firewall drops packets. Called by the connection manager, never on the data
//! path.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use vernic_sys::{self as sys, OwnFd, PollFd};

use crate::address::LocalAddr;

/// A datagram that was sent to a UDP port, and the answer to it.
#[derive(Debug)]
pub struct PortProbe(OwnFd);

impl PortProbe {
    /// Sends an empty datagram from `local` to `peer`. Does not wait.
    ///
    /// # Errors
    /// The errors of the socket's calls: no descriptor, no route.
    pub fn send(local: LocalAddr, peer: SocketAddr) -> io::Result<Self> {
        let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = sys::socket(family, libc::SOCK_DGRAM, 0)?;
        sys::bind(socket.as_fd(), &local.with_port(0))?;
        sys::connect(socket.as_fd(), &peer)?;
        sys::send(socket.as_fd(), &[])?;
        Ok(Self(socket))
    }

    /// Whether the peer's host has answered that the port is closed. Does not wait; true once.
    pub fn is_refused(&self) -> bool {
        let received = sys::recv(self.0.as_fd(), &mut [0; 1]);
        received.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Does what [`is_refused`](Self::is_refused) does, but waits for the host's answer, `timeout`
    /// at most.
    pub fn wait_for_refusal(&self, timeout: Duration) -> bool {
        // A failure means that nothing is known.
        let _ = sys::poll(&mut [PollFd::readable(self.0.as_raw_fd())], Some(timeout));
        self.is_refused()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_closed_port_is_told_from_an_open_one() {
        for home in ["127.0.0.1:0", "[::1]:0"] {
            let open = UdpSocket::bind(home).unwrap();
            let place = open.local_addr().unwrap();
            let local = LocalAddr { ip: place.ip(), scope_id: 0 };
            let probe = PortProbe::send(local, place).unwrap();
            assert!(!probe.wait_for_refusal(Duration::from_millis(20)), "{place} is open");
            drop(open);
            let probe = PortProbe::send(local, place).unwrap();
            assert!(probe.wait_for_refusal(Duration::from_secs(30)), "{place} is closed");
        }
    }
}
