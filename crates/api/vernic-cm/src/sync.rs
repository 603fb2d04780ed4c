//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after another thread panicked: what is behind each lock is valid between statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
