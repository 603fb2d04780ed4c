//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vernic_engine::{Access, Mr, MrChange};

use super::dm::Source;
use super::mapped;
use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::memory::{ibv_mr, rereg};
use crate::layout::pd::ibv_pd;
use crate::object::{Use, lock};
use crate::pointer::{CObject, Handle};

/// A region.
#[repr(C)]
pub(crate) struct MrObject {
    base: ibv_mr,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Mr>,
    /// Its domain, which reregistering changes.
    pd: Mutex<Use>,
    /// The device memory that it is over.
    _source: Source,
}

/// Where a region comes from.
struct Origin {
    handle: u32,
    import: bool,
    source: Source,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_mr {
    type Object = MrObject;
    const NAME: &'static str = "a memory region";
}

impl MrObject {
    /// A region of C for one of the engine's.
    ///
    /// # Errors
    /// `EINVAL` without a domain.
    pub(crate) fn hand_out(
        pd: Handle<ibv_pd>,
        engine: Arc<Mr>,
        addr: *mut c_void,
        source: Source,
    ) -> Result<Handle<ibv_mr>, Failure> {
        let handle = pd.get()?.shared.next_handle();
        Self::hand_out_as(pd, engine, addr, Origin { handle, import: false, source })
    }

    fn hand_out_as(
        pd: Handle<ibv_pd>,
        engine: Arc<Mr>,
        addr: *mut c_void,
        origin: Origin,
    ) -> Result<Handle<ibv_mr>, Failure> {
        let domain = pd.get()?;
        let Origin { handle, import, source } = origin;
        let base = ibv_mr {
            context: domain.context(),
            pd: AtomicPtr::new(pd.raw()),
            addr: AtomicPtr::new(addr),
            length: AtomicUsize::new(engine.len() as usize),
            handle,
            lkey: AtomicU32::new(engine.lkey().value()),
            rkey: AtomicU32::new(engine.rkey().value()),
        };
        let shared = domain.shared.clone();
        let pd = Mutex::new(domain.users.hold());
        let object = Box::new(Self { base, shared: shared.clone(), engine, pd, _source: source });
        let mr = Handle::hand_out(object);
        if !import {
            shared.registry().mrs.insert(handle, mr);
        }
        Ok(mr)
    }
}

fn register(
    pd: Handle<ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<Handle<ibv_mr>, Failure> {
    let domain = pd.get()?;
    let access = Access::from_verbs(access)?;
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    if addr.is_null() && length == usize::MAX && access.contains(Access::ON_DEMAND) {
        // SAFETY: as below.
        let mr = unsafe { domain.engine()?.reg_address_space(access)? };
        return MrObject::hand_out(pd, mr, addr, None);
    }
    if !access.contains(Access::ON_DEMAND) {
        mapped::check(addr, length, access)?;
    }
    // SAFETY: whoever registers memory promises to the verbs what `reg_mr` asks for: it stays
    // mapped until it is deregistered, and is accessed by this program, which is not Rust, only.
    let mr = unsafe { domain.engine()?.reg_mr(addr.cast(), length as u64, iova, access)? };
    MrObject::hand_out(pd, mr, addr, None)
}

/// `ibv_reg_mr`.
pub(crate) extern "C" fn ibv_reg_mr(
    pd: Handle<ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Handle<ibv_mr> {
    let iova = addr.addr() as u64;
    boundary::pointer("ibv_reg_mr", || register(pd, addr, length, iova, access as c_uint))
}

/// `ibv_reg_mr_iova`.
pub(crate) extern "C" fn ibv_reg_mr_iova(
    pd: Handle<ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Handle<ibv_mr> {
    boundary::pointer("ibv_reg_mr_iova", || register(pd, addr, length, iova, access as c_uint))
}

/// `ibv_reg_mr_iova2`: what the macros `ibv_reg_mr` and `ibv_reg_mr_iova` call for rights that
/// older libraries do not know.
pub(crate) extern "C" fn ibv_reg_mr_iova2(
    pd: Handle<ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Handle<ibv_mr> {
    boundary::pointer("ibv_reg_mr_iova2", || register(pd, addr, length, iova, access))
}

/// `ibv_dereg_mr`: `EBUSY` while windows are bound to it. Of an import it ends the region, too, as
/// the manual page says; what else the program has of it then is good for ending it only.
pub(crate) extern "C" fn ibv_dereg_mr(mr: Handle<ibv_mr>) -> c_int {
    boundary::errno("ibv_dereg_mr", || {
        let object = mr.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.engine.deregister()?;
        object.shared.registry().mrs.remove(&object.base.handle);
        // SAFETY: this is the call that ends it.
        drop(unsafe { mr.take_back() });
        Ok(())
    })
}

/// `IBV_REREG_MR_ERR_INPUT`: refused, and the region is as it was. No other error is possible here.
const REREG_ERR_INPUT: c_int = -1;

/// `ibv_rereg_mr`: 0, or -1 with `errno` and the region as it was.
pub(crate) extern "C" fn ibv_rereg_mr(
    mr: Handle<ibv_mr>,
    flags: c_int,
    pd: Handle<ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let done = boundary::outcome("ibv_rereg_mr", || {
        let object = mr.get()?;
        object.shared.check()?;
        let flags = flags as u32;
        if flags & !rereg::ALL != 0 || flags == 0 {
            return Err(Failure::invalid(format!("flags {flags:#x}")));
        }
        let wants = |bit| flags & bit != 0;
        let home = if wants(rereg::PD) { Some(pd.get()?) } else { None };
        if wants(rereg::TRANSLATION) && (length == 0 || addr.is_null()) {
            return Err(Failure::invalid(format!("{length} bytes at {addr:?}")));
        }
        let access = match wants(rereg::ACCESS) {
            true => Some(Access::from_verbs(access as u32)?),
            false => None,
        };
        let zero_based = access.unwrap_or(object.engine.access()).contains(Access::ZERO_BASED);
        let iova = if zero_based { 0 } else { addr.addr() as u64 };
        let range = wants(rereg::TRANSLATION).then_some((addr.cast(), length as u64, iova));
        let domain = home.map(|pd| pd.engine()).transpose()?;
        let rights = access.unwrap_or(object.engine.access());
        if wants(rereg::TRANSLATION) && !rights.contains(Access::ON_DEMAND) {
            mapped::check(addr, length, rights)?;
        }
        // SAFETY: as in `register`.
        unsafe { object.engine.rereg(MrChange { pd: domain, access, range })? };
        if let Some(home) = home {
            *lock(&object.pd) = home.users.hold();
            object.base.pd.store(pd.raw(), Ordering::Relaxed);
        }
        if wants(rereg::TRANSLATION) {
            object.base.addr.store(addr, Ordering::Relaxed);
            object.base.length.store(length, Ordering::Relaxed);
        }
        object.base.lkey.store(object.engine.lkey().value(), Ordering::Relaxed);
        object.base.rkey.store(object.engine.rkey().value(), Ordering::Relaxed);
        Ok(())
    });
    if done.is_some() { 0 } else { REREG_ERR_INPUT }
}

/// `ibv_import_mr`: a region of a domain of the same device, by its `handle`.
pub(crate) extern "C" fn ibv_import_mr(pd: Handle<ibv_pd>, handle: u32) -> Handle<ibv_mr> {
    boundary::pointer("ibv_import_mr", || {
        let domain = pd.get()?;
        domain.shared.check()?;
        let registry = domain.shared.registry();
        let found = registry.mrs.get(&handle).and_then(|mr| mr.find()).filter(|mr| {
            let home = Handle::<ibv_pd>::told(mr.base.pd.load(Ordering::Relaxed).cast());
            home.find().is_some_and(|home| Arc::ptr_eq(&home.domain, &domain.domain))
        });
        let mr = found.map(|mr| mr.engine.clone()).ok_or_else(|| {
            Failure::invalid(format!("the domain has no memory region with handle {handle}"))
        })?;
        drop(registry);
        // The header says that an imported region has no address.
        MrObject::hand_out_as(
            pd,
            mr,
            std::ptr::null_mut(),
            Origin { handle, import: true, source: None },
        )
    })
}

/// `ibv_unimport_mr`: the region stays for others that have it.
pub(crate) extern "C" fn ibv_unimport_mr(mr: Handle<ibv_mr>) {
    boundary::nothing("ibv_unimport_mr", || {
        let object = mr.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        let mut registry = object.shared.registry();
        // The one that others would be imported from.
        if registry.mrs.get(&object.base.handle).is_some_and(|&known| known == mr) {
            registry.mrs.remove(&object.base.handle);
        }
        drop(registry);
        // SAFETY: this is the call that ends it.
        drop(unsafe { mr.take_back() });
        Ok(())
    });
}
