//! The state machine of the background thread. Its inputs are events, its output is what the thread
//! does next.
//!
//! ```text
//!                        enough calls                      no calls any more
//!   Judge ------------------------------> BackOff ----------------------------------.
//!     ^ \                                  | not armed                              |
//!     |  `--> Poll: found: again           v                                        |
//!     |         | nothing            Pause or, if a thread rests, Count             |
//!     |         v                          |                                        |
//!     `------ Watch <----------------------+----------------------------------------'
//! ```
//!
//! A poll that finds the lane taken is followed by a rest, and then the thread judges again.
//!
//! - *Backing off*, while application threads poll the device: the thread sleeps for the take-over
//!   time again and again, and only checks whether they still poll. To wake the thread for each
//!   packet would cost the application more than it gains.
//! - *Watching*, once application threads no longer poll, or while a completion queue is armed (its
//!   owner sleeps, or is about to): the thread drains the sockets and sleeps until one is readable.
//!
//! Backing off was a mistake if the thread finds packets afterwards, and no application thread has
//! called for a while. This happens with a program that polls for its send and then only reads its
//! memory, as `ib_write_lat` does. After such a mistake the thread watches for the next
//! [`ignore_callers_rounds`](Table::ignore_callers_rounds) rounds, even if application threads
//! call. A round begins each time that the thread judges.

use vernic_proto::Time;

use super::table::Table;

/// The next action of the thread, and the event that it reports afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Reads how many calls application threads have made, and whether a completion queue is armed:
    /// [`Event::Judged`].
    Judge,
    /// Announces that it backs off, and then checks again whether a completion queue is armed, and
    /// whether an application's thread has announced that it will wait for something other than a
    /// completion: [`Event::BackedOff`].
    BackOff,
    /// Sleeps for `nanos`, or until it is woken, without polling the sockets: [`Event::Paused`].
    Pause {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Sleeps as for [`Pause`](Self::Pause), because counting has shown that application threads
    /// still poll: [`Event::Stayed`].
    Stay {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Counts the calls that application threads make during `nanos`: [`Event::Counted`].
    Count {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Moves packets and fires timers, if the lane is free: [`Event::Polled`], or [`Event::Taken`]
    /// if another thread has the lane.
    Poll,
    /// Sleeps until a descriptor is readable, until another thread wakes it, or until the time that
    /// the last poll planned: [`Event::Slept`].
    Watch,
    /// Sleeps for `nanos`, and then does [`ServeOthers`](Self::ServeOthers).
    Rest {
        /// Nanoseconds.
        nanos: u64,
    },
    /// Serves local peers and, now and then, requests for the status and warnings. Otherwise this
    /// is done after a sleep on the descriptors, which the thread has not had. Then does
    /// [`Judge`](Self::Judge).
    ServeOthers,
}

/// The report of the thread about its last action.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The number of calls so far that made progress on applications' threads, and whether a
    /// completion queue is armed.
    Judged { calls: u64, is_armed: bool },
    /// Whether a completion queue is armed, and whether an application's thread has announced that
    /// it will wait for something other than a completion.
    BackedOff { is_armed: bool, caller_sleeps: bool },
    /// Whether an application's thread has announced meanwhile that it will wait for something
    /// other than a completion.
    Paused { caller_sleeps: bool },
    /// The thread has paused once more.
    Stayed,
    /// The number of calls of application threads, before and after the time of counting.
    Counted { before: u64, after: u64 },
    /// Whether the thread `found` packets, whether nothing is left to do now, and for how long no
    /// application thread had called before.
    Polled { found: bool, is_done: bool, silent_nanos: u64 },
    /// Another thread has the lane.
    Taken,
    /// The thread has slept while it watched.
    Slept,
}

/// The state of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    takeover_nanos: u64,
    calls_seen: u64,
    /// Whether application threads called between the last two times that the thread judged.
    called: bool,
    /// Whether the thread has backed off since it last polled.
    was_away: bool,
    /// The number of rounds for which the thread still watches even if application threads call.
    ignores_callers: u32,
    /// The number of polls in this round.
    polls: u32,
    /// How often in a row the lane was taken.
    taken: u32,
}

