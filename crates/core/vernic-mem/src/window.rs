//! Memory windows: remote rights to a part of a region, which are given and taken away without
//! registering the memory again (IBTA 10.6.7).

use vernic_wire::{Lkey, Qpn, Rkey};

use crate::control::{Control, MwType, WindowRecord};
use crate::racy::{Entry, Kind, Region};
use crate::{Access, BindError, InvalidateError, Memory, PdId, RegisterError};

/// Identifies a window in calls of the control path. The handle of a freed window is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MwHandle {
    slot: u32,
    serial: u64,
}

/// An allocated window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mw {
    /// Handle for the control path.
    pub handle: MwHandle,
    /// The present key of the window. It gives access to nothing until the window is bound.
    pub rkey: Rkey,
}

/// Parameters of a bind: the part of a region that a window gives access to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Protection domain of the queue pair on which the bind was posted.
    pub qp_pd: PdId,
    /// Queue pair on which the bind was posted. A type 2 window can be used through it only.
    pub qpn: Qpn,
    /// Local key of the region; ignored if `len` is 0.
    pub lkey: Lkey,
    /// First address, in the addresses of the region.
    pub addr: u64,
    /// Length in bytes. Length 0 unbinds a type 1 window, and binds a type 2 window to no bytes.
    pub len: u64,
    /// Remote rights. With [`Access::ZERO_BASED`], addresses of the window count from 0.
    pub access: Access,
    /// Low byte of the new key. It may be the low byte of the present key: the consumer decides
    /// whether peers that hold the last key may use it again. `None` takes the key of
    /// [`Memory::next_rkey`].
    pub key: Option<u8>,
}

impl Memory {
    /// Allocates a window (IBTA 11.2.8.9).
    ///
    /// # Errors
    /// [`RegisterError::Pd`], [`RegisterError::KeysExhausted`].
    pub fn alloc_mw(&self, pd: PdId, mw_type: MwType) -> Result<Mw, RegisterError> {
        let mut control = self.control();
        control.pd(pd)?;
        let (slot, key) = self.take_key(&mut control)?;
        let serial = control.next_serial();
        let entry = unbound(key, pd);
        control.pd(pd)?.windows += 1;
        control.windows.insert(slot, WindowRecord { serial, mw_type, region: None, entry });
        self.publish(slot, &entry);
        Ok(Mw { handle: MwHandle { slot, serial }, rkey: Rkey(key) })
    }

    /// Frees a window, bound or not. Its key is invalid at once (IBTA 11.2.8.12).
    ///
    /// # Errors
    /// [`BindError::UnknownHandle`].
    pub fn dealloc_mw(&self, handle: MwHandle) -> Result<(), BindError> {
        let mut control = self.control();
        control.window(handle)?;
        control.unlink(handle.slot);
        let Some(record) = control.windows.remove(&handle.slot) else {
            return Err(BindError::UnknownHandle);
        };
        if let Ok(pd) = control.pd(PdId(record.entry.pd)) {
            pd.windows -= 1;
        }
        self.free_slot(&mut control, handle.slot, &record.entry);
        Ok(())
    }

    /// The next key of a window with key `rkey`, if the consumer does not choose one. The sequence
    /// passes all 256 low bytes before it repeats.
    pub fn next_rkey(&self, rkey: Rkey) -> Rkey {
        Rkey(self.permutations.next_key(rkey.value()))
    }

    /// Whether a window is bound, so that its key gives access to memory.
    pub fn is_bound(&self, handle: MwHandle) -> bool {
        self.control().window(handle).is_ok_and(WindowRecord::is_bound)
    }

    /// Binds a window and returns its new key. The old key is invalid (IBTA 10.6.7.2, 11.2.8.11).
    ///
    /// # Errors
    /// [`BindError`]; nothing changed then.
    pub fn bind_mw(&self, handle: MwHandle, bind: &Bind) -> Result<Rkey, BindError> {
        let mut control = self.control();
        let window = control.window(handle)?;
        let (mw_type, old) = (window.mw_type, window.entry);
        if mw_type == MwType::Type2 && window.is_bound() {
            return Err(BindError::AlreadyBound);
        }
        let key = match bind.key {
            None => self.permutations.next_key(old.key),
            Some(key) => (old.key & !0xFF) | u32::from(key),
        };
        let allowed = Access::REMOTE.union(Access::ZERO_BASED);
        if !allowed.contains(bind.access) {
            return Err(BindError::BadAccess { access: bind.access });
        }
        let pd = PdId(old.pd);
        if bind.qp_pd != pd {
            return Err(BindError::WrongPd { window: pd, region: pd, qp: bind.qp_pd });
        }
        let (slot, region) = if bind.len == 0 {
            (None, Region::EMPTY)
        } else {
            let slot = self.indexes.slot_of(bind.lkey.value());
            (slot, control.bindable(slot, pd, bind)?)
        };
        let kind = match mw_type {
            MwType::Type1 if slot.is_none() => Kind::Unbound,
            MwType::Type1 => Kind::Window1,
            MwType::Type2 => Kind::Window2,
        };
        let iova = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        let qpn = bind.qpn.value();
        let entry = Entry { key, kind, pd: pd.0, qpn, access: bind.access, iova, region };
        control.unlink(handle.slot);
        control.link(handle.slot, slot, entry);
        self.publish(handle.slot, &entry);
        Ok(Rkey(key))
    }

