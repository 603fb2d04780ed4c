//! Event channels.
//!
//! Programs destroy a channel while a thread of theirs waits on it, or is about to (rping does).
//! With a kernel that thread waits for ever, or reads a descriptor in memory that was just freed.
//! Here it waits for ever in both cases: the memory of the channels that were destroyed last is
//! kept.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use vernic_cm::EventChannel;

use super::process::process;
use crate::boundary::{self, Failure};
use crate::layout::cm::rdma_event_channel;
use crate::object::lock;
use crate::pointer::{CObject, Handle};
use crate::waiting::Attempt;

/// An event channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: rdma_event_channel,
    /// `None` when it is destroyed.
    engine: Mutex<Option<Arc<EventChannel>>>,
}

fn gone() -> Failure {
    Failure::new(libc::EBADF, "the event channel is destroyed")
}

/// How many destroyed channels are kept.
const KEPT: usize = 64;

/// The channels that were destroyed last.
static DESTROYED: Mutex<VecDeque<Handle<rdma_event_channel>>> = Mutex::new(VecDeque::new());

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
        Ok(Handle::hand_out(Box::new(Self { base, engine: Mutex::new(Some(engine)) })))
    }

    /// The engine's.
    ///
    /// # Errors
    /// `EBADF` when it is destroyed.
    pub(crate) fn engine(&self) -> Result<Arc<EventChannel>, Failure> {
        lock(&self.engine).clone().ok_or_else(gone)
    }

    /// A call that waits for an event: `look` takes what is there.
    ///
    /// # Errors
    /// Those of `look`; `EAGAIN` if the program made the descriptor non-blocking.
    pub(crate) fn attempt(
        &self,
        look: impl FnOnce(&Arc<EventChannel>) -> Result<Option<c_int>, Failure>,
    ) -> Result<Attempt, Failure> {
        let Ok(engine) = self.engine() else { return Ok(Attempt::FOR_EVER) };
        match look(&engine)? {
            Some(code) => Ok(Attempt::Done(code)),
            None => Attempt::wait(self.base.fd),
        }
    }

    /// Ends a channel.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `EBADF` if it is destroyed already.
    pub(crate) fn destroy(channel: Handle<rdma_event_channel>) -> Result<(), Failure> {
        let object = channel.get()?;
        let engine = lock(&object.engine).take().ok_or_else(gone)?;
        // In a child of `fork` a thread that is not there may hold the lock: then it is never
        // freed.
        if let Ok(mut destroyed) = DESTROYED.try_lock() {
            destroyed.push_back(channel);
            if destroyed.len() > KEPT
                && let Some(oldest) = destroyed.pop_front()
            {
                // SAFETY: it was put there once, when it was destroyed, and is out now.
                drop(unsafe { oldest.take_back() });
            }
        }
        drop(engine);
        Ok(())
    }
}

/// `rdma_create_event_channel`.
pub(crate) extern "C" fn rdma_create_event_channel() -> Handle<rdma_event_channel> {
    boundary::pointer("rdma_create_event_channel", ChannelObject::create)
}

/// `rdma_destroy_event_channel`. Ids that are left on it stay until they are destroyed, but nobody
/// can take their events.
pub(crate) extern "C" fn rdma_destroy_event_channel(channel: Handle<rdma_event_channel>) {
    boundary::nothing("rdma_destroy_event_channel", || {
        if channel.get()?.engine()?.is_orphan() {
            return Ok(());
        }
        ChannelObject::destroy(channel)
    });
}
