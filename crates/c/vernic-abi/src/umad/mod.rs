//! libibumad: which devices and ports there are. There are no management datagrams, as RoCE has no
//! subnet manager: ports cannot be opened for them.
//!
//! | file | what |
//! |---|---|
//! | `ca.rs` | devices and ports, as `ibstat` prints them |
//! | `list.rs` | the list of the devices' names |
//! | `refused.rs` | refusals that set their results, or say why |

use std::ffi::{c_int, c_void};

pub(crate) mod ca;
pub(crate) mod list;
pub(crate) mod refused;

/// Bytes of `ib_user_mad` in front of a datagram.
const HEADER_BYTES: usize = 64;

/// `umad_init`.
pub(crate) extern "C" fn umad_init() -> c_int {
    crate::log::init();
    0
}

/// `umad_done`.
pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

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
