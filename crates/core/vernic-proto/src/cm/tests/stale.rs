//! Queue pairs and communication ids that name two things, and datagrams of other connections.

use expect_test::expect;
use vernic_wire::cm::{CmService, CommId, Drep, Dreq, Rej, RejectedMessage, Rep, Req, ReqPath};

use super::super::{Datagram, Heard};
use super::*;

/// The REQ that A sent first.
fn first_req(t: &Pair) -> Req {
    match CmMessage::parse(&t.sent[0].1).unwrap().1 {
        CmMessage::Req(req) => req,
        other => panic!("{other}"),
    }
}

/// What B sent last.
fn answer(t: &mut Pair) -> CmMessage {
    let Datagram { path, mad, .. } = t.b.cm.poll_transmit().unwrap();
    assert_eq!((path.local, path.remote), (gid(2), gid(1)));
    CmMessage::parse(&mad).unwrap().1
}

fn rejection(t: &mut Pair) -> Rej {
    match answer(t) {
        CmMessage::Rej(rej) => rej,
        other => panic!("{other}"),
    }
}

#[test]
fn a_req_of_a_connected_queue_pair_ends_its_old_connection() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    // A's process is a new one, which knows nothing of the connection.
    t.a.cm = Cm::new(config(0x180));
    t.connect();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B->A DREQ
        0 A->B DREP
        0 B: Disconnected
        0 B->A REJ of=REQ 10 (stale connection)
        0 A: Rejected of=REQ 10 (stale connection)
        536 B: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    assert!(!t.a.cm.owns(a.0));
    assert_eq!(t.b.cm.counters().stale_connections, 1);
    t.assert_empty();
}

