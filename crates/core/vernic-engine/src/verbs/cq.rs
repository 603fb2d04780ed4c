//! Completion queues (IBTA 11.2.6, 11.4.2): a bounded ring, armed for events or not.
//!
//! Owns the ring. Pushed to by whoever runs the lane (under the lock of a queue pair), polled by
//! the application. [`Cq::poll`] is also what drives the device: when the ring is empty it makes
//! progress on the caller's thread.
//!
//! Lock order: lane, queue pair, completion queue. The ring's lock is held for copies only.
//!
//! Limits: [`MAX_CQE`] entries. One more than fits loses the entry, fails the queue, raises
//! [`EventKind::CqError`] (IBTA 11.6.3.1, "CQ overrun") and wakes who sleeps on its channel;
//! polling it is an error once the entries before the lost one are taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vernic_proto::{Completion, Tag, WcOpcode, WcStatus};
use vernic_wire::Qpn;

use crate::device::limits::MAX_CQE;
use crate::error::{Busy, CqOverrun, CreateError, ResizeError};
use crate::support::events::{AsyncEvent, CqId, Element, EventKind, lock};
use crate::verbs::channel::CompChannel;
use crate::verbs::context::Context;

/// A completion, and when it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// What completed.
    pub completion: Completion,
    /// When: nanoseconds of CLOCK_MONOTONIC ([`Context::clocks`](crate::Context::clocks) tells the
    /// time of day that goes with it). Completions of one batch of packets have one time, that at
    /// which the batch was begun: some microseconds early, never late.
    pub timestamp_ns: u64,
}

impl std::ops::Deref for Wc {
    type Target = Completion;

    #[inline]
    fn deref(&self) -> &Completion {
        &self.completion
    }
}

/// A completion to fill arrays with before a poll.
pub const EMPTY_WC: Wc = Wc { completion: EMPTY, timestamp_ns: 0 };

const EMPTY: Completion = Completion {
    wr_id: 0,
    status: WcStatus::General,
    opcode: WcOpcode::Send,
    byte_len: 0,
    tag: Tag::None,
    qpn: Qpn::SMI,
    src_qpn: Qpn::SMI,
    solicited: false,
    grh: false,
    sl: 0,
    vendor_err: 0,
};

/// Polls that found something, after which one makes progress all the same, so that an
/// application that is always served from the ring still sends ACKs.
const POLLS_PER_PROGRESS: u32 = 16;

/// Polls that found nothing, after which one offers its core to others, where polling makes no
/// progress: some microseconds.
const IDLE_POLLS_PER_YIELD: u32 = 512;

