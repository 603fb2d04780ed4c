//! Devices, ports and datagrams as programs for management see them: `infiniband/umad.h`.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::{offsets, sizes};

/// `UMAD_CA_NAME_LEN`, with the zero at the end.
pub(crate) const NAME_BYTES: usize = 20;
/// `UMAD_CA_MAX_PORTS`.
pub(crate) const MAX_PORTS: usize = 10;

/// Bytes of `ib_user_mad` in front of a datagram.
pub(crate) const HEADER_BYTES: usize = size_of::<ib_user_mad>();
/// `UMAD_CA_MAX_AGENTS`: agents of an open port.
pub(crate) const MAX_AGENTS: usize = 32;
/// `UMAD_USER_RMPP`: the agent makes its transfers itself.
pub(crate) const USER_RMPP: u32 = 1;

/// `ib_mad_addr_t`. Numbers are big-endian, except for the index of the P_Key.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ib_mad_addr {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) lid: u16,
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) grh_present: u8,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) pkey_index: u16,
    pub(crate) reserved: [u8; 6],
}

/// `ib_user_mad_t`, without the datagram that follows.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ib_user_mad {
    pub(crate) agent_id: u32,
    pub(crate) status: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) retries: u32,
    /// Bytes of this header and of the datagram, of one that was received.
    pub(crate) length: u32,
    pub(crate) addr: ib_mad_addr,
}

/// `struct umad_reg_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct umad_reg_attr {
    pub(crate) mgmt_class: u8,
    pub(crate) mgmt_class_version: u8,
    pub(crate) flags: u32,
    pub(crate) method_mask: [u64; 2],
    pub(crate) oui: u32,
    pub(crate) rmpp_version: u8,
}

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

sizes! {
    umad_port = 112, umad_ca = 208, umad_device_node = 16, ib_mad_addr = 44, ib_user_mad = 64,
    umad_reg_attr = 32,
}
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
    ib_mad_addr {
        qkey = 4, lid = 8, sl = 10, path_bits = 11, grh_present = 12, gid_index = 13,
        hop_limit = 14, traffic_class = 15, gid = 16, flow_label = 32, pkey_index = 36,
        reserved = 38,
    }
    ib_user_mad { status = 4, timeout_ms = 8, retries = 12, length = 16, addr = 20 }
    umad_reg_attr {
        mgmt_class_version = 1, flags = 4, method_mask = 8, oui = 24, rmpp_version = 28,
    }
}
