//! Completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use vernic_engine::CompChannel;

use crate::boundary;
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::cq::{ibv_comp_channel, ibv_cq};
use crate::pointer::{CObject, Handle, Out};
use crate::waiting::{Attempt, attempts};

/// A channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: ibv_comp_channel,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<CompChannel>,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_comp_channel {
    type Object = ChannelObject;
    const NAME: &'static str = "a completion channel";
}

impl ChannelObject {
    /// Counts a completion queue more or less, for programs that look.
    pub(crate) fn count(&self, change: i32) {
        self.base.refcnt.fetch_add(change, Ordering::Relaxed);
    }
}

/// `ibv_create_comp_channel`.
pub(crate) extern "C" fn ibv_create_comp_channel(
    context: Handle<ibv_context>,
) -> Handle<ibv_comp_channel> {
    boundary::pointer("ibv_create_comp_channel", || {
        let shared = context.get()?.shared()?;
        let engine = shared.engine.create_channel()?;
        let fd = engine.as_raw_fd();
        let base = ibv_comp_channel { context, fd, refcnt: AtomicI32::new(0) };
        Ok(Handle::hand_out(Box::new(ChannelObject { base, shared, engine })))
    })
}

/// `ibv_destroy_comp_channel`: `EBUSY` while completion queues use it.
pub(crate) extern "C" fn ibv_destroy_comp_channel(channel: Handle<ibv_comp_channel>) -> c_int {
    boundary::errno("ibv_destroy_comp_channel", || {
        let object = channel.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.engine.destroy()?;
        // SAFETY: this is the call that ends it.
        drop(unsafe { channel.take_back() });
        Ok(())
    })
}

/// `ibv_get_cq_event`: waits for an event, unless the program made the descriptor non-blocking.
pub(crate) extern "C-unwind" fn ibv_get_cq_event(
    channel: Handle<ibv_comp_channel>,
    cq: Out<Handle<ibv_cq>>,
    cq_context: Out<*mut c_void>,
) -> c_int {
    attempts(|| {
        let attempt = boundary::quiet(|| {
            let object = channel.get()?;
            object.shared.check()?;
            // Each turn takes an event; those of queues that were destroyed meanwhile are skipped.
            while let Some(of_engine) = object.engine.try_next() {
                let registry = object.shared.registry();
                if let Some(&handle) = registry.cqs.get(&of_engine.id())
                    && let Some(found) = handle.find()
                {
                    found.report();
                    cq.write(handle);
                    cq_context.write(found.cq_context());
                    return Ok(Attempt::Done(0));
                }
            }
            Attempt::wait(object.base.fd)
        });
        attempt.unwrap_or(Attempt::Done(-1))
    })
}

/// `ibv_ack_cq_events`.
pub(crate) extern "C" fn ibv_ack_cq_events(cq: Handle<ibv_cq>, count: c_uint) {
    boundary::nothing("ibv_ack_cq_events", || {
        cq.get()?.acknowledge(count);
        Ok(())
    });
}
