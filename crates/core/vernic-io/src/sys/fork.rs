//! Descriptors that stay with the process that opened them, and what a fork does to them.
//!
//! A child of `fork` inherits every descriptor, the same socket as its parent's: it would keep the
//! parent's ports and slots taken after the parent is gone, and read its packets. So each
//! descriptor of this crate is an [`OwnFd`], marked in one table of bits. `pthread_atfork` has
//! three functions of ours called: before the fork one waits until no thread is between opening (or
//! closing) a descriptor and marking it, in the child one closes all that are marked and counts the
//! fork. From then on everything made before belongs to another process ([`Origin::is_here`] says
//! so), and is left alone: its threads are gone and its locks may be held for ever.
//!
//! The child's function runs in a process that may have had many threads: it takes no lock and
//! allocates nothing.
//!
//! Limits: descriptors below 2^20, the kernel's own default bound. `vfork`, `posix_spawn` and exec
//! need nothing: every descriptor is closed on exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Descriptors are below this: `fs.nr_open` as the kernel has it by default.
const MAX_FDS: usize = 1 << 20;

/// Pause between two looks whether the gate is free. Who yields instead stands behind all that
/// compute on its core, again and again (Linux 6.18: 30 to 60 ms each time with ten of them).
const PAUSE: Duration = Duration::from_micros(20);

/// How often a forking thread looks whether it may go on: a second or less. Nobody keeps it waiting
/// for longer than a few system calls; but a program that forks in a signal handler may have
/// interrupted the very thread that it waits for.
const MAX_WAITS: u32 = 10_000;

/// The process in which something was made: of two processes related by fork, which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl Origin {
    /// This process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// False in a child, of what was made before the fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// One bit per descriptor that a child closes.
static MARKED: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
/// Words of [`MARKED`] that were ever used.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// The functions are in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Threads inside the gate, plus [`FORK`] for each that forks, or waits until it may.
static PASSING: AtomicU64 = AtomicU64::new(0);
/// What one that forks counts: more than all threads inside.
const FORK: u64 = 1 << 32;

/// While it lives, no thread forks but one that has waited for a second: what is locked behind the
/// gate only, no child inherits locked. Any number of threads are behind it at the same time. For a
/// few system calls at most. Not to be nested: opening and closing a socket passes the gate, too,
/// so no object of this crate may be made or dropped behind it.
#[derive(Debug)]
pub struct Gate(Origin);

impl Gate {
    /// Waits while a thread forks, or is about to.
    pub fn enter() -> Self {
        let gate = loop {
            match Self::try_enter() {
                Some(gate) => break gate,
                None => pause(),
            }
        };
        // Without memory for it, forks are as without the gate; who opens a descriptor is told.
        let _ = install();
        gate
    }

    /// Enters unless a thread forks, or is about to: for who may have interrupted that very thread.
    pub fn try_enter() -> Option<Self> {
        let enter = |passing| (passing < FORK).then_some(passing + 1);
        let entered = PASSING.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        entered.ok().map(|_| Self(Origin::here()))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // In a child that was forked behind it the gate is free already: also where a signal's
        // handler forked in the midst of entering or of this, when it looks as if it had been
        // entered here.
        if self.0.is_here() {
            let leave = |passing: u64| passing.checked_sub(1);
            let _ = PASSING.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
        }
    }
}

/// Before a fork, on the thread that forks: nobody enters from now on.
extern "C" fn prepare() {
    shut(MAX_WAITS);
}

/// Shuts the gate, and waits until nobody is inside: looks `waits` times at most.
fn shut(waits: u32) {
    PASSING.fetch_add(FORK, Ordering::Acquire);
    for _ in 0..waits {
        if PASSING.load(Ordering::Acquire).is_multiple_of(FORK) {
            return;
        }
        pause();
    }
}

/// Sleeps for [`PAUSE`], or until a signal comes: by number, since the C library's own call for it
/// is one where a thread of the program may be cancelled, and `fork` is none.
fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
    let rest = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the one structure lives through the call, and no other is asked for.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, rest) };
}

/// After a fork, or one that failed, in the parent.
extern "C" fn parent() {
    PASSING.fetch_sub(FORK, Ordering::Release);
}

/// After a fork, in the child.
extern "C" fn child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for (word, marked) in MARKED.iter().enumerate().take(WORDS.load(Ordering::Relaxed)) {
        let mut bits = marked.swap(0, Ordering::Relaxed);
        // A bit goes with each turn.
        while bits != 0 {
            let fd = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: takes no pointers. A marked descriptor is owned by an `OwnFd`, which knows
            // that it is of another process now and neither uses nor closes it.
            unsafe { libc::close(fd as RawFd) };
        }
    }
    // Whoever was inside is not in this process, or is this thread (see the gate's end).
    PASSING.store(0, Ordering::Relaxed);
}

