//! Memory regions and windows (IBTA 10.6): the handles of entries in the key table.
//!
//! The key table, the checks and the copies are in `vernic-mem`. This module decides when a region
//! or window may be freed, and ends a region: it revokes the region's key, and then waits until
//! each thread that runs the lane has passed a point without accesses (the barrier). So no access
//! is in flight when the application gets its memory back.
//!
//! The drop of a region must end it in any case, even if windows are bound to it and other threads
//! use these windows, because the application may free the memory next. `Memory::force_deregister`
//! does that in one step.
//!
//! A region that is reregistered keeps its keys. An access sees either the old region or the new
//! one.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vernic_mem::{
    Access, Bind, BindError, MrHandle, MwHandle, MwType, RegisterError, Reregister, SharedPages,
    share_pages,
};
use vernic_wire::{Lkey, Qpn, Rkey};

use crate::device::opened::window_index;
use crate::error::{CreateError, FreeError};
use crate::progress::engine::Engine;
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::dm::DeviceMemory;
use crate::verbs::pd::Pd;

/// A memory region. Dropping the handle ends the region, even if windows are bound to it. These
/// windows are unbound first, stay allocated, and may be bound again. Windows that are bound to
/// other regions do not change.
#[derive(Debug)]
pub struct Mr {
    context: Arc<Context>,
    home: Mutex<Home>,
    lkey: Lkey,
    rkey: Rkey,
    // The memory and rights that were registered last. Written under the lock of `home`, and read
    // without the lock, each field by itself.
    addr: AtomicUsize,
    len: AtomicU64,
    iova: AtomicU64,
    access: AtomicU32,
}

/// The state that the control path needs to change or end a region.
#[derive(Debug)]
struct Home {
    pd: Arc<Pd>,
    /// The region's handle in `vernic-mem`; `None` if the region has ended.
    handle: Option<MrHandle>,
    /// The device memory that the region covers, if it covers device memory.
    dm: Option<Arc<DeviceMemory>>,
    /// The region's pages, if they were moved to a file that other processes can map.
    pages: Option<SharedPages>,
}

impl Home {
    /// Gives back what the region uses only while it is alive.
    fn end(&mut self) {
        self.handle = None;
        self.pages = None;
        if let Some(dm) = self.dm.take() {
            dm.release();
        }
    }
}

/// The changes that [`Mr::rereg`] makes; `None` leaves a value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrChange<'a> {
    /// The new protection domain, of the same device.
    pub pd: Option<&'a Arc<Pd>>,
    /// The new access rights.
    pub access: Option<Access>,
    /// The new memory: address and length in bytes, and the address by which work requests and
    /// peers name the first byte.
    pub range: Option<(*mut u8, u64, u64)>,
}

