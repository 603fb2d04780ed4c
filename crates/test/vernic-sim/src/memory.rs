//! The oracle's memory of one node: bytes, a model of what they must be, and the table of keys.
//!
//! ```text
//!   mem, model:  | guard | area of side 0 | guard | area | guard | ... | atomic cells | guard |
//! ```
//! `mem` is what the host writes on behalf of the protocol; `model` is what the oracle works out
//! from the messages alone. They are compared when a message is done and, guards included, at the
//! end. Keys name ranges with rights, a protection domain and, for windows, a queue pair; a revoked
//! key stays in the table as stale and is never valid again.
//!
//! Called by the host and by the applications of the simulation; calls nothing.

use vernic_proto::{AccessCheck, AccessFault, RemoteAccess};
use vernic_wire::{Qpn, Rkey};

/// Virtual address of the first byte of every node's memory; not 0, so that confusion of addresses
/// and offsets is noticed.
pub(crate) const VA_BASE: u64 = 0x0000_7A00_0000_0000;

/// Bytes between areas that nobody may touch.
pub(crate) const GUARD: usize = 64;

/// Access rights, with the values of `ibv_access_flags`.
pub mod access {
    /// The region may be written for its owner.
    pub const LOCAL_WRITE: u32 = 1;
    /// RDMA WRITE.
    pub const REMOTE_WRITE: u32 = 2;
    /// RDMA READ.
    pub const REMOTE_READ: u32 = 4;
    /// Atomics.
    pub const REMOTE_ATOMIC: u32 = 8;
    /// Windows may be bound.
    pub const MW_BIND: u32 = 16;
    /// FLUSH for global visibility.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// FLUSH for persistence.
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// All of the above.
    pub const ALL: u32 = 31 | FLUSH_GLOBAL | FLUSH_PERSISTENT;
}

/// What a key names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
    /// A type 2 window bound to this queue pair, else a region.
    pub(crate) window_of: Option<Qpn>,
    pub(crate) valid: bool,
}

/// One node's memory and keys.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) mem: Vec<u8>,
    pub(crate) model: Vec<u8>,
    grants: Vec<Grant>,
    salt: u32,
}

/// Who asks: the queue pair and its protection domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
}

impl Memory {
    pub(crate) fn new(salt: u32) -> Self {
        let mut memory = Self { salt, ..Self::default() };
        memory.guard();
        memory
    }

    fn guard(&mut self) {
        let len = self.mem.len() + GUARD;
        self.mem.resize(len, 0xA5);
        self.model.resize(len, 0xA5);
    }

    /// Appends an area of `len` zero bytes with a guard behind, and returns its address (a multiple
    /// of 64).
    pub(crate) fn area(&mut self, len: usize) -> u64 {
        let start = self.mem.len();
        let end = start + len.next_multiple_of(GUARD);
        self.mem.resize(end, 0);
        self.model.resize(end, 0);
        self.guard();
        VA_BASE + start as u64
    }

    /// Names a range. The key's index is in its high bits, as with real devices.
    pub(crate) fn grant(&mut self, pd: u32, start: u64, len: u64, access: u32) -> Rkey {
        let index = self.grants.len() as u32;
        let key = (index + 1) << 8 | (self.salt.wrapping_add(index * 37) & 0xFF);
        self.grants.push(Grant { key, pd, start, len, access, window_of: None, valid: true });
        Rkey(key)
    }

    fn find(&self, key: u32) -> Option<&Grant> {
        let index = (key >> 8).checked_sub(1)? as usize;
        self.grants.get(index)
    }

    /// A window's bind: the grant behind `old` gets a new key, range and rights.
    pub(crate) fn bind(&mut self, old: Rkey, new: Rkey, to: Grant) -> bool {
        let Some(index) = (old.value() >> 8).checked_sub(1) else { return false };
        match self.grants.get_mut(index as usize) {
            Some(grant) if new.value() >> 8 == old.value() >> 8 => {
                *grant = Grant { key: new.value(), ..to };
                true
            }
            _ => false,
        }
    }

    /// Ends a key. False if it was not valid.
    pub(crate) fn revoke(&mut self, key: Rkey) -> bool {
        let Some(index) = (key.value() >> 8).checked_sub(1) else { return false };
        match self.grants.get_mut(index as usize) {
            Some(grant) if grant.key == key.value() && grant.valid => {
                grant.valid = false;
                true
            }
            _ => false,
        }
    }

    /// Ends whatever key a window has now.
    pub(crate) fn retire(&mut self, window: Rkey) {
        if let Some(grant) = self.grants.get_mut((window.value() >> 8) as usize - 1) {
            grant.valid = false;
        }
    }

