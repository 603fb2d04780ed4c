//! The file that a subnet manager opens for as long as it runs: the port says so then to all
//! others (IsSM in its capabilities).

use std::ffi::c_int;

use vernic_attach::path;
use vernic_wire::{Guid, PortNum};

use super::ca::name;
use super::shown;
use crate::boundary::{self, Failure};
use crate::pointer::{OutArray, Text};

/// `umad_get_issm_path`: a path to be opened; 0 or a negative errno. The file is a FIFO, which
/// opens at once for reading without blocking, and the fabric process watches it.
pub(crate) extern "C" fn umad_get_issm_path(
    ca: Text,
    number: c_int,
    mut to: OutArray<u8>,
    room: c_int,
) -> c_int {
    let said = boundary::negative("umad_get_issm_path", || {
        let to = to.slice(usize::try_from(room).unwrap_or(0)).unwrap_or_default();
        if let Some(first) = to.first_mut() {
            *first = 0;
        }
        let Some(seat) = shown::seat()? else {
            return Err(Failure::unsupported("a subnet manager: a RoCE port with one is"));
        };
        let device = shown::device(name(&ca).as_deref())?;
        let port = device.port(number)?.number;
        let path = path::issm(seat.fabric(), Guid(device.node_guid), PortNum(port))?;
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.len() >= to.len() {
            let why = format!("{} bytes have no room for the path {path:?}", to.len());
            return Err(Failure::new(libc::ENAMETOOLONG, why));
        }
        to[..bytes.len()].copy_from_slice(bytes);
        to[bytes.len()] = 0;
        Ok(0)
    });
    said as c_int
}