impl Pd {
    /// Registers memory (IBTA 11.2.8.2). From then on work requests access it by its L_Key and, if
    /// the rights allow it, peers access it by its R_Key, at addresses that begin at `iova`. The
    /// memory is not pinned, and its pages are not touched.
    ///
    /// # Errors
    /// [`CreateError::Memory`] if the range is null or wraps around, or if the rights contradict
    /// each other.
    ///
    /// # Safety
    /// The caller promises all of this until [`Mr::deregister`] has returned `Ok`, or the drop of
    /// the last reference to the region has returned:
    /// - `addr..addr + len` stays mapped and readable, and writable if `access` has `LOCAL_WRITE`.
    /// - Accesses to this memory by other code are atomic or volatile, or made in another language
    ///   or process, or do not happen at the same time as work requests and remote operations that
    ///   conflict with them. While such operations may run, the program uses no `&mut` to this
    ///   memory and, if the operations write, no `&`.
    /// - If the setting `share_memory` is on and the rights are remote, no thread or process writes
    ///   to this memory during this call, and no stack lies in it.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: *mut u8,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        // `Memory::register` needs the memory until its keys are revoked and each lane has then
        // passed a barrier. The caller promises the memory until `Mr::deregister` has returned `Ok`
        // or the drop of `Mr` has returned. Both revoke the keys and then run the barrier before
        // they return. A `deregister` that fails changes nothing, and the caller's promise
        // continues. No other code frees the handle. If this call fails, there is no key and
        // nothing to promise. In a child that is forked later, `deregister` and drop return at
        // once, because no lane runs there that could access the memory.
        let engine = self.context().engine();
        // SAFETY: the caller promises what `move_pages` requires.
        let pages = unsafe { move_pages(engine, addr, len, access) };
        // SAFETY: see above.
        let keys = unsafe { engine.memory().register(self.id(), addr, len, iova, access) };
        Ok(Mr::new(self, keys?, (addr as usize, len, iova), access, None, pages))
    }

    /// Registers all memory of the process, present and future, by its addresses (implicit
    /// on-demand paging). A request for memory that is not mapped or not writable fails with a
    /// protection error and does no harm. The kernel does the copies, each of which takes about 0.3
    /// us. Remote atomics are atomic with respect to each other, but not with respect to CPUs.
    /// Windows cannot be bound to the region.
    ///
    /// # Errors
    /// [`CreateError::Memory`]. It is [`RegisterError::NoAddressSpace`] if the kernel refuses the
    /// necessary system calls, which [`DeviceAttr::implicit_odp`] says beforehand.
    ///
    /// [`RegisterError::NoAddressSpace`]: vernic_mem::RegisterError::NoAddressSpace
    /// [`DeviceAttr::implicit_odp`]: crate::DeviceAttr::implicit_odp
    ///
    /// # Safety
    /// The promises of [`Pd::reg_mr`], for all memory that work requests and peers name. But that
    /// memory need not stay mapped, and need not be writable.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reg_address_space(
        self: &Arc<Self>,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        let access = access | Access::ON_DEMAND;
        // SAFETY: the caller promises what `Memory::register_address_space` requires. `Mr` ends
        // this region as it ends any other.
        let keys =
            unsafe { self.context().engine().memory().register_address_space(self.id(), access) };
        Ok(Mr::new(self, keys?, (0, u64::MAX, 0), access, None, None))
    }

    /// Registers part of a device memory. In work requests and for peers, the region's addresses
    /// begin at 0.
    ///
    /// # Errors
    /// [`CreateError`] if the range is not inside `dm`, `dm` is of another device, or the rights
    /// contradict each other.
    pub fn reg_dm_mr(
        self: &Arc<Self>,
        dm: &Arc<DeviceMemory>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        if !Arc::ptr_eq(dm.context(), self.context()) {
            return Err(CreateError::OtherDevice { what: "device memory" });
        }
        let addr = dm.place(offset, len)?;
        let access = access | Access::ZERO_BASED;
        // SAFETY: the range is inside the buffer of `dm`. The region keeps `dm` until the region
        // has ended and the lanes have passed a barrier. All other accesses to the buffer are racy
        // copies.
        #[allow(unsafe_code, reason = "the memory is the device's own")]
        let keys =
            unsafe { self.context().engine().memory().register(self.id(), addr, len, 0, access) };
        Ok(Mr::new(self, keys?, (addr as usize, len, 0), access, Some(dm), None))
    }

    /// Allocates a region that can be accessed at any address: it reads as zero, and what is
    /// written to it is discarded.
    ///
    /// # Errors
    /// [`CreateError::Memory`] if all keys are in use.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        let keys = self.context().engine().memory().alloc_null_mr(self.id())?;
        Ok(Mr::new(self, keys, (0, 0, 0), Access::LOCAL_WRITE, None, None))
    }
}

