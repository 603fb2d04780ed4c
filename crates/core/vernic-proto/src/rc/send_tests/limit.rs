//! Limits of the rate: the application's and the path's, beside congestion control.

use super::*;
use crate::congestion::Algorithm;
use vernic_wire::StaticRate;

const MS: u64 = 1_000_000;
/// Bytes of a packet of 256 bytes of payload, from the BTH on: a WRITE's first has 16 more.
const PACKET: u64 = 268;

impl Sender {
    fn limit(&mut self, rate_limit: RateLimit) {
        let attr = QpAttr { rate_limit, ..*self.qp.attr() };
        self.qp.modify(&attr, AttrMask::RATE_LIMIT, self.now, &mut self.host).unwrap();
    }

    /// Whether anything leaves; of that the peer acknowledges all at once.
    fn sends_one(&mut self) -> Option<u64> {
        let mut buf = [0; 4500];
        let sent = self.qp.poll_request(self.now, &mut self.host, &mut buf)?;
        let psn = Packet::parse(&buf[..sent.len]).unwrap().psn();
        self.ack(psn.value());
        Some(sent.len as u64)
    }

    /// Sends for so long, always with more to send, and waking `late` nanoseconds after the time
    /// asked for. Returns the bytes that left and the times that it woke for it.
    fn run(&mut self, nanos: u64, late: u64) -> (u64, u64) {
        let (end, mut bytes, mut wakes) = (self.now + nanos, 0, 0);
        while self.now < end {
            if self.qp.send_room() > 0 {
                self.post_flags(SendOp::Send, 64 * MTU, SendFlags::empty());
                continue;
            }
            wakes += 1;
            let mut turn = 0;
            while let Some(sent) = self.sends_one() {
                turn += sent;
            }
            bytes += turn;
            // All that was queued has left and was answered: nothing holds anything back.
            let Some(hold) = self.qp.next_deadline() else { return (u64::MAX, wakes) };
            self.now = hold.max(self.now + 1) + late;
            self.qp.handle_timeout(self.now, &mut self.host);
        }
        (bytes, wakes)
    }
}

fn within(bytes: u64, expected: u64, per_mille: u64) -> bool {
    bytes.abs_diff(expected) * 1000 <= expected * per_mille
}

#[test]
fn a_limit_is_met_with_one_wake_up_in_100_us_however_late_they_are() {
    for kbps in [1_000, 10_000, 100_000, 1_000_000] {
        for late in [0, 16_384, 150_000] {
            let mut s = Sender::new();
            s.limit(RateLimit::kbps(kbps));
            let nanos = if kbps == 1_000 { 10_000 * MS } else { 1_000 * MS };
            let (bytes, wakes) = s.run(nanos, late);
            let expected = u64::from(kbps) * 125 * (nanos / MS) / 1000;
            assert!(within(bytes, expected, 20), "{kbps} kb/s, {late}: {bytes}, not {expected}");
            assert!(wakes <= nanos / 100_000 + 1, "{kbps} kb/s: {wakes}");
        }
    }
}

#[test]
fn a_limit_that_changes_in_flight_holds_at_once_for_what_was_not_paid_for() {
    let mut s = Sender::new();
    s.limit(RateLimit::kbps(1_000));
    s.run(100 * MS, 0);
    // A packet takes 2.1 ms; at a thousand times the rate what is left of that is 2 us.
    s.sends_one();
    s.limit(RateLimit::kbps(1_000_000));
    assert!(s.qp.next_deadline().is_none_or(|at| at.since(s.now) < 100_000));
    let (bytes, _) = s.run(100 * MS, 0);
    assert!(within(bytes, 12_500_000, 20), "{bytes}");
    while s.sends_one().is_some() {}
    // A quantum, 12.5 kB, has left at the old rate: it takes 100 ms at the new one.
    s.limit(RateLimit::kbps(1_000));
    let owed = s.qp.next_deadline().unwrap().since(s.now);
    assert!((100 * MS..=105 * MS).contains(&owed), "{owed}");
}

