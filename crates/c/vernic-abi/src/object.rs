//! Helpers for C objects: the lock, the counts of what uses what ([`Users`]) for `EBUSY`, and locks
//! that C holds ([`RawLock`]).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// Locks, also after a panic elsewhere: what is behind the locks of this crate is valid between
/// statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many use an object.
#[derive(Clone, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

impl Users {
    /// One more, until the value is dropped.
    pub(crate) fn hold(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(self.0.clone())
    }

    /// # Errors
    /// `EBUSY` while somebody uses it.
    pub(crate) fn none(&self, what: &str) -> Result<(), Failure> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Failure::busy(format!("{what} is in use by {n} objects"))),
        }
    }
}

/// A use of an object.
pub(crate) struct Use(Arc<AtomicU32>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lock that is taken by one call of C and released by another, of the same thread.
///
/// Spins for a moment and then yields: it is held for a few calls, by programs that share a queue
/// between threads.
pub(crate) struct RawLock(AtomicBool);

impl RawLock {
    /// Turns of looking again before the processor is given to others.
    const SPINS: u32 = 100;

    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub(crate) fn lock(&self) {
        let mut turns = 0;
        while self
            .0
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            turns += 1;
            if turns < Self::SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
