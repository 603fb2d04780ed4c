//! Trying what the kernel takes, on a socket that sends to itself. The datagrams are dropped with
//! it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use vernic_sys as sys;

/// Sends a message from a socket at a loopback address to itself.
///
/// # Errors
/// The system's error: what the message asks for is not possible.
pub(crate) fn send(loopback: SocketAddr, message: sys::Outgoing<'_>) -> io::Result<()> {
    let family = if loopback.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = sys::socket(family, libc::SOCK_DGRAM, 0)?;
    sys::bind(fd.as_fd(), &loopback)?;
    let message = sys::Outgoing { dst: sys::local_addr(fd.as_fd())?, ..message };
    sys::send_many(fd.as_fd(), std::iter::once(message)).map(|_| ())
}