impl Mr {
    pub(crate) fn new(
        pd: &Arc<Pd>,
        keys: vernic_mem::Mr,
        (addr, len, iova): (usize, u64, u64),
        access: Access,
        dm: Option<&Arc<DeviceMemory>>,
        pages: Option<SharedPages>,
    ) -> Arc<Self> {
        if let Some(dm) = dm {
            dm.hold();
        }
        let dm = dm.cloned();
        Arc::new(Self {
            context: pd.context().clone(),
            home: Mutex::new(Home { pd: pd.clone(), handle: Some(keys.handle), dm, pages }),
            lkey: keys.lkey,
            rkey: keys.rkey,
            addr: AtomicUsize::new(addr),
            len: AtomicU64::new(len),
            iova: AtomicU64::new(iova),
            access: AtomicU32::new(access.bits()),
        })
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
    /// Returns the key for work requests of this process.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }
    /// Returns the key that peers use.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
    /// Returns the address of the region's first byte in this process.
    pub fn addr(&self) -> usize {
        self.addr.load(Ordering::Relaxed)
    }
    /// Returns the length of the region in bytes.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    /// Whether the length of the region is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the address by which work requests and peers name the region's first byte.
    pub fn iova(&self) -> u64 {
        self.iova.load(Ordering::Relaxed)
    }
    /// Returns the access rights of the region.
    pub fn access(&self) -> Access {
        Access::from_bits_retain(self.access.load(Ordering::Relaxed))
    }

    /// Changes the memory, the rights or the protection domain of the region. The keys stay the
    /// same (IBTA 11.2.8.7 allows both). An access that runs meanwhile sees the old region or the
    /// new one, never a mixture. When this returns, no access to the old memory is in flight.
    ///
    /// # Errors
    /// [`CreateError::Memory`] as for [`Pd::reg_mr`]; [`RegisterError::WindowsBound`] if windows
    /// are bound to the region; [`CreateError::OtherDevice`]. After an error, the region is
    /// unchanged.
    ///
    /// # Safety
    /// The promises of [`Pd::reg_mr`], for the memory and the rights that result.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn rereg(&self, change: MrChange<'_>) -> Result<(), CreateError> {
        let MrChange { pd, access, range } = change;
        self.context.alive()?;
        let mut home = lock(&self.home);
        let handle = home.handle.ok_or(RegisterError::UnknownHandle)?;
        if pd.is_some_and(|pd| !Arc::ptr_eq(pd.context(), &self.context)) {
            return Err(CreateError::OtherDevice { what: "memory region" });
        }
        if home.dm.is_some() && range.is_some() {
            return Err(RegisterError::NoMemory.into());
        }
        let engine = self.context.engine();
        let rights = access.unwrap_or(self.access());
        // SAFETY: the caller promises what `move_pages` requires.
        let pages = unsafe { range.and_then(|(at, len, _)| move_pages(engine, at, len, rights)) };
        let change = Reregister { pd: pd.map(|pd| pd.id()), access, range };
        // SAFETY: the caller promises what `Memory::reregister` requires. The lanes pass a barrier
        // below, before the old memory may go.
        unsafe { engine.memory().reregister(handle, change) }?;
        engine.barrier();
        if let Some((addr, len, iova)) = range {
            self.addr.store(addr.addr(), Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
            self.iova.store(iova, Ordering::Relaxed);
            home.pages = pages;
        }
        if let Some(access) = access {
            self.access.store(access.bits(), Ordering::Relaxed);
        }
        let old = pd.map(|pd| std::mem::replace(&mut home.pd, pd.clone()));
        drop(home);
        // Dropped without the lock, because this may be the last reference to the protection
        // domain.
        drop(old);
        Ok(())
    }

    /// Ends the region. When this returns, its keys are revoked and no access to its memory is in
    /// flight. A second call does nothing.
    ///
    /// # Errors
    /// [`FreeError`] if memory windows are bound to the region, which does not end then.
    pub fn deregister(&self) -> Result<(), FreeError> {
        let engine = self.context.engine();
        if engine.is_orphan() {
            return Ok(());
        }
        let mut home = lock(&self.home);
        let Some(live) = home.handle else { return Ok(()) };
        engine.memory().deregister(live)?;
        engine.barrier();
        home.end();
        Ok(())
    }

    /// Ends the region as [`deregister`](Self::deregister) does, but in any case: windows that are
    /// bound to it are unbound first, in the same step.
    pub fn end(&self) {
        let engine = self.context.engine();
        if engine.is_orphan() {
            return;
        }
        let mut home = lock(&self.home);
        let Some(live) = home.handle else { return };
        let windows = engine.memory().force_deregister(live);
        engine.barrier();
        home.end();
        if windows != 0 {
            tracing::warn!(lkey = %self.lkey, windows, "region ended under bound windows: unbound them");
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.end();
    }
}

/// Moves memory that is about to be registered to pages in a file, which other processes can map.
/// Returns `None` if the settings do not want that or the move is not possible.
///
/// # Safety
/// The promises of [`Pd::reg_mr`] with the setting `share_memory`.
#[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
pub(crate) unsafe fn move_pages(
    engine: &Engine,
    addr: *mut u8,
    len: u64,
    access: Access,
) -> Option<SharedPages> {
    if len == 0 || !engine.config().moves_memory(access) {
        return None;
    }
    // SAFETY: the caller promises what `share_pages` requires.
    unsafe { share_pages(addr.expose_provenance(), len) }
        .inspect_err(|why| {
            tracing::info!(?addr, len, %why, "registered memory is not moved: other processes reach it through the kernel");
        })
        .ok()?
}

/// A memory window. Dropping the handle frees the window.
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    mw_type: MwType,
    handle: MwHandle,
    /// The part that all keys of this window have in common, by which the engine finds the window.
    index: u32,
    rkey: AtomicU32,
}

impl Pd {
    /// Allocates a memory window, which is not bound yet (IBTA 11.2.8.9).
    ///
    /// # Errors
    /// [`CreateError::Memory`] if all keys are in use.
    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<Arc<Mw>, CreateError> {
        self.alive()?;
        Mw::new(self, mw_type)
    }
}

impl Mw {
    pub(crate) fn new(pd: &Arc<Pd>, mw_type: MwType) -> Result<Arc<Self>, CreateError> {
        let engine = pd.context().engine();
        let keys = engine.memory().alloc_mw(pd.id(), mw_type)?;
        let (handle, index) = (keys.handle, window_index(keys.rkey));
        lock(engine.windows()).insert(index, handle);
        let rkey = AtomicU32::new(keys.rkey.value());
        Ok(Arc::new(Self { pd: pd.clone(), mw_type, handle, index, rkey }))
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Returns the type of the window.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }
    /// Returns the key that the window was allocated with, or that the last call of [`Mw::bind`] or
    /// [`Mw::set_rkey`] has set.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.rkey.load(Ordering::Relaxed))
    }
    /// Returns the key that the application should use for the next bind of this window.
    pub fn next_rkey(&self) -> Rkey {
        self.pd.context().engine().memory().next_rkey(self.rkey())
    }
    /// Records the key of a bind that the application has posted as a work request.
    pub fn set_rkey(&self, rkey: Rkey) {
        self.rkey.store(rkey.value(), Ordering::Relaxed);
    }

