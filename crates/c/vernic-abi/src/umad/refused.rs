//! What there is not: ports for management datagrams.

use std::ffi::c_int;

use libc::EOPNOTSUPP;

use crate::boundary::{self, Failure};
use crate::pointer::{OutArray, Text};

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

/// `umad_open_port`, `umad_open_smi_port`: a negative errno.
pub(crate) extern "C" fn umad_open_port(_ca: Text, _port: c_int) -> c_int {
    let refused = boundary::negative("umad_open_port", || {
        let why =
            "management datagrams (MADs): RoCE has no subnet manager that answers them; they are";
        Err(Failure::unsupported(why))
    });
    refused as c_int
}
