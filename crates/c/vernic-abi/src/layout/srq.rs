//! Shared receive queues.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicPtr, AtomicU32};

use super::context::ibv_context;
use super::cq::ibv_cq;
use super::pd::{ibv_pd, ibv_xrcd};
use super::{Cond, Mutex, offsets, sizes};
use crate::pointer::{Handle, one_field};

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) srq_context: AtomicPtr<std::ffi::c_void>,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) handle: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: AtomicU32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `enum ibv_srq_attr_mask`.
pub(crate) mod srq_mask {
    pub(crate) const MAX_WR: u32 = 1;
    pub(crate) const LIMIT: u32 = 1 << 1;
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut std::ffi::c_void,
    pub(crate) attr: ibv_srq_attr,
}

/// `enum ibv_srq_type`.
pub(crate) mod srq_type {
    pub(crate) const BASIC: u32 = 0;
    pub(crate) const XRC: u32 = 1;
}

/// `enum ibv_srq_init_attr_mask`.
pub(crate) mod srq_init_mask {
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const XRCD: u32 = 1 << 2;
    pub(crate) const CQ: u32 = 1 << 3;
}

/// `struct ibv_srq_init_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) srq_context: *mut std::ffi::c_void,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_uint,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) xrcd: Handle<ibv_xrcd>,
    pub(crate) cq: Handle<ibv_cq>,
    /// `max_num_tags`, `max_ops`.
    pub(crate) tm_cap: [u32; 2],
}

sizes! { ibv_srq = 128, ibv_srq_attr = 12, ibv_srq_init_attr = 24, ibv_srq_init_attr_ex = 64 }
offsets! {
    ibv_srq { srq_context = 8, pd = 16, handle = 24, mutex = 32, cond = 72, events_completed = 120 }
    ibv_srq_init_attr_ex { attr = 8, comp_mask = 20, srq_type = 24, pd = 32, xrcd = 40, cq = 48, tm_cap = 56 }
}

one_field! {
    write_attr: ibv_srq_init_attr, attr, ibv_srq_attr;
    write_attr: ibv_srq_init_attr_ex, attr, ibv_srq_attr;
}
