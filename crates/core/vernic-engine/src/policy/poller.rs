//! A thread that polls: when it offers its core to others, and when it rests.
//!
//! Pure functions over plain values; [`Cells`](super::Cells) keeps what threads share.

use super::table::Table;

/// What a thread does after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPoll {
    /// It returns to the application.
    Return,
    /// It yields first, and tells how long that took.
    OfferCore,
    /// It sleeps for [`rest_nanos`](Table::rest_nanos) first.
    Rest,
}

/// A poll had the lane, and `found` something or not. `since` is when polls began to find nothing,
/// 0 if the last one found something. Returns the new `since`, if it changes.
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

/// After how long without anything a poller offers its core next, if the last offer took `took`
/// nanoseconds.
pub(super) const fn offer_after(table: &Table, took: u64) -> u64 {
    if took > table.long_offer_nanos {
        table.wary_offer_after_nanos
    } else {
        table.offer_after_nanos
    }
}

/// Whether the poll that makes `polls` in a row without the lane is one after which the poller does
/// something about it.
pub(super) const fn is_enough_in_vain(table: &Table, polls: u32) -> bool {
    polls.is_multiple_of(table.polls_per_offer)
}

/// What the poller does then. `is_stuck`: no application's thread got the lane since it did so
/// last.
pub(super) const fn in_vain(table: &Table, polls: u32, is_stuck: bool) -> AfterPoll {
    if is_stuck && polls >= table.polls_per_rest { AfterPoll::Rest } else { AfterPoll::OfferCore }
}
