//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use vernic_engine::{Srq, SrqInit};

use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::cq::ibv_cq;
use crate::layout::pd::{ibv_pd, ibv_xrcd};
use crate::layout::srq::{
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, srq_init_mask, srq_mask,
    srq_type,
};
use crate::object::{Use, Users};
use crate::pointer::{CObject, Handle, In, Out, growing, plain};

plain! { ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex }
growing! {
    ibv_srq_init_attr_ex {
        srq_init_mask::TYPE => srq_type: u32,
        srq_init_mask::PD => pd: Handle<ibv_pd>,
        srq_init_mask::XRCD => xrcd: Handle<ibv_xrcd>,
        srq_init_mask::CQ => cq: Handle<ibv_cq>,
    }
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqObject {
    base: ibv_srq,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Srq>,
    /// Asynchronous events given to the program.
    reported: AtomicU32,
    pub(crate) users: Users,
    /// Its domains and, of XRC, its completion queue.
    _uses: Vec<Use>,
}

/// What an XRC queue has beside.
struct Xrc {
    xrcd: Handle<ibv_xrcd>,
    cq: Handle<ibv_cq>,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_srq {
    type Object = SrqObject;
    const NAME: &'static str = "a shared receive queue";
}

impl SrqObject {
    fn create(
        pd: Handle<ibv_pd>,
        srq_context: *mut c_void,
        attr: &ibv_srq_attr,
        xrc: Option<&Xrc>,
    ) -> Result<Handle<ibv_srq>, Failure> {
        let domain = pd.get()?;
        // The limit is armed by `ibv_modify_srq`: here it is not looked at, as the manual page
        // says.
        let init = SrqInit { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
        let mut uses = vec![domain.users.hold()];
        let engine = match xrc {
            None => domain.engine()?.create_srq(init)?,
            Some(xrc) => {
                let (xrcd, cq) = (xrc.xrcd.get()?, xrc.cq.get()?);
                uses.extend([xrcd.users.hold(), cq.users.hold()]);
                domain.engine()?.create_xrc_srq(init, &xrcd.engine, &cq.engine)?
            }
        };
        let shared = domain.shared.clone();
        let base = ibv_srq {
            context: domain.context(),
            srq_context: AtomicPtr::new(srq_context),
            pd,
            handle: shared.next_handle(),
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: AtomicU32::new(0),
        };
        let id = engine.id();
        let handle = Handle::hand_out(Box::new(Self {
            base,
            shared: shared.clone(),
            engine,
            reported: AtomicU32::new(0),
            users: Users::default(),
            _uses: uses,
        }));
        shared.registry().srqs.insert(id, handle);
        Ok(handle)
    }

    /// Its sizes, as granted.
    fn attr(&self) -> ibv_srq_attr {
        let now = self.engine.query();
        ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit }
    }

    /// Counts an asynchronous event that the program gets; under the lock of the registry.
    pub(crate) fn report(&self) {
        self.reported.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an acknowledged event.
    pub(crate) fn acknowledge(&self) {
        let shared = self.shared.clone();
        shared.acknowledge(|| {
            self.base.events_completed.fetch_add(1, Ordering::AcqRel);
        });
    }
}

/// `ibv_create_srq`.
pub(crate) extern "C" fn ibv_create_srq(
    pd: Handle<ibv_pd>,
    attr: Out<ibv_srq_init_attr>,
) -> Handle<ibv_srq> {
    boundary::pointer("ibv_create_srq", || {
        let init = attr.require("the attributes")?;
        let srq = SrqObject::create(pd, init.srq_context, &init.attr, None)?;
        attr.write_attr(srq.get()?.attr());
        Ok(srq)
    })
}

/// `ibv_create_srq_ex`.
pub(crate) extern "C" fn create_srq_ex(
    context: Handle<ibv_context>,
    attr: Out<ibv_srq_init_attr_ex>,
) -> Handle<ibv_srq> {
    boundary::pointer("ibv_create_srq_ex", || {
        context.get()?.shared()?;
        let init = attr.require_grown("the attributes")?;
        let has = |bit| init.comp_mask & bit != 0;
        let kind = if has(srq_init_mask::TYPE) { init.srq_type } else { srq_type::BASIC };
        let mut known = srq_init_mask::TYPE | srq_init_mask::PD;
        let xrc = match kind {
            srq_type::XRC if has(srq_init_mask::XRCD) && has(srq_init_mask::CQ) => {
                known |= srq_init_mask::XRCD | srq_init_mask::CQ;
                Some(Xrc { xrcd: init.xrcd, cq: init.cq })
            }
            srq_type::XRC => {
                return Err(Failure::invalid("an XRC queue needs XRC domain and completion queue"));
            }
            _ => None,
        };
        let unknown = init.comp_mask & !known;
        if kind > srq_type::XRC || unknown != 0 {
            let what = format_args!("SRQ type {kind}, comp_mask {unknown:#x}");
            return Err(Failure::unsupported(what));
        }
        let pd = if has(srq_init_mask::PD) { init.pd } else { Handle::NULL };
        let srq = SrqObject::create(pd, init.srq_context, &init.attr, xrc.as_ref())?;
        attr.write_attr(srq.get()?.attr());
        Ok(srq)
    })
}

/// `ibv_modify_srq`: arms the limit. The size cannot be changed.
pub(crate) extern "C" fn ibv_modify_srq(
    srq: Handle<ibv_srq>,
    attr: In<ibv_srq_attr>,
    mask: c_int,
) -> c_int {
    boundary::errno("ibv_modify_srq", || {
        let object = srq.get()?;
        object.shared.check()?;
        let attr = attr.require("the attributes")?;
        let mask = mask as u32;
        if mask & srq_mask::MAX_WR != 0 {
            return Err(Failure::unsupported("IBV_SRQ_MAX_WR: resizing a shared receive queue"));
        }
        if mask & !srq_mask::LIMIT != 0 {
            return Err(Failure::invalid(format!("attribute mask {mask:#x}")));
        }
        if mask & srq_mask::LIMIT != 0 {
            object.engine.arm_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq`.
pub(crate) extern "C" fn ibv_query_srq(srq: Handle<ibv_srq>, out: Out<ibv_srq_attr>) -> c_int {
    boundary::errno("ibv_query_srq", || {
        let object = srq.get()?;
        object.shared.check()?;
        out.write(object.attr());
        Ok(())
    })
}

/// `ibv_get_srq_num`: the number of an XRC queue.
pub(crate) extern "C" fn get_srq_num(srq: Handle<ibv_srq>, out: Out<u32>) -> c_int {
    boundary::errno("ibv_get_srq_num", || {
        let number = srq.get()?.engine.number();
        let number = number.ok_or_else(|| Failure::unsupported("the number of a basic SRQ"))?;
        out.write(number.value());
        Ok(())
    })
}

/// `ibv_destroy_srq`: `EBUSY` while queue pairs use it; waits until its events are acknowledged.
pub(crate) extern "C" fn ibv_destroy_srq(srq: Handle<ibv_srq>) -> c_int {
    boundary::errno("ibv_destroy_srq", || {
        let object = srq.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the shared receive queue")?;
        object.engine.destroy()?;
        object.shared.registry().srqs.remove(&object.engine.id());
        let (reported, acked) = (&object.reported, &object.base.events_completed);
        let is_acked = || reported.load(Ordering::Acquire) == acked.load(Ordering::Acquire);
        object.shared.wait_acked(is_acked);
        // SAFETY: this is the call that ends it.
        drop(unsafe { srq.take_back() });
        Ok(())
    })
}
