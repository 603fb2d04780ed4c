//! Buffers that peers write directly: `riomap`, `riounmap`, `riowrite`.

use std::ffi::{c_int, c_void};

use libc::{EINVAL, off_t};
use vernic_rsocket::MsgFlags;

use super::{call, count, number, socket};
use crate::boundary::Failure;
use crate::pointer::pieces::Pieces;

/// `riomap`: the offset, or -1. An offset of -1 asks for one, which is the buffer's address.
pub(crate) extern "C" fn riomap(
    number_: c_int,
    buffer: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = call("riomap", || {
        let socket = socket(number_)?;
        let for_peer = match protection {
            libc::PROT_WRITE => true,
            libc::PROT_NONE => false,
            _ => return Err(Failure::new(EINVAL, format!("protection {protection:#x}")).into()),
        };
        let offset = if offset == -1 { buffer.addr() as off_t } else { offset };
        let at = for_peer.then_some(offset as u64);
        // SAFETY: the manual page asks of the program what is asked for here: that the buffer is
        // there, and that nobody but the peer uses it meanwhile as it says, until `riounmap` or
        // `rclose`.
        unsafe { socket.map(buffer.cast(), len, at) }?;
        Ok(offset)
    });
    mapped.unwrap_or(-1)
}

/// `riounmap`.
pub(crate) extern "C" fn riounmap(number_: c_int, buffer: *mut c_void, len: usize) -> c_int {
    number("riounmap", || {
        socket(number_)?.unmap(buffer.addr(), len)?;
        Ok(0)
    })
}

/// `riowrite`.
pub(crate) extern "C" fn riowrite(
    number_: c_int,
    bytes: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> isize {
    count("riowrite", || {
        let socket = socket(number_)?;
        // Not written to.
        let pieces = Pieces::One(bytes.cast_mut(), len);
        let flags = MsgFlags(flags);
        Ok(pieces.read(|pieces| socket.write_direct(pieces, offset as u64, flags))??)
    })
}
