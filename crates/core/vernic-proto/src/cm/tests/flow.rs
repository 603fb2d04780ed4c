//! The usual course of things.

use expect_test::expect;
use vernic_wire::cm::{CmService, PrivateData, SidrStatus};

use super::super::{CmError, SidrReply};
use super::*;

#[test]
fn a_connection_is_made_used_and_ended() {
    let mut t = Pair::new();
    let a = t.connect();
    let b = t.accept();
    t.a.expect(|kind| matches!(kind, EventKind::Reply { .. }));
    t.a.cm.ready_to_use(a, b"go").unwrap();
    t.pass(10);
    t.a.cm.disconnect(t.now, a, b"bye").unwrap();
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        0 A->B RTU
        0 B: Established
        10 A->B DREQ
        10 B: DisconnectRequest
        10 B->A DREP
        10 A: Disconnected
        546 B: TimewaitExit
        681 A: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn messages_carry_what_the_commands_say() {
    let mut t = Pair::new();
    let a = t.connect();
    let Event { conn, kind } = t.b.next_event();
    let EventKind::Request { listener, path, req } = kind else { panic!() };
    assert_eq!(listener, t.listener);
    assert_eq!(path, CmPath::new(gid(2), gid(1)));
    assert_eq!((req.local_comm_id, req.service_id), (a.0, SERVICE));
    assert_eq!((req.transport, req.ext_transport), (CmService::RC, 0));
    assert_eq!((req.local_qpn, req.starting_psn), (Qpn::new(0x11), Psn::new(0x100)));
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 5));
    assert_eq!((req.retry_count, req.rnr_retry_count), (7, 6));
    assert_eq!((req.path_mtu, req.pkey, req.srq), (Mtu::B1024 as u8, Pkey::DEFAULT, false));
    assert_eq!((req.local_response_timeout, req.max_cm_retries), (17, 15));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (gid(1), gid(2)));
    assert_eq!(req.primary.local_ack_timeout, AckTimeout::new(17));
    assert_eq!(*req.private_data.as_bytes(), padded::<92>(b"hello"));
    assert!(req.alternate.is_none() && req.end_to_end_flow_control);

    t.b.cm.accept(t.now, conn, &accept_params(gid(2))).unwrap();
    t.settle();
    let EventKind::Reply { rep } = t.a.next_event().kind else { panic!() };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (conn.0, a.0));
    assert_eq!((rep.local_qpn, rep.starting_psn), (Qpn::new(0x22), Psn::new(0x200)));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (5, 4));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count, rep.srq), (15, 7, false));
    assert_eq!((rep.local_ca_guid, rep.failover.0), (2, 0));
    assert_eq!(*rep.private_data.as_bytes(), padded::<196>(b"welcome"));

    t.a.cm.ready_to_use(a, b"go").unwrap();
    t.settle();
    let EventKind::Established { private_data } = t.b.next_event().kind else { panic!() };
    assert_eq!(*private_data, PrivateData::try_from(&b"go"[..]).unwrap());
    t.b.cm.disconnect(t.now, conn, b"bye").unwrap();
    t.settle();
    let EventKind::DisconnectRequest { private_data } = t.a.next_event().kind else { panic!() };
    assert_eq!(*private_data, PrivateData::try_from(&b"bye"[..]).unwrap());
}

fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

