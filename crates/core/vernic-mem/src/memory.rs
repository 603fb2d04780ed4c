//! The key table of a device, and its protection domains. Changes may come from any thread and take
//! one lock.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::control::{Control, PdUse};
use crate::index::IndexTable;
use crate::keys::Permutations;
use crate::racy::{Entry, Kind, Region};
use crate::revocation::RevocationWords;
use crate::table::{MAX_SLOTS, Table};
use crate::{Access, PdError, PdId, RegisterError};

/// The registered memory of one device: see the [crate head](crate).
#[derive(Debug)]
pub struct Memory {
    pub(crate) permutations: Permutations,
    pub(crate) indexes: IndexTable,
    pub(crate) table: Table,
    /// Revocation words, created when the first access is granted to another process.
    pub(crate) revocations: OnceLock<RevocationWords>,
    /// The control state. Boxed, so that its lock does not share a cache line with what the data
    /// path reads.
    control: Box<Mutex<Control>>,
}

const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Memory>();
};

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Highest number of regions and windows together: 2^24 indexes, less those that the slot
    /// table's shape leaves unused.
    pub const MAX_KEYS: u32 = MAX_SLOTS - 1;

    /// Creates a key table without regions, with its own random secrets.
    pub fn new() -> Self {
        let control = Control::new();
        Self {
            permutations: control.keys.permutations().clone(),
            indexes: IndexTable::new(),
            table: Table::new(),
            revocations: OnceLock::new(),
            control: Box::new(Mutex::new(control)),
        }
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        // A poisoned lock is safe to use: no code panics between two changes that belong together.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of protection domains and number of regions.
    pub fn population(&self) -> (usize, usize) {
        let control = self.control();
        (control.pds.len(), control.regions.len())
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> PdId {
        let mut control = self.control();
        // At most one round per existing domain.
        loop {
            control.last_pd = control.last_pd.wrapping_add(1).max(1);
            let pd = PdId(control.last_pd);
            if let std::collections::hash_map::Entry::Vacant(place) = control.pds.entry(pd) {
                place.insert(PdUse::default());
                return pd;
            }
        }
    }

    /// Frees a protection domain (IBTA 11.2.1.7).
    ///
    /// # Errors
    /// [`PdError::Busy`] while regions, windows or other objects use it.
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), PdError> {
        let mut control = self.control();
        let PdUse { regions, windows, holders } = *control.pd(pd)?;
        if regions != 0 || windows != 0 || holders != 0 {
            return Err(PdError::Busy { pd, regions, windows, holders });
        }
        control.pds.remove(&pd);
        Ok(())
    }

    /// Counts one more object in the domain that this crate does not know: a queue pair, a shared
    /// receive queue, an address handle.
    ///
    /// # Errors
    /// [`PdError::Unknown`].
    pub fn hold_pd(&self, pd: PdId) -> Result<(), PdError> {
        self.control().pd(pd)?.holders += 1;
        Ok(())
    }

    /// Undoes one [`Memory::hold_pd`]. Does nothing if there was none.
    pub fn release_pd(&self, pd: PdId) {
        if let Ok(pd) = self.control().pd(pd) {
            pd.holders = pd.holders.saturating_sub(1);
        }
    }

    /// Takes a free slot and its next key. Grows the table if the slot does not exist in it.
    pub(crate) fn take_key(&self, control: &mut Control) -> Result<(u32, u32), RegisterError> {
        let exhausted = RegisterError::KeysExhausted { max: Self::MAX_KEYS };
        let slot = control.keys.take().ok_or(exhausted)?;
        let capacity = control.keys.capacity();
        self.table.grow(capacity);
        self.indexes.grow(capacity, |slot| self.permutations.index_of(slot));
        let last = self.table.get(slot).and_then(crate::racy::Slot::snapshot).map_or(0, |e| e.key);
        Ok((slot, control.keys.key_for(slot, last)))
    }

    /// Stores `entry` for the data path, and revokes the grants of its key, which were made for the
    /// previous entry. The caller holds the control lock. If the previous entry was valid, the
    /// caller waits for the revocations after it has released the lock.
    pub(crate) fn publish(&self, slot: u32, entry: &Entry) {
        if let Some(slot) = self.table.get(slot) {
            slot.publish(entry);
        }
        if let Some(words) = self.revocations.get() {
            words.revoke_key(entry.key >> 8);
        }
    }

    /// Invalidates the key of a slot and frees the slot.
    pub(crate) fn free_slot(&self, control: &mut Control, slot: u32, entry: &Entry) {
        self.publish(
            slot,
            &Entry { kind: Kind::Free, access: Access::empty(), region: Region::EMPTY, ..*entry },
        );
        control.keys.give_back(slot);
    }
}
