//! Asynchronous events.

use std::ffi::{c_int, c_void};

use super::{offsets, sizes};

/// `struct ibv_async_event`. The union of its first 8 bytes is a pointer here; a port number is its
/// low half.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

/// `enum ibv_event_type`, as far as the kind of the element hangs on it.
pub(crate) mod event_type {
    pub(crate) const CQ_ERR: i32 = 0;
    pub(crate) const QP_FATAL: i32 = 1;
    pub(crate) const COMM_EST: i32 = 4;
    pub(crate) const PATH_MIG_ERR: i32 = 7;
    pub(crate) const SRQ_ERR: i32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: i32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: i32 = 16;
}

sizes! { ibv_async_event = 16 }
offsets! { ibv_async_event { event_type = 8 } }
