//! Floods, and what bounds them.

use expect_test::expect;
use vernic_wire::cm::{CommId, Req, SidrReq};

use super::super::CmError;
use super::*;

/// A REQ of which there are as many as numbers, from peer 10.0.0.1.
fn flood(number: u32) -> Mad {
    flood_of(gid(1), number)
}

/// The same of another peer.
fn flood_of(peer: Gid, number: u32) -> Mad {
    let mut req = Req {
        local_comm_id: CommId(0x5000 + number),
        local_qpn: Qpn::new(0x5000 + number),
        local_ca_guid: 1,
        service_id: SERVICE,
        path_mtu: 3,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        max_cm_retries: 15,
        ..Req::default()
    };
    (req.primary.local_gid, req.primary.remote_gid) = (peer, gid(2));
    mad(req)
}

#[test]
fn a_flood_of_one_source_drops_its_own_requests() {
    let config = CmConfig { max_half_open: 8, ..config(0x200) };
    let mut t = Pair::with(super::config(0x100), config);
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 1000).unwrap();
    let from = |t: &mut Pair, last: u8, number| {
        let path = CmPath::new(gid(2), gid(last));
        t.b.cm.handle_mad(t.now, path, &flood_of(gid(last), number)).unwrap();
        t.settle();
        t.b.cm.table.assert_consistent();
    };
    // Others came first, and one of them is answered.
    (0..3).for_each(|number| from(&mut t, 3 + number as u8, number));
    let honest: Vec<ConnId> = (0..3).map(|_| t.b.expect_request()).collect();
    t.lose(&[CmAttribute::REP]);
    t.b.cm.accept(t.now, honest[0], &accept_params(gid(2))).unwrap();
    (0..200).for_each(|number| from(&mut t, 1, number));
    assert_eq!(t.b.cm.counters().half_open_dropped, 195);
    assert!(honest.iter().all(|conn| t.b.cm.owns(conn.0)), "they are all there");
    // One who comes now finds a place too.
    from(&mut t, 9, 1);
    from(&mut t, 1, 500);
    let late = t.b.events.iter().rev().find(
        |event| matches!(&event.kind, EventKind::Request { path, .. } if path.remote == gid(9)),
    );
    assert!(t.b.cm.owns(late.unwrap().conn.0));
}

#[test]
fn forged_requests_bring_their_victim_six_datagrams_each_and_64_a_second_beside() {
    let mut t = Pair::with(config(0x100), config(0x200));
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 5000).unwrap();
    let forged = 500;
    (0..forged).for_each(|number| t.deliver_to_b(&flood(number)).unwrap());
    t.settle();
    // The application takes so long that MRAs are due, and accepts; the victim says nothing.
    while t.b.cm.counters().sent[1] < forged.into() {
        t.now = t.b.cm.next_deadline().unwrap();
        t.b.cm.handle_timeout(t.now);
    }
    for asked in std::mem::take(&mut t.b.events) {
        t.b.cm.accept(t.now, asked.conn, &accept_params(gid(2))).unwrap();
    }
    let start = t.now;
    while let Some(due) = t.b.cm.next_deadline() {
        t.now = due;
        t.b.cm.handle_timeout(due);
        while t.b.cm.poll_transmit().is_some() {}
    }
    let sent: u64 = t.b.cm.counters().sent.iter().sum();
    let seconds = t.now.since(start) / (1000 * MS) + 1;
    let most = 6 * u64::from(forged) + 64 * seconds;
    assert!(sent <= most, "{sent} datagrams in {seconds} s, {most} at most");
    assert!(t.b.cm.counters().reps_withheld > 4000, "{:?}", t.b.cm.counters());
}

#[test]
fn a_peer_whose_rtus_are_lost_hears_a_rep_as_often_as_it_asked_for() {
    let mut t = Pair::new();
    let a = t.connect();
    t.accept();
    t.lose(&[CmAttribute::RTU; 10]);
    t.a.cm.ready_to_use(a, b"").unwrap();
    t.pass(60_000);
    assert!(t.trace().ends_with("B: Established\n"));
}

#[test]
fn a_peer_that_asks_for_time_gets_all_repeats_of_a_rep() {
    let mut t = Pair::new();
    t.connect();
    t.accept();
    // It has heard the REP, and says so; then all of its RTUs but the last are lost.
    t.pass(300);
    t.trace();
    t.lose(&[CmAttribute::REP; 10]);
    t.pass(60_000);
    let trace = t.trace();
    assert_eq!(trace.matches("B->A REP LOST").count(), 10, "{trace}");
    assert_eq!(t.b.cm.counters().reps_withheld, 0);
}

