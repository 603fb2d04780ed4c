//! System calls as safe functions, for `vernic-io` and `vernic-local`.
//!
//! Owns nothing but the translation between Rust types and the C structures of the kernel. Each
//! function makes one system call (`ifaddrs` aside) and returns its error as it is. There is no
//! policy here: the callers decide what to do about an error.
//!
//! | file | what |
//! |---|---|
//! | `lib.rs` | sockets, their options and addresses, `poll`, users |
//! | `message.rs`, `stream.rs` | batches of datagrams; TCP, `epoll` |
//! | `frames.rs`, `frame_ring.rs` | Ethernet frames through packet sockets, and filters; a ring of them |
//! | `unix.rs`, `packets.rs` | messages to sockets by name, with credentials and files |
//! | `mapping.rs`, `shared.rs`, `circle.rs` | memory that processes share, and copies to and from it |
//! | `fork.rs`, `signals.rs` | descriptors that a child of `fork` does not keep; signals as a file |
//! | `user.rs`, `random.rs` | which user a process belongs to; random numbers |
//! | `watch.rs` | files that are seen to be opened and closed |
//! | `ifaddrs.rs`, `tun.rs` | interfaces; TUN devices |
//! | `turns.rs`, `ticks.rs` | how long a turn of the scheduler is; the counter |
//!
//! Limits: 32 messages per `sendmmsg`/`recvmmsg`. Nothing here allocates but the list of
//! interfaces, and the buffer of a frame from a ring where it is too short.

mod circle;
mod fork;
mod frame_ring;
mod frames;
mod ifaddrs;
mod mapping;
mod message;
mod packets;
mod random;
mod shared;
mod signals;
mod stream;
mod ticks;
mod tun;
mod turns;
mod unix;
pub mod user;
mod watch;

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub use circle::Circle;
pub use fork::{ClosableFd, Gate, Origin, OwnFd};
pub use frame_ring::{FrameRing, RingFrame};
pub use frames::{
    FrameKind, IncomingFrame, Instruction, MAX_FRAME_HEAD, OutgoingFrame, attach_filter,
    bind_frames, enable_frame_details, frame_socket, may_open_frame_socket, recv_frames,
    send_frames, set_frame_membership,
};
pub use ifaddrs::{Interface, addresses_of, interfaces, mtu_of};
pub use mapping::{
    ReadMemory, SharedMemory, copy_in, copy_out, memory_file, prefetch_for_write,
    seal_against_writers,
};
pub use message::{Incoming, Outgoing, recv_many, recv_one, send_many};
pub use packets::{Packet, packet_pair, peer_credentials, recv_message, recv_packet, send_packet};
pub use random::random;
pub use shared::{SharedPage, inode_of, shared_file};
pub use signals::termination;
pub use stream::{
    EpollOp, MAX_PIECES, accept, descriptor_limit, epoll, epoll_ready, epoll_watch, listen,
    peer_addr, raise_descriptor_limit, recv, recv_pieces, send, send_pieces, shutdown_write,
    tcp_info, unacknowledged,
};
pub use ticks::ticks;
pub use tun::Tun;
pub use turns::{ask_for_exact_timeouts, ask_for_short_slices};
pub use unix::{
    bell, bind_abstract, bind_path, connect_abstract, connect_path, peer_name, recv_abstract,
    send_abstract, send_with_file,
};
pub use watch::{FileEvent, FileWatch, make_fifo};

/// Turns the -1 of a system call into the error of the thread.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Does the same for `libc::syscall`, which makes the calls of the data path. A thread of the
/// program that is being cancelled (`pthread_cancel`) would end inside the C library's own
/// functions for these calls. It would leave the engine's locks held and half of its work done.
fn checked(ret: libc::c_long) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// Whether a call failed only for now: nothing was there, there was no room, or a signal came.
pub fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Opens a new socket, non-blocking and closed on exec.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnFd> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    OwnFd::open(|| check(unsafe { libc::socket(family, kind, protocol) }))
}

/// Sets an integer socket option.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Sets a socket option from the bytes of its C structure.
pub fn set_option_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Returns an integer socket option.
pub fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: pointer and length describe `value`, which lives through the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len) })?;
    Ok(value)
}

/// An IP address as the C structure of a socket.
pub(crate) union SockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// An address of no family, as where the kernel names none.
    const UNSPECIFIED: Self = Self {
        v4: libc::sockaddr_in {
            sin_family: 0,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        },
    };

    fn new(addr: &SocketAddr) -> (Self, libc::socklen_t) {
        match addr {
            SocketAddr::V4(a) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (Self { v4 }, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(a) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                (Self { v6 }, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// Returns the address that the kernel wrote, if it is an IP address.
    ///
    /// # Safety
    /// The structure must be filled for the family that it names; at least the family must be
    /// initialised.
    unsafe fn decode(this: *const Self) -> Option<SocketAddr> {
        // SAFETY: both variants begin with the family, initialised as the caller promises; the
        // variant of that family is the one that is filled.
        unsafe {
            match i32::from((*this).v4.sin_family) {
                libc::AF_INET => {
                    let a = &(*this).v4;
                    let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port))))
                }
                libc::AF_INET6 => {
                    let a = &(*this).v6;
                    let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                    let port = u16::from_be(a.sin6_port);
                    Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, a.sin6_scope_id)))
                }
                _ => None,
            }
        }
    }
}

