//! Connecting: by RDMA first, and by TCP where there is no way by RDMA.
//!
//! Who is refused by both, or by the one that it may use, may ask again on the same socket, and
//! gets RDMA when the peer listens by then.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t};

use crate::address::Address;
use crate::config::{Mode, config};
use crate::epoll;
use crate::lock::lock;
use crate::rdmacm;
use crate::ready;
use crate::real::{errno, next, set_errno};
use crate::sockets::{become_tcp, leave, renew, set_nonblocking, unsafe_flags, wait_for_tcp};
use crate::table::{self, Entry, Stage, find};

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
    if entry.number() < 0 && entry.stage() != Stage::Asked {
        // SAFETY: as above.
        let result = unsafe { next::connect(fd, address, length) };
        // Also after a signal it goes on.
        if result == 0 || matches!(errno(), libc::EINPROGRESS | libc::EINTR) {
            entry.set_stage(Stage::Active);
        }
        return result;
    }
    if entry.datagrams || entry.stage() == Stage::Rdma {
        // SAFETY: as above.
        return unsafe { rdmacm::rconnect(entry.number(), address, length) };
    }
    if entry.stage() != Stage::New && entry.stage() != Stage::Listening {
        let why = match settle(&entry) {
            Stage::Connecting if !is_nonblocking(fd) => {
                return wait_for(fd, &entry, libc::EALREADY);
            }
            Stage::Connecting => libc::EALREADY,
            Stage::Rdma => libc::EISCONN,
            Stage::Refused => begin_anew(&entry),
            Stage::Asked if tcp_state(fd) == CLOSE => begin_anew_from_tcp(fd, &entry),
            // SAFETY: as above.
            _ => return unsafe { next::connect(fd, address, length) },
        };
        if why != 0 {
            set_errno(why);
            return -1;
        }
        if entry.stage() == Stage::Tcp {
            // SAFETY: as above.
            return unsafe { next::connect(fd, address, length) };
        }
    }
    let Some(peer) = Address::read(address, length) else {
        // SAFETY: as above; it says what is wrong.
        return unsafe { next::connect(fd, address, length) };
    };
    *lock(&entry.peer) = Some((peer, Instant::now()));
    entry.refused_by_tcp.store(false, Ordering::Release);
    let before = errno();
    match connect_rdma(&entry, &peer) {
        0 => {
            entry.set_stage(Stage::Rdma);
            set_errno(before);
            0
        }
        libc::EINPROGRESS => {
            entry.set_stage(Stage::Connecting);
            epoll::rouse(&entry);
            set_errno(before);
            if !is_nonblocking(fd) {
                return wait_for(fd, &entry, libc::EINPROGRESS);
            }
            set_errno(libc::EINPROGRESS);
            -1
        }
        why if may_fall_back() && is_no_way(why) => {
            let asked = ask_by_tcp(fd, &peer);
            match asked {
                0 => become_tcp(&entry),
                libc::EINPROGRESS | libc::EINTR => wait_for_tcp(&entry),
                _ => renew(&entry, Stage::New),
            }
            set_errno(if asked == 0 { before } else { asked });
            if asked == 0 { 0 } else { -1 }
        }
        why => {
            if is_no_way(why) {
                renew(&entry, Stage::New);
            }
            set_errno(why);
            -1
        }
    }
}

/// How long the program wants a call to wait at most, by an option of the system's socket; `None`
/// for ever.
pub(crate) fn time_limit(fd: c_int, option: c_int) -> Option<Duration> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as socklen_t;
    let place = ptr::from_mut(&mut time).cast();
    // SAFETY: room for a `timeval`.
    unsafe { next::getsockopt(fd, libc::SOL_SOCKET, option, place, &raw mut length) };
    let time = Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
    (!time.is_zero()).then_some(time)
}

/// Whether the program wants its calls not to wait.
fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { next::fcntl(fd, libc::F_GETFL, 0) }.max(0) & libc::O_NONBLOCK != 0
}

/// How long a connection is waited for until it is looked whether the program's descriptor is the
/// same socket still.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits for a connection that was asked for, which goes on if the wait is cut short: by a signal,
/// or because the program wants to wait no longer (`SO_SNDTIMEO`), which is the error `late`.
/// `EBADF` if another thread has closed the descriptor, or another file has its number.
fn wait_for(fd: c_int, entry: &Arc<Entry>, late: c_int) -> c_int {
    let outcome = Kept::new(fd, entry).and_then(|kept| {
        wait_with(&kept, fd, entry, late)?;
        kept.check(fd)
    });
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            set_errno(why);
            -1
        }
    }
}