#[test]
fn a_flood_of_requests_drops_the_oldest_and_never_grows() {
    let config = CmConfig { max_half_open: 8, max_connections: 10, ..config(0x200) };
    let mut t = Pair::with(super::config(0x100), config);
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 1000).unwrap();
    for number in 0..100 {
        t.deliver_to_b(&flood(number)).unwrap();
        assert!(t.b.cm.occupancy().half_open <= 8);
        t.settle();
    }
    assert_eq!(t.b.cm.counters().half_open_dropped, 92);
    let dropped = |event: &&Event| event.kind == EventKind::HalfOpenDropped;
    let first = t.b.events[0].conn;
    assert_eq!(t.b.events.iter().find(dropped).unwrap().conn, first);
    assert_eq!(t.b.events.iter().filter(dropped).count(), 92);
    let error = t.b.cm.accept(t.now, first, &accept_params(gid(2))).unwrap_err();
    assert_eq!(error, CmError::UnknownConnection(first));
    // The newest is alive; when all peers have gone, all is gone.
    let newest = t.b.events.iter().rfind(|event| !dropped(event)).unwrap().conn;
    t.b.cm.accept(t.now, newest, &accept_params(gid(2))).unwrap();
    t.lose(&[CmAttribute::REP; 16]);
    t.pass(300_000);
    t.assert_empty();
    assert_eq!(t.b.cm.counters().half_open_expired, 7);
}

#[test]
fn a_peer_that_never_answers_a_rep_is_given_up_in_time_whatever_it_asks_for() {
    let mut t = Pair::new();
    let mut req = Req {
        local_comm_id: CommId(0x5000),
        local_qpn: Qpn::new(0x5000),
        service_id: SERVICE,
        path_mtu: 3,
        // 2.4 hours, 15 times.
        local_response_timeout: 31,
        max_cm_retries: 15,
        ..Req::default()
    };
    (req.primary.local_gid, req.primary.remote_gid) = (gid(1), gid(2));
    t.deliver_to_b(&mad(req)).unwrap();
    t.settle();
    t.accept();
    t.lose(&[CmAttribute::REP; 16]);
    t.pass(220_000);
    t.assert_empty();
}

#[test]
fn a_full_backlog_is_silent_until_the_application_has_taken_a_request() {
    let mut t = Pair::new();
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 1).unwrap();
    for number in 0..2 {
        t.deliver_to_b(&flood(number)).unwrap();
    }
    t.settle();
    let b = t.b.expect_request();
    t.b.cm.request_taken(b);
    t.b.cm.request_taken(b);
    for number in 2..4 {
        t.deliver_to_b(&flood(number)).unwrap();
    }
    expect![[r#"
        0 B: Request
        0 B: Request
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().backlog_full, 2);
    // One whose owner has no room after all may come again.
    let b = t.b.expect_request();
    t.b.cm.ignore(b);
    t.b.cm.ignore(b);
    t.deliver_to_b(&flood(2)).unwrap();
    assert_ne!(t.trace(), "", "a request, or an answer");
    assert_ne!(t.b.expect_request(), b);
    assert_eq!(t.b.cm.counters().backlog_full, 3);
}

#[test]
fn a_backlog_that_one_source_has_filled_has_room_for_others() {
    let mut t = Pair::new();
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 4).unwrap();
    let from = |t: &mut Pair, last: u8, number| {
        let path = CmPath::new(gid(2), gid(last));
        t.b.cm.handle_mad(t.now, path, &flood_of(gid(last), number)).unwrap();
        t.settle();
        t.b.cm.table.assert_consistent();
    };
    (0..9).for_each(|number| from(&mut t, 1, number));
    assert_eq!(t.b.cm.counters().backlog_full, 5);
    (3..7).for_each(|last| from(&mut t, last, 0));
    // Each of the first three in the place of one of the many; then all have the same.
    let counters = t.b.cm.counters();
    assert_eq!((counters.backlog_displaced, counters.backlog_full), (3, 6));
    let asked = t.b.events.iter().filter_map(|event| match &event.kind {
        EventKind::Request { path, .. } => Some((event.conn, path.remote)),
        _ => None,
    });
    let there: Vec<_> = asked.filter(|(conn, _)| t.b.cm.owns(conn.0)).map(|(_, of)| of).collect();
    assert_eq!(there, [gid(1), gid(3), gid(4), gid(5)]);
    assert_eq!(t.b.cm.occupancy().half_open, 4);
}

#[test]
fn too_many_connections_are_refused_on_both_sides() {
    let few = |seed| CmConfig { max_connections: 2, ..config(seed) };
    let mut t = Pair::with(few(0x100), few(0x200));
    for number in 0..2 {
        let params = ConnectParams { local_qpn: Qpn::new(0x30 + number), ..params(gid(1), gid(2)) };
        t.a.cm.connect(t.now, &params).unwrap();
    }
    let error = t.a.cm.connect(t.now, &params(gid(1), gid(2))).unwrap_err();
    assert_eq!(error.to_string(), "2 connections exist, and no more are allowed; disconnect some");
    t.settle();
    t.deliver_to_b(&flood(1)).unwrap();
    t.trace();
    expect!["REJ of=REQ 3 (no resources)"]
        .assert_eq(&short(&CmMessage::parse(&t.sent[2].1).unwrap().1));
    assert_eq!(t.b.cm.counters().too_many, 1);
}

