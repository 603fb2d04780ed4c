//! `epoll`: sets that may hold sockets over RDMA.
//!
//! A set is one of `repoll_create`, whose number is an epoll descriptor of the kernel's, which the program
//! gets. A socket that listens is in it with both of its sockets; one that connects is looked after until
//! it is known which it is, and its TCP socket takes its place if need be.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};

use crate::config::{Mode, config};
use crate::connect::{given_up_at, settle};
use crate::forked;
use crate::rdmacm;
use crate::real::{errno, is_inside, next, set_errno};
use crate::table::{Entry, Membership, Stage, find, lock};

/// The sets of this process.
static SETS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

/// Sockets in sets that are being connected.
static CONNECTING: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

fn is_set(set: c_int) -> bool {
    !is_inside() && lock(&SETS).contains(&set)
}

/// A descriptor is to be closed: true if it was a set, and is closed by this.
pub(crate) fn close(fd: c_int) -> bool {
    let mut sets = lock(&SETS);
    let Some(at) = sets.iter().position(|set| *set == fd) else { return false };
    sets.swap_remove(at);
    drop(sets);
    // SAFETY: no pointers.
    unsafe { rdmacm::rclose(fd) };
    true
}

/// A new set.
fn create(flags: c_int) -> c_int {
    // Without a socket over RDMA in the process there is nothing that the kernel does not know.
    if is_inside() || config().mode == Mode::Off || !rdmacm::is_there() {
        // SAFETY: no pointers.
        return unsafe { next::epoll_create1(flags) };
    }
    let before = errno();
    // SAFETY: as above.
    let set = unsafe { rdmacm::repoll_create(flags) };
    if set < 0 {
        set_errno(before);
        // A library without such sets.
        // SAFETY: as above.
        return unsafe { next::epoll_create1(flags) };
    }
    if flags & libc::EPOLL_CLOEXEC == 0 {
        // SAFETY: as above.
        unsafe { next::fcntl(set, libc::F_SETFD, 0) };
    }
    lock(&SETS).push(set);
    set
}

/// `epoll_create`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    create(0)
}

/// `epoll_create1`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    create(flags)
}

/// Changes a member of a set.
fn change(set: c_int, op: c_int, member: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: one event.
    unsafe { rdmacm::repoll_ctl(set, op, member, &raw mut event) }
}

/// `epoll_ctl`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if !is_set(set) {
        // SAFETY: the caller's arguments.
        return unsafe { next::epoll_ctl(set, op, fd, event) };
    }
    let entry = find(fd);
    if let Some(entry) = entry.as_ref().filter(|entry| entry.stage() == Stage::Active) {
        forked::go_over(fd, entry);
    }
    let number = entry.as_ref().and_then(|entry| entry.rdma()).filter(|number| *number >= 0);
    let (Some(entry), Some(number)) = (entry, number) else {
        // SAFETY: as above.
        return unsafe { rdmacm::repoll_ctl(set, op, fd, event) };
    };
    // SAFETY: the contract: an event, or NULL where none is needed.
    let (events, data) =
        unsafe { event.as_ref() }.map_or((0, 0), |event| (event.events, event.u64));
    let result = change(set, op, number, events, data);
    if result != 0 {
        return result;
    }
    if entry.stage() == Stage::Listening && config().mode == Mode::Auto {
        change(set, op, fd, events, data);
    }
    let mut members = lock(&entry.sets);
    members.retain(|member| member.set != set);
    if op != libc::EPOLL_CTL_DEL {
        members.push(Membership { set, events, data });
        drop(members);
        if matches!(entry.stage(), Stage::New | Stage::Connecting) {
            let mut connecting = lock(&CONNECTING);
            if !connecting.iter().any(|other| Arc::ptr_eq(other, &entry)) {
                connecting.push(entry);
            }
        }
    }
    0
}

/// A socket that is in sets listens: its TCP socket is waited for, too.
pub(crate) fn add_tcp(entry: &Entry, fd: c_int) {
    for member in lock(&entry.sets).iter() {
        change(member.set, libc::EPOLL_CTL_ADD, fd, member.events, member.data);
    }
}

/// A socket goes over TCP for good: the TCP socket takes its place in the sets.
pub(crate) fn move_to_tcp(entry: &Entry, fd: c_int) {
    for member in std::mem::take(&mut *lock(&entry.sets)) {
        change(member.set, libc::EPOLL_CTL_DEL, entry.number(), 0, 0);
        change(member.set, libc::EPOLL_CTL_ADD, fd, member.events, member.data);
    }
}

/// Looks after the sockets in `set` that are being connected. What of the program's was changed under its
/// eyes, and when to look again.
fn look_after(set: c_int) -> (Vec<u64>, Option<Instant>) {
    let entries = lock(&CONNECTING).clone();
    let (mut moved, mut until) = (Vec::new(), None);
    for entry in entries {
        let data: Vec<u64> =
            lock(&entry.sets).iter().filter(|m| m.set == set).map(|m| m.data).collect();
        match settle(&entry) {
            Stage::Connecting => until = until.into_iter().chain(given_up_at(&entry)).min(),
            Stage::New => {}
            stage => {
                if stage == Stage::Tcp {
                    moved.extend(data);
                }
                lock(&CONNECTING).retain(|other| !Arc::ptr_eq(other, &entry));
            }
        }
    }
    // Sockets that were closed while they connected.
    lock(&CONNECTING).retain(|entry| Arc::strong_count(entry) > 1);
    (moved, until)
}

/// `epoll_wait`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    if !is_set(set) {
        // SAFETY: the caller's arguments.
        return unsafe { next::epoll_wait(set, events, room, timeout_ms) };
    }
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    // Each turn but the last ends because a connection that is being made has changed.
    loop {
        let (_, until) = look_after(set);
        let until = deadline.into_iter().chain(until).min();
        let ms = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            left.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int
        });
        // SAFETY: as above.
        let count = unsafe { rdmacm::repoll_wait(set, events, room, ms) };
        if count < 0 {
            return count;
        }
        let (moved, _) = look_after(set);
        // SAFETY: so many were filled.
        let count = unsafe { leave_out(events, count as usize, &moved) };
        let over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if count > 0 || over {
            return count as c_int;
        }
    }
}

/// Removes the events of sockets whose place another has taken: they are not over.
unsafe fn leave_out(events: *mut epoll_event, count: usize, moved: &[u64]) -> usize {
    let mut kept = 0;
    for index in 0..count {
        // SAFETY: the caller's array has so many; entries of it are packed.
        unsafe {
            let event = ptr::read_unaligned(events.add(index));
            if !moved.contains(&{ event.u64 }) {
                ptr::write_unaligned(events.add(kept), event);
                kept += 1;
            }
        }
    }
    kept
}

/// `epoll_pwait`.
///
/// # Safety
/// The contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match is_set(set) {
            false => next::epoll_pwait(set, events, room, timeout_ms, mask),
            true => crate::ready::masked(mask, || epoll_wait(set, events, room, timeout_ms)),
        }
    }
}
