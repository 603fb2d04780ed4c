//! Devices: `ibv_device`, `ibv_device_attr`, `ibv_device_attr_ex`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Unused, offsets, sizes};

/// Bytes of a name.
pub(crate) const NAME_MAX: usize = 64;
/// Bytes of a path.
pub(crate) const PATH_MAX: usize = 256;

/// `IBV_NODE_CA`.
pub(crate) const NODE_CA: c_int = 1;
/// `IBV_NODE_RNIC`.
pub(crate) const NODE_RNIC: c_int = 4;
/// `IBV_TRANSPORT_IB`.
pub(crate) const TRANSPORT_IB: c_int = 0;
/// `IBV_TRANSPORT_IWARP`.
pub(crate) const TRANSPORT_IWARP: c_int = 1;

/// `enum ibv_device_cap_flags`, those that apply.
pub(crate) mod cap {
    pub(crate) const BAD_PKEY_CNTR: u32 = 1 << 1;
    pub(crate) const BAD_QKEY_CNTR: u32 = 1 << 2;
    pub(crate) const AUTO_PATH_MIG: u32 = 1 << 4;
    pub(crate) const CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub(crate) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(crate) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(crate) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(crate) const N_NOTIFY_CQ: u32 = 1 << 14;
    pub(crate) const MEM_WINDOW: u32 = 1 << 17;
    pub(crate) const XRC: u32 = 1 << 20;
    pub(crate) const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
}

/// `IBV_ATOMIC_NONE`.
pub(crate) const ATOMIC_NONE: c_int = 0;
/// `IBV_ATOMIC_HCA`.
pub(crate) const ATOMIC_HCA: c_int = 1;

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: [Unused; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; NAME_MAX],
    pub(crate) dev_name: [c_char; NAME_MAX],
    pub(crate) dev_path: [c_char; PATH_MAX],
    pub(crate) ibdev_path: [c_char; PATH_MAX],
}

/// What rdma-core's drivers find behind an `ibv_device`: they compare `ops` with their own.
#[repr(C)]
pub(crate) struct verbs_device {
    pub(crate) device: ibv_device,
    pub(crate) ops: *const c_void,
    pub(crate) refcount: c_int,
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut c_void,
    pub(crate) core_support: u64,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    /// Big-endian.
    pub(crate) node_guid: u64,
    /// Big-endian.
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `enum ibv_odp_general_caps`.
pub(crate) mod odp {
    pub(crate) const SUPPORT: u64 = 1;
    pub(crate) const IMPLICIT: u64 = 1 << 1;
    /// `enum ibv_odp_transport_cap_bits`: SEND, RECV.
    pub(crate) const DATAGRAM: u32 = 0b11;
    /// SEND, RECV, WRITE.
    pub(crate) const UNRELIABLE: u32 = 0b111;
    /// Receive from a shared queue.
    pub(crate) const SRQ_RECV: u32 = 1 << 5;
    /// SEND, RECV, WRITE, READ, receive from a shared queue.
    pub(crate) const WITHOUT_ATOMICS: u32 = 0b10_1111;
    /// All: SEND, RECV, WRITE, READ, atomics, receive from a shared queue.
    pub(crate) const RELIABLE: u32 = 0b11_1111;
}

/// `struct ibv_odp_caps`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_odp_caps {
    pub(crate) general_caps: u64,
    pub(crate) rc_odp_caps: u32,
    pub(crate) uc_odp_caps: u32,
    pub(crate) ud_odp_caps: u32,
}

/// `struct ibv_rss_caps`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_rss_caps {
    pub(crate) supported_qpts: u32,
    pub(crate) max_rwq_indirection_tables: u32,
    pub(crate) max_rwq_indirection_table_size: u32,
    pub(crate) rx_hash_fields_mask: u64,
    pub(crate) rx_hash_function: u8,
}

/// `struct ibv_device_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) orig_attr: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: ibv_odp_caps,
    pub(crate) completion_timestamp_mask: u64,
    /// kHz.
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    /// `max_tso`, `supported_qpts`.
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: ibv_rss_caps,
    pub(crate) max_wq_type_rq: u32,
    /// `qp_rate_limit_min`, `qp_rate_limit_max`, `supported_qpts`.
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    /// `max_rndv_hdr_size`, `max_num_tags`, `flags`, `max_ops`, `max_sge`.
    pub(crate) tm_caps: [u32; 5],
    /// `max_cq_count`, `max_cq_period`.
    pub(crate) cq_mod_caps: [u16; 2],
    pub(crate) max_dm_size: u64,
    /// `fetch_add`, `swap`, `compare_swap`.
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

/// `struct ibv_query_device_ex_input`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_query_device_ex_input {
    pub(crate) comp_mask: u32,
}

sizes! {
    ibv_device = 664, verbs_device = 712, ibv_device_attr = 232, ibv_odp_caps = 24,
    ibv_rss_caps = 32, ibv_device_attr_ex = 400, ibv_query_device_ex_input = 4,
}
offsets! {
    ibv_device { node_type = 16, name = 24, dev_name = 88, dev_path = 152, ibdev_path = 408 }
    ibv_device_attr { node_guid = 64, vendor_id = 96, atomic_cap = 164, max_pkeys = 224 }
    ibv_device_attr_ex {
        comp_mask = 232, odp_caps = 240, completion_timestamp_mask = 264, hca_core_clock = 272,
        device_cap_flags_ex = 280, tso_caps = 288, rss_caps = 296, max_wq_type_rq = 328,
        packet_pacing_caps = 332, raw_packet_caps = 344, tm_caps = 348, cq_mod_caps = 368,
        max_dm_size = 376, pci_atomic_caps = 384, xrc_odp_caps = 392, phys_port_cnt_ex = 396,
    }
}