fn wait_with(kept: &Kept, fd: c_int, entry: &Arc<Entry>, late: c_int) -> Result<(), c_int> {
    let patience = time_limit(kept.copy, libc::SO_SNDTIMEO);
    let deadline = patience.map(|patience| Instant::now() + patience);
    // Each turn but the last ends because of a signal, of another thread, or to look at the
    // descriptor.
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN));
        let count = ready::wait(&mut [ready::entry(fd, libc::POLLOUT)], Some(wait));
        let why = errno();
        kept.check(fd)?;
        match count {
            1.. => {}
            0 if left.is_some_and(|left| left <= LOOK_AGAIN) => return Err(late),
            0 => continue,
            _ if patience.is_none() && why == libc::EINTR && vernic_signals::restarts() => {}
            _ => return Err(why),
        }
        match settle(entry) {
            Stage::Rdma => return Ok(()),
            Stage::Refused => {
                return match begin_anew(entry) {
                    // Told to another thread.
                    0 => Err(libc::ECONNABORTED),
                    why => Err(why),
                };
            }
            Stage::Connecting | Stage::Settling => {}
            _ => return kept.connect_by_tcp(entry, late),
        }
    }
}

/// The socket of the system that a call waits with, whatever the program's threads do with its
/// descriptor meanwhile.
struct Kept {
    copy: c_int,
}

impl Kept {
    /// # Errors
    /// `EBADF` if the descriptor is another file's by now; `EMFILE`.
    fn new(fd: c_int, entry: &Arc<Entry>) -> Result<Self, c_int> {
        // SAFETY: no pointers.
        let copy = unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(errno());
        }
        let kept = Self { copy };
        // What the descriptor is now, it was when it was copied; unless TCP has been asked
        // meanwhile.
        match find(fd) {
            Some(found) if Arc::ptr_eq(&found, entry) => Ok(kept),
            _ if entry.stage() == Stage::Tcp => Ok(kept),
            _ => Err(libc::EBADF),
        }
    }

    /// Whether the program's descriptor is this socket still.
    ///
    /// # Errors
    /// `EBADF`.
    fn check(&self, fd: c_int) -> Result<(), c_int> {
        match (file_of(fd), file_of(self.copy)) {
            (Some(one), Some(other)) if one == other => Ok(()),
            _ => Err(libc::EBADF),
        }
    }

    /// Waits for the connection by TCP that was asked for.
    fn connect_by_tcp(&self, entry: &Entry, late: c_int) -> Result<(), c_int> {
        let Some((peer, _)) = *lock(&entry.peer) else { return Err(libc::EBADF) };
        match ask_by_tcp(self.copy, &peer) {
            0 => Ok(()),
            // This library has asked before.
            libc::EALREADY => Err(late),
            why => Err(why),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let before = errno();
        // SAFETY: no pointers; nobody else has the number.
        unsafe { next::close(self.copy) };
        set_errno(before);
    }
}

