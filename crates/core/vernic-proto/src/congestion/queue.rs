//! What round trips say of the queue on a path, and of others that fill it.
//!
//! ```text
//!  round trip |            others      begun           there
//!             |            _____      (end of         (end of
//!             |     ______/           doubling)        growth)
//!             | ___/ settled
//!   shortest  +------------------------------------------------> time
//! ```

use super::shortest::Shortest;
use crate::time::Time;

/// A round trip that is longer than twice the shortest by so many nanoseconds means that a queue
/// stands.
const THERE_NANOS: u64 = 50_000;
/// Where the shortest round trip takes so many nanoseconds, a thread that waits for its core is
/// little beside it, so a queue is seen earlier.
const LONG_NANOS: u64 = 1_000_000;
/// There a round trip that is longer than one and a half times the shortest by so many nanoseconds
/// means that a queue has begun.
const BEGUN_NANOS: u64 = 1_000_000;
/// Where the shortest round trip takes so many nanoseconds, one that is long may have met a change
/// of the order instead: only two of them, one after the other, show a queue that begins.
const FAR_NANOS: u64 = 9_500_000;
/// Shorter queues are not fought for, in nanoseconds: a few losses share them soon.
const CONTEST_NANOS: u64 = 16_000_000;

/// The queue on a path; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Queue {
    shortest: Shortest,
    /// The last round trip that was timed, in nanoseconds; 0 before the first.
    latest: u64,
    /// Round trips one after the other that showed the beginning of a queue.
    signs: u32,
    /// Window and round trip since the queue ended the growth; none while there is no queue.
    settled: Option<(u32, u64)>,
    /// Round trips in a row that others have made much longer than that.
    longer: u32,
    is_contested: bool,
}

impl Queue {
    /// The shortest round trip of the last seconds, in nanoseconds; `u64::MAX` before the first.
    #[inline]
    pub(super) fn shortest(&self) -> u64 {
        self.shortest.nanos()
    }

    /// The last round trip that was timed, in nanoseconds; 0 before the first.
    #[inline]
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    pub(super) fn on_round_trip(&mut self, nanos: u64, now: Time) {
        self.latest = nanos;
        self.shortest.on_round_trip(nanos, now);
        self.signs = if self.shows_begin() { self.signs.saturating_add(1) } else { 0 };
        if !self.is_there() {
            (self.settled, self.is_contested) = (None, false);
        }
    }

    /// Whether a queue stands, which a larger window would only lengthen.
    pub(super) fn is_there(&self) -> bool {
        self.latest > self.shortest().saturating_mul(2).saturating_add(THERE_NANOS)
    }

    /// Whether a queue has begun: what a doubling window sends meanwhile makes it twice as long.
    pub(super) fn has_begun(&self) -> bool {
        let least = if self.shortest() < FAR_NANOS { 1 } else { 2 };
        self.signs >= least || self.is_there()
    }

    fn shows_begin(&self) -> bool {
        if !self.is_long() {
            return self.is_there();
        }
        let shortest = self.shortest();
        self.latest > shortest.saturating_add(shortest / 2).saturating_add(BEGUN_NANOS)
    }

    /// Whether round trips are so long that other delays are small beside them.
    pub(super) fn is_long(&self) -> bool {
        (LONG_NANOS..u64::MAX).contains(&self.shortest())
    }

    /// Whether a queue has ended the growth.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Whether others fill the queue, and packets were lost for that: a flow that does not grow as
    /// they do loses its share.
    pub(super) fn is_contested(&self) -> bool {
        self.is_contested
    }

