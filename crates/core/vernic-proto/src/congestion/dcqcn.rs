//! DCQCN: a rate that follows congestion notification packets (IBTA A17.9; Zhu and others, SIGCOMM
//! 2015). This is the reaction point; the receiver's part is `crate::notification`.
//!
//! A queue pair sends as fast as its window lets it until the first notification. From then on it
//! has a current rate and a target rate. A notification makes the current rate the target, and
//! takes part of it off the current one: half of `alpha`, which is near 1 if notifications come all
//! the time. Without notifications the rate grows in steps, which a timer and a byte counter count
//! apart:
//!
//! 1. *fast recovery*, the first `rpg_threshold` steps: half of the way to the target each
//! 2. *additive increase*, while one of both counts that many: the target grows by `rpg_ai_rate`
//! 3. *hyper increase*, when both have passed it: by `rpg_hai_rate` more at each step
//!
//! At `rpg_max_rate` pacing ends until the next notification.
//!
//! A rate bounds no queue, and a path may not mark where it loses. So the window of `aimd` remains
//! in force beside the rate, and answers losses and silence. The two steer by different signs, and
//! the smaller wins.
//!
//! Time comes with the calls: steps whose time passed between two calls are made up for at the
//! next.

use vernic_wire::Kind;

use super::aimd::Aimd;
use super::pacer::{MEGABIT, Pacer, Rate};
use super::params::{ParamError, check_order, params};
use super::{Acked, Congestion, Sent};
use crate::time::Time;

params! {
    /// Parameters of DCQCN, by the names that adapters' drivers give them (`ecn/roce_rp` and
    /// `ecn/roce_np` of mlx5).
    Dcqcn, "dcqcn";
    /// Time after which the rate takes a step, if no notification came.
    rpg_time_reset: 300, 1..=1_000_000, "us";
    /// Bytes sent after which the rate takes a step, if no notification came; 0 for none.
    rpg_byte_reset: 10_000_000, 0..=u32::MAX, "bytes";
    /// Steps of fast recovery.
    rpg_threshold: 5, 1..=31, "steps";
    /// The largest rate, at which pacing ends; 0 is 400 Gb/s.
    rpg_max_rate: 0, 0..=1_000_000, "Mb/s";
    /// What an additive step adds to the target rate; 0 is a 1,024th of the target rate.
    rpg_ai_rate: 0, 0..=1_000_000, "Mb/s";
    /// What a hyper step adds more than the one before; 0 is ten additive steps.
    rpg_hai_rate: 0, 0..=1_000_000, "Mb/s";
    /// Divisor of alpha in a reduction, as its logarithm: at 11 alpha of nearly 1 halves the rate.
    rpg_gd: 11, 10..=15, "log2";
    /// The rate is multiplied by this much at least in a reduction.
    rpg_min_dec_fac: 50, 1..=100, "%";
    /// The smallest rate: no number of notifications presses it lower.
    rpg_min_rate: 1, 1..=1_000_000, "Mb/s";
    /// Whether a notification lowers the target rate also while no step was made since the last.
    clamp_tgt_rate: 0, 0..=1, "(0 or 1)";
    /// Least time between two reductions.
    rate_reduce_monitor_period: 50, 0..=1_000_000, "us";
    /// Rate after the first notification; 0 takes what was sent in the millisecond before.
    rate_to_set_on_first_cnp: 0, 0..=1_000_000, "Mb/s";
    /// Alpha before the first notification.
    initial_alpha_value: 1023, 1..=1023, "1/1024";
    /// Share of alpha that an interval leaves of it.
    dce_tcp_g: 1019, 1..=1023, "1/1024";
    /// Interval in which alpha falls if no notification comes, and rises if one does.
    dce_tcp_rtt: 55, 1..=1_000_000, "us";
    /// Time's worth of packets that may leave together. Adapters pace each packet, which is 0; a
    /// process would have to wake for each.
    pacing_quantum: 100, 0..=10_000, "us";
    /// Least time between two notifications that this side sends.
    min_time_between_cnps: 50, 0..=1_000_000, "us";
}

