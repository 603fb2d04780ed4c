//! A post: whether it is sent at once, or waits in the batch for more.
//!
//! No application waits for a message that is behind many others, and each call into the kernel
//! costs as much as the packets of dozens of small messages. So such a message waits until the
//! batch has a quarter as many packets as its queue pair has requests in flight. It waits no longer
//! than the next poll that finds nothing, nor than the background thread's next poll, which must be
//! within that thread's take-over time. While that thread leaves the sockets to pollers, a thread
//! must have polled just now.

use vernic_proto::Time;

use super::table::Table;

/// What becomes of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// The post is sent at once, with all that gathered before it.
    SendNow,
    /// The post stays in the batch.
    Gather,
}

/// The content of the batch, with what was just posted.
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

/// The activity of other threads meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// Whether the background thread leaves the sockets to pollers.
    pub(super) backs_off: bool,
    /// The time at which a thread polled last.
    pub(super) polled_at: Time,
    /// The time of the background thread's next poll: nanoseconds, or a value of [`super`].
    pub(super) looks_at: u64,
}

/// Whether a queue pair has so many requests in flight that a post may wait.
#[inline]
pub(super) const fn may_gather(table: &Table, in_flight: u64) -> bool {
    in_flight >= table.gather_in_flight
}

/// Decides what becomes of a post that may wait. The background thread polls within `takeover`
/// nanoseconds, if it polls in time.
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
