//! The default controller: additive increase, multiplicative decrease, by loss and round trips; on
//! long paths, cubic increase and pacing.
//!
//! The window follows the path. It doubles per round trip until something is lost or the round trip
//! stretches (a queue is filling: on one host that queue is the peer's socket buffer, and a short
//! queue also stays in the CPU's cache); then it grows by one packet per round trip, or along the
//! curve of RFC 9438 where that is more (`cubic.rs`): where round trips are long, one packet each
//! would take minutes. While a queue stands it does not grow, unless others fill the queue
//! (`queue.rs`): up to half of the queue when they lengthen it, and along the curve when it
//! overflows. Loss takes 30 % off, once per round trip and not below [`MIN_AFTER_LOSS`]. The upper
//! limit is what the queue pair was created with.
//!
//! Silence starts again at [`MIN`], doubling up to half of what was in flight: where nothing was
//! lost, the peer or the path has more queued than it gets through in an ACK timeout, of everybody,
//! and half a window sent again would be queued behind it. Four queue pairs to an emulated kernel
//! that takes 4000 packets in a second kept each other silent in that way until one had no retries
//! left.
//!
//! What this gives on a path that loses each packet with probability `p`: a loss every `1/p`
//! packets, between which the window grows by `1/pW`, and `0.3 W` taken off at each, so `W` settles
//! near `sqrt(1/0.3p)`: 18 packets at 1 %, which the floor lifts to 32. Go-back-N sends what
//! followed the lost packet again, a window of it: `1/(1 + pW)` of what is sent is new, three
//! quarters at 1 %.
//!
//! A congestion notification, or a marked READ response, is a loss that cost no packet: it takes as
//! much off.
//!
//! Where the path takes [`PACED_NANOS`] or more, a window of more than [`PACED_PACKETS`] is spread
//! over the round trip. Otherwise an acknowledgement of many packets would let twice as many leave
//! at once, and a socket of the usual size holds 180 of 1024 bytes. Shorter paths have shorter
//! bursts anyway, and a wake-up for each would cost more than it saves.

use vernic_wire::Kind;

use super::cubic::Cubic;
use super::pacer::{Pacer, Rate};
use super::queue::Queue;
use super::{Acked, Congestion, Sent};
use crate::time::Time;

/// Smallest window in packets: enough that one loss is found by the packets behind it.
const MIN: u32 = 8;
/// Window in packets below which loss alone does not press it. Random loss of 1 % would hold the
/// window at 18 packets (see above), less than one `sendmsg` carries. Measured over loopback at 1
/// %, on a busy machine: 32 gives a third more than 8, up to twice; 64 a quarter more again, but
/// would be 256 KiB that a congested path never gets rid of.
const MIN_AFTER_LOSS: u32 = 32;
/// First window in packets. A queue of 100 kB holds two of them. With 128, two flows over 100 Mb/s
/// lost 2 % of their packets in it, nearly all of them within the first milliseconds.
const INITIAL: u32 = 32;
/// Paths whose shortest round trip takes so many nanoseconds are paced.
const PACED_NANOS: u64 = 2_000_000;
/// Larger windows are paced, in packets. A socket has room for smaller ones. The pause after a READ
/// of some packets would be a large part of their round trip.
const PACED_PACKETS: u32 = 128;
/// Nanoseconds' worth of packets that leave together.
const QUANTUM: u64 = 200_000;
/// On paths whose shortest round trip takes so many nanoseconds, the window may go on doubling when
/// a loss proves to be a change of the order.
const DOUBLING_NANOS: u64 = 9_500_000;
/// What a packet counts for the pacer, whatever its length: the window counts packets, too.
const PACKET: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Aimd {
    /// Packets that may be in flight.
    size: u32,
    /// The first size.
    initial: u32,
    limit: u32,
    /// Below it the window doubles per round trip.
    threshold: u32,
    /// Packets to grow by in a round trip, once the window is as large as the threshold.
    increase: u32,
    /// Acknowledged packets, each times the increase, that are not yet turned into growth.
    credit: u32,
    /// What the increase follows; none before a loss, and after a time without growth.
    curve: Option<Cubic>,
    /// The window in packets when the round trip began that is being timed.
    timed_with: u32,
    /// Spreads a window over the round trip, on a path that is long enough.
    pacer: Option<Pacer>,
    queue: Queue,
    /// When loss took something off the window last.
    shrunk_at: Option<Time>,
    /// Window and threshold before that.
    before: Option<(u32, u32)>,
}

impl Aimd {
    pub(crate) fn new(limit: u32) -> Self {
        Self::starting_with(INITIAL, limit)
    }

