//! Swift: a window that keeps the round trip near a target (Kumar and others, SIGCOMM 2020). For
//! networks that do not mark.
//!
//! While round trips are shorter than the target, the window grows by `ai` packets for each round
//! trip. A longer one takes a part off it, as large as the delay is above the target, at most
//! `max_mdf`, and at most once per round trip. A window below one packet becomes pauses between
//! packets.
//!
//! The target is what the path takes without queues, and `base_target`, `per_hop` for each of
//! `hops`, and up to `fs_range` more for small windows, which many flows on one link have. The
//! paper's targets include the path, for it knows its network; here the shortest round trip of the
//! last seconds stands for it, unless `base_rtt` tells. On a long path the target leaves half as
//! much again, since its round trips vary without a queue. The paper also splits the delay into
//! that of the network and that of the peer's host. No field of RoCE tells these apart, so a slow
//! peer counts as a long queue.

use vernic_wire::Kind;

use super::params::{ParamError, check_order, params};
use super::shortest::Shortest;
use super::{Acked, Congestion, Sent};
use crate::time::Time;

params! {
    /// Parameters of Swift, by the paper's names.
    Swift, "swift";
    /// Delay above that of the path that is aimed at. The paper's hosts time packets in hardware;
    /// here a thread's turn is part of each round trip.
    base_target: 1000, 1..=1_000_000, "us";
    /// Round trip of the empty path; 0 for the shortest one measured. Flows that begin when a queue
    /// stands measure different ones, and those with a longer one take more of the link.
    base_rtt: 0, 0..=1_000_000, "us";
    /// What each hop adds to the target.
    per_hop: 1, 0..=100_000, "us";
    /// Switches between the peers.
    hops: 1, 0..=64, "hops";
    /// What the smallest windows add to the target.
    fs_range: 50, 0..=1_000_000, "us";
    /// Window from which on the target is the largest.
    fs_min_cwnd: 100, 1..=1_000_000, "1/1000 packets";
    /// Window up to which the target grows.
    fs_max_cwnd: 100_000, 1..=100_000_000, "1/1000 packets";
    /// What a round trip below the target adds to the window.
    ai: 1000, 1..=1_000_000, "1/1000 packets";
    /// How strongly delay above the target lowers the window.
    beta: 800, 1..=1000, "1/1000";
    /// The largest part that is taken off the window at once.
    max_mdf: 500, 1..=999, "1/1000";
    /// The smallest window.
    min_cwnd: 100, 1..=1_000_000, "1/1000 packets";
    /// Silences one after the other that lower the window to the smallest.
    retx_reset_threshold: 3, 1..=16, "timeouts";
}

impl Swift {
    /// Refuses bounds of the target's growth that are the wrong way round.
    fn check_orders(&self) -> Result<(), ParamError> {
        let smallest = ("fs_min_cwnd", self.fs_min_cwnd);
        check_order(("swift", "1/1000 packets"), smallest, ("fs_max_cwnd", self.fs_max_cwnd))
    }
}

/// The window is counted in these parts of a packet.
const PACKET: u64 = 1000;
/// First window in packets, doubled each round trip until the target is met. A short queue holds
/// it.
const INITIAL: u32 = 32;
/// Longest pause between two packets, in nanoseconds: a round trip that took long, since its packet
/// was lost, says little of the next.
const LONGEST_PAUSE: u64 = 100_000_000;
/// Packets that leave without a pause after losses: fewer would leave a loss unnoticed.
const MIN_AFTER_LOSS: u64 = 8 * PACKET;

#[derive(Debug)]
pub(crate) struct DelayWindow {
    params: Swift,
    limit: u32,
    /// In thousandths of a packet.
    cwnd: u64,
    /// The target was not met yet.
    is_starting: bool,
    shortest: Shortest,
    latest: u64,
    decreased_at: Option<Time>,
    silences: u32,
    /// The next packet may leave then.
    hold: Time,
}

impl DelayWindow {
    pub(super) fn new(params: Swift, limit: u32) -> Self {
        let limit = limit.max(1);
        Self {
            params,
            limit,
            cwnd: u64::from(INITIAL.min(limit)) * PACKET,
            is_starting: true,
            shortest: Shortest::default(),
            latest: 0,
            decreased_at: None,
            silences: 0,
            hold: Time(0),
        }
    }

