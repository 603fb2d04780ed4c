//! Memory regions, memory windows, device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use super::context::ibv_context;
use super::pd::ibv_pd;
use super::{offsets, sizes};
use crate::pointer::{Bytes, BytesMut, Handle};

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) pd: AtomicPtr<ibv_pd>,
    pub(crate) addr: AtomicPtr<c_void>,
    pub(crate) length: AtomicUsize,
    pub(crate) handle: u32,
    pub(crate) lkey: AtomicU32,
    pub(crate) rkey: AtomicU32,
}

/// `enum ibv_rereg_mr_flags`.
pub(crate) mod rereg {
    pub(crate) const TRANSLATION: u32 = 1;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const ACCESS: u32 = 1 << 2;
    pub(crate) const ALL: u32 = TRANSLATION | PD | ACCESS;
}

/// `enum ibv_mw_type`.
pub(crate) mod mw_type {
    pub(crate) const TYPE_1: u32 = 1;
    pub(crate) const TYPE_2: u32 = 2;
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) rkey: AtomicU32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_uint,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: Handle<ibv_mr>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// `struct ibv_dm`.
#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) memcpy_to_dm: Option<extern "C" fn(Handle<ibv_dm>, u64, Bytes, usize) -> c_int>,
    pub(crate) memcpy_from_dm: Option<extern "C" fn(BytesMut, Handle<ibv_dm>, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// `IBV_DM_MASK_HANDLE`: the field `handle` is valid.
pub(crate) const DM_MASK_HANDLE: u32 = 1;

/// `enum ib_uverbs_advise_mr_advice`, and the flag of `ibv_advise_mr`.
pub(crate) mod advice {
    pub(crate) const PREFETCH: u32 = 0;
    pub(crate) const PREFETCH_WRITE: u32 = 1;
    pub(crate) const PREFETCH_NO_FAULT: u32 = 2;
    pub(crate) const FLAG_FLUSH: u32 = 1;
}

/// `struct ibv_alloc_dm_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

sizes! {
    ibv_mr = 48, ibv_mw = 32, ibv_mw_bind_info = 32, ibv_mw_bind = 48, ibv_dm = 32,
    ibv_alloc_dm_attr = 16,
}
offsets! {
    ibv_mr { pd = 8, addr = 16, length = 24, handle = 32, lkey = 36, rkey = 40 }
    ibv_mw { pd = 8, rkey = 16, handle = 20, mw_type = 24 }
    ibv_mw_bind { send_flags = 8, bind_info = 16 }
    ibv_dm { memcpy_to_dm = 8, memcpy_from_dm = 16, comp_mask = 24, handle = 28 }
}
