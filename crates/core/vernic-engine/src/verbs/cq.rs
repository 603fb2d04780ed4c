//! Completion queues (IBTA 11.2.6, 11.4.2), which applications poll and arm.
//!
//! The completions are in the [`CqRing`]. [`Cq::poll`] also drives the device: when the ring is
//! empty, it makes progress on the caller's thread.
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
    /// Creates a completion queue for `depth` completions, 1 to
    /// [`MAX_CQE`](crate::device::limits::MAX_CQE). It raises its events on `channel`.
    ///
    /// # Errors
    /// [`CreateError`]: depth out of range, channel of another device.
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

    /// Returns the id of the queue in asynchronous events.
    pub fn id(&self) -> CqId {
        self.ring.id()
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the channel that the queue raises events on.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Returns the largest number of completions that the queue holds; 0 for an orphan.
    pub fn depth(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { self.ring.depth() }
    }

    /// Returns the number of completions that wait now. Makes no progress, unlike
    /// [`poll`](Self::poll).
    pub fn waiting(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { self.ring.waiting() }
    }

    /// Whether a completion was lost because the queue was full. The queue stays failed until
    /// destroyed.
    pub fn is_failed(&self) -> bool {
        self.ring.is_failed()
    }

    /// Takes completions, oldest first, and returns how many. If none waits, this makes progress on
    /// the caller's thread and tries once more. Never blocks. `T` is [`Wc`], or the caller's own
    /// type that is made from it.
    ///
    /// A call that returns completions leaves due acknowledgements to the next call into the device
    /// or to the background thread, so that the application can continue first.
    ///
    /// # Errors
    /// [`CqOverrun`] once the queue has lost a completion and all completions before it were taken.
    pub fn poll<T: From<Wc>>(&self, out: &mut [T]) -> Result<usize, CqOverrun> {
        if self.context.is_orphan() {
            return Ok(0);
        }
        let taken = self.ring.take(out);
        let engine = self.context.engine();
        if taken == 0 {
            let taken = engine.poll_inline(|| self.ring.take(out));
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

    /// Returns the result of polling a failed queue: no error yet while completions wait (`out` had
    /// no room).
    #[cold]
    fn overrun(&self) -> Result<usize, CqOverrun> {
        match self.ring.waiting() {
            0 => Err(CqOverrun { depth: self.depth() }),
            _ => Ok(0),
        }
    }

    /// Arms the queue: its next completion raises an event on its channel, once. With
    /// `solicited_only`, only a solicited or failed completion does. Completions that already wait
    /// raise no event, so poll after arming (IBTA 11.4.2.2). Without a channel this does nothing.
    pub fn req_notify(&self, solicited_only: bool) {
        if self.channel.is_none() || self.context.is_orphan() {
            return;
        }
        if self.ring.arm(solicited_only) {
            self.context.engine().cq_armed();
        }
    }

    /// Changes how many completions the queue holds.
    ///
    /// # Errors
    /// [`ResizeError`] if more completions wait than would fit, or beyond the device's limit.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeError> {
        self.resize_rounded(depth, depth)
    }

    /// Resizes as [`resize`](Self::resize) does, to a `depth` that was rounded up. The waiting
    /// completions must fit into the `asked` entries.
    ///
    /// # Errors
    /// The same as for [`resize`](Self::resize).
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

    /// Checks that no queue pair uses the queue any more. Later events of the queue are not
    /// delivered.
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

    /// Returns the ring that completions are pushed to.
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
    /// Waits for the next event and returns its completion queue. On a blocking descriptor there is
    /// no time limit.
    ///
    /// # Errors
    /// `WouldBlock` if the application made the descriptor non-blocking and there is no event,
    /// `Interrupted` if a signal came, EIO if the device was closed.
    pub fn wait(&self) -> io::Result<Arc<Cq>> {
        if self.context().is_orphan() {
            return Err(orphan_io());
        }
        // Events of dead queues are skipped. Each round takes one event from the bounded event
        // queue.
        loop {
            if let Some(cq) = find(self, self.queue().wait(|id| id)?) {
                return Ok(cq);
            }
        }
    }

    /// Takes the next event if there is one; never waits.
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

/// Returns the queue that has raised an event on a channel; `None` if the queue is gone.
fn find(channel: &CompChannel, id: CqId) -> Option<Arc<Cq>> {
    channel.find(id)?.downcast().ok()
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.retire();
        self.context.engine().in_use().remove_cq();
        if self.context.is_orphan() {
            // Never freed: a thread of the parent may have been using the ring.
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