    /// A window of so many packets at first.
    fn starting_with(initial: u32, limit: u32) -> Self {
        let limit = limit.max(1);
        Self {
            size: initial.min(limit),
            initial,
            limit,
            threshold: limit,
            increase: 1,
            credit: 0,
            curve: None,
            timed_with: initial.min(limit),
            pacer: None,
            queue: Queue::default(),
            shrunk_at: None,
            before: None,
        }
    }

    /// The largest window.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The last round trip that was timed, in nanoseconds; 0 before the first.
    #[inline]
    pub(super) fn latest(&self) -> u64 {
        self.queue.latest()
    }

    /// Whether [`not_before`](Congestion::not_before) may be a time.
    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.pacer.is_some()
    }

    #[inline]
    fn grow(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size = (self.size + packets).min(self.threshold);
        } else {
            // Of a window's packets at most, and half as many again: no overflow.
            self.credit += packets.min(self.size) * self.increase;
            if self.credit >= self.size {
                self.size += self.credit / self.size;
                self.credit = 0;
            }
        }
        self.size = self.size.min(self.limit);
    }

    fn on_round_trip(&mut self, nanos: u64, limited: bool, now: Time) {
        self.queue.on_round_trip(nanos, now);
        let is_doubling = self.size < self.threshold && !self.queue.is_settled();
        if is_doubling && limited && self.queue.has_begun() {
            if self.queue.is_long() {
                // What has left since has met the queue already.
                self.size = self.size.min(self.timed_with);
            }
            self.threshold = self.size;
        }
        let has_queue = self.queue.is_there();
        if has_queue && limited && (self.size >= self.threshold || self.queue.is_settled()) {
            let half = self.queue.settle(self.size.min(self.timed_with)).unwrap_or(0);
            self.threshold = self.size.max(half.min(self.limit));
        }
        let may_grow = !has_queue || self.queue.is_contested();
        if self.size >= self.threshold {
            self.increase = if may_grow { self.next_increase(limited, now) } else { 0 };
        }
        if !may_grow || !limited {
            self.curve = None;
        }
        if self.queue.shortest() < PACED_NANOS {
            self.pacer = None;
        } else if self.pacer.is_none() {
            let mut pacer = Pacer::new(QUANTUM);
            pacer.start(now);
            self.pacer = Some(pacer);
        }
    }

    /// Returns the packets to grow by in the round trip that begins.
    fn next_increase(&mut self, limited: bool, now: Time) -> u32 {
        if !limited {
            return 1;
        }
        let curve = self.curve.get_or_insert_with(|| Cubic::from(self.size, self.size, now));
        let target = curve.at(now + self.queue.latest());
        target.saturating_sub(self.size).clamp(1, (self.size / 2).max(1))
    }

    /// Returns the rate at which a window leaves in 4/5 of a round trip, or half of one while it
    /// doubles.
    fn rate(&self) -> Rate {
        let quarters = if self.size < self.threshold { 8 } else { 5 };
        let window = u64::from(self.size) * PACKET * quarters / 4;
        (window * 1_000_000 / (self.queue.latest() / 1000).max(1)).max(1)
    }

    /// Takes 30 % off, but not below a floor. Signs within one round trip are of one flight of
    /// packets, and count once.
    fn back_off(&mut self, now: Time, floor: u32) {
        if self.shrunk_at.is_some_and(|at| now.since(at) < self.queue.latest()) {
            return;
        }
        // Of losses one soon after another it is the first that may all have been needless.
        let recent = |at| self.queue.latest() == 0 || now.since(at) < self.queue.latest() * 4;
        let recent = self.shrunk_at.is_some_and(recent);
        if !recent || self.before.is_none() {
            self.before = Some((self.size, self.threshold));
        }
        self.shrunk_at = Some(now);
        self.queue.on_loss(self.increase == 0 && self.size >= self.threshold);
        let (peak, floor) = (self.size, self.size.min(floor));
        self.shrink((self.size - self.size / 10 * 3).max(floor));
        self.curve = Some(Cubic::from(self.size, peak, now));
    }

    fn shrink(&mut self, size: u32) {
        self.size = size.max(MIN).min(self.limit);
        (self.threshold, self.timed_with) = (self.size, self.size);
        self.queue.unsettle();
        (self.increase, self.credit, self.curve) = (1, 0, None);
    }
}

impl Congestion for Aimd {
    fn reset(&mut self) {
        *self = Self::starting_with(self.initial, self.limit);
    }

    #[inline]
    fn on_sent(&mut self, now: Time, sent: Sent) {
        // A READ that is asked for again counts all that is left of it, most of which may be there.
        if self.size > PACED_PACKETS && self.pacer.is_some() && !sent.again {
            let rate = self.rate();
            if let Some(pacer) = &mut self.pacer {
                pacer.on_sent(now, u64::from(sent.packets) * PACKET, rate);
            }
        }
    }

