//! Peers that are gone without a word.

use expect_test::{Expect, expect};

use super::*;
use crate::cm::CmError;

/// A is gone, which B is told; what B says and does then, until nothing is left of it.
fn gone(mut t: Pair, expected: &Expect) {
    t.trace();
    let peers: Vec<_> = t.b.cm.peers().collect();
    assert_eq!(t.b.cm.end_gone(t.now, |path, _| path.remote == gid(9)), 0);
    assert_eq!(t.b.cm.peers().collect::<Vec<_>>(), peers, "others stay");
    let ended = t.b.cm.end_gone(t.now, |path, id| peers.contains(&(path, id)));
    assert_eq!(ended, peers.len());
    assert_eq!(t.b.cm.peers().count(), 0);
    assert_eq!(t.b.cm.counters().peers_gone, peers.len() as u64);
    t.b.cm.end_gone(t.now, |_, _| true);
    t.settle();
    t.pass(60_000);
    expected.assert_eq(&t.trace());
    let left = t.b.cm.occupancy();
    assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0));
}

#[test]
fn a_request_whose_peer_is_gone_is_rejected() {
    let mut t = Pair::new();
    let a = t.connect();
    t.lose(&[CmAttribute::REJ]);
    t.a.cm.destroy(t.now, a);
    gone(
        t,
        &expect![[r#"
        0 B: Rejected of=none 4 (timeout)
    "#]],
    );
}

#[test]
fn an_acceptance_whose_peer_is_gone_is_rejected() {
    let mut t = Pair::new();
    let a = t.connect();
    t.lose(&[CmAttribute::REP, CmAttribute::REJ]);
    t.accept();
    t.a.cm.destroy(t.now, a);
    gone(
        t,
        &expect![[r#"
            0 B: Rejected of=none 28 (consumer)
        "#]],
    );
}

#[test]
fn a_connection_whose_peer_is_gone_is_over() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    t.lose(&[CmAttribute::DREQ]);
    t.a.cm.destroy(t.now, a);
    gone(
        t,
        &expect![[r#"
        0 B: Disconnected
        536 B: TimewaitExit
        671 A->B DREQ
        671 B->A DREP
    "#]],
    );
}

#[test]
fn a_connection_that_was_being_ended_when_its_peer_was_gone_is_over() {
    let mut t = Pair::new();
    let (_, b) = t.established();
    t.lose(&[CmAttribute::DREQ]);
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    gone(
        t,
        &expect![[r#"
        0 B: Disconnected
        536 B: TimewaitExit
    "#]],
    );
}

#[test]
fn what_a_peer_that_is_gone_has_ended_itself_stays_with_its_owner() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    assert_eq!(t.b.cm.peers().count(), 0);
    t.b.cm.end_gone(t.now, |_, _| true);
    t.lose(&[CmAttribute::DREP]);
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    gone(
        t,
        &expect![[r#"
        536 B: TimewaitExit
        671 A->B DREQ
        671 B->A DREP
        671 A: Disconnected
        1342 A: TimewaitExit
    "#]],
    );
}

#[test]
fn a_request_that_nobody_hears_is_rejected_and_not_sent() {
    let mut t = Pair::new();
    let a = t.a.cm.connect(t.now, &params(gid(1), gid(2))).unwrap();
    let other = t.a.cm.connect(t.now, &params(gid(1), gid(2))).unwrap();
    assert_eq!(t.a.cm.sent_unanswered(a), Ok(Some(1)));
    assert_eq!(t.a.cm.refuse(t.now, a), Ok(true));
    t.settle();
    t.b.expect_request();
    expect![[r#"
        0 A->B REQ
        0 A: Rejected of=REQ 8 (invalid service id)
        0 B: Request
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.a.cm.refuse(t.now, a), Err(CmError::UnknownConnection(a)));
    assert_eq!(t.a.cm.counters().refused_here, 1);
    t.a.cm.destroy(t.now, other);
    t.pass(60_000);
    t.assert_empty();
}

#[test]
fn a_request_that_is_answered_was_heard_by_somebody() {
    let mut t = Pair::new();
    let a = t.connect();
    t.accept();
    assert_eq!(t.a.cm.refuse(t.now, a), Ok(false));
    assert_eq!(t.a.cm.sent_unanswered(a), Ok(None));
    t.a.cm.ready_to_use(a, b"").unwrap();
    assert_eq!(t.a.cm.counters().refused_here, 0);
}
