//! The API against a live device on `lo`: what the types do not already forbid.

mod pair;

use pair::{ALL, LONG, Pair, connect_two, failure, next_recv};
use vernic::*;

#[test]
fn a_batch_is_one_list_and_a_dropped_batch_is_nothing() {
    let pair = Pair::new();
    let (local, remote) = (pair.mr(64), pair.mr(64));
    let place = remote.remote();
    let mut batch = pair.a.send_batch();
    batch.write(WrId(1), &local, place.at(0)).signaled();
    assert_eq!(batch.len(), 1);
    drop(batch);
    let mut batch = pair.a.send_batch();
    assert!(batch.is_empty());
    for i in 0..8u8 {
        batch.write(WrId(u64::from(i)), Inline(&[i]), place.at(u64::from(i)));
    }
    let pieces = [local.slice(..4).unwrap(), local.slice(8..12).unwrap()];
    batch.read(WrId(8), pieces, place.at(0));
    let error = batch.commit().unwrap_err();
    assert!(matches!(error, PostError::Refused { wr_id: WrId(8), index: 8, .. }), "{error}");
    assert!(error.to_string().contains("created for 1"), "{error}");
    pair.a.post_read(WrId(9), local.slice(..8).unwrap(), place.at(0)).unwrap();
    assert_eq!(pair.cq_a.wait_one(LONG).unwrap().wr_id(), WrId(9));
    assert_eq!(local.to_vec(..8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn leaving_the_peers_region_is_refused_before_anything_is_posted() {
    let pair = Pair::new();
    let (local, remote) = (pair.mr(64), pair.mr(64));
    let error = pair.a.post_write(WrId(3), &local, remote.remote().at(1)).unwrap_err();
    assert!(matches!(error, PostError::RemoteRange { len: 64, room: 63, .. }), "{error}");
    assert!(pair.a.post_read(WrId(3), &local, remote.remote().at(1 << 40)).is_err());
    assert_eq!(pair.a.state(), QpState::Rts);
}

#[test]
fn a_full_send_queue_says_so_and_recovers() {
    let pair = Pair::new();
    let error = (0..17)
        .map(|i| pair.a.post_send(WrId(i), ()))
        .find_map(Result::err)
        .expect("16 places are free, nobody receives");
    assert!(error.to_string().contains("send queue full"), "{error}");
    for i in 0..16 {
        pair.b.post_recv(WrId(i), ()).unwrap();
    }
    for i in 0..16 {
        assert_eq!(pair.cq_a.wait_one(LONG).unwrap().wr_id(), WrId(i));
    }
    pair.a.post_send(WrId(99), ()).unwrap();
}

#[test]
fn queue_pairs_of_a_shared_receive_queue_take_receives_only_there() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let srq = pd.create_srq(4, 0).unwrap();
    let qp = pd.qp::<Uc>().send_cq(&cq).recv_cq(&cq).srq(&srq).create().unwrap();
    let qp = qp.init(InitAttr::default()).unwrap();
    let error = qp.post_recv(WrId(1), ()).unwrap_err();
    assert!(error.to_string().contains("shared receive queue: post there"), "{error}");
    assert!(srq.arm_limit(5).is_err());
    srq.arm_limit(2).unwrap();
    let event = device.events().wait(Some(LONG)).unwrap().expect("it is below its limit");
    assert_eq!((event.kind, event.element), (EventKind::SrqLimitReached, Element::Srq(srq.id())));
    assert_eq!(srq.limit(), 0);
}

#[test]
fn armed_queues_report_on_their_channel_and_solicited_ones_only_when_asked() {
    let device = Device::open("lo").unwrap();
    let channel = device.create_channel().unwrap();
    let (pd, plain) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let cq = device.create_cq_on(8, &channel).unwrap();
    let (a, b) = connect_two(&pd, &plain, &cq, Access::NONE);
    for i in 0..2 {
        b.post_recv(WrId(i), ()).unwrap();
    }
    cq.arm_solicited();
    a.post_send(WrId(1), ()).unwrap();
    plain.wait_one(LONG).unwrap();
    assert!(channel.try_next().is_none(), "not solicited");
    let mut batch = a.send_batch();
    batch.send(WrId(2), ()).solicited();
    batch.commit().unwrap();
    let reported = channel.wait(Some(LONG)).unwrap().expect("solicited");
    assert_eq!(reported.id(), cq.id());
    let mut wcs = [Wc::default(); 8];
    assert_eq!(reported.poll(&mut wcs).unwrap().len(), 2);
    assert!(!wcs[0].is_solicited() && wcs[1].is_solicited());
}

#[test]
fn failing_and_resetting_a_queue_pair_lets_it_be_used_again() {
    let pair = Pair::new();
    pair.b.post_recv(WrId(1), ()).unwrap();
    pair.b.fail().unwrap();
    assert_eq!(failure(&pair.cq_b).status(), WcStatus::Flushed);
    let (a, b) = (pair.a.reset().unwrap(), pair.b.reset().unwrap());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let b = b.init(InitAttr::default()).unwrap();
    b.post_recv(WrId(2), ()).unwrap();
    let (a, _b) = (a.connect(at_b).unwrap(), b.connect(at_a).unwrap());
    a.post_send_imm(WrId(3), (), 77).unwrap();
    assert_eq!(pair.cq_b.wait_one(LONG).unwrap().imm(), Some(77));
}

#[test]
fn a_drained_send_queue_says_so_and_resumes() {
    let pair = Pair::new();
    pair.a.drain().unwrap();
    let event = pair.device.events().wait(Some(LONG)).unwrap().expect("nothing was under way");
    assert_eq!(event.kind, EventKind::SqDrained);
    assert_eq!(pair.a.state(), QpState::Sqd);
    pair.b.post_recv(WrId(1), ()).unwrap();
    pair.a.post_send(WrId(2), ()).unwrap();
    assert!(pair.cq_b.poll(&mut [Wc::default()]).unwrap().is_empty());
    pair.a.resume().unwrap();
    assert!(pair.cq_b.wait_one(LONG).unwrap().is_recv());
}

#[test]
fn every_step_of_the_bring_up_can_be_taken_by_hand() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let make = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).psn(Psn::new(0xFF_FFFF)).create();
    let (a, b) = (make().unwrap(), make().unwrap());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let up = |qp: Qp<Rc, Reset>, remote| {
        let rtr = RcRtr {
            remote,
            path: Path::default(),
            path_mtu: Mtu::B256,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(1),
        };
        let timeout = AckTimeout::new(14);
        let rts = RcRts { timeout, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 };
        qp.init(InitAttr::default())?.rtr(rtr)?.rts(rts)
    };
    let (a, b) = (up(a, at_b).unwrap(), up(b, at_a).unwrap());
    assert_eq!((a.attributes().path_mtu, b.attributes().max_rd_atomic), (Mtu::B256, 1));
    b.post_recv(WrId(1), ()).unwrap();
    a.post_send(WrId(2), ()).unwrap();
    next_recv(&cq);
}