/// What tells a file from all others that are open: its device and number there.
fn file_of(fd: c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for a `stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled, since the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// Asks for a connection by TCP: 0, or why there is none yet.
fn ask_by_tcp(fd: c_int, peer: &Address) -> c_int {
    // SAFETY: an address, and its length.
    match unsafe { next::connect(fd, peer.raw(), peer.length) } {
        0 => 0,
        _ => errno(),
    }
}

/// Has a socket that was refused ask again: the reason that the program was not told of, or 0 if it
/// knows, and the next attempt may begin at once; EBADF if another thread has closed it.
fn begin_anew(entry: &Arc<Entry>) -> c_int {
    let error = rdmacm::int(entry.number(), libc::SOL_SOCKET, libc::SO_ERROR);
    let why = error.unwrap_or(libc::EBADF);
    renew(entry, Stage::Refused);
    why
}

/// The same of one that TCP has refused, too.
fn begin_anew_from_tcp(fd: c_int, entry: &Arc<Entry>) -> c_int {
    let mut why: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // An address of no family ends the attempt, as far as the system remembers it.
    let nowhere = Address::any(libc::AF_UNSPEC);
    // SAFETY: room for an `int`; an address, and its length.
    unsafe {
        let place = ptr::from_mut(&mut why).cast();
        next::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, place, &raw mut length);
        next::connect(fd, nowhere.raw(), nowhere.length);
    }
    renew(entry, Stage::Asked);
    why
}

/// States of a TCP socket, of the kernel's header `tcp_states.h`.
const SYN_SENT: u8 = 2;
const SYN_RECV: u8 = 3;
const CLOSE: u8 = 7;

/// The state of a TCP socket: the first byte of `struct tcp_info`.
fn tcp_state(fd: c_int) -> u8 {
    let mut state = CLOSE;
    let mut length = size_of::<u8>() as socklen_t;
    let place = (&raw mut state).cast();
    // SAFETY: room for so many bytes; the system gives no more.
    unsafe { next::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut length) };
    state
}

/// Asks for a connection by RDMA, without waiting: 0, or why there is none yet.
fn connect_rdma(entry: &Entry, peer: &Address) -> c_int {
    let number = entry.number();
    let flags = unsafe_flags(number);
    let set = |flags: c_int| {
        // SAFETY: no pointers.
        unsafe { rdmacm::rfcntl(number, libc::F_SETFL, flags.into()) }
    };
    set(flags | libc::O_NONBLOCK);
    // SAFETY: an address, and its length.
    let result = unsafe { rdmacm::rconnect(number, peer.raw(), peer.length) };
    let why = if result == 0 { 0 } else { errno() };
    set(flags);
    why
}

/// How long a thread waits for the one that has a socket ask by TCP: a few system calls. A child of
/// a fork in the middle of it, or the handler of a signal, waits in vain.
const SETTLING: Duration = Duration::from_millis(100);

/// Looks what became of a connection that was asked for, and falls back to TCP if it will not be
/// one over RDMA. Of the threads that find so one does it, and the others wait for that.
///
/// [`Stage::Connecting`] as long as it is not known, or not done; [`Stage::Refused`] if there will
/// be none; [`Stage::Asked`] as long as TCP has no connection.
pub(crate) fn settle(entry: &Arc<Entry>) -> Stage {
    match entry.stage() {
        Stage::Connecting => {}
        Stage::Settling => return settled(entry),
        Stage::Asked => return settle_tcp(entry),
        stage => return stage,
    }
    let (peer, since) = match *lock(&entry.peer) {
        Some((peer, since)) => (peer, since),
        None => return Stage::Connecting,
    };
    let events = rdmacm::ready(entry.number(), libc::POLLOUT);
    // One that was made and has ended since has a peer; where that cannot be asked, it has no
    // error, but one that broke before anybody used it.
    let failed = match rdmacm::tells_peers() {
        true => {
            let is_over = events & (libc::POLLERR | libc::POLLHUP) != 0;
            is_over && Address::of_peer(entry.number()).is_none()
        }
        false => events & libc::POLLERR != 0,
    };
    let asks_tcp = may_fall_back() && !entry.refused_by_tcp.load(Ordering::Acquire);
    let late = events == 0 && since.elapsed() >= config().patience;
    if !failed && events & libc::POLLOUT != 0 {
        entry.change_stage(Stage::Connecting, Stage::Rdma);
    } else if failed && !asks_tcp {
        entry.change_stage(Stage::Connecting, Stage::Refused);
    } else if (failed || late) && asks_tcp && entry.change_stage(Stage::Connecting, Stage::Settling)
    {
        let before = errno();
        match (fall_back(entry, &peer), failed) {
            (0, _) => become_tcp(entry),
            (libc::EINPROGRESS, _) => wait_for_tcp(entry),
            // As the socket over RDMA tells.
            (_, true) => entry.set_stage(Stage::Refused),
            (_, false) => {
                entry.refused_by_tcp.store(true, Ordering::Release);
                entry.set_stage(Stage::Connecting);
            }
        }
        set_errno(before);
    }
    settled(entry)
}

/// Has a connection that was asked for by RDMA asked for by TCP, without waiting: 0, or why there
/// is none yet.
fn fall_back(entry: &Arc<Entry>, peer: &Address) -> c_int {
    let Some(fd) = table::fds_of(entry).first().copied() else { return 0 };
    // SAFETY: no pointers.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, 0) }.max(0);
    set_nonblocking(fd, true);
    let asked = ask_by_tcp(fd, peer);
    set_nonblocking(fd, flags & libc::O_NONBLOCK != 0);
    asked
}

/// Looks what became of a connection that was asked for by TCP. One that is there is none of this
/// library's any more.
fn settle_tcp(entry: &Arc<Entry>) -> Stage {
    let before = errno();
    let state = table::fds_of(entry).first().map(|fd| tcp_state(*fd));
    set_errno(before);
    match state {
        Some(SYN_SENT | SYN_RECV | CLOSE) => Stage::Asked,
        _ => {
            leave(entry);
            Stage::Tcp
        }
    }
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
    let asks_tcp = may_fall_back() && !entry.refused_by_tcp.load(Ordering::Acquire);
    asks_tcp.then(|| since + config().patience)
}
