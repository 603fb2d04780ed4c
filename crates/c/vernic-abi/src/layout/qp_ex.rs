//! Queue pairs with the `ibv_wr_*` calls.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::ah::ibv_ah;
use super::memory::{ibv_mw, ibv_mw_bind_info};
use super::qp::ibv_qp;
use super::wr::{ibv_data_buf, ibv_sge};
use super::{offsets, sizes};
use crate::pointer::{Bytes, Handle, In};

/// `enum ibv_qp_create_send_ops_flags`.
pub(crate) mod send_ops {
    pub(crate) const RDMA_WRITE: u64 = 1;
    pub(crate) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(crate) const SEND: u64 = 1 << 2;
    pub(crate) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(crate) const RDMA_READ: u64 = 1 << 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(crate) const LOCAL_INV: u64 = 1 << 7;
    pub(crate) const BIND_MW: u64 = 1 << 8;
    pub(crate) const SEND_WITH_INV: u64 = 1 << 9;
    pub(crate) const FLUSH: u64 = 1 << 11;
    pub(crate) const ATOMIC_WRITE: u64 = 1 << 12;
}

/// `struct ibv_qp_ex`, with the member that rdma-core 46 appended.
#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: AtomicU64,
    pub(crate) wr_flags: AtomicU32,
    pub(crate) wr_atomic_cmp_swp: extern "C" fn(Handle<ibv_qp>, u32, u64, u64, u64),
    pub(crate) wr_atomic_fetch_add: extern "C" fn(Handle<ibv_qp>, u32, u64, u64),
    pub(crate) wr_bind_mw: extern "C" fn(Handle<ibv_qp>, Handle<ibv_mw>, u32, In<ibv_mw_bind_info>),
    pub(crate) wr_local_inv: extern "C" fn(Handle<ibv_qp>, u32),
    pub(crate) wr_rdma_read: extern "C" fn(Handle<ibv_qp>, u32, u64),
    pub(crate) wr_rdma_write: extern "C" fn(Handle<ibv_qp>, u32, u64),
    pub(crate) wr_rdma_write_imm: extern "C" fn(Handle<ibv_qp>, u32, u64, u32),
    pub(crate) wr_send: extern "C" fn(Handle<ibv_qp>),
    pub(crate) wr_send_imm: extern "C" fn(Handle<ibv_qp>, u32),
    pub(crate) wr_send_inv: extern "C" fn(Handle<ibv_qp>, u32),
    pub(crate) wr_send_tso: extern "C" fn(Handle<ibv_qp>, Bytes, u16, u16),
    pub(crate) wr_set_ud_addr: extern "C" fn(Handle<ibv_qp>, Handle<ibv_ah>, u32, u32),
    pub(crate) wr_set_xrc_srqn: extern "C" fn(Handle<ibv_qp>, u32),
    pub(crate) wr_set_inline_data: extern "C" fn(Handle<ibv_qp>, Bytes, usize),
    pub(crate) wr_set_inline_data_list: extern "C" fn(Handle<ibv_qp>, usize, In<ibv_data_buf>),
    pub(crate) wr_set_sge: extern "C" fn(Handle<ibv_qp>, u32, u64, u32),
    pub(crate) wr_set_sge_list: extern "C" fn(Handle<ibv_qp>, usize, In<ibv_sge>),
    pub(crate) wr_start: extern "C" fn(Handle<ibv_qp>),
    pub(crate) wr_complete: extern "C" fn(Handle<ibv_qp>) -> c_int,
    pub(crate) wr_abort: extern "C" fn(Handle<ibv_qp>),
    pub(crate) wr_atomic_write: extern "C" fn(Handle<ibv_qp>, u32, u64, Bytes),
    pub(crate) wr_flush: extern "C" fn(Handle<ibv_qp>, u32, u64, usize, u8, u8),
}

sizes! { ibv_qp_ex = 360 }
offsets! {
    ibv_qp_ex {
        comp_mask = 160, wr_id = 168, wr_flags = 176, wr_atomic_cmp_swp = 184, wr_send = 240,
        wr_set_ud_addr = 272, wr_set_inline_data = 288, wr_start = 320, wr_complete = 328,
        wr_abort = 336, wr_atomic_write = 344, wr_flush = 352,
    }
}