    /// A queue stands, and the window stays at `size`. Returns the window that would be half of the
    /// queue if others have made it much longer, which two round trips in a row show.
    pub(super) fn settle(&mut self, size: u32) -> Option<u32> {
        let Some((settled, then)) = self.settled else {
            (self.settled, self.longer) = (Some((size, self.latest.max(1))), 0);
            return None;
        };
        if self.latest >= CONTEST_NANOS && self.latest > then + then / 2 {
            self.longer = self.longer.saturating_add(1);
            // A single one may have met a thread that had no core.
            if self.longer < 2 {
                return None;
            }
            let half = u64::from(settled).saturating_mul(self.latest) / then / 2;
            return Some(u32::try_from(half).unwrap_or(u32::MAX));
        }
        self.longer = 0;
        // It follows slowly, since a single round trip may be short for other reasons.
        self.settled = Some((settled, then - then / 8 + then.min(self.latest) / 8));
        None
    }

    /// A packet was lost. If the window `stood` still and a long queue stands, others fill it.
    pub(super) fn on_loss(&mut self, stood: bool) {
        self.is_contested |= stood && self.is_there() && self.latest >= CONTEST_NANOS;
    }

    /// The window was made smaller: what it settles at is another one.
    pub(super) fn unsettle(&mut self) {
        self.settled = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue after round trips of so many microseconds.
    fn after(round_trips: &[u64]) -> Queue {
        let mut queue = Queue::default();
        for (at, micros) in round_trips.iter().enumerate() {
            queue.on_round_trip(micros * 1000, Time(at as u64 * 1_000_000));
        }
        queue
    }

    #[test]
    fn long_paths_see_a_queue_begin_before_it_stands() {
        for (round_trips, begun, there) in [
            (&[20, 90][..], false, false),
            (&[20, 91], true, true),
            (&[2000, 4000], false, false),
            (&[2000, 4001], true, false),
            (&[2000, 4051], true, true),
            (&[40_000, 61_001], false, false),
            (&[40_000, 61_001, 61_000, 61_001], false, false),
            (&[40_000, 61_001, 61_001], true, false),
            (&[40_000, 80_051], true, true),
            (&[80_000, 40_000], false, false),
        ] {
            let queue = after(round_trips);
            assert_eq!((queue.has_begun(), queue.is_there()), (begun, there), "{round_trips:?}");
        }
    }

    #[test]
    fn a_queue_that_others_lengthen_is_to_be_shared_by_half() {
        let mut queue = after(&[1000, 11_000]);
        assert_eq!((queue.settle(128), queue.is_settled()), (None, true));
        queue.on_round_trip(15_900_000, Time(3_000_000));
        assert_eq!(queue.settle(128), None, "too short to fight for");
        queue.on_round_trip(44_000_000, Time(4_000_000));
        assert_eq!(queue.settle(128), None, "one may be long for other reasons");
        assert_eq!(queue.settle(128), Some(256));
        // What the own window adds does not count again.
        queue.on_round_trip(55_000_000, Time(5_000_000));
        assert_eq!(queue.settle(256), Some(320));
        queue.on_round_trip(1_000_000, Time(6_000_000));
        assert!(!queue.is_settled());
    }

    #[test]
    fn one_short_round_trip_does_not_make_the_rest_look_long() {
        let mut queue = after(&[1000, 20_000]);
        queue.settle(128);
        queue.on_round_trip(8_000_000, Time(3_000_000));
        assert_eq!(queue.settle(128), None);
        queue.on_round_trip(27_000_000, Time(4_000_000));
        assert_eq!([0; 3].map(|_| queue.settle(128)), [None; 3]);
    }

    #[test]
    fn a_loss_of_a_window_that_stood_means_that_others_fill_a_long_queue() {
        for (round_trips, stood, contested) in [
            (&[1000, 40_000][..], true, true),
            (&[1000, 40_000], false, false),
            (&[1000, 9000], true, false),
            (&[30_000, 40_000], true, false),
        ] {
            let mut queue = after(round_trips);
            queue.on_loss(stood);
            assert_eq!(queue.is_contested(), contested, "{round_trips:?} {stood}");
            queue.on_round_trip(1_000_000, Time(9_000_000));
            assert!(!queue.is_contested());
        }
    }
}