/// The largest rate in Mb/s where no parameter says one: 400 Gb/s.
const FASTEST: u32 = 400_000;

impl Dcqcn {
    /// The largest rate in Mb/s.
    fn fastest(&self) -> u32 {
        if self.rpg_max_rate == 0 { FASTEST } else { self.rpg_max_rate }
    }

    /// Refuses a smallest rate above the largest, and a first one that is not between them.
    fn check_orders(&self) -> Result<(), ParamError> {
        let of = ("dcqcn", "Mb/s");
        let min = ("rpg_min_rate", self.rpg_min_rate);
        let max = ("rpg_max_rate", self.fastest());
        check_order(of, min, max)?;
        if self.rate_to_set_on_first_cnp == 0 {
            return Ok(());
        }
        let first = ("rate_to_set_on_first_cnp", self.rate_to_set_on_first_cnp);
        check_order(of, min, first)?;
        check_order(of, first, max)
    }
}

/// Alpha is a fraction of this.
const ONE: u64 = 1 << 20;

/// Nanoseconds over which the rate is measured that the first notification begins from.
const MEASURED: u64 = 1_000_000;

/// The round trip in nanoseconds that the paper's parameters are made for.
const DATA_CENTRE: u64 = 55_000;

/// Steps that are made up for at one call: more take any rate to the largest.
const MOST_STEPS: u64 = 1000;

/// The rates of a queue pair that was notified.
#[derive(Debug, Clone)]
struct Rates {
    current: Rate,
    target: Rate,
    /// Steps of the timer and of the byte counter since the last notification.
    timer_steps: u64,
    byte_steps: u64,
    /// When the timer took its last step, and bytes since the byte counter did.
    stepped_at: Time,
    bytes: u64,
    /// When the rate was reduced last.
    reduced_at: Time,
}

/// What left lately, for the rate that the first notification begins from.
#[derive(Debug, Clone)]
struct Meter {
    since: Time,
    bytes: u64,
    rate: Rate,
}

