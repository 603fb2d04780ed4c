//! `UDP_GRO`: one receive, many datagrams.
//!
//! The kernel joins equal datagrams of one flow (or passes on what a sender on this host never
//! cut up) and tells their size in a control message. Kernels before 5.0 refuse the option; then
//! each receive yields one datagram, and nothing else changes.

use std::os::fd::BorrowedFd;

use crate::sys;

/// Turns it on; returns false if the kernel has none.
pub(crate) fn enable(fd: BorrowedFd<'_>) -> bool {
    sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}