impl Background {
    /// Makes a machine for a thread that takes over `takeover_nanos` after the last call of an
    /// application thread.
    pub(crate) const fn new(takeover_nanos: u64) -> Self {
        Self {
            takeover_nanos,
            calls_seen: 0,
            called: false,
            was_away: false,
            ignores_callers: 0,
            polls: 0,
            taken: 0,
        }
    }

    /// Returns the latest time of the thread's next poll, if there is one. While application
    /// threads call now and then, the thread also polls now and then, so that they need not wake it
    /// for work that they leave behind.
    pub(crate) fn polls_by(&self, now: Time) -> Option<Time> {
        self.called.then(|| now + self.takeover_nanos)
    }

    /// Returns what the thread does next after an event.
    pub(crate) fn after(&mut self, table: &Table, event: Event) -> Next {
        match event {
            Event::Judged { calls, is_armed } => self.judge(table, calls, is_armed),
            Event::BackedOff { is_armed: true, .. } | Event::Stayed | Event::Slept => Next::Judge,
            Event::BackedOff { caller_sleeps, .. } => {
                self.was_away = true;
                match caller_sleeps {
                    true => Next::Count { nanos: table.count_nanos },
                    false => Next::Pause { nanos: self.takeover_nanos },
                }
            }
            Event::Paused { caller_sleeps: true } => Next::Count { nanos: table.count_nanos },
            Event::Paused { caller_sleeps: false } => Next::Judge,
            // An application thread that may have polled is about to wait. If no other thread
            // polls, the background thread takes over at once. Otherwise it sleeps for another
            // take-over time.
            Event::Counted { before, after } if after.wrapping_sub(before) < table.count_calls => {
                self.calls_seen = after;
                Next::Judge
            }
            Event::Counted { .. } => Next::Stay { nanos: self.takeover_nanos },
            Event::Polled { found, is_done, silent_nanos } => {
                let was_away = std::mem::take(&mut self.was_away);
                if was_away && found && silent_nanos > table.silence_nanos {
                    self.ignores_callers = table.ignore_callers_rounds;
                }
                self.polls += 1;
                self.taken = 0;
                match () {
                    () if is_done => Next::Watch,
                    () if self.polls < table.polls_per_round => Next::Poll,
                    () => Next::ServeOthers,
                }
            }
            // The holder moves packets, and is done in some microseconds, if it runs. On a shared
            // core it may be this thread's sudden turn that keeps it from running. A thread that
            // sleeps mostly has the core back when it wakes. One that yields has given away its
            // slice, and waits for the scheduler's next tick if the other computes.
            //
            // Where the lane is taken again and again, calls are long, as each fills a batch of
            // large packets. So the thread rests longer each time, and sees how many calls there
            // are in the end.
            Event::Taken => {
                self.was_away = false;
                let nanos = table.rest_nanos << self.taken.min(table.longer_rests);
                self.taken += 1;
                Next::Rest { nanos: nanos.min(self.takeover_nanos) }
            }
        }
    }

    /// Decides whether application threads make the progress, so that the background thread need
    /// not.
    fn judge(&mut self, table: &Table, calls: u64, is_armed: bool) -> Next {
        let made = calls.wrapping_sub(self.calls_seen);
        self.calls_seen = calls;
        self.called = made != 0;
        self.polls = 0;
        if self.ignores_callers != 0 {
            self.ignores_callers -= 1;
            return Next::Poll;
        }
        let enough = if self.was_away { table.staying_calls } else { table.active_calls };
        if made >= enough && !is_armed { Next::BackOff } else { Next::Poll }
    }
}
