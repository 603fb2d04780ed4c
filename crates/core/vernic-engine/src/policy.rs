//! The policy of progress: which thread makes it, when it looks, when it offers its core to others,
//! when it sleeps, and when posts gather.
//!
//! The decisions are pure functions and a machine, without a clock, a lock or a thread: a poller's
//! (`poller.rs`), a post's (`post.rs`) and the background thread's (`background.rs`), with all
//! constants in one table (`table.rs`). [`Cells`] keeps what threads share of it, without a lock,
//! and is all that the data path touches. The tests run the policy in a model of cores and time
//! slices (`model.rs`).
//!
//! Which thread may run the lane, and that no work is left without a thread that knows of it, is
//! the business of `progress/engine.rs`.

mod background;
#[cfg(test)]
mod model;
mod poller;
mod post;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use vernic_proto::Time;

pub(crate) use background::{Background, Event, Next};
pub(crate) use poller::AfterPoll;
pub(crate) use post::{Gathered, Post};
pub(crate) use table::{TABLE, Table};

/// The background thread's next look is not planned: it looks by itself, or must not be woken.
const LOOKS_BY_ITSELF: u64 = 0;
/// The background thread sleeps until a descriptor is readable.
const SLEEPS: u64 = u64::MAX;

/// What threads share of the policy.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Calls that made progress on an application's thread. Written under the lane's lock.
    calls: AtomicU64,
    /// When the last of them was, nanoseconds.
    called_at: AtomicU64,
    /// Since when polls find nothing, nanoseconds; 0 if the last one found something.
    idle_since: AtomicU64,
    /// After how long without anything a poller offers its core, nanoseconds.
    offer_after: AtomicU64,
    /// Polls in a row that found nothing without the lane.
    polls_in_vain: AtomicU32,
    /// `calls` as such polls saw it last.
    calls_in_vain: AtomicU64,
    /// When the background thread looks next, in nanoseconds, or one of the values above. Changed
    /// to a later time only under the lane's lock.
    looks_at: AtomicU64,
    /// [`Link::poll_generation`](vernic_io::Link::poll_generation) of the descriptors that the
    /// background thread sleeps on while its next look is planned. Written under the lane's lock.
    watched: AtomicU64,
    /// The background thread ignores sockets because application threads make progress.
    backs_off: AtomicBool,
    /// Completion queues that are armed: a thread sleeps until one of them reports, so the
    /// background thread must not back off.
    armed: AtomicUsize,
    /// A thread is about to wait for something that is no completion.
    rested: AtomicBool,
}

impl Default for Cells {
    fn default() -> Self {
        Self {
            calls: AtomicU64::new(0),
            called_at: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            offer_after: AtomicU64::new(TABLE.offer_after_nanos),
            polls_in_vain: AtomicU32::new(0),
            calls_in_vain: AtomicU64::new(0),
            looks_at: AtomicU64::new(LOOKS_BY_ITSELF),
            watched: AtomicU64::new(0),
            backs_off: AtomicBool::new(false),
            armed: AtomicUsize::new(0),
            rested: AtomicBool::new(false),
        }
    }
}

/// The look that the background thread has planned: until then it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan(u64);

impl Plan {
    /// Whether work that is due at `next` would wait for the look.
    #[inline]
    pub(crate) fn is_late_for(self, next: Time) -> bool {
        next.nanos() < self.0
    }
}

