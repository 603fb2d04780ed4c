//! Protection domains.

use std::fmt;

/// Number of a protection domain of one device (IBTA 10.2.3). A number is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub(crate) u32);

impl PdId {
    /// The number of no domain. Nothing can be created in it.
    pub const NONE: Self = Self(0);

    /// The number, 1 or more.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