/// Has the three functions called. Behind the gate. Two threads may do so at once the first time:
/// called twice each, the functions do the same.
fn install() -> io::Result<()> {
    if INSTALLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the functions have the signatures asked for and live as long as the library; `child`
    // makes only calls that are allowed between a fork and an exec.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => INSTALLED.store(true, Ordering::Relaxed),
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    Ok(())
}

/// A descriptor that a child of this process does not keep. Closed when dropped, here.
#[derive(Debug)]
pub(crate) struct OwnFd {
    fd: RawFd,
    origin: Origin,
}

impl OwnFd {
    /// Owns what `open` opens, which must be closed on exec and belong to nobody else.
    pub(super) fn open(open: impl FnOnce() -> io::Result<RawFd>) -> io::Result<Self> {
        let _gate = Gate::enter();
        install()?;
        Self::mark(open()?)
    }

    /// As [`open`](Self::open), for any number of descriptors at once: those that `open` adds to
    /// the list. Those beyond the limit are closed, and counted in the last value.
    pub(super) fn open_many<T>(
        open: impl FnOnce(&mut Vec<RawFd>) -> io::Result<T>,
    ) -> io::Result<(T, Vec<Self>, usize)> {
        let mut opened = Vec::new();
        let (value, marked) = {
            let _gate = Gate::enter();
            install()?;
            let value = open(&mut opened)?;
            (value, opened.into_iter().map(Self::mark).collect::<Vec<_>>())
        };
        let count = marked.len();
        let marked: Vec<_> = marked.into_iter().flatten().collect();
        let lost = count - marked.len();
        Ok((value, marked, lost))
    }

    /// Behind the gate.
    fn mark(fd: RawFd) -> io::Result<Self> {
        let fd = Self { fd, origin: Origin::here() };
        let Some(marked) = MARKED.get(fd.word()) else {
            // SAFETY: just opened for us.
            unsafe { libc::close(fd.fd) };
            std::mem::forget(fd);
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        marked.fetch_or(fd.bit(), Ordering::Relaxed);
        WORDS.fetch_max(fd.word() + 1, Ordering::Relaxed);
        Ok(fd)
    }

    /// Gives it away: from now on a child keeps it, and whoever has it closes it.
    pub(crate) fn give_away(self) -> OwnedFd {
        if let Some(marked) = MARKED.get(self.word()) {
            marked.fetch_and(!self.bit(), Ordering::Relaxed);
        }
        let fd = self.fd;
        std::mem::forget(self);
        // SAFETY: owned by this value alone, which is forgotten, and open.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn word(&self) -> usize {
        self.fd as usize / 64
    }

    fn bit(&self) -> u64 {
        1 << (self.fd % 64)
    }
}

/// A descriptor that one thread may close while others use it: it closes when the last of them is
/// done.
#[derive(Debug)]
pub(crate) struct ClosableFd(Mutex<Option<Arc<OwnFd>>>);

impl ClosableFd {
    pub(crate) fn new(fd: OwnFd) -> Self {
        Self(Mutex::new(Some(Arc::new(fd))))
    }

    /// The descriptor, unless it is closed.
    pub(crate) fn get(&self) -> Option<Arc<OwnFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on nobody gets it.
    pub(crate) fn close(&self) {
        let fd = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(fd);
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until this is dropped; a child that inherited this closes the descriptor,
        // and does not use what is of another origin.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        let _gate = Gate::enter();
        if let Some(marked) = MARKED.get(self.word()) {
            marked.fetch_and(!self.bit(), Ordering::Relaxed);
        }
        // SAFETY: owned by this value alone and open.
        unsafe { libc::close(self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn threads_pass_the_gate_together_and_a_fork_waits_until_all_are_through() {
        let gate = Gate::enter();
        // Another is not kept waiting.
        thread::spawn(|| drop(Gate::enter())).join().unwrap();
        let (waits, forks) = channel();
        let forking = thread::spawn(move || {
            shut(u32::MAX);
            waits.send(()).unwrap();
            let is_shut = Gate::try_enter().is_none();
            parent();
            is_shut
        });
        // It shuts the gate, and waits.
        while Gate::try_enter().is_some() {
            thread::yield_now();
        }
        assert!(forks.recv_timeout(10 * PAUSE).is_err());
        drop(gate);
        forks.recv().unwrap();
        assert!(forking.join().unwrap(), "nobody enters while it forks");
        drop(Gate::enter());
    }
}