#[test]
fn datagrams_with_the_wrong_key_are_dropped_and_counted() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let make = || {
        let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create().unwrap();
        qp.init(UdInit { qkey: Qkey(5) }).unwrap()
    };
    let (a, b) = (make(), make());
    let mr = pd.alloc_mr(64, Access::NONE.local_write()).unwrap();
    b.post_recv(WrId(1), &mr).unwrap();
    let (a, b) = (a.activate().unwrap(), b.activate().unwrap());
    let ah = pd.create_ah(b.endpoint().gid).unwrap();
    a.post_send_to(WrId(2), Inline(b"wrong"), ah.to(b.qpn(), Qkey(6))).unwrap();
    a.post_send_to_imm(WrId(3), Inline(b"right"), ah.to(b.qpn(), Qkey(5)), 9).unwrap();
    let received = next_recv(&cq);
    assert_eq!((received.imm(), received.byte_len()), (Some(9), 45));
    assert_eq!((received.src_qpn(), received.has_grh()), (a.qpn(), true));
    assert_eq!(mr.to_vec(40..45).unwrap(), b"right");
    let dropped = device.counters().drops;
    assert!(dropped.contains(&(DropReason::Qkey, 1)), "{dropped:?}");
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    let Pair { a, b, cq_a, cq_b, pd, device } = Pair::new();
    let mr = pd.alloc_mr(1 << 20, ALL).unwrap();
    a.post_write(WrId(1), mr.slice(..1 << 19).unwrap(), mr.remote().at(1 << 19)).unwrap();
    drop(device);
    drop(pd);
    drop(cq_b);
    drop(mr);
    drop(b);
    drop(cq_a);
    drop(a);
}

