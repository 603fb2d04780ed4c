//! The tail-loss probe of an RC requester: what is asked when the peer has been silent for longer
//! than its answers take.
//!
//! A responder reports a gap when a packet comes behind it, and reports it once. So nobody reports
//! the loss of the last packet in flight, of the last response of a READ, of an ACK, of the NAK
//! itself, or of the repeated packet that a NAK asked for. The ACK timeout repairs all of them, but
//! it is a bound on the patience with a dead peer (67 ms by default), thousands of round trips
//! long.
//!
//! A probe repeats two packets out of those in flight and moves nothing else:
//!
//! 1. the oldest without an answer: where it, its ACK or its responses were lost, that is the
//!    repair; where the peer waits for it because its NAK or the repeated packet was lost, the peer
//!    stops waiting and may report a gap again;
//! 2. the newest: what is missing between the two is now a gap with a packet behind it, and the NAK
//!    says where. If nothing is missing, it is a duplicate, and its ACK covers everything.
//!
//! One packet of them would not do: the newest alone is dropped by a peer that waits for the
//! oldest, and the oldest alone says nothing about what follows it. Going back without a NAK would
//! do, but a peer that is merely late would then get the whole window twice; so it gets two
//! packets. To the peer a probe is a repetition of everything whose middle the network lost, so
//! nothing new is asked of it: duplicates are acknowledged or replayed (IBTA 9.7.5.1.5), a gap is
//! reported (9.7.5.2.8).
//!
//! A probe is no retry: it neither counts against `retry_cnt` nor moves the ACK timeout, which
//! still ends the connection when it always did. There is none where the application asked for no
//! repetition (`retry_cnt` 0) or for no timer (ACK timeout 0), and none during an RNR delay.
//!
//! `rc` owns the [`Probe`]; the completer starts and stops it with the ACK timer, the requester
//! asks it which packet is to be repeated.

use crate::time::Time;

/// Shortest silence before a probe, in nanoseconds. Ten times as long as our responder holds an ACK
/// back for a poller, and 16 ticks of the engine's timers; short against a scheduler's time slice,
/// which costs one probe now and then on a machine with more runnable threads than cores.
const FLOOR: u64 = 250_000;
/// Round trips of silence before a probe.
const ROUND_TRIPS: u64 = 4;
/// Before the first round trip is measured, this part of the ACK timeout stands for the silence.
const UNMEASURED_PART: u64 = 4;
/// Doublings of the silence after which no ACK timeout (2.4 hours at most) leaves room for a probe.
const MOST_DOUBLINGS: u32 = 32;

/// Round trip in nanoseconds, smoothed as RFC 6298 does: `SRTT <- 7/8 SRTT + 1/8 R`,
/// `RTTVAR <- 3/4 RTTVAR + 1/4 |SRTT - R|`.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    smoothed: u64,
    variation: u64,
    /// The newest, not smoothed: a queue that builds up may double the round trip each time.
    latest: u64,
}

/// A packet that a probe repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The oldest that is not answered.
    Oldest,
    /// The newest in flight.
    Newest,
}

#[derive(Debug, Default)]
pub(crate) struct Probe {
    round_trip: Option<RoundTrip>,
    due: Option<Time>,
    /// When the ACK timer ends, and what it was set to.
    until: Time,
    timeout: u64,
    /// Probes since the last progress; each doubles the silence before the next.
    sent: u32,
    /// What of the present probe is still to be sent.
    left: Option<Repeat>,
    /// A probe was sent, and no answer has come that shows it to be needless.
    is_out: bool,
    /// Needless probes since a round trip was measured; each doubles the silence too.
    needless: u32,
}

