//! libibumad: there are no management ports. The calls that have results set them; the others are
//! refused by `refusal.rs`, or say that there is nothing.

use std::ffi::{c_int, c_void};

use libc::EOPNOTSUPP;

use crate::pointer::{OutArray, Text};

/// Bytes of `ib_user_mad` in front of a datagram.
const HEADER_BYTES: usize = 64;

/// `umad_size`: bytes in front of a datagram in a buffer.
pub(crate) extern "C" fn umad_size() -> usize {
    HEADER_BYTES
}

/// `umad_get_mad`: the datagram in a buffer.
pub(crate) extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    match umad.is_null() {
        true => umad,
        false => umad.wrapping_byte_add(HEADER_BYTES),
    }
}

/// `umad_get_issm_path`: an empty path.
pub(crate) extern "C" fn umad_get_issm_path(
    _ca: Text,
    _port: c_int,
    mut path: OutArray<u8>,
    room: c_int,
) -> c_int {
    let path = path.slice(usize::try_from(room).unwrap_or(0)).unwrap_or_default();
    if let Some(first) = path.first_mut() {
        *first = 0;
    }
    -EOPNOTSUPP
}
