//! Completion queues and channels, and completions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use super::context::ibv_context;
use super::pd::ibv_pd;
use super::{Cond, Mutex, offsets, sizes};
use crate::pointer::{Handle, In, Out};

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) fd: c_int,
    pub(crate) refcnt: AtomicI32,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) channel: Handle<ibv_comp_channel>,
    pub(crate) cq_context: AtomicPtr<c_void>,
    pub(crate) handle: u32,
    pub(crate) cqe: AtomicI32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) comp_events_completed: AtomicU32,
    pub(crate) async_events_completed: AtomicU32,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: AtomicI32,
    pub(crate) wr_id: AtomicU64,
    pub(crate) start_poll: extern "C" fn(Handle<ibv_cq>, In<ibv_poll_cq_attr>) -> c_int,
    pub(crate) next_poll: extern "C" fn(Handle<ibv_cq>) -> c_int,
    pub(crate) end_poll: extern "C" fn(Handle<ibv_cq>),
    pub(crate) read_opcode: extern "C" fn(Handle<ibv_cq>) -> c_uint,
    pub(crate) read_vendor_err: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_byte_len: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_imm_data: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_qp_num: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_src_qp: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_wc_flags: extern "C" fn(Handle<ibv_cq>) -> c_uint,
    pub(crate) read_slid: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_sl: extern "C" fn(Handle<ibv_cq>) -> u8,
    pub(crate) read_dlid_path_bits: extern "C" fn(Handle<ibv_cq>) -> u8,
    pub(crate) read_completion_ts: extern "C" fn(Handle<ibv_cq>) -> u64,
    pub(crate) read_cvlan: extern "C" fn(Handle<ibv_cq>) -> u16,
    pub(crate) read_flow_tag: extern "C" fn(Handle<ibv_cq>) -> u32,
    pub(crate) read_tm_info: extern "C" fn(Handle<ibv_cq>, Out<ibv_wc_tm_info>),
    pub(crate) read_completion_wallclock_ns: extern "C" fn(Handle<ibv_cq>) -> u64,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_wc_tm_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wc_tm_info {
    pub(crate) tag: u64,
    pub(crate) private: u32,
}

/// `enum ibv_create_cq_wc_flags`.
pub(crate) mod wc_ex {
    /// Byte length to DLID path bits.
    pub(crate) const STANDARD: u64 = (1 << 7) - 1;
    pub(crate) const TIMESTAMP: u64 = 1 << 7;
    pub(crate) const WALLCLOCK: u64 = 1 << 11;
}

/// `enum ibv_cq_init_attr_mask`.
pub(crate) mod cq_init_mask {
    pub(crate) const FLAGS: u32 = 1;
    pub(crate) const PD: u32 = 1 << 1;
}

/// `enum ibv_create_cq_attr_flags`.
pub(crate) mod cq_flags {
    pub(crate) const SINGLE_THREADED: u32 = 1;
    pub(crate) const IGNORE_OVERRUN: u32 = 1 << 1;
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Handle<ibv_comp_channel>,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: Handle<ibv_pd>,
}

/// `struct ibv_modify_cq_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_modify_cq_attr {
    pub(crate) attr_mask: u32,
    /// `cq_count`, `cq_period`.
    pub(crate) moderate: [u16; 2],
}

/// `enum ibv_wc_flags`.
pub(crate) mod wc_flags {
    pub(crate) const GRH: u32 = 1;
    pub(crate) const WITH_IMM: u32 = 1 << 1;
    pub(crate) const WITH_INV: u32 = 1 << 3;
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network byte order, or the invalidated key.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

sizes! {
    ibv_comp_channel = 16, ibv_cq = 128, ibv_cq_ex = 288, ibv_cq_init_attr_ex = 56,
    ibv_modify_cq_attr = 8, ibv_wc = 48, ibv_poll_cq_attr = 4, ibv_wc_tm_info = 16,
}
offsets! {
    ibv_cq { channel = 8, cq_context = 16, handle = 24, cqe = 28, mutex = 32, comp_events_completed = 120 }
    ibv_cq_ex { comp_mask = 128, status = 132, wr_id = 136, start_poll = 144, read_completion_wallclock_ns = 280 }
    ibv_cq_init_attr_ex { comp_vector = 24, wc_flags = 32, comp_mask = 40, flags = 44, parent_domain = 48 }
    ibv_wc {
        status = 8, opcode = 12, vendor_err = 16, byte_len = 20, imm_data = 24, qp_num = 28, src_qp = 32,
        wc_flags = 36, pkey_index = 40, slid = 42, sl = 44, dlid_path_bits = 45,
    }
}
