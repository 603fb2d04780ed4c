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
use crate::token::{Meaning, Token};

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
    if let Some(entry) = &entry {
        match entry.stage() {
            Stage::Active => forked::go_over(fd, entry),
            Stage::Connecting | Stage::Settling => _ = settle(entry),
            _ => {}
        }
    }
    // SAFETY: the contract: an event, or NULL where none is needed.
    let wanted = unsafe { event.as_ref() }.map_or((0, 0), |event| (event.events, event.u64));
    let change = |entry: Arc<Entry>| {
        change_asked(set, op, fd, &entry, wanted)
            .or_else(|| change_member(set, op, fd, &entry, wanted))
    };
    match entry.and_then(change) {
        Some(result) => result,
        // SAFETY: as above.
        None => unsafe { rdmacm::repoll_ctl(set, op, fd, event) },
    }
}

/// Changes the membership of a socket that asks by TCP: an ordinary one, and noted, since it may ask by RDMA again.
/// `None` for any other.
fn change_asked(
    set: c_int,
    op: c_int,
    fd: c_int,
    entry: &Entry,
    (events, data): (u32, u64),
) -> Option<c_int> {
    // Whoever has it ask by RDMA again has to wait.
    let mut sets = lock(&entry.sets);
    if entry.stage() != Stage::Asked {
        return None;
    }
    let result = change(set, op, fd, events, data);
    if result == 0 {
        sets.members.retain(|member| member.set != set);
        if op != libc::EPOLL_CTL_DEL {
            sets.members.push(Membership { set, events, token: Token::new(data) });
        }
    }
    Some(result)
}

/// Changes the membership of a socket over RDMA; `None` for one that is an ordinary socket, and an ordinary
/// member.
fn change_member(
    set: c_int,
    op: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    (events, data): (u32, u64),
) -> Option<c_int> {
    // Whoever gives it another socket in its sets has to wait.
    let mut sets = lock(&entry.sets);
    let number = entry.rdma().filter(|number| *number >= 0 && !sets.moved)?;
    let known = sets.members.iter().position(|member| member.set == set);
    let mut member = match known {
        Some(at) => sets.members.swap_remove(at),
        None => Membership { set, events, token: Token::new(data) },
    };
    let result = change(set, op, number, events, member.token.value());
    if result == 0 && entry.stage() == Stage::Listening && config().mode == Mode::Auto {
        change(set, op, fd, events, data);
    }
    match (result, op) {
        (0, libc::EPOLL_CTL_DEL) => return Some(0),
        (0, _) => {
            member.events = events;
            member.token.set_data(data);
        }
        // It is none, and was none.
        _ if known.is_none() => return Some(result),
        _ => {}
    }
    sets.members.push(member);
    drop(sets);
    if may_connect(entry.stage()) {
        watch(entry);
    }
    Some(result)
}

/// From now on a socket that is in sets is looked after, for as long as it may connect.
fn watch(entry: &Arc<Entry>) {
    let mut connecting = lock(&CONNECTING);
    if !connecting.iter().any(|other| Arc::ptr_eq(other, entry)) {
        connecting.push(entry.clone());
    }
}

/// Whether a socket is to be looked after: it connects, or may yet.
fn may_connect(stage: Stage) -> bool {
    matches!(stage, Stage::New | Stage::Connecting | Stage::Settling | Stage::Refused)
}

/// A socket that is in sets listens: its TCP socket is waited for, too.
pub(crate) fn add_tcp(entry: &Entry, fd: c_int) {
    for member in &lock(&entry.sets).members {
        change(member.set, libc::EPOLL_CTL_ADD, fd, member.events, member.token.data());
    }
}

/// A socket gets another socket over RDMA, of number `new`, which takes the place that its present one has in sets, or its
/// TCP socket: `old`.
pub(crate) fn replace(entry: &Arc<Entry>, old: c_int, new: c_int) {
    let sets = lock(&entry.sets);
    for member in &sets.members {
        change(member.set, libc::EPOLL_CTL_DEL, old, 0, 0);
        change(member.set, libc::EPOLL_CTL_ADD, new, member.events, member.token.value());
    }
    entry.set_number(new);
    let is_member = !sets.members.is_empty();
    drop(sets);
    if is_member {
        watch(entry);
    }
}

/// A socket goes over TCP for good: the TCP socket takes its place in the sets. Which they are, and what for.
pub(crate) fn move_to_tcp(entry: &Entry, fd: c_int) -> Vec<Membership> {
    let mut sets = lock(&entry.sets);
    sets.moved = true;
    // What was reported and not told is told no more: its tokens are gone.
    let to_tcp = |member: Membership| {
        let Membership { set, events, token } = member;
        change(set, libc::EPOLL_CTL_DEL, entry.number(), 0, 0);
        change(set, libc::EPOLL_CTL_ADD, fd, events, token.data());
        Membership { set, events, token: Token::new(token.data()) }
    };
    sets.members.drain(..).map(to_tcp).collect()
}

/// The sockets in `set` that are being connected.
fn watched(set: c_int) -> Vec<Arc<Entry>> {
    // Those that are known, and those that were closed while they connected, need no looking after any more.
    let is_open = |entry: &Arc<Entry>| may_connect(entry.stage()) && Arc::strong_count(entry) > 1;
    let (connecting, over): (Vec<_>, Vec<_>) = {
        let mut all = lock(&CONNECTING);
        let parts = all.drain(..).partition(is_open);
        all.clone_from(&parts.0);
        parts
    };
    // Not under the lock: this may end sockets.
    drop(over);
    let is_in = |entry: &Arc<Entry>| {
        let sets = lock(&entry.sets);
        sets.members.iter().any(|member| member.set == set)
    };
    connecting.into_iter().filter(is_in).collect()
}

/// Settles what can be; when to look again.
fn settle_all(watched: &[Arc<Entry>]) -> Option<Instant> {
    let connecting = watched.iter().filter(|entry| settle(entry) == Stage::Connecting);
    connecting.filter_map(|entry| given_up_at(entry)).min()
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
        let watched = watched(set);
        let until = settle_all(&watched);
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
        settle_all(&watched);
        // SAFETY: so many were filled.
        let count = unsafe { tell(events, count as usize) };
        let over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if count > 0 || over {
            return count as c_int;
        }
    }
}

/// Gives events the program's data, and removes those of sockets that have left the set, as those whose
/// place their TCP sockets have taken: it may be the end of the attempt by RDMA.
///
/// # Safety
/// The array has `count` events that are initialised.
unsafe fn tell(events: *mut epoll_event, count: usize) -> usize {
    let mut kept = 0;
    for index in 0..count {
        // SAFETY: the caller's array has so many; entries of it are packed.
        let mut event = unsafe { ptr::read_unaligned(events.add(index)) };
        let Meaning::Data(data) = Token::meaning(event.u64) else { continue };
        event.u64 = data;
        // SAFETY: as above.
        unsafe { ptr::write_unaligned(events.add(kept), event) };
        kept += 1;
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