    /// Nanoseconds that a round trip should take.
    fn target(&self) -> u64 {
        let p = &self.params;
        let fixed = u64::from(p.base_target) + u64::from(p.per_hop) * u64::from(p.hops);
        let path = match p.base_rtt {
            0 => self.shortest.nanos(),
            micros => u64::from(micros) * 1000,
        };
        let above = (fixed * 1000).max(path / 2);
        path.saturating_add(above).saturating_add(self.scaled_by_flows())
    }

    /// What the window adds to the target: `fs_range` at `fs_min_cwnd`, nothing at `fs_max_cwnd`,
    /// and between them in proportion to the inverse of the square root.
    fn scaled_by_flows(&self) -> u64 {
        let p = &self.params;
        let range = u64::from(p.fs_range) * 1000;
        let inverse = |cwnd: u64| (PACKET * PACKET * PACKET * PACKET / cwnd.max(1)).isqrt();
        let (most, least) = (inverse(p.fs_min_cwnd.into()), inverse(p.fs_max_cwnd.into()));
        if most <= least {
            return 0;
        }
        let here = inverse(self.cwnd).clamp(least, most);
        range * (here - least) / (most - least)
    }

    fn set(&mut self, cwnd: u64) {
        let limit = u64::from(self.limit) * PACKET;
        self.cwnd = cwnd.clamp(u64::from(self.params.min_cwnd).min(limit), limit);
    }

    fn grow(&mut self, acked: Acked) {
        let packets = u64::from(acked.packets);
        if self.is_starting {
            self.set(self.cwnd + packets * PACKET);
        } else {
            let whole = self.cwnd.max(PACKET);
            self.set(self.cwnd + (u64::from(self.params.ai) * packets * PACKET / whole).max(1));
        }
    }

    /// Whether a round trip has passed since the window was lowered.
    fn may_decrease(&mut self, now: Time) -> bool {
        let may = self.decreased_at.is_none_or(|at| now.since(at) >= self.latest);
        if may {
            self.decreased_at = Some(now);
            self.is_starting = false;
        }
        may
    }

    /// Takes thousandths off the window.
    fn decrease(&mut self, part: u64) {
        let part = part.min(self.params.max_mdf.into());
        self.set(self.cwnd - self.cwnd * part / 1000);
    }
}

impl Congestion for DelayWindow {
    fn reset(&mut self) {
        *self = Self::new(self.params, self.limit);
    }

    #[inline]
    fn on_sent(&mut self, now: Time, sent: Sent) {
        if self.cwnd < PACKET {
            let pause = self.latest.saturating_mul(PACKET) / self.cwnd;
            self.hold = now + pause.saturating_mul(u64::from(sent.packets)).min(LONGEST_PAUSE);
        }
    }

    fn on_ack(&mut self, now: Time, acked: Acked) {
        self.silences = 0;
        if let Some(nanos) = acked.round_trip {
            self.latest = nanos;
            self.shortest.on_round_trip(nanos, now);
        }
        let target = self.target();
        if self.latest <= target {
            if acked.limited {
                self.grow(acked);
            }
        } else if acked.round_trip.is_some() && self.may_decrease(now) {
            let above = self.latest - target;
            self.decrease(u64::from(self.params.beta).saturating_mul(above) / self.latest);
        }
    }

    fn on_loss(&mut self, now: Time) {
        if self.may_decrease(now) && self.cwnd > MIN_AFTER_LOSS {
            self.decrease(self.params.max_mdf.into());
            self.set(self.cwnd.max(MIN_AFTER_LOSS));
        }
    }

    fn on_mark(&mut self, _: Time, _: Kind) {}

    fn on_cnp(&mut self, _: Time) {}

    fn on_silence(&mut self, now: Time) {
        self.silences += 1;
        if self.silences >= self.params.retx_reset_threshold {
            self.set(u64::from(self.params.min_cwnd));
            self.is_starting = false;
        } else if self.may_decrease(now) {
            self.decrease(self.params.max_mdf.into());
        }
    }

    #[inline]
    fn window(&self) -> u32 {
        (self.cwnd / PACKET) as u32
    }

    #[inline]
    fn not_before(&self) -> Option<Time> {
        Some(self.hold)
    }

