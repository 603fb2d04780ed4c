//! Keys of connections.

/// The key of a connection. A key is never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key(u64);

impl Key {
    const INDEX_BITS: u32 = 16;

    /// Makes the key of a place in the list of connections. The first generation of a place is 1,
    /// so that no key is as small as those of the server itself.
    pub(crate) const fn new(index: usize, generation: u64) -> Self {
        Self(generation << Self::INDEX_BITS | index as u64)
    }
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
    pub(crate) const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }
    pub(crate) const fn generation(self) -> u64 {
        self.0 >> Self::INDEX_BITS
    }
}