    /// Binds the window at once, without a work request, and returns its new key. When this
    /// returns, no access with the old key is in flight.
    ///
    /// # Errors
    /// [`BindError`]. The window is unchanged then.
    pub fn bind(
        &self,
        qpn: Qpn,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Rkey, BindError> {
        let engine = self.pd.context().engine();
        if engine.is_orphan() {
            return Err(BindError::UnknownHandle);
        }
        let bind = Bind { qp_pd: self.pd.id(), qpn, lkey, addr, len, access, key: None };
        let was_bound = engine.memory().is_bound(self.handle);
        let rkey = engine.memory().bind_mw(self.handle, &bind)?;
        self.set_rkey(rkey);
        if was_bound {
            engine.barrier();
        }
        Ok(rkey)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let engine = self.pd.context().engine();
        if engine.is_orphan() {
            return;
        }
        // Only this drop frees the handle, so the call cannot fail. The window's key is revoked
        // before its entry in the map is removed.
        let _ = engine.memory().dealloc_mw(self.handle);
        // From here on a new window may have the same index, and may have replaced this window's
        // entry in the map.
        if let Entry::Occupied(place) = lock(engine.windows()).entry(self.index)
            && *place.get() == self.handle
        {
            place.remove();
        }
        // Waits until accesses in flight are over.
        engine.barrier();
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
