//! When completions happened, as they tell it.

mod common;

use std::time::{Duration, SystemTime};

use common::*;
use vernic_engine::*;

/// A batch may have been begun before the post that it serves, by a thread that was interrupted
/// then; and two clocks are read one after the other.
const SLACK_NS: u64 = 100_000_000;

#[test]
fn completions_are_stamped_with_the_time_at_which_they_come() {
    let t = Pair::new(Service::Rc);
    for wr_id in 0..50 {
        let before = t.a.context.clocks().device_ns;
        t.b_qp.post_recv(&[RecvWr { wr_id, sges: &[t.b.sge(0, 64)] }]).unwrap();
        t.a_qp.post_send(&[wr(wr_id, SendOp::Send, &[t.a.sge(0, 64)])]).unwrap();
        let (received, sent) = (t.b.wait(1)[0], t.a.wait(1)[0]);
        let after = t.b.context.clocks().device_ns;
        for at in [received.timestamp_ns, sent.timestamp_ns] {
            assert!((before - SLACK_NS..=after).contains(&at), "{before} {at} {after}");
        }
    }
}

#[test]
fn flushed_requests_are_stamped_with_the_flush_not_with_older_traffic() {
    let t = Pair::new(Service::Rc);
    t.a_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let before = t.a.context.clocks().device_ns;
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    t.a_qp.modify(&attr, AttrMask::STATE).unwrap();
    t.a_qp.post_recv(&[RecvWr { wr_id: 2, sges: &[] }]).unwrap();
    for wc in t.a.wait(2) {
        assert_eq!(wc.status, WcStatus::Flushed);
        assert!(wc.timestamp_ns >= before, "{} {before}", wc.timestamp_ns);
    }
}

#[test]
fn the_time_of_day_of_a_completion_is_that_of_the_system() {
    let t = Pair::new(Service::Rc);
    let wall = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let before = wall();
    t.a_qp.post_send(&[wr(1, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 64)])]).unwrap();
    let wc = t.a.wait(1)[0];
    let at = u128::from(t.a.context.clocks().wall_of(wc.timestamp_ns));
    let slack = u128::from(SLACK_NS);
    assert!((before - slack..=wall() + slack).contains(&at), "{before} {at}");
}