#[test]
fn a_limit_that_is_removed_holds_nothing_back_any_more() {
    let mut s = Sender::new();
    s.limit(RateLimit::kbps(1));
    s.post(SendOp::Send, 4 * MTU);
    check(&s.drain(), expect!["RC_SEND_FIRST 0!;"]);
    s.ack(0);
    // 268 bytes at 125 bytes per second.
    assert_eq!(s.qp.next_deadline(), Some(Time(2_144 * MS)));
    assert!(!s.qp.wants_transmit());
    s.limit(RateLimit::NONE);
    assert!(s.qp.wants_transmit());
    check(&s.drain(), expect!["RC_SEND_MIDDLE 1; RC_SEND_MIDDLE 2; RC_SEND_LAST 3!;"]);
    assert_eq!(s.qp.attr().rate_limit, RateLimit::NONE);
}

#[test]
fn after_a_reset_nothing_is_limited() {
    let mut s = Sender::new();
    s.limit(RateLimit::kbps(1));
    s.modify(QpState::Reset, AttrMask::STATE, 0).unwrap();
    let mut s = Sender::connect(s.qp, |_| {});
    s.post(SendOp::Send, 30 * MTU);
    assert_eq!(s.drain().matches(';').count(), 30);
}

#[test]
fn a_clock_that_jumps_ahead_makes_up_for_two_milliseconds_and_no_more() {
    let mut s = Sender::new();
    s.limit(RateLimit::kbps(100_000));
    s.run(10 * MS, 0);
    s.now = s.now + 3_600_000 * MS;
    s.qp.handle_timeout(s.now, &mut s.host);
    let (bytes, _) = s.run(1, 0);
    // 2 ms, the quantum and a packet.
    assert!(bytes <= 25_000 + 1_250 + PACKET + 16, "{bytes}");
    let (bytes, _) = s.run(1_000 * MS, 0);
    assert!(within(bytes, 12_500_000, 20), "{bytes}");
}

#[test]
fn a_pause_is_made_up_for_by_the_burst_that_was_asked_for() {
    for (burst_bytes, least, most) in [(5_000, 4_700, 5_300), (100_000, 99_700, 100_300)] {
        let mut s = Sender::new();
        s.limit(RateLimit { kbps: 10_000, burst_bytes });
        s.run(10 * MS, 0);
        s.now = s.now + 10_000 * MS;
        s.qp.handle_timeout(s.now, &mut s.host);
        let (bytes, _) = s.run(1, 0);
        assert!((least..=most).contains(&bytes), "{bytes}");
    }
}

#[test]
fn what_a_read_asks_for_counts() {
    let mut s = Sender::new();
    s.limit(RateLimit::kbps(8));
    s.post(read_at(0), 4 * MTU);
    s.drain();
    // 1,000 bytes a second.
    let hold = s.qp.next_deadline().unwrap();
    assert!(hold <= Time(4_195_304), "the ACK timeout is earlier");
    s.read_response(0, Position::First, MTU as usize);
    s.read_response(1, Position::Middle, MTU as usize);
    s.read_response(2, Position::Middle, MTU as usize);
    s.read_response(3, Position::Last, MTU as usize);
    let hold = s.qp.next_deadline().unwrap();
    assert!((1_024 * MS..=1_060 * MS).contains(&hold.nanos()), "{hold:?}");
}

#[test]
fn no_retries_are_used_up_while_what_was_lost_waits_for_its_time() {
    for read in [false, true] {
        let mut s = Sender::new();
        // 1,000 bytes a second.
        s.limit(RateLimit::kbps(8));
        if read {
            s.post(read_at(0), 4 * MTU);
        } else {
            s.post(SendOp::Send, MTU);
        }
        s.drain();
        // It may leave again after 268 ms, or 1,064 ms: 60 timeouts and more, of which three would
        // be the end.
        for _ in 0..60 {
            s.pass(AckTimeout::new(10).nanos().unwrap());
            s.drain();
        }
        check(&s.log(), expect![""]);
        assert_eq!((s.qp.state(), s.qp.counters().ack_timeouts), (QpState::Rts, 1));
        if read {
            s.read_response(0, Position::First, MTU as usize);
            s.read_response(1, Position::Middle, MTU as usize);
            s.read_response(2, Position::Middle, MTU as usize);
            s.read_response(3, Position::Last, MTU as usize);
        } else {
            s.ack(0);
        }
        check(&s.log(), expect!["wc 1 Success;"]);
    }
}