impl Meter {
    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u64) {
        let elapsed = now.since(self.since);
        if elapsed >= MEASURED {
            // Silence before the first packet of a measurement is no part of the rate.
            self.rate = self.bytes.saturating_mul(1_000_000_000) / elapsed;
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// The rate of the last whole measurement, or of the present one if it is larger.
    fn rate(&self, now: Time) -> Rate {
        let elapsed = now.since(self.since).max(MEASURED / 8);
        self.rate.max(self.bytes.saturating_mul(1_000_000_000) / elapsed)
    }
}

/// The reaction point of one queue pair.
#[derive(Debug)]
pub(crate) struct ReactionPoint {
    params: Dcqcn,
    window: Aimd,
    pacer: Pacer,
    meter: Meter,
    /// Fraction of [`ONE`].
    alpha: u64,
    /// When alpha was computed for; `None` before the first notification.
    alpha_at: Option<Time>,
    /// `None` while the rate is the largest.
    rates: Option<Rates>,
}

impl ReactionPoint {
    pub(super) fn new(params: Dcqcn, limit: u32) -> Self {
        Self {
            params,
            window: Aimd::new(limit),
            pacer: Pacer::new(u64::from(params.pacing_quantum) * 1000),
            meter: Meter { since: Time(0), bytes: 0, rate: 0 },
            alpha: u64::from(params.initial_alpha_value) * (ONE / 1024),
            alpha_at: None,
            rates: None,
        }
    }

    fn max_rate(&self) -> Rate {
        u64::from(self.params.fastest()) * MEGABIT
    }

    fn min_rate(&self) -> Rate {
        u64::from(self.params.rpg_min_rate) * MEGABIT
    }

    /// Returns so many microseconds in nanoseconds, and more where round trips are longer than
    /// those of data centres, for which the parameters are made: no change of the rate shows its
    /// effect before a round trip has passed.
    #[inline]
    fn stretched(&self, micros: u32) -> u64 {
        let round_trip = self.window.latest();
        let nanos = u64::from(micros) * 1000;
        if round_trip <= DATA_CENTRE {
            nanos
        } else {
            nanos * (round_trip / 1000) / (DATA_CENTRE / 1000)
        }
    }

    /// Lowers alpha, by one interval's share for each that passed.
    fn age_alpha(&mut self, now: Time) {
        let interval = self.stretched(self.params.dce_tcp_rtt);
        let Some(from) = self.alpha_at else { return };
        let mut intervals = now.since(from) / interval;
        // Bounded: alpha is 0 after some thousand intervals.
        while intervals > 0 && self.alpha > 0 {
            self.alpha = self.alpha * u64::from(self.params.dce_tcp_g) / 1024;
            intervals -= 1;
        }
    }

    /// Lowers the rate: for a notification, or a marked answer.
    fn reduce(&mut self, now: Time) {
        let share = u64::from(self.params.dce_tcp_g);
        let monitor = self.stretched(self.params.rate_reduce_monitor_period);
        let (min, max) = (self.min_rate(), self.max_rate());
        if self.rates.as_ref().is_some_and(|rates| now.since(rates.reduced_at) < monitor) {
            return;
        }
        self.age_alpha(now);
        let reduced = |rate: Rate, alpha: u64| {
            let cut = (rate * (alpha / (ONE / 1024))) >> self.params.rpg_gd;
            let least = rate * u64::from(self.params.rpg_min_dec_fac) / 100;
            (rate - cut.min(rate)).max(least).clamp(min, max.max(min))
        };
        match &mut self.rates {
            None => {
                let first = match self.params.rate_to_set_on_first_cnp {
                    0 => self.meter.rate(now).clamp(min, max.max(min)),
                    // A target below the smallest rate would let steps lower the rate.
                    megabits => (u64::from(megabits) * MEGABIT).max(min),
                };
                self.rates = Some(Rates {
                    current: reduced(first, self.alpha),
                    target: first,
                    timer_steps: 0,
                    byte_steps: 0,
                    stepped_at: now,
                    bytes: 0,
                    reduced_at: now,
                });
                self.pacer.start(now);
            }
            Some(rates) => {
                let grew = rates.timer_steps + rates.byte_steps > 0;
                if grew || self.params.clamp_tgt_rate == 1 {
                    rates.target = rates.current;
                }
                rates.current = reduced(rates.current, self.alpha);
                (rates.timer_steps, rates.byte_steps) = (0, 0);
                (rates.stepped_at, rates.reduced_at, rates.bytes) = (now, now, 0);
                self.alpha = (self.alpha * share + ONE * (1024 - share)) / 1024;
            }
        }
        self.alpha_at = Some(now);
    }

    /// Takes the steps whose time has come.
    #[inline]
    fn grow(&mut self, now: Time, bytes: u64) {
        let (max, period) = (self.max_rate(), self.stretched(self.params.rpg_time_reset));
        let Some(rates) = &mut self.rates else { return };
        let byte_period = u64::from(self.params.rpg_byte_reset);
        rates.bytes += bytes;
        let timer = now.since(rates.stepped_at) / period;
        let counter = rates.bytes.checked_div(byte_period).unwrap_or(0);
        if timer == 0 && counter == 0 {
            return;
        }
        rates.stepped_at = rates.stepped_at + timer * period;
        rates.bytes -= counter * byte_period;
        for step in 0..(timer + counter).min(MOST_STEPS) {
            let is_timer = step < timer;
            rates.timer_steps += u64::from(is_timer);
            rates.byte_steps += u64::from(!is_timer);
            rates.step(&self.params, max);
            if rates.current >= max {
                break;
            }
        }
        if rates.current >= max || timer + counter > MOST_STEPS {
            self.rates = None;
            self.pacer.start(now);
        }
    }
}

impl Rates {
    fn step(&mut self, params: &Dcqcn, max: Rate) {
        let threshold = u64::from(params.rpg_threshold);
        let additive = match params.rpg_ai_rate {
            0 => (self.target / 1024).max(1),
            megabits => u64::from(megabits) * MEGABIT,
        };
        let hyper = match params.rpg_hai_rate {
            0 => 10 * additive,
            megabits => u64::from(megabits) * MEGABIT,
        };
        let more = self.timer_steps.max(self.byte_steps);
        let fewer = self.timer_steps.min(self.byte_steps);
        if fewer > threshold {
            self.target = self.target.saturating_add(hyper.saturating_mul(fewer - threshold));
        } else if more > threshold {
            self.target = self.target.saturating_add(additive);
        }
        self.target = self.target.min(max);
        // Rounded up, so that the rate reaches its target.
        self.current = self.current.midpoint(self.target.saturating_add(1)).min(max);
    }
}

impl Congestion for ReactionPoint {
    fn reset(&mut self) {
        let limit = self.window.limit();
        *self = Self::new(self.params, limit);
    }

    #[inline]
    fn on_sent(&mut self, now: Time, sent: Sent) {
        let bytes = u64::from(sent.bytes);
        self.grow(now, bytes);
        match &self.rates {
            None => {
                self.meter.on_sent(now, bytes);
                self.window.on_sent(now, sent);
            }
            Some(rates) => self.pacer.on_sent(now, bytes, rates.current),
        }
    }

    #[inline]
    fn on_ack(&mut self, now: Time, acked: Acked) {
        self.grow(now, 0);
        self.window.on_ack(now, acked);
    }

    fn on_loss(&mut self, now: Time) {
        self.window.on_loss(now);
    }

    fn on_needless(&mut self, now: Time) {
        self.window.on_needless(now);
    }

    fn on_mark(&mut self, now: Time, kind: Kind) {
        // The answers to a READ are data that this side asked for: nobody else can ask for less.
        if kind == Kind::ReadResponse {
            self.reduce(now);
        }
    }

    fn on_cnp(&mut self, now: Time) {
        self.reduce(now);
    }

    fn on_silence(&mut self, now: Time) {
        self.window.on_silence(now);
    }

    #[inline]
    fn window(&self) -> u32 {
        self.window.window()
    }

    #[inline]
    fn not_before(&self) -> Option<Time> {
        match self.rates {
            None => self.window.not_before().or(Some(Time(0))),
            Some(_) => Some(self.pacer.not_before()),
        }
    }

    #[inline]
    fn pauses_after(&self, now: Time, bytes: u32) -> bool {
        match &self.rates {
            None => self.window.pauses_after(now, bytes),
            Some(rates) => self.pacer.pauses_after(now, bytes.into(), rates.current),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PACKET: u32 = 1250;

    fn exact() -> Dcqcn {
        Dcqcn { pacing_quantum: 0, ..Dcqcn::default() }
    }

    /// A reaction point, sending as fast as it may, at a time. Its link takes 100 packets a
    /// millisecond: 1 Gb/s.
    struct Flow {
        point: ReactionPoint,
        now: Time,
    }

    impl Flow {
        fn new(params: Dcqcn) -> Self {
            Self { point: ReactionPoint::new(params, 1024), now: Time(MS) }
        }

        /// Sends for so long, and returns the packets.
        fn send(&mut self, nanos: u64) -> u64 {
            let end = self.now + nanos;
            let mut packets = 0;
            while self.now < end {
                if self.point.not_before().is_some_and(|at| at <= self.now) {
                    let sent = Sent { packets: 1, bytes: PACKET, again: false };
                    self.point.on_sent(self.now, sent);
                    packets += 1;
                }
                self.now = self.now + 10_000;
            }
            packets
        }

        fn megabits(&self) -> u64 {
            self.point.rates.as_ref().map_or(u64::MAX, |rates| rates.current / MEGABIT)
        }
    }

    #[test]
    fn nothing_is_paced_before_the_first_notification() {
        let mut flow = Flow::new(exact());
        assert_eq!(flow.send(10 * MS), 1000);
        assert!(!flow.point.pauses_after(flow.now, PACKET));
    }

    #[test]
    fn the_first_notification_halves_the_rate_that_was_measured() {
        let mut flow = Flow::new(exact());
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        let rate = flow.megabits();
        assert!((490..=512).contains(&rate), "{rate} Mb/s");
        assert!(flow.point.pauses_after(flow.now, 100 * PACKET));
    }

    #[test]
    fn steps_never_lower_the_rate_though_the_first_is_below_the_smallest() {
        let params =
            Dcqcn { rate_to_set_on_first_cnp: 10, rpg_min_rate: 100, rpg_max_rate: 200, ..exact() };
        let mut flow = Flow::new(params);
        flow.point.on_cnp(flow.now);
        let mut rates = vec![flow.megabits()];
        for _ in 0..20 {
            flow.send(MS);
            rates.push(flow.megabits());
        }
        assert!(rates.is_sorted() && rates[0] == 100, "{rates:?}");
    }

    #[test]
    fn packets_leave_at_the_rate_that_was_set() {
        let params = Dcqcn {
            rate_to_set_on_first_cnp: 100,
            rpg_min_dec_fac: 100,
            rpg_time_reset: 1_000_000,
            ..exact()
        };
        let mut flow = Flow::new(params);
        flow.point.on_cnp(flow.now);
        let packets = flow.send(100 * MS);
        assert!((995..=1005).contains(&packets), "{packets}");
    }

    #[test]
    fn notifications_within_the_monitor_period_count_once() {
        let mut flow = Flow::new(exact());
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        let rate = flow.megabits();
        flow.point.on_cnp(flow.now + 49_999);
        assert_eq!(flow.megabits(), rate);
        flow.point.on_cnp(flow.now + 50_000);
        assert!(flow.megabits() < rate);
    }

    #[test]
    fn a_storm_of_notifications_leaves_the_least_rate() {
        let mut flow = Flow::new(Dcqcn { rpg_min_rate: 5, ..exact() });
        flow.send(3 * MS);
        for storm in 0..10_000 {
            flow.point.on_cnp(flow.now + storm * 1000);
        }
        assert_eq!(flow.megabits(), 5);
        flow.now = flow.now + 10 * MS;
        assert!(flow.send(100 * MS) >= 50, "5 Mb/s are 50 packets in 100 ms");
    }

    #[test]
    fn the_rate_recovers_to_its_target_and_then_beyond() {
        let params = Dcqcn { rpg_byte_reset: 0, rpg_max_rate: 10_000, ..exact() };
        let mut flow = Flow::new(params);
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        let target = flow.point.rates.as_ref().unwrap().target;
        // One step of fast recovery goes half of the way, five nearly all of it.
        flow.send(310_000);
        let rates = flow.point.rates.clone().unwrap();
        assert_eq!(rates.target, target);
        let part = rates.current * 1000 / target;
        assert!((745..=755).contains(&part), "{part}");
        flow.send(5 * 300_000);
        let rates = flow.point.rates.clone().unwrap();
        assert!(rates.target > target && rates.current * 100 > target * 98);
        // The timer alone increases additively: 1/1024 each 300 us.
        flow.send(300 * MS);
        let rates = flow.point.rates.clone().unwrap();
        assert!(rates.target > 2 * target && rates.target < 4 * target);
    }

    #[test]
    fn pacing_ends_at_the_largest_rate() {
        let params = Dcqcn { rpg_max_rate: 1000, rpg_ai_rate: 100, ..exact() };
        let mut flow = Flow::new(params);
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        flow.send(100 * MS);
        assert!(flow.point.rates.is_none());
        assert_eq!(flow.send(MS), 100);
    }

    #[test]
    fn a_clock_that_jumps_far_ahead_only_ends_pacing() {
        let mut flow = Flow::new(exact());
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        flow.now = Time(u64::MAX / 2);
        flow.send(MS);
        assert!(flow.point.rates.is_none());
    }

    #[test]
    fn alpha_falls_without_notifications_and_rises_with_them() {
        let mut flow = Flow::new(exact());
        flow.send(3 * MS);
        flow.point.on_cnp(flow.now);
        flow.now = flow.now + 50 * MS;
        flow.point.on_cnp(flow.now);
        let low = flow.point.alpha;
        assert!(low < ONE / 50, "{low}");
        for _ in 0..200 {
            flow.now = flow.now + 55_000;
            flow.point.on_cnp(flow.now);
        }
        assert!(flow.point.alpha > ONE / 2 - ONE / 10, "{}", flow.point.alpha);
    }
}
