//! Protection domains (IBTA 10.2.3): what may be used together.

use std::sync::Arc;

use vernic_mem::{Access, AccessError, Check, MwType, PdError, PdId, Sge};
use vernic_proto::AddressVector;

use crate::error::CreateError;
use crate::verbs::ah::Ah;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::dm::DeviceMemory;
use crate::verbs::handle::Qp;
use crate::verbs::mr::{Mr, Mw, move_pages};
use crate::verbs::qp_init::QpInit;
use crate::verbs::srq::{Srq, SrqInit};
use crate::verbs::xrc::Xrcd;

/// A protection domain. Freed when the last reference to it, and to everything in it, is gone.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        let orphan = context.is_orphan();
        let id = if orphan { PdId::NONE } else { context.engine().memory.alloc_pd() };
        Arc::new(Self { context: context.clone(), id })
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its number.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Registers memory: from now on work requests reach it by its lkey and, with remote rights,
    /// peers by its rkey, as addresses from `iova` on (IBTA 11.2.8.2). The memory is not pinned
    /// and no page of it is touched.
    ///
    /// # Errors
    /// [`CreateError::Memory`]: null or wrapping range, rights that contradict each other.
    ///
    /// # Safety
    /// Until [`Mr::deregister`] has returned `Ok` or the drop of the last reference to the region
    /// has returned:
    /// - `addr..addr + len` stays mapped and readable, and writable if `access` has `LOCAL_WRITE`;
    /// - accesses to it by other code are atomic, volatile, in another language or process, or do
    ///   not overlap in time with work requests and remote operations that conflict with them; no
    ///   `&mut` to it and, if it is written, no `&` is used while such operations may run;
    /// - with the setting `share_memory` and remote rights, nobody writes to it during this call,
    ///   and no stack lies in it.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: *mut u8,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        // SAFETY: `Memory::register` asks for the memory until its keys are dead and every lane has
        // passed a barrier after that. The caller promises it until `Mr::deregister` has returned
        // `Ok` or `Mr`'s drop has returned. Both do these two things in this order before they
        // return; a `deregister` that fails changes nothing, and then the promise goes on. No other
        // code frees the handle. If this call fails there is no key, and nothing to promise. In a
        // process that was forked later they return at once, where no lane runs that could access
        // the memory.
        let engine = self.context.engine();
        // SAFETY: the caller's promise, which is the one that `move_pages` wants.
        let pages = unsafe { move_pages(engine, addr, len, access) };
        // SAFETY: see above.
        let keys = unsafe { engine.memory.register(self.id, addr, len, iova, access) };
        Ok(Mr::new(self, keys?, (addr as usize, len, iova), access, None, pages))
    }

    /// Registers all memory of the process, present and future, by its addresses: implicit
    /// on-demand paging. Work that names what is not mapped, or is not writable, fails with a
    /// protection error and harms nothing. The kernel does the copies, some 0.3 us each; remote
    /// atomics are atomic among each other, not for CPUs; windows cannot be bound.
    ///
    /// # Errors
    /// [`CreateError::Memory`], with [`RegisterError::NoAddressSpace`] where the kernel refuses the
    /// system calls that it takes ([`DeviceAttr::implicit_odp`] tells beforehand).
    ///
    /// [`RegisterError::NoAddressSpace`]: vernic_mem::RegisterError::NoAddressSpace
    /// [`DeviceAttr::implicit_odp`]: crate::DeviceAttr::implicit_odp
    ///
    /// # Safety
    /// As for [`Pd::reg_mr`], of all memory that work requests and peers name; but it need not stay
    /// mapped, nor be writable.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reg_address_space(
        self: &Arc<Self>,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        let access = access | Access::ON_DEMAND;
        // SAFETY: the caller promises what `Memory::register_address_space` asks for; `Mr` ends it
        // as any other region.
        let keys = unsafe { self.context.engine().memory.register_address_space(self.id, access) };
        Ok(Mr::new(self, keys?, (0, u64::MAX, 0), access, None, None))
    }

    /// Registers part of the device's memory. Work requests and peers count its addresses from 0.
    ///
    /// # Errors
    /// [`CreateError`]: a range that is not inside, memory of another device, rights that
    /// contradict each other.
    pub fn reg_dm_mr(
        self: &Arc<Self>,
        dm: &Arc<DeviceMemory>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        if !Arc::ptr_eq(dm.context(), &self.context) {
            return Err(CreateError::OtherDevice { what: "device memory" });
        }
        let addr = dm.place(offset, len)?;
        let access = access | Access::ZERO_BASED;
        // SAFETY: the range is inside the buffer of `dm`, which the region holds until it has ended
        // and the lanes have passed a barrier. All other accesses to it are racy copies.
        #[allow(unsafe_code, reason = "the memory is the device's own")]
        let keys = unsafe { self.context.engine().memory.register(self.id, addr, len, 0, access) };
        Ok(Mr::new(self, keys?, (addr as usize, len, 0), access, Some(dm), None))
    }

    /// Checks that a list can be used by work requests: to write to, or to read from
    /// (`ibv_advise_mr` with a prefetch). Nothing has to be fetched: no memory is ever pinned.
    ///
    /// # Errors
    /// [`AccessError`] of the first piece that is refused: its key, its rights or its bounds.
    pub fn advise(&self, sges: &[Sge], write: bool) -> Result<(), AccessError> {
        if self.context.is_orphan() {
            let key = sges.first().map_or(0, |sge| sge.lkey.value());
            return Err(AccessError { check: Check::KeyStale, key, addr: 0, len: 0 });
        }
        self.context.engine().memory.check_local(self.id, sges, write)
    }

    /// A region that reads as zero and swallows what is written to it, whatever the address.
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, CreateError> {
        self.alive()?;
        let keys = self.context.engine().memory.alloc_null_mr(self.id)?;
        Ok(Mr::new(self, keys, (0, 0, 0), Access::LOCAL_WRITE, None, None))
    }

    /// A memory window, bound to nothing yet (IBTA 11.2.8.9).
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<Arc<Mw>, CreateError> {
        self.alive()?;
        Mw::new(self, mw_type)
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// [`CreateError::Limit`].
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, CreateError> {
        self.alive()?;
        Srq::new(self, init)
    }

    /// A shared receive queue of an XRC domain: initiators name it by its
    /// [`number`](Srq::number), its receives complete on `cq`, and its protection domain is that of
    /// the memory which requests for it reach (IBTA A14).
    ///
    /// # Errors
    /// [`CreateError`]: limits, objects of other devices.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        init: SrqInit,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, CreateError> {
        self.alive()?;
        Srq::new_xrc(self, init, xrcd, cq)
    }

    /// An address handle: a destination of datagrams.
    ///
    /// # Errors
    /// [`CreateError::Path`] if the address vector cannot be used.
    pub fn create_ah(self: &Arc<Self>, av: AddressVector) -> Result<Arc<Ah>, CreateError> {
        self.alive()?;
        Ah::new(self, av)
    }

    /// A queue pair, in Reset.
    ///
    /// # Errors
    /// [`CreateError`]: limits, objects of other devices, no number left.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, CreateError> {
        self.alive()?;
        Qp::new(self, init)
    }

    /// Checks that nothing lives in the domain any more. It is freed with its last reference.
    ///
    /// # Errors
    /// [`PdError::Busy`] with what lives in it.
    pub fn destroy(&self) -> Result<(), PdError> {
        if self.context.is_orphan() {
            return Ok(());
        }
        self.context.engine().memory.dealloc_pd(self.id)
    }

    pub(crate) fn hold(&self) {
        // Fails only for a domain that was destroyed, whose users are refused by their keys.
        let _ = self.context.engine().memory.hold_pd(self.id);
    }

    pub(crate) fn release(&self) {
        if !self.context.is_orphan() {
            self.context.engine().memory.release_pd(self.id);
        }
    }

    /// Refuses to make anything in an orphan's domain, or one of a closed device.
    pub(crate) fn alive(&self) -> Result<(), CreateError> {
        self.context.alive()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // Everything in it held a reference, so it is empty; or it was destroyed before.
        let _ = self.destroy();
    }
}

/// Checks a size against the device's limits.
pub(crate) fn check_limit(
    what: &'static str,
    value: u32,
    min: u32,
    max: u32,
) -> Result<(), CreateError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let (value, min, max) = (u64::from(value), u64::from(min), u64::from(max));
    Err(CreateError::Limit { what, value, min, max })
}
