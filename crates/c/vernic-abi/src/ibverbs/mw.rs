//! Memory windows.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::EPERM;
use vernic_engine::{Access, Lkey, Mw, MwBind, MwType, Payload, Rkey, SendFlags, SendOp, SendWr};

use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::memory::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, mw_type};
use crate::layout::pd::ibv_pd;
use crate::layout::qp::ibv_qp;
use crate::object::Use;
use crate::pointer::{CObject, Handle, In, plain};

plain! { ibv_mw_bind, ibv_mw_bind_info }

/// A window.
#[repr(C)]
pub(crate) struct MwObject {
    base: ibv_mw,
    shared: Arc<Shared>,
    pub(crate) engine: Arc<Mw>,
    _pd: Use,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_mw {
    type Object = MwObject;
    const NAME: &'static str = "a memory window";
}

/// `ibv_alloc_mw`.
pub(crate) extern "C" fn alloc_mw(pd: Handle<ibv_pd>, kind: c_uint) -> Handle<ibv_mw> {
    boundary::pointer("ibv_alloc_mw", || {
        let domain = pd.get()?;
        let of_engine = match kind {
            mw_type::TYPE_1 => MwType::Type1,
            mw_type::TYPE_2 => MwType::Type2,
            other => return Err(Failure::invalid(format!("memory window type {other}"))),
        };
        let engine = domain.engine()?.alloc_mw(of_engine)?;
        let base = ibv_mw {
            context: domain.context(),
            pd,
            rkey: AtomicU32::new(engine.rkey().value()),
            handle: domain.shared.next_handle(),
            mw_type: kind,
        };
        let (shared, _pd) = (domain.shared.clone(), domain.users.hold());
        Ok(Handle::hand_out(Box::new(MwObject { base, shared, engine, _pd })))
    })
}

/// `ibv_dealloc_mw`: its key dies, bound or not.
pub(crate) extern "C" fn dealloc_mw(mw: Handle<ibv_mw>) -> c_int {
    boundary::errno("ibv_dealloc_mw", || {
        if mw.get()?.shared.is_orphan() {
            return Ok(());
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { mw.take_back() });
        Ok(())
    })
}

/// The bind of a work request: of a type 2 window. `None` if it cannot be, and the log says why.
pub(crate) fn posted(mw: Handle<ibv_mw>, new_rkey: u32, info: &ibv_mw_bind_info) -> Option<SendOp> {
    let request = || {
        let mw = mw.get()?;
        if mw.base.mw_type != mw_type::TYPE_2 {
            return Err(Failure::invalid("a type 1 window is bound by ibv_bind_mw"));
        }
        request(mw, Rkey(new_rkey), info)
    };
    // The queue pair goes on, so a program may try again and again: no warnings.
    request().map_err(|failure| failure.repeated().log("bind of a memory window")).ok()
}

/// The request of a bind: what the window is bound to, under which new key.
///
/// # Errors
/// `EINVAL` for rights that windows cannot have, or a length without a region.
fn request(mw: &MwObject, new_rkey: Rkey, info: &ibv_mw_bind_info) -> Result<SendOp, Failure> {
    let mr = match info.mr.find() {
        Some(mr) => mr.engine.lkey(),
        None if info.length == 0 => Lkey(0),
        None => return Err(Failure::null("the region to bind to")),
    };
    // Windows give rights to peers; what else a program asks for, drivers do not look at.
    let access = Access::from_verbs(info.mw_access_flags)?;
    let access = access & (Access::REMOTE | Access::ZERO_BASED);
    Ok(SendOp::BindMw(MwBind {
        mw: mw.engine.rkey(),
        new_rkey,
        mr,
        addr: info.addr,
        length: info.length,
        access: access.bits(),
    }))
}

/// `ibv_bind_mw`, of type 1 windows.
pub(crate) extern "C" fn bind_mw(
    qp: Handle<ibv_qp>,
    mw: Handle<ibv_mw>,
    bind: In<ibv_mw_bind>,
) -> c_int {
    boundary::errno("ibv_bind_mw", || {
        let (qp, mw) = (qp.get()?, mw.get()?);
        qp.shared.check()?;
        let bind = bind.require("the bind")?;
        if mw.base.mw_type != mw_type::TYPE_1 {
            return Err(Failure::invalid("a type 2 window is bound by a work request"));
        }
        if !Arc::ptr_eq(mw.engine.pd(), qp.engine.pd()) {
            let why = "window and queue pair are of different protection domains";
            return Err(Failure::new(EPERM, why));
        }
        let new_rkey = mw.engine.next_rkey();
        let request = SendWr {
            wr_id: bind.wr_id,
            op: request(mw, new_rkey, &bind.bind_info)?,
            flags: SendFlags::from_bits_truncate(bind.send_flags as u8) - SendFlags::INLINE,
            payload: Payload::Sges(&[]),
            dest: None,
            srqn: None,
        };
        qp.engine
            .post_send_from([request])
            .map_err(|e| Failure::new(boundary::of_send(&e), e.to_string()))?;
        mw.engine.set_rkey(new_rkey);
        mw.base.rkey.store(new_rkey.value(), Ordering::Relaxed);
        Ok(())
    })
}