    #[inline]
    fn on_ack(&mut self, now: Time, acked: Acked) {
        if let Some(nanos) = acked.round_trip {
            self.on_round_trip(nanos, acked.limited, now);
        }
        if acked.limited {
            self.grow(acked.packets);
        }
        if acked.round_trip.is_some() {
            self.timed_with = self.size;
        }
    }

    fn on_loss(&mut self, now: Time) {
        self.back_off(now, MIN_AFTER_LOSS);
    }

    fn on_needless(&mut self, _: Time) {
        if let Some((size, threshold)) = self.before.take() {
            self.size = self.size.max(size);
            self.timed_with = self.timed_with.max(self.size);
            self.queue.unsettle();
            // A full queue may look like a changed order, too: no doubling into it, but on paths
            // where short queues do not matter.
            let is_long = self.queue.shortest() >= DOUBLING_NANOS;
            let threshold = if is_long { threshold } else { self.size };
            self.threshold = self.threshold.max(threshold);
            self.curve = None;
        }
    }

    fn on_mark(&mut self, now: Time, kind: Kind) {
        if kind == Kind::ReadResponse {
            self.on_cnp(now);
        }
    }

    fn on_cnp(&mut self, now: Time) {
        self.back_off(now, MIN);
        // A mark is no packet that turns out to be late.
        self.before = None;
    }

    fn on_silence(&mut self, _: Time) {
        let half = self.size / 2;
        self.before = None;
        self.shrink(MIN);
        self.threshold = half.max(self.size);
        self.timed_with = self.threshold;
    }

    #[inline]
    fn window(&self) -> u32 {
        self.size
    }

    #[inline]
    fn not_before(&self) -> Option<Time> {
        self.pacer.as_ref().map(Pacer::not_before)
    }

