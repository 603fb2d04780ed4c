//! Descriptors that stay with the process that opened them, and what a fork does to them.
//!
//! A child of `fork` inherits every descriptor, the same socket as its parent's. It would keep the
//! parent's ports and slots taken after the parent is gone, and read its packets. So each
//! descriptor of this crate is an [`OwnFd`], marked in one table of bits.
//!
//! `pthread_atfork` registers three functions. The first runs before the fork, and waits until no
//! thread is between opening (or closing) a descriptor and marking it. The second runs in the
//! parent after the fork, and lets other threads open and close descriptors again. The third runs
//! in the child: it closes all marked descriptors and counts the fork.
//!
//! In the child, everything made before the fork belongs to another process: [`Origin::is_here`]
//! is false. It is left alone, since its threads are gone and its locks may be held for ever.
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

/// The bound of descriptors: the kernel's default for `fs.nr_open`.
const MAX_FDS: usize = 1 << 20;

/// The pause between two polls of the gate. A thread that yielded instead would queue behind all
/// threads that compute on its core, again and again (Linux 6.18: 30 to 60 ms each time with ten of
/// them).
const PAUSE: Duration = Duration::from_micros(20);

/// How many times a forking thread polls whether it may go on, which takes a second or less. No
/// thread stays inside for longer than a few system calls. But a program that forks in a signal
/// handler may have interrupted the very thread that the fork waits for.
const MAX_WAITS: u32 = 10_000;

/// The process in which something was made. Tells a process from its children and parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl Origin {
    /// Returns the origin of this process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is the process of the origin: false in a child for what was made before the
    /// fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// One bit per descriptor, set if a child closes the descriptor.
static MARKED: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
/// Words of [`MARKED`] that were ever used, from the first.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// Whether the three functions are registered.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Threads inside the gate, plus [`FORK`] for each thread that forks or waits to fork.
static PASSING: AtomicU64 = AtomicU64::new(0);
/// The count of a thread that forks: more than all threads inside.
const FORK: u64 = 1 << 32;

/// A guard against forks. While it lives, no thread forks, except one that has waited for a second.
/// So no child inherits a lock held that is locked behind the gate only. Any number of threads may
/// be inside at once, each for a few system calls at most. Not to be nested: opening and closing a
/// socket passes the gate, too, so no object of this crate may be made or dropped inside.
#[derive(Debug)]
pub struct Gate(Origin);

impl Gate {
    /// Enters; waits while a thread forks, or is about to.
    pub fn enter() -> Self {
        let gate = loop {
            match Self::try_enter() {
                Some(gate) => break gate,
                None => pause(),
            }
        };
        // If there is no memory to register the functions, forks behave as without the gate.
        // Opening a descriptor then returns the error.
        let _ = install();
        gate
    }

    /// Enters unless a thread forks, or is about to. For a caller that may have interrupted that
    /// very thread.
    pub fn try_enter() -> Option<Self> {
        let enter = |passing| (passing < FORK).then_some(passing + 1);
        let entered = PASSING.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        entered.ok().map(|_| Self(Origin::here()))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // In a child that was forked inside the gate, the gate is free already. This also holds
        // where a signal handler forked in the midst of `enter` or `drop`, which looks as if the
        // child had entered.
        if self.0.is_here() {
            let leave = |passing: u64| passing.checked_sub(1);
            let _ = PASSING.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
        }
    }
}

/// Runs before a fork, on the thread that forks: no thread enters from now on.
extern "C" fn prepare() {
    shut(MAX_WAITS);
}

/// Shuts the gate, and waits until no thread is inside: polls `waits` times at most.
fn shut(waits: u32) {
    PASSING.fetch_add(FORK, Ordering::Acquire);
    for _ in 0..waits {
        if PASSING.load(Ordering::Acquire).is_multiple_of(FORK) {
            return;
        }
        pause();
    }
}

/// Sleeps for [`PAUSE`], or until a signal comes. The call is made by number, since the C library's
/// function is a cancellation point of the program's threads, and `fork` is not.
fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
    let rest = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the one structure lives through the call, and no other is asked for.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, rest) };
}

/// Runs in the parent after a fork, also after one that failed.
extern "C" fn parent() {
    PASSING.fetch_sub(FORK, Ordering::Release);
}

/// Runs in the child after a fork.
extern "C" fn child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for (word, marked) in MARKED.iter().enumerate().take(WORDS.load(Ordering::Relaxed)) {
        let mut bits = marked.swap(0, Ordering::Relaxed);
        // Each round clears one bit.
        while bits != 0 {
            let fd = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: takes no pointers. A marked descriptor is owned by an `OwnFd`, whose origin
            // is now another process, so that it neither uses nor closes the descriptor.
            unsafe { libc::close(fd as RawFd) };
        }
    }
    // A thread that was inside is not in this process, or is this thread (see the gate's `drop`).
    PASSING.store(0, Ordering::Relaxed);
}

/// Registers the three functions. To be called inside the gate. Two threads may do so at once the
/// first time; the functions may be called twice each without harm.
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

/// A descriptor that a child of this process does not keep. Closed when dropped in this process.
#[derive(Debug)]
pub struct OwnFd {
    fd: RawFd,
    origin: Origin,
}

impl OwnFd {
    /// Owns the descriptor that `open` opens. It must be closed on exec and have no other owner.
    pub(crate) fn open(open: impl FnOnce() -> io::Result<RawFd>) -> io::Result<Self> {
        let _gate = Gate::enter();
        install()?;
        Self::mark(open()?)
    }

    /// Does what [`open`](Self::open) does, for all descriptors that `open` adds to the list. Those
    /// beyond the limit are closed, and counted in the last value.
    pub(crate) fn open_many<T>(
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

    /// Marks a descriptor. To be called inside the gate.
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

    /// Gives the descriptor away: from now on a child keeps it, and its new owner closes it.
    pub fn give_away(self) -> OwnedFd {
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

/// A descriptor that one thread may close while others use it: it closes when the last user is
/// done.
#[derive(Debug)]
pub struct ClosableFd(Mutex<Option<Arc<OwnFd>>>);

impl ClosableFd {
    /// Keeps a descriptor until it is closed or dropped.
    pub fn new(fd: OwnFd) -> Self {
        Self(Mutex::new(Some(Arc::new(fd))))
    }

    /// Returns the descriptor, unless it is closed.
    pub fn get(&self) -> Option<Arc<OwnFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Closes the descriptor: from now on [`get`](Self::get) does not return it.
    pub fn close(&self) {
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
        // SAFETY: open until `self` is dropped; a child that inherited `self` closes the
        // descriptor, and does not use objects of another origin.
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
        // SAFETY: owned by this value alone, and open.
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
        // Another thread does not have to wait.
        thread::spawn(|| drop(Gate::enter())).join().unwrap();
        let (waits, forks) = channel();
        let forking = thread::spawn(move || {
            shut(u32::MAX);
            waits.send(()).unwrap();
            let is_shut = Gate::try_enter().is_none();
            parent();
            is_shut
        });
        // The forking thread shuts the gate, and waits.
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
