//! Devices whose packets are moved by threads of their own (`engine_threads`): queue pairs are
//! spread over them, what they share works across them, and no call of the application is needed
//! for progress.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use vernic_engine::*;

const ENGINES: usize = 3;

fn config() -> Config {
    let mut config = test_config();
    config.set("engine_threads", &ENGINES.to_string()).unwrap();
    config
}

/// Waits for something without a call into the device.
fn until(what: &str, is_true: impl FnMut() -> bool) {
    until_or(&|| what.to_owned(), is_true);
}

/// As [`until`]; what it says if it waits in vain is made then.
fn until_or(what: &dyn Fn() -> String, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{}", what());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// All that tells why a request of `qp`, of the device of `end`, does not complete.
fn state(end: &End, qp: &Qp) -> String {
    let (counters, route) = (end.context.counters(), qp.route());
    format!(
        "{qp:?} {:?} {:?}, {route}\n{:?}\n{counters:?}",
        qp.state(),
        qp.counters(),
        qp.explain()
    )
}

/// An ACK timeout of a second: on a loaded machine a thread may not run for long.
fn patient() -> Setup {
    Setup { timeout: AckTimeout::new(18), ..Setup::default() }
}

/// Pairs of connected queue pairs of two devices; those of `a` first.
fn pairs(a: &End, b: &End, count: usize) -> Vec<(Arc<Qp>, Arc<Qp>)> {
    let one = |_| {
        let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
        connect(a, &a_qp, b.gid().1, b_qp.qpn(), patient());
        connect(b, &b_qp, a.gid().1, a_qp.qpn(), patient());
        (a_qp, b_qp)
    };
    (0..count).map(one).collect()
}

/// Process slots of the queue pairs: each engine has its own.
fn slots(qps: impl IntoIterator<Item = Qpn>) -> usize {
    qps.into_iter().map(|qpn| qpn.value() >> 14).collect::<BTreeSet<_>>().len()
}

#[test]
fn queue_pairs_are_spread_over_the_engines_and_go_where_there_are_few() {
    let end = End::with(config());
    let mut qps: Vec<_> = (0..2 * ENGINES).map(|_| end.qp(Service::Rc)).collect();
    assert_eq!(slots(qps.iter().map(|qp| qp.qpn())), ENGINES);
    assert_eq!(end.context.open_qps(), 2 * ENGINES);
    // Of one engine all are gone: the next two are its own.
    let slot = |qp: &Arc<Qp>| qp.qpn().value() >> 14;
    let emptied = slot(&qps[0]);
    qps.retain(|qp| slot(qp) != emptied);
    let fresh = [end.qp(Service::Rc), end.qp(Service::Ud)];
    assert!(fresh.iter().all(|qp| slot(qp) == emptied));
    assert_eq!(end.context.open_qps(), 2 * ENGINES);
}

#[test]
fn writes_reach_memory_while_nobody_calls_into_either_device() {
    let (a, b) = (End::with(config()), End::with(config()));
    let pairs = pairs(&a, &b, 2 * ENGINES);
    a.fill(0, b"without a call");
    for (n, (qp, _)) in pairs.iter().enumerate() {
        let (id, remote) = (n as u64, b.remote(64 * n as u64));
        qp.post_send(&[wr(id, SendOp::Write(remote), &[a.sge(0, 14)])]).unwrap();
    }
    for n in 0..pairs.len() {
        until("a WRITE did not arrive", || b.bytes(64 * n, 14) == b"without a call");
    }
    until("completions are missing", || a.cq.waiting() as usize == pairs.len());
    let done = a.wait(pairs.len());
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    let ids: BTreeSet<_> = done.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids.len(), pairs.len());
    // Again, after the threads have gone to sleep.
    std::thread::sleep(Duration::from_millis(20));
    a.fill(0, b"a second time!");
    pairs[1].0.post_send(&[wr(7, SendOp::Write(b.remote(0)), &[a.sge(0, 14)])]).unwrap();
    let lost = || format!("a WRITE did not wake anybody:\n{}", state(&a, &pairs[1].0));
    until_or(&lost, || a.cq.waiting() == 1);
    assert_eq!(a.wait(1)[0].status, WcStatus::Success, "{:?}", pairs[1].0.explain());
    assert_eq!(b.bytes(0, 14), b"a second time!");
}

