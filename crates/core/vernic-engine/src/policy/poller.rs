//! A thread that polls: when it offers its core to others, and when it rests.
//!
//! Pure functions over plain values; [`Cells`](super::Cells) keeps what threads share.

use super::table::Table;

/// The action of a thread after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPoll {
    /// The thread returns to the application.
    Return,
    /// The thread yields first, and reports how long that took.
    OfferCore,
    /// The thread sleeps for [`rest_nanos`](Table::rest_nanos) first.
    Rest,
}

/// Returns what follows a poll that had the lane, and `found` something or not, and the new `since`
/// if it changes. `since` is when polls began to find nothing, 0 if the last one found something.
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

/// Returns how long a poller finds nothing before it next offers its core, if the last offer took
/// `took` nanoseconds.
pub(super) const fn offer_after(table: &Table, took: u64) -> u64 {
    if took > table.long_offer_nanos {
        table.wary_offer_after_nanos
    } else {
        table.offer_after_nanos
    }
}

/// Whether the poller acts after the poll that makes `polls` in a row without the lane.
pub(super) const fn is_enough_in_vain(table: &Table, polls: u32) -> bool {
    polls.is_multiple_of(table.polls_per_offer)
}

/// Returns what the poller does in that case. `is_stuck` says that no application's thread got the
/// lane since the poller last acted.
pub(super) const fn in_vain(table: &Table, polls: u32, is_stuck: bool) -> AfterPoll {
    if is_stuck && polls >= table.polls_per_rest { AfterPoll::Rest } else { AfterPoll::OfferCore }
}
