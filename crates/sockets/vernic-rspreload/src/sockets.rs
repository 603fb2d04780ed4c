//! From `socket` to `close`, apart from `connect`.

use std::ffi::c_int;
use std::sync::Arc;

use libc::{pollfd, sockaddr, socklen_t};

use crate::address::Address;
use crate::config::{Mode, config, is_own_thread};
use crate::connect::{is_no_way, may_fall_back};
use crate::lock::lock;
use crate::rdmacm::{self, SIZES, SOL_RDMA, close_rsocket};
use crate::real::{errno, is_inside, next, set_errno};
use crate::table::{self, Entry, SetOption, Stage, find};
use crate::{epoll, forked, ready};

/// Ports that are tried for a socket that asks for any: the one that is free for RDMA may be taken
/// for TCP.
const PORTS_TRIED: u32 = 16;

/// A socket over RDMA with the sizes that the environment asks for; -1 if there is none.
pub(crate) fn new_rsocket(domain: c_int, kind: c_int) -> c_int {
    // SAFETY: no pointers.
    let number = unsafe { rdmacm::rsocket(domain, kind, 0) };
    if number >= 0 {
        if kind & libc::SOCK_STREAM != 0 {
            rdmacm::note_unconnected(Address::of_peer(number).is_some());
        }
        for (option, size) in SIZES.into_iter().zip(config().sizes) {
            if size != 0 {
                rdmacm::set_int(number, SOL_RDMA, option, size);
            }
        }
    }
    number
}

/// The socket is an ordinary one from now on, in epoll sets, too. That over RDMA ends when nobody
/// looks at it any more.
pub(crate) fn become_tcp(entry: &Arc<Entry>) {
    entry.set_stage(Stage::Settling);
    if let Some(fd) = table::fds_of(entry).first() {
        epoll::move_to_tcp(entry, *fd);
    }
    leave(entry);
}

/// As [`become_tcp`], of one that TCP may yet refuse: then it asks by RDMA again if the program
/// asks again.
pub(crate) fn wait_for_tcp(entry: &Arc<Entry>) {
    entry.set_stage(Stage::Settling);
    let asked = Entry::new(entry.domain, false, -1, Stage::Asked);
    if let Some(fd) = table::fds_of(entry).first() {
        lock(&asked.sets).members = epoll::move_to_tcp(entry, *fd);
    }
    *lock(&asked.bound) = *lock(&entry.bound);
    lock(&asked.options).clone_from(&lock(&entry.options));
    entry.set_stage(Stage::Tcp);
    table::replace(entry, Some(&asked));
}

/// It is no socket of this library any more.
pub(crate) fn leave(entry: &Arc<Entry>) {
    entry.set_stage(Stage::Tcp);
    table::replace(entry, None);
}

/// `socket`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let plain = kind & !flags;
    if fd < 0 || is_inside() || !config().wants(domain, plain, protocol) {
        return fd;
    }
    let datagrams = plain == libc::SOCK_DGRAM;
    if datagrams && is_own_thread() {
        return fd;
    }
    if config().fork_safe && !datagrams {
        table::insert(fd, Entry::new(domain, false, -1, Stage::New));
        return fd;
    }
    let before = errno();
    let is_possible = !config().is_iwarp && rdmacm::is_there();
    let number = if is_possible { new_rsocket(domain, kind) } else { -1 };
    if number < 0 && config().mode == Mode::Only {
        // SAFETY: no pointers.
        unsafe { next::close(fd) };
        set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    set_errno(before);
    if number < 0 {
        return fd;
    }
    let stage = if datagrams { Stage::Rdma } else { Stage::New };
    if !table::insert(fd, Entry::new(domain, datagrams, number, stage)) {
        close_rsocket(number);
    }
    fd
}

/// `bind`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(entry) = find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::bind(fd, address, length) };
    };
    if entry.number() < 0 {
        // SAFETY: as above.
        let result = unsafe { next::bind(fd, address, length) };
        if result == 0 && entry.stage() == Stage::Asked {
            // For the socket over RDMA that it may get again.
            *lock(&entry.bound) = Address::of_tcp(fd, false);
        }
        return result;
    }
    if entry.datagrams {
        // SAFETY: as above.
        return unsafe { rdmacm::rbind(entry.number(), address, length) };
    }
    let Some(address) = Address::read(address, length) else {
        // SAFETY: as above; it says what is wrong.
        return unsafe { next::bind(fd, address, length) };
    };
    for _ in 0..PORTS_TRIED {
        // SAFETY: an address, and its length.
        let bound = unsafe { rdmacm::rbind(entry.number(), address.raw(), address.length) };
        if bound != 0 {
            if is_no_way(errno()) && errno() != libc::EADDRINUSE && may_fall_back() {
                become_tcp(&entry);
                // SAFETY: as above.
                return unsafe { next::bind(fd, address.raw(), address.length) };
            }
            return -1;
        }
        let on = address.with_port(Address::of_rsocket(entry.number()).map_or(0, |own| own.port()));
        // SAFETY: as above.
        let bound = unsafe { next::bind(fd, on.raw(), on.length) };
        let any_port = address.port() == 0;
        if bound == 0 {
            *lock(&entry.bound) = Some(on);
            return 0;
        }
        // The next attempt, or the program's, needs one that is not bound.
        let replaced = replace_rsocket(&entry);
        if !replaced || !any_port || errno() != libc::EADDRINUSE {
            return -1;
        }
    }
    -1
}

