//! Options and flags.

use std::ffi::{c_int, c_long};

use libc::{EFAULT, EINVAL, socklen_t};
use vernic_rsocket::SocketKind;

use super::{End, number, socket};
use crate::boundary::Failure;
use crate::pointer::{Bytes, BytesMut, Out};

/// Longest value of an option, bytes: beyond that of any that is known.
const LONGEST: usize = 1024;

/// `rsetsockopt`. Options of a datagram socket's UDP socket are also set there, as far as it has
/// them.
pub(crate) extern "C" fn rsetsockopt(
    number_: c_int,
    level: c_int,
    option: c_int,
    value: Bytes,
    length: socklen_t,
) -> c_int {
    number("rsetsockopt", || {
        let socket = socket(number_)?;
        if value.raw().is_null() {
            return Err(Failure::new(EFAULT, "an option without a value").into());
        }
        let length = (length as usize).min(LONGEST);
        let set = socket.set_option(level, option, value.slice(length));
        if socket.kind() == SocketKind::Datagram && level != vernic_rsocket::SOL_RDMA {
            // SAFETY: a descriptor that the socket owns, and so many bytes (contract of
            // `pointer.rs`, 2).
            let result = unsafe {
                libc::setsockopt(number_, level, option, value.raw().cast(), length as socklen_t)
            };
            return match result {
                0 => Ok(0),
                _ => Err(Failure::from(std::io::Error::last_os_error()).into()),
            };
        }
        set?;
        Ok(0)
    })
}

/// `rgetsockopt`.
pub(crate) extern "C" fn rgetsockopt(
    number_: c_int,
    level: c_int,
    option: c_int,
    mut value: BytesMut,
    length: Out<socklen_t>,
) -> c_int {
    number("rgetsockopt", || {
        let socket = socket(number_)?;
        let room = length.require("a length")? as usize;
        let found = socket.option(level, option)?;
        let common = room.min(found.len());
        value.slice(common).copy_from_slice(&found[..common]);
        length.write(common as socklen_t);
        Ok(0)
    })
}

/// `rfcntl`. Its argument is variadic in C; on every Linux target of Rust's an integer travels the
/// same way as a third one that is fixed.
pub(crate) extern "C" fn rfcntl(number_: c_int, command: c_int, argument: c_long) -> c_int {
    number("rfcntl", || {
        let socket = socket(number_)?;
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => Ok(socket.status_flags()),
            libc::F_SETFL => {
                socket.set_status_flags(argument);
                Ok(0)
            }
            libc::F_GETFD => Ok(socket.fd_flags()),
            libc::F_SETFD => {
                socket.set_fd_flags(argument);
                Ok(0)
            }
            _ => Err(End::Other(Failure::new(EINVAL, format!("fcntl command {command}")))),
        }
    })
}
