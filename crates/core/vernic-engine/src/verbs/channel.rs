//! Completion channels, on which an application sleeps until a completion comes (IBTA 11.4.2.2).
//!
//! Owns the queue of completion events and its descriptor. A completion queue that was armed pushes
//! its id here with its next completion. The application takes the event, arms the completion queue
//! again, and polls it once more (in this order no completion is missed).

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::error::{Busy, CreateError, os};
use crate::support::events::{CqId, EventQueue, lock};
use crate::verbs::context::Context;

/// A completion channel.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    queue: Arc<EventQueue<CqId>>,
    /// The completion queues that report here, of the type that `cq.rs` downcasts to.
    cqs: Mutex<HashMap<CqId, Weak<dyn Any + Send + Sync>>>,
    pub(super) users: AtomicU32,
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`CreateError::Os`] when the process has no descriptor left.
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, CreateError> {
        CompChannel::new(self)
    }
}

impl CompChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, CreateError> {
        context.alive()?;
        let queue = EventQueue::new().map_err(|e| os("make an eventfd for a channel", e))?;
        let queue = Arc::new(queue);
        context.engine().note_channel(&queue);
        let (context, cqs, users) = (context.clone(), Mutex::default(), AtomicU32::new(0));
        Ok(Arc::new(Self { context, queue, cqs, users }))
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Checks that no completion queue uses the channel any more. The descriptor closes when the
    /// last reference to the channel is dropped.
    ///
    /// # Errors
    /// [`Busy`] while completion queues use the channel.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            _ if self.context.is_orphan() => Ok(()),
            users => Err(Busy { object: "completion channel", users, by: "completion queues" }),
        }
    }

    pub(crate) fn queue(&self) -> &Arc<EventQueue<CqId>> {
        &self.queue
    }

    /// Adds a completion queue, which reports here from now on.
    pub(crate) fn add(&self, id: CqId, cq: Weak<dyn Any + Send + Sync>) {
        lock(&self.cqs).insert(id, cq);
    }

    /// Returns the queue that has raised an event; `None` if the queue is gone.
    pub(crate) fn find(&self, id: CqId) -> Option<Arc<dyn Any + Send + Sync>> {
        lock(&self.cqs).get(&id).and_then(Weak::upgrade)
    }

    /// Removes a completion queue that is gone, and the events that it has raised.
    pub(crate) fn purge(&self, id: CqId) {
        lock(&self.cqs).remove(&id);
        self.queue.purge(|entry| *entry != id);
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if self.context.is_orphan() {
            // Never freed: a thread of the parent may have been using these objects.
            std::mem::forget((self.queue.clone(), std::mem::take(&mut self.cqs)));
        }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.fd().as_raw_fd()
    }
}
