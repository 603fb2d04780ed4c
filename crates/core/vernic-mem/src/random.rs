//! Random numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Random numbers for the control path: SipHash, keyed by the operating system, of two numbers. The
/// key is one of the process's, and its children's; the first number is the device's alone.
#[derive(Debug)]
pub(crate) struct Random {
    state: RandomState,
    own: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        // Where the system refuses (a sandbox may), there is the key still.
        let own = getrandom::u64().unwrap_or_default();
        Self { state: RandomState::new(), own, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = self.state.build_hasher();
        hasher.write_u64(self.own);
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// A number below `end` > 0. The bias is below 2^-32 for any `end` here.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