    /// Whether a valid key belongs to this protection domain.
    pub(crate) fn belongs(&self, key: Rkey, pd: u32) -> bool {
        self.find(key.value()).is_some_and(|grant| grant.key == key.value() && grant.pd == pd)
    }

    /// Makes a revoked region valid again (a re-registration that happens to get the same key).
    pub(crate) fn restore(&mut self, key: Rkey) {
        if let Some(grant) = self.grants.get_mut((key.value() >> 8) as usize - 1) {
            grant.valid = grant.key == key.value();
        }
    }

    /// Whether the key is valid now.
    pub(crate) fn is_valid(&self, key: Rkey) -> bool {
        self.find(key.value()).is_some_and(|grant| grant.key == key.value() && grant.valid)
    }

    /// The check of a remote access.
    pub(crate) fn check(
        &self,
        asker: Asker,
        key: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let fault = |check| AccessFault { check, key: key.value(), addr, len };
        let right = match need {
            RemoteAccess::Read => access::REMOTE_READ,
            RemoteAccess::Write => access::REMOTE_WRITE,
            RemoteAccess::Atomic => access::REMOTE_ATOMIC,
            RemoteAccess::FlushGlobal => access::FLUSH_GLOBAL,
            RemoteAccess::FlushPersistent => access::FLUSH_PERSISTENT,
        };
        let grant = self.find(key.value()).ok_or(fault(AccessCheck::KeyUnknown))?;
        let failed = if grant.key != key.value() || !grant.valid {
            AccessCheck::KeyStale
        } else if grant.pd != asker.pd {
            AccessCheck::WrongPd
        } else if grant.window_of.is_some_and(|qpn| qpn != asker.qpn) {
            AccessCheck::WrongQp
        } else if grant.access & right == 0 {
            AccessCheck::Rights
        } else if addr < grant.start
            || addr.checked_add(len).is_none_or(|end| end > grant.start + grant.len)
        {
            AccessCheck::Bounds
        } else {
            return Ok(());
        };
        Err(fault(failed))
    }

    /// Index into `mem` of an address that a grant covers.
    pub(crate) fn index(addr: u64) -> usize {
        (addr - VA_BASE) as usize
    }

    pub(crate) fn load_u64(&self, addr: u64) -> u64 {
        let at = Self::index(addr);
        u64::from_ne_bytes(self.mem[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Stores a value in memory and in the model.
    pub(crate) fn store_u64(&mut self, addr: u64, value: u64) {
        let at = Self::index(addr);
        self.mem[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self.model[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// The first address where memory is not what the messages say it must be.
    pub(crate) fn difference(&self) -> Option<u64> {
        if self.mem == self.model {
            return None;
        }
        self.mem.iter().zip(&self.model).position(|(a, b)| a != b).map(|at| VA_BASE + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker() -> Asker {
        Asker { qpn: Qpn::new(5), pd: 1 }
    }

    #[test]
    fn a_grant_covers_its_range_and_not_one_byte_more() {
        let mut memory = Memory::new(9);
        let at = memory.area(100);
        let key = memory.grant(1, at, 100, access::REMOTE_WRITE);
        let check = |addr, len| memory.check(asker(), key, addr, len, RemoteAccess::Write);
        assert!(check(at, 100).is_ok());
        assert_eq!(check(at, 101).unwrap_err().check, AccessCheck::Bounds);
        assert_eq!(check(at - 1, 1).unwrap_err().check, AccessCheck::Bounds);
        assert_eq!(check(u64::MAX, 2).unwrap_err().check, AccessCheck::Bounds);
    }

    #[test]
    fn wrong_domain_right_or_generation_is_refused() {
        let mut memory = Memory::new(9);
        let at = memory.area(64);
        let key = memory.grant(1, at, 64, access::REMOTE_WRITE);
        let refused = |memory: &Memory, asker, key, need| {
            memory.check(asker, key, at, 8, need).unwrap_err().check
        };
        let other = Asker { pd: 2, ..asker() };
        assert_eq!(refused(&memory, other, key, RemoteAccess::Write), AccessCheck::WrongPd);
        assert_eq!(refused(&memory, asker(), key, RemoteAccess::Read), AccessCheck::Rights);
        let old = Rkey(key.value() ^ 1);
        assert_eq!(refused(&memory, asker(), old, RemoteAccess::Write), AccessCheck::KeyStale);
        let none = Rkey(0x00FF_0000);
        assert_eq!(refused(&memory, asker(), none, RemoteAccess::Write), AccessCheck::KeyUnknown);
        assert!(memory.revoke(key) && !memory.revoke(key));
        assert_eq!(refused(&memory, asker(), key, RemoteAccess::Write), AccessCheck::KeyStale);
    }
}
