//! Devices as programs for management see them: `infiniband/umad.h`.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::{offsets, sizes};

/// `UMAD_CA_NAME_LEN`, with the zero at the end.
pub(crate) const NAME_BYTES: usize = 20;
/// `UMAD_CA_MAX_PORTS`.
const MAX_PORTS: usize = 10;

/// `umad_port_t`. Mask, prefix and GUID are big-endian.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct umad_port {
    pub(crate) ca_name: [c_char; NAME_BYTES],
    pub(crate) portnum: c_int,
    pub(crate) base_lid: c_uint,
    pub(crate) lmc: c_uint,
    pub(crate) sm_lid: c_uint,
    pub(crate) sm_sl: c_uint,
    pub(crate) state: c_uint,
    pub(crate) phys_state: c_uint,
    pub(crate) rate: c_uint,
    pub(crate) capmask: u32,
    pub(crate) gid_prefix: u64,
    pub(crate) port_guid: u64,
    pub(crate) pkeys_size: c_uint,
    pub(crate) pkeys: *mut u16,
    pub(crate) link_layer: [c_char; NAME_BYTES],
}

/// `umad_ca_t`. GUIDs are big-endian; the place of a port that there is not is NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct umad_ca {
    pub(crate) ca_name: [c_char; NAME_BYTES],
    pub(crate) node_type: c_uint,
    pub(crate) numports: c_int,
    pub(crate) fw_ver: [c_char; 20],
    pub(crate) ca_type: [c_char; 40],
    pub(crate) hw_ver: [c_char; 20],
    pub(crate) node_guid: u64,
    pub(crate) system_guid: u64,
    pub(crate) ports: [*mut umad_port; MAX_PORTS],
}

impl umad_ca {
    /// No ports.
    pub(crate) const NO_PORTS: [*mut umad_port; MAX_PORTS] = [ptr::null_mut(); MAX_PORTS];
}

/// `struct umad_device_node`: one of a list of names.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct umad_device_node {
    pub(crate) next: *mut umad_device_node,
    pub(crate) ca_name: *const c_char,
}

sizes! { umad_port = 112, umad_ca = 208, umad_device_node = 16 }
offsets! {
    umad_port {
        portnum = 20, base_lid = 24, lmc = 28, sm_lid = 32, sm_sl = 36, state = 40, phys_state = 44,
        rate = 48, capmask = 52, gid_prefix = 56, port_guid = 64, pkeys_size = 72, pkeys = 80,
        link_layer = 88,
    }
    umad_ca {
        node_type = 20, numports = 24, fw_ver = 28, ca_type = 48, hw_ver = 88, node_guid = 112,
        system_guid = 120, ports = 128,
    }
    umad_device_node { ca_name = 8 }
}