#[test]
fn timewait_is_cut_short_where_there_is_too_much_of_it() {
    let config = |seed| CmConfig { max_timewait: 3, ..config(seed) };
    let mut t = Pair::with(config(0x100), config(0x200));
    for number in 0..5 {
        let (here, there) = (Qpn::new(0x30 + number), Qpn::new(0x60 + number));
        let params = ConnectParams { local_qpn: here, ..params(gid(1), gid(2)) };
        let a = t.a.cm.connect(t.now, &params).unwrap();
        t.settle();
        let b = t.b.expect_request();
        let accept = AcceptParams { local_qpn: there, ..accept_params(gid(2)) };
        t.b.cm.accept(t.now, b, &accept).unwrap();
        t.settle();
        t.a.cm.ready_to_use(a, b"").unwrap();
        t.settle();
        t.a.cm.disconnect(t.now, a, b"").unwrap();
        t.settle();
        t.b.cm.disconnect(t.now, b, b"").unwrap();
        t.settle();
        t.b.events.clear();
        assert!(t.a.cm.occupancy().timewait <= 3);
    }
    let exits = |node: &Node| {
        node.events.iter().filter(|event| event.kind == EventKind::TimewaitExit).count()
    };
    assert_eq!(exits(&t.a), 2);
    assert_eq!(t.a.cm.counters().timewait_cut_short, 2);
    t.pass(5000);
    assert_eq!(exits(&t.a), 5);
    t.assert_empty();
}

#[test]
fn timewait_follows_the_ack_timeout_up_to_its_limit() {
    let config = CmConfig::new(0, 32, 1);
    let ms = |ack: u8, delay: u8| config.timewait(AckTimeout::new(ack), delay) / MS;
    assert_eq!(ms(14, 0), 67);
    assert_eq!(ms(14, 15), 67 + 134);
    // None: twice the packet lifetime of the configuration.
    assert_eq!(ms(0, 0), 2 * 67);
    assert_eq!(ms(31, 31), 4294);
}

#[test]
fn a_flood_of_requests_that_are_accepted_drops_the_oldest_and_never_grows() {
    let config = CmConfig { max_half_open: 8, ..config(0x200) };
    let mut t = Pair::with(super::config(0x100), config);
    t.b.cm.stop_listening(t.listener);
    t.listener = t.b.cm.listen(SERVICE, None, 1000).unwrap();
    t.lose(&[CmAttribute::REP; 100]);
    for number in 0..100 {
        t.deliver_to_b(&flood(number)).unwrap();
        t.settle();
        let request = |event: &&Event| matches!(event.kind, EventKind::Request { .. });
        let newest = t.b.events.iter().rfind(request).unwrap().conn;
        t.b.cm.accept(t.now, newest, &accept_params(gid(2))).unwrap();
        assert!(t.b.cm.occupancy().half_open <= 8);
        t.settle();
    }
    assert_eq!(t.b.cm.counters().half_open_dropped, 92);
    // Their owner and their peers are told.
    let dropped = t.b.events.iter().filter(|event| event.kind == EventKind::HalfOpenDropped);
    assert_eq!(dropped.count(), 92);
    assert_eq!(t.trace().matches("B->A REJ of=none 4 (timeout)").count(), 92);
}

#[test]
fn all_ids_of_their_bits_have_their_turn_and_those_in_use_are_skipped() {
    let mut t = Pair::with(CmConfig { id_bits: 8, ..config(0xFFFF_FFFE) }, config(0x200));
    let connect = |t: &mut Pair, qpn| {
        let params = ConnectParams { local_qpn: Qpn::new(qpn), ..params(gid(1), gid(9)) };
        t.a.cm.connect(t.now, &params)
    };
    let ids: Vec<_> = (0..256).map(|qpn| connect(&mut t, qpn).unwrap().0.0).collect();
    let sorted: std::collections::BTreeSet<_> = ids.iter().copied().collect();
    assert!(sorted.into_iter().eq(0xAB00_0000..=0xAB00_00FF));
    assert_eq!(connect(&mut t, 256), Err(CmError::TooMany { max: 65_536 }));
    t.a.cm.destroy(t.now, t.a.cm.table.conn_id(CommId(ids[7])));
    assert_eq!(connect(&mut t, 256).unwrap().0.0, ids[7]);
}