/// A REQ in the name of A's queue pair comes to B at 1000 ms, whose own pair heard its peer at
/// `heard` ms, and again at `later` ms. Returns what comes of it in the next 2000 ms, with a
/// patience of 500 ms.
fn asked_in_the_name_of_a_live_peer(heard: u64, later: Option<u64>) -> String {
    let mut t = Pair::new();
    t.established();
    t.pass(1000);
    let req = Req { local_comm_id: CommId(0x77), ..first_req(&t) };
    let (path, patience) = (CmPath::new(gid(2), gid(1)), 500 * MS);
    let heard_at = |ms: u64| {
        move |qpn| {
            let at = Time(ms * MS);
            (qpn == Qpn::new(0x22)).then_some(Heard { at, patience })
        }
    };
    // Said again and again, it is one doubt.
    for _ in 0..3 {
        t.b.cm.handle_mad_with(t.now, path, &mad(req), &heard_at(heard)).unwrap();
    }
    t.settle();
    t.b.cm.table.assert_consistent();
    while let Some(due) = t.b.cm.next_deadline().filter(|due| *due <= Time(3000 * MS)) {
        t.now = due;
        let last = later.map_or(heard, |later| later.min(due.0 / MS));
        t.b.cm.handle_timeout_with(due, &heard_at(last));
        t.settle();
        t.b.cm.table.assert_consistent();
    }
    t.trace().lines().filter(|line| !line.contains("REJ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_connection_whose_queue_pair_hears_its_peer_is_not_ended_by_a_req() {
    assert_eq!(asked_in_the_name_of_a_live_peer(999, Some(1400)), "");
    assert_eq!(asked_in_the_name_of_a_live_peer(999, Some(1001)), "");
}

#[test]
fn a_connection_whose_queue_pair_hears_no_more_of_its_peer_ends_when_its_patience_does() {
    expect![[r#"
        1300 B->A DREQ
        1300 A: DisconnectRequest"#]]
    .assert_eq(asked_in_the_name_of_a_live_peer(800, None).split("\n1971").next().unwrap());
    // It was silent for as long before.
    let at_once = asked_in_the_name_of_a_live_peer(500, None);
    assert!(at_once.starts_with("1000 B->A DREQ\n"), "{at_once}");
}

#[test]
fn a_rep_in_the_name_of_a_live_peer_ends_only_the_connection_that_it_answers() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    let other = ConnectParams { local_qpn: Qpn::new(0x12), ..params(gid(1), gid(2)) };
    let conn = t.a.cm.connect(t.now, &other).unwrap();
    let mut rep = Rep { local_comm_id: CommId(0x77), local_ca_guid: 2, ..Rep::default() };
    (rep.remote_comm_id, rep.local_qpn) = (conn.0, Qpn::new(0x22));
    let path = CmPath::new(gid(1), gid(2));
    let heard = |_| Some(Heard { at: Time(0), patience: 500 * MS });
    t.a.cm.handle_mad_with(t.now, path, &mad(rep), &heard).unwrap();
    assert_eq!(t.a.cm.table.entry(a).unwrap().state.name(), "Established");
    assert_ne!(t.a.cm.table.entry(conn).unwrap().state.name(), "REP received");
    assert_eq!(t.a.cm.counters().stale_but_heard, 1);
}

#[test]
fn a_connection_that_is_ended_while_in_doubt_ends_as_others_do() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    let req = Req { local_comm_id: CommId(0x77), ..first_req(&t) };
    let path = CmPath::new(gid(2), gid(1));
    let heard = |_| Some(Heard { at: Time(0), patience: 500 * MS });
    t.b.cm.handle_mad_with(t.now, path, &mad(req), &heard).unwrap();
    t.settle();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.cm.table.assert_consistent();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.pass(5000);
    t.assert_empty();
}

#[test]
fn what_a_stranger_says_of_a_queue_pair_is_about_nobody_else() {
    let mut t = Pair::new();
    t.established();
    let mut req = first_req(&t);
    req.local_comm_id = CommId(0x77);
    req.primary.local_gid = gid(3);
    // From another address, and in the name of A's queue pair.
    let path = CmPath::new(gid(2), gid(3));
    t.b.cm.handle_mad(t.now, path, &mad(req)).unwrap();
    expect!["0 B: Request\n"].assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().stale_connections, 0);
    // A's connection is as it was, and A is still known by its queue pair.
    t.a.cm = Cm::new(config(0x180));
    t.connect();
    assert_eq!(t.b.cm.counters().stale_connections, 1);
}

#[test]
fn a_queue_pair_in_timewait_is_refused() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.settle();
    t.connect();
    t.pass(700);
    t.connect();
    expect![[r#"
        0 A->B DREQ
        0 B: DisconnectRequest
        0 B->A DREP
        0 A: Disconnected
        0 A->B REQ
        0 B->A REJ of=REQ 10 (stale connection)
        0 A: Rejected of=REQ 10 (stale connection)
        536 B: TimewaitExit
        671 A: TimewaitExit
        700 A->B REQ
        700 B: Request
    "#]]
    .assert_eq(&t.trace());
}

#[test]
fn a_queue_pair_whose_request_was_rejected_may_ask_again_at_once() {
    let mut t = Pair::new();
    for _ in 0..3 {
        t.connect();
        let b = t.b.expect_request();
        t.b.cm.reject(t.now, b, RejReason::CONSUMER, b"", b"").unwrap();
        t.settle();
    }
    assert_eq!(t.b.cm.counters().stale_connections, 0);
}

#[test]
fn a_request_that_the_peer_makes_anew_replaces_the_old_one() {
    let mut t = Pair::new();
    let a = t.connect();
    t.lose(&[CmAttribute::REJ]);
    t.a.cm.destroy(t.now, a);
    t.connect();
    t.b.expect_request();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 A->B REJ of=none 4 (timeout) LOST
        0 A->B REQ
        0 B: Rejected of=REQ 10 (stale connection)
        0 B: Request
    "#]]
    .assert_eq(&t.trace());
}

#[test]
fn a_rep_of_a_connected_queue_pair_ends_both_connections() {
    let mut t = Pair::new();
    t.established();
    // B's process is a new one, and uses the queue pair number again.
    t.b.cm = Cm::new(config(0x280));
    t.listener = t.b.cm.listen(SERVICE, None, 16).unwrap();
    let other = ConnectParams { local_qpn: Qpn::new(0x12), ..params(gid(1), gid(2)) };
    t.a.cm.connect(t.now, &other).unwrap();
    t.settle();
    t.accept();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Rejected of=REP 10 (stale connection)
        0 A->B DREQ
        0 A->B REJ of=REP 10 (stale connection)
        0 B: Rejected of=REP 10 (stale connection)
        0 B->A DREP
        0 A: Disconnected
        536 B: TimewaitExit
        671 A: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn another_req_with_the_id_of_a_connection_is_a_duplicate_id() {
    let mut t = Pair::new();
    t.connect();
    let b = t.b.expect_request();
    let other = Req { local_qpn: Qpn::new(0x99), ..first_req(&t) };
    assert_eq!(t.deliver_to_b(&mad(other)), Ok(()));
    let rej = rejection(&mut t);
    assert_eq!(rej.reason, RejReason::DUPLICATE_LOCAL_COMM_ID);
    assert_eq!((rej.message, rej.remote_comm_id), (RejectedMessage::REQ, other.local_comm_id));
    assert!(t.b.cm.owns(b.0), "the first one is not harmed");
}

#[test]
fn peers_with_the_same_id_do_not_collide() {
    let mut t = Pair::new();
    t.connect();
    t.b.expect_request();
    let mut req = first_req(&t);
    req.primary.local_gid = gid(3);
    req.local_ca_guid = 3;
    let path = CmPath::new(gid(2), gid(3));
    assert_eq!(t.b.cm.handle_mad(t.now, path, &mad(req)), Ok(()));
    t.settle();
    t.b.expect_request();
    assert_eq!(t.b.cm.occupancy().half_open, 2);
}

#[test]
fn reqs_that_no_listener_could_accept_are_refused_with_the_reason() {
    let mut t = Pair::new();
    t.connect();
    let good = Req { local_comm_id: CommId(77), local_qpn: Qpn::new(0x77), ..first_req(&t) };
    let path = |local_gid, remote_gid| ReqPath { local_gid, remote_gid, ..good.primary };
    let xrc = Req { transport: CmService::EXTENDED, ext_transport: Req::EXT_XRC, ..good };
    for (req, reason, info) in [
        (Req { primary: path(gid(9), gid(2)), ..good }, RejReason::INVALID_GID, &gid(1).0[..]),
        (Req { primary: path(gid(1), gid(9)), ..good }, RejReason::INVALID_GID, &gid(2).0[..]),
        (Req { transport: CmService::RD, ..good }, RejReason::INVALID_TRANSPORT, &[]),
        (Req { ext_transport: 5, ..xrc }, RejReason::INVALID_TRANSPORT, &[]),
        (Req { path_mtu: 0, ..good }, RejReason::INVALID_MTU, &[5]),
        (Req { path_mtu: 6, ..good }, RejReason::INVALID_MTU, &[5]),
    ] {
        assert_eq!(t.deliver_to_b(&mad(req)), Ok(()));
        let rej = rejection(&mut t);
        assert_eq!((rej.reason, rej.info.as_slice()), (reason, info));
        assert_eq!(rej.remote_comm_id, CommId(77));
    }
    assert_eq!(
        t.deliver_to_b(&mad(Req { local_comm_id: CommId::NONE, ..good })),
        Err(CmDrop::Malformed)
    );
    assert_eq!(t.deliver_to_b(&mad(xrc)), Ok(()));
    assert_eq!(t.b.cm.occupancy().half_open, 2);
}

#[test]
fn an_xrc_target_has_its_queue_pair_where_the_context_would_be() {
    let mut t = Pair::new();
    let params = ConnectParams { qp_type: QpType::XrcIni, ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &params).unwrap();
    t.settle();
    let b = t.accept();
    let EventKind::Reply { rep } = t.a.next_event().kind else { panic!() };
    assert_eq!((rep.qpn(true), rep.local_qpn, rep.srq), (Qpn::new(0x22), Qpn::new(0), true));
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.settle();
    // Both DREQs name the right queue pair.
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.pass(5000);
    t.assert_empty();
}

#[test]
fn an_alternate_path_is_not_taken() {
    let mut t = Pair::new();
    t.connect();
    t.b.expect_request();
    let mut req = Req { local_comm_id: CommId(77), local_qpn: Qpn::new(0x77), ..first_req(&t) };
    req.alternate = req.primary;
    t.deliver_to_b(&mad(req)).unwrap();
    t.settle();
    let b = t.b.expect_request();
    t.b.cm.accept(t.now, b, &accept_params(gid(2))).unwrap();
    let CmMessage::Rep(rep) = answer(&mut t) else { panic!() };
    assert_eq!(rep.failover, vernic_wire::cm::FailoverAccepted::NOT_SUPPORTED);
}

#[test]
fn messages_from_other_addresses_and_of_other_instances_are_dropped() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    let (local_comm_id, remote_comm_id) = (a.0, b.0);
    let remote_qpn = Qpn::new(0x22);
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() };
    for path in [CmPath::new(gid(2), gid(3)), CmPath::new(gid(3), gid(1))] {
        assert_eq!(t.b.cm.handle_mad(t.now, path, &mad(dreq)), Err(CmDrop::WrongPath));
        let rej = Rej { local_comm_id, remote_comm_id, ..Rej::default() };
        assert_eq!(t.b.cm.handle_mad(t.now, path, &mad(rej)), Err(CmDrop::WrongPath));
    }
    let wrong_id = Dreq { local_comm_id: CommId(9), ..dreq };
    assert_eq!(t.deliver_to_b(&mad(wrong_id)), Err(CmDrop::WrongInstance));
    let wrong_qpn = Dreq { remote_qpn: Qpn::new(0x23), ..dreq };
    assert_eq!(t.deliver_to_b(&mad(wrong_qpn)), Err(CmDrop::WrongInstance));
    let rej = Rej { local_comm_id: CommId(9), remote_comm_id, ..Rej::default() };
    assert_eq!(t.deliver_to_b(&mad(rej)), Err(CmDrop::WrongInstance));
    assert_eq!(t.b.cm.counters().dropped[CmDrop::WrongPath as usize], 4);
    // The right one is taken.
    assert_eq!(t.deliver_to_b(&mad(dreq)), Ok(()));
}

#[test]
fn a_dreq_of_no_connection_is_answered() {
    let mut t = Pair::new();
    let (local_comm_id, remote_comm_id) = (CommId(1), CommId(2));
    let dreq = Dreq { local_comm_id, remote_comm_id, ..Dreq::default() };
    t.deliver_to_b(&mad(dreq)).unwrap();
    let reply = t.b.cm.poll_transmit().unwrap().mad;
    let (header, CmMessage::Drep(drep)) = CmMessage::parse(&reply).unwrap() else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (CommId(2), CommId(1)));
    assert_eq!(header.transaction_id, 1);
    let drep = Drep { local_comm_id, remote_comm_id, ..Drep::default() };
    assert_eq!(t.deliver_to_b(&mad(drep)), Err(CmDrop::UnknownConnection));
}