/// Binds a socket to an address.
pub fn bind(fd: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<()> {
    let (addr, len) = SockAddr::new(addr);
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Connects a datagram socket, which from now on receives from `addr` only, or begins to connect a
/// stream socket.
pub fn connect(fd: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<()> {
    let (addr, len) = SockAddr::new(addr);
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Returns the address that a socket is bound to.
pub fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut addr = MaybeUninit::<SockAddr>::zeroed();
    let mut len = size_of::<SockAddr>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `addr`, which is that long.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), addr.as_mut_ptr().cast(), &raw mut len) })?;
    // SAFETY: zeroed before, so initialised whatever the kernel left out.
    unsafe { SockAddr::decode(addr.as_ptr()) }
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Joins or leaves a multicast group on the netdev with index `ifindex`.
pub fn set_membership(
    fd: BorrowedFd<'_>,
    group: std::net::IpAddr,
    ifindex: u32,
    join: bool,
) -> io::Result<()> {
    match group {
        std::net::IpAddr::V4(group) => {
            // struct ip_mreqn: group, address, index.
            let mut request = [0; 12];
            request[..4].copy_from_slice(&group.octets());
            request[8..].copy_from_slice(&(ifindex as i32).to_ne_bytes());
            let name = if join { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
            set_option_bytes(fd, libc::IPPROTO_IP, name, &request)
        }
        std::net::IpAddr::V6(group) => {
            // struct ipv6_mreq: group, index.
            let mut request = [0; 20];
            request[..16].copy_from_slice(&group.octets());
            request[16..].copy_from_slice(&ifindex.to_ne_bytes());
            let name = if join { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
            set_option_bytes(fd, libc::IPPROTO_IPV6, name, &request)
        }
    }
}

/// A descriptor to pass to [`poll`].
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    /// Makes an entry that asks whether `fd` can be read.
    pub fn readable(fd: RawFd) -> Self {
        Self(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Makes an entry that asks whether the other end of `fd` has hung up.
    pub fn hang_up(fd: RawFd) -> Self {
        Self(libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 })
    }

    /// Makes an entry that asks whether `fd` can be written to.
    pub fn writable(fd: RawFd) -> Self {
        Self(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 })
    }

    /// Returns the descriptor.
    pub fn fd(self) -> RawFd {
        self.0.fd
    }

    /// Whether the last [`poll`] found what was asked for, or an error.
    pub fn is_ready(self) -> bool {
        self.0.revents != 0
    }

    /// Whether the last [`poll`] found an error, such as that of a socket (`SO_ERROR`).
    pub fn has_failed(self) -> bool {
        self.0.revents & (libc::POLLERR | libc::POLLNVAL) != 0
    }
}

/// Waits until one of `fds` is ready or `timeout` is over (`None`: no limit). Returns how many
/// are ready. A signal ends the wait early with 0.
pub fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
    let mut spec = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let spec = spec.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let (fds, count) = (fds.as_mut_ptr(), fds.len());
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: `PollFd` is a transparent `pollfd`; pointer and count describe the slice; `spec`,
    // which the kernel may write the time left to, lives through the call.
    match checked(unsafe { libc::syscall(libc::SYS_ppoll, fds, count, spec, no_mask, 0) }) {
        Ok(n) => Ok(n),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

/// Opens a descriptor to be woken by, non-blocking and closed on exec. It is an event counter, or a
/// bell where the system forbids event counters.
pub fn eventfd() -> io::Result<OwnFd> {
    let (kind, flags) = (libc::SOCK_NONBLOCK, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
    OwnFd::open(|| {
        // SAFETY: no pointers are passed.
        let counter = check(unsafe { libc::eventfd(0, flags) });
        counter.or_else(|error| bell(kind).map(IntoRawFd::into_raw_fd).map_err(|_| error))
    })
}

/// Takes over a descriptor that `std` has opened, closed on exec.
pub fn own(fd: OwnedFd) -> io::Result<OwnFd> {
    OwnFd::open(|| Ok(fd.into_raw_fd()))
}

/// Returns the real user id of this process, which the kernel puts into the credentials of
/// datagrams.
pub fn uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getuid() }
}

/// Returns the effective user id, which files are made with, and which the kernel names as the peer
/// of a connection.
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether this program has rights that its caller has not: set-uid, set-gid, or capabilities of
/// its file. The environment cannot be trusted then, since the caller chose it.
pub fn has_foreign_rights() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Opens a netlink socket that receives changes to links, addresses and routes.
pub fn route_monitor() -> io::Result<OwnFd> {
    let fd = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // SAFETY: a sockaddr_nl of zeros is valid.
    let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    addr.nl_groups = (libc::RTMGRP_LINK
        | libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_ROUTE) as u32;
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const addr).cast(),
            size_of::<libc::sockaddr_nl>() as libc::socklen_t,
        )
    })?;
    Ok(fd)
}

/// Reads one message from a descriptor (socket or eventfd) into `buf`.
pub fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buf`.
    checked(unsafe { libc::syscall(libc::SYS_read, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len()) })
}

/// Writes one message to a descriptor.
pub fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buf`, which the kernel only reads.
    checked(unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), buf.as_ptr(), buf.len()) })
}

/// Writes all of `buf` to a descriptor that blocks, such as a file.
pub fn write_all(fd: BorrowedFd<'_>, mut buf: &[u8]) -> io::Result<()> {
    // Each round writes at least a byte, or was interrupted by a signal.
    while !buf.is_empty() {
        match write(fd, buf) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => buf = &buf[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
