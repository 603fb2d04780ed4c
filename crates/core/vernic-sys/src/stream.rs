//! System calls for connected streams, and for waiting for many descriptors at once.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use vernic_mem::{RacySlice, RacySliceMut};

use super::{OwnFd, SockAddr, check, checked};

/// Lets a bound socket take connections; up to `backlog` of them wait to be accepted.
pub fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(())
}

/// Accepts the next connection of a listening socket: non-blocking and closed on exec.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (none, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is asked for.
    OwnFd::open(|| check(unsafe { libc::accept4(fd.as_raw_fd(), none, no_len, flags) }))
}

/// Returns the soft limit of open descriptors; 0 if the system does not say.
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one structure, which lives through the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// Raises the soft limit of open descriptors to the hard one, and returns what the limit is then.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one structure, which lives through the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads one structure, which lives through the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
    descriptor_limit()
}

/// Returns the address of the other end.
pub fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut addr = std::mem::MaybeUninit::<SockAddr>::zeroed();
    let mut len = size_of::<SockAddr>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `addr`, which is that long.
    check(unsafe { libc::getpeername(fd.as_raw_fd(), addr.as_mut_ptr().cast(), &raw mut len) })?;
    // SAFETY: zeroed before, so initialised whatever the kernel left out.
    unsafe { SockAddr::decode(addr.as_ptr()) }
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Closes the sending half. The peer first receives all that was sent before.
pub fn shutdown_write(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) })?;
    Ok(())
}

/// Returns the kernel's state of a connection. Fields that an older kernel does not have are 0.
pub fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let at = info.as_mut_ptr().cast();
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `len` bytes into `info`, which is that long.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len) })?;
    // SAFETY: a structure of integers, zeroed before, so valid whatever the kernel left out.
    Ok(unsafe { info.assume_init() })
}

/// Returns the bytes that were sent and that the peer has not acknowledged. A closed sending half
/// counts as one byte.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes.max(0) as usize)
}

/// Receives the bytes that are there; 0 is the end of the stream.
pub fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    let (fd, at, len) = (fd.as_raw_fd(), buf.as_mut_ptr(), buf.len());
    let none = std::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: pointer and length describe `buf`; no address is asked for.
    checked(unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, at, len, libc::MSG_DONTWAIT, none, none)
    })
}

/// Sends as many bytes as there is room for.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (fd, at, len) = (fd.as_raw_fd(), bytes.as_ptr(), bytes.len());
    let none = std::ptr::null::<libc::sockaddr>();
    // SAFETY: pointer and length describe `bytes`, which the kernel only reads; no address is
    // passed.
    checked(unsafe { libc::syscall(libc::SYS_sendto, fd, at, len, flags, none, 0) })
}

/// The most pieces that one call takes.
pub const MAX_PIECES: usize = 64;

/// Does what [`recv`] does, into pieces of memory, one after the other. Pieces beyond
/// [`MAX_PIECES`] are ignored.
pub fn recv_pieces(fd: BorrowedFd<'_>, pieces: &mut [RacySliceMut<'_>]) -> io::Result<usize> {
    let count = pieces.len().min(MAX_PIECES);
    // SAFETY: a msghdr of zeros is valid: no address, no control data, no pieces.
    let mut head = unsafe { std::mem::zeroed::<libc::msghdr>() };
    head.msg_iov = RacySliceMut::as_iovecs(pieces);
    head.msg_iovlen = count as _;
    let at = &raw mut head;
    // SAFETY: `head` lives through the call and describes `pieces`, each of which is memory that
    // may be written as long as it lives.
    checked(unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), at, libc::MSG_DONTWAIT) })
}

/// Does what [`send`] does, from pieces of memory, one after the other, [`MAX_PIECES`] at most.
pub fn send_pieces(fd: BorrowedFd<'_>, pieces: &[RacySlice<'_>]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let count = pieces.len().min(MAX_PIECES);
    // SAFETY: a msghdr of zeros is valid: no address, no control data, no pieces.
    let mut head = unsafe { std::mem::zeroed::<libc::msghdr>() };
    head.msg_iov = RacySlice::as_iovecs(pieces).cast_mut();
    head.msg_iovlen = count as _;
    let at = &raw const head;
    // SAFETY: `head` lives through the call and describes `pieces`, each of which is memory that
    // may be read as long as it lives, and is only read.
    checked(unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), at, flags) })
}

/// Opens a descriptor that stands for a list of descriptors.
pub fn epoll() -> io::Result<OwnFd> {
    // SAFETY: no pointers are passed.
    OwnFd::open(|| check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
}

/// A change to the list of an [`epoll`] descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollOp {
    /// The descriptor is new in the list.
    Add,
    /// Other events of the descriptor are of interest.
    Change,
    /// The descriptor leaves the list.
    Remove,
}

/// Adds a descriptor to the list, changes the events that are waited for, or removes the
/// descriptor. [`epoll_ready`] returns `key` when the descriptor is ready.
pub fn epoll_watch(
    epoll: BorrowedFd<'_>,
    op: EpollOp,
    fd: BorrowedFd<'_>,
    key: u64,
    events: u32,
) -> io::Result<()> {
    let op = match op {
        EpollOp::Add => libc::EPOLL_CTL_ADD,
        EpollOp::Change => libc::EPOLL_CTL_MOD,
        EpollOp::Remove => libc::EPOLL_CTL_DEL,
    };
    let mut event = libc::epoll_event { events, u64: key };
    // SAFETY: `event` lives through the call, which only reads it.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) })?;
    Ok(())
}

/// The most events that one call of [`epoll_ready`] returns.
pub(crate) const MAX_READY: usize = 64;

/// Calls `each` with the key and events of each descriptor that is ready now; never waits.
pub fn epoll_ready(epoll: BorrowedFd<'_>, mut each: impl FnMut(u64, u32)) -> io::Result<usize> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_READY];
    let (fd, at) = (epoll.as_raw_fd(), events.as_mut_ptr());
    // The length must be as wide as the kernel reads it.
    let (no_mask, mask_len) = (std::ptr::null::<libc::sigset_t>(), 0_usize);
    // SAFETY: pointer and count describe `events`, which the kernel writes to.
    let count = checked(unsafe {
        libc::syscall(libc::SYS_epoll_pwait, fd, at, MAX_READY, 0, no_mask, mask_len)
    })?;
    for event in &events[..count] {
        let (key, events) = (event.u64, event.events);
        each(key, events);
    }
    Ok(count)
}
