//! The rate of UC: limits of it, and notifications of congestion.

use super::*;
use crate::congestion::Algorithm;
use crate::message::RendezvousLimits;
use crate::rate::RateLimit;
use vernic_wire::{Bth, StaticRate};

const MS: u64 = 1_000_000;

impl Rig {
    fn of(algorithm: &str) -> Self {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let mut t = Self { qp: Qp::with_algorithm(Self::INIT, algorithm), host: TestHost::new() };
        t.bring_up();
        t
    }

    fn limit(&mut self, now: Time, kbps: u32) {
        let attr = QpAttr { rate_limit: RateLimit::kbps(kbps), ..*self.qp.attr() };
        self.qp.modify(&attr, AttrMask::RATE_LIMIT, now, &mut self.host).unwrap();
    }

    fn notify(&mut self, now: Time) {
        let mut buf = [0; 64];
        let len = Headers::new(Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0))).emit(&mut buf);
        let disposition = self.take_at(now, &buf[..len + 16]);
        assert_eq!(disposition, Disposition::Drop(DropReason::Cnp));
    }

    /// Sends from one time to another, always with more to send, at most once in 10 us. Returns the
    /// bytes that left and the times that the owner was woken.
    fn run(&mut self, from: Time, nanos: u64) -> (u64, u64) {
        let (mut now, mut bytes, mut wakes) = (from, 0, 0);
        let mut buf = vec![0; Headers::MAX_LEN + 256];
        while now < from + nanos {
            if self.qp.next_deadline().is_some_and(|at| at <= now) {
                wakes += 1;
                self.qp.handle_timeout(now, &mut self.host);
            }
            while self.qp.send_room() > 0 {
                let (op, flags) = (SendOp::Send, SendFlags::empty());
                let wqe = SendWqe { wr_id: 0, op, flags, length: 256, dest: None, srqn: None };
                self.qp.post_send(wqe).unwrap();
            }
            // No link is faster than 1 Gb/s here: five packets.
            for _ in 0..5 {
                let wants = self.qp.wants_requests();
                let sent = self.qp.poll_request(now, &mut self.host, &mut buf);
                assert_eq!(wants, sent.is_some());
                bytes += sent.map_or(0, |sent| sent.len as u64);
            }
            now = now + 10_000;
        }
        (bytes, wakes)
    }
}

fn within(bytes: u64, expected: u64, per_cent: u64) -> bool {
    bytes.abs_diff(expected) * 100 <= expected * per_cent
}

#[test]
fn a_limit_is_met_with_one_wake_up_in_100_us_until_it_ends() {
    let mut t = Rig::new();
    let (free, _) = t.run(NOW, 10 * MS);
    assert!(free > 1_200_000, "{free}");
    let mut now = Time(10 * MS);
    for kbps in [1_000, 10_000, 100_000] {
        t.limit(now, kbps);
        let (bytes, wakes) = t.run(now, 2_000 * MS);
        assert!(within(bytes, u64::from(kbps) * 250, 2), "{kbps} kb/s: {bytes}");
        assert!(wakes <= 20_000, "{kbps} kb/s: {wakes}");
        now = now + 2_000 * MS;
    }
    t.limit(now, 0);
    assert_eq!((t.qp.next_deadline(), t.qp.wants_requests()), (None, true));
    assert_eq!(t.run(now, 10 * MS).0, free);
}

#[test]
fn parts_of_messages_count_where_an_earlier_limit_lets_them() {
    let mut t = Rig::new();
    t.qp.set_messages(true);
    t.qp.set_rendezvous(Some(RendezvousLimits { min_bytes: 1, max_bytes: 4096 }));
    t.post(1, SendOp::Send, 256);
    assert!(t.qp.has_message());
    t.limit(NOW, 1_000);
    assert!(!t.qp.has_message() && t.qp.next_direct().is_none());
    t.qp.set_messages(true);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 50 256B"]);
}

