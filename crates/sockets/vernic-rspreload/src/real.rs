//! The functions of libc that would have been called without this library.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function of another library, looked up with the first call.
pub(crate) struct Found(AtomicPtr<c_void>);

impl Found {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Its address; NULL if `look` does not find it.
    pub(crate) fn address(&self, look: impl FnOnce() -> *mut c_void) -> *mut c_void {
        let known = self.0.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = look();
        // Threads that race here find the same address.
        self.0.store(found, Relaxed);
        found
    }
}

pub(crate) const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the macro adds one zero"), // at compile time
    }
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

/// `errno` of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// `function(arguments) -> result;`: each calls the next function of that name, and fails with
/// ENOSYS if there is none.
macro_rules! next_functions {
    ($($function:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)+) => {$(
        /// The next function of this name.
        ///
        /// # Safety
        /// The contract.
        pub(crate) unsafe fn $function($($argument: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            static NEXT: crate::real::Found = crate::real::Found::new();
            let symbol = const { crate::real::name(concat!(stringify!($function), "\0")) };
            // SAFETY: a C string.
            let look = || unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) };
            let address = NEXT.address(look);
            if address.is_null() {
                crate::real::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: libc's function of this name has this signature; the caller keeps the
            // contract.
            unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, Function>(address)($($argument),*)
            }
        }
    )+};
}

/// The next functions, by name.
pub(crate) mod next {
    use std::ffi::{c_int, c_long, c_ulong, c_void};

    use libc::{
        epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
        socklen_t, ssize_t, timespec, timeval,
    };

    next_functions! {
        socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
        bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
        listen(fd: c_int, backlog: c_int) -> c_int;
        accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
        connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
        shutdown(fd: c_int, how: c_int) -> c_int;
        close(fd: c_int) -> c_int;
        dup(fd: c_int) -> c_int;
        dup2(old: c_int, new: c_int) -> c_int;
        dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
        getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
        getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
        setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, length: socklen_t)
            -> c_int;
        getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, length: *mut socklen_t)
            -> c_int;
        fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
        fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
        ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;

        read(fd: c_int, to: *mut c_void, count: size_t) -> ssize_t;
        readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
        recv(fd: c_int, to: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
        recvfrom(fd: c_int, to: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr,
            length: *mut socklen_t) -> ssize_t;
        recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t;
        writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
        send(fd: c_int, from: *const c_void, count: size_t, flags: c_int) -> ssize_t;
        sendto(fd: c_int, from: *const c_void, count: size_t, flags: c_int, address: *const sockaddr,
            length: socklen_t) -> ssize_t;
        sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
        sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;

        poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
        ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
            -> c_int;
        select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *mut timeval) -> c_int;
        pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *const timespec, mask: *const sigset_t) -> c_int;
        epoll_create1(flags: c_int) -> c_int;
        epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int;
        epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int,
            mask: *const sigset_t) -> c_int;
    }
}

thread_local! {
    /// This thread is inside a function of `librdmacm.so.1`, whose own calls go through untouched.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread's calls are those of `librdmacm.so.1`.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs `call`, whose calls go through untouched.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(true);
    let result = call();
    INSIDE.set(before);
    result
}
