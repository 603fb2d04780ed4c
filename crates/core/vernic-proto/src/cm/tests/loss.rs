//! Datagrams that are lost, late or doubled.

use expect_test::expect;
use vernic_wire::cm::{CommId, Dreq, Rep, Rtu};

use super::*;

#[test]
fn every_lost_message_is_repeated() {
    let mut t = Pair::new();
    t.lose(&[CmAttribute::REQ, CmAttribute::REP, CmAttribute::RTU]);
    t.lose(&[CmAttribute::DREQ, CmAttribute::DREP]);
    let a = t.connect();
    t.pass(700);
    let b = t.accept();
    t.pass(700);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.pass(5_000);
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.pass(700);
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ LOST
        671 A->B REQ
        671 B: Request
        700 B->A REP LOST
        1342 A->B REQ
        1342 B->A REP
        1342 A: Reply
        1371 B->A REP
        1371 A->B MRA of=REP
        1400 A->B RTU LOST
        6337 B->A REP
        6337 A->B RTU
        6337 B: Established
        6400 B->A DREQ LOST
        7071 B->A DREQ
        7071 A: DisconnectRequest
        7100 A->B DREP LOST
        7742 B->A DREQ
        7742 A->B DREP
        7742 B: Disconnected
        7771 A: TimewaitExit
        8279 B: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_process_that_ends_repeats_its_dreq_soon_and_until_it_is_answered() {
    let mut t = Pair::new();
    let (a, _) = t.established();
    // The process may have ended the connection before, and forgotten it.
    t.lose(&[CmAttribute::DREQ; 4]);
    t.a.cm.disconnect(t.now, a, b"").unwrap();
    t.a.cm.destroy(t.now, a);
    t.pass(3);
    t.a.cm.hasten_farewells(t.now);
    assert_eq!(t.a.cm.farewells(), 1);
    t.pass(160);
    expect![[r#"
        0 A->B DREQ LOST
        13 A->B DREQ LOST
        33 A->B DREQ LOST
        73 A->B DREQ LOST
        153 A->B DREQ
        153 B: DisconnectRequest
    "#]]
    .assert_eq(&t.trace());
    let b = t.b.expect(|kind| matches!(kind, EventKind::DisconnectRequest { .. }));
    t.b.cm.disconnect(t.now, b, b"").unwrap();
    t.settle();
    assert_eq!(t.a.cm.farewells(), 0);
}

#[test]
fn the_dreq_of_a_process_that_ends_is_repeated_whatever_the_req_allowed() {
    let once = CmConfig { max_retries: 0, ..config(0x100) };
    let mut t = Pair::with(once, config(0x200));
    let (a, _) = t.established();
    t.lose(&[CmAttribute::DREQ]);
    t.a.cm.hasten_farewells(t.now);
    t.a.cm.destroy(t.now, a);
    t.pass(15);
    assert_eq!(t.trace(), "0 A->B DREQ LOST\n10 A->B DREQ\n10 B: DisconnectRequest\n");
}

#[test]
fn a_datagram_tells_how_often_it_was_sent_before() {
    let mut t = Pair::new();
    t.a.cm.connect(t.now, &params(gid(1), gid(2))).unwrap();
    let mut repeats = Vec::new();
    for _ in 0..3 {
        let sent = t.a.cm.poll_transmit().unwrap();
        // B has each copy, and answers the later ones with MRAs.
        t.deliver_to_b(&sent.mad).unwrap();
        repeats.push((sent.repeats, t.b.cm.poll_transmit().map(|sent| sent.repeats)));
        t.a.cm.handle_timeout(t.a.cm.next_deadline().unwrap());
    }
    assert_eq!(repeats, [(0, None), (1, Some(0)), (2, Some(1))]);
}

#[test]
fn answers_of_which_nothing_is_remembered_go_another_way_each_time() {
    // A connection of which B knows nothing, and whose DREPs are lost on one way.
    let mut t = Pair::new();
    let dreq = Dreq { local_comm_id: CommId(7), remote_comm_id: CommId(8), ..Dreq::default() };
    let mut repeats = Vec::new();
    for _ in 0..3 {
        t.deliver_to_b(&mad(dreq)).unwrap();
        repeats.push(t.b.cm.poll_transmit().unwrap().repeats);
    }
    assert!(repeats.iter().all(|repeats| repeats % 2 == 0), "{repeats:?}");
    assert!(repeats[0] != repeats[1] && repeats[1] != repeats[2], "{repeats:?}");
}

#[test]
fn a_peer_that_is_not_there_is_unreachable() {
    let mut t = Pair::new();
    t.lose(&[CmAttribute::REQ; 4]);
    let params = ConnectParams { max_retries: Some(3), ..params(gid(1), gid(2)) };
    t.a.cm.connect(t.now, &params).unwrap();
    t.pass(60_000);
    expect![[r#"
        0 A->B REQ LOST
        671 A->B REQ LOST
        1342 A->B REQ LOST
        2013 A->B REQ LOST
        2684 A->B REJ of=none 4 (timeout) cm_drop_unknown_connection
        2684 A: Unreachable Req
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_peer_that_may_take_long_is_asked_again_soon_and_given_up_late() {
    let mut t = Pair::new();
    t.lose(&[CmAttribute::REQ; 16]);
    let params = ConnectParams { response_timeout: Some(20), ..params(gid(1), gid(2)) };
    t.a.cm.connect(t.now, &params).unwrap();
    t.pass(70_000);
    let trace = t.trace();
    let times: Vec<u64> =
        trace.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    assert_eq!(times[..5], [0, 671, 2013, 4697, 9126], "{trace}");
    assert!(trace.contains("62") && trace.ends_with("A: Unreachable Req\n"), "{trace}");
    assert_eq!(t.a.cm.counters().retries, 15);
}

#[test]
fn a_passive_side_that_hears_no_rtu_gives_up_and_says_so() {
    let mut t = Pair::new();
    let params = ConnectParams { max_retries: Some(2), ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &params).unwrap();
    t.settle();
    t.accept();
    t.lose(&[CmAttribute::RTU; 3]);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.pass(60_000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        0 A->B RTU LOST
        671 B->A REP
        671 A->B RTU LOST
        1342 B->A REP
        1342 A->B RTU LOST
        2013 B: Unreachable Rep
        2013 B->A REJ of=none 4 (timeout)
        2013 A: Disconnected
        2684 A: TimewaitExit
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_rejection_that_was_lost_is_given_again() {
    let mut t = Pair::new();
    t.connect();
    let b = t.b.expect_request();
    t.lose(&[CmAttribute::REJ]);
    t.b.cm.reject(t.now, b, RejReason::CONSUMER, b"", b"").unwrap();
    t.pass(5000);
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REJ of=REQ 28 (consumer) LOST
        671 A->B REQ
        671 B->A REJ of=REQ 28 (consumer)
        671 A: Rejected of=REQ 28 (consumer)
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().duplicates_answered, 1);
    t.assert_empty();
}

#[test]
fn an_rtu_or_rep_of_no_connection_is_rejected() {
    let mut t = Pair::new();
    let ours = vernic_wire::cm::CommId(7);
    let ids = (ours, vernic_wire::cm::CommId(8));
    let rtu = Rtu { local_comm_id: ids.0, remote_comm_id: ids.1, ..Rtu::default() };
    assert_eq!(t.deliver_to_b(&mad(rtu)), Ok(()));
    let rep = Rep { local_comm_id: ids.0, remote_comm_id: ids.1, ..Rep::default() };
    assert_eq!(t.deliver_to_b(&mad(rep)), Ok(()));
    expect![[r#"
        0 B->A REJ of=none 6 (invalid communication id) cm_drop_unknown_connection
        0 B->A REJ of=REP 6 (invalid communication id) cm_drop_unknown_connection
    "#]]
    .assert_eq(&t.trace());
    t.assert_empty();
}

#[test]
fn a_connection_survives_late_copies_of_everything() {
    let mut t = Pair::new();
    let (a, b) = t.established();
    let sent = t.sent.clone();
    for (path, mad) in &sent {
        let to = if path.local == t.a.gid { &mut t.b } else { &mut t.a };
        let _ = to.cm.handle_mad(t.now, turned(*path), mad);
    }
    t.pass(100);
    expect![[r#"
        0 A->B RTU cm_drop_duplicate
    "#]]
    .assert_eq(&t.trace());
    assert!(t.a.cm.owns(a.0) && t.b.cm.owns(b.0));
    assert_eq!(t.b.cm.counters().dropped[CmDrop::Duplicate as usize], 3);
}
