//! What stands for the data of a socket over RDMA in a set, so that its events are known from all
//! others.
//!
//! A program may attach the same data to as many descriptors as it likes. A socket over RDMA is
//! therefore entered into a set with a number of its own, which becomes the program's data when an
//! event of it is reported, and nothing once the socket has left the set: what was reported then is
//! no business of the program.
//!
//! Limits: a program whose own data begin with the 32 bits that this process has drawn for its
//! tokens, the first of them set (so no address), misses the events of those.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use crate::lock::lock;

/// The high bits of all tokens of this process.
static MARK: LazyLock<u64> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    (random | 1 << 63) & HIGH
});

const HIGH: u64 = !(u32::MAX as u64);

/// The low bits of the next one; after four billion they repeat.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The program's data, by token.
static DATA: LazyLock<Mutex<HashMap<u64, u64>>> = LazyLock::new(Mutex::default);

/// A number that stands for data until it is dropped.
#[derive(Debug)]
pub(crate) struct Token(u64);

/// What a number that was reported is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The program's data.
    Data(u64),
    /// A token that was dropped.
    Gone,
}

impl Token {
    pub(crate) fn new(data: u64) -> Self {
        let value = *MARK | u64::from(NEXT.fetch_add(1, Ordering::Relaxed) % u32::MAX);
        lock(&DATA).insert(value, data);
        Self(value)
    }

    pub(crate) fn value(&self) -> u64 {
        self.0
    }

    /// The value of none: what is reported with it is no business of the program.
    pub(crate) fn of_nothing() -> u64 {
        *MARK | u64::from(u32::MAX)
    }

    /// The data that it stands for.
    pub(crate) fn data(&self) -> u64 {
        lock(&DATA).get(&self.0).copied().unwrap_or(0)
    }

    /// Has it stand for other data.
    pub(crate) fn set_data(&self, data: u64) {
        lock(&DATA).insert(self.0, data);
    }

    /// What a number means that is a token or the data of another descriptor.
    pub(crate) fn meaning(value: u64) -> Meaning {
        if value & HIGH != *MARK {
            return Meaning::Data(value);
        }
        lock(&DATA).get(&value).map_or(Meaning::Gone, |data| Meaning::Data(*data))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        lock(&DATA).remove(&self.0);
    }
}
