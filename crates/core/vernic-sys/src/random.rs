//! Random numbers of the operating system, for the control path.

use std::hash::{BuildHasher, RandomState};

/// Draws a random number from the operating system. Two processes draw different numbers, also if
/// they were forked from one. Where the system refuses (a sandbox may), the number comes from the
/// seed of the standard library's hasher, which a child shares with its parent.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(()))
}
