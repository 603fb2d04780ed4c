//! Every fault at once, in both directions: nothing is lost, repeated, reordered or damaged.

mod common;

use common::*;
use vernic_engine::*;

fn faulty(spec: &str) -> Config {
    let mut config = test_config();
    config.set("fault", spec).unwrap();
    config
}

fn faulty_pair(spec: &str) -> Pair {
    let setup = Setup { mtu: Mtu::B1024, timeout: AckTimeout::new(10), ..Setup::default() };
    let ends = [1, 2].map(|seed| faulty(&format!("{spec},seed={seed}")));
    let [a, b] = ends;
    Pair::with(Service::Rc, setup, a, b)
}

#[test]
fn sends_arrive_once_and_in_order_over_a_lossy_path() {
    let t = faulty_pair("loss=0.03,dup=0.02,reorder=0.02,corrupt=0.01");
    const MESSAGES: u64 = 300;
    let len = |n: u64| ((n * 7919) % 9000) as u32;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let mut recvs = 0;
    let start = std::time::Instant::now();
    let mut wcs = [EMPTY_WC; 16];
    while received < MESSAGES || sent < MESSAGES {
        while recvs < MESSAGES && recvs - received < 16 {
            let sges = [t.b.sge((recvs % 16) * 16_384, 16_384)];
            t.b_qp.post_recv(&[RecvWr { wr_id: recvs, sges: &sges }]).unwrap();
            recvs += 1;
        }
        while posted < MESSAGES && posted - sent < 16 {
            let at = (posted % 16) * 16_384;
            t.a.fill(at as usize, &pattern(len(posted) as usize, posted as u32));
            t.a_qp.post_send(&[wr(posted, SendOp::Send, &[t.a.sge(at, len(posted))])]).unwrap();
            posted += 1;
        }
        let n = t.b.cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..n] {
            assert_eq!(
                (wc.status, wc.wr_id),
                (WcStatus::Success, received),
                "{:?}",
                t.b_qp.explain()
            );
            assert_eq!(wc.byte_len, len(received));
            let at = (received % 16) as usize * 16_384;
            assert_eq!(
                t.b.bytes(at, wc.byte_len as usize),
                pattern(wc.byte_len as usize, received as u32)
            );
            received += 1;
        }
        let n = t.a.cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..n] {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, sent), "{:?}", t.a_qp.explain());
            sent += 1;
        }
        assert!(start.elapsed() < 3 * PATIENCE, "{sent} sent, {received} received");
    }
    let (counters, link) = (t.a_qp.counters(), t.b.context.counters());
    assert!(counters.retransmitted_packets > 0, "{counters:?}");
    let of_device = t.a.context.counters().retransmitted_packets;
    assert_eq!(of_device, counters.retransmitted_packets);
    assert!(link.drops.iter().any(|d| d.0 == DropReason::Icrc && d.1 > 0), "{:?}", link.drops);
}

#[test]
fn writes_reads_and_atomics_are_exact_over_a_lossy_path() {
    let t = faulty_pair("loss=0.02,dup=0.02,reorder=0.02,corrupt=0.01");
    const ROUNDS: u64 = 40;
    for round in 0..ROUNDS {
        let len = 1 + (round * 5003 % 60_000) as u32;
        let data = pattern(len as usize, round as u32);
        t.a.fill(0, &data);
        t.a_qp
            .post_send(&[
                wr(1, SendOp::Write(t.b.remote(4096)), &[t.a.sge(0, len)]),
                wr(2, SendOp::FetchAdd { remote: t.b.remote(0), add: 1 }, &[t.a.sge(1 << 20, 8)]),
                wr(3, SendOp::Read(t.b.remote(4096)), &[t.a.sge(2 << 20, len)]),
            ])
            .unwrap();
        let wcs = t.a.wait_beside(3, || t.b.context.progress());
        assert!(
            wcs.iter().all(|wc| wc.status == WcStatus::Success),
            "{wcs:?} {:?}",
            t.a_qp.explain()
        );
        assert_eq!(t.a.bytes(1 << 20, 8), round.to_ne_bytes(), "each add once");
        assert_eq!(t.a.bytes(2 << 20, len as usize), data);
        assert_eq!(t.b.bytes(4096, len as usize), data);
    }
    assert_eq!(t.b.bytes(0, 8), ROUNDS.to_ne_bytes());
}

#[test]
fn what_comes_ahead_of_a_lost_packet_is_kept_unless_that_is_turned_off() {
    for selective in ["on", "off"] {
        let setup = Setup { mtu: Mtu::B1024, ..Setup::default() };
        let [a, b] = [1, 2].map(|seed| {
            let mut config = faulty(&format!("loss=0.02,seed={seed}"));
            config.set("selective_recovery", selective).unwrap();
            config
        });
        let t = Pair::with(Service::Rc, setup, a, b);
        let data = pattern(60_000, 7);
        t.a.fill(0, &data);
        for n in 0..40 {
            let sge = [t.a.sge(0, 60_000)];
            t.a_qp.post_send(&[wr(n, SendOp::Write(t.b.remote(0)), &sge)]).unwrap();
            let wcs = t.a.wait_beside(1, || t.b.context.progress());
            assert_eq!(wcs[0].status, WcStatus::Success, "{:?}", t.a_qp.explain());
        }
        assert_eq!(t.b.bytes(0, data.len()), data);
        let counters = t.b.context.counters();
        let kept = counters.packets_kept > 0 && counters.kept_packets_handled > 0;
        assert_eq!(kept, selective == "on", "{counters}");
    }
}

#[test]
fn probes_find_losses_long_before_the_ack_timeout_and_the_device_counts_them() {
    let setup = Setup { mtu: Mtu::B1024, timeout: AckTimeout::new(20), ..Setup::default() };
    let [a, b] = [1, 2].map(|seed| faulty(&format!("loss=0.2,seed={seed}")));
    let t = Pair::with(Service::Rc, setup, a, b);
    // About 80 of these WRITEs or their ACKs are lost, with nothing behind them. The ACK timeout is
    // 4.3 s.
    for n in 0..200 {
        t.a_qp.post_send(&[wr(n, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 8)])]).unwrap();
        let wcs = t.a.wait_beside(1, || t.b.context.progress());
        assert_eq!(wcs[0].status, WcStatus::Success, "{:?}", t.a_qp.explain());
    }
    let (qp, device) = (t.a_qp.counters(), t.a.context.counters());
    assert!(qp.tail_probes >= 50, "{qp:?}");
    assert_eq!((device.tail_probes, device.ack_timeouts), (qp.tail_probes, qp.ack_timeouts));
}

#[test]
fn a_bad_fault_specification_is_an_error_when_the_device_is_opened() {
    let mut config = test_config();
    assert!(config.set("fault", "loss=2").is_err());
    // A program that fills the field itself is told when it opens the device.
    config.fault = "loss=2".into();
    let error = Context::open(Some("lo"), config).unwrap_err().to_string();
    assert!(error.contains("fault") && error.contains("loss=2"), "{error}");
    let mut config = test_config();
    config.set("capture", "/nowhere/at/all.pcapng").unwrap();
    let error = Context::open(Some("lo"), config).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all.pcapng"), "{error}");
}
