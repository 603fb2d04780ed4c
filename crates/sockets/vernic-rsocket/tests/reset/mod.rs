//! A TCP connection of this process that is lost: what a network, or `ss -K`, would do to it.
#![allow(unsafe_code, unreachable_pub)]

use std::net::SocketAddr;
use std::os::fd::RawFd;

use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

/// Resets the connection of this process from `local` to `peer`; the other end of it hears so.
///
/// # Panics
/// If there is none.
pub fn between(local: SocketAddr, peer: SocketAddr) {
    let is_it = |fd: &RawFd| {
        let is = |found: nix::Result<SockaddrStorage>, wanted: SocketAddr| {
            found.is_ok_and(|found| found == SockaddrStorage::from(wanted))
        };
        is(getsockname(*fd), local) && is(getpeername(*fd), peer)
    };
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = fds.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    let fd = numbers.collect::<Vec<_>>().into_iter().find(is_it).expect("a connection");
    let family = libc::AF_UNSPEC as libc::sa_family_t;
    let nobody = libc::sockaddr { sa_family: family, sa_data: [0; 14] };
    let len = size_of_val(&nobody) as libc::socklen_t;
    // SAFETY: `nobody` is as long as it is said to be, and outlives the call. Were the descriptor
    // another one by now, that would be a socket of this test, too, or no socket.
    let result = unsafe { libc::connect(fd, &raw const nobody, len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
