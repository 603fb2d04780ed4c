//! Access rights, least by default.

use std::fmt;

use vernic_mem::Access as Bits;

/// Rights to a memory region, a memory window, or what a queue pair lets its peer do (IBTA
/// 10.6.3.1).
///
/// The start is [`Access::NONE`]: a region that local work requests may read, and nobody else. Each
/// method adds one right; those that make no sense alone bring what they need (a peer may only
/// write where local work may write too).
///
/// ```
/// use vernic::Access;
/// let access = Access::NONE.remote_read().remote_write();
/// assert!(access.contains(Access::NONE.local_write()));
/// assert!(!access.contains(Access::NONE.remote_atomic()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(Bits);

impl Access {
    /// Local work requests may read: the source of a SEND or of a WRITE.
    pub const NONE: Self = Self(Bits::empty());

    /// Local work requests may write too: receives, results of READs and atomics.
    #[must_use]
    pub const fn local_write(self) -> Self {
        Self(self.0.union(Bits::LOCAL_WRITE))
    }
    /// Peers may READ.
    #[must_use]
    pub const fn remote_read(self) -> Self {
        Self(self.0.union(Bits::REMOTE_READ))
    }
    /// Peers may WRITE. Brings [`Access::local_write`].
    #[must_use]
    pub const fn remote_write(self) -> Self {
        Self(self.0.union(Bits::REMOTE_WRITE).union(Bits::LOCAL_WRITE))
    }
    /// Peers may run atomics. Brings [`Access::local_write`].
    #[must_use]
    pub const fn remote_atomic(self) -> Self {
        Self(self.0.union(Bits::REMOTE_ATOMIC).union(Bits::LOCAL_WRITE))
    }
    /// Memory windows may be bound to the region.
    #[must_use]
    pub const fn bind_windows(self) -> Self {
        Self(self.0.union(Bits::MW_BIND))
    }
    /// Peers may FLUSH for global visibility (IBTA A19).
    #[must_use]
    pub const fn flush_global(self) -> Self {
        Self(self.0.union(Bits::FLUSH_GLOBAL))
    }
    /// Peers may FLUSH for persistence (IBTA A19).
    #[must_use]
    pub const fn flush_persistent(self) -> Self {
        Self(self.0.union(Bits::FLUSH_PERSISTENT))
    }
    /// Peers and work requests count addresses from 0 instead of from the region's virtual address.
    #[must_use]
    pub const fn zero_based(self) -> Self {
        Self(self.0.union(Bits::ZERO_BASED))
    }

    /// Whether all rights of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0.contains(other.0)
    }
    /// The bits of `ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0.bits()
    }

    pub(crate) const fn mem(self) -> Bits {
        self.0
    }
    /// These rights, zero-based if `other` is.
    pub(crate) const fn based_as(self, other: Self) -> Self {
        let base = other.0.intersection(Bits::ZERO_BASED);
        Self(self.0.difference(Bits::ZERO_BASED).union(base))
    }
    /// The rights that concern peers: what a window takes and a queue pair grants.
    pub(crate) const fn remote_part(self) -> Bits {
        self.0.intersection(Bits::REMOTE.union(Bits::ZERO_BASED))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("NONE");
        }
        for (place, (name, _)) in self.0.iter_names().enumerate() {
            write!(f, "{}{name}", if place == 0 { "" } else { " | " })?;
        }
        Ok(())
    }
}
