//! The iWARP device: queue pairs carried by TCP connections, in one process.

mod common;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use common::iwarp::{
    LO, Pair, end, pair, pair_with, queue_pair, recv, shake, startup, to_init, until_error,
};
use common::{End, PATIENCE, pattern, test_config, wr};
use vernic_engine::iwarp::{
    ConnectError, Extensions, Handshake, HandshakeState, Listener, StartError, StartupConfig,
    StartupState, StreamConfig, default_stream,
};
use vernic_engine::*;

/// SEND, WRITE and READ from each end, of sizes around the segments' and buffers'.
fn exercise(pair: &Pair) {
    let Pair { a, b, a_qp, b_qp } = pair;
    for (from, from_qp, to, to_qp) in [(a, a_qp, b, b_qp), (b, b_qp, a, a_qp)] {
        for (n, len) in [0, 1, 7, 1448, 5000, 65_536, 300_001, 3_000_000].into_iter().enumerate() {
            let bytes = pattern(len, n as u32);
            from.fill(0, &bytes);
            recv(to, to_qp, 7, 4 << 20, len as u32);
            let sge = [from.sge(0, len as u32)];
            from_qp.post_send(&[wr(1, SendOp::Send, &sge)]).unwrap();
            let got = to.wait_beside(1, || from.context.progress());
            assert_eq!((got[0].wr_id, got[0].status), (7, WcStatus::Success));
            assert_eq!(got[0].byte_len as usize, len);
            assert!(to.bytes(4 << 20, len) == bytes, "SEND of {len} bytes");
            from_qp.post_send(&[wr(2, SendOp::Write(to.remote(0)), &sge)]).unwrap();
            let back = [from.sge(4 << 20, len as u32)];
            from_qp.post_send(&[wr(3, SendOp::Read(to.remote(0)), &back)]).unwrap();
            let done = from.wait_beside(3, || to.context.progress());
            let ids: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            let ok = WcStatus::Success;
            assert_eq!(ids, [(1, ok), (2, ok), (3, ok)]);
            assert!(from.bytes(4 << 20, len) == bytes, "WRITE and READ of {len} bytes");
        }
    }
}

#[test]
fn messages_of_every_size_pass_both_ways() {
    exercise(&pair());
}

#[test]
fn the_same_without_crcs_over_ipv6_and_with_markers() {
    let plain = StartupConfig { crc: false, ..startup() };
    exercise(&pair_with(IpAddr::V6(Ipv6Addr::LOCALHOST), plain, default_stream()));
    let marked = StartupConfig { markers: true, ..startup() };
    exercise(&pair_with(LO, marked, StreamConfig { large_fpdus: true, ..default_stream() }));
}

#[test]
fn atomics_and_immediate_data_pass_between_peers_that_have_them() {
    let ours = StreamConfig { peer_has: Extensions::all(), ..default_stream() };
    let Pair { a, b, a_qp, b_qp } = pair_with(LO, startup(), ours);
    b.fill(64, &5_u64.to_ne_bytes());
    let sge = [a.sge(0, 8)];
    let op = SendOp::FetchAdd { remote: b.remote(64), add: 3 };
    a_qp.post_send(&[wr(1, op, &sge)]).unwrap();
    recv(&b, &b_qp, 9, 0, 0);
    a_qp.post_send(&[wr(2, SendOp::WriteImm(b.remote(128), 0x1234), &sge)]).unwrap();
    let done = a.wait_beside(2, || b.context.progress());
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    assert_eq!(a.bytes(0, 8), 5_u64.to_ne_bytes());
    assert_eq!(b.bytes(64, 8), 8_u64.to_ne_bytes());
    let got = b.wait_beside(1, || a.context.progress());
    assert_eq!((got[0].opcode, got[0].tag), (WcOpcode::RecvWriteImm, Tag::Imm(0x1234)));
    // A peer of which nothing is known gets neither.
    let Pair { a, b, a_qp, .. } = pair();
    let error = a_qp.post_send(&[wr(1, SendOp::WriteImm(b.remote(0), 1), &[])]).unwrap_err();
    assert!(matches!(error.source, SendRefusal::Protocol(PostError::PeerLacks(_))), "{error:?}");
    drop(a);
}

