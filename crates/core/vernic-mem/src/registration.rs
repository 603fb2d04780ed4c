//! Verbs for memory regions: register, change, deregister.

use vernic_wire::{Lkey, Rkey};

use crate::control::{Control, RegionRecord};
use crate::racy::{Entry, Kind, Region, is_reachable};
use crate::{Access, DeregisterError, Memory, PdId, RegisterError};

/// Identifies a region on the control path. The handle of a region that was deregistered is
/// refused. It never names another region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MrHandle {
    slot: u32,
    serial: u64,
}

/// A registered region: its handle and its keys. Both keys have the same value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mr {
    /// Handle for the control path.
    pub handle: MrHandle,
    /// Key for local work requests.
    pub lkey: Lkey,
    /// Key for peers, if the region has remote rights.
    pub rkey: Rkey,
}

/// The properties that [`Memory::reregister`] changes. `None` keeps a property.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregister {
    /// The new protection domain.
    pub pd: Option<PdId>,
    /// The new rights.
    pub access: Option<Access>,
    /// The new memory: address, length in bytes, I/O virtual address of the first byte.
    pub range: Option<(*mut u8, u64, u64)>,
}

impl Memory {
    /// Longest region in bytes: the size of the user address space of x86-64.
    pub const MAX_REGION_BYTES: u64 = 1 << 47;

    /// Registers `len` bytes at `addr`. Work requests and peers know them by addresses from `iova`
    /// on (IBTA 10.6.4, 11.2.8.2). The cost does not depend on the length, because no page is
    /// touched. Length 0 is permitted; such a region serves accesses of length 0.
    ///
    /// # Safety
    /// The promises below hold from this call until two things have happened. First,
    /// [`Memory::deregister`] has returned `Ok`, or [`Memory::force_deregister`] has returned. Then
    /// every lane that was running at that time has passed a barrier (see the [crate head](crate)).
    /// - `addr..addr + len` stays mapped and readable, and writable if `access` holds
    ///   `LOCAL_WRITE`.
    /// - All other accesses to the range are atomic, volatile, in another language or process, or
    ///   do not overlap in time with work requests or remote operations that conflict with them.
    /// - No `&mut` to the range is used while such operations may run, and no `&` if they may
    ///   write.
    ///
    /// # Errors
    /// [`RegisterError`]; `iova` must be 0 with [`Access::ZERO_BASED`].
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn register(
        &self,
        pd: PdId,
        addr: *mut u8,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        check_range(addr, len, iova)?;
        check_access(access, iova)?;
        // SAFETY: the caller of `register` promises that the memory may be accessed. `check_range`
        // has found that the range does not wrap and is not null.
        let region = unsafe { Region::new(addr, len) };
        self.publish_region(pd, Kind::Region, iova, access, region)
    }

    /// Allocates a null region (`ibv_alloc_null_mr`): reads return zeros, and writes are discarded,
    /// at any address. It has no remote rights.
    ///
    /// # Errors
    /// [`RegisterError::Pd`], [`RegisterError::KeysExhausted`].
    pub fn alloc_null_mr(&self, pd: PdId) -> Result<Mr, RegisterError> {
        self.publish_region(pd, Kind::NullRegion, 0, Access::LOCAL_WRITE, Region::NULL)
    }

