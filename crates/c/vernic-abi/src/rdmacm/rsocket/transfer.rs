//! Bytes.

use std::ffi::{c_int, c_void};

use libc::{EISCONN, iovec, msghdr, socklen_t};
use vernic_rsocket::{MsgFlags, SocketKind};

use super::{End, count, socket};
use crate::boundary::Failure;
use crate::pointer::pieces::Pieces;
use crate::pointer::{In, Out, SockAddr};

/// A receive of any form: how many bytes, and for a datagram from where.
fn receive(
    number: c_int,
    pieces: Pieces,
    flags: c_int,
) -> Result<(usize, vernic_rsocket::Received), End> {
    let socket = socket(number)?;
    let received = pieces.write(|pieces| socket.recv(pieces, MsgFlags(flags)))??;
    let cut = flags & libc::MSG_TRUNC != 0 && socket.kind() == SocketKind::Datagram;
    Ok((if cut { received.len } else { received.copied }, received))
}

/// `rrecv`.
pub(crate) extern "C" fn rrecv(number: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize {
    count("rrecv", || Ok(receive(number, Pieces::One(to, len), flags)?.0))
}

/// `rread`.
pub(crate) extern "C" fn rread(number: c_int, to: *mut c_void, len: usize) -> isize {
    count("rread", || Ok(receive(number, Pieces::One(to, len), 0)?.0))
}

/// `rrecvfrom`.
pub(crate) extern "C" fn rrecvfrom(
    number: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
    address: SockAddr,
    length: Out<socklen_t>,
) -> isize {
    count("rrecvfrom", || {
        let (count, received) = receive(number, Pieces::One(to, len), flags)?;
        if let Some(from) = received.from {
            address.fill(length, from);
        } else if !length.is_null() {
            // Of a stream there is none, as for TCP.
            length.write(0);
        }
        Ok(count)
    })
}

/// `rreadv`.
pub(crate) extern "C" fn rreadv(number: c_int, pieces: In<iovec>, pieces_count: c_int) -> isize {
    count("rreadv", || Ok(receive(number, Pieces::array(pieces, pieces_count)?, 0)?.0))
}

/// `rrecvmsg`. There is no control data.
pub(crate) extern "C" fn rrecvmsg(number: c_int, message: Out<msghdr>, flags: c_int) -> isize {
    count("rrecvmsg", || {
        let mut header = message.require("a message")?;
        let (count, received) = receive(number, Pieces::of(&header)?, flags)?;
        match received.from {
            Some(from) => {
                let address = SockAddr::told(header.msg_name.cast());
                address.fill(Out::of(&mut header.msg_namelen), from);
            }
            None => header.msg_namelen = 0,
        }
        header.msg_controllen = 0;
        header.msg_flags = if received.len > received.copied { libc::MSG_TRUNC } else { 0 };
        message.write(header);
        Ok(count)
    })
}

/// A send of any form.
fn send(
    number: c_int,
    pieces: Pieces,
    flags: c_int,
    to: Option<(SockAddr, socklen_t)>,
) -> Result<usize, End> {
    let socket = socket(number)?;
    let to = match to.filter(|(address, _)| !address.raw().is_null()) {
        None => None,
        Some(_) if socket.kind() == SocketKind::Stream => {
            // As upstream, and as the manual page of sendto allows.
            return Err(Failure::new(EISCONN, "a stream is sent to its peer only").into());
        }
        Some((address, length)) => Some(address.require_within(length)?),
    };
    Ok(pieces.read(|pieces| socket.send(pieces, to, MsgFlags(flags)))??)
}

fn from(bytes: *const c_void, len: usize) -> Pieces {
    // Not written to: `send` reads.
    Pieces::One(bytes.cast_mut(), len)
}

/// `rsend`.
pub(crate) extern "C" fn rsend(
    number: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    count("rsend", || send(number, from(bytes, len), flags, None))
}

/// `rwrite`.
pub(crate) extern "C" fn rwrite(number: c_int, bytes: *const c_void, len: usize) -> isize {
    count("rwrite", || send(number, from(bytes, len), 0, None))
}

/// `rsendto`.
pub(crate) extern "C" fn rsendto(
    number: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    address: SockAddr,
    length: socklen_t,
) -> isize {
    count("rsendto", || send(number, from(bytes, len), flags, Some((address, length))))
}

/// `rwritev`.
pub(crate) extern "C" fn rwritev(number: c_int, pieces: In<iovec>, pieces_count: c_int) -> isize {
    count("rwritev", || send(number, Pieces::array(pieces, pieces_count)?, 0, None))
}

/// `rsendmsg`. Control data is refused.
pub(crate) extern "C" fn rsendmsg(number: c_int, message: In<msghdr>, flags: c_int) -> isize {
    count("rsendmsg", || {
        let header = message.require("a message")?;
        if !header.msg_control.is_null() && header.msg_controllen != 0 {
            return Err(Failure::unsupported("control data of a message").into());
        }
        let to = (SockAddr::told(header.msg_name.cast()), header.msg_namelen);
        send(number, Pieces::of(&header)?, flags, Some(to))
    })
}
