//! The background thread, as a machine: events in, what to do next out.
//!
//! ```text
//!                        enough calls                      nobody polls any more
//!   Judge ------------------------------> BackOff ----------------------------------.
//!     ^ \                                  | not armed                              |
//!     |  `--> Look: found, taken: again    v                                        |
//!     |         | nothing            Pause or, if a thread rests, Count             |
//!     |         v                          |                                        |
//!     `------ Watch <----------------------+----------------------------------------'
//! ```
//!
//! - *Backing off*, while application threads poll the device: the thread sleeps for the take-over
//!   time again and again, and only asks whether they still do. A thread woken per packet would
//!   cost them more than it gives.
//! - *Watching*, once they stopped, or while a completion queue is armed (its owner sleeps, or is
//!   about to): it drains the sockets and sleeps on them.
//!
//! If backing off turns out wrong, because packets waited and nobody had called for a while (a
//! program that polls for its send and then looks at its memory, as `ib_write_lat` does), it
//! watches for the next [`distrust_rounds`](Table::distrust_rounds) rounds.

use vernic_proto::Time;

use super::table::Table;

/// What the thread does next, and which event it reports then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Counts calls and looks whether a completion queue is armed: [`Event::Judged`].
    Judge,
    /// Says that it backs off, and then looks again whether a completion queue is armed and whether
    /// a thread went to rest: [`Event::BackedOff`].
    BackOff,
    /// Sleeps for so long, or until it is woken, without a look at the sockets: [`Event::Paused`].
    Pause {
        /// Nanoseconds.
        nanos: u64,
    },
    /// As [`Pause`](Self::Pause), after it has counted calls: [`Event::Stayed`].
    Stay {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Counts the calls of so long: [`Event::Counted`].
    Count {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Makes progress, if the lane is free: [`Event::Looked`], or [`Event::Taken`].
    Look,
    /// Sleeps until a descriptor is readable, it is woken, or what the look planned is due:
    /// [`Event::Slept`].
    Watch,
    /// Yields, and looks then.
    OfferCore,
    /// Sleeps for a moment, sees to all that is not packets, and judges then.
    Rest,
    /// Sees to all that is not packets, for want of sleep, and judges then.
    SeeToOthers,
}

/// What the thread reports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Calls that made progress on applications' threads so far, and whether a queue is armed.
    Judged { calls: u64, is_armed: bool },
    /// Whether a queue is armed, and whether a thread went to rest.
    BackedOff { is_armed: bool, rested: bool },
    /// Whether a thread went to rest meanwhile.
    Paused { rested: bool },
    /// It has paused once more.
    Stayed,
    /// Calls before and after.
    Counted { before: u64, after: u64 },
    /// Whether it `found` packets, whether there is nothing left to do now, and for how long nobody
    /// had called before.
    Looked { found: bool, is_done: bool, silent_nanos: u64 },
    /// Another thread has the lane.
    Taken,
    /// It has slept while it watched.
    Slept,
}

/// The thread's state.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    takeover_nanos: u64,
    calls_seen: u64,
    /// Applications called between the last two times that it judged.
    called: bool,
    /// It has backed off since it looked last.
    was_away: bool,
    /// Rounds that it watches though applications call.
    distrust: u32,
    /// Looks in this round, and those that found the lane taken.
    looks: u32,
    taken: u32,
}

impl Background {
    /// Takes over `takeover_nanos` after the last call.
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

    /// When it looks next at the latest: while applications call now and then it looks now and
    /// then, so that they need not wake it for what they leave behind.
    pub(crate) fn looks_by(&self, now: Time) -> Option<Time> {
        self.called.then(|| now + self.takeover_nanos)
    }

    /// What comes next.
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
            // A thread that may have been the one that polls does so no longer: takes over at once
            // if no other does, or else leaves the others alone for another pause.
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

    /// Whether application threads make the progress, so that this one need not.
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