#[test]
fn a_request_is_rejected_by_the_application() {
    let mut t = Pair::new();
    let a = t.connect();
    let b = t.b.expect_request();
    t.b.cm.reject(t.now, b, RejReason::CONSUMER, b"", b"no").unwrap();
    t.settle();
    let Event { conn, kind } = t.a.next_event();
    let EventKind::Rejected { reason, private_data, .. } = kind else { panic!() };
    assert_eq!((conn, reason), (a, RejReason::CONSUMER));
    assert_eq!(private_data.as_bytes()[..3], *b"no\0");
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REJ of=REQ 28 (consumer)
        0 A: Rejected of=REQ 28 (consumer)
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_reply_is_rejected_by_the_application() {
    let mut t = Pair::new();
    let a = t.connect();
    t.accept();
    t.a.cm.reject(t.now, a, RejReason::CONSUMER, b"", b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        0 A->B REJ of=REP 28 (consumer)
        0 B: Rejected of=REP 28 (consumer)
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn nobody_listens_and_the_peer_hears_so() {
    let mut t = Pair::new();
    let service = PortSpace::TCP.service_id(8);
    let params = ConnectParams { service, ..params(gid(1), gid(2)) };
    t.a.cm.connect(t.now, &params).unwrap();
    expect![[r#"
        0 A->B REQ
        0 B->A REJ of=REQ 8 (invalid service id)
        0 A: Rejected of=REQ 8 (invalid service id)
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().no_listener, 1);
    t.assert_empty();
}

#[test]
fn a_datagram_queue_pair_is_found() {
    let mut t = Pair::new();
    t.a.cm.sidr_request(t.now, &sidr_params(gid(1), gid(2))).unwrap();
    t.settle();
    let conn = t.b.expect(|kind| matches!(kind, EventKind::SidrRequest { .. }));
    let (qpn, qkey) = (Qpn::new(0x33), Qkey(0x44));
    let reply = SidrReply { status: SidrStatus::SUCCESS, qpn, qkey, private_data: b"here" };
    t.b.cm.sidr_reply(t.now, conn, &reply).unwrap();
    t.settle();
    let EventKind::SidrReply { rep } = t.a.next_event().kind else { panic!() };
    assert_eq!((rep.qpn, rep.qkey, rep.service_id), (qpn, qkey, DATAGRAM_SERVICE));
    assert_eq!(rep.private_data.as_bytes()[..5], *b"here\0");
    t.pass(60_000);
    expect![[r#"
        0 A->B SIDR_REQ
        0 B: SidrRequest
        0 B->A SIDR_REP 0 (success)
        0 A: SidrReply 0 (success) qpn=0x000033
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn commands_out_of_turn_say_what_they_need() {
    let mut t = Pair::new();
    let a = t.connect();
    let error = t.a.cm.disconnect(t.now, a, b"").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("connection {a} is in REQ sent; disconnect needs Established or DREQ received")
    );
    let unknown = ConnId(vernic_wire::cm::CommId(9), 0);
    assert_eq!(t.a.cm.ready_to_use(unknown, b""), Err(CmError::UnknownConnection(unknown)));
    let b = t.b.expect_request();
    assert!(matches!(t.b.cm.ready_to_use(b, b""), Err(CmError::WrongState { .. })));
    assert!(matches!(t.b.cm.notify_established(b), Err(CmError::WrongState { .. })));
    let accept = AcceptParams { rnr_retry_count: 8, ..accept_params(gid(2)) };
    let error = t.b.cm.accept(t.now, b, &accept).unwrap_err();
    assert_eq!(error.to_string(), "rnr_retry_count is 8, allowed: 0 to 7");
    let accept = AcceptParams { private_data: &[0; 197], ..accept_params(gid(2)) };
    let error = t.b.cm.accept(t.now, b, &accept).unwrap_err();
    assert_eq!(error.to_string(), "private data of REP: 197 bytes, the field takes 196");
    let error = t.b.cm.listen(SERVICE, None, 1).unwrap_err();
    assert_eq!(error.to_string(), "service tcp:7 is in use on all addresses");
    let ud = ConnectParams { qp_type: QpType::Ud, ..params(gid(1), gid(2)) };
    assert!(matches!(t.a.cm.connect(t.now, &ud), Err(CmError::Value { field: "qp_type", .. })));
    // None of it had an effect.
    t.b.cm.accept(t.now, b, &accept_params(gid(2))).unwrap();
}

#[test]
fn private_data_that_is_too_long_is_refused_by_every_command() {
    let too_long = |result: Result<(), CmError>, text: &str| {
        assert_eq!(result.unwrap_err().to_string(), text);
    };
    let long = [0; 256];
    let mut t = Pair::new();
    let (now, from, to) = (t.now, gid(1), gid(2));
    let connect = ConnectParams { private_data: &long[..93], ..params(from, to) };
    let text = "private data of REQ: 93 bytes, the field takes 92";
    too_long(t.a.cm.connect(now, &connect).map(drop), text);
    let sidr = SidrParams { private_data: &long[..217], ..sidr_params(from, to) };
    let text = "private data of SIDR_REQ: 217 bytes, the field takes 216";
    too_long(t.a.cm.sidr_request(now, &sidr).map(drop), text);
    t.assert_empty();

    let a = t.connect();
    let b = t.b.expect_request();
    let reject = t.b.cm.reject(now, b, RejReason::CONSUMER, b"", &long[..149]);
    too_long(reject, "private data of REJ: 149 bytes, the field takes 148");
    let reject = t.b.cm.reject(now, b, RejReason::CONSUMER, &long[..73], b"");
    too_long(reject, "additional information of REJ: 73 bytes, the field takes 72");
    t.b.cm.accept(now, b, &accept_params(to)).unwrap();
    t.settle();
    let text = "private data of RTU: 225 bytes, the field takes 224";
    too_long(t.a.cm.ready_to_use(a, &long[..225]), text);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.settle();
    let text = "private data of DREQ: 221 bytes, the field takes 220";
    too_long(t.a.cm.disconnect(now, a, &long[..221]), text);
    t.a.cm.disconnect(now, a, b"").unwrap();
    t.settle();
    let text = "private data of DREP: 225 bytes, the field takes 224";
    too_long(t.b.cm.disconnect(now, b, &long[..225]), text);
    t.b.cm.disconnect(now, b, b"").unwrap();
    t.pass(5000);
    t.assert_empty();
}

#[test]
fn no_event_comes_of_what_was_destroyed() {
    let mut t = Pair::new();
    let a = t.a.cm.connect(t.now, &params(gid(1), gid(2))).unwrap();
    let rej = vernic_wire::cm::Rej { remote_comm_id: a.0, ..Default::default() };
    t.a.cm.handle_mad(t.now, CmPath::new(gid(1), gid(2)), &mad(rej)).unwrap();
    t.a.cm.destroy(t.now, a);
    assert_eq!(t.a.cm.poll_event(), None);
}
