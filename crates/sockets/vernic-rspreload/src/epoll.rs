//! `epoll`: sets that may hold sockets over RDMA.
//!
//! A set is one of `repoll_create`, whose number is an epoll descriptor of the kernel's, which the
//! program gets. A socket that listens is in it with both of its sockets; one that connects is
//! looked after until it is known which it is, and its TCP socket takes its place if need be.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};

use crate::config::{Mode, config};
use crate::connect::{given_up_at, settle};
use crate::forked;
use crate::lock::lock;
use crate::rdmacm;
use crate::real::{errno, is_inside, next, set_errno};
use crate::table::{Entry, Membership, Stage, find};
use crate::token::{Meaning, Token};

/// A set.
struct Set {
    number: c_int,
    /// An `eventfd` in it, by which one who waits is had look again: `rouse`.
    bell: c_int,
    /// Threads that wait for it.
    waiters: usize,
}

/// The sets of this process.
static SETS: Mutex<Vec<Set>> = Mutex::new(Vec::new());

/// Sockets in sets that are being connected.
static CONNECTING: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

/// A thread begins to wait for a set, or ends that: how many others wait.
fn count_waiter(set: c_int, change: impl FnOnce(usize) -> usize) -> usize {
    let mut sets = lock(&SETS);
    // A set that was closed meanwhile, or one made anew of the same number, counts nobody of
    // before.
    let Some(known) = sets.iter_mut().find(|known| known.number == set) else { return 0 };
    known.waiters = change(known.waiters);
    known.waiters
}

fn is_set(set: c_int) -> bool {
    !is_inside() && lock(&SETS).iter().any(|known| known.number == set)
}

/// A descriptor is to be closed: true if it was a set, and is closed by this.
pub(crate) fn close(fd: c_int) -> bool {
    let mut sets = lock(&SETS);
    let Some(at) = sets.iter().position(|set| set.number == fd) else { return false };
    let Set { number, bell, .. } = sets.swap_remove(at);
    drop(sets);
    // SAFETY: no pointers.
    unsafe {
        rdmacm::rclose(number);
        next::close(bell);
    }
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
    // SAFETY: as above.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    if bell < 0 || change(set, libc::EPOLL_CTL_ADD, bell, events, Token::of_nothing()) != 0 {
        let why = errno();
        // SAFETY: as above.
        unsafe {
            rdmacm::rclose(set);
            next::close(bell);
        }
        set_errno(why);
        return -1;
    }
    lock(&SETS).push(Set { number: set, bell, waiters: 0 });
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

/// Changes the membership of a socket that asks by TCP: an ordinary one, and noted, since it may
/// ask by RDMA again. `None` for any other.
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

/// Changes the membership of a socket over RDMA; `None` for one that is an ordinary socket, and an
/// ordinary member.
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
    if entry.stage().may_connect() {
        // Before it is in the set: who waits may be told of it at once.
        watch(entry);
    }
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
    if entry.stage() == Stage::Connecting {
        rouse(entry);
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

/// Has somebody who waits for a set that a socket is in look when the attempt to connect it ends:
/// it has begun.
pub(crate) fn rouse(entry: &Entry) {
    let sets: Vec<c_int> = lock(&entry.sets).members.iter().map(|member| member.set).collect();
    sets.into_iter().for_each(ring);
}

fn ring(set: c_int) {
    let (sets, one) = (lock(&SETS), 1_u64);
    if let Some(Set { bell, .. }) = sets.iter().find(|known| known.number == set) {
        // SAFETY: eight bytes. It does not wait, and fails only if it was rung more often than can
        // be counted.
        unsafe { next::write(*bell, (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// A socket that is in sets listens: its TCP socket is waited for, too.
pub(crate) fn add_tcp(entry: &Entry, fd: c_int) {
    for member in &lock(&entry.sets).members {
        change(member.set, libc::EPOLL_CTL_ADD, fd, member.events, member.token.data());
    }
}

/// A socket gets another socket over RDMA, of number `new`, which takes the place that its present
/// one has in sets, or its TCP socket `fd` if it has none. The number of the one that it had, which
/// is the caller's to close, or -1; the new one if the socket is closed.
pub(crate) fn replace(entry: &Arc<Entry>, fd: c_int, new: c_int) -> c_int {
    let mut sets = lock(&entry.sets);
    if sets.closed {
        return new;
    }
    let had_none = entry.number() < 0;
    let old = entry.swap_number(new);
    if !sets.members.is_empty() {
        watch(entry);
    }
    let place = if had_none { fd } else { old };
    sets.members.retain(|Membership { set, events, token }| {
        is_moved(*set, place, new, *events, token.value())
    });
    old
}

/// Has `new` take the place of `old` in a set. False if that was not in it, as in another of the
/// same number: the program has closed the one that it was in.
fn is_moved(set: c_int, old: c_int, new: c_int, events: u32, data: u64) -> bool {
    change(set, libc::EPOLL_CTL_DEL, old, 0, 0) == 0
        && change(set, libc::EPOLL_CTL_ADD, new, events, data) == 0
}

/// A socket goes over TCP for good: the TCP socket takes its place in the sets. Which they are, and
/// what for.
pub(crate) fn move_to_tcp(entry: &Entry, fd: c_int) -> Vec<Membership> {
    let mut sets = lock(&entry.sets);
    sets.moved = true;
    // What was reported and not told is told no more: its tokens are gone.
    let to_tcp = |member: Membership| {
        let Membership { set, events, token } = member;
        is_moved(set, entry.number(), fd, events, token.data()).then(|| Membership {
            set,
            events,
            token: Token::new(token.data()),
        })
    };
    sets.members.drain(..).filter_map(to_tcp).collect()
}

/// The sockets in `set` that are being connected.
fn watched(set: c_int) -> Vec<Arc<Entry>> {
    // Those that are known, and those that were closed while they connected, need no looking after
    // any more.
    let is_open = |entry: &Arc<Entry>| entry.stage().may_connect() && Arc::strong_count(entry) > 1;
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
    count_waiter(set, |count| count + 1);
    let (told, pending) = wait_until(set, events, room, deadline);
    let others = count_waiter(set, |count| count.saturating_sub(1));
    if pending && others != 0 {
        // They know of no end.
        let before = errno();
        ring(set);
        set_errno(before);
    }
    told
}

/// Waits for a set: what `epoll_wait` returns, and whether a connection is being made that ends by
/// time.
fn wait_until(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    deadline: Option<Instant>,
) -> (c_int, bool) {
    let mut is_last = false;
    // Each turn but the last ends because a connection that is being made has changed.
    loop {
        let given_up_at = settle_all(&watched(set));
        let until = deadline.into_iter().chain(given_up_at).min();
        let ms = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            left.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int
        });
        // SAFETY: the caller's arguments.
        let count = unsafe { rdmacm::repoll_wait(set, events, room, ms) };
        let before = errno();
        // Also what another thread has added meanwhile.
        let given_up_at = settle_all(&watched(set));
        set_errno(before);
        // SAFETY: so many were filled.
        let told = unsafe { tell(events, count.max(0) as usize) } as c_int;
        let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if count < 0 || told > 0 || is_over && (count == 0 || is_last) {
            return (if count < 0 { count } else { told }, given_up_at.is_some());
        }
        // What was not for the program may have been in the way of what is: one look more.
        is_last = is_over;
    }
}

/// Gives events the program's data, and removes those of sockets that have left the set, as those
/// whose place their TCP sockets have taken: it may be the end of the attempt by RDMA.
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
