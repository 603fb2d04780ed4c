//! Options, flags and names.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};

use crate::connect::settle;
use crate::rdmacm::{self, SOL_RDMA, UNREAD, UNSENT};
use crate::real::{errno, next, set_errno};
use crate::sockets::{copied, set_nonblocking, to_copy};
use crate::table::{Entry, Stage, find};

/// The socket over RDMA of a descriptor, if there is one.
fn number_of(fd: c_int) -> Option<c_int> {
    rsocket_of(fd).map(|(_, number)| number)
}

fn rsocket_of(fd: c_int) -> Option<(Arc<Entry>, c_int)> {
    let entry = find(fd)?;
    settle(&entry);
    let number = entry.rdma().filter(|number| *number >= 0)?;
    Some((entry, number))
}

/// Bytes of the longest option that is kept for another socket; none of rsockets is longer.
const MAX_NOTED: socklen_t = 64;

/// `setsockopt`: on both sockets; the one over RDMA does not know all options.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let Some((entry, number)) = rsocket_of(fd) else {
        // SAFETY: the caller's arguments.
        let result = unsafe { next::setsockopt(fd, level, option, value, length) };
        if let Some(entry) = find(fd).filter(|entry| result == 0 && entry.stage() == Stage::Asked) {
            // SAFETY: as above: they were just read.
            unsafe { note(&entry, level, option, value, length) };
        }
        return result;
    };
    let before = errno();
    // SAFETY: as above, of one contract.
    let over_rdma = unsafe { rdmacm::rsetsockopt(number, level, option, value, length) };
    let is_made = matches!(entry.stage(), Stage::Rdma | Stage::Listening);
    if over_rdma == 0 && !is_made {
        // SAFETY: as above: they were just read.
        unsafe { note(&entry, level, option, value, length) };
    }
    if level == SOL_RDMA {
        return over_rdma;
    }
    set_errno(before);
    // SAFETY: as above. What it refuses, the program would have been refused without this library.
    let over_tcp = unsafe { next::setsockopt(fd, level, option, value, length) };
    if over_rdma == 0 { 0 } else { over_tcp }
}

/// Takes note of an option for another socket over RDMA in place of that which a socket has or had.
///
/// # Safety
/// The value has so many bytes.
unsafe fn note(
    entry: &Entry,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) {
    if (1..=MAX_NOTED).contains(&length) {
        // SAFETY: the caller's promise.
        let value = unsafe { std::slice::from_raw_parts(value.cast(), length as usize) };
        entry.note_option(level, option, value);
    }
}

/// `getsockopt`: of the socket over RDMA, and what it does not know, of the TCP socket.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if let Some(number) = number_of(fd) {
        let before = errno();
        // SAFETY: the caller's arguments.
        if unsafe { rdmacm::rgetsockopt(number, level, option, value, length) } == 0 {
            return 0;
        }
        if level == SOL_RDMA {
            return -1;
        }
        set_errno(before);
    }
    // SAFETY: as above.
    unsafe { next::getsockopt(fd, level, option, value, length) }
}

/// `getpeername`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match number_of(fd) {
            Some(number) => rdmacm::rgetpeername(number, address, length),
            None => next::getpeername(fd, address, length),
        }
    }
}

/// `getsockname`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match number_of(fd) {
            Some(number) => rdmacm::rgetsockname(number, address, length),
            None => next::getsockname(fd, address, length),
        }
    }
}

/// Whether calls wait, as the program wants it.
fn change_nonblocking(fd: c_int, entry: &Entry, nonblocking: bool) {
    entry.nonblocking.store(nonblocking, Ordering::Release);
    // A listener's two never wait: `accept` does.
    if entry.stage() == Stage::Listening {
        return;
    }
    set_nonblocking(fd, nonblocking);
    if let Some(number @ 0..) = entry.rdma() {
        let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
        // SAFETY: no pointers.
        unsafe { rdmacm::rfcntl(number, libc::F_SETFL, flags.into()) };
    }
}

/// `fcntl`, and `fcntl64`, which is the same where offsets have 64 bits anyway. The argument is
/// variadic in C; an integer or a pointer travels the same way as a third that is fixed.
unsafe fn change(
    fd: c_int,
    command: c_int,
    argument: c_long,
    next: unsafe fn(c_int, c_int, c_long) -> c_int,
) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        let entry = to_copy(fd);
        // SAFETY: no pointers.
        return copied(entry, unsafe { next(fd, command, argument) });
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next(fd, command, argument) };
    let Some(entry) = find(fd).filter(|_| result >= 0) else { return result };
    let listens = entry.stage() == Stage::Listening;
    match command {
        libc::F_SETFL => {
            let wanted = argument as c_int & libc::O_NONBLOCK != 0;
            change_nonblocking(fd, &entry, wanted);
            if listens {
                set_nonblocking(fd, true);
            }
            result
        }
        libc::F_GETFL if listens && !entry.nonblocking.load(Ordering::Acquire) => {
            result & !libc::O_NONBLOCK
        }
        _ => result,
    }
}

/// `fcntl`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { change(fd, command, argument, next::fcntl) }
}

/// `fcntl64`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { change(fd, command, argument, next::fcntl64) }
}

/// `ioctl`: whether calls wait, and how many bytes do.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(entry) = find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::ioctl(fd, request, argument) };
    };
    let value: *mut c_int = argument.cast();
    let connected = entry.rdma().filter(|_| entry.stage() == Stage::Rdma);
    match (request, connected) {
        (libc::FIONBIO, _) if !value.is_null() => {
            // SAFETY: the contract: an `int`.
            change_nonblocking(fd, &entry, unsafe { value.read() } != 0);
            0
        }
        (libc::FIONREAD | libc::TIOCOUTQ, Some(number)) if !value.is_null() => {
            let option = if request == libc::FIONREAD { UNREAD } else { UNSENT };
            match rdmacm::int(number, SOL_RDMA, option) {
                Some(count) => {
                    // SAFETY: as above.
                    unsafe { value.write(count) };
                    0
                }
                None => -1,
            }
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { next::ioctl(fd, request, argument) },
    }
}
