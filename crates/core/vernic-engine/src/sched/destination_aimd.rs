//! The default controller of a destination window: growth by acknowledgements while round trips are
//! short, and less after loss or a notification of congestion. The window doubles until the first
//! sign of either.
//!
//! All of it only while a queue pair waits. Where none does, the congestion windows of the queue
//! pairs are what limits them, and follow the path by themselves.

use vernic_proto::Time;
use vernic_proto::congestion::{Acked, Congestion, Sent, Shortest};
use vernic_wire::Kind;

/// The first window in packets: that of a queue pair that is alone. With twice as many, sixteen
/// queue pairs lost up to 1.7 % of their packets in a queue of 100 kB.
pub(super) const INITIAL: u32 = 32;
/// The size below which loss does not press a window, in packets. Sixteen queue pairs over a link
/// of 100 Mb/s with a queue of 100 kB lost a sixth of their packets with a least window of a full
/// GSO run.
const MIN: u32 = 16;
/// The size below which loss does not press a window on a path of [`LONG_NANOS`] or more that shows
/// no queue. Loss may be random there, and would leave some packets for each long round trip.
const MIN_WITHOUT_QUEUE: u32 = 64;
/// A path whose shortest round trip is as long as this, in nanoseconds, is long.
const LONG_NANOS: u64 = 2_000_000;
/// The shortest round trip, in nanoseconds, from which on the window may go on doubling when a loss
/// proves to be a change of the order. A queue of an ordinary link that is full may look like that,
/// too, and is shorter.
const DOUBLING_NANOS: u64 = 9_500_000;
/// How many round trips in a row show that a queue has begun on a path as long as that: where the
/// order of packets may change, single ones are longer than others.
const SIGNS: u32 = 4;
/// A round trip that is so much longer than twice the shortest means that a queue builds up, where
/// a larger window would only lengthen the queue. In nanoseconds: more than a thread of the peer
/// takes to run.
const QUEUE_NANOS: u64 = 2_000_000;
/// The largest window in packets: more than a socket holds.
const MAX: u32 = 1 << 16;
/// The time in nanoseconds within which signs of loss are taken for one overrun, where the round
/// trip is not longer: some round trips of queue pairs that take turns.
const SHRINK_NANOS: u64 = 1_000_000;
/// How many windows must be acknowledged before the window grows: so many that the queue pairs
/// which wait have had turns with the last size.
const GROWTH_WINDOWS: u32 = 8;
/// How many windows must be acknowledged before the window grows on a path of [`LONG_NANOS`] or
/// more that shows no queue: it grows by some packets per round trip for each of the queue pairs
/// that share it.
const GROWTH_WINDOWS_WITHOUT_QUEUE: u32 = 2;
/// The part of the window by which it grows: less than half of what one loss takes off.
const GROWTH_PART: u32 = 8;

/// The controller; see the module documentation.
#[derive(Debug)]
pub(super) struct DestinationAimd {
    /// Packets that may be in flight.
    size: u32,
    /// Packets acknowledged since the size last changed, while a queue pair waited.
    credit: u32,
    shrunk_at: Option<Time>,
    /// The size before the last loss, or the first of several soon after each other, and whether it
    /// doubled.
    before: Option<(u32, bool)>,
    contended: bool,
    /// Whether the window doubles: nothing has shown yet that it is too large.
    starting: bool,
    shortest: Shortest,
    latest: u64,
    /// Round trips one after the other that showed the beginning of a queue.
    signs: u32,
}

impl DestinationAimd {
    pub(super) const fn new() -> Self {
        Self {
            size: INITIAL,
            credit: 0,
            shrunk_at: None,
            before: None,
            contended: false,
            starting: true,
            shortest: Shortest::new(),
            latest: 0,
            signs: 0,
        }
    }

    fn on_round_trip(&mut self, now: Time, nanos: u64) {
        self.latest = nanos;
        self.shortest.on_round_trip(nanos, now);
        let shortest = self.shortest.nanos();
        let limit = shortest.saturating_add(shortest / 2).saturating_add(QUEUE_NANOS / 2);
        self.signs = if nanos > limit { self.signs.saturating_add(1) } else { 0 };
    }

    /// Whether doubling is to end: earlier than a queue ends growth, since what leaves meanwhile
    /// lengthens the queue twice as much.
    fn has_begun_queue(&self) -> bool {
        self.signs >= if self.shortest.nanos() < DOUBLING_NANOS { 1 } else { SIGNS }
    }

    fn has_queue(&self) -> bool {
        self.latest > self.shortest.nanos().saturating_mul(2).saturating_add(QUEUE_NANOS)
    }

