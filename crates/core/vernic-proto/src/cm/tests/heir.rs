//! Connections of owners that have ended: what another end says in their names.

use expect_test::{Expect, expect};
use vernic_wire::cm::CommId;

use super::*;
use crate::cm::Orphan;

/// The owner at A ends without a word, and an heir with no connections speaks for it.
fn inherit(t: &mut Pair, id: ConnId, peer: Option<(CommId, Qpn)>) {
    t.settle();
    t.trace();
    let path = CmPath::new(t.a.gid, t.b.gid);
    t.a.cm = Cm::new(config(9));
    let orphan = Orphan { id: id.0, qpn: Qpn::new(0x11), guid: 1, peer, path };
    t.a.cm.end_for(t.now, &orphan);
    t.a.cm.end_for(t.now, &orphan);
}

/// What happens until nothing is left of it at A.
fn expect_end(mut t: Pair, expected: &Expect) {
    t.settle();
    t.pass(60_000);
    expected.assert_eq(&t.trace());
    let left = t.a.cm.occupancy();
    assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0));
    assert_eq!(t.a.cm.poll_event(), None);
}

#[test]
fn a_connection_ends_by_a_dreq() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    inherit(&mut t, a, Some((b.0, Qpn::new(0x22))));
    t.settle();
    let asked = t.b.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
    t.b.cm.disconnect(t.now, asked, b"").unwrap();
    expect_end(
        t,
        &expect![[r#"
        0 A->B DREQ
        0 B: DisconnectRequest
        0 B->A DREP
        536 B: TimewaitExit
    "#]],
    );
}

#[test]
fn the_dreq_is_repeated_if_it_is_lost() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.lose(&[CmAttribute::DREQ; 2]);
    inherit(&mut t, a, Some((b.0, Qpn::new(0x22))));
    t.pass(5_000);
    let asked = t.b.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
    t.b.cm.disconnect(t.now, asked, b"").unwrap();
    expect_end(
        t,
        &expect![[r#"
        0 A->B DREQ LOST
        671 A->B DREQ LOST
        1342 A->B DREQ
        1342 B: DisconnectRequest
        2013 A->B DREQ cm_drop_duplicate
        2684 A->B DREQ cm_drop_duplicate
        3355 A->B DREQ cm_drop_duplicate
        4026 A->B DREQ cm_drop_duplicate
        4697 A->B DREQ cm_drop_duplicate
        5000 B->A DREP
        5536 B: TimewaitExit
    "#]],
    );
}

#[test]
fn a_peer_that_ends_the_connection_too_is_answered() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.lose(&[CmAttribute::DREQ]);
    inherit(&mut t, a, Some((b.0, Qpn::new(0x22))));
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    expect_end(
        t,
        &expect![[r#"
        0 A->B DREQ LOST
        0 B->A DREQ
        0 A->B DREP
        0 B: Disconnected
        536 B: TimewaitExit
    "#]],
    );
}

#[test]
fn a_request_without_an_answer_is_taken_back() {
    let mut t = Pair::new();
    let a = t.connect();
    inherit(&mut t, a, None);
    expect_end(
        t,
        &expect![[r#"
        0 A->B REJ of=none 4 (timeout)
        0 B: Rejected of=none 4 (timeout)
        0 A->B REJ of=none 4 (timeout) cm_drop_wrong_instance
    "#]],
    );
}

#[test]
fn beyond_the_limit_a_dreq_is_sent_once() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    inherit(&mut t, a, Some((b.0, Qpn::new(0x22))));
    let mut full = Cm::new(CmConfig { max_connections: 0, ..config(9) });
    let path = CmPath::new(t.a.gid, t.b.gid);
    let orphan =
        Orphan { id: a.0, qpn: Qpn::new(0x11), guid: 1, peer: Some((b.0, Qpn::new(1))), path };
    full.end_for(t.now, &orphan);
    assert!(full.poll_transmit().is_some() && full.poll_transmit().is_none());
    assert_eq!((full.occupancy().live, full.next_deadline()), (0, None));
}