impl Probe {
    /// When [`fire`](Self::fire) is to be called.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// A packet that was sent once was answered after so many nanoseconds.
    pub(crate) fn on_round_trip(&mut self, nanos: u64) {
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip { smoothed: nanos, variation: nanos / 2, latest: nanos },
            Some(RoundTrip { smoothed, variation, .. }) => RoundTrip {
                smoothed: smoothed - smoothed / 8 + nanos / 8,
                variation: variation - variation / 4 + smoothed.abs_diff(nanos) / 4,
                latest: nanos,
            },
        });
        self.needless = 0;
    }

    /// Two round trips, in nanoseconds; 0 before the first.
    #[inline]
    pub(crate) fn two_round_trips(&self) -> u64 {
        self.round_trip.map_or(0, |r| r.smoothed.max(r.latest).saturating_mul(2))
    }

    /// The peer has answered a copy of what it had answered before. If that was a probe, answers
    /// take longer than the silence. They are not measured while probes are sent, for it is not
    /// known which copy they answer; so without this every packet would be probed from then on.
    pub(crate) fn on_echo(&mut self) {
        self.needless += u32::from(core::mem::take(&mut self.is_out));
    }

    /// The peer has taken something new.
    pub(crate) fn on_progress(&mut self) {
        self.sent = 0;
    }

    /// The ACK timer starts anew with `timeout` nanoseconds, or stands still: so does this one.
    pub(crate) fn restart(&mut self, now: Time, timeout: Option<u64>) {
        self.left = None;
        self.timeout = timeout.unwrap_or(0);
        self.until = now + self.timeout;
        self.plan(now);
    }

    /// The next probe comes after the present silence, unless the ACK timer comes first.
    fn plan(&mut self, now: Time) {
        let due = now + self.silence();
        self.due = (due < self.until).then_some(due);
    }

    /// Nanoseconds of silence before the next probe.
    fn silence(&self) -> u64 {
        let silence = match self.round_trip {
            Some(RoundTrip { smoothed, variation, latest }) => {
                (smoothed.max(latest) * ROUND_TRIPS).max(smoothed + variation * 4)
            }
            None => self.timeout / UNMEASURED_PART,
        };
        let doublings = self.sent.saturating_add(self.needless);
        silence.max(FLOOR).saturating_mul(1 << doublings.min(MOST_DOUBLINGS))
    }

    /// The time has come. With something `in_flight` a probe begins (`true`), and the next one
    /// waits twice as long.
    pub(crate) fn fire(&mut self, now: Time, in_flight: bool) -> bool {
        if in_flight {
            self.sent += 1;
            self.is_out = true;
            self.left = Some(Repeat::Oldest);
        }
        self.plan(now);
        in_flight
    }

    /// Whether a probe is to be sent, or the rest of one.
    pub(crate) fn is_pending(&self) -> bool {
        self.left.is_some()
    }

    /// Which packet leaves next.
    pub(crate) fn take(&mut self) -> Option<Repeat> {
        let next = self.left?;
        self.left = (next == Repeat::Oldest).then_some(Repeat::Newest);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 67_108_864;

    /// When probes leave, in microseconds after the last progress.
    fn probes(probe: &mut Probe, timeout: u64) -> Vec<u64> {
        let mut at = Vec::new();
        probe.restart(Time(0), Some(timeout));
        while let Some(due) = probe.due() {
            assert!(probe.fire(due, true));
            at.push(due.nanos() / 1000);
        }
        at
    }

    #[test]
    fn probes_back_off_up_to_the_ack_timeout_and_are_few() {
        let mut probe = Probe::default();
        probe.on_round_trip(20_000);
        assert_eq!(
            probes(&mut probe, TIMEOUT),
            [250, 750, 1_750, 3_750, 7_750, 15_750, 31_750, 63_750]
        );
        // After the timeout nothing was heard still: the wait goes on where it was.
        assert_eq!(probes(&mut probe, TIMEOUT), [64_000]);
        assert_eq!(probes(&mut probe, TIMEOUT), []);
        probe.on_progress();
        assert_eq!(probes(&mut probe, TIMEOUT)[0], 250);
    }

    #[test]
    fn a_long_or_unsteady_round_trip_is_waited_for() {
        let mut probe = Probe::default();
        for _ in 0..100 {
            probe.on_round_trip(1_000_000);
        }
        assert_eq!(probes(&mut probe, TIMEOUT)[0], 4_000);
        let mut probe = Probe::default();
        for i in 0..100 {
            probe.on_round_trip(if i % 4 == 2 { 2_000_000 } else { 10_000 });
        }
        assert!(probes(&mut probe, TIMEOUT)[0] > 2_000, "{probe:?}");
        // One that is much longer than all before counts at once.
        let mut probe = Probe::default();
        for _ in 0..100 {
            probe.on_round_trip(10_000);
        }
        probe.on_round_trip(2_000_000);
        assert_eq!(probes(&mut probe, TIMEOUT)[0], 8_000);
    }

    #[test]
    fn needless_probes_make_the_silence_longer_until_a_round_trip_is_measured() {
        let mut probe = Probe::default();
        probe.on_round_trip(20_000);
        assert_eq!(probes(&mut probe, 1_000_000), [250, 750]);
        probe.on_echo();
        probe.on_echo();
        probe.on_progress();
        assert_eq!(probes(&mut probe, 1_000_000), [500]);
        probe.on_progress();
        probe.on_round_trip(100_000);
        assert_eq!(probes(&mut probe, 1_000_000), [400]);
    }

    #[test]
    fn without_a_measured_round_trip_a_part_of_the_timeout_is_waited() {
        assert_eq!(probes(&mut Probe::default(), TIMEOUT), [16_777, 50_331]);
        // 67 us: too short to ask in between.
        assert_eq!(probes(&mut Probe::default(), 65_536), []);
    }

    #[test]
    fn without_an_ack_timer_there_is_no_probe() {
        let mut probe = Probe::default();
        probe.on_round_trip(20_000);
        probe.restart(Time(0), None);
        assert_eq!(probe.due(), None);
    }

    #[test]
    fn a_probe_is_the_oldest_and_then_the_newest() {
        let mut probe = Probe::default();
        assert!(!probe.fire(Time(0), false) && !probe.is_pending());
        assert!(probe.fire(Time(0), true));
        assert_eq!(probe.take(), Some(Repeat::Oldest));
        assert!(probe.is_pending());
        assert_eq!((probe.take(), probe.take()), (Some(Repeat::Newest), None));
    }
}