    fn is_long(&self) -> bool {
        (LONG_NANOS..u64::MAX).contains(&self.shortest.nanos())
    }

    fn grow(&mut self, packets: u32) {
        self.credit = self.credit.saturating_add(packets);
        let (windows, part) = match self.starting {
            true => (1, 1),
            false if self.is_long() => (GROWTH_WINDOWS_WITHOUT_QUEUE, GROWTH_PART),
            false => (GROWTH_WINDOWS, GROWTH_PART),
        };
        if self.credit >= windows * self.size {
            self.credit = 0;
            self.size = (self.size + self.size / part).min(MAX);
        }
    }

    #[cold]
    fn shrink(&mut self, now: Time) {
        let period = SHRINK_NANOS.max(self.latest);
        if !self.contended || self.shrunk_at.is_some_and(|at| now.since(at) < period) {
            return;
        }
        let recent = self.shrunk_at.is_some_and(|at| now.since(at) < 4 * period);
        if !recent || self.before.is_none() {
            self.before = Some((self.size, self.starting));
        }
        self.shrunk_at = Some(now);
        self.starting = false;
        self.credit = 0;
        let least = if self.is_long() && !self.has_queue() { MIN_WITHOUT_QUEUE } else { MIN };
        self.size = (self.size - self.size / 10 * 3).max(self.size.min(least));
    }
}

impl Congestion for DestinationAimd {
    fn reset(&mut self) {
        *self = Self { contended: self.contended, ..Self::new() };
    }

    #[inline]
    fn on_sent(&mut self, _: Time, _: Sent) {}

    #[inline]
    fn on_ack(&mut self, now: Time, acked: Acked) {
        if let Some(nanos) = acked.round_trip {
            self.on_round_trip(now, nanos);
        }
        if acked.limited {
            let has_queue = self.has_queue();
            if has_queue || self.has_begun_queue() {
                self.starting = false;
            }
            if !has_queue {
                self.grow(acked.packets);
            }
        }
    }

    fn on_loss(&mut self, now: Time) {
        self.shrink(now);
    }

    fn on_needless(&mut self, _: Time) {
        if let Some((size, starting)) = self.before.take() {
            self.size = self.size.max(size);
            self.starting |=
                starting && (DOUBLING_NANOS..u64::MAX).contains(&self.shortest.nanos());
        }
    }

    fn on_mark(&mut self, now: Time, _: Kind) {
        self.on_cnp(now);
    }

    fn on_cnp(&mut self, now: Time) {
        self.shrink(now);
        // A mark is no packet that turns out to be late.
        self.before = None;
    }

    fn on_silence(&mut self, now: Time) {
        self.shrink(now);
    }

    fn on_contention(&mut self, contended: bool) {
        self.contended = contended;
    }

    #[inline]
    fn window(&self) -> u32 {
        self.size
    }

