//! What applications ask of a device at most, and at least, each put to use.

#![allow(clippy::print_stdout)] // tests say why they skip

mod common;

use std::time::Instant;

use common::*;
use vernic_engine::limits::*;
use vernic_engine::*;
use vernic_mem::HostBuffer;

/// The least that programs were seen to ask for.
#[test]
fn advertised_limits_are_those_that_applications_need() {
    let attr = End::new().context.device_attr();
    assert!(attr.max_cqe >= 262_144 && attr.max_qp_wr >= 16_384 && attr.max_srq_wr >= 4096);
    assert!(attr.max_sge >= 32 && attr.max_srq_sge >= 2 && attr.max_inline >= 256);
    assert!(attr.max_qp_rd_atom >= 16 && attr.max_qp_init_rd_atom >= 16);
    assert!(attr.max_mr_bytes >= 1 << 40);
}

#[test]
fn queues_can_be_as_deep_as_advertised_and_no_deeper() {
    let end = End::new();
    let deep = end.context.create_cq(MAX_CQE, None).unwrap();
    assert_eq!(deep.depth(), MAX_CQE);
    deep.resize(262_144).unwrap();
    assert!(deep.resize(MAX_CQE + 1).is_err());
    assert!(end.context.create_cq(MAX_CQE + 1, None).is_err());
    let most = QpCap {
        max_send_wr: MAX_QP_WR,
        max_recv_wr: MAX_QP_WR,
        max_send_sge: MAX_SGE,
        max_recv_sge: MAX_SGE,
        max_inline: MAX_INLINE,
    };
    let qp = end.qp_with(Service::Rc, most, None);
    assert_eq!(qp.cap(), most);
    connect(&end, &qp, end.gid().1, qp.qpn(), Setup::default());
    let recvs = || (0..).map(|wr_id| RecvWr { wr_id, sges: &[] });
    qp.post_recv_from(recvs().take(MAX_QP_WR as usize)).unwrap();
    let full = RecvRefusal::Full(MAX_QP_WR);
    assert_eq!(qp.post_recv_from(recvs().take(1)).unwrap_err().source, full);
    let srq = SrqInit { max_wr: MAX_SRQ_WR, max_sge: 2, limit: 0 };
    let srq = end.pd.create_srq(srq).unwrap();
    srq.post_recv_from(recvs().take(MAX_SRQ_WR as usize)).unwrap();
    assert!(srq.post_recv_from(recvs().take(1)).is_err());
    let beyond = [
        QpCap { max_send_wr: MAX_QP_WR + 1, ..most },
        QpCap { max_recv_wr: MAX_QP_WR + 1, ..most },
        QpCap { max_send_sge: MAX_SGE + 1, ..most },
        QpCap { max_recv_sge: MAX_SGE + 1, ..most },
        QpCap { max_inline: MAX_INLINE + 1, ..most },
    ];
    for cap in beyond {
        let (send_cq, recv_cq) = (end.cq.clone(), end.cq.clone());
        let init = QpInit {
            service: Service::Rc,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: false,
            congestion: None,
        };
        assert!(matches!(end.pd.create_qp(init), Err(CreateError::Limit { .. })), "{cap:?}");
    }
}

/// A pair whose queue pairs have other sizes than usual.
fn pair(cap: QpCap, setup: Setup) -> Pair {
    let (a, b) = (End::new(), End::new());
    let (a_qp, b_qp) = (a.qp_with(Service::Rc, cap, None), b.qp_with(Service::Rc, cap, None));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), setup);
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), setup);
    Pair { a_qp, b_qp, a, b }
}

fn statuses(end: &End, count: usize) -> Vec<WcStatus> {
    end.wait(count).iter().map(|wc| wc.status).collect()
}

#[test]
fn a_message_goes_from_32_pieces_into_32_other_pieces() {
    let cap = QpCap { max_send_sge: 32, max_recv_sge: 32, ..QpCap::default() };
    let t = pair(cap, Setup::default());
    let pieces = |end: &End, len: &dyn Fn(u64) -> u32| -> Vec<Sge> {
        (0..32).map(|n| end.sge(n * 1000, len(n))).collect()
    };
    let (from, to) = (pieces(&t.a, &|n| 100 + n as u32), pieces(&t.b, &|n| 131 - n as u32));
    let data = pattern(vernic_mem::total_len(&from) as usize, 5);
    let mut rest = &data[..];
    for (n, sge) in from.iter().enumerate() {
        let (now, later) = rest.split_at(sge.length as usize);
        t.a.fill(n * 1000, now);
        rest = later;
    }
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &to }]).unwrap();
    t.a_qp.post_send(&[wr(1, SendOp::Send, &from)]).unwrap();
    assert_eq!(t.b.wait(1)[0].byte_len as usize, data.len());
    let found: Vec<u8> = to
        .iter()
        .enumerate()
        .flat_map(|(n, sge)| t.b.bytes(n * 1000, sge.length as usize))
        .collect();
    assert_eq!(found, data);
    let many = vec![t.a.sge(0, 1); 33];
    let error = t.a_qp.post_send(&[wr(1, SendOp::Send, &many)]).unwrap_err();
    assert_eq!(error.source, SendRefusal::TooManySges { given: 33, max: 32 });
}