    /// Registers all memory of the process, present and future, by its virtual addresses. This is
    /// implicit on-demand paging (`ibv_reg_mr` of everything with `IBV_ACCESS_ON_DEMAND`). An
    /// access to memory that is not mapped, or not writable, fails with
    /// [`Check::Unmapped`](crate::Check::Unmapped).
    ///
    /// The kernel does each access, which takes some 0.3 us. Operations on 8-byte words are atomic
    /// with respect to such operations of this process only, not to CPUs. Windows cannot be bound
    /// to the region.
    ///
    /// # Safety
    /// As for [`Memory::register`], for all memory that work requests and peers name. But the
    /// memory may be unmapped, and may be read-only.
    ///
    /// # Errors
    /// [`RegisterError`]; [`NoAddressSpace`](RegisterError::NoAddressSpace) if the kernel refuses
    /// the system calls.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn register_address_space(
        &self,
        pd: PdId,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        check_access(access, 0)?;
        if !Self::can_register_address_space() {
            return Err(RegisterError::NoAddressSpace);
        }
        // SAFETY: the caller of `register_address_space` promises that no Rust reference conflicts.
        let everything = unsafe { Region::address_space() };
        self.publish_region(pd, Kind::Region, 0, access, everything)
    }

    /// Whether [`Memory::register_address_space`] works here. A few system calls find out.
    pub fn can_register_address_space() -> bool {
        is_reachable()
    }

    fn publish_region(
        &self,
        pd: PdId,
        kind: Kind,
        iova: u64,
        access: Access,
        region: Region,
    ) -> Result<Mr, RegisterError> {
        let mut control = self.control();
        control.pd(pd)?;
        let (slot, key) = self.take_key(&mut control)?;
        let entry = Entry { key, kind, pd: pd.0, qpn: 0, access, iova, region };
        let serial = control.next_serial();
        control.pd(pd)?.regions += 1;
        control.regions.insert(slot, RegionRecord { serial, windows: 0, entry });
        self.publish(slot, &entry);
        Ok(mr(slot, serial, key))
    }

    /// Changes the memory, the rights or the domain of a region. The keys stay the same (IBTA
    /// 11.2.8.7 permits either). An operation that runs at the same time uses the old or the new
    /// state.
    ///
    /// # Safety
    /// As for [`Memory::register`], for the region that results. The old memory must stay mapped
    /// until this call has returned and every lane has then passed a barrier.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing changed then.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reregister(
        &self,
        handle: MrHandle,
        change: Reregister,
    ) -> Result<Mr, RegisterError> {
        let mut control = self.control();
        let record = control.region(handle).ok_or(RegisterError::UnknownHandle)?;
        if record.windows != 0 {
            return Err(RegisterError::WindowsBound { windows: record.windows });
        }
        let mut entry = record.entry;
        let no_rights = entry.kind == Kind::NullRegion && change.access.is_some();
        if no_rights || entry.region.is_special() && change.range.is_some() {
            return Err(RegisterError::NoMemory);
        }
        let old_pd = PdId(entry.pd);
        if let Some((addr, len, iova)) = change.range {
            check_range(addr, len, iova)?;
            // SAFETY: the caller of `reregister` promises that the memory may be accessed.
            // `check_range` has found that the range does not wrap and is not null.
            entry.region = unsafe { Region::new(addr, len) };
            entry.iova = iova;
        }
        entry.access = change.access.unwrap_or(entry.access);
        check_access(entry.access, entry.iova)?;
        let pd = change.pd.unwrap_or(old_pd);
        control.pd(pd)?.regions += 1;
        control.pd(old_pd)?.regions -= 1;
        entry.pd = pd.0;
        if let Some(record) = control.region(handle) {
            record.entry = entry;
        }
        self.publish(handle.slot, &entry);
        drop(control);
        self.wait_for_revocations();
        Ok(mr(handle.slot, handle.serial, entry.key))
    }

    /// Ends a region. Its keys are invalid at once (IBTA 11.2.8.4). An access that passed its check
    /// earlier may still be copying. **Let all lanes pass a barrier before the memory is freed.**
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while windows are bound to the region.
    /// [`Memory::force_deregister`] unbinds them.
    pub fn deregister(&self, handle: MrHandle) -> Result<(), DeregisterError> {
        let mut control = self.control();
        let record = control.region(handle).ok_or(DeregisterError::UnknownHandle)?;
        if record.windows != 0 {
            return Err(DeregisterError::WindowsBound { windows: record.windows });
        }
        self.remove_region(&mut control, handle.slot);
        drop(control);
        self.wait_for_revocations();
        Ok(())
    }

    /// Ends a region even if windows are bound to it. Unbinds the windows and invalidates the keys
    /// as one step, so that no bind can come in between. It is meant for an owner that is about to
    /// free the memory and cannot handle a failure. The verb (`ibv_dereg_mr`) is
    /// [`Memory::deregister`]. As there, **let all lanes pass a barrier before the memory is
    /// freed.**
    ///
    /// The windows stay allocated, but their present keys give access to nothing. A type 1 window
    /// is in the state of one bound with length 0, a type 2 window in the state of an invalidated
    /// one. Both can be bound again.
    ///
    /// Returns the number of windows that it unbound. The call cannot fail: a region that is
    /// already gone has no valid key, so nothing is left to do. If windows are bound, the call
    /// visits all windows of the device.
    pub fn force_deregister(&self, handle: MrHandle) -> u32 {
        let mut control = self.control();
        let Some(record) = control.region(handle) else { return 0 };
        let windows = record.windows;
        if windows != 0 {
            self.unbind_all(&mut control, |window| window.region == Some(handle.slot));
        }
        self.remove_region(&mut control, handle.slot);
        drop(control);
        self.wait_for_revocations();
        windows
    }

    /// Ends the region in `slot`. The caller has checked that no window is bound to it.
    fn remove_region(&self, control: &mut Control, slot: u32) {
        let Some(record) = control.regions.remove(&slot) else { return };
        debug_assert_eq!(record.windows, 0, "a window would outlive its region");
        if let Ok(pd) = control.pd(PdId(record.entry.pd)) {
            pd.regions -= 1;
        }
        self.free_slot(control, slot, &record.entry);
    }
}

