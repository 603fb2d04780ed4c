//! `poll` and `select`.
//!
//! A socket that listens is waited for on both of its sockets; one that connects is looked after
//! until it is known which it is.

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::config::{Mode, config};
use crate::connect::{given_up_at, settle};
use crate::forked;
use crate::rdmacm;
use crate::real::{next, set_errno};
use crate::sockets::poll_entry;
use crate::table::{Entry, Stage, find};

/// An entry of `poll`.
pub(crate) fn entry(fd: c_int, events: i16) -> pollfd {
    poll_entry(fd, events)
}

/// What stands for the program's entries: as many as there are, and more for those that are two.
struct Plan {
    entries: Vec<pollfd>,
    /// For entries beyond the program's: which of those they belong to.
    belongs: Vec<usize>,
    /// Connections that are being made.
    connecting: Vec<Arc<Entry>>,
    /// When one of these is to be looked at again.
    until: Option<Instant>,
    /// One of the program's sockets may become another, or its number another's, without an event.
    may_change: bool,
}

/// How long what may change without an event is waited for at once: another thread may connect a
/// socket that nobody has connected, or close one between the moment that its number was read and
/// the wait.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Plan {
    fn new(asked: &[pollfd]) -> Self {
        let mut entries = asked.to_vec();
        let mut plan = Self {
            entries: Vec::new(),
            belongs: Vec::new(),
            connecting: Vec::new(),
            until: None,
            may_change: false,
        };
        for (index, asked) in asked.iter().enumerate() {
            entries[index].revents = 0;
            let Some(entry) = find(asked.fd) else { continue };
            let entry: Arc<Entry> = entry;
            if matches!(entry.stage(), Stage::Active) {
                forked::go_over(asked.fd, &entry);
            }
            let stage = settle(&entry);
            plan.may_change |= stage.may_connect();
            match (stage, entry.number()) {
                (Stage::Listening, number @ 0..) => {
                    entries[index].fd = number;
                    // One that does not listen would be ready at once, and for ever.
                    if config().mode == Mode::Auto {
                        plan.entries.push(poll_entry(asked.fd, asked.events));
                        plan.belongs.push(index);
                    }
                }
                (Stage::Connecting, number @ 0..) => {
                    entries[index].fd = number;
                    // So that it is looked at when it fails, whatever the program asks for.
                    entries[index].events |= libc::POLLOUT;
                    plan.until = plan.until.into_iter().chain(given_up_at(&entry)).min();
                    plan.connecting.push(entry);
                }
                (Stage::New | Stage::Refused | Stage::Rdma, number @ 0..) => {
                    entries[index].fd = number;
                }
                _ => {}
            }
        }
        entries.append(&mut plan.entries);
        Self { entries, ..plan }
    }

    /// Tells the program's entries what was found; how many have something.
    fn tell(&self, asked: &mut [pollfd]) -> c_int {
        let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        for (asked, found) in asked.iter_mut().zip(&self.entries) {
            asked.revents = found.revents & (asked.events | always);
        }
        let others = &self.entries[asked.len()..];
        for (found, index) in others.iter().zip(&self.belongs) {
            asked[*index].revents |= found.revents & (asked[*index].events | always);
        }
        asked.iter().filter(|asked| asked.revents != 0).count() as c_int
    }
}

/// Waits as `poll` does, `timeout` for ever if it is `None`.
pub(crate) fn wait(asked: &mut [pollfd], timeout: Option<Duration>) -> c_int {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    // Each turn but the last ends because a connection that is being made has changed.
    loop {
        let mut plan = Plan::new(asked);
        let look = plan.may_change.then(|| Instant::now() + LOOK_AGAIN);
        let until = deadline.into_iter().chain(plan.until).chain(look).min();
        let ms = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            left.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int
        });
        let (start, count) = (plan.entries.as_mut_ptr(), plan.entries.len() as nfds_t);
        // SAFETY: so many entries.
        let result = unsafe { rdmacm::rpoll(start, count, ms) };
        if result < 0 {
            return result;
        }
        // Whichever thread has settled them: what was found belongs to what they are no more.
        let changed = plan.connecting.iter().filter(|one| settle(one) != Stage::Connecting).count();
        if changed != 0 {
            continue;
        }
        let over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ready = plan.tell(asked);
        if ready > 0 || over {
            return ready;
        }
    }
}

/// Whether one of the entries is a socket of this library.
fn concerns(entries: &[pollfd]) -> bool {
    entries.iter().any(|entry| find(entry.fd).is_some())
}

/// The program's entries.
unsafe fn asked<'a>(entries: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match entries.is_null() || count == 0 {
        true => &mut [],
        // SAFETY: the contract: so many entries, which are the call's alone.
        false => unsafe { std::slice::from_raw_parts_mut(entries, count as usize) },
    }
}

/// `poll`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let asked = unsafe { asked(entries, count) };
    if !concerns(asked) {
        // SAFETY: as above.
        return unsafe { next::poll(entries, count, timeout_ms) };
    }
    wait(asked, u64::try_from(timeout_ms).ok().map(Duration::from_millis))
}

/// The fortified form.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the caller's arguments, if there is room for so many.
    unsafe {
        check(count, room);
        poll(entries, count, timeout_ms)
    }
}

