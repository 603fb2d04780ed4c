//! The policy of progress. It decides whether an application's threads or the background thread
//! move packets. It decides when such a thread polls, yields its core or sleeps, and whether a post
//! waits in the batch for more posts.
//!
//! The decisions are pure functions and a machine, without a clock, a lock or a thread. They are
//! made for a thread that polls (`poller.rs`), for a post (`post.rs`) and for the background thread
//! (`background.rs`), with all constants in one table (`table.rs`). [`Cells`] keeps what threads
//! share of the policy, without a lock, and is all that the data path touches. The tests run the
//! policy in a model of cores and time slices (`model.rs`).
//!
//! `progress/engine.rs` decides which thread gets the lane, and makes sure that work which one
//! thread leaves behind is known to another.

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

/// The value of [`Cells::next_poll_at`] while other threads need not wake the background thread: it
/// is awake, was woken already, or leaves the sockets to polling threads.
const POLLS_UNASKED: u64 = 0;
/// The value of [`Cells::next_poll_at`] while the background thread sleeps until a descriptor is
/// readable.
const SLEEPS: u64 = u64::MAX;

/// The state of the policy that all threads of a device share, without a lock.
#[derive(Debug)]
pub(crate) struct Cells {
    /// The number of calls that made progress on an application's thread. Written under the lane's
    /// lock.
    calls: AtomicU64,
    /// The time of the last of these calls, in nanoseconds.
    called_at: AtomicU64,
    /// The time since which polls find nothing, in nanoseconds; 0 if the last poll found something.
    idle_since: AtomicU64,
    /// How long polls find nothing before the polling thread yields its core, in nanoseconds.
    offer_after: AtomicU64,
    /// The number of polls in a row that did not get the lane and found no completion.
    polls_without_lane: AtomicU32,
    /// The value of `calls` when a poll without the lane last yielded or slept. If `calls` is the
    /// same later, no application's thread has had the lane in between.
    calls_without_lane: AtomicU64,
    /// The time of the background thread's next poll, in nanoseconds, or one of the values above.
    /// Changed to a later time only under the lane's lock.
    next_poll_at: AtomicU64,
    /// [`Link::poll_generation`](vernic_io::Link::poll_generation) of the descriptors that the
    /// background thread sleeps on while its next poll is planned. Written under the lane's lock.
    watched: AtomicU64,
    /// Whether the background thread ignores sockets because application threads make progress.
    backs_off: AtomicBool,
    /// The number of completion queues that are armed. Their owners sleep until the queue raises an
    /// event, so the background thread must not back off.
    armed: AtomicUsize,
    /// Whether an application's thread has announced, by [`Cells::rest`], that it is about to wait
    /// for something other than a completion. The background thread clears it.
    caller_sleeps: AtomicBool,
}

impl Default for Cells {
    fn default() -> Self {
        Self {
            calls: AtomicU64::new(0),
            called_at: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            offer_after: AtomicU64::new(TABLE.offer_after_nanos),
            polls_without_lane: AtomicU32::new(0),
            calls_without_lane: AtomicU64::new(0),
            next_poll_at: AtomicU64::new(POLLS_UNASKED),
            watched: AtomicU64::new(0),
            backs_off: AtomicBool::new(false),
            armed: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
        }
    }
}

/// The time of the next poll that the background thread has planned. It sleeps until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan(u64);

impl Plan {
    /// Whether work that is due at `next` is due before the planned poll.
    #[inline]
    pub(crate) fn is_late_for(self, next: Time) -> bool {
        next.nanos() < self.0
    }
}

