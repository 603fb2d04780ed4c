//! Reliable connections over `lo`: every operation, with and without loss, and what goes wrong.

mod common;

use common::*;
use vernic_engine::*;

#[test]
fn send_arrives_whole_and_completes_at_both_ends() {
    let t = Pair::new(Service::Rc);
    for (round, len) in [0usize, 1, 64, 4096, 4097, 100_000, 1 << 20].into_iter().enumerate() {
        let data = pattern(len, round as u32);
        t.a.fill(0, &data);
        let sges = [t.b.sge(0, 1 << 20)];
        t.b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &sges }]).unwrap();
        t.a_qp.post_send(&[wr(3, SendOp::SendImm(99), &[t.a.sge(0, len as u32)])]).unwrap();
        let got = t.b.wait(1)[0];
        assert_eq!((got.status, got.wr_id, got.opcode), (WcStatus::Success, 7, WcOpcode::Recv));
        assert_eq!((got.byte_len, got.tag), (len as u32, Tag::Imm(99)));
        assert_eq!(t.b.bytes(0, len), data);
        let sent = t.a.wait(1)[0];
        assert_eq!((sent.status, sent.wr_id, sent.opcode), (WcStatus::Success, 3, WcOpcode::Send));
    }
}

#[test]
fn write_read_and_atomics_reach_the_peers_memory() {
    let t = Pair::new(Service::Rc);
    let data = pattern(300_000, 5);
    t.a.fill(0, &data);
    let len = data.len() as u32;
    let to_b = t.b.remote(4096);
    t.a_qp.post_send(&[wr(1, SendOp::Write(to_b), &[t.a.sge(0, len)])]).unwrap();
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    assert_eq!(t.b.bytes(4096, data.len()), data);

    t.a_qp.post_send(&[wr(2, SendOp::Read(to_b), &[t.a.sge(1 << 20, len)])]).unwrap();
    let read = t.a.wait(1)[0];
    assert_eq!((read.status, read.opcode, read.byte_len), (WcStatus::Success, WcOpcode::Read, len));
    assert_eq!(t.a.bytes(1 << 20, data.len()), data);

    t.b.fill(0, &40u64.to_ne_bytes());
    let word = t.b.remote(0);
    t.a_qp
        .post_send(&[
            wr(3, SendOp::FetchAdd { remote: word, add: 2 }, &[t.a.sge(0, 8)]),
            wr(4, SendOp::CmpSwap { remote: word, compare: 42, swap: 7 }, &[t.a.sge(8, 8)]),
        ])
        .unwrap();
    let wcs = t.a.wait(2);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
    assert_eq!(t.a.bytes(0, 8), 40u64.to_ne_bytes());
    assert_eq!(t.a.bytes(8, 8), 42u64.to_ne_bytes());
    assert_eq!(t.b.bytes(0, 8), 7u64.to_ne_bytes());
}

#[test]
fn inline_data_may_change_after_the_post_and_scatter_lists_are_walked() {
    let t = Pair::new(Service::Rc);
    let sges = [t.b.sge(0, 3), t.b.sge(100, 5), t.b.sge(200, 1000)];
    t.b_qp
        .post_recv(&[RecvWr { wr_id: 1, sges: &sges }, RecvWr { wr_id: 2, sges: &sges }])
        .unwrap();
    let inline =
        SendWr { payload: Payload::Inline(&[b"hello ", b"world"]), ..wr(1, SendOp::Send, &[]) };
    t.a_qp.post_send(&[inline]).unwrap();
    assert_eq!(t.b.wait(1)[0].byte_len, 11);
    assert_eq!(
        (t.b.bytes(0, 3), t.b.bytes(100, 5), t.b.bytes(200, 3)),
        (b"hel".to_vec(), b"lo wo".to_vec(), b"rld".to_vec())
    );

    let data = pattern(900, 3);
    t.a.fill(5000, &data);
    let pieces = [t.a.sge(5000, 100), t.a.sge(5100, 0), t.a.sge(5100, 799), t.a.sge(5899, 1)];
    t.a_qp.post_send(&[wr(2, SendOp::Send, &pieces)]).unwrap();
    assert_eq!(t.b.wait(1)[0].byte_len, 900);
    let mut joined = t.b.bytes(0, 3);
    joined.extend(t.b.bytes(100, 5));
    joined.extend(t.b.bytes(200, 892));
    assert_eq!(joined, data);
}

