//! Random numbers for the control path.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number generator: the SipHash of two numbers. Its key comes from the operating system,
/// and a child of `fork` inherits the key. The first number (`own`) is drawn once for each
/// generator, the second (`count`) counts the calls.
#[derive(Debug)]
pub(crate) struct Random {
    state: RandomState,
    own: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        // If the system refuses (a sandbox may do so), the secret key is enough.
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

    /// A random number below `end`, which is above 0. The bias is below 2^-32 for every `end` used
    /// here.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