    #[inline]
    fn pauses_after(&self, now: Time, _: u32) -> bool {
        let is_paced = |pacer: &Pacer| pacer.pauses_after(now, PACKET, self.rate());
        self.size > PACED_PACKETS && self.pacer.as_ref().is_some_and(is_paced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `packets` are acknowledged at `now`, after a round trip of so many nanoseconds if one was
    /// timed.
    fn ack(w: &mut Aimd, packets: u32, limited: bool, now: u64, round_trip: Option<u64>) {
        w.on_ack(Time(now), Acked { packets, limited, round_trip });
    }

    #[test]
    fn window_doubles_while_the_round_trip_is_short() {
        let mut w = Aimd::starting_with(128, 4096);
        ack(&mut w, 128, true, 20_000, Some(20_000));
        assert_eq!(w.window(), 256);
        ack(&mut w, 256, true, 45_000, Some(25_000));
        assert_eq!(w.window(), 512);
    }

    #[test]
    fn window_stops_doubling_when_a_queue_builds_up() {
        let mut w = Aimd::starting_with(128, 4096);
        ack(&mut w, 128, true, 20_000, Some(20_000));
        ack(&mut w, 256, true, 220_000, Some(200_000));
        assert_eq!(w.window(), 256);
    }

    #[test]
    fn marks_press_the_window_below_the_floor_of_losses() {
        let mut w = Aimd::new(4096);
        for i in 0..20 {
            w.on_cnp(Time(i));
        }
        assert_eq!(w.window(), MIN);
    }

    #[test]
    fn window_never_leaves_its_bounds() {
        let mut w = Aimd::new(4);
        assert_eq!(w.window(), 4);
        w.on_loss(Time(0));
        w.on_silence(Time(0));
        assert_eq!(w.window(), 4);
        let mut w = Aimd::new(64);
        for _ in 0..20 {
            w.on_silence(Time(0));
        }
        assert_eq!(w.window(), MIN);
        for i in 0..1000 {
            ack(&mut w, 64, true, i, None);
        }
        assert_eq!(w.window(), 64);
    }

    #[test]
    fn loss_alone_presses_the_window_to_its_floor_and_does_not_lift_it() {
        let mut w = Aimd::new(4096);
        for i in 0..20 {
            w.on_loss(Time(i));
        }
        assert_eq!(w.window(), MIN_AFTER_LOSS);
        w.on_silence(Time(0));
        w.on_loss(Time(100));
        assert_eq!(w.window(), MIN);
    }

    #[test]
    fn after_silence_the_window_doubles_from_its_least_up_to_half_of_what_it_was() {
        let mut w = Aimd::starting_with(128, 4096);
        w.on_silence(Time(0));
        assert_eq!(w.window(), MIN);
        let mut now = 0;
        for expected in [16, 32, 64, 65] {
            let packets = w.window();
            now += 20_000;
            ack(&mut w, packets, true, now, Some(20_000));
            assert_eq!(w.window(), expected);
        }
    }

    #[test]
    fn loss_counts_once_per_round_trip() {
        let mut w = Aimd::starting_with(128, 4096);
        ack(&mut w, 1, false, 20_000, Some(20_000));
        w.on_loss(Time(30_000));
        w.on_loss(Time(49_999));
        assert_eq!(w.window(), 92);
        w.on_loss(Time(50_000));
        assert_eq!(w.window(), 65);
    }

    #[test]
    fn an_application_that_sends_little_does_not_grow_the_window() {
        let mut w = Aimd::new(4096);
        for i in 0..100 {
            ack(&mut w, 1, false, i, None);
        }
        assert_eq!(w.window(), INITIAL);
    }

    /// A window leaves and is acknowledged after each of so many round trips of 40 ms.
    fn long_round_trips(w: &mut Aimd, now: &mut Time, times: u32) {
        for _ in 0..times {
            *now = *now + 40_000_000;
            ack(w, w.window(), true, now.nanos(), Some(40_000_000));
        }
    }

    #[test]
    fn on_a_long_path_growth_after_a_loss_follows_the_curve() {
        let (mut w, mut now) = (Aimd::starting_with(128, 4096), Time(0));
        long_round_trips(&mut w, &mut now, 3);
        assert_eq!(w.window(), 1024);
        w.on_loss(now);
        assert_eq!(w.window(), 718);
        // The knee is after 9.1 s. A packet in each round trip would be 50 by 2 s, and 500 by 20 s.
        long_round_trips(&mut w, &mut now, 50);
        assert!((875..885).contains(&w.window()), "{}", w.window());
        // Near the knee a packet in each round trip is more than the curve gives.
        long_round_trips(&mut w, &mut now, 200);
        assert!((1100..1150).contains(&w.window()), "{}", w.window());
        long_round_trips(&mut w, &mut now, 250);
        assert!((1400..1600).contains(&w.window()), "{}", w.window());
    }

    #[test]
    fn a_queue_ends_growth_and_the_curve_begins_again_after_it() {
        let (mut w, mut now) = (Aimd::new(4096), Time(0));
        long_round_trips(&mut w, &mut now, 3);
        w.on_loss(now);
        now = now + 40_000_000;
        ack(&mut w, 700, true, now.nanos(), Some(100_000_000));
        let size = w.window();
        now = now + 60_000_000_000;
        ack(&mut w, size, true, now.nanos(), Some(40_000_000));
        assert_eq!(w.window(), size + 1);
    }

    #[test]
    fn one_long_round_trip_does_not_make_a_window_double_that_a_queue_holds() {
        let mut w = Aimd::starting_with(128, 4096);
        let mut at = 0;
        let mut ack_after = |w: &mut Aimd, micros: u64| {
            at += micros * 1000;
            ack(w, w.window(), true, at, Some(micros * 1000));
            w.window()
        };
        ack_after(&mut w, 20);
        let held = ack_after(&mut w, 100);
        assert_eq!(ack_after(&mut w, 100), held);
        assert_eq!(ack_after(&mut w, 20_000), held, "a thread had no core");
        assert_eq!([0; 3].map(|_| ack_after(&mut w, 100)), [held; 3]);
        // Others fill the queue, until it is short again.
        ack_after(&mut w, 30_000);
        assert!(ack_after(&mut w, 30_000) > held);
        let held = ack_after(&mut w, 100);
        assert_eq!([0; 3].map(|_| ack_after(&mut w, 100)), [held; 3]);
    }

    #[test]
    fn on_a_long_path_a_window_that_meets_a_queue_is_as_it_was_before_it_doubled() {
        for (round_trip, expected) in [(5_500_000, 128), (5_500_001, 64)] {
            let mut w = Aimd::new(4096);
            ack(&mut w, 32, true, 3_000_000, Some(3_000_000));
            // Half of the window is acknowledged before the round trip is timed.
            ack(&mut w, 32, true, 3_000_001, None);
            assert_eq!(w.window(), 96);
            ack(&mut w, 32, true, 3_000_000 + round_trip, Some(round_trip));
            assert_eq!(w.window(), expected);
        }
    }

    #[test]
    fn a_long_path_is_paced_and_a_short_one_is_not() {
        let (mut w, mut now) = (Aimd::new(4096), Time(0));
        ack(&mut w, 1, true, 0, Some(50_000));
        assert!(!w.is_paced() && w.not_before().is_none());
        let mut w = Aimd::starting_with(128, 4096);
        long_round_trips(&mut w, &mut now, 1);
        assert!(w.is_paced() && w.window() == 256);
        let mut left = 0;
        let end = now + 20_000_000;
        while now < end {
            if w.not_before().is_some_and(|at| at <= now) {
                w.on_sent(now, Sent { packets: 1, bytes: 8, again: false });
                left += 1;
            }
            now = now + 10_000;
        }
        assert!((255..262).contains(&left), "a window in half a round trip: {left}");
    }
}
