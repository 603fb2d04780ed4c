//! Memory regions and windows (IBTA 10.6): handles on the entries of the key table.
//!
//! The table, the checks and the copies are in `vernic-mem`; here is only who may free what, and
//! the barrier that ends a region: after its key is dead, every lane is waited for, so that no
//! access is in flight when the application gets its memory back.
//!
//! A region that is dropped has to end, whatever is bound to it and whatever other threads do with
//! its windows: the memory behind it goes next. `Memory::retire` does that in one step and needs
//! nothing that is kept here.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use vernic_mem::{Access, Bind, BindError, MrHandle, MwHandle, MwType};
use vernic_wire::{Lkey, Qpn, Rkey};

use crate::error::{CreateError, FreeError};
use crate::events::lock;
use crate::pd::Pd;

/// A memory region. Ends when dropped, also under bound windows: these are unbound first, stay
/// allocated, and may be bound again. Windows over other regions stay as they are.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    handle: Mutex<Option<MrHandle>>,
    lkey: Lkey,
    rkey: Rkey,
    addr: usize,
    len: u64,
    iova: u64,
    access: Access,
}

impl Mr {
    pub(crate) fn new(
        pd: &Arc<Pd>,
        keys: vernic_mem::Mr,
        addr: usize,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Arc<Self> {
        Arc::new(Self {
            pd: pd.clone(),
            handle: Mutex::new(Some(keys.handle)),
            lkey: keys.lkey,
            rkey: keys.rkey,
            addr,
            len,
            iova,
            access,
        })
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Key for local work requests.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }
    /// Key for peers.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
    /// Address in this process of its first byte.
    pub fn addr(&self) -> usize {
        self.addr
    }
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The address by which work requests and peers know its first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }
    /// Its rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Ends the region: its keys are dead, and no access to its memory is in flight, when this
    /// returns. A second call does nothing.
    ///
    /// # Errors
    /// [`FreeError`] while memory windows are bound to it; it lives on then.
    pub fn deregister(&self) -> Result<(), FreeError> {
        let mut handle = lock(&self.handle);
        let Some(live) = *handle else { return Ok(()) };
        let engine = self.pd.context().engine();
        engine.memory.deregister(live)?;
        *handle = None;
        engine.barrier();
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(live) = handle.take() else { return };
        let engine = self.pd.context().engine();
        let windows = engine.memory.retire(live);
        engine.barrier();
        if windows != 0 {
            tracing::warn!(lkey = %self.lkey, windows, "region dropped under bound windows: unbound them");
        }
    }
}

/// A memory window. Freed when dropped.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    mw_type: MwType,
    handle: MwHandle,
    /// Of all its keys: its place in the engine's map.
    index: u32,
    rkey: Mutex<Rkey>,
}

impl Mw {
    pub(crate) fn new(pd: &Arc<Pd>, mw_type: MwType) -> Result<Arc<Self>, CreateError> {
        let engine = pd.context().engine();
        let keys = engine.memory.alloc_mw(pd.id(), mw_type)?;
        let (handle, index) = (keys.handle, window_index(keys.rkey));
        lock(&engine.windows).insert(index, (pd.id(), handle));
        let rkey = Mutex::new(keys.rkey);
        Ok(Arc::new(Self { pd: pd.clone(), mw_type, handle, index, rkey }))
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }
    /// Its key as allocated or as last bound by [`Mw::bind`]. A bind by work request takes the
    /// application's choice of key, which the application knows.
    pub fn rkey(&self) -> Rkey {
        *lock(&self.rkey)
    }
    /// The key that its next bind should ask for.
    pub fn next_rkey(&self) -> Rkey {
        self.pd.context().engine().memory.rkey_after(self.rkey())
    }
    /// Notes that a bind with this key was posted.
    pub fn set_rkey(&self, rkey: Rkey) {
        *lock(&self.rkey) = rkey;
    }

    /// Binds the window at once, outside any send queue, and returns its new key.
    ///
    /// # Errors
    /// [`BindError`]; nothing changed then.
    pub fn bind(
        &self,
        qpn: Qpn,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Rkey, BindError> {
        let bind = Bind { qp_pd: self.pd.id(), qpn, lkey, addr, len, access, key: None };
        let rkey = self.pd.context().engine().memory.bind_mw(self.handle, &bind)?;
        self.set_rkey(rkey);
        Ok(rkey)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let engine = self.pd.context().engine();
        // Nobody else frees this handle, so it is known. The key is dead before the map forgets it.
        let _ = engine.memory.dealloc_mw(self.handle);
        // From here on a new window may have our index, and have put itself in our place.
        if let Entry::Occupied(place) = lock(&engine.windows).entry(self.index)
            && place.get().1 == self.handle
        {
            place.remove();
        }
        // Ends accesses in flight.
        engine.barrier();
    }
}

/// The part of a window's key that its binds do not change.
pub(crate) fn window_index(rkey: Rkey) -> u32 {
    rkey.value() >> 8
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
