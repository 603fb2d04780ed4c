//! From a socket to a connection and to its end; names.

use std::ffi::c_int;

use libc::{EINVAL, socklen_t};
use vernic_rsocket::{Error, Family, Numbered, Shutdown, SocketKind};

use super::{End, made, number, numbered, socket, sockets};
use crate::boundary::Failure;
use crate::pointer::{Out, SockAddr};

/// `rsocket`.
pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number("rsocket", || {
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Err(Error::Domain.into()),
        };
        let kind = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => SocketKind::Stream,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => SocketKind::Datagram,
            _ => return Err(Error::Domain.into()),
        };
        let sockets = sockets()?;
        let socket = sockets.runtime.socket(family, kind)?;
        socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        socket.set_fd_flags(if flags & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 });
        Ok(sockets.table.insert(Numbered::Socket(socket)))
    })
}

/// `rbind`.
pub(crate) extern "C" fn rbind(number_: c_int, address: SockAddr, length: socklen_t) -> c_int {
    number("rbind", || {
        socket(number_)?.bind(address.require_within(length)?)?;
        Ok(0)
    })
}

/// `rlisten`.
pub(crate) extern "C" fn rlisten(number_: c_int, backlog: c_int) -> c_int {
    number("rlisten", || {
        // As for TCP, a negative one means as many as possible.
        socket(number_)?.listen(u32::try_from(backlog).unwrap_or(u32::MAX))?;
        Ok(0)
    })
}

/// `raccept`.
pub(crate) extern "C" fn raccept(
    number_: c_int,
    address: SockAddr,
    length: Out<socklen_t>,
) -> c_int {
    number("raccept", || {
        let accepted = socket(number_)?.accept()?;
        if let Ok(peer) = accepted.peer_addr() {
            address.fill(length, peer);
        }
        Ok(sockets()?.table.insert(Numbered::Socket(accepted)))
    })
}

/// `rconnect`.
pub(crate) extern "C" fn rconnect(number_: c_int, address: SockAddr, length: socklen_t) -> c_int {
    number("rconnect", || {
        socket(number_)?.connect(address.require_within(length)?)?;
        Ok(0)
    })
}

/// `rshutdown`.
pub(crate) extern "C" fn rshutdown(number_: c_int, how: c_int) -> c_int {
    number("rshutdown", || {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::new(EINVAL, format!("shutdown {how}")).into()),
        };
        socket(number_)?.shutdown(how)?;
        Ok(0)
    })
}

/// `rclose`. In a child of `fork`, of a socket of the parent's, it gives the number back.
pub(crate) extern "C" fn rclose(number_: c_int) -> c_int {
    number("rclose", || {
        let here = made().filter(|made| made.origin.is_here());
        if let Some(removed) = here.and_then(|made| made.table.remove(number_)) {
            if let Numbered::Socket(socket) = removed {
                socket.close();
            }
            return Ok(0);
        }
        // A turn per fork.
        let mut before = match here {
            Some(made) => made.before,
            None => made(),
        };
        while let Some(made) = before {
            if made.table.close_inherited(number_) {
                return Ok(0);
            }
            before = made.before;
        }
        numbered(number_).map(|_| 0)
    })
}

/// `rgetpeername`.
pub(crate) extern "C" fn rgetpeername(
    number_: c_int,
    address: SockAddr,
    length: Out<socklen_t>,
) -> c_int {
    number("rgetpeername", || {
        let peer = socket(number_)?.peer_addr()?;
        fill(address, length, peer)
    })
}

/// `rgetsockname`.
pub(crate) extern "C" fn rgetsockname(
    number_: c_int,
    address: SockAddr,
    length: Out<socklen_t>,
) -> c_int {
    number("rgetsockname", || {
        let local = socket(number_)?.local_addr()?;
        fill(address, length, local)
    })
}

/// The length is told also where there is no room at all: callers ask for it so.
fn fill(
    address: SockAddr,
    length: Out<socklen_t>,
    value: std::net::SocketAddr,
) -> Result<i32, End> {
    length.require("a length")?;
    address.fill(length, value);
    if address.raw().is_null() {
        length.write(crate::pointer::sockaddr::to_bytes(value).1 as socklen_t);
    }
    Ok(0)
}