/// A new socket over RDMA in the place of one that was bound or refused, with all that the program
/// has set, and in its epoll sets. False if there can be none: the old one stays.
fn replace_rsocket(entry: &Arc<Entry>) -> bool {
    let before = errno();
    let (number, fd) = (entry.number(), table::fds_of(entry).first().copied().unwrap_or(-1));
    let flags = match number {
        0.. => unsafe_flags(number),
        // SAFETY: no pointers.
        _ => unsafe { next::fcntl(fd, libc::F_GETFL, 0) }.max(0),
    };
    let new = new_rsocket(entry.domain, libc::SOCK_STREAM | flags & libc::O_NONBLOCK);
    if new >= 0 {
        for SetOption { level, option, value } in lock(&entry.options).iter() {
            let length = value.len() as socklen_t;
            // One that was noted while TCP was asked may be refused: TCP has taken it.
            // SAFETY: so many bytes.
            unsafe { rdmacm::rsetsockopt(new, *level, *option, value.as_ptr().cast(), length) };
        }
        close_rsocket(epoll::replace(entry, fd, new));
    }
    set_errno(before);
    new >= 0
}

/// Gives a socket that was refused in stage `from` a new one over RDMA, bound as the old one was,
/// so that it may ask again, as one of TCP may. Where there can be none, the next attempt tries to
/// make one, too; one that has none is an ordinary socket then. Of threads that do this at once,
/// the first does it.
pub(crate) fn renew(entry: &Arc<Entry>, from: Stage) {
    if !entry.change_stage(from, Stage::Settling) {
        return;
    }
    let before = errno();
    let bound = *lock(&entry.bound);
    if replace_rsocket(entry)
        && let Some(own) = bound
    {
        // Whoever took the port meanwhile has it: then this asks from another one.
        // SAFETY: an address, and its length.
        unsafe { rdmacm::rbind(entry.number(), own.raw(), own.length) };
    }
    match entry.number() {
        0.. => entry.set_stage(Stage::New),
        _ => leave(entry),
    }
    set_errno(before);
}

/// Flags of a socket over RDMA.
pub(crate) fn unsafe_flags(number: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { rdmacm::rfcntl(number, libc::F_GETFL, 0) }.max(0)
}

/// `listen`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(entry) = find(fd) else {
        // SAFETY: no pointers.
        return unsafe { next::listen(fd, backlog) };
    };
    if entry.stage() == Stage::Asked {
        leave(&entry);
        // SAFETY: as above.
        return unsafe { next::listen(fd, backlog) };
    }
    if entry.number() < 0 {
        entry.set_stage(Stage::Passive);
        // SAFETY: as above.
        return unsafe { next::listen(fd, backlog) };
    }
    if entry.stage() != Stage::Listening {
        // A socket that nobody has bound gets one port for both.
        if Address::of_rsocket(entry.number()).is_none_or(|own| own.port() == 0) {
            let any = Address::any(entry.domain);
            // SAFETY: an address, and its length.
            if unsafe { bind(fd, any.raw(), any.length) } != 0 {
                return -1;
            }
        }
        if entry.stage() == Stage::Tcp {
            // SAFETY: as above.
            return unsafe { next::listen(fd, backlog) };
        }
    }
    // SAFETY: as above.
    if unsafe { rdmacm::rlisten(entry.number(), backlog) } != 0 {
        if !may_fall_back() {
            return -1;
        }
        become_tcp(&entry);
        // SAFETY: as above.
        return unsafe { next::listen(fd, backlog) };
    }
    if config().mode == Mode::Auto {
        // SAFETY: as above.
        if unsafe { next::listen(fd, backlog) } != 0 {
            return -1;
        }
    }
    if entry.stage() != Stage::Listening {
        // Both are looked at, and neither is waited for alone.
        let flags = unsafe_flags(entry.number());
        entry
            .nonblocking
            .store(flags & libc::O_NONBLOCK != 0, std::sync::atomic::Ordering::Release);
        set_nonblocking(fd, true);
        // SAFETY: no pointers.
        unsafe { rdmacm::rfcntl(entry.number(), libc::F_SETFL, libc::O_NONBLOCK.into()) };
        entry.set_stage(Stage::Listening);
        if config().mode == Mode::Auto {
            epoll::add_tcp(&entry, fd);
        }
    }
    0
}