/// Ends the program if its array is too short, as libc does.
unsafe fn check(count: nfds_t, room: usize) {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: no pointers.
        unsafe { libc::abort() };
    }
}

/// Runs `call` with the signals of `mask` blocked, unless it is NULL. A signal may come between the
/// change of the mask and the wait, which the system would exclude; it then ends the wait only if
/// it comes again.
pub(crate) unsafe fn masked<T>(mask: *const sigset_t, call: impl FnOnce() -> T) -> T {
    if mask.is_null() {
        return call();
    }
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: the caller's mask, and room for the present one, which comes back after the call.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        let result = call();
        let errno = crate::real::errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        set_errno(errno);
        result
    }
}

/// A `timespec`; `None` for NULL, which is for ever.
unsafe fn time(time: *const timespec) -> Option<Duration> {
    // SAFETY: the contract: NULL, or a time.
    let time = unsafe { time.as_ref() }?;
    Some(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32))
}

/// `ppoll`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let asked = asked(entries, count);
        if !concerns(asked) {
            return next::ppoll(entries, count, timeout, mask);
        }
        let timeout = time(timeout);
        masked(mask, || wait(asked, timeout))
    }
}

/// The fortified form.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    // SAFETY: the caller's arguments, if there is room for so many.
    unsafe {
        check(count, room);
        ppoll(entries, count, timeout, mask)
    }
}

const WORD_BITS: usize = c_ulong::BITS as usize;

/// A `fd_set` of the program's, or none.
#[derive(Clone, Copy)]
struct Set(*mut c_ulong);

impl Set {
    fn of(set: *mut fd_set) -> Self {
        Self(set.cast::<c_void>().cast())
    }

    /// The word that has a descriptor's bit.
    unsafe fn word(self, fd: usize) -> Option<&'static mut c_ulong> {
        // SAFETY: the contract: NULL, or a set with room for every descriptor below the call's
        // count.
        unsafe { self.0.wrapping_add(fd / WORD_BITS).as_mut() }.filter(|_| !self.0.is_null())
    }

    unsafe fn has(self, fd: usize) -> bool {
        // SAFETY: as above.
        unsafe { self.word(fd) }.is_some_and(|word| *word >> (fd % WORD_BITS) & 1 != 0)
    }

    unsafe fn put(self, fd: usize, has: bool) -> c_int {
        // SAFETY: as above.
        match (unsafe { self.word(fd) }, has) {
            (Some(word), true) => {
                *word |= 1 << (fd % WORD_BITS);
                1
            }
            (Some(word), false) => {
                *word &= !(1 << (fd % WORD_BITS));
                0
            }
            (None, _) => 0,
        }
    }
}

/// For which events a descriptor is reported: as the kernel has it.
const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

/// The entries that stand for the sets; `None` if no socket of this library is among them.
unsafe fn entries_of(count: usize, sets: [Set; 3]) -> Option<Vec<pollfd>> {
    let mut entries = Vec::new();
    let mut concerned = false;
    for fd in 0..count {
        let mut events = 0;
        for (set, event) in sets.into_iter().zip([libc::POLLIN, libc::POLLOUT, libc::POLLPRI]) {
            // SAFETY: below the count.
            events |= if unsafe { set.has(fd) } { event } else { 0 };
        }
        if events != 0 {
            concerned |= find(fd as c_int).is_some();
            entries.push(poll_entry(fd as c_int, events));
        }
    }
    concerned.then_some(entries)
}

/// Waits for the entries and fills the sets.
unsafe fn select_by_poll(
    mut entries: Vec<pollfd>,
    sets: [Set; 3],
    timeout: Option<Duration>,
) -> c_int {
    let result = wait(&mut entries, timeout);
    if result < 0 {
        return result;
    }
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return -1;
    }
    let mut ready = 0;
    let asked = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    for entry in &entries {
        for ((set, event), reported) in sets.into_iter().zip(asked).zip([READ, WRITE, EXCEPT]) {
            if entry.events & event != 0 {
                // SAFETY: below the count.
                ready += unsafe { set.put(entry.fd as usize, entry.revents & reported != 0) };
            }
        }
    }
    ready
}

/// `select`. What is left of the timeout is told, as Linux does it.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except].map(Set::of);
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(entries) = entries_of(count.max(0) as usize, sets) else {
            return next::select(count, read, write, except, timeout);
        };
        let begun = Instant::now();
        let limit = timeout.as_ref().map(|time| {
            Duration::from_secs(time.tv_sec.max(0) as u64)
                + Duration::from_micros(time.tv_usec.max(0) as u64)
        });
        let ready = select_by_poll(entries, sets, limit);
        if let (Some(place), Some(limit)) = (timeout.as_mut(), limit) {
            let left = limit.saturating_sub(begun.elapsed());
            place.tv_sec = left.as_secs() as libc::time_t;
            place.tv_usec = left.subsec_micros().into();
        }
        ready
    }
}

/// `pselect`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except].map(Set::of);
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(entries) = entries_of(count.max(0) as usize, sets) else {
            return next::pselect(count, read, write, except, timeout, mask);
        };
        let limit = time(timeout);
        masked(mask, || select_by_poll(entries, sets, limit))
    }
}
