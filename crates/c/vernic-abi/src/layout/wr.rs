//! Work requests.

use std::ffi::{c_int, c_uint, c_void};

use super::ah::ibv_ah;
use super::memory::{ibv_mw, ibv_mw_bind_info};
use super::{offsets, sizes};
use crate::pointer::Handle;

/// `struct ibv_sge`: the very struct that the engine takes.
pub(crate) type ibv_sge = vernic_engine::Sge;

/// `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
    pub(crate) const ATOMIC_WRITE: u32 = 15;
}

/// `enum ibv_send_flags`: the first three are the engine's too.
pub(crate) mod send_flags {
    pub(crate) const INLINE: u32 = 1 << 3;
    /// For raw Ethernet; elsewhere it means nothing.
    pub(crate) const IP_CSUM: u32 = 1 << 4;
}

/// The part of `union wr` for RDMA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The part of `union wr` for atomics.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The part of `union wr` for datagrams.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_ud {
    pub(crate) ah: Handle<ibv_ah>,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `union wr` of a send request. Every part may be read: all are integers and one address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union wr_union {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
}

/// The part of the last union for binds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_bind_mw {
    pub(crate) mw: Handle<ibv_mw>,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *const ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in network byte order, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_union,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: wr_bind_mw,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *const ibv_sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
}

sizes! {
    ibv_sge = 16, wr_rdma = 16, wr_atomic = 32, wr_ud = 16, wr_union = 32, wr_bind_mw = 48,
    ibv_send_wr = 128, ibv_recv_wr = 32, ibv_data_buf = 16,
}
offsets! {
    ibv_sge { addr = 0, length = 8, lkey = 12 }
    ibv_send_wr {
        next = 8, sg_list = 16, num_sge = 24, opcode = 28, send_flags = 32, imm_data = 36, wr = 40,
        remote_srqn = 72, bind_mw = 80,
    }
    ibv_recv_wr { next = 8, sg_list = 16, num_sge = 24 }
}