    #[inline]
    fn pauses_after(&self, _: Time, _: u32) -> bool {
        self.cwnd < PACKET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn window() -> DelayWindow {
        DelayWindow::new(Swift { base_target: 50, ..Swift::default() }, 4096)
    }

    /// A whole window is acknowledged after a round trip of so many nanoseconds.
    fn round_trip(w: &mut DelayWindow, now: &mut Time, nanos: u64) {
        *now = *now + nanos;
        let packets = w.window().max(1);
        w.on_ack(*now, Acked { packets, limited: true, round_trip: Some(nanos) });
    }

    #[test]
    fn the_window_doubles_until_the_target_is_met_and_grows_by_one_after_it() {
        let (mut w, mut now) = (window(), Time(0));
        round_trip(&mut w, &mut now, 20 * US);
        round_trip(&mut w, &mut now, 20 * US);
        assert_eq!(w.window(), 128);
        round_trip(&mut w, &mut now, 100 * US);
        let lowered = w.window();
        assert!(lowered < 128);
        round_trip(&mut w, &mut now, 20 * US);
        assert_eq!(w.window(), lowered + 1);
    }

    #[test]
    fn a_longer_delay_takes_more_off_but_never_more_than_half() {
        let after = |delay: u64| {
            let (mut w, mut now) = (window(), Time(0));
            round_trip(&mut w, &mut now, 20 * US);
            round_trip(&mut w, &mut now, delay);
            w.window()
        };
        assert!(after(60 * US) > after(90 * US) && after(90 * US) > after(150 * US));
        assert_eq!(after(100_000 * US), 32);
    }

    #[test]
    fn the_window_falls_once_in_a_round_trip() {
        let (mut w, mut now) = (window(), Time(0));
        round_trip(&mut w, &mut now, 20 * US);
        round_trip(&mut w, &mut now, 200 * US);
        let lowered = w.window();
        let acked = Acked { packets: 1, limited: true, round_trip: Some(200 * US) };
        w.on_ack(now + 199 * US, acked);
        assert_eq!(w.window(), lowered);
        w.on_ack(now + 200 * US, acked);
        assert!(w.window() < lowered);
    }

    #[test]
    fn below_one_packet_there_are_pauses() {
        let (mut w, mut now) = (window(), Time(0));
        round_trip(&mut w, &mut now, 20 * US);
        for _ in 0..30 {
            round_trip(&mut w, &mut now, 10_000 * US);
        }
        assert_eq!(w.window(), 0);
        assert!(w.pauses_after(now, 1));
        w.on_sent(now, Sent { packets: 1, bytes: 1000, again: false });
        let pause = w.not_before().unwrap().since(now);
        assert!(pause > 10_000 * US && pause <= LONGEST_PAUSE, "{pause} ns");
    }

    #[test]
    fn small_windows_have_a_longer_target() {
        let mut w = window();
        w.shortest.on_round_trip(20 * US, Time(0));
        let target = |w: &mut DelayWindow, packets: u64| {
            w.cwnd = packets * PACKET;
            w.target() / US
        };
        let (large, few, one) = (target(&mut w, 100), target(&mut w, 4), target(&mut w, 1));
        assert_eq!(large, 20 + 50 + 1);
        assert!(large < few && few < one && one <= large + 50);
    }

    #[test]
    fn a_path_that_is_known_is_not_taken_from_what_was_measured() {
        let params = Swift { base_target: 50, base_rtt: 8, fs_range: 0, ..Swift::default() };
        let mut w = DelayWindow::new(params, 4096);
        w.shortest.on_round_trip(70 * US, Time(0));
        assert_eq!(w.target(), (8 + 50 + 1) * US);
    }

    #[test]
    fn round_trips_of_a_long_path_may_vary() {
        let mut w = DelayWindow::new(Swift { fs_range: 0, ..Swift::default() }, 4096);
        w.shortest.on_round_trip(30_000 * US, Time(0));
        assert_eq!(w.target(), 45_000 * US);
        w.shortest.on_round_trip(1_000 * US, Time(1));
        assert_eq!(w.target(), (1_000 + 1_000 + 1) * US);
    }

    #[test]
    fn losses_leave_enough_to_notice_the_next_and_silence_does_not() {
        let mut w = window();
        for loss in 0..20 {
            w.on_loss(Time(loss));
        }
        assert_eq!(w.window(), 8);
        for silence in 0..3 {
            w.on_silence(Time(100 + silence));
        }
        assert_eq!(w.window(), 0);
    }

    #[test]
    fn an_application_that_sends_little_does_not_grow_the_window() {
        let mut w = window();
        for i in 0..100 {
            w.on_ack(Time(i), Acked { packets: 1, limited: false, round_trip: Some(10 * US) });
        }
        assert_eq!(w.window(), INITIAL);
    }
}