#[test]
fn creation_errors_name_the_object_and_the_limits() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let other = Device::open("lo").unwrap();
    let theirs = other.create_cq(1).unwrap();
    let builder = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq);
    let cases = [
        ("completion queue depth is 0", device.create_cq(0).unwrap_err()),
        ("max_send_wr", builder().max_send_wr(1 << 20).create().unwrap_err()),
        ("sgid_index 200", builder().gid_index(200).create().unwrap_err()),
        ("another device", builder().send_cq(&theirs).create().unwrap_err()),
    ];
    for (part, error) in cases {
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }
    let v6 = "qpn=1,psn=1,mtu=1024,gid=2001:db8::1".parse().unwrap();
    let error = builder().create().unwrap().connect(v6).unwrap_err().to_string();
    assert!(error.contains("2001:db8::1") && error.contains("IP version"), "{error}");
    let error = Device::open("mlx5_0").unwrap_err().to_string();
    assert!(error.contains("mlx5_0") && error.contains("lo"), "{error}");
    let error = Device::open_for("192.0.2.1".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1"), "{error}");
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn completions_and_events_can_be_awaited() {
    let device = Device::open("lo").unwrap();
    let (pd, plain) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let cq = AsyncCq::new(&device, 8).unwrap();
    let (a, b) = connect_two(&pd, &plain, cq.cq(), Access::NONE);
    b.post_recv(WrId(5), ()).unwrap();
    a.post_send(WrId(1), ()).unwrap();
    let mut wcs = [Wc::default(); 8];
    let wcs = tokio::time::timeout(LONG, cq.wait(&mut wcs)).await.unwrap().unwrap();
    assert_eq!(wcs[0].wr_id(), WrId(5));
    plain.wait_one(LONG).unwrap();
    let events = AsyncEvents::new(&device).unwrap();
    a.drain().unwrap();
    let event = tokio::time::timeout(LONG, events.wait()).await.unwrap().unwrap();
    assert_eq!(event.kind, EventKind::SqDrained);
}

#[test]
fn every_object_may_be_used_from_any_thread() {
    fn check<T: Send + Sync>() {}
    check::<Device>();
    check::<Pd>();
    check::<Cq>();
    check::<CompChannel>();
    check::<Events>();
    check::<Mr>();
    check::<RawMr>();
    check::<Mw<Type2>>();
    check::<Srq>();
    check::<Ah>();
    check::<Qp<Rc, Rts>>();
    check::<SendBatch<'_, Ud>>();
    check::<Error>();
}

#[test]
fn datagrams_to_a_group_reach_those_who_joined_it() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let group = Gid::from_ip("239.255.47.91".parse().unwrap());
    let qkey = Qkey(5);
    let make = || {
        let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create().unwrap();
        qp.init(UdInit { qkey }).unwrap()
    };
    let mr = pd.alloc_mr(64, Access::NONE.local_write()).unwrap();
    let members = [make(), make()];
    for member in &members {
        member.post_recv(WrId(1), &mr).unwrap();
        member.join(group).unwrap();
    }
    assert!(members[0].leave(Gid::from_ip("239.255.47.92".parse().unwrap())).is_err());
    let members = members.map(|member| member.activate().unwrap());
    let sender = make().activate().unwrap();
    let ah = pd.create_ah(group).unwrap();
    sender.post_send_to(WrId(2), Inline(b"all"), ah.to_group(qkey)).unwrap();
    let mut reached = [next_recv(&cq).qpn(), next_recv(&cq).qpn()];
    reached.sort();
    let mut expected = members.each_ref().map(|member| member.qpn());
    expected.sort();
    assert_eq!(reached, expected);
}

