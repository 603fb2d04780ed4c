//! The background thread as a machine: events go in, and what the thread does next comes out.
//!
//! ```text
//!                        enough calls                      no calls any more
//!   Judge ------------------------------> BackOff ----------------------------------.
//!     ^ \                                  | not armed                              |
//!     |  `--> Look: found, taken: again    v                                        |
//!     |         | nothing            Pause or, if a thread rests, Count             |
//!     |         v                          |                                        |
//!     `------ Watch <----------------------+----------------------------------------'
//! ```
//!
//! - *Backing off*, while application threads poll the device: the thread sleeps for the take-over
//!   time again and again, and only checks whether they still poll. A thread woken per packet would
//!   cost them more than it gives.
//! - *Watching*, once they have stopped, or while a completion queue is armed (its owner sleeps, or
//!   is about to): the thread drains the sockets and sleeps on them.
//!
//! Backing off is wrong if packets waited and no application had called for a while. So it is with
//! a program that polls for its send and then watches its memory, as `ib_write_lat` does. The
//! thread then watches for the next [`distrust_rounds`](Table::distrust_rounds) rounds.

use vernic_proto::Time;

use super::table::Table;

/// The next action of the thread, and the event that it reports afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Counts calls and checks whether a completion queue is armed: [`Event::Judged`].
    Judge,
    /// Announces that it backs off, and then checks again whether a completion queue is armed and
    /// whether a thread went to rest: [`Event::BackedOff`].
    BackOff,
    /// Sleeps for `nanos`, or until it is woken, without polling the sockets: [`Event::Paused`].
    Pause {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Sleeps as for [`Pause`](Self::Pause), after it has counted calls: [`Event::Stayed`].
    Stay {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Counts the calls within `nanos`: [`Event::Counted`].
    Count {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Makes progress, if the lane is free: [`Event::Looked`], or [`Event::Taken`].
    Look,
    /// Sleeps until a descriptor is readable, until it is woken, or until what the last poll
    /// planned is due: [`Event::Slept`].
    Watch,
    /// Yields, and polls afterwards.
    OfferCore,
    /// Sleeps for a moment, sees to everything but packets, and judges afterwards.
    Rest,
    /// Sees to everything but packets, for there was no sleep in which to do so, and judges
    /// afterwards.
    SeeToOthers,
}

/// A report of the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The calls that made progress on applications' threads so far, and whether a queue is armed.
    Judged { calls: u64, is_armed: bool },
    /// Whether a queue is armed, and whether a thread went to rest.
    BackedOff { is_armed: bool, rested: bool },
    /// Whether a thread went to rest meanwhile.
    Paused { rested: bool },
    /// The thread has paused once more.
    Stayed,
    /// The calls before and after the time in which they were counted.
    Counted { before: u64, after: u64 },
    /// Whether the thread `found` packets, whether nothing is left to do now, and for how long no
    /// application had called before.
    Looked { found: bool, is_done: bool, silent_nanos: u64 },
    /// Another thread has the lane.
    Taken,
    /// The thread has slept while it watched.
    Slept,
}

/// The state of the background thread.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    takeover_nanos: u64,
    calls_seen: u64,
    /// Whether applications called between the last two times that the thread judged.
    called: bool,
    /// Whether the thread has backed off since it last polled.
    was_away: bool,
    /// Rounds for which the thread still watches though applications call.
    distrust: u32,
    /// Polls in this round, and those that found the lane taken.
    looks: u32,
    taken: u32,
}

impl Background {
    /// Makes a machine that takes over `takeover_nanos` after the last call.
    pub(crate) const fn new(takeover_nanos: u64) -> Self {
        Self {
            takeover_nanos,
            calls_seen: 0,
            called: false,
            was_away: false,
            distrust: 0,
            looks: 0,
            taken: 0,
        }
    }

    /// Returns when the thread polls next at the latest. While applications call now and then, the
    /// thread polls now and then, so that they need not wake it for what they leave behind.
    pub(crate) fn looks_by(&self, now: Time) -> Option<Time> {
        self.called.then(|| now + self.takeover_nanos)
    }

    /// Returns what the thread does next after an event.
    pub(crate) fn after(&mut self, table: &Table, event: Event) -> Next {
        match event {
            Event::Judged { calls, is_armed } => self.judge(table, calls, is_armed),
            Event::BackedOff { is_armed: true, .. } | Event::Stayed | Event::Slept => Next::Judge,
            Event::BackedOff { rested, .. } => {
                self.was_away = true;
                match rested {
                    true => Next::Count { nanos: table.count_nanos },
                    false => Next::Pause { nanos: self.takeover_nanos },
                }
            }
            Event::Paused { rested: true } => Next::Count { nanos: table.count_nanos },
            Event::Paused { rested: false } => Next::Judge,
            // A thread that may have been the one that polled does so no longer. If no other thread
            // polls, the background thread takes over at once; else it leaves the others alone for
            // another pause.
            Event::Counted { before, after } if after.wrapping_sub(before) < table.count_calls => {
                self.calls_seen = after;
                Next::Judge
            }
            Event::Counted { .. } => Next::Stay { nanos: self.takeover_nanos },
            Event::Looked { found, is_done, silent_nanos } => {
                let was_away = std::mem::take(&mut self.was_away);
                if was_away && found && silent_nanos > table.silence_nanos {
                    self.distrust = table.distrust_rounds;
                }
                self.looks += 1;
                match () {
                    () if is_done => Next::Watch,
                    () if self.looks < table.looks_per_round => Next::Look,
                    () => Next::SeeToOthers,
                }
            }
            Event::Taken => {
                self.was_away = false;
                self.looks += 1;
                self.taken += 1;
                // The holder moves packets, and is done in some microseconds, if it runs.
                match () {
                    () if self.looks < table.looks_per_round => Next::OfferCore,
                    () if self.taken < table.looks_per_round => Next::SeeToOthers,
                    () => Next::Rest,
                }
            }
        }
    }

    /// Decides whether application threads make the progress, so that the background thread need
    /// not.
    fn judge(&mut self, table: &Table, calls: u64, is_armed: bool) -> Next {
        let made = calls.wrapping_sub(self.calls_seen);
        self.calls_seen = calls;
        self.called = made != 0;
        (self.looks, self.taken) = (0, 0);
        if self.distrust != 0 {
            self.distrust -= 1;
            return Next::Look;
        }
        let enough = if self.was_away { table.staying_calls } else { table.active_calls };
        if made >= enough && !is_armed { Next::BackOff } else { Next::Look }
    }
}
