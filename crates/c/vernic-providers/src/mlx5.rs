//! Functions of libmlx5 that answer with more than a refusal: what they fill in is set, too.

use std::ffi::{c_char, c_int, c_void};

use crate::refuse;

/// Writes `value` to where C wants it, unless that is nowhere.
///
/// # Safety
/// `out` is NULL or valid for a write.
unsafe fn fill<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not NULL, hence valid, by the caller's promise.
        unsafe { out.write(value) };
    }
}

/// `mlx5dv_is_supported`: no device is an mlx5 device.
pub(crate) extern "C" fn is_supported(_device: *mut c_void) -> bool {
    false
}

/// `mlx5dv_query_qp_lag_port`.
///
/// # Safety
/// As the C function: both outputs are NULL or valid for writes.
pub(crate) unsafe extern "C" fn query_qp_lag_port(
    _qp: *mut c_void,
    port: *mut u8,
    active_port: *mut u8,
) -> c_int {
    // SAFETY: this function's own condition.
    unsafe { (fill(port, 0), fill(active_port, 0)) };
    refuse::errno()
}

/// `mlx5dv_devx_query_eqn`.
///
/// # Safety
/// As the C function: the output is NULL or valid for a write.
pub(crate) unsafe extern "C" fn devx_query_eqn(
    _context: *mut c_void,
    _vector: u32,
    eqn: *mut u32,
) -> c_int {
    // SAFETY: this function's own condition.
    unsafe { fill(eqn, 0) };
    refuse::errno()
}

/// `mlx5dv_crypto_login_query_state`.
///
/// # Safety
/// As the C function: the output is NULL or valid for a write.
pub(crate) unsafe extern "C" fn crypto_login_query_state(
    _context: *mut c_void,
    state: *mut u32,
) -> c_int {
    // The second value of the enumeration: there is no login session.
    const NO_LOGIN: u32 = 1;
    // SAFETY: this function's own condition.
    unsafe { fill(state, NO_LOGIN) };
    refuse::errno()
}

/// `mlx5dv_reserved_qpn_alloc`.
///
/// # Safety
/// As the C function: the output is NULL or valid for a write.
pub(crate) unsafe extern "C" fn reserved_qpn_alloc(_context: *mut c_void, qpn: *mut u32) -> c_int {
    // SAFETY: this function's own condition.
    unsafe { fill(qpn, 0) };
    refuse::errno()
}

/// `_mlx5dv_get_export_sizes`: nothing can be exported, so attributes have no size.
///
/// # Safety
/// As the C function: `sizes` is NULL or valid for `length` bytes.
pub(crate) unsafe extern "C" fn get_export_sizes(sizes: *mut u8, length: usize) {
    if !sizes.is_null() {
        // SAFETY: not NULL, hence valid for so many bytes, by the caller's promise.
        unsafe { sizes.write_bytes(0, length) };
    }
}

/// `mlx5dv_get_data_direct_sysfs_path`: the empty path.
///
/// # Safety
/// As the C function: `path` is valid for `length` bytes.
pub(crate) unsafe extern "C" fn data_direct_sysfs_path(
    _context: *mut c_void,
    path: *mut c_char,
    length: usize,
) -> c_int {
    if length > 0 {
        // SAFETY: this function's own condition, and there is a first byte.
        unsafe { fill(path, 0) };
    }
    refuse::errno()
}
