//! XRC domains.

use std::ffi::c_int;
use std::sync::Arc;

use vernic_engine::{Xrcd, XrcdFile, XrcdOpen};

use super::import;
use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::pd::{ibv_xrcd, ibv_xrcd_init_attr, xrcd_mask};
use crate::object::Users;
use crate::pointer::{CObject, Handle, In, plain};

plain! { ibv_xrcd_init_attr }

/// A handle of an XRC domain.
#[repr(C)]
pub(crate) struct XrcdObject {
    base: ibv_xrcd,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Xrcd>,
    pub(crate) users: Users,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_xrcd {
    type Object = XrcdObject;
    const NAME: &'static str = "an XRC domain";
}

impl XrcdObject {
    /// Opens a domain.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn open(
        context: Handle<ibv_context>,
        shared: &Arc<Shared>,
        how: XrcdOpen,
    ) -> Result<Handle<ibv_xrcd>, Failure> {
        let engine = shared.engine.open_xrcd(how)?;
        let (base, shared, users) = (ibv_xrcd { context }, shared.clone(), Users::default());
        Ok(Handle::hand_out(Box::new(Self { base, shared, engine, users })))
    }

    /// Its context.
    pub(crate) fn context(&self) -> Handle<ibv_context> {
        self.base.context
    }
}

/// `ibv_open_xrcd`. Those who open it by one file share it.
pub(crate) extern "C" fn open_xrcd(
    context: Handle<ibv_context>,
    attr: In<ibv_xrcd_init_attr>,
) -> Handle<ibv_xrcd> {
    boundary::pointer("ibv_open_xrcd", || {
        let shared = context.get()?.shared()?;
        let attr = attr.require("the attributes")?;
        if attr.comp_mask != xrcd_mask::FD | xrcd_mask::OFLAGS {
            let why = format!("comp_mask {:#x}: file and flags are needed", attr.comp_mask);
            return Err(Failure::invalid(why));
        }
        let file = match attr.fd {
            -1 => None,
            fd => {
                let (device, inode) = import::identity(fd)?;
                Some(XrcdFile { device, inode })
            }
        };
        let (create, exclusive) =
            (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0);
        XrcdObject::open(context, &shared, XrcdOpen { file, create, exclusive })
    })
}

/// `ibv_close_xrcd`: `EBUSY` while queues of it live.
pub(crate) extern "C" fn close_xrcd(xrcd: Handle<ibv_xrcd>) -> c_int {
    boundary::errno("ibv_close_xrcd", || {
        let object = xrcd.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the XRC domain")?;
        object.engine.destroy()?;
        // SAFETY: this is the call that ends it.
        drop(unsafe { xrcd.take_back() });
        Ok(())
    })
}
