//! Alternate paths: LAP, APR, and those of REQs.

use expect_test::expect;
use vernic_wire::cm::{AckedMessage, Apr, AprStatus, CommId, Lap, Mra, ReqPath};

use super::*;
use crate::cm::{AlternatePath, CmError, LapParams, Unanswered};

/// A second address of either end.
fn other(last: u8) -> Gid {
    Gid::from_ip([10, 1, 0, last].into())
}

fn alternate() -> AlternatePath {
    let path = CmPath { traffic_class: 0x20, ..CmPath::new(other(1), other(2)) };
    AlternatePath { path, local_ack_timeout: AckTimeout::new(12) }
}

/// The same, as B sees it.
fn alternate_of_b() -> AlternatePath {
    AlternatePath { path: turned(alternate().path), ..alternate() }
}

fn params_of_lap() -> LapParams {
    let (response_timeout, max_retries) = (None, Some(3));
    LapParams { alternate: alternate(), response_timeout, max_retries }
}

impl Pair {
    fn load(&mut self, a: ConnId) {
        self.a.cm.load_alternate_path(self.now, a, &params_of_lap()).unwrap();
        self.settle();
    }
    fn expect_lap(&mut self) -> AlternatePath {
        let event = self.b.next_event();
        let EventKind::LoadAlternatePath { alternate } = event.kind else { panic!("{event:?}") };
        alternate
    }
    fn answer(&mut self, b: ConnId, status: AprStatus) {
        self.b.cm.answer_lap(self.now, b, status).unwrap();
        self.settle();
    }
    /// The paths of what was sent since `from`.
    fn ways(&self, from: usize) -> Vec<Gid> {
        self.sent[from..].iter().map(|(path, _)| path.remote).collect()
    }
    /// A and B are connected, and have loaded the alternate path.
    fn loaded() -> (Self, ConnId, ConnId) {
        let mut t = Self::new();
        let (a, b) = t.established();
        t.load(a);
        t.expect_lap();
        t.answer(b, AprStatus::LOADED);
        t.a.events.clear();
        t.trace.clear();
        (t, a, b)
    }
}

#[test]
fn a_path_is_loaded_by_a_lap_that_an_apr_answers() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.load(a);
    assert_eq!(t.expect_lap(), alternate_of_b());
    t.answer(b, AprStatus::LOADED);
    expect![[r#"
        0 A->B LAP
        0 B: LoadAlternatePath
        0 B->A APR 0
        0 A: AlternatePathAnswered 0 (loaded)
    "#]]
    .assert_eq(&t.trace());
    for node in [&t.a, &t.b] {
        node.cm.table.assert_consistent();
    }
    t.pass(10_000);
    assert_eq!((t.a.cm.next_deadline(), t.b.cm.next_deadline()), (None, None));
}

#[test]
fn a_refusal_changes_nothing_and_the_next_lap_is_a_new_one() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    for status in [AprStatus::INVALID_GID, AprStatus::REJECTED, AprStatus::LOADED] {
        t.load(a);
        assert_eq!(t.expect_lap(), alternate_of_b(), "the same path, asked for anew");
        t.answer(b, status);
        assert_eq!(t.a.next_event().kind, EventKind::AlternatePathAnswered { status });
    }
    // Only what was loaded is a way.
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
}

#[test]
fn lost_and_doubled_messages_are_repeated_and_answered_again() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.lose(&[CmAttribute::LAP, CmAttribute::APR]);
    t.load(a);
    t.pass(700);
    t.expect_lap();
    t.answer(b, AprStatus::LOADED);
    t.pass(4000);
    expect![[r#"
        0 A->B LAP LOST
        671 A->B LAP
        671 B: LoadAlternatePath
        700 B->A APR 0 LOST
        1342 A->B LAP
        1342 B->A APR 0
        1342 A: AlternatePathAnswered 0 (loaded)
    "#]]
    .assert_eq(&t.trace());
    // Copies that are late.
    let apr = Apr { local_comm_id: b.0, remote_comm_id: a.0, ..Apr::default() };
    let path = CmPath::new(gid(1), gid(2));
    assert_eq!(t.a.cm.handle_mad(t.now, path, &mad(apr)), Err(CmDrop::Duplicate));
    assert!(t.b.events.is_empty() && t.b.cm.counters().duplicates_answered == 1);
}

#[test]
fn a_lap_that_nobody_answers_leaves_the_connection_as_it_is() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    t.lose(&[CmAttribute::LAP; 4]);
    t.load(a);
    t.pass(20_000);
    let trace = t.trace();
    assert_eq!(trace.matches("LAP LOST").count(), 4);
    let event = t.a.next_event();
    assert_eq!(event.kind, EventKind::Unreachable { which: Unanswered::Lap });
    assert_eq!(t.a.cm.next_deadline(), None);
    t.load(a);
    t.expect_lap();
}