#[test]
fn a_wrong_rkey_is_refused_with_the_right_status_at_both_ends_and_writes_nothing() {
    let t = Pair::new(Service::Rc);
    t.a.fill(0, &[0xEE; 64]);
    let mut bad = t.b.remote(0);
    bad.rkey = Rkey(bad.rkey.value() ^ 0x5555);
    t.a_qp
        .post_send(&[
            wr(1, SendOp::Write(bad), &[t.a.sge(0, 64)]),
            wr(2, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 64)]),
        ])
        .unwrap();
    let wcs = t.a.wait_beside(2, || t.b.context.progress());
    assert_eq!((wcs[0].wr_id, wcs[0].status), (1, WcStatus::RemoteAccess));
    assert_eq!((wcs[1].wr_id, wcs[1].status), (2, WcStatus::Flushed));
    assert_ne!(wcs[0].vendor_err, 0);
    assert_eq!(t.b.bytes(0, 64), [0; 64]);
    let words = t.a_qp.explain().unwrap().to_string();
    assert!(words.contains("RemoteAccess") && words.contains("127.0.0.1"), "{words}");
    // The responder is in error too, tells so, and says which key it was.
    assert_eq!(t.b_qp.state(), QpState::Error);
    let event = t.b.context.try_async_event().unwrap();
    assert_eq!(
        event,
        AsyncEvent { kind: EventKind::QpAccessError, element: Element::Qp(t.b_qp.qpn()) }
    );
    let words = t.b_qp.explain().unwrap().to_string();
    assert!(words.contains(&format!("{:#010x}", bad.rkey.value())), "{words}");
}

