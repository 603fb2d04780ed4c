//! A post: whether it leaves at once, or waits in the batch for more.
//!
//! A message that stands behind many others is not what anybody waits for, and each call into the
//! kernel costs as much as the packets of dozens of small messages. So it waits until the batch has
//! a quarter as many packets as its queue pair has requests in flight, and not beyond the next poll
//! that finds nothing, nor the background thread's next look, which must be within its take-over
//! time. While that thread leaves the sockets to pollers, a thread must have polled just now.

use vernic_proto::Time;

use super::table::Table;

/// What becomes of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// It leaves at once, with all that gathered before it.
    SendNow,
    /// It stays in the batch.
    Gather,
}

/// The batch, with what was just posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
}

/// What other threads do meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// The background thread leaves the sockets to pollers.
    pub(super) backs_off: bool,
    /// When a thread polled last.
    pub(super) polled_at: Time,
    /// When the background thread looks next: nanoseconds, or a value of [`super`].
    pub(super) looks_at: u64,
}

/// Whether a queue pair has so many requests in flight that a post may wait.
#[inline]
pub(super) const fn may_gather(table: &Table, in_flight: u64) -> bool {
    in_flight >= table.gather_in_flight
}

/// What becomes of a post that may wait. The background thread looks within `takeover` nanoseconds
/// where it looks in time.
#[inline]
pub(super) fn gather(
    table: &Table,
    in_flight: u64,
    gathered: Gathered,
    others: Others,
    now: Time,
    takeover: u64,
) -> Post {
    let nobody_polls = others.backs_off && now.since(others.polled_at) > table.gather_polled_nanos;
    let enough = table.gather_packets.min(in_flight / table.gather_share) as usize;
    let waits = !nobody_polls
        && gathered.packets < enough
        && gathered.bytes < table.gather_bytes
        && others.looks_at <= (now + takeover).nanos();
    if waits { Post::Gather } else { Post::SendNow }
}
