//! Sequence numbers, the order of packets in a message, credits, the error state.

use super::*;

#[test]
fn many_packets_are_acknowledged_once_with_the_latest_number() {
    let mut t = Rig::new();
    for psn in 100..110 {
        assert_eq!(t.take(write_only(psn, 8)), Disposition::Accepted);
    }
    assert_eq!(t.responses(), ["RC_ACK 109 ack msn=10"]);
    assert_eq!(t.counters.acks_sent, 1);
    assert_eq!(t.counters.messages_received, 10);
}

#[test]
fn nothing_is_acknowledged_unasked() {
    let mut t = Rig::new();
    t.take(write_only(100, 8).without_ack_req());
    assert_eq!(t.responses(), [""; 0]);
}

#[test]
fn a_gap_is_nakked_once_and_what_lies_ahead_is_dropped() {
    let mut t = Rig::new();
    t.take(write_only(100, 8));
    assert_eq!(t.take(write_only(102, 8)), Disposition::Nak(ErrorClass::PsnSequence));
    assert_eq!(t.take(write_only(103, 8)), Disposition::Drop(DropReason::AheadOfNak));
    assert_eq!(t.responses(), ["RC_ACK 101 nak PSN_SEQUENCE msn=1"]);
    assert_eq!(t.take(write_only(104, 8)), Disposition::Drop(DropReason::AheadOfNak));
    assert_eq!(t.responses(), [""; 0]);
    assert_eq!(t.take(write_only(101, 8)), Disposition::Accepted);
    assert_eq!(t.take(write_only(103, 8)), Disposition::Nak(ErrorClass::PsnSequence));
    assert_eq!(t.responses(), ["RC_ACK 102 nak PSN_SEQUENCE msn=2"]);
    assert_eq!(t.counters.sequence_naks_sent, 2);
    assert!(t.host.failures.is_empty() && t.host.events.is_empty());
}

#[test]
fn a_gap_that_closes_before_the_nak_leaves_is_reported_as_it_is_then() {
    let mut t = Rig::new();
    t.take(write_only(101, 8));
    t.take(write_only(102, 8));
    t.take(write_only(100, 8));
    assert_eq!(t.take(write_only(103, 8)), Disposition::Drop(DropReason::AheadOfNak));
    t.take(write_only(101, 8));
    t.take(write_only(102, 8));
    assert_eq!(t.responses(), ["RC_ACK 103 nak PSN_SEQUENCE msn=3"]);
    let mut t = Rig::new();
    t.take(write_only(101, 8));
    t.take(write_only(100, 8));
    t.take(write_only(101, 8));
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=2"]);
    // And the next gap is one to be reported.
    assert_eq!(t.take(write_only(103, 8)), Disposition::Nak(ErrorClass::PsnSequence));
    assert_eq!(t.responses(), ["RC_ACK 102 nak PSN_SEQUENCE msn=2"]);
}

#[test]
fn sequence_numbers_wrap_in_the_middle_of_a_message() {
    let mut t = Rig::from_psn(0xFF_FFFF);
    let first = request(Opcode::RC_WRITE_FIRST, 0xFF_FFFF).reth(0, 300).payload(MTU);
    assert_eq!(t.take(first), Disposition::Accepted);
    let last = request(Opcode::RC_WRITE_LAST, 0).payload(44);
    assert_eq!(t.take(last), Disposition::Accepted);
    assert_eq!(t.take(read(1, 0, 600)), Disposition::Accepted);
    assert_eq!(
        t.responses(),
        [
            "RC_READ_RESPONSE_FIRST 1 ack msn=2 256B",
            "RC_READ_RESPONSE_MIDDLE 2 256B",
            "RC_READ_RESPONSE_LAST 3 ack msn=2 88B",
        ]
    );
    assert_eq!(t.take(write_only(0xFF_FFFF, 8)), Disposition::Duplicate);
    assert_eq!(t.take(write_only(4, 8)), Disposition::Accepted);
}

#[test]
fn a_continuation_without_a_message_is_refused() {
    let mut t = Rig::new();
    t.refused(request(Opcode::RC_SEND_MIDDLE, 100).payload(MTU), ErrorClass::OpcodeSequence);
    assert_eq!(t.responses(), ["RC_ACK 100 nak INVALID_REQUEST msn=0"]);
    assert_eq!(t.failure(), (ErrorClass::OpcodeSequence, None));
    assert_eq!(t.host.events, [QpEvent::RequestError]);
}

#[test]
fn a_new_message_inside_another_is_refused_and_the_receive_completes_in_error() {
    for other in [write_only(101, 8), read(101, 0, 8), send_only(101, 8)] {
        let mut t = Rig::new();
        t.host.post_recv(1, 4096);
        t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
        t.refused(other, ErrorClass::OpcodeSequence);
        assert_eq!(t.host.received[0].status, WcStatus::RemoteInvalidRequest);
        assert_ne!(t.host.received[0].vendor_err, 0);
        assert_eq!(t.host.failures[0].wr_id, Some(1));
        assert_eq!(t.responder.take_current(), None);
    }
}

#[test]
fn packets_are_dropped_once_the_queue_pair_is_in_error() {
    let mut t = Rig::new();
    t.attr.state = QpState::Error;
    assert_eq!(t.take(write_only(100, 8)), Disposition::Drop(DropReason::BadState));
}

#[test]
fn the_first_packet_in_rtr_raises_the_event_once() {
    let mut t = Rig::new();
    t.attr.state = QpState::Rtr;
    t.take(write_only(100, 8));
    t.take(write_only(101, 8));
    assert_eq!(t.host.events, [QpEvent::CommEstablished]);
}

#[test]
fn credits_are_those_of_the_queue_and_none_where_it_is_shared() {
    let mut t = Rig::new();
    t.host.credits = Some(5);
    t.take(write_only(100, 8));
    assert_eq!(t.responses(), ["RC_ACK 100 ack credits=4 msn=1"]);
    t.responder.reset(&t.attr, true);
    t.take(write_only(100, 8));
    assert_eq!(t.responses(), ["RC_ACK 100 ack msn=1"]);
}

#[test]
fn entering_error_gives_up_unanswered_reads() {
    let mut t = Rig::new();
    t.take(read(100, 0, 600));
    t.take(write_only(103, 8));
    t.responder.halt();
    assert_eq!(t.responses(), [""; 0]);
}

#[test]
fn the_receive_of_an_unfinished_message_is_handed_over_for_the_flush() {
    let mut t = Rig::new();
    t.host.post_recv(3, 1000);
    t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
    assert_eq!(t.responder.take_current().map(|recv| recv.wr_id), Some(3));
    assert_eq!(t.responder.take_current(), None);
}