#[test]
fn a_static_rate_holds_by_the_link_alone() {
    let mut t = Rig::new();
    // 2.5 Gb/s: the quantum of 100 us is 31 kB.
    let mut attr = *t.qp.attr();
    attr.av.static_rate = StaticRate(2);
    t.modify(QpState::Sqd);
    t.qp.modify(&attr, AttrMask::AV, NOW, &mut t.host).unwrap();
    t.modify(QpState::Rts);
    let mut left = |is_near: bool| {
        t.qp.set_messages(is_near);
        let mut buf = [0; 4352];
        (0..1000)
            .take_while(|_| {
                let (op, flags) = (SendOp::Write(remote(0)), SendFlags::empty());
                let wqe = SendWqe { wr_id: 0, op, flags, length: 256, dest: None, srqn: None };
                t.qp.post_send(wqe).is_ok()
                    && t.qp.poll_request(NOW, &mut t.host, &mut buf).is_some()
            })
            .count()
    };
    assert_eq!(left(true), 1000);
    // What leaves after 100 us are full, and the queue of eight.
    assert!((110..=120).contains(&left(false)));
}

#[test]
fn notifications_slow_a_queue_pair_with_dcqcn_and_leave_others_alone() {
    let dcqcn = "dcqcn,rate_to_set_on_first_cnp=80,rpg_min_dec_fac=50,rpg_time_reset=1000000";
    for (algorithm, is_slowed) in
        [(dcqcn, true), ("aimd", false), ("swift", false), ("none", false)]
    {
        let mut t = Rig::of(algorithm);
        let (free, _) = t.run(NOW, 10 * MS);
        t.notify(Time(10 * MS));
        assert_eq!(t.qp.counters().cnps_received, 1);
        let (bytes, wakes) = t.run(Time(10 * MS), 100 * MS);
        if is_slowed {
            // Half of 80 Mb/s.
            assert!(within(bytes, 500_000, 3), "{bytes}");
            assert!(wakes <= 1_000, "{wakes}");
        } else {
            assert_eq!(bytes, 10 * free, "{algorithm}");
        }
    }
}

#[test]
fn the_rate_after_a_notification_grows_without_any_answer() {
    let mut t = Rig::of("dcqcn,rpg_max_rate=1000");
    t.run(NOW, 10 * MS);
    for at in 0..50 {
        t.notify(Time(10 * MS + at * 50_000));
    }
    let start = Time(10 * MS + 50 * 50_000);
    let (slow, _) = t.run(start, 200_000);
    t.run(start + 200_000, 2_000 * MS);
    let (fast, _) = t.run(start + 2_001 * MS, 200_000);
    assert!(4 * slow < fast, "{slow} and {fast}");
    assert_eq!(t.qp.next_deadline(), None);
}

#[test]
fn an_error_ends_the_wait() {
    let mut t = Rig::new();
    t.limit(NOW, 1);
    t.post(1, SendOp::Send, 600);
    t.poll();
    assert!(t.qp.next_deadline().is_some() && !t.qp.wants_requests());
    t.modify(QpState::Error);
    assert_eq!(t.qp.next_deadline(), None);
    assert_eq!(t.host.sent[0].status, WcStatus::Flushed);
}

#[test]
fn draining_waits_for_its_time_and_holds_what_is_not_begun() {
    let mut t = Rig::new();
    t.limit(NOW, 1);
    t.post(1, SendOp::Send, 300);
    t.post(2, SendOp::Send, 8);
    t.poll();
    t.modify(QpState::Sqd);
    assert!(!t.qp.wants_requests() && t.qp.is_draining());
    let at = t.qp.next_deadline().unwrap();
    t.qp.handle_timeout(at, &mut t.host);
    assert_eq!(names(&t.packets()), ["UC_SEND_LAST 51 44B"]);
    assert_eq!(t.host.events, [QpEvent::SqDrained]);
}
