//! The constants of the policy: one table, each row with its unit, its reason and a test in
//! `tests.rs` (where a test checks that every row has one).

/// Defines [`Table`], [`TABLE`] and, for tests, the names of the rows.
macro_rules! table {
    ($($(#[doc = $reason:literal])+ $name:ident: $kind:ty = $value:expr,)+) => {
        /// The constants that the policy is tuned with. The simulation of the policy also runs with
        /// other values, to see that its tests notice.
        #[derive(Clone, Debug)]
        pub(crate) struct Table {
            $($(#[doc = $reason])+ pub(crate) $name: $kind,)+
        }

        /// The values in use.
        pub(crate) const TABLE: Table = Table { $($name: $value,)+ };

        /// The rows' names.
        #[cfg(test)]
        pub(super) const ROWS: &[&str] = &[$(stringify!($name),)+];
    };
}

table! {
    // A thread that polls.

    /// How long a poller finds nothing until it offers its core to others. Where every spinning
    /// process has a core this changes nothing. Where processes share one, the peer runs now
    /// instead of after the scheduler's next tick (some ms).
    offer_after_nanos: u64 = 20_000,
    /// The time above which an offer was taken by a thread that computes, not by a peer that
    /// answers. The caller was then away for a time slice or more (Linux 6.18 lets a thread that
    /// yields pay for its whole slice).
    long_offer_nanos: u64 = 500_000,
    /// How long a poller finds nothing until it offers its core again after such an offer. This is
    /// most of a time slice, so that two peers on cores that others use, too, run at the same time
    /// now and then. Otherwise each would give its slice away before the other has one, and a
    /// ping-pong would take time slices per message.
    wary_offer_after_nanos: u64 = 2_000_000,
    /// Polls that did not get the lane, after which the poller offers its core: some microseconds.
    polls_per_offer: u32 = 64,
    /// Polls in a row that did not get the lane, while no application's thread got it, after which
    /// the poller sleeps instead: some 30 us. The holder of the lane, or a thread that waits for
    /// it, does not run then. It may be of a lower priority, in which case yielding does not let it
    /// run.
    polls_per_rest: u32 = 1024,
    /// How long such a rest is: enough for the few microseconds that a thread keeps the lane.
    rest_nanos: u64 = 20_000,
    /// Polls that found something, after which a poll makes progress all the same. So an
    /// application that is always served from the ring still sends ACKs.
    polls_per_progress: u32 = 16,

    // The background thread.

    /// Calls since the last poll that mean "applications make progress" and end the watching. A
    /// program that sleeps for its completions makes a few calls per completion; a program that
    /// polls makes thousands.
    active_calls: u64 = 8,
    /// Calls in one take-over time that keep the thread away. A program that polls makes hundreds
    /// even where each call does much. A program that makes a few waits for something else
    /// meanwhile, such as its memory to change. It waits for this thread's next poll if no other
    /// thread watches the sockets.
    staying_calls: u64 = 16,
    /// How long no application has called when packets are found after a take-over time. The
    /// program polled until it had what it polled for, then waited for something else. This is far
    /// longer than between two polls.
    silence_nanos: u64 = 50_000,
    /// The rounds for which the thread watches after that, whatever the calls. A take-over time in
    /// vain now and then costs such a program little, and a program that was only not scheduled
    /// gets rid of the thread soon.
    distrust_rounds: u32 = 64,
    /// How long the thread counts calls after an application's thread went to rest: far longer than
    /// it takes to poll twice, and far too short to be noticed.
    count_nanos: u64 = 50_000,
    /// Calls in that time that mean an application polls.
    count_calls: u64 = 2,
    /// Polls that find packets before the thread checks again whether applications make progress.
    looks_per_round: u32 = 16,
    /// The interval at which the thread sees to the network, the status and the warnings while it
    /// does not sleep.
    look_around_nanos: u64 = 1_000_000,

    // Posts.

    /// The number of requests in flight from which on a post to a queue pair may wait for more. No
    /// application waits for a message behind so many.
    gather_in_flight: u64 = 16,
    /// The part of the requests in flight that may wait, as its divisor: the others keep the peer
    /// busy meanwhile.
    gather_share: u64 = 4,
    /// The number of packets that do not wait for more: one full GSO run.
    gather_packets: u64 = 64,
    /// The number of bytes that do not wait for more: half a GSO run. Beside the cost of copying
    /// that much, the call into the kernel is little.
    gather_bytes: usize = 30 * 1024,
    /// How long ago a thread must have polled for a post to wait for the next poll, while the
    /// background thread leaves the sockets to pollers. This is some calls into the kernel, which a
    /// program makes between two polls. A program that watches its memory instead would wait for
    /// that thread to notice.
    gather_polled_nanos: u64 = 100_000,
}