/// Methods for threads that poll and post.
impl Cells {
    /// Counts a call in which an application's thread receives packets and fires timers. The caller
    /// holds the lane. Posts are not counted, because they do neither: for a program that only
    /// posts, the background thread does both.
    #[inline]
    pub(crate) fn called(&self, now: Time) {
        self.called_at.store(now.nanos(), Ordering::Relaxed);
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Notes that the call which was counted last has pulled payload out of the memory of a local
    /// peer. While the background thread backs off, the call then counts as several, because it
    /// took as long. The caller holds the lane.
    #[cold]
    pub(crate) fn pulled(&self, table: &Table) {
        if self.backs_off.load(Ordering::Relaxed) {
            let calls = self.calls.load(Ordering::Relaxed);
            self.calls.store(calls + table.calls_of_a_copy - 1, Ordering::Relaxed);
        }
    }

    /// Notes a poll that had the lane, and whether it `found` something. Returns what the polling
    /// thread does next.
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

    /// Notes a poll that did not get the lane and found no completion. Returns what the polling
    /// thread does next.
    #[cold]
    pub(crate) fn polled_without_lane(&self, table: &Table) -> AfterPoll {
        let polls = self.polls_without_lane.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !poller::is_enough_without_lane(table, polls) {
            return AfterPoll::Return;
        }
        let calls = self.calls();
        let is_stuck = self.calls_without_lane.swap(calls, Ordering::Relaxed) == calls;
        if !is_stuck {
            self.polls_without_lane.store(0, Ordering::Relaxed);
        }
        poller::without_lane(table, polls, is_stuck)
    }

    /// Notes that a polling thread has yielded its core, and got it back after `took` nanoseconds.
    #[cold]
    pub(crate) fn offered(&self, table: &Table, took: u64) {
        self.offer_after.store(poller::offer_after(table, took), Ordering::Relaxed);
    }

    /// Decides whether a post is sent at once or waits in the batch. The queue pair of the post has
    /// `in_flight` requests in flight. `gathered` returns what the batch contains. `takeover` is
    /// the take-over time of the background thread in nanoseconds.
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
            next_poll_at: self.next_poll_at.load(Ordering::Acquire),
        };
        post::gather(table, in_flight, gathered(), others, now, takeover)
    }

    /// Returns the number of calls that made progress on an application's thread so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the time of the last call that made progress on an application's thread.
    pub(crate) fn called_at(&self) -> Time {
        Time(self.called_at.load(Ordering::Relaxed))
    }
}

/// Methods for what the background thread announces to other threads, and what they report to it.
impl Cells {
    /// Returns the poll that the background thread has planned; `None` if the thread need not be
    /// woken for work that is due earlier.
    #[inline]
    pub(crate) fn plan(&self) -> Option<Plan> {
        let next_poll_at = self.next_poll_at.load(Ordering::Acquire);
        (next_poll_at != POLLS_UNASKED).then_some(Plan(next_poll_at))
    }

    /// Plans the background thread's next poll for the time `at`. With `None` the thread sleeps
    /// until a descriptor is readable. The caller holds the lane: a later holder compares its work
    /// with the plan.
    pub(crate) fn plan_poll(&self, at: Option<Time>) {
        self.next_poll_at.store(at.map_or(SLEEPS, Time::nanos), Ordering::Release);
    }

    /// Forgets the plan: the background thread is awake, or is being woken, and plans anew.
    pub(crate) fn forget_plan(&self) {
        self.next_poll_at.store(POLLS_UNASKED, Ordering::Release);
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

    /// Notes that the background thread leaves the sockets to polling threads from now on.
    /// [`arm`](Self::arm) and [`rest`](Self::rest) wake the thread only from now on, so the
    /// returned event says what they noted before.
    pub(crate) fn back_off(&self) -> Event {
        self.backs_off.store(true, Ordering::SeqCst);
        let is_armed = self.has_armed();
        Event::BackedOff { is_armed, caller_sleeps: !is_armed && self.take_caller_sleeps() }
    }

    /// Notes that the background thread no longer leaves the sockets to polling threads.
    pub(crate) fn come_back(&self) {
        self.backs_off.store(false, Ordering::SeqCst);
    }

    /// Whether an application's thread has called [`rest`](Self::rest) since the last call of this
    /// method.
    pub(crate) fn take_caller_sleeps(&self) -> bool {
        self.caller_sleeps.swap(false, Ordering::SeqCst)
    }

    /// Notes that the calling thread is about to wait for something other than a completion.
    /// Returns true if the background thread must be woken: it has left the sockets to polling
    /// threads, of which the caller may have been the only one.
    pub(crate) fn note_caller_sleeps(&self) -> bool {
        self.caller_sleeps.store(true, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// Counts a completion queue that has just been armed: its owner is about to sleep. Returns
    /// true if the background thread must be woken, because it has left the sockets to polling
    /// threads.
    pub(crate) fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::SeqCst);
        self.backs_off.load(Ordering::SeqCst)
    }

    /// Counts a completion queue that is no longer armed: it has raised its event, or was
    /// destroyed.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a completion queue is armed.
    pub(crate) fn has_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != 0
    }
}