#[test]
fn a_rate_limit_of_the_builder_holds_from_the_start_and_can_be_changed_and_ended() {
    let device = Device::open("lo").unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(256).unwrap();
    let make = |limit| pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).rate_limit(limit).create();
    // 1 Mb/s: 12 KiB take 98 ms, and the last 4 KiB leave behind them.
    let limit = RateLimit { kbps: 1_000, burst_bytes: 2_000 };
    let (a, b) = (make(limit).unwrap(), make(RateLimit::NONE).unwrap());
    assert_eq!(a.attributes().rate_limit, RateLimit::NONE, "not yet");
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(at_b).unwrap();
    let b = b.init(InitAttr::granting(ALL)).unwrap().connect(at_a).unwrap();
    assert_eq!((a.attributes().rate_limit, b.attributes().rate_limit), (limit, RateLimit::NONE));
    let (local, remote) =
        (pd.alloc_mr(16 << 10, ALL).unwrap(), pd.alloc_mr(16 << 10, ALL).unwrap());
    let write = |id| {
        let begun = std::time::Instant::now();
        a.post_write(WrId(id), &local, remote.remote().at(0)).unwrap();
        assert_eq!(cq.wait_one(LONG).unwrap().wr_id(), WrId(id));
        begun.elapsed()
    };
    let took = write(1);
    assert!(took.as_millis() >= 95, "{took:?}");
    a.set_rate_limit(RateLimit::kbps(500)).unwrap();
    let took = write(2);
    assert!(took.as_millis() >= 190, "{took:?}");
    a.set_rate_limit(RateLimit::NONE).unwrap();
    assert_eq!(a.attributes().rate_limit, RateLimit::NONE);
    write(3);

    let error = a.set_rate_limit(RateLimit::kbps(RateLimit::MAX_KBPS + 1)).unwrap_err();
    assert!(error.to_string().contains("rate_limit in kb/s is 400000001"), "{error}");
    let bad = RateLimit { kbps: 0, burst_bytes: 7 };
    let error = a.set_rate_limit(bad).unwrap_err();
    assert!(error.to_string().contains("burst of no rate_limit is 7"), "{error}");
    assert!(matches!(make(bad).unwrap_err(), CreateError::Limit { value: 7, .. }));
    assert!(make(RateLimit::kbps(u32::MAX)).is_err());
    a.fail().unwrap();
    assert!(a.set_rate_limit(limit).is_err(), "it sends nothing any more");
}

#[test]
fn static_rate_and_service_level_are_part_of_a_path_and_unknown_ones_are_refused() {
    let pair = Pair::new();
    let gid = pair.b.endpoint().gid;
    let path = Path { static_rate: StaticRate(2), service_level: 15, ..Path::default() };
    pair.pd.create_ah_with(gid, &path).unwrap();
    let odd = Path { service_level: 16, ..path };
    let error = pair.pd.create_ah_with(gid, &odd).unwrap_err();
    assert!(error.to_string().contains("service level 16 is none"), "{error}");
    let odd = Path { static_rate: StaticRate(25), ..path };
    let error = pair.pd.create_ah_with(gid, &odd).unwrap_err();
    assert!(error.to_string().contains("static rate 25 is none"), "{error}");
    let qp = pair.pd.qp::<Uc>().send_cq(&pair.cq_a).recv_cq(&pair.cq_a).create().unwrap();
    let options = UcOptions { path: odd, ..UcOptions::default() };
    let error = qp.connect_with(pair.b.endpoint(), &options).unwrap_err();
    assert!(error.to_string().contains("static rate 25 is none"), "{error}");
}
