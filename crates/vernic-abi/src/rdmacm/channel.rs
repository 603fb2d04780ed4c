//! Event channels.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use vernic_cm::EventChannel;

use super::process::process;
use crate::boundary::{self, Failure};
use crate::layout::cm::rdma_event_channel;
use crate::pointer::{CObject, Handle};

/// An event channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: rdma_event_channel,
    pub(crate) engine: Arc<EventChannel>,
}

// SAFETY: `base` comes first.
unsafe impl CObject for rdma_event_channel {
    type Object = ChannelObject;
    const NAME: &'static str = "an event channel";
}

impl ChannelObject {
    /// A channel for C.
    ///
    /// # Errors
    /// The system's, when the process has no descriptor left.
    pub(crate) fn create() -> Result<Handle<rdma_event_channel>, Failure> {
        let engine = process()?.manager.create_channel()?;
        let base = rdma_event_channel { fd: engine.as_raw_fd() };
        Ok(Handle::hand_out(Box::new(Self { base, engine })))
    }

    /// The descriptor, for programs that poll it.
    pub(crate) fn fd(&self) -> c_int {
        self.base.fd
    }
}

/// `rdma_create_event_channel`.
pub(crate) extern "C" fn rdma_create_event_channel() -> Handle<rdma_event_channel> {
    boundary::pointer("rdma_create_event_channel", ChannelObject::create)
}

/// `rdma_destroy_event_channel`. Ids that are left on it stay until they are destroyed, but nobody can
/// take their events.
pub(crate) extern "C" fn rdma_destroy_event_channel(channel: Handle<rdma_event_channel>) {
    boundary::nothing("rdma_destroy_event_channel", || {
        if channel.get()?.engine.is_orphan() {
            return Ok(());
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { channel.take_back() });
        Ok(())
    });
}