#[test]
fn dreqs_that_cross_end_the_connection_on_both_sides() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B DREQ
        0 B: Disconnected
        0 B->A DREQ
        0 A: Disconnected
        0 A->B DREP cm_drop_duplicate
        0 B->A DREP cm_drop_duplicate
        536 B: TimewaitExit
        671 A: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_dreq_overtakes_the_rtu() {
    let mut t = Pair::new();
    let a = t.connect();
    let b = t.accept();
    t.lose(&[CmAttribute::RTU]);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.settle();
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        0 A->B RTU LOST
        0 A->B DREQ
        0 B: Established
        0 B: DisconnectRequest
        0 B->A DREP
        0 A: Disconnected
    "#]]
    .assert_eq(&t.trace());
}

#[test]
fn a_packet_before_the_rtu_means_that_the_connection_is_up() {
    let mut t = Pair::new();
    let a = t.connect();
    let b = t.accept();
    t.b.cm.notify_established(b).unwrap();
    t.b.cm.notify_established(b).unwrap();
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.pass(60_000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        0 A->B RTU cm_drop_duplicate
        0 B: Established
    "#]]
    .assert_eq(&t.trace());
}

#[test]
fn a_dreq_that_nobody_answers_ends_the_connection_all_the_same() {
    let mut t = Pair::new();
    let params = ConnectParams { max_retries: Some(2), ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &params).unwrap();
    t.settle();
    t.accept();
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.settle();
    t.trace();
    t.lose(&[CmAttribute::DREQ; 3]);
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B DREQ LOST
        671 A->B DREQ LOST
        1342 A->B DREQ LOST
        2013 A: Unreachable Dreq
        2684 A: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.a.cm.occupancy(), super::super::CmOccupancy::default());
}
