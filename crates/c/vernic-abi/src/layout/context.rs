//! Contexts: the tables through which the inline functions of the header call.

use std::ffi::{c_int, c_uint};

use super::cq::{ibv_cq, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use super::device::{ibv_device, ibv_device_attr, ibv_query_device_ex_input};
use super::memory::{ibv_alloc_dm_attr, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind};
use super::pd::{
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use super::qp::{ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr};
use super::srq::{ibv_srq, ibv_srq_init_attr_ex};
use super::wr::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use super::{Mutex, Unused, offsets, sizes};
use crate::pointer::{Handle, In, Out, OutArray};

/// `__VERBS_ABI_IS_EXTENDED`: a `verbs_context` is around the `ibv_context`.
pub(crate) const EXTENDED: usize = usize::MAX;

/// `struct ibv_context_ops`.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) query_device:
        Option<extern "C" fn(Handle<ibv_context>, Out<ibv_device_attr>) -> c_int>,
    pub(crate) query_port: Option<extern "C" fn(Handle<ibv_context>, u8, OutArray<u8>) -> c_int>,
    pub(crate) unused_2: [Unused; 5],
    pub(crate) alloc_mw: Option<extern "C" fn(Handle<ibv_pd>, c_uint) -> Handle<ibv_mw>>,
    pub(crate) bind_mw:
        Option<extern "C" fn(Handle<ibv_qp>, Handle<ibv_mw>, In<ibv_mw_bind>) -> c_int>,
    pub(crate) dealloc_mw: Option<extern "C" fn(Handle<ibv_mw>) -> c_int>,
    pub(crate) unused_10: Unused,
    pub(crate) poll_cq: Option<extern "C" fn(Handle<ibv_cq>, c_int, OutArray<ibv_wc>) -> c_int>,
    pub(crate) req_notify_cq: Option<extern "C" fn(Handle<ibv_cq>, c_int) -> c_int>,
    pub(crate) unused_13: [Unused; 7],
    pub(crate) post_srq_recv:
        Option<extern "C" fn(Handle<ibv_srq>, In<ibv_recv_wr>, Out<In<ibv_recv_wr>>) -> c_int>,
    pub(crate) unused_21: [Unused; 4],
    pub(crate) post_send:
        Option<extern "C" fn(Handle<ibv_qp>, In<ibv_send_wr>, Out<In<ibv_send_wr>>) -> c_int>,
    pub(crate) post_recv:
        Option<extern "C" fn(Handle<ibv_qp>, In<ibv_recv_wr>, Out<In<ibv_recv_wr>>) -> c_int>,
    pub(crate) unused_27: [Unused; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: Handle<ibv_device>,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) abi_compat: usize,
}

/// `struct ibv_values_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub(crate) const VALUES_RAW_CLOCK: u32 = 1;

/// `struct verbs_context`, in the form of rdma-core 64: it grows at its front, and a program finds
/// a member by its distance from the end.
#[repr(C)]
pub(crate) struct verbs_context {
    /// `free_buf`, `alloc_buf`, `dm_export_dmabuf_fd`, `reg_mr_ex`, `dealloc_dmah`, `alloc_dmah`.
    pub(crate) since_64: [Unused; 6],
    pub(crate) query_port:
        Option<extern "C" fn(Handle<ibv_context>, u8, OutArray<u8>, usize) -> c_int>,
    pub(crate) advise_mr:
        Option<extern "C" fn(Handle<ibv_pd>, c_uint, u32, In<ibv_sge>, u32) -> c_int>,
    pub(crate) alloc_null_mr: Option<extern "C" fn(Handle<ibv_pd>) -> Handle<ibv_mr>>,
    pub(crate) read_counters: Unused,
    pub(crate) attach_counters_point_flow: Unused,
    pub(crate) create_counters: Unused,
    pub(crate) destroy_counters: Unused,
    pub(crate) reg_dm_mr:
        Option<extern "C" fn(Handle<ibv_pd>, Handle<ibv_dm>, u64, usize, c_uint) -> Handle<ibv_mr>>,
    pub(crate) alloc_dm:
        Option<extern "C" fn(Handle<ibv_context>, In<ibv_alloc_dm_attr>) -> Handle<ibv_dm>>,
    pub(crate) free_dm: Option<extern "C" fn(Handle<ibv_dm>) -> c_int>,
    pub(crate) modify_flow_action_esp: Unused,
    pub(crate) destroy_flow_action: Unused,
    pub(crate) create_flow_action_esp: Unused,
    pub(crate) modify_qp_rate_limit:
        Option<extern "C" fn(Handle<ibv_qp>, In<ibv_qp_rate_limit_attr>) -> c_int>,
    pub(crate) alloc_parent_domain: Option<
        extern "C" fn(Handle<ibv_context>, In<ibv_parent_domain_init_attr>) -> Handle<ibv_pd>,
    >,
    pub(crate) dealloc_td: Option<extern "C" fn(Handle<ibv_td>) -> c_int>,
    pub(crate) alloc_td:
        Option<extern "C" fn(Handle<ibv_context>, In<ibv_td_init_attr>) -> Handle<ibv_td>>,
    pub(crate) modify_cq: Option<extern "C" fn(Handle<ibv_cq>, In<ibv_modify_cq_attr>) -> c_int>,
    pub(crate) post_srq_ops: Unused,
    pub(crate) destroy_rwq_ind_table: Unused,
    pub(crate) create_rwq_ind_table: Unused,
    pub(crate) destroy_wq: Unused,
    pub(crate) modify_wq: Unused,
    pub(crate) create_wq: Unused,
    pub(crate) query_rt_values:
        Option<extern "C" fn(Handle<ibv_context>, Out<ibv_values_ex>) -> c_int>,
    pub(crate) create_cq_ex:
        Option<extern "C" fn(Handle<ibv_context>, In<ibv_cq_init_attr_ex>) -> Handle<ibv_cq>>,
    pub(crate) private: usize,
    pub(crate) query_device_ex: Option<
        extern "C" fn(
            Handle<ibv_context>,
            In<ibv_query_device_ex_input>,
            OutArray<u8>,
            usize,
        ) -> c_int,
    >,
    pub(crate) destroy_flow: Unused,
    pub(crate) abi_placeholder_2: Unused,
    pub(crate) create_flow: Unused,
    pub(crate) abi_placeholder_1: Unused,
    pub(crate) open_qp:
        Option<extern "C" fn(Handle<ibv_context>, In<ibv_qp_open_attr>) -> Handle<ibv_qp>>,
    pub(crate) create_qp_ex:
        Option<extern "C" fn(Handle<ibv_context>, Out<ibv_qp_init_attr_ex>) -> Handle<ibv_qp>>,
    pub(crate) get_srq_num: Option<extern "C" fn(Handle<ibv_srq>, Out<u32>) -> c_int>,
    pub(crate) create_srq_ex:
        Option<extern "C" fn(Handle<ibv_context>, Out<ibv_srq_init_attr_ex>) -> Handle<ibv_srq>>,
    pub(crate) open_xrcd:
        Option<extern "C" fn(Handle<ibv_context>, In<ibv_xrcd_init_attr>) -> Handle<ibv_xrcd>>,
    pub(crate) close_xrcd: Option<extern "C" fn(Handle<ibv_xrcd>) -> c_int>,
    pub(crate) abi_placeholder_3: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

sizes! { ibv_context_ops = 256, ibv_context = 328, verbs_context = 696, ibv_values_ex = 24 }
offsets! {
    ibv_context_ops {
        alloc_mw = 56, bind_mw = 64, dealloc_mw = 72, poll_cq = 88, req_notify_cq = 96,
        post_srq_recv = 160, post_send = 200, post_recv = 208,
    }
    ibv_context { ops = 8, cmd_fd = 264, async_fd = 268, num_comp_vectors = 272, abi_compat = 320 }
    verbs_context {
        query_port = 48, advise_mr = 56, alloc_null_mr = 64, reg_dm_mr = 104, alloc_dm = 112, free_dm = 120,
        alloc_parent_domain = 160, dealloc_td = 168, alloc_td = 176, modify_cq = 184, query_rt_values = 240,
        create_cq_ex = 248, query_device_ex = 264, open_qp = 304, create_qp_ex = 312, get_srq_num = 320,
        create_srq_ex = 328, open_xrcd = 336, close_xrcd = 344, sz = 360, context = 368,
    }
}
