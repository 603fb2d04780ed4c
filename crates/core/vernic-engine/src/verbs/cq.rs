//! Completion queues (IBTA 11.2.6, 11.4.2), which applications poll and arm.
//!
//! The completions themselves are in a [`CqRing`]. If the ring is empty, [`Cq::poll`] makes
//! progress on the caller's thread: it receives and sends packets of the device.
//!
//! Limits: at most [`MAX_CQE`] entries.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::limits::MAX_CQE;
use crate::error::{Busy, CqOverrun, CreateError, ResizeError, orphan_io};
use crate::policy::TABLE;
use crate::qp::completions::{CqRing, Wc};
use crate::support::events::{CqId, Element};
use crate::verbs::channel::CompChannel;
use crate::verbs::context::Context;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    ring: Arc<CqRing>,
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    polls: AtomicU32,
}

impl Context {
    /// Creates a completion queue for `depth` completions, 1 to [`MAX_CQE`]. When it is armed, it
    /// reports on `channel`.
    ///
    /// # Errors
    /// [`CreateError`] if the depth is out of range or the channel is of another device.
    pub fn create_cq(
        self: &Arc<Self>,
        depth: u32,
        channel: Option<&Arc<CompChannel>>,
    ) -> Result<Arc<Cq>, CreateError> {
        Cq::new(self, depth, channel)
    }
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Arc<CompChannel>>,
    ) -> Result<Arc<Self>, CreateError> {
        context.alive()?;
        check_depth(depth)?;
        if let Some(channel) = channel {
            if !Arc::ptr_eq(channel.context(), context) {
                return Err(CreateError::OtherDevice { what: "completion channel" });
            }
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        context.engine().in_use().add_cq();
        let id = CqId(context.next_id());
        let events = channel.map(|channel| channel.queue().clone());
        let ring = CqRing::new(id, context.engine().device().clone(), depth, events);
        let (context, polls) = (context.clone(), AtomicU32::new(0));
        let this = Arc::new(Self { ring, context, channel: channel.cloned(), polls });
        if let Some(channel) = channel {
            let weak = Arc::downgrade(&this);
            channel.add(id, weak);
        }
        Ok(this)
    }

    /// Returns the id by which asynchronous events name the queue.
    pub fn id(&self) -> CqId {
        self.ring.id()
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the channel on which the queue reports.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Returns how many completions the queue holds at most; 0 in a child of `fork`.
    pub fn depth(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { self.ring.depth() }
    }

    /// Returns how many completions are in the queue now. Unlike [`poll`](Self::poll), this makes
    /// no progress.
    pub fn waiting(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { self.ring.waiting() }
    }

    /// Whether a completion was lost because the queue was full. The queue stays failed until it is
    /// destroyed.
    pub fn is_failed(&self) -> bool {
        self.ring.is_failed()
    }

    /// Takes completions, oldest first, and returns their number. If there is none, makes progress
    /// on the caller's thread and tries once more. Never blocks. `T` is [`Wc`], or a type of the
    /// caller that is made from it.
    ///
    /// A call that returns completions does not send ACKs that are due, so that the application can
    /// continue sooner. The next call into the device, or the background thread, sends them.
    ///
    /// # Errors
    /// [`CqOverrun`] if the queue has lost a completion, and all completions before the lost one
    /// were taken.
    pub fn poll<T: From<Wc>>(&self, out: &mut [T]) -> Result<usize, CqOverrun> {
        if self.context.is_orphan() {
            return Ok(0);
        }
        let taken = self.ring.take(out);
        let engine = self.context.engine();
        if taken == 0 {
            let taken = engine.poll_inline(&self.ring, out);
            if taken == 0 && self.is_failed() {
                return self.overrun();
            }
            return Ok(taken);
        }
        let polls = self.polls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if polls.is_multiple_of(TABLE.polls_per_progress) {
            engine.progress_inline();
        }
        Ok(taken)
    }

    /// Returns the result of a poll of a failed queue: an error only when no completions are left.
    #[cold]
    fn overrun(&self) -> Result<usize, CqOverrun> {
        match self.ring.waiting() {
            0 => Err(CqOverrun { depth: self.depth() }),
            _ => Ok(0),
        }
    }

    /// Arms the queue: its next completion makes it report on its channel, once. With
    /// `solicited_only`, only a solicited or failed completion does. Completions that are in the
    /// queue already make no report, so the application polls after arming (IBTA 11.4.2.2). Does
    /// nothing if the queue has no channel.
    pub fn req_notify(&self, solicited_only: bool) {
        if self.channel.is_none() || self.context.is_orphan() {
            return;
        }
        if self.ring.arm(solicited_only) {
            self.context.engine().cq_armed();
        }
    }

    /// Changes how many completions the queue holds at most.
    ///
    /// # Errors
    /// [`ResizeError`] if more than `depth` completions are in the queue, or if `depth` is beyond
    /// the device's limit.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeError> {
        self.resize_rounded(depth, depth)
    }

    /// Resizes the queue as [`resize`](Self::resize) does, to a `depth` that the caller has rounded
    /// up. The completions in the queue must fit into `asked` entries.
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize).
    pub fn resize_rounded(&self, asked: u32, depth: u32) -> Result<(), ResizeError> {
        let depth = depth.max(asked);
        if depth == 0 || depth > MAX_CQE {
            return Err(ResizeError::Limit { value: depth, max: MAX_CQE });
        }
        if self.context.is_orphan() {
            return Err(ResizeError::Orphan);
        }
        self.ring.resize(asked, depth)
    }

    /// Checks that no queue pair uses the queue. No event of the queue is delivered after this.
    ///
    /// # Errors
    /// [`Busy`] while queue pairs use the queue.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.ring.users() {
            0 => {
                self.retire();
                Ok(())
            }
            _ if self.context.is_orphan() => Ok(()),
            users => Err(Busy { object: "completion queue", users, by: "queue pairs" }),
        }
    }

    /// Returns the ring to which completions are added.
    pub(crate) fn ring(&self) -> &Arc<CqRing> {
        &self.ring
    }

    fn retire(&self) {
        if self.context.is_orphan() {
            return;
        }
        self.ring.disarm();
        if let Some(channel) = &self.channel {
            channel.purge(self.id());
        }
        let element = Element::Cq(self.id());
        self.context.engine().events().purge(|event| event.element != element);
    }
}

