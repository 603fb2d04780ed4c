//! Destroying in every state: what the peer hears, and that nothing is left.

use expect_test::{Expect, expect};

use super::*;

/// Destroys A's connection, and B's as soon as it hears of it.
fn destroy_a(t: &mut Pair, a: ConnId, expected: &Expect) {
    t.trace();
    t.b.events.clear();
    t.a.cm.destroy(t.now, a);
    t.settle();
    for event in std::mem::take(&mut t.b.events) {
        t.b.cm.destroy(t.now, event.conn);
    }
    t.pass(60_000);
    expected.assert_eq(&t.trace());
    t.assert_empty();
    t.a.cm.destroy(t.now, a);
}

#[test]
fn a_req_under_way_is_taken_back() {
    let mut t = Pair::new();
    let a = t.connect();
    destroy_a(
        &mut t,
        a,
        &expect![[r#"
        0 A->B REJ of=none 4 (timeout)
        0 B: Rejected of=none 4 (timeout)
    "#]],
    );
}

#[test]
fn a_req_that_was_announced_to_take_long_is_taken_back() {
    let mut t = Pair::new();
    let a = t.connect();
    t.pass(300);
    destroy_a(
        &mut t,
        a,
        &expect![[r#"
        300 A->B REJ of=none 4 (timeout)
        300 B: Rejected of=none 4 (timeout)
    "#]],
    );
}

#[test]
fn a_rep_that_came_is_rejected() {
    let mut t = Pair::new();
    let a = t.connect();
    t.accept();
    destroy_a(
        &mut t,
        a,
        &expect![[r#"
        0 A->B REJ of=REP 28 (consumer)
        0 B: Rejected of=REP 28 (consumer)
    "#]],
    );
}

#[test]
fn a_rep_that_comes_too_late_is_rejected() {
    let mut t = Pair::new();
    let a = t.connect();
    let b = t.b.expect_request();
    t.trace();
    t.lose(&[CmAttribute::REJ]);
    t.a.cm.destroy(t.now, a);
    t.b.cm.accept(t.now, b, &accept_params(gid(2))).unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B REJ of=none 4 (timeout) LOST
        0 B->A REP
        0 A->B REJ of=REP 6 (invalid communication id)
        0 B: Rejected of=REP 6 (invalid communication id)
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_connection_that_is_up_is_disconnected() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    destroy_a(
        &mut t,
        a,
        &expect![[r#"
        0 A->B DREQ
        0 B: DisconnectRequest
        0 B->A DREP
    "#]],
    );
}

#[test]
fn a_dreq_under_way_goes_on_without_its_owner() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    t.lose(&[CmAttribute::DREQ]);
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.a.cm.destroy(t.now, a);
    t.pass(700);
    for event in std::mem::take(&mut t.b.events) {
        t.b.cm.destroy(t.now, event.conn);
    }
    t.pass(5000);
    expect![[r#"
        0 A->B DREQ LOST
        671 A->B DREQ
        671 B: DisconnectRequest
        700 B->A DREP
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

/// Destroys B's connection.
fn destroy_b(t: &mut Pair, b: ConnId, expected: &Expect) {
    t.trace();
    t.b.cm.destroy(t.now, b);
    t.pass(60_000);
    expected.assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_request_that_came_is_rejected() {
    let mut t = Pair::new();
    t.connect();
    let b = t.b.expect_request();
    destroy_b(
        &mut t,
        b,
        &expect![[r#"
        0 B->A REJ of=REQ 28 (consumer)
        0 A: Rejected of=REQ 28 (consumer)
    "#]],
    );
}

#[test]
fn a_request_for_which_time_was_asked_is_rejected() {
    let mut t = Pair::new();
    t.connect();
    let b = t.b.expect_request();
    t.pass(300);
    destroy_b(
        &mut t,
        b,
        &expect![[r#"
        300 B->A REJ of=REQ 28 (consumer)
        300 A: Rejected of=REQ 28 (consumer)
    "#]],
    );
}

#[test]
fn a_rep_under_way_is_taken_back() {
    let mut t = Pair::new();
    t.connect();
    let b = t.accept();
    destroy_b(
        &mut t,
        b,
        &expect![[r#"
        0 B->A REJ of=none 28 (consumer)
        0 A: Rejected of=none 28 (consumer)
        671 A: TimewaitExit
    "#]],
    );
}

#[test]
fn a_dreq_that_came_is_answered() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    destroy_b(
        &mut t,
        b,
        &expect![[r#"
        0 B->A DREP
        0 A: Disconnected
        671 A: TimewaitExit
    "#]],
    );
}

#[test]
fn timewait_runs_out_without_its_owner() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.settle();
    t.a.cm.destroy(t.now, a);
    destroy_b(&mut t, b, &expect![[r#""#]]);
}

#[test]
fn a_sidr_req_under_way_is_forgotten() {
    let mut t = Pair::new();
    let a = t.a.cm.sidr_request(t.now, &sidr_params(gid(1), gid(9))).unwrap();
    t.a.cm.destroy(t.now, a);
    t.assert_empty();
}

#[test]
fn a_sidr_req_that_came_is_refused() {
    let mut t = Pair::new();
    t.a.cm.sidr_request(t.now, &sidr_params(gid(1), gid(2))).unwrap();
    t.settle();
    let b = t.b.expect(|kind| matches!(kind, EventKind::SidrRequest { .. }));
    destroy_b(
        &mut t,
        b,
        &expect![[r#"
        0 B->A SIDR_REP 2 (the application there rejected the request)
        0 A: SidrReply 2 (the application there rejected the request) qpn=0x000000
    "#]],
    );
}

#[test]
fn destroyed_connections_take_no_commands() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    t.a.cm.destroy(t.now, a);
    let error = super::super::CmError::UnknownConnection(a);
    assert_eq!(t.a.cm.disconnect(t.now, a, b""), Err(error));
    assert!(t.a.cm.owns(a.0), "its DREQ is under way");
}
