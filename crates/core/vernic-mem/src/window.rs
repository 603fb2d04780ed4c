//! Memory windows: remote rights over part of a region, granted and revoked without registering
//! (IBTA 10.6.7).

use vernic_wire::{Lkey, Qpn, Rkey};

use crate::memory::Control;
use crate::racy::{Entry, Kind, Region};
use crate::{Access, BindError, InvalidateError, Memory, PdId, RegisterError};

/// The kind of a window (IBTA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MwType {
    /// Bound by a verb, reachable through any queue pair of its domain.
    Type1,
    /// Bound by a work request, with a key byte that the consumer chooses; reachable through one
    /// queue pair of its domain (2B); can be invalidated.
    Type2,
}

/// Names a window on the control path. A handle of a window that is gone is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MwHandle {
    slot: u32,
    serial: u64,
}

/// An allocated window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mw {
    /// For the control path.
    pub handle: MwHandle,
    /// Its present key; opens nothing until the window is bound.
    pub rkey: Rkey,
}

/// What to bind a window to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Protection domain of the queue pair on which the bind was posted.
    pub qp_pd: PdId,
    /// That queue pair: the only one through which a type 2 window can be used.
    pub qpn: Qpn,
    /// The region; not looked at if `len` is 0.
    pub lkey: Lkey,
    /// First address, as the region counts them.
    pub addr: u64,
    /// Bytes. 0 unbinds a type 1 window, and binds a type 2 window to nothing.
    pub len: u64,
    /// Remote rights, and [`Access::ZERO_BASED`] to count the window's addresses from 0.
    pub access: Access,
    /// Low byte of the new key. The present one is allowed: whether holders of the last key may use
    /// it again is the consumer's choice. `None`: as [`Memory::rkey_after`] says.
    pub key: Option<u8>,
}

#[derive(Debug)]
pub(crate) struct WindowRecord {
    serial: u64,
    mw_type: MwType,
    /// Slot of the region to which it is bound.
    pub(crate) region: Option<u32>,
    /// What the slot shows.
    entry: Entry,
}

impl WindowRecord {
    const fn is_bound(&self) -> bool {
        matches!(self.entry.kind, Kind::Window1 | Kind::Window2)
    }
}

impl Memory {
    /// Makes a window (IBTA 11.2.8.9).
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

    /// Frees a window, bound or not; its key dies at once (IBTA 11.2.8.12).
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

    /// The key that a bind of a window with key `rkey` gives if the consumer does not choose:
    /// passes all 256 values before it repeats.
    pub fn rkey_after(&self, rkey: Rkey) -> Rkey {
        Rkey(self.permutations.next_key(rkey.value()))
    }

    /// Whether a window is bound, so that its key opens something.
    pub fn is_bound(&self, handle: MwHandle) -> bool {
        self.control().window(handle).is_ok_and(WindowRecord::is_bound)
    }

    /// Binds a window and returns its new key; the old one is dead (IBTA 10.6.7.2, 11.2.8.11).
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

    /// LOCAL INVALIDATE of a type 2 window by its owner (IBTA 10.6.5, 11.4.1): the window can be
    /// bound again.
    ///
    /// # Errors
    /// [`InvalidateError`]; a type 1 window or a region is refused.
    pub fn invalidate_local(&self, pd: PdId, rkey: Rkey) -> Result<(), InvalidateError> {
        self.invalidate(pd, None, rkey)
    }

    /// SEND WITH INVALIDATE from the peer of queue pair `qpn` (IBTA 9.9.5, 10.6.5). Takes the
    /// control lock for some 100 ns.
    ///
    /// # Errors
    /// [`InvalidateError`]; a window of another queue pair is refused too.
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

    /// Invalidates all type 2 windows bound to a queue pair: to be called when it is destroyed, so
    /// that a later one with the same number does not inherit them.
    pub fn release_qp(&self, qpn: Qpn) {
        let mut control = self.control();
        self.unbind_all(&mut control, |window| {
            window.entry.kind == Kind::Window2 && window.entry.qpn == qpn.value()
        });
    }

    /// Unbinds the windows for which `is_meant` holds.
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

    /// Closes a window under its present key, which stays its own: nobody else gets it.
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

    /// The part of the region in `slot` that `bind` asks for.
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

    /// Notes that the window is bound to the region.
    fn link(&mut self, window: u32, region: Option<u32>, entry: Entry) {
        if let Some(record) = self.windows.get_mut(&window) {
            record.region = region;
            record.entry = entry;
        }
        if let Some(record) = region.and_then(|slot| self.regions.get_mut(&slot)) {
            record.windows += 1;
        }
    }

    /// Notes that the window is bound to no region.
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