/// Polls and posts.
impl Cells {
    /// Notes, under the lane, that an application's thread receives and fires timers. Posting does
    /// neither, so a program that only posts leaves both to the background thread.
    #[inline]
    pub(crate) fn called(&self, now: Time) {
        self.called_at.store(now.nanos(), Ordering::Relaxed);
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A poll had the lane, and `found` something or not.
    #[inline]
    pub(crate) fn polled(&self, found: bool, now: Time) -> AfterPoll {
        let since = self.idle_since.load(Ordering::Relaxed);
        let offer_after = || self.offer_after.load(Ordering::Relaxed);
        let (changed, after) = poller::polled(since, offer_after, found, now.nanos());
        if let Some(since) = changed {
            self.idle_since.store(since, Ordering::Relaxed);
        }
        after
    }

    /// A poll found nothing and did not get the lane.
    #[cold]
    pub(crate) fn polled_in_vain(&self, table: &Table) -> AfterPoll {
        let polls = self.polls_in_vain.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !poller::is_enough_in_vain(table, polls) {
            return AfterPoll::Return;
        }
        let calls = self.calls();
        let is_stuck = self.calls_in_vain.swap(calls, Ordering::Relaxed) == calls;
        if !is_stuck {
            self.polls_in_vain.store(0, Ordering::Relaxed);
        }
        poller::in_vain(table, polls, is_stuck)
    }

    /// An offer of the core that took `took` nanoseconds is over.
    #[cold]
    pub(crate) fn offered(&self, table: &Table, took: u64) {
        self.offer_after.store(poller::offer_after(table, took), Ordering::Relaxed);
    }

    /// What becomes of what was posted to a queue pair with `in_flight` requests in flight, where
    /// the background thread takes over within `takeover` nanoseconds.
    #[inline]
    pub(crate) fn posted(
        &self,
        table: &Table,
        in_flight: u64,
        gathered: impl FnOnce() -> Gathered,
        now: Time,
        takeover: u64,
    ) -> Post {
        if !post::may_gather(table, in_flight) {
            return Post::SendNow;
        }
        let others = post::Others {
            backs_off: self.backs_off.load(Ordering::Relaxed),
            polled_at: self.called_at(),
            looks_at: self.looks_at.load(Ordering::Acquire),
        };
        post::gather(table, in_flight, gathered(), others, now, takeover)
    }

    /// Calls that made progress on an application's thread so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// When the last of them was.
    pub(crate) fn called_at(&self) -> Time {
        Time(self.called_at.load(Ordering::Relaxed))
    }
}

/// What the background thread announces, and what it is told.
impl Cells {
    /// The look that the background thread has planned; `None` if it looks by itself.
    #[inline]
    pub(crate) fn plan(&self) -> Option<Plan> {
        let looks_at = self.looks_at.load(Ordering::Acquire);
        (looks_at != LOOKS_BY_ITSELF).then_some(Plan(looks_at))
    }

    /// The background thread plans its next look, or one without a time: it sleeps until a
    /// descriptor is readable. Under the lane's lock: a later holder compares its work with the
    /// plan.
    pub(crate) fn plan_look(&self, at: Option<Time>) {
        self.looks_at.store(at.map_or(SLEEPS, Time::nanos), Ordering::Release);
    }

    /// The background thread is awake, or is being woken, and plans anew.
    pub(crate) fn forget_plan(&self) {
        self.looks_at.store(LOOKS_BY_ITSELF, Ordering::Release);
    }

    /// The background thread sleeps on the link's descriptors of this generation. Under the lane's
    /// lock.
    pub(crate) fn watch(&self, generation: u64) {
        self.watched.store(generation, Ordering::Relaxed);
    }

    /// The generation of the descriptors that it sleeps on.
    #[inline]
    pub(crate) fn watched(&self) -> u64 {
        self.watched.load(Ordering::Relaxed)
    }

    /// The background thread leaves the sockets to pollers from now on. A queue armed before is not
    /// announced to it, nor a thread that went to rest: it asks for both afterwards.
    pub(crate) fn back_off(&self) -> Event {
        self.backs_off.store(true, Ordering::SeqCst);
        let is_armed = self.has_armed();
        Event::BackedOff { is_armed, rested: !is_armed && self.take_rested() }
    }

    /// It does so no longer.
    pub(crate) fn come_back(&self) {
        self.backs_off.store(false, Ordering::SeqCst);
    }

    /// Whether a thread went to rest since the last question.
    pub(crate) fn take_rested(&self) -> bool {
        self.rested.swap(false, Ordering::SeqCst)
    }

    /// The calling thread is about to wait for something that is no completion, and may have been
    /// the one that polled. True if the background thread, which counts on that, must be woken to
    /// look anew.
    pub(crate) fn rest(&self) -> bool {
        self.rested.store(true, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// A completion queue was armed that was not: its owner is about to sleep. True if the
    /// background thread must be woken.
    pub(crate) fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// An armed completion queue has raised its event, or is gone.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a completion queue is armed.
    pub(crate) fn has_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != 0
    }
}
