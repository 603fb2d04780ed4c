//! `fork`: nothing has to be prepared for it.
//!
//! Memory is not pinned and no device reads it, so a child's copy of a page cannot take the page
//! away from the device. What a child has of the parent's devices is refused there (`shared.rs`);
//! it opens its own.

use std::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// `ibv_fork_init`.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}

/// `ibv_dontfork_range`.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _bytes: usize) -> c_int {
    0
}

/// `ibv_dofork_range`.
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _bytes: usize) -> c_int {
    0
}