#[test]
fn the_ids_of_ones_own_connections_do_not_tell_those_of_others() {
    let ids = |seed| {
        let mut cm = Cm::new(config(seed));
        let one = |qpn| ConnectParams { local_qpn: Qpn::new(qpn), ..params(gid(1), gid(9)) };
        (1..=64).map(|qpn| cm.connect(Time(0), &one(qpn)).unwrap().0.0).collect::<Vec<_>>()
    };
    let mine = ids(1);
    let next = mine.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) <= 64).count();
    // Of 65536 ids, by chance: one of 500 is as near.
    assert!(next <= 4, "{next} of 63 are near: {mine:x?}");
    assert!(ids(2).iter().filter(|id| mine.contains(id)).count() <= 4);
}

#[test]
fn what_somebody_holds_of_a_connection_that_is_over_is_not_the_next_one_of_its_id() {
    let mut t = Pair::with(CmConfig { id_bits: 8, ..config(0) }, config(0x200));
    let params = |qpn| ConnectParams { local_qpn: Qpn::new(qpn), ..params(gid(1), gid(2)) };
    let over = t.a.cm.connect(t.now, &params(1)).unwrap();
    let mut next = over;
    for qpn in 2..=257 {
        t.a.cm.destroy(t.now, next);
        next = t.a.cm.connect(t.now, &params(qpn)).unwrap();
        if next.0 == over.0 {
            break;
        }
    }
    assert_eq!((next.0, next != over), (over.0, true));
    t.a.cm.destroy(t.now, over);
    t.a.cm.request_taken(over);
    t.a.cm.ignore(over);
    assert_eq!(t.a.cm.peer(over), None);
    let unknown = t.a.cm.disconnect(t.now, over, &[]);
    assert_eq!(unknown, Err(CmError::UnknownConnection(over)));
    assert!(t.a.cm.peer(next).is_some());
}

#[test]
fn id_zero_is_never_given() {
    let mut cm = Cm::new(CmConfig { max_connections: 300, ..CmConfig::new(0, 8, 3) });
    let one = |qpn| ConnectParams { local_qpn: Qpn::new(qpn), ..params(gid(1), gid(9)) };
    let ids: Vec<_> = (0..).map_while(|qpn| cm.connect(Time(0), &one(qpn)).ok()).collect();
    assert_eq!(ids.len(), 255);
    assert!(ids.iter().all(|id| id.0 != CommId::NONE));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of datagrams take Miri minutes")]
fn requests_wait_while_nobody_fetches_events() {
    let config = CmConfig { max_half_open: 2, ..config(0x200) };
    let mut cm = Cm::new(config);
    cm.listen(SERVICE, None, usize::MAX).unwrap();
    let path = CmPath::new(gid(2), gid(1));
    let drops = (0..5000)
        .filter(|number| cm.handle_mad(Time(0), path, &flood(*number)) == Err(CmDrop::EventsFull));
    assert!(drops.count() > 2500);
    assert!(std::iter::from_fn(|| cm.poll_event()).count() < 2500);
}

#[test]
fn a_flood_of_sidr_requests_is_bounded_too() {
    let config = CmConfig { max_half_open: 4, max_timewait: 4, ..config(0x200) };
    let mut t = Pair::with(super::config(0x100), config);
    for number in 0..50 {
        let request_id = CommId(0x5000 + number);
        let req = SidrReq { request_id, service_id: DATAGRAM_SERVICE, ..SidrReq::default() };
        t.deliver_to_b(&mad(req)).unwrap();
        t.settle();
        if number % 2 == 0 {
            let last = t.b.events.iter().rfind(|event| event.kind != EventKind::HalfOpenDropped);
            t.b.cm.destroy(t.now, last.unwrap().conn);
        }
        let occupancy = t.b.cm.occupancy();
        assert!(occupancy.half_open <= 4 && occupancy.timewait <= 4);
    }
    assert_eq!(t.b.cm.counters().half_open_dropped, 21);
    assert_eq!(t.b.cm.counters().timewait_cut_short, 21);
    t.pass(60_000);
    t.assert_empty();
}

#[test]
fn many_timers_at_once_are_served_in_pieces() {
    let mut cm = Cm::new(config(1));
    for qpn in 0..200 {
        let params = ConnectParams { local_qpn: Qpn::new(qpn), ..params(gid(1), gid(9)) };
        cm.connect(Time(0), &params).unwrap();
    }
    while cm.poll_transmit().is_some() {}
    let now = cm.next_deadline().unwrap();
    let sent = |cm: &mut Cm| {
        cm.handle_timeout(now);
        std::iter::from_fn(|| cm.poll_transmit()).count()
    };
    assert_eq!([0; 5].map(|_| sent(&mut cm)), [64, 64, 64, 8, 0]);
    assert!(cm.next_deadline().unwrap() > now);
}
