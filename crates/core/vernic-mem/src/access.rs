//! Access rights: what a region or a window permits, and what an operation needs.

bitflags::bitflags! {
    /// Access rights of a memory region or window. The bits are those of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// Local work requests may write: receive buffers, results of READs and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 instead of from the virtual address.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging. All memory is paged on demand here, so this changes nothing.
        const ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages: a hint, unused.
        const HUGETLB = 1 << 7;
        /// Peers may FLUSH for global visibility (IBTA A19).
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH for persistence (IBTA A19).
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order: a permission, unused.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// All rights that peers can use.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);

    /// Bits that a device may ignore if it does not know them (bits 20 to 29 of
    /// `ibv_access_flags`).
    pub const OPTIONAL_BITS: u32 = 0x3FF0_0000;

    /// Whether a region may have this combination of rights. Remote write and remote atomic rights
    /// need the local write right (IBTA 10.6.3.1, 11.2.8.2).
    pub fn is_consistent(self) -> bool {
        !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
            || self.contains(Self::LOCAL_WRITE)
    }
}

/// The operation of a request that accesses memory of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// CMP_SWAP or FETCH_ADD: 8 bytes, 8-byte aligned.
    Atomic,
    /// ATOMIC WRITE: 8 bytes, 8-byte aligned; needs `REMOTE_WRITE` (IBTA A19).
    AtomicWrite,
    /// FLUSH for global visibility.
    FlushGlobal,
    /// FLUSH for persistence.
    FlushPersistent,
}

impl RemoteAccess {
    /// The rights that the operation needs.
    pub const fn needs(self) -> Access {
        match self {
            Self::Read => Access::REMOTE_READ,
            Self::Write | Self::AtomicWrite => Access::REMOTE_WRITE,
            Self::Atomic => Access::REMOTE_ATOMIC,
            Self::FlushGlobal => Access::FLUSH_GLOBAL,
            Self::FlushPersistent => Access::FLUSH_PERSISTENT,
        }
    }

    /// Whether the operation is on one 8-byte word, so that its address must be a multiple of 8.
    pub const fn is_word(self) -> bool {
        matches!(self, Self::Atomic | Self::AtomicWrite)
    }
}
