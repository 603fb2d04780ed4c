//! Path MTU: packets are never fragmented, and carry DF.
//!
//! `IP_PMTUDISC_DO` on an unconnected socket also fixes the IPv4 Identification at 0 (and at the
//! segment index for a run cut by the kernel), which the ICRC depends on. The option is therefore
//! not an optimisation but a condition: a kernel that refuses it cannot carry RoCEv2 over this
//! link.

use std::io;
use std::os::fd::BorrowedFd;

use vernic_sys as sys;

/// Forbids fragmentation.
pub(crate) fn forbid_fragments(fd: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    if v4 {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    }
}