#[test]
fn an_owner_that_takes_long_asks_for_time_and_one_that_never_answers_refuses() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    t.load(a);
    t.pass(60_000);
    expect![[r#"
        0 A->B LAP
        0 B: LoadAlternatePath
        268 B->A MRA of=LAP
        5234 A->B LAP
        5234 B->A MRA of=LAP
        10200 A->B LAP
        10200 B->A APR 3
        10200 A: AlternatePathAnswered 3 (rejected)
        10200 B->A APR 3 cm_drop_duplicate
    "#]]
    .assert_eq(&t.trace());
    assert_eq!((t.a.cm.next_deadline(), t.b.cm.next_deadline()), (None, None));
}

#[test]
fn mras_of_a_lap_make_nobody_wait_for_ever() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.lose(&[CmAttribute::LAP; 4]);
    t.load(a);
    let ids = Mra { local_comm_id: b.0, remote_comm_id: a.0, ..Mra::default() };
    let mra = mad(Mra { message: AckedMessage::LAP, service_timeout: 31, ..ids });
    let path = CmPath::new(gid(1), gid(2));
    let taken = (0..10).filter(|_| t.a.cm.handle_mad(t.now, path, &mra).is_ok()).count();
    assert!((1..=4).contains(&taken), "{taken}");
    t.pass(150_000);
    assert_eq!(t.a.next_event().kind, EventKind::Unreachable { which: Unanswered::Lap });
    assert_eq!(t.a.cm.handle_mad(t.now, path, &mra), Err(CmDrop::WrongState));
}

#[test]
fn what_no_owner_could_load_is_refused_with_the_reason() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    let path = ReqPath { local_gid: other(1), remote_gid: other(2), ..ReqPath::default() };
    let lap = Lap {
        local_comm_id: a.0,
        remote_comm_id: b.0,
        remote_qpn: Qpn::new(0x22),
        alternate: path,
        ..Lap::default()
    };
    let status = |t: &mut Pair, lap: Lap| {
        t.deliver_to_b(&mad(lap)).unwrap();
        let CmMessage::Apr(apr) = CmMessage::parse(&t.b.cm.poll_transmit().unwrap().mad).unwrap().1
        else {
            panic!()
        };
        assert_eq!((apr.local_comm_id, apr.remote_comm_id), (lap.remote_comm_id, a.0));
        apr.status
    };
    for (wrong, reason) in [
        (Lap { remote_comm_id: CommId(5), ..lap }, AprStatus::INVALID_COMM_ID),
        (Lap { remote_qpn: Qpn::new(0x23), ..lap }, AprStatus::INVALID_QPN),
        (Lap { alternate: ReqPath::default(), ..lap }, AprStatus::INVALID_GID),
    ] {
        assert_eq!(status(&mut t, wrong), reason);
    }
    let stranger = Lap { local_comm_id: CommId(9), ..lap };
    assert_eq!(t.deliver_to_b(&mad(stranger)), Err(CmDrop::WrongInstance));
    // While one is not answered, there is no other.
    t.deliver_to_b(&mad(lap)).unwrap();
    let another = Lap { remote_response_timeout: 9, ..lap };
    assert_eq!(t.deliver_to_b(&mad(another)), Err(CmDrop::WrongState));
    // The active side is not asked.
    let turned = Lap { local_comm_id: b.0, remote_comm_id: a.0, ..lap };
    t.a.cm.handle_mad(t.now, CmPath::new(gid(1), gid(2)), &mad(turned)).unwrap();
    let CmMessage::Apr(apr) = CmMessage::parse(&t.a.cm.poll_transmit().unwrap().mad).unwrap().1
    else {
        panic!()
    };
    assert_eq!(apr.status, AprStatus::REJECTED);
}

