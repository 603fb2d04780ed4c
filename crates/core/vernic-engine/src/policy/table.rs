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

    /// How long polls find nothing until the polling thread yields its core. If every spinning
    /// process has a core of its own, the yield changes nothing. If processes share a core, the
    /// peer runs at once, not only after the scheduler's next tick (some ms).
    offer_after_nanos: u64 = 20_000,
    /// How long a yield takes at least if the core went to a thread that computes, not to a peer
    /// that answers. The polling thread is then without its core for a time slice or more (Linux
    /// 6.18 charges a thread that yields for its whole slice).
    long_offer_nanos: u64 = 500_000,
    /// How long polls find nothing until the polling thread yields again, if its last yield took
    /// longer than `long_offer_nanos`. This is most of a time slice, so that two peers on cores
    /// that other programs use too run at the same time now and then. Otherwise each would give its
    /// slice away before the other has one, and each message of a ping-pong would take time slices.
    wary_offer_after_nanos: u64 = 2_000_000,
    /// The number of polls without the lane after which the polling thread yields its core: some
    /// microseconds.
    polls_per_offer: u32 = 64,
    /// The number of polls in a row without the lane after which the polling thread sleeps instead
    /// of yielding, if no application's thread has had the lane meanwhile: some 30 us. The holder
    /// of the lane, or a thread that waits for the lane, then has no core. It may be of a lower
    /// priority, and would not get the core that is yielded.
    polls_per_rest: u32 = 1024,
    /// How long the polling thread then sleeps, and the background thread the first time that it
    /// finds the lane taken: enough for the few microseconds that a thread keeps the lane.
    rest_nanos: u64 = 20_000,
    /// The number of polls that found completions in the ring, and so moved no packets, after which
    /// one poll moves packets all the same. So an application whose polls always find completions
    /// still sends ACKs.
    polls_per_progress: u32 = 16,

    // The background thread.

    /// How often the background thread's rest is doubled while the lane is taken each time: up to
    /// 640 us, or the take-over time if that is shorter. Without it, an application whose calls
    /// take 50 us each has its core taken away 40,000 times a second.
    longer_rests: u32 = 5,
    /// The number of calls of application threads since the thread last judged that ends the
    /// watching: the application makes progress itself. A program that sleeps for its completions
    /// makes a few calls per completion; a program that polls makes thousands.
    active_calls: u64 = 8,
    /// The number of calls in one take-over time that lets the thread back off for another one. A
    /// program that polls makes hundreds even where each call does much. A program that makes only
    /// a few calls is waiting for something else, such as its memory to change. It waits for this
    /// thread's next poll if no other thread watches the sockets.
    staying_calls: u64 = 16,
    /// The number of calls that one counts as which has pulled payload out of a peer's memory,
    /// while the thread backs off: it took as long as tens of others. Without it, a program that
    /// polls for messages of 1 MiB makes some eight calls in a take-over time, and is taken for one
    /// that waits for something else. One such call alone does not keep the thread away.
    calls_of_a_copy: u64 = 4,
    /// How long no application thread has called, when the background thread finds packets after it
    /// has backed off, for backing off to count as a mistake. The program polled until it had what
    /// it polled for, and then waited for something else. This time is far longer than the time
    /// between two polls.
    silence_nanos: u64 = 50_000,
    /// The number of rounds for which the thread watches after such a mistake, even if application
    /// threads call. If the thread then backs off by mistake again, that costs the program one
    /// take-over time in so many rounds, which is little. And a program that polls, but had no core
    /// for a moment, soon has the sockets to itself again.
    ignore_callers_rounds: u32 = 64,
    /// How long the thread counts calls after an application's thread has announced that it will
    /// wait for something other than a completion. This is far longer than it takes to poll twice,
    /// and far too short for a user to notice.
    count_nanos: u64 = 50_000,
    /// The number of calls in that time from which on another application thread is taken to poll.
    count_calls: u64 = 2,
    /// The number of polls in a row that left work to do before the thread judges again whether
    /// application threads make progress.
    polls_per_round: u32 = 16,
    /// The interval at which the thread answers requests for the status and gives warnings while it
    /// does not sleep.
    report_nanos: u64 = 1_000_000,

    // Posts.

    /// The number of requests in flight from which on a post to a queue pair may wait for more. No
    /// application waits for a message behind so many.
    gather_in_flight: u64 = 16,
    /// A divisor: posts wait until the batch has as many packets as the queue pair has requests in
    /// flight, divided by this number. The other requests keep the peer busy meanwhile.
    gather_share: u64 = 4,
    /// The number of packets in the batch from which on a post does not wait: one full GSO run.
    gather_packets: u64 = 64,
    /// The number of bytes in the batch from which on a post does not wait: half a GSO run.
    /// Compared with copying that much, the call into the kernel costs little.
    gather_bytes: usize = 30 * 1024,
    /// How long ago a thread must have polled for a post to wait for the next poll, while the
    /// background thread leaves the sockets to pollers. This is the time of some calls into the
    /// kernel, which a program makes between two polls. If a program only reads its memory instead
    /// of polling, its post would wait until the background thread takes over.
    gather_polled_nanos: u64 = 100_000,
}
