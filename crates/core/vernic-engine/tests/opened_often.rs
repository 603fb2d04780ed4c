//! A process that opens a device several times: each open device has sockets, slots and a lane of
//! its own, which is how a program has several cores move packets.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::*;
use vernic_engine::*;

const TIMES: usize = 3;

/// The device, opened so often.
fn ends() -> Vec<End> {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    // No luck: queue pairs of one open device to another share a flow.
    config.set("flows", "1").unwrap();
    (0..TIMES).map(|_| End::with(config.clone())).collect()
}

/// Connected queue pairs, from each of `a` to each of `b`.
fn crossed<'a>(a: &'a [End], b: &'a [End]) -> Vec<(&'a End, Arc<Qp>, &'a End, Arc<Qp>)> {
    let each = || a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    // An ACK timeout of a second: on a loaded machine a thread may not run for long.
    let patient = || Setup { timeout: AckTimeout::new(18), ..Setup::default() };
    let connected = each().map(|(a, b)| {
        let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
        connect(a, &a_qp, b.gid().1, b_qp.qpn(), patient());
        connect(b, &b_qp, a.gid().1, a_qp.qpn(), patient());
        (a, a_qp, b, b_qp)
    });
    connected.collect()
}

#[test]
fn packets_by_the_wire_come_to_the_open_device_that_has_the_queue_pair_after_the_first_few() {
    if other::runs_alone(
        "packets_by_the_wire_come_to_the_open_device_that_has_the_queue_pair_after_the_first_few",
    ) {
        return;
    }
    let (a, b) = (ends(), ends());
    let pairs = crossed(&a, &b);
    let slots: BTreeSet<_> =
        pairs.iter().flat_map(|(_, a, _, b)| [a, b]).map(|qp| qp.qpn().value() >> 14).collect();
    assert_eq!(slots.len(), 2 * TIMES, "each has its own");
    let round = || {
        for (n, (a, a_qp, b, b_qp)) in pairs.iter().enumerate() {
            b_qp.post_recv(&[RecvWr { wr_id: n as u64, sges: &[b.sge(0, 64)] }]).unwrap();
            a_qp.post_send(&[wr(n as u64, SendOp::Send, &[a.sge(0, 64)])]).unwrap();
            let got = (a.wait(1)[0], b.wait(1)[0]);
            assert_eq!((got.0.status, got.1.status), (WcStatus::Success, WcStatus::Success));
            assert_eq!((got.0.wr_id, got.1.wr_id, got.1.qpn), (n as u64, n as u64, b_qp.qpn()));
        }
    };
    let all = || a.iter().chain(&b);
    let taken_over = || all().map(|end| end.context.counters().link.taken_over).collect::<Vec<_>>();
    // Each flow is steered when it was handed over so often.
    (0..40).for_each(|_| round());
    let before = taken_over();
    (0..40).for_each(|_| round());
    assert_eq!(taken_over(), before, "packets are still handed over");
    for end in all() {
        let link = end.context.counters().link;
        assert_eq!((link.hand_over_drops, link.hand_over_rejects), (0, 0));
        assert!(link.steered_flows <= (TIMES * TIMES) as u64, "{link:?}");
    }
}
