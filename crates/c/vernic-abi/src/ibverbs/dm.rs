//! Device memory, regions that are not of the program's memory, and advice about regions.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{Arc, Weak};

use libc::{EFAULT, EINVAL, EIO};
use vernic_engine::{Access, DeviceMemory};

use super::mr::MrObject;
use crate::boundary::{self, Failure, guard};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::memory::{DM_MASK_HANDLE, advice, ibv_alloc_dm_attr, ibv_dm, ibv_mr};
use crate::layout::pd::ibv_pd;
use crate::layout::wr::ibv_sge;
use crate::object::{Use, Users};
use crate::pointer::{Bytes, BytesMut, CObject, Handle, In, plain};

plain! { ibv_alloc_dm_attr }

/// Memory inside the device.
#[repr(C)]
pub(crate) struct DmObject {
    base: ibv_dm,
    shared: Arc<Shared>,
    engine: Arc<DeviceMemory>,
    /// Of another context, which is the one to free it.
    import: bool,
    /// Regions over it.
    users: Users,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_dm {
    type Object = DmObject;
    const NAME: &'static str = "device memory";
}

impl DmObject {
    fn hand_out(
        context: Handle<ibv_context>,
        shared: Arc<Shared>,
        engine: Arc<DeviceMemory>,
        handle: u32,
        import: bool,
    ) -> Handle<ibv_dm> {
        let base = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: DM_MASK_HANDLE,
            handle,
        };
        let users = Users::default();
        Handle::hand_out(Box::new(Self { base, shared, engine, import, users }))
    }
}

/// `ibv_alloc_dm`. Also in a process that was forked since the device was opened: there the memory
/// can be copied to and from, by that process alone.
pub(crate) extern "C" fn alloc_dm(
    context: Handle<ibv_context>,
    attr: In<ibv_alloc_dm_attr>,
) -> Handle<ibv_dm> {
    boundary::pointer("ibv_alloc_dm", || {
        let shared = context.get()?.shared_by_any()?;
        let attr = attr.require("the attributes")?;
        if attr.comp_mask != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {:#x}", attr.comp_mask)));
        }
        let engine = shared.engine.alloc_dm(attr.length as u64, attr.log_align_req)?;
        let handle = shared.next_handle();
        if !shared.is_orphan() {
            shared.registry().dms.insert(handle, Arc::downgrade(&engine));
        }
        Ok(DmObject::hand_out(context, shared, engine, handle, false))
    })
}

/// `ibv_free_dm`: `EBUSY` while regions are over it.
pub(crate) extern "C" fn free_dm(dm: Handle<ibv_dm>) -> c_int {
    boundary::errno("ibv_free_dm", || {
        let object = dm.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the device memory")?;
        if !object.import {
            object.engine.destroy()?;
            object.shared.registry().dms.remove(&object.base.handle);
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { dm.take_back() });
        Ok(())
    })
}

/// `ibv_import_dm`: memory of another context of the same device, by its `handle`.
pub(crate) extern "C" fn ibv_import_dm(
    context: Handle<ibv_context>,
    handle: u32,
) -> Handle<ibv_dm> {
    boundary::pointer("ibv_import_dm", || {
        let shared = context.get()?.shared()?;
        let found = shared.registry().dms.get(&handle).and_then(Weak::upgrade);
        let engine = found
            .ok_or_else(|| Failure::invalid(format!("no device memory has handle {handle}")))?;
        Ok(DmObject::hand_out(context, shared, engine, handle, true))
    })
}

/// `ibv_unimport_dm`.
pub(crate) extern "C" fn ibv_unimport_dm(dm: Handle<ibv_dm>) {
    // Refused for memory that regions are over: it stays then.
    let _refused = free_dm(dm);
}

/// Whether a copy is of whole words of 4 bytes, as devices and so rdma-core's tests want it.
fn in_words(offset: u64, length: usize) -> bool {
    offset.is_multiple_of(4) && length.is_multiple_of(4)
}

extern "C" fn memcpy_to_dm(dm: Handle<ibv_dm>, offset: u64, from: Bytes, length: usize) -> c_int {
    guard(EIO, || {
        let Some(object) = dm.find().filter(|_| length == 0 || !from.raw().is_null()) else {
            return EINVAL;
        };
        if !in_words(offset, length) {
            return EINVAL;
        }
        object.engine.copy_in(offset, from.slice(length)).map_or(EINVAL, |()| 0)
    })
}

extern "C" fn memcpy_from_dm(
    mut to: BytesMut,
    dm: Handle<ibv_dm>,
    offset: u64,
    length: usize,
) -> c_int {
    guard(EIO, || {
        let Some(object) = dm.find().filter(|_| length == 0 || !to.is_null()) else {
            return EINVAL;
        };
        if !in_words(offset, length) {
            return EINVAL;
        }
        object.engine.copy_out(offset, to.slice(length)).map_or(EINVAL, |()| 0)
    })
}

/// What a region over device memory holds.
pub(crate) type Source = Option<(Arc<DeviceMemory>, Use)>;

/// `ibv_reg_dm_mr`. Its addresses count from 0.
pub(crate) extern "C" fn reg_dm_mr(
    pd: Handle<ibv_pd>,
    dm: Handle<ibv_dm>,
    offset: u64,
    length: usize,
    access: c_uint,
) -> Handle<ibv_mr> {
    boundary::pointer("ibv_reg_dm_mr", || {
        let (domain, memory) = (pd.get()?, dm.get()?);
        let access = Access::from_verbs(access)?;
        if !access.contains(Access::ZERO_BASED) {
            return Err(Failure::invalid("a region over device memory is IBV_ACCESS_ZERO_BASED"));
        }
        let mr = domain.engine()?.reg_dm_mr(&memory.engine, offset, length as u64, access)?;
        let source = Some((memory.engine.clone(), memory.users.hold()));
        MrObject::hand_out(pd, mr, ptr::null_mut(), source)
    })
}

/// `ibv_alloc_null_mr`.
pub(crate) extern "C" fn alloc_null_mr(pd: Handle<ibv_pd>) -> Handle<ibv_mr> {
    boundary::pointer("ibv_alloc_null_mr", || {
        let mr = pd.get()?.engine()?.alloc_null_mr()?;
        MrObject::hand_out(pd, mr, ptr::null_mut(), None)
    })
}

/// `ibv_advise_mr`. No memory is pinned, so nothing is fetched; but the list is checked.
pub(crate) extern "C" fn advise_mr(
    pd: Handle<ibv_pd>,
    kind: c_uint,
    flags: u32,
    list: In<ibv_sge>,
    count: u32,
) -> c_int {
    boundary::errno("ibv_advise_mr", || {
        let domain = pd.get()?;
        let engine = domain.engine()?;
        if flags & !advice::FLAG_FLUSH != 0 || count == 0 {
            return Err(Failure::invalid(format!("flags {flags:#x}, {count} entries")));
        }
        let write = match kind {
            advice::PREFETCH | advice::PREFETCH_NO_FAULT => false,
            advice::PREFETCH_WRITE => true,
            other => return Err(Failure::unsupported(format_args!("advice {other}"))),
        };
        let list = list.array(count as usize);
        let list = list.ok_or_else(|| Failure::invalid("the list is NULL"))?;
        let checked = engine.advise(&list, write);
        checked.map_err(|error| Failure::new(EFAULT, error.to_string()))
    })
}
