//! Completion channels, on which an application sleeps until a completion comes (IBTA 11.4.2.2).
//!
//! Owns a queue of completion events and its descriptor. When a completion is added to a completion
//! queue that is armed, the id of that queue is added here. The application takes this event, arms
//! the completion queue again, and then polls it. In this order no completion is missed.

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
    /// The completion queues that use this channel, as a type that `cq.rs` downcasts.
    cqs: Mutex<HashMap<CqId, Weak<dyn Any + Send + Sync>>>,
    pub(super) users: AtomicU32,
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`CreateError::Os`] if the process has no descriptor left.
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

    /// Adds a completion queue that reports on this channel.
    pub(crate) fn add(&self, id: CqId, cq: Weak<dyn Any + Send + Sync>) {
        lock(&self.cqs).insert(id, cq);
    }

    /// Returns the completion queue with this id; `None` if it was destroyed.
    pub(crate) fn find(&self, id: CqId) -> Option<Arc<dyn Any + Send + Sync>> {
        lock(&self.cqs).get(&id).and_then(Weak::upgrade)
    }

    /// Removes a completion queue that is destroyed, with the events that it has raised.
    pub(crate) fn purge(&self, id: CqId) {
        lock(&self.cqs).remove(&id);
        self.queue.purge(|entry| *entry != id);
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if self.context.is_orphan() {
            // In a child of `fork`: these objects are not freed, because another thread of the
            // parent may have been using them at the time of the fork.
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