impl CompChannel {
    /// Waits for the next event on the channel, and returns the completion queue that raised it.
    /// Waits without a time limit, unless the application has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event, `Interrupted` if a
    /// signal came, EIO if the device was closed.
    pub fn wait(&self) -> io::Result<Arc<Cq>> {
        if self.context().is_orphan() {
            return Err(orphan_io());
        }
        // Events of completion queues that were destroyed are skipped. This is bounded, because
        // each round takes one event from a bounded queue.
        loop {
            if let Some(cq) = find(self, self.queue().wait(|id| id)?) {
                return Ok(cq);
            }
        }
    }

    /// Takes the next event if there is one. Never waits.
    pub fn try_next(&self) -> Option<Arc<Cq>> {
        if self.context().is_orphan() {
            return None;
        }
        loop {
            if let Some(cq) = find(self, self.queue().try_next(|id| id)?) {
                return Some(cq);
            }
        }
    }
}

/// Returns the completion queue of an event; `None` if it was destroyed.
fn find(channel: &CompChannel, id: CqId) -> Option<Arc<Cq>> {
    channel.find(id)?.downcast().ok()
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.retire();
        self.context.engine().in_use().remove_cq();
        if self.context.is_orphan() {
            // In a child of `fork`: the ring is not freed, because another thread of the parent may
            // have been using it at the time of the fork.
            std::mem::forget(self.ring.clone());
        }
        if let Some(channel) = &self.channel {
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn check_depth(depth: u32) -> Result<(), CreateError> {
    if depth == 0 || depth > MAX_CQE {
        let (what, value, max) = ("completion queue depth", u64::from(depth), u64::from(MAX_CQE));
        return Err(CreateError::Limit { what, value, min: 1, max });
    }
    Ok(())
}
