//! The ring of a completion queue: the lane adds completions, and the application takes them.
//!
//! The thread that runs the lane adds completions while it has the lock of a queue pair. Those of
//! receives may go straight to a thread that has found its queue empty (`arrivals.rs`).
//! Applications have the handle `verbs::Cq`. Lock order: lane, queue pair, completion queue. The
//! ring's lock is held only while completions are copied.
//!
//! Limits: the ring has as many entries as the queue was created with. A completion that does not
//! fit is lost and fails the queue: it raises [`EventKind::CqError`] (IBTA 11.6.3.1, "CQ overrun")
//! and wakes the thread that sleeps on the queue's channel. Polling the queue is an error once the
//! entries before the lost one are taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vernic_proto::{Completion, Tag, WcOpcode, WcStatus};
use vernic_wire::{LocalRoute, Qpn};

use crate::device::book::{CQ_ERR, more};
use crate::device::opened::Device;
use crate::error::ResizeError;
use crate::qp::request_trace::TakenTrace;
use crate::support::events::{AsyncEvent, CqId, Element, EventKind, EventQueue, lock};

/// A completion, and when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The completion.
    pub completion: Completion,
    /// The time of the completion, in nanoseconds of CLOCK_MONOTONIC.
    /// [`Context::clocks`](crate::Context::clocks) returns the time of day that corresponds to it.
    /// All completions of one batch of packets have the time at which handling of the batch began,
    /// so the time is some microseconds early. It may be a microsecond ahead of the kernel's clock,
    /// from which the lanes' clock is corrected (`vernic_io::Clock`).
    pub timestamp_ns: u64,
}

impl std::ops::Deref for Wc {
    type Target = Completion;

    #[inline]
    fn deref(&self) -> &Completion {
        &self.completion
    }
}

/// An empty completion, to initialize an array that a poll fills.
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
    route: LocalRoute::NONE,
    vendor_err: 0,
};

/// Which completion makes the queue report on its channel (`ibv_req_notify_cq`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Armed {
    No,
    Solicited,
    Next,
}

#[derive(Debug)]
struct Entries {
    list: VecDeque<Wc>,
    depth: u32,
    armed: Armed,
    /// The trace of what the application takes, while another process asks for it.
    taken: Option<Box<TakenTrace>>,
}

/// The ring of a completion queue; see the head of this module.
#[derive(Debug)]
pub(crate) struct CqRing {
    id: CqId,
    device: Arc<Device>,
    /// The event queue of the completion channel, if the queue was created with one.
    channel: Option<Arc<EventQueue<CqId>>>,
    entries: Mutex<Entries>,
    /// The number of entries in the ring. Read without the ring's lock, so that a poll of an empty
    /// ring takes no lock.
    held: AtomicU32,
    failed: AtomicBool,
    /// The number of queue pairs and shared receive queues that complete in this queue.
    users: AtomicU32,
}

impl CqRing {
    pub(crate) fn new(
        id: CqId,
        device: Arc<Device>,
        depth: u32,
        channel: Option<Arc<EventQueue<CqId>>>,
    ) -> Arc<Self> {
        let list = VecDeque::with_capacity(depth as usize);
        Arc::new(Self {
            id,
            device,
            channel,
            entries: Mutex::new(Entries { list, depth, armed: Armed::No, taken: None }),
            held: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            users: AtomicU32::new(0),
        })
    }

    pub(crate) fn id(&self) -> CqId {
        self.id
    }

    /// Whether the queue has a channel, on which an application may sleep until a completion comes.
    #[inline]
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    pub(crate) fn depth(&self) -> u32 {
        lock(&self.entries).depth
    }

