//! Ports and GIDs: `ibv_port_attr`, `ibv_gid`, `ibv_gid_entry`.

use std::ffi::c_int;

use super::{offsets, sizes};

/// `union ibv_gid`, as its bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

/// `IBV_GID_TYPE_IB`, as in `ibv_gid_entry`, which the kernel has for iWARP, too.
pub(crate) const GID_TYPE_IB: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V1`, as in `ibv_gid_entry`.
pub(crate) const GID_TYPE_ROCE_V1: u32 = 1;
/// `IBV_GID_TYPE_ROCE_V2`, as in `ibv_gid_entry`.
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;
/// RoCEv2 as [`crate::ibverbs::gid::ibv_query_gid_type`] tells it: the type as sysfs has it.
pub(crate) const GID_TYPE_SYSFS_ROCE_V2: c_int = 1;
/// InfiniBand and RoCEv1, and every row that is empty, in the same numbering.
pub(crate) const GID_TYPE_SYSFS_IB_ROCE_V1: c_int = 0;

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `IBV_LINK_LAYER_INFINIBAND`.
pub(crate) const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_PORT_IP_BASED_GIDS`: RoCE's, beside the bits that IBTA has. The kernel, too, shows it to
/// programs of verbs and not in `/sys`.
pub(crate) const PORT_IP_BASED_GIDS: u32 = 1 << 26;

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    /// Since rdma-core 60: units of 100 Mb/s.
    pub(crate) active_speed_ex: u32,
}

/// Bytes of the oldest `ibv_port_attr`, which the exported `ibv_query_port` fills: it ends before
/// `port_cap_flags2`.
pub(crate) const OLD_PORT_ATTR_BYTES: usize = 48;

sizes! { ibv_gid = 16, ibv_gid_entry = 32, ibv_port_attr = 56 }
offsets! {
    ibv_gid_entry { gid_index = 16, port_num = 20, gid_type = 24, ndev_ifindex = 28 }
    ibv_port_attr {
        max_msg_sz = 20, pkey_tbl_len = 32, lmc = 38, active_width = 43, phys_state = 45,
        link_layer = 46, flags = 47, port_cap_flags2 = 48, active_speed_ex = 52,
    }
}
