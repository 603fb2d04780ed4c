//! Answers the netlink family of RDMA (`NETLINK_RDMA`), by which `rdma` of iproute2 looks at
//! devices.
//!
//! The kernel has this family only with its RDMA core, and would show its own devices there. A
//! program that asks for such a socket gets a netlink socket of the family that is there for users
//! (`NETLINK_USERSOCK`) instead, so binding, its address, options, polling, receiving and closing
//! are the system's. Nobody has port 0 of that family, where the kernel would be: what is sent
//! there fails with ECONNREFUSED, and only then is it looked at here ([`nldev`]). The answers are
//! sent into the socket from another one, before the call returns. So nothing is remembered, and a
//! `send` that succeeds costs a comparison.
//!
//! Limits: what is sent by `write`, and notifications (`rdma monitor`). The sender's address of an
//! answer is a user's port instead of 0. Nobody but the kernel's own rules keeps other users of the
//! host from sending into such a socket; libraries compare sequence numbers.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libc::{msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::libc_functions::Next;
use crate::nldev;
use crate::shown::folder;

/// The family of RDMA; <linux/netlink.h>.
const NETLINK_RDMA: c_int = 20;

/// Longest request that is looked at; they have some dozens of bytes.
const MAX_REQUEST_BYTES: usize = 4096;

/// Calls the next function of a name.
macro_rules! next {
    ($name:literal, fn($($type:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        static NEXT: Next = Next::new();
        let address = NEXT.address($name);
        if address.is_null() {
            return -1;
        }
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        // SAFETY: libc's function of this name has this signature; the arguments are those of the
        // caller, who keeps its contract.
        unsafe { std::mem::transmute::<*mut c_void, Function>(address)($($argument),*) }
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_rdma = domain == libc::AF_NETLINK && protocol == NETLINK_RDMA;
    let protocol = match is_rdma && folder().is_some() {
        true => libc::NETLINK_USERSOCK,
        false => protocol,
    };
    next!(c"socket", fn(c_int, c_int, c_int) -> c_int, (domain, kind, protocol))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let sent =
        next!(c"send", fn(c_int, *const c_void, size_t, c_int) -> ssize_t, (fd, bytes, len, flags));
    // SAFETY: the caller's bytes.
    if sent < 0 && unsafe { answered(fd, &[iovec(bytes, len)]) } { len as ssize_t } else { sent }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let sent = next!(
        c"sendto",
        fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
        (fd, bytes, len, flags, to, to_len)
    );
    // SAFETY: the caller's bytes.
    if sent < 0 && unsafe { answered(fd, &[iovec(bytes, len)]) } { len as ssize_t } else { sent }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let sent = next!(c"sendmsg", fn(c_int, *const msghdr, c_int) -> ssize_t, (fd, message, flags));
    if sent >= 0 || !was_refused() {
        return sent;
    }
    // SAFETY: the system has looked at the message, so it can be read.
    let (pieces, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    // SAFETY: the system has looked at the pieces, too.
    let pieces = (0..count).map(|at| unsafe { pieces.add(at).read() }).collect::<Vec<_>>();
    let len: usize = pieces.iter().map(|piece| piece.iov_len).sum();
    // SAFETY: the caller's bytes.
    if unsafe { answered(fd, &pieces) } { len as ssize_t } else { sent }
}

fn iovec(bytes: *const c_void, len: size_t) -> libc::iovec {
    libc::iovec { iov_base: bytes.cast_mut(), iov_len: len }
}

/// Whether the last call of this thread failed because nobody is there.
fn was_refused() -> bool {
    // SAFETY: the address of the calling thread's own `errno`.
    unsafe { *libc::__errno_location() == libc::ECONNREFUSED }
}

/// Answers a request that the system has refused; false, with `errno` as it was, if it is none for
/// us.
///
/// # Safety
/// The pieces are memory of the caller's that can be read.
#[cold]
unsafe fn answered(fd: c_int, pieces: &[libc::iovec]) -> bool {
    if !was_refused() {
        return false;
    }
    let answered = (|| {
        let folder = folder()?;
        let of = |option| socket_option(fd, option);
        let is_ours = of(libc::SO_DOMAIN)? == libc::AF_NETLINK
            && of(libc::SO_PROTOCOL)? == libc::NETLINK_USERSOCK;
        let mut request = Vec::new();
        for piece in pieces.iter().filter(|piece| is_ours && piece.iov_len != 0) {
            let len = piece.iov_len.min(MAX_REQUEST_BYTES);
            // SAFETY: as the caller says; nobody writes to it while the call that was given it
            // runs.
            let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), len) };
            request.extend_from_slice(bytes);
        }
        let port = own_port(fd)?;
        let answers = nldev::answers(&request, port, folder)?;
        deliver(port, &answers)
    })();
    // SAFETY: as above. Looking may have changed it.
    unsafe { *libc::__errno_location() = libc::ECONNREFUSED };
    answered.is_some()
}

fn socket_option(fd: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: the kernel writes one int, which lives through the call.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &raw mut len) };
    (got == 0).then_some(value)
}

/// An address of the family; port 0 is the kernel's.
fn address(port: u32) -> sockaddr_nl {
    // SAFETY: a sockaddr_nl of zeros is valid.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

/// The port of a socket; the system has given it one before it refused what was sent.
fn own_port(fd: c_int) -> Option<u32> {
    let (mut own, mut len) = (address(0), size_of::<sockaddr_nl>() as socklen_t);
    // SAFETY: the kernel writes at most `len` bytes into `own`, which is that long.
    let got = unsafe { libc::getsockname(fd, (&raw mut own).cast(), &raw mut len) };
    (got == 0 && own.nl_pid != 0).then_some(own.nl_pid)
}

/// Sends answers to a port. What its socket has no room for is lost, as from the kernel.
fn deliver(port: u32, answers: &[Vec<u8>]) -> Option<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let family = (libc::AF_NETLINK, libc::NETLINK_USERSOCK);
    // SAFETY: no pointers are passed. By number, since the function of this name is ours.
    let fd = unsafe { libc::syscall(libc::SYS_socket, family.0, kind, family.1) } as c_int;
    if fd < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else's.
    let from = unsafe { OwnedFd::from_raw_fd(fd) };
    let (to, len) = (address(port), size_of::<sockaddr_nl>());
    for answer in answers {
        let (at, size, flags) = (answer.as_ptr(), answer.len(), libc::MSG_DONTWAIT);
        // SAFETY: pointers and lengths describe `answer` and `to`, which the kernel only reads.
        unsafe {
            libc::syscall(libc::SYS_sendto, from.as_raw_fd(), at, size, flags, &raw const to, len)
        };
    }
    Some(())
}
