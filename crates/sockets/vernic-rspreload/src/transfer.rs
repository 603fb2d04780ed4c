//! Bytes.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::connect::settle;
use crate::forked;
use crate::rdmacm;
use crate::real::{errno, next, set_errno};
use crate::table::{Entry, Stage, find};

/// Where the bytes of a descriptor go.
enum Way {
    /// To the system.
    System,
    /// Over RDMA, by this number.
    Rdma(c_int),
}

#[inline]
fn way(fd: c_int) -> Way {
    match find(fd) {
        None => Way::System,
        Some(entry) => way_of(fd, &entry),
    }
}

fn way_of(fd: c_int, entry: &std::sync::Arc<Entry>) -> Way {
    match entry.stage() {
        Stage::Passive | Stage::Active => forked::go_over(fd, entry),
        Stage::Connecting | Stage::Settling | Stage::Asked => _ = settle(entry),
        _ => {}
    }
    match (entry.stage(), entry.number()) {
        (Stage::Connecting | Stage::Settling | Stage::Refused | Stage::Rdma, number @ 0..) => {
            Way::Rdma(number)
        }
        // Neither is connected: the system says so, with the signals that are its own.
        _ => Way::System,
    }
}

/// What a send returned; a program that does not want to hear of `EPIPE` by a signal says so.
fn sent(count: ssize_t, flags: c_int) -> ssize_t {
    if count < 0 && errno() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: no pointers: for this thread, as the system does it.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        set_errno(libc::EPIPE);
    }
    count
}

/// `function(arguments) -> next's arguments, over RDMA this;`
macro_rules! receives {
    ($($(#[$doc:meta])* $function:ident($fd:ident $(, $argument:ident: $type:ty)*) => $rdma:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The contract.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function($fd: c_int $(, $argument: $type)*) -> ssize_t {
            // SAFETY: the caller's arguments, of one contract.
            unsafe {
                match way($fd) {
                    Way::System => next::$function($fd $(, $argument)*),
                    Way::Rdma($fd) => $rdma,
                }
            }
        }
    )+};
}

receives! {
    /// `read`.
    read(fd, to: *mut c_void, count: size_t) => rdmacm::rrecv(fd, to, count, 0);
    /// `readv`.
    readv(fd, pieces: *const iovec, count: c_int) => rdmacm::rreadv(fd, pieces, count);
    /// `recv`.
    recv(fd, to: *mut c_void, count: size_t, flags: c_int) => rdmacm::rrecv(fd, to, count, flags);
    /// `recvfrom`.
    recvfrom(fd, to: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr,
        length: *mut socklen_t) => rdmacm::rrecvfrom(fd, to, count, flags, address, length);
    /// `recvmsg`.
    recvmsg(fd, message: *mut msghdr, flags: c_int) => rdmacm::rrecvmsg(fd, message, flags);
    /// `write`.
    write(fd, from: *const c_void, count: size_t) => sent(rdmacm::rsend(fd, from, count, 0), 0);
    /// `writev`.
    writev(fd, pieces: *const iovec, count: c_int) => sent(rdmacm::rwritev(fd, pieces, count), 0);
    /// `send`.
    send(fd, from: *const c_void, count: size_t, flags: c_int) =>
        sent(rdmacm::rsend(fd, from, count, flags), flags);
    /// `sendto`. A stream does not look at the address, as that of the system.
    sendto(fd, from: *const c_void, count: size_t, flags: c_int, address: *const sockaddr,
        length: socklen_t) => sent(send_to(fd, from, count, flags, address, length), flags);
    /// `sendmsg`.
    sendmsg(fd, message: *const msghdr, flags: c_int) =>
        sent(send_message(fd, message, flags), flags);
}

unsafe fn send_to(
    number: c_int,
    from: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    let (address, length) = match is_stream(number) {
        true => (ptr::null(), 0),
        false => (address, length),
    };
    // SAFETY: the caller's arguments.
    unsafe { rdmacm::rsendto(number, from, count, flags, address, length) }
}

unsafe fn send_message(number: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() || !is_stream(number) {
        // SAFETY: the caller's arguments.
        return unsafe { rdmacm::rsendmsg(number, message, flags) };
    }
    // SAFETY: the contract: a message, whose pieces stay the caller's.
    let mut header = unsafe { message.read() };
    (header.msg_name, header.msg_namelen) = (ptr::null_mut(), 0);
    // SAFETY: as above.
    unsafe { rdmacm::rsendmsg(number, &raw const header, flags) }
}

fn is_stream(number: c_int) -> bool {
    rdmacm::int(number, libc::SOL_SOCKET, libc::SO_TYPE)
        .is_none_or(|kind| kind == libc::SOCK_STREAM)
}

/// `function(checked arguments, room) -> the unchecked one's arguments`: what programs built with
/// `_FORTIFY_SOURCE` call. libc ends a program whose room is too small; so does this.
macro_rules! fortified {
    ($($function:ident($fd:ident, $to:ident, $count:ident; $($argument:ident: $type:ty),*)
        => $plain:ident;)+) => {$(
        /// The fortified form.
        ///
        /// # Safety
        /// The contract.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            $fd: c_int, $to: *mut c_void, $count: size_t, room: size_t $(, $argument: $type)*
        ) -> ssize_t {
            if $count > room {
                // SAFETY: no pointers.
                unsafe { libc::abort() };
            }
            // SAFETY: the caller's arguments.
            unsafe { $plain($fd, $to, $count $(, $argument)*) }
        }
    )+};
}

fortified! {
    __read_chk(fd, to, count;) => read;
    __recv_chk(fd, to, count; flags: c_int) => recv;
    __recvfrom_chk(fd, to, count; flags: c_int, address: *mut sockaddr, length: *mut socklen_t)
        => recvfrom;
}

/// Bytes that are copied at once from a file.
const COPIED: usize = 1 << 16;

/// `sendfile`: from a file to a connection, by way of this process.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let Way::Rdma(number) = way(out) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::sendfile(out, from, offset, count) };
    };
    let mut buffer = vec![0_u8; COPIED.min(count)];
    let mut done = 0;
    while done < count {
        let room = buffer.len().min(count - done);
        let place = buffer.as_mut_ptr().cast();
        // SAFETY: room for so many bytes; the offset is the caller's.
        let got = unsafe {
            match offset.is_null() {
                true => next::read(from, place, room),
                false => libc::pread(from, place, room, *offset),
            }
        };
        if got <= 0 {
            return if done > 0 || got == 0 { done as ssize_t } else { got };
        }
        // SAFETY: so many bytes were read.
        let gone = sent(unsafe { rdmacm::rsend(number, place, got as usize, 0) }, 0);
        let taken = gone.max(0);
        // SAFETY: the caller's offset. What was read and not sent is read again.
        unsafe {
            match offset.is_null() {
                true if taken < got => {
                    libc::lseek(from, taken as off_t - got as off_t, libc::SEEK_CUR);
                }
                true => {}
                false => *offset += taken as off_t,
            }
        }
        done += taken as usize;
        if gone < got {
            return if done > 0 { done as ssize_t } else { gone };
        }
    }
    done as ssize_t
}

/// `sendfile64`: the same, where offsets have 64 bits anyway.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { sendfile(out, from, offset, count) }
}