#[test]
fn inline_data_is_taken_up_to_what_was_granted_and_refused_beyond() {
    let cap = QpCap { max_inline: MAX_INLINE, ..QpCap::default() };
    let t = pair(cap, Setup::default());
    let data = pattern(MAX_INLINE as usize + 1, 6);
    let send = |len: usize| SendWr {
        payload: Payload::InlineBytes(&data[..len]),
        ..wr(1, SendOp::Write(t.b.remote(0)), &[])
    };
    for len in [0, 1, 256, MAX_INLINE as usize] {
        t.a_qp.post_send(&[send(len)]).unwrap();
        assert_eq!(statuses(&t.a, 1), [WcStatus::Success]);
        assert_eq!(t.b.bytes(0, len), data[..len]);
    }
    let error = t.a_qp.post_send(&[send(data.len())]).unwrap_err().source;
    assert_eq!(error, SendRefusal::Inline { given: data.len(), max: MAX_INLINE });
}

#[test]
fn as_many_reads_and_atomics_as_advertised_are_under_way_at_once() {
    let cap = QpCap { max_send_wr: 512, ..QpCap::default() };
    let (a, b) = (End::new(), End::new());
    let (a_qp, b_qp) = (a.qp_with(Service::Rc, cap, None), b.qp_with(Service::Rc, cap, None));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    for (qp, end, peer) in [(&a_qp, &a, (&b, &b_qp)), (&b_qp, &b, (&a, &a_qp))] {
        use AttrMask as M;
        qp.modify(&QpAttr::default(), M::STATE).unwrap();
        let attr = QpAttr {
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            access: 0xF,
            path_mtu: Mtu::B1024,
            dest_qpn: peer.1.qpn(),
            timeout: AckTimeout::new(14),
            retry_cnt: 7,
            rnr_retry: 7,
            av: AddressVector {
                dgid: peer.0.gid().1,
                sgid_index: end.gid().0,
                port: PortNum(1),
                ..AddressVector::default()
            },
            ..QpAttr::default()
        };
        let to = |state, mask| qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
        to(QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS);
        let mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        to(QpState::Rtr, mask | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
        let mask = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY;
        to(QpState::Rts, mask | M::MAX_RD_ATOMIC);
        assert_eq!(qp.query().max_rd_atomic, MAX_RD_ATOMIC);
    }
    let word = [a.sge(0, 8)];
    let add = |wr_id| wr(wr_id, SendOp::FetchAdd { remote: b.remote(0), add: 1 }, &word);
    a_qp.post_send_from((0..400).map(add)).unwrap();
    assert_eq!(statuses(&a, 400), [WcStatus::Success; 400]);
    assert_eq!(b.bytes(0, 8), 400u64.to_ne_bytes());
}

#[test]
fn gibibytes_are_registered_for_nothing() {
    const BYTES: u64 = 8 << 30;
    let t = Pair::new(Service::Rc);
    let memory = HostBuffer::new(BYTES as usize).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    let start = Instant::now();
    // SAFETY: the buffer is dropped after the region, and accessed racily only.
    #[allow(unsafe_code)]
    let mr = unsafe { t.b.pd.reg_mr(memory.as_mut_ptr(), BYTES, 0x7000, access) }.unwrap();
    assert!(start.elapsed().as_millis() < 500, "registration touched the pages");
    t.a.fill(0, b"far end!");
    let remote = Remote { addr: 0x7000 + BYTES - 8, rkey: mr.rkey() };
    t.a_qp.post_send(&[wr(1, SendOp::Write(remote), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(statuses(&t.a, 1), [WcStatus::Success]);
    let mut end = [0; 8];
    memory.read_at(BYTES as usize - 8, &mut end).unwrap();
    assert_eq!(&end, b"far end!");
    drop(mr);
}

#[test]
fn queue_pairs_without_receives_serve_what_needs_none() {
    let none =
        QpCap { max_send_wr: 4, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline: 0 };
    let setup = Setup { rnr_retry: 0, ..Setup::default() };
    let t = pair(none, setup);
    t.a.fill(0, b"one side");
    t.a_qp.post_send(&[wr(1, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(statuses(&t.a, 1), [WcStatus::Success]);
    assert_eq!(&t.b.bytes(0, 8), b"one side");
    let refused = t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap_err().source;
    assert_eq!(refused, RecvRefusal::Full(0));
    t.a_qp.post_send(&[wr(2, SendOp::Send, &[])]).unwrap();
    assert_eq!(statuses(&t.a, 1), [WcStatus::RnrRetryExceeded], "no retry was asked for");
}

#[test]
fn requests_without_bytes_and_lists_go_through() {
    let t = Pair::new(Service::Rc);
    t.b_qp.post_recv_from((0..3).map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
    let at = t.b.remote(0);
    let ops = [
        SendOp::Send,
        SendOp::SendImm(7),
        SendOp::WriteImm(at, 8),
        SendOp::Write(at),
        SendOp::Read(at),
    ];
    let wrs = ops.map(|op| wr(1, op, &[]));
    t.a_qp.post_send(&wrs).unwrap();
    assert_eq!(statuses(&t.a, 5), [WcStatus::Success; 5]);
    let tags: Vec<(Tag, u32)> = t.b.wait(3).iter().map(|wc| (wc.tag, wc.byte_len)).collect();
    assert_eq!(tags, [(Tag::None, 0), (Tag::Imm(7), 0), (Tag::Imm(8), 0)]);
}

#[test]
fn receives_of_a_shared_queue_have_two_pieces() {
    let (a, b) = (End::new(), End::new());
    let srq = b.pd.create_srq(SrqInit { max_wr: 4096, max_sge: 2, limit: 0 }).unwrap();
    let none = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..QpCap::default() };
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp_with(Service::Rc, none, Some(srq.clone())));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    srq.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 10), b.sge(100, 90)] }]).unwrap();
    let data = pattern(100, 8);
    a.fill(0, &data);
    a_qp.post_send(&[wr(1, SendOp::Send, &[a.sge(0, 100)])]).unwrap();
    assert_eq!(statuses(&b, 1), [WcStatus::Success]);
    assert_eq!([b.bytes(0, 10), b.bytes(100, 90)].concat(), data);
}

#[test]
fn the_rnr_timer_of_a_running_queue_pair_can_be_changed() {
    let setup = Setup { min_rnr_timer: RnrTimer::new(0), rnr_retry: 7, ..Setup::default() };
    let t = Pair::with(Service::Rc, setup, test_config(), test_config());
    // From 655.36 ms to 10 us.
    let attr = QpAttr { min_rnr_timer: RnrTimer::new(1), ..t.b_qp.query() };
    t.b_qp.modify(&attr, AttrMask::MIN_RNR_TIMER).unwrap();
    assert_eq!((t.b_qp.query().min_rnr_timer, t.b_qp.state()), (RnrTimer::new(1), QpState::Rts));
    t.a_qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap();
    let start = Instant::now();
    while t.b.context.counters().rnr_naks_sent < 3 {
        let _ = t.a.cq.poll(&mut [EMPTY_WC]);
        t.b.context.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    // The third would come after 1311 ms with the old delay.
    assert!(start.elapsed().as_millis() < 1200, "{:?}", start.elapsed());
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    assert_eq!(statuses(&t.a, 1), [WcStatus::Success], "7 is for ever");
}

#[test]
fn a_receive_that_is_missing_for_two_seconds_is_a_stall_by_either_route() {
    let mut wire = test_config();
    wire.set("force_wire", "on").unwrap();
    let pairs = [test_config(), wire]
        .map(|config| Pair::with(Service::Rc, Setup::default(), config.clone(), config));
    let start = Instant::now();
    for t in &pairs {
        let send = |wr_id| wr(wr_id, SendOp::Send, &[]);
        t.a_qp.post_send(&[send(1), send(2)]).unwrap();
    }
    let stalls = |t: &Pair| t.a.context.counters().stalls;
    while pairs.iter().any(|t| stalls(t) == 0) {
        for t in &pairs {
            let _ = t.a.cq.poll(&mut [EMPTY_WC]);
            t.b.context.progress();
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(start.elapsed().as_secs() >= 2);
    for t in &pairs {
        t.b_qp.post_recv(&[1, 2].map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
        assert_eq!(statuses(&t.a, 2), [WcStatus::Success; 2], "it goes on");
        assert_eq!(stalls(t), 1, "once for each request that waits");
        let is_told = |process: &ProcessStatus| {
            let qp = process.qps.iter().find(|qp| qp.qpn == t.a_qp.qpn());
            qp.is_some_and(|qp| qp.completed == 2)
        };
        while !processes_of_all().unwrap().0.iter().any(is_told) {
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn a_datagram_over_ipv6_arrives_behind_an_ipv6_header() {
    let (a, b) = (End::new(), End::new());
    let Some(row) = b.context.gid_table().into_iter().find(|row| row.local.ip.is_ipv6()) else {
        println!("skipped: lo has no IPv6 address here");
        return;
    };
    let (a_qp, b_qp) = (a.qp(Service::Ud), b.qp(Service::Ud));
    let qkey = Qkey(0x1111);
    bring_up_ud(&a_qp, qkey);
    bring_up_ud(&b_qp, qkey);
    let av = AddressVector {
        dgid: row.gid,
        sgid_index: row.index,
        port: PortNum(1),
        traffic_class: 0x20,
        hop_limit: 9,
        ..AddressVector::default()
    };
    let ah = a.pd.create_ah(av).unwrap();
    b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 200)] }]).unwrap();
    a.fill(0, b"datagram");
    let list = [a.sge(0, 8)];
    let dest = Some(Dest { ah: &ah, qpn: b_qp.qpn(), qkey });
    a_qp.post_send(&[SendWr { dest, ..wr(1, SendOp::Send, &list) }]).unwrap();
    let wc = b.wait(1)[0];
    assert_eq!(
        (wc.status, wc.byte_len, wc.grh, wc.route.service_level),
        (WcStatus::Success, 48, true, 0x9)
    );
    let header = b.bytes(0, 40);
    assert_eq!((header[0], header[1] & 0xF0, header[6]), (0x62, 0, 17), "version, class, UDP");
    assert_eq!(header[8..24], row.gid.0);
    assert_eq!(header[24..40], row.gid.0);
    assert_eq!(&b.bytes(40, 8), b"datagram");
}

#[test]
fn a_device_is_in_as_many_groups_as_advertised_and_in_no_more() {
    // It needs hundreds of descriptors.
    if other::runs_alone("a_device_is_in_as_many_groups_as_advertised_and_in_no_more") {
        return;
    }
    let end = End::new();
    let qps: Vec<_> = (0..3).map(|_| end.qp(Service::Ud)).collect();
    qps.iter().for_each(|qp| bring_up_ud(qp, Qkey(1)));
    let limit = end.context.device_attr().max_mcast_groups as usize;
    let group = |n: usize| Gid::from_ip([239, 79, (n >> 8) as u8, n as u8].into());
    (0..limit).for_each(|n| qps[n % qps.len()].attach_mcast(group(n)).unwrap());
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

#[test]
fn parameters_of_congestion_control_that_make_no_sense_are_refused() {
    use vernic_engine::congestion::{Algorithm, Dcqcn};
    let crossed = Algorithm::Dcqcn(Dcqcn { rpg_max_rate: 1, rpg_min_rate: 10, ..Dcqcn::default() });
    // A step after no time at all would be a division by zero.
    let timeless = Algorithm::Dcqcn(Dcqcn { rpg_time_reset: 0, ..Dcqcn::default() });
    let end = End::new();
    for (algorithm, said) in [(crossed, "above rpg_max_rate"), (timeless, "must be 1 to 1000000")] {
        let init = QpInit {
            service: Service::Rc,
            send_cq: end.cq.clone(),
            recv_cq: end.cq.clone(),
            srq: None,
            cap: QpCap { max_send_wr: 1, ..QpCap::default() },
            signal_all: false,
            congestion: Some(algorithm),
        };
        let error = end.pd.create_qp(init).unwrap_err().to_string();
        assert!(error.starts_with("congestion control: rpg_") && error.contains(said), "{error}");
        let config = Config { congestion: algorithm, ..test_config() };
        let error = Context::open(Some("lo"), config).unwrap_err().to_string();
        assert!(error.contains("congestion") && error.contains(said), "{error}");
    }
    let mut config = test_config();
    let text = "dcqcn,rpg_max_rate=1,rpg_min_rate=10";
    let error = config.set("congestion", text).unwrap_err().to_string();
    assert!(error.ends_with("lower rpg_min_rate or raise rpg_max_rate"), "{error}");
}
