//! Connecting: by RDMA first, and by TCP where there is no way by RDMA.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t};

use crate::address::Address;
use crate::config::{Mode, config};
use crate::rdmacm;
use crate::real::{errno, next, set_errno};
use crate::sockets::{become_tcp, set_nonblocking, unsafe_flags};
use crate::table::{self, Entry, Stage, find, lock};

/// Errors for which there is no way by RDMA, while there may be one by TCP.
pub(crate) fn is_no_way(errno: c_int) -> bool {
    !matches!(errno, libc::EINTR | libc::EISCONN | libc::EALREADY | libc::EBADF | libc::EFAULT)
}

pub(crate) fn may_fall_back() -> bool {
    config().mode == Mode::Auto
}

/// `connect`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(entry) = find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::connect(fd, address, length) };
    };
    if entry.number() < 0 {
        // SAFETY: as above.
        let result = unsafe { next::connect(fd, address, length) };
        if result == 0 || errno() == libc::EINPROGRESS {
            entry.set_stage(Stage::Active);
        }
        return result;
    }
    if entry.datagrams || entry.stage() == Stage::Rdma {
        // SAFETY: as above.
        return unsafe { rdmacm::rconnect(entry.number(), address, length) };
    }
    if matches!(entry.stage(), Stage::Connecting | Stage::Settling) {
        match settle(&entry) {
            Stage::Connecting => set_errno(libc::EALREADY),
            Stage::Rdma => set_errno(libc::EISCONN),
            // SAFETY: as above.
            _ => return unsafe { next::connect(fd, address, length) },
        }
        return -1;
    }
    let Some(peer) = Address::read(address, length) else {
        // SAFETY: as above; it says what is wrong.
        return unsafe { next::connect(fd, address, length) };
    };
    let nonblocking = unsafe_flags(entry.number()) & libc::O_NONBLOCK != 0;
    *lock(&entry.peer) = Some((peer, Instant::now()));
    let patience = may_fall_back().then(|| config().patience);
    let before = errno();
    match connect_rdma(&entry, &peer, patience.filter(|_| !nonblocking)) {
        0 => {
            entry.set_stage(Stage::Rdma);
            set_errno(before);
            0
        }
        libc::EINPROGRESS if nonblocking => {
            entry.set_stage(Stage::Connecting);
            set_errno(libc::EINPROGRESS);
            -1
        }
        why if may_fall_back() && (is_no_way(why) || why == libc::EINPROGRESS) => {
            become_tcp(&entry);
            // SAFETY: an address, and its length.
            unsafe { next::connect(fd, peer.raw(), peer.length) }
        }
        why => {
            set_errno(why);
            -1
        }
    }
}

/// Asks for a connection by RDMA: 0, or why not. `patience` bounds the wait.
fn connect_rdma(entry: &Entry, peer: &Address, patience: Option<Duration>) -> c_int {
    let number = entry.number();
    let time = |time: Duration| libc::timeval {
        tv_sec: time.as_secs() as libc::time_t,
        tv_usec: time.subsec_micros().into(),
    };
    let set = |time: libc::timeval| {
        let (value, length) = (ptr::from_ref(&time).cast(), size_of::<libc::timeval>());
        // SAFETY: the value is a `timeval`, and lives during the call.
        unsafe {
            rdmacm::rsetsockopt(
                number,
                libc::SOL_SOCKET,
                libc::SO_SNDTIMEO,
                value,
                length as socklen_t,
            )
        };
    };
    let mut old = time(Duration::ZERO);
    if let Some(patience) = patience {
        let mut length = size_of::<libc::timeval>() as socklen_t;
        let place = ptr::from_mut(&mut old).cast();
        // SAFETY: room for a `timeval`.
        unsafe {
            rdmacm::rgetsockopt(number, libc::SOL_SOCKET, libc::SO_SNDTIMEO, place, &raw mut length)
        };
        set(time(patience));
    }
    // SAFETY: an address, and its length.
    let result = unsafe { rdmacm::rconnect(number, peer.raw(), peer.length) };
    let why = if result == 0 { 0 } else { errno() };
    if patience.is_some() {
        set(old);
    }
    why
}

/// How long a thread waits for the one that has a socket ask by TCP: a few system calls. A child of a fork in
/// the middle of it, or the handler of a signal, waits in vain.
const SETTLING: Duration = Duration::from_millis(100);

/// Looks what became of a connection that was asked for, and falls back to TCP if it will not be one over
/// RDMA. Of the threads that find so one does it, and the others wait for that.
///
/// [`Stage::Connecting`] as long as it is not known, or not done.
pub(crate) fn settle(entry: &Arc<Entry>) -> Stage {
    match entry.stage() {
        Stage::Connecting => {}
        Stage::Settling => return settled(entry),
        stage => return stage,
    }
    let (peer, since) = match *lock(&entry.peer) {
        Some((peer, since)) => (peer, since),
        None => return Stage::Connecting,
    };
    let events = rdmacm::ready(entry.number(), libc::POLLOUT);
    let failed = events & (libc::POLLERR | libc::POLLHUP) != 0;
    let late = events == 0 && since.elapsed() >= config().patience;
    if !failed && events & libc::POLLOUT != 0 {
        entry.change_stage(Stage::Connecting, Stage::Rdma);
    } else if (failed || late)
        && may_fall_back()
        && entry.change_stage(Stage::Connecting, Stage::Settling)
    {
        let before = errno();
        let fd = table::fds_of(entry).first().copied();
        if let Some(fd) = fd {
            set_nonblocking(fd, true);
            // SAFETY: an address, and its length. The outcome is what the program asks for next.
            unsafe { next::connect(fd, peer.raw(), peer.length) };
        }
        become_tcp(entry);
        set_errno(before);
    }
    settled(entry)
}

/// The stage, once no thread is changing it.
fn settled(entry: &Entry) -> Stage {
    let deadline = Instant::now() + SETTLING;
    // Bounded by the deadline.
    while entry.stage() == Stage::Settling && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(20));
    }
    match entry.stage() {
        Stage::Settling => Stage::Connecting,
        stage => stage,
    }
}

/// When a connection that was asked for is given up, if it is one that may fall back.
pub(crate) fn given_up_at(entry: &Entry) -> Option<Instant> {
    let (_, since) = (*lock(&entry.peer))?;
    may_fall_back().then(|| since + config().patience)
}
