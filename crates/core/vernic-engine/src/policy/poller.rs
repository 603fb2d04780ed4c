//! An application thread that polls: when it yields its core to other threads, and when it sleeps.
//!
//! Pure functions over plain values; [`Cells`](super::Cells) keeps what threads share.

use super::table::Table;

/// The action of a thread after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPoll {
    /// The thread returns to the application.
    Return,
    /// The thread yields its core first, and reports how long it was without the core.
    OfferCore,
    /// The thread sleeps for [`rest_nanos`](Table::rest_nanos) first.
    Rest,
}

/// Returns what the thread does after a poll that had the lane, and the new value of `since` if it
/// changes. `found` says whether the poll found something. `since` is the time at which polls began
/// to find nothing; 0 means that the last poll found something.
#[inline]
pub(super) fn polled(
    since: u64,
    offer_after: impl FnOnce() -> u64,
    found: bool,
    now: u64,
) -> (Option<u64>, AfterPoll) {
    if found {
        return (Some(0), AfterPoll::Return);
    }
    if since == 0 {
        return (Some(now), AfterPoll::Return);
    }
    if now < since.saturating_add(offer_after()) {
        return (None, AfterPoll::Return);
    }
    (Some(now), AfterPoll::OfferCore)
}

/// Returns how long polls find nothing before the thread next yields its core, if the core came
/// back `took` nanoseconds after the last yield.
pub(super) const fn offer_after(table: &Table, took: u64) -> u64 {
    if took > table.long_offer_nanos {
        table.wary_offer_after_nanos
    } else {
        table.offer_after_nanos
    }
}

/// Whether a thread yields or sleeps after its poll number `polls` in a row that did not get the
/// lane.
pub(super) const fn is_enough_without_lane(table: &Table, polls: u32) -> bool {
    polls.is_multiple_of(table.polls_per_offer)
}

/// Returns what the thread does after its poll number `polls` in a row that did not get the lane,
/// if [`is_enough_without_lane`]. `is_stuck` says that no application's thread has had the lane
/// since the last time that this function was called.
pub(super) const fn without_lane(table: &Table, polls: u32, is_stuck: bool) -> AfterPoll {
    if is_stuck && polls >= table.polls_per_rest { AfterPoll::Rest } else { AfterPoll::OfferCore }
}