    /// Runs a LOCAL INVALIDATE of a type 2 window (IBTA 10.6.5, 11.4.1). The window can then be
    /// bound again.
    ///
    /// # Errors
    /// [`InvalidateError`]; a type 1 window or a region is refused.
    pub fn invalidate_local(&self, pd: PdId, rkey: Rkey) -> Result<(), InvalidateError> {
        self.invalidate(pd, None, rkey)
    }

    /// Runs the invalidation that a SEND WITH INVALIDATE to queue pair `qpn` asks for (IBTA 9.9.5,
    /// 10.6.5). Takes the control lock for some 100 ns.
    ///
    /// # Errors
    /// [`InvalidateError`]; a window that is bound to another queue pair is refused too.
    pub fn invalidate_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), InvalidateError> {
        self.invalidate(pd, Some(qpn), rkey)
    }

    fn invalidate(&self, pd: PdId, qpn: Option<Qpn>, rkey: Rkey) -> Result<(), InvalidateError> {
        let mut control = self.control();
        let slot = self.indexes.slot_of(rkey.value()).ok_or(InvalidateError::UnknownKey(rkey))?;
        if control.regions.get(&slot).is_some_and(|region| region.entry.key == rkey.value()) {
            return Err(InvalidateError::NotInvalidatable(rkey));
        }
        let window = control
            .windows
            .get(&slot)
            .filter(|window| window.entry.key == rkey.value())
            .ok_or(InvalidateError::UnknownKey(rkey))?;
        if window.mw_type == MwType::Type1 {
            return Err(InvalidateError::NotInvalidatable(rkey));
        }
        if !window.is_bound() {
            return Err(InvalidateError::UnknownKey(rkey));
        }
        if window.entry.pd != pd.0 {
            return Err(InvalidateError::WrongPd(rkey));
        }
        if qpn.is_some_and(|qpn| qpn.value() != window.entry.qpn) {
            return Err(InvalidateError::WrongQp(rkey));
        }
        self.unbind(&mut control, slot);
        Ok(())
    }

    /// Invalidates all type 2 windows that are bound to a queue pair. The caller does so when it
    /// destroys the queue pair, so that a later queue pair with the same number does not inherit
    /// the windows.
    pub fn unbind_qp_windows(&self, qpn: Qpn) {
        let mut control = self.control();
        self.unbind_all(&mut control, |window| {
            window.entry.kind == Kind::Window2 && window.entry.qpn == qpn.value()
        });
    }

    /// Unbinds all windows for which `is_meant` returns true.
    pub(crate) fn unbind_all(
        &self,
        control: &mut Control,
        is_meant: impl Fn(&WindowRecord) -> bool,
    ) {
        let windows = control.windows.iter().filter(|(_, window)| is_meant(window));
        let slots: Vec<u32> = windows.map(|(&slot, _)| slot).collect();
        for slot in slots {
            self.unbind(control, slot);
        }
    }

    /// Unbinds a window. The window keeps its present key, so no other window gets that key.
    fn unbind(&self, control: &mut Control, slot: u32) {
        control.unlink(slot);
        if let Some(window) = control.windows.get_mut(&slot) {
            window.entry = unbound(window.entry.key, PdId(window.entry.pd));
            self.publish(slot, &window.entry);
        }
    }
}

impl Control {
    fn window(&self, handle: MwHandle) -> Result<&WindowRecord, BindError> {
        self.windows
            .get(&handle.slot)
            .filter(|window| window.serial == handle.serial)
            .ok_or(BindError::UnknownHandle)
    }

    /// The part of the region in `slot` that a bind asks for, after its checks.
    fn bindable(&self, slot: Option<u32>, pd: PdId, bind: &Bind) -> Result<Region, BindError> {
        let entry = slot
            .and_then(|slot| self.regions.get(&slot))
            .map(|region| region.entry)
            .filter(|entry| entry.key == bind.lkey.value())
            .ok_or(BindError::UnknownRegion { lkey: bind.lkey.value() })?;
        if entry.pd != pd.0 {
            let region = PdId(entry.pd);
            return Err(BindError::WrongPd { window: pd, region, qp: bind.qp_pd });
        }
        if !entry.access.contains(Access::MW_BIND) {
            return Err(BindError::NoBindRight);
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC));
        if writes && !entry.access.contains(Access::LOCAL_WRITE) {
            return Err(BindError::NeedsLocalWrite);
        }
        entry
            .region
            .part(bind.addr.wrapping_sub(entry.iova), bind.len)
            .ok_or(BindError::Bounds { addr: bind.addr, len: bind.len })
    }

    /// Records the window's new entry, and that it is bound to the region.
    fn link(&mut self, window: u32, region: Option<u32>, entry: Entry) {
        if let Some(record) = self.windows.get_mut(&window) {
            record.region = region;
            record.entry = entry;
        }
        if let Some(record) = region.and_then(|slot| self.regions.get_mut(&slot)) {
            record.windows += 1;
        }
    }

    /// Records that the window is bound to no region.
    fn unlink(&mut self, window: u32) {
        let region = self.windows.get_mut(&window).and_then(|record| record.region.take());
        if let Some(record) = region.and_then(|slot| self.regions.get_mut(&slot)) {
            record.windows -= 1;
        }
    }
}

const fn unbound(key: u32, pd: PdId) -> Entry {
    Entry {
        key,
        kind: Kind::Unbound,
        pd: pd.0,
        qpn: 0,
        access: Access::empty(),
        iova: 0,
        region: Region::EMPTY,
    }
}