    /// Returns the number of completions that the application has not taken yet.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Arms the queue: the next completion makes it report on its channel, or with `solicited_only`
    /// the next solicited or failed completion. Returns true if the queue was not armed before.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let wanted = if solicited_only { Armed::Solicited } else { Armed::Next };
        let mut entries = lock(&self.entries);
        let was = entries.armed;
        entries.armed = was.max(wanted);
        was == Armed::No
    }

    /// Changes the number of entries to `depth`, if the application has left at most `asked`
    /// completions in the ring. `asked` is the number that the application gave; `depth` may be
    /// larger.
    pub(crate) fn resize(&self, asked: u32, depth: u32) -> Result<(), ResizeError> {
        let mut entries = lock(&self.entries);
        let held = entries.list.len() as u32;
        if held > asked {
            return Err(ResizeError::Held { value: asked, held });
        }
        let mut list = VecDeque::with_capacity(depth as usize);
        list.extend(entries.list.drain(..));
        entries.list = list;
        entries.depth = depth;
        Ok(())
    }

    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a completion. Returns false if there was no room; the queue has failed then.
    #[inline]
    pub(crate) fn push(&self, wc: Wc) -> bool {
        self.push_all(&[wc])
    }

    /// Adds completions in their order. Returns false if there was no room for all of them; the
    /// queue has failed then.
    pub(crate) fn push_all(&self, wcs: &[Wc]) -> bool {
        let (mut fire, mut fits) = (false, true);
        let mut entries = lock(&self.entries);
        for wc in wcs {
            fits = entries.list.len() < entries.depth as usize;
            if !fits {
                break;
            }
            entries.list.push_back(*wc);
            fire |= match entries.armed {
                Armed::No => false,
                Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
                Armed::Next => true,
            };
        }
        self.held.store(entries.list.len() as u32, Ordering::Release);
        let was_armed = entries.armed != Armed::No;
        if fire || !fits {
            entries.armed = Armed::No;
        }
        drop(entries);
        if !fits {
            self.overflow(was_armed);
        } else if fire {
            self.raise();
        }
        fits
    }

    /// Reports on the channel. The caller has disarmed the queue.
    fn raise(&self) {
        if let Some(channel) = &self.channel {
            self.device.cq_disarmed();
            channel.push(self.id);
        }
    }

    /// Removes the completions of a queue pair that is destroyed (IBTA 11.2.4.4).
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut entries = lock(&self.entries);
        entries.list.retain(|wc| wc.qpn != qpn);
        self.held.store(entries.list.len() as u32, Ordering::Release);
    }

    /// Takes completions, oldest first, and returns how many.
    #[inline]
    pub(crate) fn take<T: From<Wc>>(&self, out: &mut [T]) -> usize {
        if self.held.load(Ordering::Acquire) == 0 || out.is_empty() {
            return 0;
        }
        let mut entries = lock(&self.entries);
        if entries.taken.is_some() {
            self.trace(&mut entries, out.len());
        }
        let count = entries.list.len().min(out.len());
        for (place, wc) in out.iter_mut().zip(entries.list.drain(..count)) {
            *place = wc.into();
        }
        self.held.store(entries.list.len() as u32, Ordering::Release);
        count
    }

    /// Notes in the trace that the application takes `most` completions, or all.
    #[cold]
    #[inline(never)]
    fn trace(&self, entries: &mut Entries, most: usize) {
        let (now, Entries { list, taken, .. }) = (self.device.now(), entries);
        if let Some(trace) = taken {
            list.iter().take(most).for_each(|wc| trace.note(wc, wc.timestamp_ns, now));
        }
        if taken.as_ref().is_some_and(|trace| trace.is_over(now)) {
            *taken = None;
        }
    }

    /// Lets `f` read the trace of what the application takes, which lasts some time from now on.
    pub(crate) fn with_trace<T>(&self, f: impl FnOnce(&TakenTrace) -> T) -> T {
        let (now, mut entries) = (self.device.now(), lock(&self.entries));
        let trace = entries.taken.get_or_insert_with(|| Box::new(TakenTrace::begin(now)));
        trace.renew(now);
        f(trace)
    }

    /// Fails the queue. If it was `armed`, reports on the channel, because a thread may sleep on
    /// it.
    #[cold]
    fn overflow(&self, armed: bool) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            let depth = self.depth();
            tracing::warn!(
                cq = self.id.0,
                depth,
                more = more(CQ_ERR).map(tracing::field::display),
                "completion queue overflowed: poll more often or make it deeper"
            );
            self.device.note_cq_overflow();
            let event = AsyncEvent { kind: EventKind::CqError, element: Element::Cq(self.id) };
            self.device.events().push(event);
        }
        if armed {
            self.raise();
        }
    }

    /// Disarms the queue because it is destroyed.
    pub(crate) fn disarm(&self) {
        let was = std::mem::replace(&mut lock(&self.entries).armed, Armed::No);
        if was != Armed::No {
            self.device.cq_disarmed();
        }
    }
}

impl Drop for CqRing {
    fn drop(&mut self) {
        if self.device.is_orphan() {
            // In a child of `fork`: another thread of the parent may have been changing the list at
            // the time of the fork, so the list is not freed.
            let entries = self.entries.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(&mut entries.list));
        }
    }
}
