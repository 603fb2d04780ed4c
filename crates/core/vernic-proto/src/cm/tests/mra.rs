//! Owners that take their time.

use expect_test::expect;
use vernic_wire::cm::{CommId, Mra};

use super::*;

#[test]
fn an_accept_that_takes_long_is_announced_by_mra() {
    let mut t = Pair::new();
    t.connect();
    // The peer waits for 537 ms and the way; an MRA is sent after half of 537.
    t.pass(3000);
    t.accept();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        268 B->A MRA of=REQ
        3000 B->A REP
        3000 A: Reply
    "#]]
    .assert_eq(&t.trace());
}

#[test]
fn a_req_that_is_repeated_gets_another_mra() {
    let mut t = Pair::new();
    t.lose(&[CmAttribute::MRA]);
    t.connect();
    t.pass(12_000);
    t.accept();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        268 B->A MRA of=REQ LOST
        671 A->B REQ
        671 B->A MRA of=REQ
        5637 A->B REQ
        5637 B->A MRA of=REQ
        10603 A->B REQ
        10603 B->A MRA of=REQ
        12000 B->A REP
        12000 A: Reply
    "#]]
    .assert_eq(&t.trace());
    assert_eq!(t.b.cm.counters().duplicates_answered, 3);
}

#[test]
fn a_request_that_nobody_answers_is_dropped_when_the_peer_has_gone() {
    let mut t = Pair::new();
    t.connect();
    t.b.expect_request();
    t.lose(&[CmAttribute::REQ; 16]);
    t.lose(&[CmAttribute::REJ]);
    t.pass(200_000);
    let trace = t.trace();
    let told = trace.lines().filter(|line| !line.contains("REQ LOST")).collect::<Vec<_>>();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        268 B->A MRA of=REQ
        9932 B: HalfOpenDropped
        15300 A->B REJ of=none 4 (timeout) LOST
        15300 A: Unreachable Req"#]]
    .assert_eq(&told.join("\n"));
    assert_eq!(t.b.cm.counters().half_open_expired, 1);
    t.assert_empty();
}

#[test]
fn a_queue_pair_that_takes_long_to_bring_up_is_announced_by_mra() {
    let mut t = Pair::new();
    let a = t.connect();
    t.accept();
    t.pass(3000);
    t.a.cm.ready_to_use(a, b"").unwrap();
    expect![[r#"
        0 A->B REQ
        0 B: Request
        0 B->A REP
        0 A: Reply
        268 A->B MRA of=REP
        3000 A->B RTU
        3000 B: Established
    "#]]
    .assert_eq(&t.trace());
}

/// When A gives its request up that a stranger answers by an MRA just before each of its deadlines.
fn given_up_s(service_timeout: u8) -> u64 {
    let mut cm = Cm::new(config(1));
    let conn = cm.connect(Time(0), &params(gid(1), gid(2))).unwrap();
    // What its sender calls it is not known yet.
    let ids = Mra { local_comm_id: CommId(5), remote_comm_id: conn.0, ..Mra::default() };
    let mra = mad(Mra { service_timeout, ..ids });
    loop {
        let due = cm.next_deadline().unwrap();
        let _ = cm.handle_mad(Time(due.0 - 1), CmPath::new(gid(1), gid(2)), &mra);
        let due = cm.next_deadline().unwrap();
        cm.handle_timeout(due);
        if !cm.owns(conn.0) {
            return due.0 / (1000 * MS);
        }
    }
}

#[test]
fn mras_of_a_request_lengthen_it_by_137_s_at_most_whatever_they_ask_for() {
    let own = (16.0 * 0.671) as u64;
    for service_timeout in [0, 10, 17, 20, 24, 31] {
        let given_up = given_up_s(service_timeout);
        assert!((own..=own + 138).contains(&given_up), "{service_timeout}: {given_up} s");
    }
    assert!(given_up_s(31) >= 137, "what an honest peer needs it gets");
}

#[test]
fn mras_make_nobody_wait_for_ever() {
    let mut t = Pair::new();
    let params = ConnectParams { max_retries: Some(2), ..params(gid(1), gid(2)) };
    let a = t.a.cm.connect(t.now, &params).unwrap();
    t.settle();
    let mra = Mra {
        local_comm_id: CommId(5),
        remote_comm_id: a.0,
        service_timeout: 31,
        ..Default::default()
    };
    let mut taken = 0;
    for _ in 0..10 {
        let path = CmPath::new(gid(1), gid(2));
        taken += u32::from(t.a.cm.handle_mad(t.now, path, &mad(mra)).is_ok());
    }
    // As many as REQs: the first and its repeats.
    assert_eq!(taken, 3);
    // 31 stands for 2.4 hours, which is cut at 69 s.
    let deadline = t.a.cm.next_deadline().unwrap();
    assert!(deadline < t.now + 70_000 * MS, "{deadline:?}");
}
