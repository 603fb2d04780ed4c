//! The policy of progress: which thread makes it, and when that thread polls, offers its core to
//! others, and sleeps; and when posts gather in the batch.
//!
//! The decisions are pure functions and a machine, without a clock, a lock or a thread. They are
//! made for a thread that polls (`poller.rs`), for a post (`post.rs`) and for the background thread
//! (`background.rs`), with all constants in one table (`table.rs`). [`Cells`] keeps what threads
//! share of the policy, without a lock, and is all that the data path touches. The tests run the
//! policy in a model of cores and time slices (`model.rs`).
//!
//! This module does not decide which thread may run the lane, nor see to it that no work is left
//! without a thread that knows of it: `progress/engine.rs` does.

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

/// The value of [`Cells::looks_at`] while no poll of the background thread is planned: the thread
/// polls unasked, or must not be woken.
const LOOKS_BY_ITSELF: u64 = 0;
/// The value of [`Cells::looks_at`] while the background thread sleeps until a descriptor is
/// readable.
const SLEEPS: u64 = u64::MAX;

/// The state of the policy that threads share.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Calls that made progress on an application's thread. Written under the lane's lock.
    calls: AtomicU64,
    /// The time of the last of these calls, in nanoseconds.
    called_at: AtomicU64,
    /// The time since which polls find nothing, in nanoseconds; 0 if the last poll found something.
    idle_since: AtomicU64,
    /// How long a poller finds nothing before it offers its core, in nanoseconds.
    offer_after: AtomicU64,
    /// Polls in a row that did not get the lane and found nothing.
    polls_in_vain: AtomicU32,
    /// The value of `calls` that such polls saw last.
    calls_in_vain: AtomicU64,
    /// The time of the background thread's next poll, in nanoseconds, or one of the values above.
    /// Changed to a later time only under the lane's lock.
    looks_at: AtomicU64,
    /// [`Link::poll_generation`](vernic_io::Link::poll_generation) of the descriptors that the
    /// background thread sleeps on while its next poll is planned. Written under the lane's lock.
    watched: AtomicU64,
    /// Whether the background thread ignores sockets because application threads make progress.
    backs_off: AtomicBool,
    /// The number of completion queues that are armed: a thread sleeps until one of them reports,
    /// so the background thread must not back off.
    armed: AtomicUsize,
    /// Whether a thread is about to wait for something that is no completion.
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

/// The next poll that the background thread has planned: until then it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan(u64);

impl Plan {
    /// Whether work that is due at `next` would have to wait for the planned poll.
    #[inline]
    pub(crate) fn is_late_for(self, next: Time) -> bool {
        next.nanos() < self.0
    }
}

/// The part for polls and posts.
impl Cells {
    /// Notes, under the lane, that an application's thread receives and fires timers. Posting does
    /// neither, so a program that only posts leaves both to the background thread.
    #[inline]
    pub(crate) fn called(&self, now: Time) {
        self.called_at.store(now.nanos(), Ordering::Relaxed);
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Notes that a poll had the lane, and whether it `found` something. Returns what the poller
    /// does next.
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

    /// Notes that a poll found nothing and did not get the lane. Returns what the poller does next.
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

    /// Notes that an offer of the core is over, and that it took `took` nanoseconds.
    #[cold]
    pub(crate) fn offered(&self, table: &Table, took: u64) {
        self.offer_after.store(poller::offer_after(table, took), Ordering::Relaxed);
    }

    /// Decides what becomes of what was posted to a queue pair that has `in_flight` requests in
    /// flight. The background thread takes over within `takeover` nanoseconds.
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

    /// Returns the number of calls that made progress on an application's thread so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the time of the last such call.
    pub(crate) fn called_at(&self) -> Time {
        Time(self.called_at.load(Ordering::Relaxed))
    }
}

/// The part for what the background thread announces, and what others report to it.
impl Cells {
    /// Returns the poll that the background thread has planned; `None` if it polls unasked.
    #[inline]
    pub(crate) fn plan(&self) -> Option<Plan> {
        let looks_at = self.looks_at.load(Ordering::Acquire);
        (looks_at != LOOKS_BY_ITSELF).then_some(Plan(looks_at))
    }

    /// Plans the background thread's next poll, or one without a time: the thread sleeps until a
    /// descriptor is readable. Called under the lane's lock: a later holder compares its work with
    /// the plan.
    pub(crate) fn plan_look(&self, at: Option<Time>) {
        self.looks_at.store(at.map_or(SLEEPS, Time::nanos), Ordering::Release);
    }

    /// Forgets the plan: the background thread is awake, or is being woken, and plans anew.
    pub(crate) fn forget_plan(&self) {
        self.looks_at.store(LOOKS_BY_ITSELF, Ordering::Release);
    }

    /// Notes that the background thread sleeps on the link's descriptors of this generation. Called
    /// under the lane's lock.
    pub(crate) fn watch(&self, generation: u64) {
        self.watched.store(generation, Ordering::Relaxed);
    }

    /// Returns the generation of the descriptors that the background thread sleeps on.
    #[inline]
    pub(crate) fn watched(&self) -> u64 {
        self.watched.load(Ordering::Relaxed)
    }

    /// Notes that the background thread leaves the sockets to pollers from now on. Nothing
    /// announced to the thread a queue that was armed before, nor a thread that went to rest, so it
    /// asks for both afterwards.
    pub(crate) fn back_off(&self) -> Event {
        self.backs_off.store(true, Ordering::SeqCst);
        let is_armed = self.has_armed();
        Event::BackedOff { is_armed, rested: !is_armed && self.take_rested() }
    }

    /// Notes that the background thread no longer leaves the sockets to pollers.
    pub(crate) fn come_back(&self) {
        self.backs_off.store(false, Ordering::SeqCst);
    }

    /// Whether a thread went to rest since this was last asked.
    pub(crate) fn take_rested(&self) -> bool {
        self.rested.swap(false, Ordering::SeqCst)
    }

    /// Notes that the calling thread is about to wait for something that is no completion, and may
    /// have been the one that polled. Returns true if the background thread counts on that thread,
    /// and must be woken to check again.
    pub(crate) fn rest(&self) -> bool {
        self.rested.store(true, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// Counts a completion queue that is armed now, and was not: its owner is about to sleep.
    /// Returns true if the background thread must be woken.
    pub(crate) fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// Counts an armed completion queue no longer: it has raised its event, or is gone.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a completion queue is armed.
    pub(crate) fn has_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != 0
    }
}