impl Control {
    fn region(&mut self, handle: MrHandle) -> Option<&mut RegionRecord> {
        self.regions.get_mut(&handle.slot).filter(|record| record.serial == handle.serial)
    }
}

impl Access {
    /// Converts the integer of the C API to rights. Drops unknown optional bits.
    ///
    /// # Errors
    /// [`RegisterError::UnknownAccess`] with the bits that are neither known nor optional.
    pub fn from_verbs(bits: u32) -> Result<Self, RegisterError> {
        let unknown = bits & !(Self::all().bits() | Self::OPTIONAL_BITS);
        if unknown != 0 {
            return Err(RegisterError::UnknownAccess { bits: unknown });
        }
        Ok(Self::from_bits_truncate(bits))
    }
}

const fn mr(slot: u32, serial: u64, key: u32) -> Mr {
    Mr { handle: MrHandle { slot, serial }, lkey: Lkey(key), rkey: Rkey(key) }
}

fn check_range(addr: *mut u8, len: u64, iova: u64) -> Result<(), RegisterError> {
    let max = Memory::MAX_REGION_BYTES.min(isize::MAX as u64);
    let addr = addr.addr() as u64;
    if len > max {
        return Err(RegisterError::TooLong { len, max });
    }
    if len > 0 && addr == 0 {
        return Err(RegisterError::NullAddress { len });
    }
    if addr.checked_add(len).is_none_or(|end| end > usize::MAX as u64) {
        return Err(RegisterError::WrapsAddress { addr, len });
    }
    // The last byte of the region may be the last byte of the 64-bit space.
    if len > 0 && iova.checked_add(len - 1).is_none() {
        return Err(RegisterError::WrapsIova { iova, len });
    }
    Ok(())
}

fn check_access(access: Access, iova: u64) -> Result<(), RegisterError> {
    let bits = access.bits() & !Access::all().bits();
    if bits != 0 {
        return Err(RegisterError::UnknownAccess { bits });
    }
    if !access.is_consistent() {
        return Err(RegisterError::NeedsLocalWrite { access });
    }
    if access.contains(Access::ZERO_BASED) && iova != 0 {
        return Err(RegisterError::NotZeroBased { iova });
    }
    Ok(())
}