    #[inline]
    fn not_before(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of a destination, at a time in nanoseconds.
    enum Event {
        Acked(u32),
        Lost(u64),
        Silent(u64),
        Marked(u64),
        Notified(u64),
        Needless,
        Contended(bool),
        /// A round trip of so many nanoseconds is timed.
        Took(u64),
    }
    use Event::{Acked as Ack, Contended, Lost, Marked, Needless, Notified, Silent, Took};

    /// The window before the events.
    const START: u32 = 64;

    /// Returns the window after each of the events.
    fn windows(events: &[Event]) -> Vec<u32> {
        let mut aimd = DestinationAimd { size: START, ..DestinationAimd::new() };
        let mut limited = false;
        let mut after = |event: &Event| {
            match *event {
                Ack(packets) => {
                    aimd.on_ack(Time(0), Acked { packets, limited, round_trip: None });
                }
                Lost(at) => aimd.on_loss(Time(at)),
                Silent(at) => aimd.on_silence(Time(at)),
                Marked(at) => aimd.on_mark(Time(at), Kind::ReadResponse),
                Notified(at) => aimd.on_cnp(Time(at)),
                Needless => aimd.on_needless(Time(0)),
                Took(nanos) => {
                    let round_trip = Some(nanos);
                    aimd.on_ack(Time(0), Acked { packets: 1, limited: false, round_trip });
                }
                Contended(contended) => {
                    limited = contended;
                    aimd.on_contention(contended);
                }
            }
            aimd.window()
        };
        events.iter().map(&mut after).collect()
    }

    #[test]
    fn window_follows_acknowledgements_and_losses_while_a_queue_pair_waits() {
        // The first loss takes the window from 64 to 46 packets.
        let eight = GROWTH_WINDOWS * 46;
        let table: &[(&str, &[Event], &[u32])] = &[
            ("nobody waits", &[Ack(10 * START), Lost(5), Silent(2_000_000)], &[64; 3]),
            (
                "it doubles at first",
                &[Contended(true), Ack(START - 1), Ack(1), Ack(128)],
                &[64, 64, 128, 256],
            ),
            (
                "eight windows are acknowledged",
                &[Contended(true), Lost(5), Ack(eight - 1), Ack(1), Ack(8 * 51)],
                &[64, 46, 46, 51, 57],
            ),
            (
                "some of them while nobody waits",
                &[
                    Contended(true),
                    Lost(5),
                    Ack(eight - 1),
                    Contended(false),
                    Ack(9),
                    Contended(true),
                    Ack(1),
                ],
                &[64, 46, 46, 46, 46, 46, 51],
            ),
            (
                "one overrun",
                &[Contended(true), Lost(5), Lost(6), Silent(1_000_004), Silent(1_000_005)],
                &[64, 46, 46, 46, 34],
            ),
            (
                "one overrun where a round trip is longer",
                &[Contended(true), Took(1_500_000), Lost(5), Silent(1_500_004), Silent(1_500_005)],
                &[64, 64, 46, 46, 34],
            ),
            (
                "loss without a queue on a long path",
                &[Contended(true), Ack(START), Took(LONG_NANOS), Lost(5), Lost(2_000_005)],
                &[64, 128, 128, 92, 65],
            ),
            (
                "loss without a queue on a long path, again and again",
                &[Contended(true), Took(LONG_NANOS), Lost(5), Took(7_000_000), Lost(7_000_005)],
                &[64, 64, 64, 64, 46],
            ),
            (
                "loss forgets what was acknowledged",
                &[
                    Contended(true),
                    Lost(0),
                    Ack(eight - 1),
                    Lost(1_000_000),
                    Ack(8 * 34 - 1),
                    Ack(1),
                ],
                &[64, 46, 46, 34, 34, 38],
            ),
            (
                "losses that prove to be changes of the order",
                &[Contended(true), Lost(5), Lost(1_000_005), Needless, Needless],
                &[64, 46, 34, 64, 64],
            ),
            (
                "the same on a long path: it goes on doubling",
                &[Contended(true), Took(DOUBLING_NANOS), Ack(START), Lost(5), Needless, Ack(128)],
                &[64, 64, 128, 92, 128, 256],
            ),
            (
                "growth after a loss on a long path",
                &[Contended(true), Took(LONG_NANOS), Lost(5), Ack(127), Ack(1), Ack(2 * 72)],
                &[64, 64, 64, 64, 72, 81],
            ),
            (
                "marks are no changes of the order",
                &[Contended(true), Lost(5), Notified(1_000_005), Needless],
                &[64, 46, 34, 34],
            ),
            (
                "marks count as losses do",
                &[Contended(true), Marked(5), Notified(6), Notified(1_000_005)],
                &[64, 46, 46, 34],
            ),
            (
                "a queue ends growth, and doubling for good",
                &[
                    Contended(true),
                    Took(100_000),
                    Took(2_200_001),
                    Ack(START),
                    Took(90_000),
                    Ack(START),
                    Ack(7 * START),
                ],
                &[64, 64, 64, 64, 64, 64, 72],
            ),
            (
                "a queue that has begun ends doubling alone",
                &[
                    Contended(true),
                    Took(1_000_000),
                    Took(2_500_000),
                    Ack(START),
                    Took(2_500_001),
                    Ack(128),
                    Ack(6 * 128),
                    Ack(128),
                ],
                &[64, 64, 64, 128, 128, 128, 128, 144],
            ),
            (
                "the same on a long path, where round trips differ",
                &[
                    Contended(true),
                    Took(10_000_000),
                    Took(21_000_000),
                    Took(21_000_000),
                    Took(21_000_000),
                    Ack(START),
                    Took(21_000_000),
                    Ack(128),
                    Ack(128),
                ],
                &[64, 64, 64, 64, 64, 128, 128, 128, 144],
            ),
        ];
        for (name, events, expected) in table {
            assert_eq!(windows(events), *expected, "{name}");
        }
    }

    #[test]
    fn window_never_leaves_its_bounds() {
        let losses = (1..20).map(|n| Lost(n * SHRINK_NANOS));
        let events: Vec<_> = std::iter::once(Contended(true)).chain(losses).collect();
        assert_eq!(windows(&events).last(), Some(&MIN));
        let acks = (0..100).map(|_| Ack(GROWTH_WINDOWS * MAX));
        let events: Vec<_> = std::iter::once(Contended(true)).chain(acks).collect();
        assert_eq!(windows(&events).last(), Some(&MAX));
    }
}
