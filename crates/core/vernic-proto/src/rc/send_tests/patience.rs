//! The ACK timer's floor, and a peer that is silent and known to be there.

use super::*;

/// Of a timer of exponent 10.
const TIMEOUT: u64 = 4_194_304;

#[test]
fn an_answer_is_waited_for_no_shorter_than_the_floor() {
    for (floor, wait) in [(0, TIMEOUT), (TIMEOUT - 1, TIMEOUT), (3 * TIMEOUT, 3 * TIMEOUT)] {
        let mut s = Sender::new();
        s.qp.set_ack_floor(floor);
        s.post(SendOp::Send, 1);
        s.drain();
        let start = s.now;
        while s.qp.counters().ack_timeouts == 0 {
            let due = s.qp.next_deadline().unwrap();
            s.pass(due.since(s.now));
        }
        assert_eq!(s.now.since(start), wait, "floor {floor}");
    }
    let mut forever = Sender::with(|a| a.timeout = AckTimeout::INFINITE);
    forever.qp.set_ack_floor(TIMEOUT);
    forever.post(SendOp::Send, 1);
    forever.drain();
    assert_eq!(forever.qp.next_deadline(), None);
}

/// Lets time pass until `end`, from deadline to deadline; returns what was sent.
fn wait_until(s: &mut Sender, end: u64) -> String {
    let mut sent = String::new();
    while let Some(due) = s.qp.next_deadline().filter(|due| due.nanos() <= end) {
        s.pass(due.since(s.now));
        sent.push_str(&s.drain());
    }
    sent
}

#[test]
fn a_silent_peer_that_is_there_is_asked_by_its_oldest_and_newest_packet_and_uses_up_no_retry() {
    const MINUTE: u64 = 60_000_000_000;
    let mut s = Sender::new();
    s.host.patience = u64::MAX;
    s.post(SendOp::Send, 5 * MTU);
    s.drain();
    let asked = wait_until(&mut s, MINUTE);
    let mut kinds: Vec<_> = asked.split_terminator("; ").collect();
    let questions = kinds.len() as u64 / 2;
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["RC_SEND_FIRST 0!", "RC_SEND_LAST 4!"], "{asked}");
    // At least each quarter of a second, and not more often for long.
    assert!((240..300).contains(&questions), "{questions}");
    assert_eq!(s.qp.counters().ack_timeouts, 0);
    check(
        &s.log(),
        expect![
            "stalled: for 2.0 s the peer has not answered, after 14 transmissions; it never did: is its queue pair in RTR, and of that number and address?;"
        ],
    );
    s.ack(4);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.qp.next_deadline(), None);
}

#[test]
fn the_retries_of_a_peer_that_was_there_begin_when_it_is_not_or_when_patience_ends() {
    for ends_by_itself in [false, true] {
        let mut s = Sender::new();
        s.host.patience = if ends_by_itself { 20 * TIMEOUT } else { u64::MAX };
        s.post(SendOp::Send, 1);
        s.drain();
        let middle = s.now.nanos() + 40 * TIMEOUT;
        let start = s.now;
        if !ends_by_itself {
            wait_until(&mut s, middle);
            assert_eq!(s.qp.counters().ack_timeouts, 0);
            s.host.patience = 0;
        }
        wait_until(&mut s, u64::MAX);
        assert_eq!(s.qp.state(), QpState::Error);
        assert_eq!(s.qp.counters().ack_timeouts, 4);
        assert!(s.now.since(start) >= 23 * TIMEOUT);
        assert!(s.log().contains("wc 1 RetryExceeded"));
    }
}

#[test]
fn what_a_peer_that_goes_on_has_lost_is_repaired_by_its_nak() {
    let mut s = Sender::new();
    s.host.patience = u64::MAX;
    s.post(SendOp::Send, 4 * MTU);
    s.drain();
    let end = s.now.nanos() + 10 * TIMEOUT;
    wait_until(&mut s, end);
    s.nak(1, NakCode::PSN_SEQUENCE);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 1; RC_SEND_MIDDLE 2!;"]);
    s.ack(3);
    check(&s.log(), expect!["wc 1 Success;"]);
}
