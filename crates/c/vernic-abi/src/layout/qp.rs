//! Queue pairs and their attributes.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};

use super::ah::ibv_ah_attr;
use super::context::ibv_context;
use super::cq::ibv_cq;
use super::pd::{ibv_pd, ibv_xrcd};
use super::srq::ibv_srq;
use super::{Cond, Mutex, offsets, sizes};
use crate::pointer::{Handle, one_field};

/// `enum ibv_qp_type`.
pub(crate) mod qpt {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
    pub(crate) const XRC_SEND: u32 = 9;
    pub(crate) const XRC_RECV: u32 = 10;
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) qp_context: AtomicPtr<c_void>,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) send_cq: Handle<ibv_cq>,
    pub(crate) recv_cq: Handle<ibv_cq>,
    pub(crate) srq: Handle<ibv_srq>,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicI32,
    pub(crate) qp_type: c_uint,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: AtomicU32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Handle<ibv_cq>,
    pub(crate) recv_cq: Handle<ibv_cq>,
    pub(crate) srq: Handle<ibv_srq>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `enum ibv_qp_init_attr_mask`.
pub(crate) mod qp_init_mask {
    pub(crate) const PD: u32 = 1;
    pub(crate) const XRCD: u32 = 1 << 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `struct ibv_rx_hash_conf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_rx_hash_conf {
    pub(crate) rx_hash_function: u8,
    pub(crate) rx_hash_key_len: u8,
    pub(crate) rx_hash_key: *mut u8,
    pub(crate) rx_hash_fields_mask: u64,
}

/// `struct ibv_qp_init_attr_ex`. Starts as `ibv_qp_init_attr`, whose padding at the end it uses.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Handle<ibv_cq>,
    pub(crate) recv_cq: Handle<ibv_cq>,
    pub(crate) srq: Handle<ibv_srq>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) xrcd: Handle<ibv_xrcd>,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: ibv_rx_hash_conf,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

impl ibv_qp_init_attr_ex {
    /// Its beginning.
    pub(crate) fn basic(&self) -> ibv_qp_init_attr {
        let Self { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *self;
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    }

    /// The extended form of plain attributes, in a protection domain.
    pub(crate) fn of(plain: &ibv_qp_init_attr, pd: Handle<ibv_pd>) -> Self {
        let &ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } =
            plain;
        Self {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type,
            sq_sig_all,
            comp_mask: qp_init_mask::PD,
            pd,
            xrcd: Handle::NULL,
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: std::ptr::null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: std::ptr::null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: 0,
        }
    }
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_qp_rate_limit_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_rate_limit_attr {
    /// kb/s.
    pub(crate) rate_limit: u32,
    pub(crate) max_burst_sz: u32,
    pub(crate) typical_pkt_sz: u16,
    pub(crate) comp_mask: u32,
}

/// `struct ibv_ece`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}

/// `enum ibv_qp_open_attr_mask`.
pub(crate) mod qp_open_mask {
    pub(crate) const NUM: u32 = 1;
    pub(crate) const XRCD: u32 = 1 << 1;
    pub(crate) const CONTEXT: u32 = 1 << 2;
    pub(crate) const TYPE: u32 = 1 << 3;
}

/// `struct ibv_qp_open_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_open_attr {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: Handle<ibv_xrcd>,
    pub(crate) qp_context: *mut c_void,
    pub(crate) qp_type: c_uint,
}

sizes! {
    ibv_qp = 160, ibv_qp_cap = 20, ibv_qp_init_attr = 64, ibv_qp_init_attr_ex = 136,
    ibv_rx_hash_conf = 24, ibv_qp_attr = 144, ibv_qp_rate_limit_attr = 16, ibv_ece = 12, ibv_qp_open_attr = 32,
}
offsets! {
    ibv_qp {
        qp_context = 8, pd = 16, send_cq = 24, recv_cq = 32, srq = 40, handle = 48, qp_num = 52,
        state = 56, qp_type = 60, mutex = 64, cond = 104, events_completed = 152,
    }
    ibv_qp_init_attr { send_cq = 8, cap = 32, qp_type = 52, sq_sig_all = 56 }
    ibv_qp_init_attr_ex {
        cap = 32, qp_type = 52, sq_sig_all = 56, comp_mask = 60, pd = 64, xrcd = 72, create_flags = 80,
        max_tso_header = 84, rwq_ind_tbl = 88, rx_hash_conf = 96, source_qpn = 120, send_ops_flags = 128,
    }
    ibv_qp_attr {
        qkey = 16, qp_access_flags = 32, cap = 36, ah_attr = 56, alt_ah_attr = 88, pkey_index = 120,
        max_rd_atomic = 126, rnr_retry = 132, rate_limit = 136,
    }
    ibv_qp_rate_limit_attr { max_burst_sz = 4, typical_pkt_sz = 8, comp_mask = 12 }
}

one_field! {
    write_send_cq: ibv_qp_init_attr, send_cq, Handle<ibv_cq>;
    write_recv_cq: ibv_qp_init_attr, recv_cq, Handle<ibv_cq>;
    write_srq: ibv_qp_init_attr, srq, Handle<ibv_srq>;
    write_qp_type: ibv_qp_init_attr, qp_type, u32;
    write_cap: ibv_qp_init_attr, cap, ibv_qp_cap;
    write_send_cq: ibv_qp_init_attr_ex, send_cq, Handle<ibv_cq>;
    write_recv_cq: ibv_qp_init_attr_ex, recv_cq, Handle<ibv_cq>;
    write_srq: ibv_qp_init_attr_ex, srq, Handle<ibv_srq>;
    write_cap: ibv_qp_init_attr_ex, cap, ibv_qp_cap;
}
