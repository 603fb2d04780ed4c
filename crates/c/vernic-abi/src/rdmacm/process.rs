//! What the connection manager has once per process: devices that are open for it, and which id of
//! the engine is which of C's.
//!
//! A child of `fork` has none of its parent's, whose locks threads may hold that are not there: it
//! starts anew, with what its parent had left where it is ([`process`]).
//!
//! Devices stay open, and their protection domains live, until the process ends: programs keep
//! pointers to both after the last id is gone. There are as many as the machine has netdevs.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use vernic_cm::{Id, Manager};
use vernic_engine::{Config, Context, Gate, OpenError, ProcessOrigin, XrcdOpen};

use crate::boundary::{self, Failure};
use crate::exit::{self, Ending};
use crate::ibverbs::context::ContextObject;
use crate::ibverbs::device::{self, DeviceObject};
use crate::ibverbs::pd::PdObject;
use crate::ibverbs::shared::Shared;
use crate::ibverbs::xrc::XrcdObject;
use crate::layout::cm::rdma_cm_id;
use crate::layout::context::ibv_context;
use crate::layout::pd::{ibv_pd, ibv_xrcd};
use crate::log;
use crate::object::lock;
use crate::pointer::{Handle, Out};

/// A device that is open for ids.
pub(crate) struct CmDevice {
    engine: Arc<Context>,
    pub(crate) context: Handle<ibv_context>,
    /// Of ids that are given none.
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) shared: Arc<Shared>,
    /// Of ids with XRC targets that are given none, from when the first needs it.
    xrcd: Mutex<Option<Handle<ibv_xrcd>>>,
}

impl CmDevice {
    fn new(engine: Arc<Context>) -> Result<Self, Failure> {
        let of_c = DeviceObject::find_or_add(engine.info().clone());
        let shared = Shared::new(engine.clone());
        let context = ContextObject::keep(of_c, &shared)?;
        let pd = PdObject::keep(context, &shared);
        Ok(Self { engine, context, pd, shared, xrcd: Mutex::default() })
    }

    /// The XRC domain of ids that are given none.
    ///
    /// # Errors
    /// Those of opening one.
    pub(crate) fn xrcd(&self) -> Result<Handle<ibv_xrcd>, Failure> {
        let mut xrcd = lock(&self.xrcd);
        if let Some(xrcd) = *xrcd {
            return Ok(xrcd);
        }
        let how = XrcdOpen { file: None, create: true, exclusive: false };
        Ok(*xrcd.insert(XrcdObject::open(self.context, &self.shared, how)?))
    }
}

/// What one process has.
pub(crate) struct Process {
    origin: ProcessOrigin,
    pub(crate) manager: Arc<Manager>,
    devices: Mutex<Vec<Arc<CmDevice>>>,
    ids: Mutex<HashMap<usize, Handle<rdma_cm_id>>>,
}

/// Where an id is in the table.
fn key(id: &Arc<Id>) -> usize {
    Arc::as_ptr(id).addr()
}

impl Process {
    /// The device of an open context of the manager's, as C has it: the same each time.
    ///
    /// # Errors
    /// The system's, when the process has no descriptor left.
    pub(crate) fn device(&self, engine: &Arc<Context>) -> Result<Arc<CmDevice>, Failure> {
        let mut devices = lock(&self.devices);
        if let Some(device) = devices.iter().find(|device| Arc::ptr_eq(&device.engine, engine)) {
            return Ok(device.clone());
        }
        let device = Arc::new(CmDevice::new(engine.clone())?);
        devices.push(device.clone());
        Ok(device)
    }

    /// Notes which object of C an id is, until [`forget`](Self::forget).
    pub(crate) fn note(&self, id: &Arc<Id>, of_c: Handle<rdma_cm_id>) {
        lock(&self.ids).insert(key(id), of_c);
    }

    /// The object of C that an id is.
    pub(crate) fn find(&self, id: &Arc<Id>) -> Option<Handle<rdma_cm_id>> {
        lock(&self.ids).get(&key(id)).copied()
    }

    /// Ends what [`note`](Self::note) began.
    pub(crate) fn forget(&self, id: &Arc<Id>) {
        lock(&self.ids).remove(&key(id));
    }
}

/// What was made last: never freed. A process may be forked at any time, so there is no lock.
static MADE: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// Ends the connections of a program that ends without doing so: their peers learn of it, as they
/// do from a kernel.
fn disconnect_all() {
    // SAFETY: null, or leaked by `process`.
    let made = unsafe { MADE.load(Ordering::Acquire).as_ref() };
    if let Some(made) = made.filter(|made| made.origin.is_here()) {
        made.manager.disconnect_all();
    }
}

/// What this process has: made by the first call, and by the first in a child of `fork`.
///
/// # Errors
/// `EINVAL` for settings that cannot be read.
pub(crate) fn process() -> Result<&'static Process, Failure> {
    let mut at = MADE.load(Ordering::Acquire);
    // SAFETY: null, or leaked below.
    if let Some(made) = unsafe { at.as_ref() }
        && made.origin.is_here()
    {
        return Ok(made);
    }
    log::init();
    exit::arrange(&Gate::enter(), Ending::Connections, disconnect_all);
    let config = Config::load().map_err(|error| Failure::from(OpenError::from(error)).fatal())?;
    let new = Box::into_raw(Box::new(Process {
        origin: ProcessOrigin::here(),
        manager: Manager::new(config),
        devices: Mutex::default(),
        ids: Mutex::default(),
    }));
    // A second turn where another thread was faster; a third would need a fork in between.
    loop {
        match MADE.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked.
            Ok(_) => return Ok(unsafe { &*new }),
            Err(now) => at = now,
        }
        // SAFETY: as above: what is there was leaked.
        if let Some(made) = unsafe { at.as_ref() }
            && made.origin.is_here()
        {
            // SAFETY: from `into_raw` above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
            return Ok(made);
        }
    }
}

/// `rdma_get_devices`: the contexts of all devices that can be opened, and NULL behind them.
pub(crate) extern "C" fn rdma_get_devices(count: Out<c_int>) -> *mut Handle<ibv_context> {
    log::init();
    count.write(0);
    let list = boundary::outcome("rdma_get_devices", || {
        let process = process()?;
        let mut contexts = Vec::new();
        for info in device::shown()? {
            match process.manager.context(&info.name) {
                Ok(engine) => contexts.push(process.device(&engine)?.context),
                Err(error) => tracing::warn!("rdma_get_devices: {error}"),
            }
        }
        let list = Handle::list(&contexts)?;
        count.write(contexts.len() as c_int);
        Ok(list)
    });
    list.unwrap_or(ptr::null_mut())
}

/// `rdma_free_devices`. The devices stay open.
pub(crate) extern "C" fn rdma_free_devices(list: *mut Handle<ibv_context>) {
    // SAFETY: NULL, or from `calloc` in `rdma_get_devices` and not freed before (contract of
    // `pointer.rs`, 1).
    unsafe { libc::free(list.cast()) };
}
