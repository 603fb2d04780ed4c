//! Service id resolution, when it does not go well.

use expect_test::expect;
use vernic_wire::cm::{CommId, SidrRep, SidrStatus};

use super::super::{CmError, SidrReply};
use super::*;

const REPLY: SidrReply<'static> = SidrReply {
    status: SidrStatus::SUCCESS,
    qpn: Qpn::new(0x33),
    qkey: Qkey(0x44),
    private_data: b"",
};

fn request(t: &mut Pair) -> ConnId {
    let conn = t.a.cm.sidr_request(t.now, &sidr_params(gid(1), gid(2))).unwrap();
    t.settle();
    conn
}

fn take(t: &mut Pair) -> ConnId {
    t.b.expect(|kind| matches!(kind, EventKind::SidrRequest { .. }))
}

#[test]
fn lost_messages_are_repeated_and_the_answer_is_given_once() {
    let mut t = Pair::new();
    t.lose(&[CmAttribute::SIDR_REQ, CmAttribute::SIDR_REP]);
    request(&mut t);
    t.pass(1500);
    let b = take(&mut t);
    t.b.cm.sidr_reply(t.now, b, &REPLY).unwrap();
    t.pass(60_000);
    expect![[r#"
        0 A->B SIDR_REQ LOST
        671 A->B SIDR_REQ
        671 B: SidrRequest
        1342 A->B SIDR_REQ cm_drop_duplicate
        1500 B->A SIDR_REP 0 (success) LOST
        2013 A->B SIDR_REQ
        2013 B->A SIDR_REP 0 (success)
        2013 A: SidrReply 0 (success) qpn=0x000033
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn nobody_answers() {
    let mut t = Pair::new();
    let params = SidrParams { max_retries: Some(1), ..sidr_params(gid(1), gid(9)) };
    t.a.cm.sidr_request(t.now, &params).unwrap();
    t.lose(&[CmAttribute::SIDR_REQ; 2]);
    t.pass(60_000);
    expect![[r#"
        0 A->B SIDR_REQ LOST
        671 A->B SIDR_REQ LOST
        1342 A: Unreachable Sidr
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_request_that_is_not_answered_stays_while_the_peer_asks() {
    let mut t = Pair::new();
    request(&mut t);
    // 15 repeats, 671 ms apart, and 8.6 s after the last.
    t.pass(18_000);
    take(&mut t);
    assert_eq!(t.b.cm.occupancy().half_open, 1);
    t.pass(2_000);
    let trace = t.trace();
    assert!(trace.ends_with("B: HalfOpenDropped\n"), "{trace}");
    t.assert_empty();
}

#[test]
fn a_service_without_listener_is_refused() {
    let mut t = Pair::new();
    let service = PortSpace::UDP.service_id(8);
    let params = SidrParams { service, ..sidr_params(gid(1), gid(2)) };
    t.a.cm.sidr_request(t.now, &params).unwrap();
    t.settle();
    let params = SidrParams { service: SERVICE, ..params };
    t.a.cm.sidr_request(t.now, &params).unwrap();
    t.settle();
    expect![[r#"
        0 A->B SIDR_REQ
        0 B->A SIDR_REP 1 (nobody listens on that service there)
        0 A: SidrReply 1 (nobody listens on that service there) qpn=0x000000
        0 A->B SIDR_REQ
        0 B: SidrRequest
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().no_listener, 1);
}

#[test]
fn an_answer_from_elsewhere_or_to_a_connection_is_dropped() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    let conn = t.a.cm.sidr_request(t.now, &sidr_params(gid(1), gid(2))).unwrap();
    let rep = |request_id| mad(SidrRep { request_id, ..SidrRep::default() });
    let mut handle =
        |remote, mad: &Mad| t.a.cm.handle_mad(t.now, CmPath::new(gid(1), gid(remote)), mad);
    assert_eq!(handle(3, &rep(conn.0)), Err(CmDrop::WrongPath));
    assert_eq!(handle(2, &rep(CommId(1))), Err(CmDrop::UnknownConnection));
    assert_eq!(handle(2, &rep(a.0)), Err(CmDrop::WrongInstance));
    assert_eq!(handle(2, &rep(conn.0)), Ok(()));
    assert_eq!(handle(2, &rep(conn.0)), Err(CmDrop::UnknownConnection));
}

#[test]
fn an_exchange_takes_no_commands_of_connections() {
    let mut t = Pair::new();
    let a = request(&mut t);
    let b = take(&mut t);
    let wrong = |result: Result<(), CmError>| {
        assert!(matches!(result, Err(CmError::WrongState { .. })), "{result:?}");
    };
    wrong(t.a.cm.disconnect(t.now, a, b""));
    wrong(t.a.cm.ready_to_use(a, b""));
    wrong(t.a.cm.sidr_reply(t.now, a, &REPLY));
    wrong(t.b.cm.accept(t.now, b, &accept_params(gid(2))));
    wrong(t.b.cm.reject(t.now, b, RejReason::CONSUMER, b"", b""));
    let long = SidrReply { private_data: &[0; 137], ..REPLY };
    assert!(matches!(t.b.cm.sidr_reply(t.now, b, &long), Err(CmError::TooLong { .. })));
    t.b.cm.sidr_reply(t.now, b, &REPLY).unwrap();
    assert_eq!(t.b.cm.sidr_reply(t.now, b, &REPLY), Err(CmError::UnknownConnection(b)));
}
