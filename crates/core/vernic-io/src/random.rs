//! Random numbers of the operating system, for the control path.

use std::hash::{BuildHasher, RandomState};

/// A random number, drawn from the operating system by each call: two processes draw different
/// ones, also those that were forked from one. Where the system refuses (a sandbox may), it is what
/// the standard library's hasher was seeded with before, which a child shares with its parent.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(()))
}