/// Changes whether the system's calls on a descriptor wait.
pub(crate) fn set_nonblocking(fd: c_int, nonblocking: bool) {
    // SAFETY: no pointers.
    unsafe {
        let flags = next::fcntl(fd, libc::F_GETFL, 0);
        let wanted = if nonblocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        if flags >= 0 && wanted != flags {
            next::fcntl(fd, libc::F_SETFL, wanted.into());
        }
    }
}

/// `accept`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { accept4(fd, address, length, 0) }
}

/// `accept4`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let entry = find(fd).filter(|entry| matches!(entry.stage(), Stage::Listening | Stage::Passive));
    let Some(entry) = entry else {
        // SAFETY: the caller's arguments.
        return unsafe { next::accept4(fd, address, length, flags) };
    };
    if entry.stage() == Stage::Passive {
        // SAFETY: as above.
        let accepted = unsafe { next::accept4(fd, address, length, flags) };
        if accepted >= 0 {
            table::insert(accepted, Entry::new(entry.domain, false, -1, Stage::Passive));
        }
        return accepted;
    }
    // Each turn waits for a connection that another thread may be faster to accept.
    loop {
        let before = errno();
        // SAFETY: as above.
        let number = unsafe { rdmacm::raccept(entry.number(), address, length) };
        if number >= 0 {
            set_errno(before);
            return accepted(&entry, number, flags);
        }
        if errno() != libc::EAGAIN {
            return -1;
        }
        // In mode `only` the system's does not listen.
        if config().mode == Mode::Auto {
            // SAFETY: as above.
            let accepted = unsafe { next::accept4(fd, address, length, flags) };
            if accepted >= 0 || errno() != libc::EAGAIN {
                return accepted;
            }
        }
        if entry.nonblocking.load(std::sync::atomic::Ordering::Acquire) {
            set_errno(libc::EAGAIN);
            return -1;
        }
        let mut entries = [ready::entry(fd, libc::POLLIN)];
        if ready::wait(&mut entries, None) < 0 && !goes_on() {
            return -1;
        }
    }
}

/// Whether a call without a time limit that was to wait goes on: a signal came, and the program
/// wants it so.
pub(crate) fn goes_on() -> bool {
    errno() == libc::EINTR && vernic_signals::restarts()
}

/// The descriptor of a connection over RDMA that was accepted.
fn accepted(listener: &Entry, number: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { next::socket(listener.domain, libc::SOCK_STREAM | flags, 0) };
    if fd < 0 {
        close_rsocket(number);
        return -1;
    }
    let nonblocking = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    // SAFETY: no pointers.
    unsafe { rdmacm::rfcntl(number, libc::F_SETFL, nonblocking.into()) };
    table::insert(fd, Entry::new(listener.domain, false, number, Stage::Rdma));
    fd
}

/// `shutdown`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match find(fd).and_then(|entry| Some((entry.rdma()?, entry))) {
        Some((number, entry)) if number >= 0 => {
            if entry.stage() == Stage::Listening {
                // SAFETY: no pointers.
                unsafe { next::shutdown(fd, how) };
            }
            // SAFETY: as above.
            unsafe { rdmacm::rshutdown(number, how) }
        }
        // SAFETY: as above.
        _ => unsafe { next::shutdown(fd, how) },
    }
}

/// `close`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !is_inside() {
        if epoll::close(fd) {
            return 0;
        }
        if let Some(entry) = table::remove(fd) {
            close_rsocket(entry.take_number());
        }
    }
    // SAFETY: no pointers.
    unsafe { next::close(fd) }
}

/// A descriptor was copied: the copy is the same socket.
pub(crate) fn copied(entry: Option<Arc<Entry>>, to: c_int) -> c_int {
    if let (Some(entry), 0..) = (entry, to) {
        table::insert(to, entry);
    }
    to
}

/// What is copied: a connection that waits for its first use goes over to RDMA now.
pub(crate) fn to_copy(fd: c_int) -> Option<Arc<Entry>> {
    let entry = find(fd)?;
    forked::go_over(fd, &entry);
    Some(entry)
}

/// `dup`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let entry = to_copy(fd);
    // SAFETY: no pointers.
    copied(entry, unsafe { next::dup(fd) })
}

/// What a copy is about to take the place of.
fn make_room(old: c_int, new: c_int) {
    // A copy of nothing takes no place.
    // SAFETY: no pointers.
    let is_open = || unsafe { next::fcntl(old, libc::F_GETFD, 0) } != -1;
    if old != new && !is_inside() && is_open() {
        epoll::close(new);
        if let Some(entry) = table::remove(new) {
            close_rsocket(entry.take_number());
        }
    }
}

/// `dup2`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    let entry = to_copy(old).filter(|_| old != new);
    make_room(old, new);
    // SAFETY: no pointers.
    copied(entry, unsafe { next::dup2(old, new) })
}

/// `dup3`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let entry = to_copy(old);
    make_room(old, new);
    // SAFETY: no pointers.
    copied(entry, unsafe { next::dup3(old, new, flags) })
}

/// An entry of `poll`.
pub(crate) fn poll_entry(fd: c_int, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}