#[test]
fn bounds_rights_and_foreign_domains_are_refused() {
    for case in 0..4 {
        let t = Pair::new(Service::Rc);
        let other_pd = t.b.context.alloc_pd();
        let addr = t.b.memory.as_mut_ptr();
        let register = |pd: &std::sync::Arc<Pd>, access| {
            // SAFETY: `t.b` owns the buffer and outlives the region, which is dropped first.
            #[allow(unsafe_code)]
            unsafe { pd.reg_mr(addr, 4096, addr as u64, access) }.unwrap()
        };
        let read_only = register(&t.b.pd, Access::REMOTE_READ);
        let foreign = register(&other_pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let (addr, rkey, check) = match case {
            0 => (read_only.iova(), read_only.rkey(), "right"),
            1 => (foreign.iova(), foreign.rkey(), "protection domain"),
            2 => (t.b.mr.iova() + MEMORY as u64 - 8, t.b.mr.rkey(), "leaves the region"),
            _ => (t.b.mr.iova().wrapping_sub(1), t.b.mr.rkey(), "leaves the region"),
        };
        t.a_qp
            .post_send(&[wr(1, SendOp::Write(Remote { addr, rkey }), &[t.a.sge(0, 64)])])
            .unwrap();
        let wc = t.a.wait_beside(1, || t.b.context.progress())[0];
        assert_eq!(wc.status, WcStatus::RemoteAccess, "case {case}");
        let words = t.b_qp.explain().unwrap().to_string();
        assert!(words.contains(check), "case {case}: {words}");
    }
}

#[test]
fn a_bad_local_key_fails_the_sender_only() {
    let t = Pair::new(Service::Rc);
    let sge = Sge { lkey: Lkey(1), ..t.a.sge(0, 64) };
    t.a_qp.post_send(&[wr(9, SendOp::Write(t.b.remote(0)), &[sge])]).unwrap();
    let wc = t.a.wait(1)[0];
    assert_eq!((wc.wr_id, wc.status), (9, WcStatus::LocalProtection));
    assert_eq!(t.a_qp.state(), QpState::Error);
    assert_eq!(t.b_qp.state(), QpState::Rts);
}

#[test]
fn a_late_receive_is_waited_for_and_no_receive_at_all_is_explained() {
    let t = Pair::new(Service::Rc);
    t.a_qp.post_send(&[wr(1, SendOp::Send, &[t.a.sge(0, 100)])]).unwrap();
    let start = std::time::Instant::now();
    while t.b_qp.counters().rnr_naks_sent == 0 {
        t.b.context.progress();
        t.a.context.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    t.b_qp.post_recv(&[RecvWr { wr_id: 2, sges: &[t.b.sge(0, 100)] }]).unwrap();
    t.b.wait_beside(1, || t.a.context.progress());
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);

    let setup = Setup { rnr_retry: 2, min_rnr_timer: RnrTimer::new(1), ..Setup::default() };
    let t = Pair::with(Service::Rc, setup, test_config(), test_config());
    t.a_qp.post_send(&[wr(1, SendOp::Send, &[t.a.sge(0, 100)])]).unwrap();
    let wc = t.a.wait_beside(1, || t.b.context.progress())[0];
    assert_eq!(wc.status, WcStatus::RnrRetryExceeded);
    let words = t.a_qp.explain().unwrap().to_string();
    assert!(words.contains("no receive posted"), "{words}");
}

#[test]
fn a_message_longer_than_the_receive_is_an_error_at_both_ends() {
    let t = Pair::new(Service::Rc);
    t.b_qp.post_recv(&[RecvWr { wr_id: 5, sges: &[t.b.sge(0, 10)] }]).unwrap();
    t.a_qp.post_send(&[wr(1, SendOp::Send, &[t.a.sge(0, 11)])]).unwrap();
    let got = t.b.wait_beside(1, || t.a.context.progress())[0];
    assert_eq!((got.wr_id, got.status), (5, WcStatus::LocalLength));
    assert_eq!(
        t.a.wait_beside(1, || t.b.context.progress())[0].status,
        WcStatus::RemoteInvalidRequest
    );
}

#[test]
fn moving_to_error_flushes_every_request_of_both_queues_in_order() {
    let t = Pair::new(Service::Rc);
    for wr_id in 0..20 {
        t.a_qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
    let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
    t.a_qp.modify(&error, AttrMask::STATE).unwrap();
    for wr_id in 20..25 {
        t.a_qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
    t.a_qp.post_send(&[wr(25, SendOp::Send, &[]), wr(26, SendOp::Send, &[])]).unwrap();
    let wcs = t.a.wait(27);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Flushed), "{wcs:?}");
    assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..27).collect::<Vec<_>>());
    // Reset and up again: nothing of the old life is left.
    t.a_qp.modify(&QpAttr::default(), AttrMask::STATE).unwrap();
    t.b_qp.modify(&QpAttr::default(), AttrMask::STATE).unwrap();
    connect(&t.a, &t.a_qp, t.b.gid().1, t.b_qp.qpn(), Setup::default());
    connect(&t.b, &t.b_qp, t.a.gid().1, t.a_qp.qpn(), Setup::default());
    assert!(t.a_qp.explain().is_none());
    t.a_qp.post_send(&[wr(1, SendOp::Write(t.b.remote(0)), &[t.a.sge(0, 64)])]).unwrap();
    let wc = t.a.wait(1)[0];
    let peer = (t.b_qp.state(), t.b_qp.counters(), t.b.context.counters());
    assert_eq!(wc.status, WcStatus::Success, "{peer:?} {:?}", t.a_qp.explain());
}

