//! Refusals, one for each kind of result that C functions have.
//!
//! Functions of every signature jump here. Arguments lie in registers, or where the caller takes
//! them away again; none is looked at.

use std::ffi::{c_int, c_void};
use std::ptr;

/// Sets the caller's `errno` to EOPNOTSUPP.
fn set_errno() {
    // SAFETY: libc returns the address of the calling thread's own `errno`, valid for writes.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

/// Makers of objects: NULL and `errno`.
pub(crate) extern "C" fn pointer() -> *mut c_void {
    set_errno();
    ptr::null_mut()
}

/// Verbs that return 0 or a positive `errno`.
pub(crate) extern "C" fn errno() -> c_int {
    set_errno();
    libc::EOPNOTSUPP
}

/// Functions that return a file descriptor: -1 and `errno`.
pub(crate) extern "C" fn descriptor() -> c_int {
    set_errno();
    -1
}

/// Functions that return a count of bytes: -1 and `errno`.
pub(crate) extern "C" fn size() -> isize {
    set_errno();
    -1
}

/// Functions without a result: they free what was never made.
pub(crate) extern "C" fn nothing() {}
