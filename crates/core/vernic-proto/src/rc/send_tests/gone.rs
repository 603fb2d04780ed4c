//! The peer's process ends.

use super::*;

fn end_peer(s: &mut Sender) {
    s.qp.handle_peer_gone(s.now, &mut s.host);
}

#[test]
fn the_oldest_request_fails_as_after_all_retries_and_the_rest_is_flushed() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.post(SendOp::Send, 1);
    s.drain();
    s.ack(0);
    s.post(SendOp::Send, 1);
    s.log();
    end_peer(&mut s);
    let expected = expect![
        "failed: the peer's process, one of this host, has ended; wc 2 RetryExceeded; wc 3 Flushed;"
    ];
    check(&s.log(), expected);
    assert_eq!(s.qp.state(), QpState::Error);
    assert!(s.qp.next_deadline().is_none());
}

#[test]
fn a_link_that_is_gone_is_no_fault_of_the_peer() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.log();
    s.qp.handle_link_gone(s.now, &mut s.host);
    let expected = expect![
        "failed: the link of this end's device is gone for good, which says nothing of the peer; wc 1 RetryExceeded;"
    ];
    check(&s.log(), expected);
}

#[test]
fn without_a_request_an_event_tells_it_once() {
    let mut s = Sender::new();
    end_peer(&mut s);
    let expected = expect!["event Fatal; failed: the peer's process, one of this host, has ended;"];
    check(&s.log(), expected);
    assert_eq!(s.qp.state(), QpState::Error);
    end_peer(&mut s);
    check(&s.log(), expect![""]);
}

#[test]
fn a_queue_pair_that_is_not_connected_has_no_peer_that_could_be_gone() {
    let mut s = Sender::new();
    let reset = QpAttr::default();
    s.qp.modify(&reset, AttrMask::STATE, s.now, &mut s.host).unwrap();
    end_peer(&mut s);
    assert_eq!(s.qp.state(), QpState::Reset);
    check(&s.log(), expect![""]);
}

#[test]
fn what_was_sent_is_unacknowledged_until_it_is_answered() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    assert!(!s.qp.has_unacknowledged());
    s.drain();
    assert!(s.qp.has_unacknowledged());
    s.ack(0);
    assert!(!s.qp.has_unacknowledged());
}
