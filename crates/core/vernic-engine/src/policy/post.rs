//! Whether a post is sent at once, or waits in the batch for more posts.
//!
//! No application waits for a message that is behind many others, and each call into the kernel
//! costs as much as the packets of dozens of small messages. So such a message waits until the
//! batch has a quarter as many packets as its queue pair has requests in flight. It waits no longer
//! than the next poll that finds nothing, nor than the background thread's next poll, which must be
//! within that thread's take-over time. While that thread leaves the sockets to polling threads, a
//! post waits only if a thread has polled within the last
//! [`gather_polled_nanos`](Table::gather_polled_nanos).

use vernic_proto::Time;

use super::table::Table;

/// The decision about a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// The post is sent at once, with all that gathered before it.
    SendNow,
    /// The post stays in the batch.
    Gather,
}

/// The content of the batch, including what was just posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    packets: usize,
    bytes: usize,
}

impl Gathered {
    /// Returns the content of a batch with this number of packets, and of bytes in them.
    #[inline]
    pub(crate) const fn new(packets: usize, bytes: usize) -> Self {
        Self { packets, bytes }
    }
}

/// What other threads do, as far as it matters for a post.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// Whether the background thread leaves the sockets to polling threads.
    pub(super) backs_off: bool,
    /// The time at which a thread polled last.
    pub(super) polled_at: Time,
    /// The time of the background thread's next poll in nanoseconds, or a special value: see the
    /// constants of [`super`].
    pub(super) next_poll_at: u64,
}

/// Whether a queue pair has so many requests in flight that a post may wait.
#[inline]
pub(super) const fn may_gather(table: &Table, in_flight: u64) -> bool {
    in_flight >= table.gather_in_flight
}

/// Decides whether a post that may wait is sent at once. `takeover` is the take-over time of the
/// background thread in nanoseconds: a post waits only if that thread polls within it.
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
        && others.next_poll_at <= (now + takeover).nanos();
    if waits { Post::Gather } else { Post::SendNow }
}