#[test]
fn a_sleeping_program_is_woken_by_the_background_thread() {
    let make = || {
        let context = Context::open_iwarp(Some("lo"), test_config()).unwrap();
        let channel = context.create_channel().unwrap();
        End::on(context, Some(channel))
    };
    let (a, b) = (end(), make());
    let (a_qp, b_qp) = (queue_pair(&a), queue_pair(&b));
    let (ours, theirs) = shake(&a, &b, LO, startup());
    theirs.start(&b_qp, default_stream()).unwrap();
    ours.start(&a_qp, default_stream()).unwrap();
    for round in 0..20 {
        recv(&b, &b_qp, round, 0, 100);
        b.cq.req_notify(false);
        a_qp.post_send(&[wr(1, SendOp::Send, &[a.sge(0, 50)])]).unwrap();
        let channel = b.cq.channel().unwrap();
        channel.wait().unwrap();
        assert_eq!(b.wait(1)[0].wr_id, round);
        assert_eq!(a.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn a_message_waits_a_moment_for_its_receive() {
    let Pair { a, b, a_qp, b_qp } = pair();
    a.fill(0, b"patience");
    a_qp.post_send(&[wr(1, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
    assert_eq!(a.wait_beside(1, || b.context.progress())[0].status, WcStatus::Success);
    for _ in 0..100 {
        b.context.progress();
    }
    assert_eq!(b_qp.state(), QpState::Rts);
    recv(&b, &b_qp, 4, 0, 8);
    assert_eq!(b.wait(1)[0].wr_id, 4);
    assert_eq!(b.bytes(0, 8), b"patience");
}

#[test]
fn a_refused_write_ends_the_stream_at_both_ends_and_each_knows_why() {
    let Pair { a, b, a_qp, b_qp } = pair();
    recv(&a, &a_qp, 8, 0, 10);
    recv(&b, &b_qp, 9, 0, 10);
    let nowhere = Remote { addr: b.mr.iova(), rkey: Rkey(0x1234_5600) };
    let sge = [a.sge(0, 100)];
    a_qp.post_send(&[wr(1, SendOp::Write(nowhere), &sge)]).unwrap();
    let flushed = b.wait_beside(1, || a.context.progress());
    assert_eq!((flushed[0].wr_id, flushed[0].status), (9, WcStatus::Flushed));
    let at_a = a.wait_beside(2, || b.context.progress());
    assert!(at_a.iter().any(|wc| (wc.wr_id, wc.status) == (8, WcStatus::Flushed)), "{at_a:?}");
    assert_eq!((a_qp.state(), b_qp.state()), (QpState::Error, QpState::Error));
    assert!(matches!(b_qp.explain().unwrap().failure.cause, Cause::Violation { .. }));
    assert!(matches!(a_qp.explain().unwrap().failure.cause, Cause::Terminated { .. }));
    // What is posted from now on is flushed.
    a_qp.post_send(&[wr(5, SendOp::Write(b.remote(0)), &sge)]).unwrap();
    assert_eq!(a.wait(1)[0].status, WcStatus::Flushed);
}

#[test]
fn a_destroyed_peer_and_a_closed_device_are_noticed() {
    let Pair { a, b, a_qp, b_qp } = pair();
    recv(&a, &a_qp, 8, 0, 10);
    b_qp.destroy().unwrap();
    until_error(&a, &a_qp);
    assert_eq!(a.wait(1)[0].status, WcStatus::Flushed);
    assert_eq!(a_qp.state(), QpState::Error);
    drop(b);
    let Pair { a, b, a_qp, b_qp } = pair();
    recv(&a, &a_qp, 8, 0, 10);
    b.context.close();
    until_error(&a, &a_qp);
    assert_eq!(a.wait(1)[0].status, WcStatus::Flushed);
    assert_eq!((a_qp.state(), b_qp.state()), (QpState::Error, QpState::Error));
    let (gone, home) = (b.context.clone(), SocketAddr::new(LO, 0));
    let error = Listener::bind(&gone, home, startup()).unwrap_err();
    assert!(matches!(error, ConnectError::Gone { .. }), "{error}");
}

#[test]
fn a_queue_pair_that_was_reset_takes_another_connection() {
    let Pair { a, b, a_qp, b_qp } = pair();
    for (end, qp) in [(&a, &a_qp), (&b, &b_qp)] {
        recv(end, qp, 1, 0, 10);
        let attr = QpAttr::default();
        qp.modify(&attr, AttrMask::STATE).unwrap();
        assert_eq!(qp.state(), QpState::Reset);
        to_init(qp);
    }
    let (ours, theirs) = shake(&a, &b, LO, startup());
    theirs.start(&b_qp, default_stream()).unwrap();
    ours.start(&a_qp, default_stream()).unwrap();
    let again = shake(&a, &b, LO, startup()).0.start(&a_qp, default_stream()).unwrap_err();
    assert!(matches!(again, StartError::Refused { .. }), "{again}");
    exercise(&Pair { a, b, a_qp, b_qp });
}

#[test]
fn two_ends_that_close_in_order_lose_nothing() {
    let Pair { a, b, a_qp, b_qp } = pair();
    let bytes = pattern(1 << 20, 5);
    a.fill(0, &bytes);
    recv(&b, &b_qp, 1, 0, 1 << 20);
    recv(&b, &b_qp, 2, 0, 10);
    a_qp.post_send(&[wr(1, SendOp::Send, &[a.sge(0, 1 << 20)])]).unwrap();
    let attr = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
    a_qp.modify(&attr, AttrMask::STATE).unwrap();
    let got = b.wait_beside(2, || a.context.progress());
    let got: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(got, [(1, WcStatus::Success), (2, WcStatus::Flushed)]);
    assert!(b.bytes(0, 1 << 20) == bytes);
    until_error(&b, &b_qp);
    assert_eq!(a.wait(1)[0].status, WcStatus::Success);
    let start = Instant::now();
    while a_qp.state() != QpState::Error {
        a.context.progress();
        assert!(start.elapsed() < PATIENCE, "never both halves");
    }
    assert!(a_qp.explain().is_none() && b_qp.explain().is_none());
}

#[test]
fn many_connections_share_a_device_and_go_their_own_ways() {
    let (a, b) = (end(), end());
    let pairs: Vec<_> = (0..20)
        .map(|_| {
            let (a_qp, b_qp) = (queue_pair(&a), queue_pair(&b));
            let (ours, theirs) = shake(&a, &b, LO, startup());
            theirs.start(&b_qp, default_stream()).unwrap();
            ours.start(&a_qp, default_stream()).unwrap();
            (a_qp, b_qp)
        })
        .collect();
    for (n, (a_qp, b_qp)) in pairs.iter().enumerate() {
        recv(&b, b_qp, n as u64, n as u64 * 100, 100);
        a.fill(n * 100, &[n as u8; 100]);
        a_qp.post_send(&[wr(n as u64, SendOp::Send, &[a.sge(n as u64 * 100, 100)])]).unwrap();
    }
    b.wait_beside(20, || a.context.progress());
    for n in 0..20 {
        assert_eq!(b.bytes(n * 100, 100), [n as u8; 100]);
    }
    assert_eq!(a.wait_beside(20, || b.context.progress()).len(), 20);
}

#[test]
fn a_rejected_connection_brings_the_reason_and_a_missing_listener_is_told() {
    let (a, b) = (end(), end());
    let listener = Listener::bind(&b.context, SocketAddr::new(LO, 0), startup()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut ours = Handshake::connect(&a.context, LO.into(), addr, startup(), &[]).unwrap();
    while ours.poll() == HandshakeState::Connecting {
        std::thread::yield_now();
    }
    let mut theirs = listener.wait(PATIENCE).unwrap().unwrap();
    theirs.wait(PATIENCE).unwrap();
    theirs.reject(b"not today").unwrap();
    let rejected = HandshakeState::Startup(StartupState::Rejected);
    assert_eq!(ours.wait(PATIENCE).unwrap(), rejected);
    assert_eq!(ours.private(), b"not today");
    let error = ours.start(&queue_pair(&a), default_stream()).unwrap_err();
    assert!(matches!(error, StartError::NotAgreed(_)), "{error}");
    drop(listener);
    let state = match Handshake::connect(&a.context, LO.into(), addr, startup(), &[]) {
        Ok(mut ours) => ours.wait(PATIENCE).unwrap(),
        Err(ConnectError::Os { source, .. }) => HandshakeState::Unreachable(source.kind()),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(state, HandshakeState::Unreachable(std::io::ErrorKind::ConnectionRefused));
}

#[test]
fn what_an_iwarp_device_does_not_have_is_refused() {
    let a = end();
    assert!(a.context.info().name.starts_with("viw"));
    assert_eq!(a.context.info().transport, Transport::Iwarp);
    let init = QpInit {
        service: Service::Ud,
        send_cq: a.cq.clone(),
        recv_cq: a.cq.clone(),
        srq: None,
        cap: QpCap::default(),
        signal_all: false,
        congestion: None,
    };
    assert!(matches!(a.pd.create_qp(init), Err(CreateError::NotOnIwarp { .. })));
    let qp = queue_pair(&a);
    let error = qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap_err();
    assert!(matches!(error.source, SendRefusal::Protocol(PostError::State(QpState::Init))));
    let roce = Context::open(Some("lo"), test_config()).unwrap();
    let error = Listener::bind(&roce, SocketAddr::new(LO, 0), startup()).unwrap_err();
    assert!(matches!(error, ConnectError::NotIwarp { .. }), "{error}");
}

#[test]
fn settings_about_packets_are_refused_by_name() {
    for (setting, value) in [("capture", "/tmp/x.pcapng"), ("fault", "loss=0.5"), ("trace", "on")] {
        let mut config = test_config();
        config.set(setting, value).unwrap();
        let error = Context::open_iwarp(Some("lo"), config).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::NoPackets { .. }), "{text}");
        let variable = format!("VERNIC_{}", setting.to_uppercase());
        assert!(text.contains("viw") && text.contains(&variable), "{text}");
    }
}

#[test]
fn how_long_a_message_waits_for_a_receive_is_a_setting() {
    let mut config = test_config();
    config.set("iwarp_recv_wait_us", "0").unwrap();
    let a = end();
    let b = End::on(Context::open_iwarp(Some("lo"), config).unwrap(), None);
    let (a_qp, b_qp) = (queue_pair(&a), queue_pair(&b));
    let (ours, theirs) = shake(&a, &b, LO, startup());
    assert_eq!((ours.stream_config(), ours.stream_config().recv_wait_ns), {
        (default_stream(), 1_000_000_000)
    });
    let terms = theirs.stream_config();
    theirs.start(&b_qp, terms).unwrap();
    ours.start(&a_qp, default_stream()).unwrap();
    a_qp.post_send(&[wr(1, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
    until_error(&b, &b_qp);
    let Cause::Violation { violation, .. } = b_qp.explain().unwrap().failure.cause else {
        panic!("{:?}", b_qp.explain())
    };
    assert_eq!(violation, vernic_proto::iwarp::Violation::NoBuffer);
}
