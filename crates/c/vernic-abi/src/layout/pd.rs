//! Protection, thread and parent domains, and XRC domains.

use std::ffi::{c_int, c_void};

use super::context::ibv_context;
use super::sizes;
use crate::pointer::Handle;

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) handle: u32,
}

/// `struct ibv_td`.
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: Handle<ibv_context>,
}

/// `struct ibv_td_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_td_init_attr {
    pub(crate) comp_mask: u32,
}

/// `enum ibv_parent_domain_init_attr_mask`.
pub(crate) mod parent_mask {
    pub(crate) const ALLOCATORS: u32 = 1;
    pub(crate) const PD_CONTEXT: u32 = 1 << 1;
}

/// `struct ibv_parent_domain_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) td: Handle<ibv_td>,
    pub(crate) comp_mask: u32,
    pub(crate) alloc:
        Option<unsafe extern "C" fn(Handle<ibv_pd>, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(Handle<ibv_pd>, *mut c_void, *mut c_void, u64)>,
    pub(crate) pd_context: *mut c_void,
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: Handle<ibv_context>,
}

/// `enum ibv_xrcd_init_attr_mask`.
pub(crate) mod xrcd_mask {
    pub(crate) const FD: u32 = 1;
    pub(crate) const OFLAGS: u32 = 1 << 1;
}

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

sizes! {
    ibv_pd = 16, ibv_td = 8, ibv_td_init_attr = 4, ibv_parent_domain_init_attr = 48, ibv_xrcd = 8,
    ibv_xrcd_init_attr = 12,
}