#[test]
fn queue_pairs_of_several_engines_share_queues_and_one_that_sleeps_is_woken() {
    let a = End::with(config());
    let context = Context::open(Some("lo"), config()).unwrap();
    let channel = context.create_channel().unwrap();
    let b = End::on(context, Some(channel.clone()));
    let srq = b.pd.create_srq(SrqInit { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..ENGINES {
        let (a_qp, b_qp) =
            (a.qp(Service::Rc), b.qp_with(Service::Rc, QpCap::default(), Some(srq.clone())));
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), patient());
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), patient());
        pairs.push((a_qp, b_qp));
    }
    assert_eq!(slots(pairs.iter().map(|(_, qp)| qp.qpn())), ENGINES);
    for round in 0..20u64 {
        let (a_qp, _) = &pairs[round as usize % ENGINES];
        srq.post_recv(&[RecvWr { wr_id: round, sges: &[b.sge(0, 64)] }]).unwrap();
        b.cq.req_notify(false);
        a.fill(0, &round.to_ne_bytes());
        a_qp.post_send(&[wr(round, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
        assert!(Arc::ptr_eq(&channel.wait().unwrap(), &b.cq));
        let got = b.wait(1)[0];
        assert_eq!((got.wr_id, got.status), (round, WcStatus::Success));
        assert_eq!(b.bytes(0, 8), round.to_ne_bytes());
        assert_eq!(a.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn nobody_is_inside_memory_that_is_deregistered_whichever_engine_moves_it() {
    // Some WRITEs must come too late; on a loaded machine that takes more than one attempt.
    assert!((0..20).any(|_| deregisters_under_writes()), "it was too slow to tell");
}

/// False if all WRITEs were done before.
fn deregisters_under_writes() -> bool {
    let (a, b) = (End::with(config()), End::with(config()));
    let pairs = pairs(&a, &b, ENGINES);
    let target = vernic_mem::HostBuffer::new(1 << 16).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let addr = target.as_mut_ptr();
    // SAFETY: the buffer outlives the region, which this function deregisters.
    #[allow(unsafe_code)]
    let mr = unsafe { b.pd.reg_mr(addr, 1 << 16, addr as u64, access) }.unwrap();
    a.fill(0, &[7; 1 << 16]);
    let remote = Remote { addr: mr.iova(), rkey: mr.rkey() };
    for (qp, _) in &pairs {
        let sges = [a.sge(0, 1 << 16)];
        let writes = [wr(1, SendOp::Write(remote), &sges); 64];
        qp.post_send(&writes).unwrap();
    }
    until("nothing arrives", || {
        let mut first = [0];
        target.read_at(0, &mut first).unwrap();
        first == [7]
    });
    mr.deregister().unwrap();
    // From here on it is ours alone.
    target.write_at(0, &[0; 1 << 16]).unwrap();
    let done = a.wait(64 * ENGINES);
    let mut bytes = vec![0; 1 << 16];
    target.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    done.iter().any(|wc| wc.status == WcStatus::RemoteAccess)
}

#[test]
fn datagrams_go_from_any_engine_to_any_and_to_groups() {
    let (a, b) = (End::with(config()), End::with(config()));
    const QKEY: Qkey = Qkey(0x1234);
    let from: Vec<_> = (0..ENGINES).map(|_| a.qp(Service::Ud)).collect();
    let to: Vec<_> = (0..ENGINES).map(|_| b.qp(Service::Ud)).collect();
    from.iter().chain(&to).for_each(|qp| bring_up_ud(qp, QKEY));
    let av = AddressVector {
        dgid: b.gid().1,
        sgid_index: a.gid().0,
        port: PortNum(1),
        ..AddressVector::default()
    };
    let ah = a.pd.create_ah(av).unwrap();
    for (n, b_qp) in to.iter().enumerate() {
        b_qp.post_recv(&[RecvWr { wr_id: n as u64, sges: &[b.sge(0, 4096)] }; 8]).unwrap();
        for a_qp in &from {
            let dest = Some(Dest { ah: &ah, qpn: b_qp.qpn(), qkey: QKEY });
            a_qp.post_send(&[SendWr { dest, ..wr(1, SendOp::Send, &[a.sge(0, 64)]) }]).unwrap();
        }
    }
    assert!(b.wait(ENGINES * ENGINES).iter().all(|wc| wc.status == WcStatus::Success));
    a.wait(ENGINES * ENGINES);

    // Of this process alone.
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = Gid::from_ip([239, 78, high, low].into());
    to.iter().for_each(|qp| qp.attach_mcast(group).unwrap());
    let ah = a.pd.create_ah(AddressVector { dgid: group, ..av }).unwrap();
    let dest = Some(Dest { ah: &ah, qpn: Qpn::MULTICAST, qkey: QKEY });
    from[1].post_send(&[SendWr { dest, ..wr(2, SendOp::Send, &[a.sge(0, 64)]) }]).unwrap();
    let members: BTreeSet<_> = b.wait(ENGINES).iter().map(|wc| wc.qpn).collect();
    assert_eq!(members, to.iter().map(|qp| qp.qpn()).collect());
}

#[test]
fn a_device_with_threads_closes_under_traffic_and_flushes_what_is_posted_afterwards() {
    let (a, b) = (End::with(config()), End::with(config()));
    let pairs = pairs(&a, &b, ENGINES);
    let posters: Vec<_> = pairs
        .iter()
        .map(|(qp, _)| {
            let (qp, sge, remote) = (qp.clone(), a.sge(0, 4096), b.remote(0));
            std::thread::spawn(move || {
                let mut refused = 0;
                // The completion queue holds those of all.
                for n in 0..1000 {
                    refused +=
                        usize::from(qp.post_send(&[wr(n, SendOp::Write(remote), &[sge])]).is_err());
                }
                1000 - refused
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(1));
    a.context.close();
    let posted: usize = posters.into_iter().map(|poster| poster.join().unwrap()).sum();
    let done = a.wait(posted);
    assert_eq!(done.len(), posted);
    assert_eq!(a.cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
}

#[test]
fn groups_of_all_engines_count_together() {
    // It needs hundreds of descriptors.
    if other::runs_alone("groups_of_all_engines_count_together") {
        return;
    }
    let end = End::with(config());
    let qps: Vec<_> = (0..ENGINES).map(|_| end.qp(Service::Ud)).collect();
    qps.iter().for_each(|qp| bring_up_ud(qp, Qkey(1)));
    let limit = end.context.device_attr().max_mcast_groups as usize;
    let group = |n: usize| Gid::from_ip([239, 79, (n >> 8) as u8, n as u8].into());
    (0..limit).for_each(|n| qps[n % ENGINES].attach_mcast(group(n)).unwrap());
    for qp in &qps {
        let error = qp.attach_mcast(group(limit)).unwrap_err();
        assert!(matches!(error, McastError::Full { .. }), "{error}");
    }
    // A group that the device is in has room for others, and who was in one leaves room.
    qps[1].attach_mcast(group(0)).unwrap();
    qps[0].detach_mcast(group(0)).unwrap();
    qps[0].attach_mcast(group(limit)).unwrap_err();
    qps[1].detach_mcast(group(0)).unwrap();
    qps[2].attach_mcast(group(limit)).unwrap();
}

/// Queue pairs from each engine of one device to each of another, by the wire.
fn crossed(a: &End, b: &End) -> Vec<(Arc<Qp>, Arc<Qp>)> {
    let mut qps: Vec<_> = (0..ENGINES * ENGINES)
        .map(|_| (Some(a.qp(Service::Rc)), Some(b.qp(Service::Rc))))
        .collect();
    let mut pairs = Vec::new();
    for (i, j) in (0..ENGINES).flat_map(|i| (0..ENGINES).map(move |j| (i, j))) {
        // They are given to the engines in turn.
        let a_qp = qps[i + ENGINES * j].0.take().unwrap();
        let b_qp = qps[j + ENGINES * i].1.take().unwrap();
        connect(a, &a_qp, b.gid().1, b_qp.qpn(), patient());
        connect(b, &b_qp, a.gid().1, a_qp.qpn(), patient());
        pairs.push((a_qp, b_qp));
    }
    assert_eq!(slots(pairs[..ENGINES].iter().map(|(a_qp, _)| a_qp.qpn())), 1);
    assert_eq!(slots(pairs[..ENGINES].iter().map(|(_, b_qp)| b_qp.qpn())), ENGINES);
    pairs
}

#[test]
fn packets_by_the_wire_come_to_the_engine_that_has_the_queue_pair_after_the_first_few() {
    if other::runs_alone(
        "packets_by_the_wire_come_to_the_engine_that_has_the_queue_pair_after_the_first_few",
    ) {
        return;
    }
    let mut config = config();
    config.set("force_wire", "on").unwrap();
    // No luck: queue pairs of an engine to one other share a flow.
    config.set("flows", "1").unwrap();
    let (a, b) = (End::with(config.clone()), End::with(config));
    let pairs = crossed(&a, &b);
    let round = || {
        for (n, (a_qp, b_qp)) in pairs.iter().enumerate() {
            b_qp.post_recv(&[RecvWr { wr_id: n as u64, sges: &[b.sge(0, 64)] }]).unwrap();
            a_qp.post_send(&[wr(n as u64, SendOp::Send, &[a.sge(0, 64)])]).unwrap();
            let got = (a.wait(1)[0], b.wait(1)[0]);
            assert_eq!((got.0.status, got.1.status), (WcStatus::Success, WcStatus::Success));
            assert_eq!((got.0.wr_id, got.1.wr_id, got.1.qpn), (n as u64, n as u64, b_qp.qpn()));
        }
    };
    let taken_over = || [&a, &b].map(|end| end.context.counters().link.taken_over);
    // Each flow is steered when it was handed over so often.
    (0..40).for_each(|_| round());
    let before = taken_over();
    (0..40).for_each(|_| round());
    assert_eq!(taken_over(), before, "packets are still handed over");
    for end in [&a, &b] {
        let link = end.context.counters().link;
        assert_eq!((link.hand_over_drops, link.hand_over_rejects), (0, 0));
        assert!(link.steered_flows <= (ENGINES * ENGINES) as u64, "{link:?}");
    }
}

#[test]
fn iwarp_devices_make_progress_by_calls_all_the_same() {
    let context = Context::open_iwarp(Some("lo"), config()).unwrap();
    assert_eq!(context.config().engine_threads, 0);
}
