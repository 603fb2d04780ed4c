//! The functions for sockets over RDMA: those of `librdmacm.so.1`, loaded with the first call.
//!
//! Whichever library of that name the program finds is used, ours or another with rsockets.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::real::{errno, inside, set_errno};

/// The library, and where it may be if the program's search path does not lead to one.
const LIBRARY: &std::ffi::CStr = c"librdmacm.so.1";

/// The handle of the library, once it is loaded.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Loads the library; NULL if there is none.
fn handle() -> *mut c_void {
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // Two threads may both load it: the same, counted twice.
    // SAFETY: a C string; the library does nothing when it is loaded.
    let loaded =
        inside(|| unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) });
    HANDLE.store(loaded, Ordering::Release);
    loaded
}

/// Whether there are sockets over RDMA.
pub(crate) fn is_there() -> bool {
    !handle().is_null()
}

/// `function(arguments) -> result;`: each calls the library's function of that name.
macro_rules! functions {
    ($($function:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)+) => {$(
        /// The library's function of this name.
        ///
        /// # Safety
        /// The contract of libc's function whose name this has behind its `r`.
        pub(crate) unsafe fn $function($($argument: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            static FOUND: crate::real::Found = crate::real::Found::new();
            let symbol = const { crate::real::name(concat!(stringify!($function), "\0")) };
            let address = FOUND.address(|| match handle() {
                library if library.is_null() => library,
                // SAFETY: a library that is never unloaded, and a C string.
                library => unsafe { libc::dlsym(library, symbol.as_ptr()) },
            });
            if address.is_null() {
                crate::real::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: `rdma/rsocket.h` declares the function so; the caller keeps its contract.
            inside(|| unsafe {
                std::mem::transmute::<*mut c_void, Function>(address)($($argument),*)
            })
        }
    )+};
}

use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

functions! {
    rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    rbind(number: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    rlisten(number: c_int, backlog: c_int) -> c_int;
    raccept(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rconnect(number: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    rshutdown(number: c_int, how: c_int) -> c_int;
    rclose(number: c_int) -> c_int;
    rgetpeername(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rgetsockname(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rsetsockopt(number: c_int, level: c_int, option: c_int, value: *const c_void, length: socklen_t)
        -> c_int;
    rgetsockopt(number: c_int, level: c_int, option: c_int, value: *mut c_void,
        length: *mut socklen_t) -> c_int;
    rfcntl(number: c_int, command: c_int, argument: std::ffi::c_long) -> c_int;
    rrecv(number: c_int, to: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    rrecvfrom(number: c_int, to: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr,
        length: *mut socklen_t) -> ssize_t;
    rrecvmsg(number: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    rreadv(number: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    rsend(number: c_int, from: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    rsendto(number: c_int, from: *const c_void, count: size_t, flags: c_int,
        address: *const sockaddr, length: socklen_t) -> ssize_t;
    rsendmsg(number: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    rwritev(number: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    rpoll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    repoll_create(flags: c_int) -> c_int;
    repoll_ctl(set: c_int, op: c_int, number: c_int, event: *mut epoll_event) -> c_int;
    repoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int;
}

/// The level of options that only sockets over RDMA have (`SOL_RDMA`).
pub(crate) const SOL_RDMA: c_int = 0x10000;
/// Sizes (`RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE`).
pub(crate) const SIZES: [c_int; 3] = [0, 1, 2];
/// Bytes that wait to be read, and bytes that are in flight: of Vernic's library alone.
pub(crate) const UNREAD: c_int = 0x100;
pub(crate) const UNSENT: c_int = 0x101;

/// Sets an option that is an `int`; failures are of no consequence.
pub(crate) fn set_int(number: c_int, level: c_int, option: c_int, value: c_int) {
    let value = ptr::from_ref(&value).cast();
    // SAFETY: the value is an `int`, and lives during the call.
    unsafe { rsetsockopt(number, level, option, value, size_of::<c_int>() as socklen_t) };
}

/// Reads an option that is an `int`; `None` if there is none.
pub(crate) fn int(number: c_int, level: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let place = ptr::from_mut(&mut value).cast();
    // SAFETY: room for an `int`, as the length says.
    let result = unsafe { rgetsockopt(number, level, option, place, &raw mut length) };
    (result == 0).then_some(value)
}

/// Whether a socket is said to have a peer only if it has one: not by rdma-core's library.
pub(crate) fn tells_peers() -> bool {
    TELLS_PEERS.load(Ordering::Relaxed)
}

/// Notes whether the library reports a peer of a socket that is not connected.
pub(crate) fn note_unconnected(has_peer: bool) {
    TELLS_PEERS.store(!has_peer, Ordering::Relaxed);
}

static TELLS_PEERS: AtomicBool = AtomicBool::new(true);

/// What a socket has of `events` now, and what is told in any case.
pub(crate) fn ready(number: c_int, events: i16) -> i16 {
    let mut entry = pollfd { fd: number, events, revents: 0 };
    // SAFETY: one entry.
    match unsafe { rpoll(&raw mut entry, 1, 0) } {
        1.. => entry.revents,
        _ => 0,
    }
}

/// Ends a socket over RDMA.
pub(crate) fn close_rsocket(number: c_int) {
    let before = errno();
    if number >= 0 {
        // SAFETY: no pointers.
        unsafe { rclose(number) };
    }
    set_errno(before);
}
