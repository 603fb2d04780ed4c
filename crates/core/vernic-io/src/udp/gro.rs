//! `UDP_GRO`: one receive, many datagrams.
//!
//! The kernel joins equal datagrams of one flow, or passes on a run that a sender on this host
//! never cut up. It gives the size of the datagrams in a control message. Kernels before 5.0 refuse
//! the option; then each receive yields one datagram, and nothing else changes.

use std::os::fd::BorrowedFd;

use vernic_sys as sys;

/// Turns GRO on; returns false if the kernel does not support it.
pub(crate) fn enable(fd: BorrowedFd<'_>) -> bool {
    sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}