#[test]
fn windows_grant_and_revoke() {
    let t = Pair::new(Service::Rc);
    let mw = t.b.pd.alloc_mw(MwType::Type2).unwrap();
    let new_rkey = Rkey((mw.rkey().value() & !0xFF) | ((mw.rkey().value() + 1) & 0xFF));
    let bind = MwBind {
        mw: mw.rkey(),
        new_rkey,
        mr: t.b.mr.lkey(),
        addr: t.b.mr.iova() + 4096,
        length: 4096,
        access: Access::REMOTE_WRITE.bits(),
    };
    t.b_qp.post_send(&[wr(1, SendOp::BindMw(bind), &[])]).unwrap();
    let wc = t.b.wait(1)[0];
    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::BindMw));
    mw.set_rkey(new_rkey);
    t.a.fill(0, b"windowed");
    let remote = Remote { addr: t.b.mr.iova() + 4096, rkey: new_rkey };
    t.a_qp.post_send(&[wr(2, SendOp::Write(remote), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    assert_eq!(t.b.bytes(4096, 8), b"windowed");
    assert!(t.b.mr.deregister().is_err(), "a window is bound to it");
    // SEND WITH INVALIDATE takes the right away again.
    t.b_qp.post_recv(&[RecvWr { wr_id: 3, sges: &[] }]).unwrap();
    t.a_qp.post_send(&[wr(4, SendOp::SendInv(new_rkey), &[])]).unwrap();
    assert_eq!(t.b.wait(1)[0].tag, Tag::Invalidated(new_rkey));
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    t.a_qp.post_send(&[wr(5, SendOp::Write(remote), &[t.a.sge(0, 8)])]).unwrap();
    assert_eq!(t.a.wait_beside(1, || t.b.context.progress())[0].status, WcStatus::RemoteAccess);
}

#[test]
fn posts_and_modifies_that_are_wrong_say_so() {
    let t = Pair::new(Service::Rc);
    let sges = [t.a.sge(0, 1); 5];
    let error =
        t.a_qp.post_send(&[wr(0, SendOp::Send, &[]), wr(1, SendOp::Send, &sges)]).unwrap_err();
    assert_eq!((error.index, error.source), (1, SendRefusal::TooManySges { given: 5, max: 4 }));
    let big = [0; 257];
    let inline = SendWr { payload: Payload::Inline(&[&big]), ..wr(1, SendOp::Send, &[]) };
    assert_eq!(
        t.a_qp.post_send(&[inline]).unwrap_err().source,
        SendRefusal::Inline { given: 257, max: 256 }
    );
    let fresh = t.a.qp(Service::Rc);
    assert!(fresh.post_send(&[wr(1, SendOp::Send, &[])]).is_err());
    let error = fresh.post_recv(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap_err();
    assert_eq!(error.source, RecvRefusal::State(QpState::Reset));
    let attr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
    let words = fresh.modify(&attr, AttrMask::STATE).unwrap_err().to_string();
    assert!(words.contains("Reset") && words.contains("Rtr"), "{words}");
    let attr = QpAttr { state: QpState::Init, pkey_index: 3, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    assert!(fresh.modify(&attr, mask).unwrap_err().to_string().contains("P_Key index 3"));
}

#[test]
fn a_path_mtu_beyond_the_port_is_an_error_that_says_what_to_do() {
    let mut config = test_config();
    config.set("mtu", "1024").unwrap();
    let end = End::with(config);
    let qp = end.qp(Service::Rc);
    use AttrMask as M;
    let attr = QpAttr { state: QpState::Init, ..QpAttr::default() };
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let attr = QpAttr { state: QpState::Rtr, path_mtu: Mtu::B4096, ..QpAttr::default() };
    let mask = M::STATE
        | M::AV
        | M::PATH_MTU
        | M::DEST_QPN
        | M::RQ_PSN
        | M::MAX_DEST_RD_ATOMIC
        | M::MIN_RNR_TIMER;
    let words = qp.modify(&attr, mask).unwrap_err().to_string();
    // The netdev would carry more; its MTU is not what has to change.
    for part in ["4096", "1024", "VERNIC_MTU", "queue pair 0x"] {
        assert!(words.contains(part), "{words}");
    }
    assert!(!words.contains("ip link"), "{words}");
}

#[test]
fn destroying_a_queue_pair_sends_the_ack_that_it_owes() {
    for _ in 0..20 {
        let t = Pair::new(Service::Rc);
        t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
        t.a_qp.post_send(&[wr(2, SendOp::Send, &[])]).unwrap();
        assert_eq!(t.b.wait(1)[0].status, WcStatus::Success);
        t.b_qp.destroy().unwrap();
        assert_eq!(t.a.wait(1)[0].status, WcStatus::Success, "{:?}", t.a_qp.explain());
    }
}