#[test]
fn the_later_of_congestion_control_and_limit_holds() {
    let text = "dcqcn,rate_to_set_on_first_cnp=8,rpg_min_dec_fac=100,rpg_time_reset=1000000,pacing_quantum=0";
    for (kbps, expected) in [(80_000, 1_000_000), (800, 100_000)] {
        let algorithm: Algorithm = text.parse().unwrap();
        let mut s = Sender::connect(Qp::with_algorithm(INIT, algorithm), |_| {});
        s.limit(RateLimit::kbps(kbps));
        let bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
        s.answer(Headers::new(bth), &[0; 16]);
        let (bytes, _) = s.run(1_000 * MS, 0);
        assert!(within(bytes, expected, 20), "{bytes}, not {expected}");
    }
}

#[test]
fn a_limited_queue_pair_sends_packets_alone() {
    let mut s = Sender::new();
    s.post(SendOp::Write(Remote::default()), 2 * MTU);
    assert!(s.qp.next_direct().is_some());
    // Half of it is done when the limit comes.
    s.qp.direct_progress(MTU);
    s.limit(RateLimit::kbps(1_000_000));
    assert_eq!(s.qp.next_direct(), None);
    check(&s.drain(), expect!["RC_WRITE_FIRST 0; RC_WRITE_LAST 1!;"]);
    s.post(SendOp::Send, MTU);
    s.qp.set_messages(true);
    assert!(!s.qp.has_message());
    s.limit(RateLimit::NONE);
    s.qp.set_messages(true);
    assert!(s.qp.has_message());
}

fn at_static_rate(code: u8, port_mbps: u32) -> Sender {
    let mut qp = Qp::new(INIT);
    qp.set_port_rate(port_mbps);
    Sender::connect(qp, |attr| attr.av.static_rate = StaticRate(code))
}

#[test]
fn a_static_rate_holds_by_the_link_alone() {
    let mut s = at_static_rate(2, 40_000);
    s.qp.set_messages(false);
    // 2.5 Gb/s.
    let (bytes, _) = s.run(20 * MS, 0);
    assert!(within(bytes, 6_250_000, 20), "{bytes}");
    s.now = s.now + 10 * MS;
    s.qp.handle_timeout(s.now, &mut s.host);
    s.qp.set_messages(true);
    assert!(s.qp.has_message(), "messages are as free as ever");
    let mut buf = [0; 4500];
    while s.qp.poll_message(s.now, &mut s.host, &mut buf).is_some() {}
    assert!(s.qp.has_sent_all());
}

#[test]
fn a_static_rate_of_the_port_or_more_is_none() {
    for (code, port_mbps, is_limited) in [
        (0, 40_000, false),
        (7, 40_000, false),
        (16, 40_000, false),
        (4, 40_000, true),
        (15, 400_000, true),
    ] {
        let mut s = at_static_rate(code, port_mbps);
        let (bytes, _) = s.run(MS, 0);
        assert_eq!(bytes != u64::MAX, is_limited, "code {code}");
    }
}

#[test]
fn of_both_limits_the_smaller_holds() {
    for (kbps, expected) in [(1_000_000, 12_500_000), (10_000_000, 31_250_000)] {
        let mut s = at_static_rate(2, 40_000);
        s.limit(RateLimit::kbps(kbps));
        let (bytes, _) = s.run(100 * MS, 0);
        assert!(within(bytes, expected, 20), "{bytes}, not {expected}");
    }
}
