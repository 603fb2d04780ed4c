//! Socket buffers, as large as the process may have.

use std::os::fd::BorrowedFd;

use vernic_sys as sys;

/// Asks for a receive buffer of `bytes`: with privilege even beyond `net.core.rmem_max`, else up to
/// it.
pub(crate) fn set_receive(fd: BorrowedFd<'_>, bytes: u32) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
}

/// Asks for a send buffer of `bytes`: with privilege even beyond `net.core.wmem_max`, else up to
/// it.
pub(crate) fn set_send(fd: BorrowedFd<'_>, bytes: u32) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes).is_err() {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
    }
}

/// Returns how many bytes of memory the receive buffer of a socket holds (the kernel doubles what
/// is asked for); 0 if the system does not say.
pub(crate) fn receive_capacity(fd: BorrowedFd<'_>) -> u64 {
    let bytes = sys::option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
    u64::try_from(bytes).unwrap_or(0)
}
