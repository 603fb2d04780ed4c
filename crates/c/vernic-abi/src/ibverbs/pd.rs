//! Protection domains, thread domains, parent domains.
//!
//! A parent domain is a protection domain under another name, which a thread domain and allocators
//! hang on. Everything made with it is in the protection domain behind it. The thread domain
//! promises that one thread at a time uses what is made with it, which needs nothing here. The
//! allocators are for memory that a driver shares with a device; there is no such device, and so no
//! such memory.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use vernic_engine::{Pd, Transport};

use crate::boundary::{self, Failure};
use crate::ibverbs::shared::{Domain, Shared};
use crate::layout::context::ibv_context;
use crate::layout::pd::{
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, parent_mask,
};
use crate::object::{Use, Users};
use crate::pointer::{CObject, Handle, In, plain};

plain! { ibv_parent_domain_init_attr, ibv_td_init_attr }

/// A protection or parent domain.
#[repr(C)]
pub(crate) struct PdObject {
    base: ibv_pd,
    pub(crate) shared: Arc<Shared>,
    pub(crate) domain: Arc<Domain>,
    kind: Kind,
    /// Objects made with this one.
    pub(crate) users: Users,
}

enum Kind {
    Protection,
    /// Of the connection manager, which keeps it until the process ends.
    Kept,
    /// Of another context of the same device.
    Import,
    /// Holds what it was made of.
    Parent {
        _pd: Use,
        _td: Option<Use>,
    },
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_pd {
    type Object = PdObject;
    const NAME: &'static str = "a protection domain";
}

impl PdObject {
    fn hand_out(
        context: Handle<ibv_context>,
        shared: &Arc<Shared>,
        domain: Arc<Domain>,
        kind: Kind,
    ) -> Handle<ibv_pd> {
        let base = ibv_pd { context, handle: domain.handle };
        let users = Users::default();
        Handle::hand_out(Box::new(Self { base, shared: shared.clone(), domain, kind, users }))
    }

    fn alloc(context: Handle<ibv_context>, shared: &Arc<Shared>, kind: Kind) -> Handle<ibv_pd> {
        let handle = shared.next_handle();
        let domain = Arc::new(Domain { engine: shared.engine.alloc_pd(), handle });
        shared.registry().pds.insert(handle, Arc::downgrade(&domain));
        Self::hand_out(context, shared, domain, kind)
    }

    /// A domain of the connection manager, for ids that are given none: deallocating it does
    /// nothing.
    pub(crate) fn keep(context: Handle<ibv_context>, shared: &Arc<Shared>) -> Handle<ibv_pd> {
        Self::alloc(context, shared, Kind::Kept)
    }

    /// Its context.
    pub(crate) fn context(&self) -> Handle<ibv_context> {
        self.base.context
    }

    /// The transport of the device.
    pub(crate) fn transport(&self) -> Transport {
        self.shared.engine.info().transport
    }

    /// The engine's domain.
    ///
    /// # Errors
    /// `EIO` in a process that was forked meanwhile.
    pub(crate) fn engine(&self) -> Result<&Arc<Pd>, Failure> {
        self.shared.check()?;
        Ok(&self.domain.engine)
    }
}

/// `ibv_alloc_pd`.
pub(crate) extern "C" fn ibv_alloc_pd(context: Handle<ibv_context>) -> Handle<ibv_pd> {
    boundary::pointer("ibv_alloc_pd", || {
        let shared = context.get()?.shared()?;
        Ok(PdObject::alloc(context, &shared, Kind::Protection))
    })
}

/// `ibv_dealloc_pd`, of protection and parent domains: `EBUSY` while anything lives in it. That of
/// an `rdma_cm_id` that was given none is not the program's, and stays.
pub(crate) extern "C" fn ibv_dealloc_pd(pd: Handle<ibv_pd>) -> c_int {
    boundary::errno("ibv_dealloc_pd", || {
        let object = pd.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        if matches!(object.kind, Kind::Kept) {
            return Ok(());
        }
        object.users.none("the protection domain")?;
        if matches!(object.kind, Kind::Protection) {
            object.domain.engine.destroy()?;
            object.shared.registry().pds.remove(&object.domain.handle);
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { pd.take_back() });
        Ok(())
    })
}

/// `ibv_import_pd`: a domain of another context of the same device, by its `handle`.
pub(crate) extern "C" fn ibv_import_pd(
    context: Handle<ibv_context>,
    handle: u32,
) -> Handle<ibv_pd> {
    boundary::pointer("ibv_import_pd", || {
        let shared = context.get()?.shared()?;
        let domain = shared.registry().pds.get(&handle).and_then(Weak::upgrade);
        let domain = domain
            .ok_or_else(|| Failure::invalid(format!("no protection domain has handle {handle}")))?;
        Ok(PdObject::hand_out(context, &shared, domain, Kind::Import))
    })
}

/// `ibv_unimport_pd`.
pub(crate) extern "C" fn ibv_unimport_pd(pd: Handle<ibv_pd>) {
    boundary::nothing("ibv_unimport_pd", || {
        let object = pd.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the imported protection domain")?;
        // SAFETY: this is the call that ends it.
        drop(unsafe { pd.take_back() });
        Ok(())
    });
}

/// A thread domain.
#[repr(C)]
pub(crate) struct TdObject {
    base: ibv_td,
    shared: Arc<Shared>,
    users: Users,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_td {
    type Object = TdObject;
    const NAME: &'static str = "a thread domain";
}

/// `ibv_alloc_td`.
pub(crate) extern "C" fn alloc_td(
    context: Handle<ibv_context>,
    attr: In<ibv_td_init_attr>,
) -> Handle<ibv_td> {
    boundary::pointer("ibv_alloc_td", || {
        let shared = context.get()?.shared()?;
        let comp_mask = attr.require("the attributes")?.comp_mask;
        if comp_mask != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {comp_mask:#x}")));
        }
        let (base, users) = (ibv_td { context }, Users::default());
        Ok(Handle::hand_out(Box::new(TdObject { base, shared, users })))
    })
}

/// `ibv_dealloc_td`: `EBUSY` while a parent domain was made with it.
pub(crate) extern "C" fn dealloc_td(td: Handle<ibv_td>) -> c_int {
    boundary::errno("ibv_dealloc_td", || {
        let object = td.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the thread domain")?;
        // SAFETY: this is the call that ends it.
        drop(unsafe { td.take_back() });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`.
pub(crate) extern "C" fn alloc_parent_domain(
    context: Handle<ibv_context>,
    attr: In<ibv_parent_domain_init_attr>,
) -> Handle<ibv_pd> {
    boundary::pointer("ibv_alloc_parent_domain", || {
        let shared = context.get()?.shared()?;
        let attr = attr.require("the attributes")?;
        let unknown = attr.comp_mask & !(parent_mask::ALLOCATORS | parent_mask::PD_CONTEXT);
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {unknown:#x}")));
        }
        let pd = attr.pd.get()?;
        if matches!(pd.kind, Kind::Parent { .. }) || !Arc::ptr_eq(&pd.shared, &shared) {
            return Err(Failure::invalid(
                "a parent domain is made of a protection domain of the device",
            ));
        }
        let kind =
            Kind::Parent { _pd: pd.users.hold(), _td: attr.td.find().map(|td| td.users.hold()) };
        Ok(PdObject::hand_out(context, &shared, pd.domain.clone(), kind))
    })
}