/// For which completion the queue raises an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Armed {
    No,
    Solicited,
    Next,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Wc>,
    depth: u32,
    armed: Armed,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    this: Weak<Self>,
    id: CqId,
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    ring: Mutex<Ring>,
    /// Entries in the ring: read without its lock to find it empty.
    held: AtomicU32,
    polls: AtomicU32,
    failed: AtomicBool,
    users: AtomicU32,
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
        let entries = VecDeque::with_capacity(depth as usize);
        context.engine().cqs.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            id: CqId(context.next_id()),
            context: context.clone(),
            channel: channel.cloned(),
            ring: Mutex::new(Ring { entries, depth, armed: Armed::No }),
            held: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            users: AtomicU32::new(0),
        }))
    }

    /// Its name in asynchronous events.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The channel that it raises events on.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Completions that it holds at most; none if it is an orphan's.
    pub fn depth(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { lock(&self.ring).depth }
    }

    /// Completions that wait now. Makes no progress, unlike [`poll`](Self::poll).
    pub fn waiting(&self) -> u32 {
        if self.context.is_orphan() { 0 } else { self.held.load(Ordering::Acquire) }
    }

    /// Whether a completion was lost because the queue was full. It stays failed until destroyed.
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Takes completions, oldest first, and returns how many. With none waiting it makes progress
    /// on the caller's thread and looks again; it never blocks. `T` is [`Wc`], or a type of the
    /// caller's that is made from it.
    ///
    /// When it returns completions it leaves acknowledgements that are due for the next call into
    /// the device, or for the background thread: the application comes first.
    ///
    /// # Errors
    /// [`CqOverrun`] once the queue has lost a completion and those before it are taken.
    pub fn poll<T: From<Wc>>(&self, out: &mut [T]) -> Result<usize, CqOverrun> {
        if self.context.is_orphan() {
            return Ok(0);
        }
        let taken = self.take(out);
        let engine = self.context.engine();
        if taken == 0 {
            let taken = match engine.is_driven() {
                true => self.poll_driven(out),
                false => engine.poll_inline(|| self.take(out)),
            };
            if taken == 0 && self.is_failed() {
                return self.overrun();
            }
            return Ok(taken);
        }
        if !engine.is_driven()
            && self.polls.fetch_add(1, Ordering::Relaxed) % POLLS_PER_PROGRESS
                == POLLS_PER_PROGRESS - 1
        {
            engine.progress_inline();
        }
        Ok(taken)
    }

    /// Looks once more where other threads make the progress, and offers the core now and then.
    fn poll_driven<T: From<Wc>>(&self, out: &mut [T]) -> usize {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        if polls % IDLE_POLLS_PER_YIELD == IDLE_POLLS_PER_YIELD - 1 {
            std::thread::yield_now();
        }
        self.take(out)
    }

    /// What polling a failed queue says: nothing yet while completions wait (`out` had no room).
    #[cold]
    fn overrun(&self) -> Result<usize, CqOverrun> {
        match self.held.load(Ordering::Acquire) {
            0 => Err(CqOverrun { depth: self.depth() }),
            _ => Ok(0),
        }
    }

    /// Arms the queue: its next completion (with `solicited_only`, the next solicited or failed
    /// one) raises an event on its channel, once. Completions that wait already raise none: poll
    /// after arming (IBTA 11.4.2.2). Without a channel it does nothing.
    pub fn req_notify(&self, solicited_only: bool) {
        if self.channel.is_none() || self.context.is_orphan() {
            return;
        }
        let wanted = if solicited_only { Armed::Solicited } else { Armed::Next };
        let was = {
            let mut ring = lock(&self.ring);
            let was = ring.armed;
            ring.armed = was.max(wanted);
            was
        };
        if was == Armed::No {
            self.context.engine().cq_armed();
        }
    }

    /// Changes how many completions it holds.
    ///
    /// # Errors
    /// [`ResizeError`] if more wait than would fit, or beyond the device's limit.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeError> {
        self.resize_rounded(depth, depth)
    }

    /// As [`resize`](Self::resize), to a `depth` that was rounded up: what waits has to fit into
    /// the `asked` entries.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn resize_rounded(&self, asked: u32, depth: u32) -> Result<(), ResizeError> {
        let depth = depth.max(asked);
        if depth == 0 || depth > MAX_CQE {
            return Err(ResizeError::Limit { value: depth, max: MAX_CQE });
        }
        if self.context.is_orphan() {
            return Err(ResizeError::Orphan);
        }
        let mut ring = lock(&self.ring);
        let held = ring.entries.len() as u32;
        if held > asked {
            return Err(ResizeError::Held { value: asked, held });
        }
        let mut entries = VecDeque::with_capacity(depth as usize);
        entries.extend(ring.entries.drain(..));
        ring.entries = entries;
        ring.depth = depth;
        Ok(())
    }

    /// Checks that no queue pair uses it any more; later events of it are not delivered.
    ///
    /// # Errors
    /// [`Busy`] while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.users.load(Ordering::Acquire) {
            0 => {
                self.retire();
                Ok(())
            }
            _ if self.context.is_orphan() => Ok(()),
            users => Err(Busy { object: "completion queue", users, by: "queue pairs" }),
        }
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a completion. False if there was no room: the queue has failed.
    pub(crate) fn push(&self, wc: Wc) -> bool {
        let fire = {
            let mut ring = lock(&self.ring);
            if ring.entries.len() >= ring.depth as usize {
                let armed = std::mem::replace(&mut ring.armed, Armed::No) != Armed::No;
                drop(ring);
                self.overflow(armed);
                return false;
            }
            ring.entries.push_back(wc);
            self.held.store(ring.entries.len() as u32, Ordering::Release);
            let special = wc.solicited || wc.status != WcStatus::Success;
            let fire = match ring.armed {
                Armed::No => false,
                Armed::Solicited => special,
                Armed::Next => true,
            };
            if fire {
                ring.armed = Armed::No;
            }
            fire
        };
        if fire {
            self.raise();
        }
        true
    }

    /// Reports on the channel: the queue was armed and is not any more.
    fn raise(&self) {
        if let Some(channel) = &self.channel {
            self.context.engine().cq_disarmed();
            channel.push(self.id, self.this.clone());
        }
    }

    /// Removes the completions of a queue pair that is destroyed (IBTA 11.2.4.4).
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut ring = lock(&self.ring);
        ring.entries.retain(|wc| wc.qpn != qpn);
        self.held.store(ring.entries.len() as u32, Ordering::Release);
    }

    #[inline]
    fn take<T: From<Wc>>(&self, out: &mut [T]) -> usize {
        if self.held.load(Ordering::Acquire) == 0 || out.is_empty() {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let count = ring.entries.len().min(out.len());
        for (place, wc) in out.iter_mut().zip(ring.entries.drain(..count)) {
            *place = wc.into();
        }
        self.held.store(ring.entries.len() as u32, Ordering::Release);
        count
    }

    /// `armed`: somebody sleeps, or is about to, until the queue reports.
    #[cold]
    fn overflow(&self, armed: bool) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            let depth = self.depth();
            tracing::warn!(
                cq = self.id.0,
                depth,
                "completion queue overflowed: poll more often or make it deeper"
            );
            let engine = self.context.engine();
            engine.cq_overflows.fetch_add(1, Ordering::Relaxed);
            let event = AsyncEvent { kind: EventKind::CqError, element: Element::Cq(self.id) };
            engine.events.push(event);
        }
        if armed {
            self.raise();
        }
    }

    fn retire(&self) {
        if self.context.is_orphan() {
            return;
        }
        let was = std::mem::replace(&mut lock(&self.ring).armed, Armed::No);
        if was != Armed::No {
            self.context.engine().cq_disarmed();
        }
        if let Some(channel) = &self.channel {
            channel.purge(self.id);
        }
        let element = Element::Cq(self.id);
        self.context.engine().events.purge(|event| event.element != element);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.retire();
        self.context.engine().cqs.fetch_sub(1, Ordering::Relaxed);
        if self.context.is_orphan() {
            // Another thread of the parent may have been at work on it.
            let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(&mut ring.entries));
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
