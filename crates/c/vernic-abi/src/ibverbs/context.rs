//! Opening and closing devices, and the tables of functions that the header's inline functions use.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_engine::{Config, Context, OpenError};

use super::{cq, cq_ex, dm, import, mw, pd, qp, qp_attr, query, recv, send, srq, xrc};
use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::context::{EXTENDED, ibv_context, ibv_context_ops, verbs_context};
use crate::layout::device::ibv_device;
use crate::log;
use crate::object::lock;
use crate::pointer::{CObject, Handle};

/// Completion vectors of a device.
pub(crate) const COMP_VECTORS: c_int = 1;

/// An open device, as C has it.
#[repr(C)]
pub(crate) struct ContextObject {
    verbs: verbs_context,
    shared: Weak<Shared>,
    /// What C owns while it is open: the device, and the descriptor behind `cmd_fd`, which tells
    /// this device from others, also after `dup` (`import.rs`).
    owned: Mutex<Option<(Arc<Shared>, OwnedFd)>>,
    closed: AtomicBool,
    /// Of the connection manager, which keeps it open until the process ends.
    is_kept: bool,
}

// SAFETY: `verbs` comes first, and holds the `ibv_context` at this offset.
unsafe impl CObject for ibv_context {
    type Object = ContextObject;
    const NAME: &'static str = "a device context";
    const OFFSET: usize = std::mem::offset_of!(verbs_context, context);
}

impl ContextObject {
    /// A context of C for an open device, which owns `cmd_fd`.
    fn hand_out(
        device: Handle<ibv_device>,
        shared: &Arc<Shared>,
        cmd_fd: OwnedFd,
        is_kept: bool,
    ) -> Handle<ibv_context> {
        shared.note_context();
        let object = Self {
            verbs: verbs(device, cmd_fd.as_raw_fd(), shared.engine.async_raw_fd()),
            shared: Arc::downgrade(shared),
            owned: Mutex::new(Some((shared.clone(), cmd_fd))),
            closed: AtomicBool::new(false),
            is_kept,
        };
        Handle::hand_out(Box::new(object))
    }

    /// A further context of C for an open device; it owns `cmd_fd`.
    pub(crate) fn import(
        device: Handle<ibv_device>,
        shared: &Arc<Shared>,
        cmd_fd: OwnedFd,
    ) -> Handle<ibv_context> {
        Self::hand_out(device, shared, cmd_fd, false)
    }

    /// A context of C for a device that was just opened.
    ///
    /// # Errors
    /// The system's, when the process has no descriptor left.
    fn open(
        device: Handle<ibv_device>,
        shared: &Arc<Shared>,
        is_kept: bool,
    ) -> Result<Handle<ibv_context>, Failure> {
        let cmd_fd = marker()?;
        import::note(&cmd_fd, device, shared)?;
        Ok(Self::hand_out(device, shared, cmd_fd, is_kept))
    }

    /// As the context that the program gets for a device it opens, for one that the connection
    /// manager has open: closing it does nothing.
    ///
    /// # Errors
    /// The system's, when the process has no descriptor left.
    pub(crate) fn keep(
        device: Handle<ibv_device>,
        shared: &Arc<Shared>,
    ) -> Result<Handle<ibv_context>, Failure> {
        Self::open(device, shared, true)
    }

    /// The device.
    ///
    /// # Errors
    /// `EINVAL` if it was closed, `EIO` in a process that was forked meanwhile.
    pub(crate) fn shared(&self) -> Result<Arc<Shared>, Failure> {
        let shared = self.shared_by_any()?;
        shared.check()?;
        Ok(shared)
    }

    /// The device, also in a process that was forked since it was opened.
    ///
    /// # Errors
    /// `EINVAL` if it was closed.
    pub(crate) fn shared_by_any(&self) -> Result<Arc<Shared>, Failure> {
        let shared = self.shared.upgrade().filter(|_| !self.closed.load(Ordering::Acquire));
        shared.ok_or_else(|| Failure::invalid("the device was closed"))
    }
}

/// A descriptor with an identity of its own: of a socket, which every sandbox permits that lets
/// packets through.
fn marker() -> Result<OwnedFd, Failure> {
    let socket = UnixDatagram::unbound().map_err(|error| {
        let what = "cannot make the descriptor cmd_fd of the device's context";
        Failure::system(what, &error).fatal()
    })?;
    Ok(socket.into())
}

fn verbs(device: Handle<ibv_device>, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    verbs_context {
        since_64: [None; 6],
        query_port: Some(query::query_port),
        advise_mr: Some(dm::advise_mr),
        alloc_null_mr: Some(dm::alloc_null_mr),
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: Some(qp_attr::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: 0,
        query_device_ex: Some(query::query_device_ex),
        destroy_flow: None,
        abi_placeholder_2: None,
        create_flow: None,
        abi_placeholder_1: None,
        open_qp: Some(qp::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        abi_placeholder_3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: operations(),
            cmd_fd,
            async_fd,
            num_comp_vectors: COMP_VECTORS,
            mutex: [0; 5],
            abi_compat: EXTENDED,
        },
    }
}

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        query_device: Some(query::ibv_query_device),
        query_port: Some(query::ibv_query_port),
        unused_2: [None; 5],
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        unused_10: None,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        unused_13: [None; 7],
        post_srq_recv: Some(recv::post_srq_recv),
        unused_21: [None; 4],
        post_send: Some(send::post_send),
        post_recv: Some(recv::post_recv),
        unused_27: [None; 5],
    }
}

/// `ibv_open_device`.
pub(crate) extern "C" fn ibv_open_device(device: Handle<ibv_device>) -> Handle<ibv_context> {
    log::init();
    boundary::pointer("ibv_open_device", || {
        let info = &device.get()?.info;
        // By its netdev: device numbers move when a netdev comes or goes.
        let engine = Config::load()
            .map_err(OpenError::from)
            .and_then(|config| Context::open_on(&info.port.netdev, info.transport, config))
            .map_err(|error| Failure::from(error).fatal())?;
        ContextObject::open(device, &Shared::new(engine), false)
    })
}

/// `ibv_close_device`. With its last context the device ends: objects that are left are good for
/// nothing but to be destroyed. The contexts of `rdma_cm_id`s are not the program's, and stay open.
pub(crate) extern "C" fn ibv_close_device(context: Handle<ibv_context>) -> c_int {
    boundary::errno("ibv_close_device", || {
        let object = context.get()?;
        if object.is_kept {
            return Ok(());
        }
        if object.closed.swap(true, Ordering::AcqRel) {
            return Err(Failure::invalid("the device was closed already"));
        }
        if object.shared.upgrade().is_none_or(|shared| shared.is_orphan()) {
            // The parent's device: its locks may be held by threads that are not here.
            return Ok(());
        }
        let owned = lock(&object.owned).take();
        // It goes with the device: at the end of this, if no object is left.
        if let Some((shared, _cmd_fd)) = owned {
            shared.close(context);
        }
        Ok(())
    })
}