#[test]
fn the_passive_side_and_connections_that_are_not_up_load_nothing() {
    let mut t = Pair::new();
    let a = t.connect();
    let load = |node: &mut Node, now, conn| {
        node.cm.load_alternate_path(now, conn, &params_of_lap()).unwrap_err().to_string()
    };
    assert!(load(&mut t.a, t.now, a).contains("REQ sent"));
    let b = t.accept();
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.settle();
    assert!(load(&mut t.b, t.now, b).contains("passive side"));
    t.load(a);
    assert!(load(&mut t.a, t.now, a).contains("LAP sent"));
    let answered = t.a.cm.answer_lap(t.now, a, AprStatus::LOADED);
    assert!(matches!(answered, Err(CmError::WrongState { .. })));
}

#[test]
fn the_end_of_a_connection_ends_its_lap() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.load(a);
    t.expect_lap();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.settle();
    assert!(t.b.cm.answer_lap(t.now, b, AprStatus::LOADED).is_err());
    t.a.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
    let status = AprStatus::INVALID_COMM_ID;
    assert_eq!(t.a.next_event().kind, EventKind::AlternatePathAnswered { status });
    for node in [&t.a, &t.b] {
        node.cm.table.assert_consistent();
    }
    t.a.cm.destroy(t.now, a);
    t.pass(60_000);
    t.assert_empty();
}

#[test]
fn repeats_go_by_all_paths_in_turn_and_are_taken_from_them() {
    let (mut t, a, b) = Pair::loaded();
    let from = t.sent.len();
    t.lose(&[CmAttribute::DREQ; 3]);
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.pass(5000);
    assert_eq!(t.ways(from)[..4], [gid(2), other(2), gid(2), other(2)]);
    t.b.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.settle();
    assert!(t.trace().contains("Disconnected"));
}

#[test]
fn paths_that_nobody_agreed_on_are_strange() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.load(a);
    t.expect_lap();
    let dreq = |node: &Node, conn: ConnId| vernic_wire::cm::Dreq {
        local_comm_id: conn.0,
        remote_comm_id: node.cm.peer(conn).unwrap().1,
        remote_qpn: Qpn::new(0x22),
        ..Default::default()
    };
    let by_other = turned(alternate().path);
    let asked = dreq(&t.a, a);
    assert_eq!(t.b.cm.handle_mad(t.now, by_other, &mad(asked)), Err(CmDrop::WrongPath));
    t.answer(b, AprStatus::LOADED);
    t.b.cm.handle_mad(t.now, by_other, &mad(asked)).unwrap();
}

/// What A and B send and say when the REQ has an alternate path, and B says this of it.
fn offered(failover: FailoverAccepted) -> (Pair, ConnId) {
    let mut t = Pair::new();
    let asked = ConnectParams { alternate: Some(alternate()), ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &asked).unwrap();
    t.settle();
    let event = t.b.next_event();
    let EventKind::Request { req, path, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(AlternatePath::of_peer(&req.alternate, &path), Some(alternate_of_b()));
    let accept = AcceptParams { failover, ..accept_params(gid(2)) };
    t.b.cm.accept(t.now, event.conn, &accept).unwrap();
    t.settle();
    let event = t.a.next_event();
    let EventKind::Reply { rep } = event.kind else { panic!("{event:?}") };
    assert_eq!(rep.failover, failover);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.settle();
    (t, a)
}

#[test]
fn the_alternate_path_of_a_req_is_a_path_once_it_is_accepted() {
    for (failover, way) in [
        (FailoverAccepted::ACCEPTED, other(2)),
        (FailoverAccepted::REJECTED, gid(2)),
        (FailoverAccepted::NOT_SUPPORTED, gid(2)),
    ] {
        let (mut t, a) = offered(failover);
        let from = t.sent.len();
        t.lose(&[CmAttribute::DREQ]);
        t.a.cm.disconnect(t.now, a, b"").unwrap();
        t.pass(1000);
        assert_eq!(t.ways(from)[..2], [gid(2), way], "{failover:?}");
    }
}

#[test]
fn an_rtu_that_comes_again_by_the_alternate_path_is_taken() {
    let mut t = Pair::new();
    let asked = ConnectParams { alternate: Some(alternate()), ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &asked).unwrap();
    t.settle();
    let b = t.b.expect_request();
    let accept = AcceptParams { failover: FailoverAccepted::ACCEPTED, ..accept_params(gid(2)) };
    t.b.cm.accept(t.now, b, &accept).unwrap();
    t.settle();
    t.lose(&[CmAttribute::RTU]);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.pass(700);
    assert_eq!(t.ways(t.sent.len() - 2), [gid(1), other(2)], "REP and RTU");
    t.b.expect(|kind| matches!(kind, EventKind::Established { .. }));
}
