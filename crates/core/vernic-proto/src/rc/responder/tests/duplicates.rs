//! Requests that come again.

use super::*;

#[test]
fn a_duplicate_of_the_past_is_acknowledged_with_the_latest_number_and_not_carried_out() {
    let mut t = Rig::new();
    t.host.post_recv(1, 8);
    t.host.post_recv(2, 8);
    t.take(send_only(100, 8));
    t.take(write_only(101, 8));
    t.responses();
    t.host.memory[0] = 0;
    assert_eq!(t.take(send_only(100, 8)), Disposition::Duplicate);
    assert_eq!(t.take(write_only(101, 8)), Disposition::Duplicate);
    assert_eq!((t.host.received.len(), t.host.memory[0]), (1, 0));
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=2"]);
}

#[test]
fn a_duplicate_before_an_answered_read_is_acknowledged_without_passing_the_read() {
    let mut t = Rig::new();
    t.take(write_only(100, 8));
    t.take(read(101, 0, 8));
    t.take(write_only(102, 8));
    t.responses();
    t.take(write_only(100, 8));
    assert_eq!(t.responses(), ["RC_ACK 100 ack msn=3"]);
    t.take(write_only(102, 8));
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=3"]);
}

#[test]
fn a_repeated_read_is_answered_from_memory_as_it_is_now() {
    let mut t = Rig::new();
    t.take(read(100, 0, 300));
    t.take(write_only(102, 8));
    t.responses();
    t.host.memory[0] = 0xC3;
    assert_eq!(t.take(read(100, 0, 300)), Disposition::Duplicate);
    let bytes = t.poll().unwrap();
    assert_eq!(line(&bytes), "RC_READ_RESPONSE_FIRST 100 ack msn=1 256B");
    assert_eq!(Packet::parse(&bytes).unwrap().payload()[0], 0xC3);
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_LAST 101 ack msn=1 44B"]);
}

#[test]
fn a_read_repeated_from_its_middle_starts_with_a_first_packet_there() {
    let mut t = Rig::new();
    t.take(read(100, 0, 700));
    t.responses();
    assert_eq!(t.take(read(101, 256, 444)), Disposition::Duplicate);
    let trace =
        ["RC_READ_RESPONSE_FIRST 101 ack msn=1 256B", "RC_READ_RESPONSE_LAST 102 ack msn=1 188B"];
    assert_eq!(t.responses(), trace);
    t.take(read(102, 512, 188));
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_ONLY 102 ack msn=1 188B"]);
}

#[test]
fn a_read_repeated_while_it_is_answered_starts_over_and_keeps_its_place() {
    let mut t = Rig::new();
    t.take(read(100, 0, 300));
    t.take(read(102, 0, 8));
    t.poll();
    assert_eq!(t.take(read(100, 0, 300)), Disposition::Duplicate);
    let trace = [
        "RC_READ_RESPONSE_FIRST 100 ack msn=1 256B",
        "RC_READ_RESPONSE_LAST 101 ack msn=1 44B",
        "RC_READ_RESPONSE_ONLY 102 ack msn=2 8B",
    ];
    assert_eq!(t.responses(), trace);
}

#[test]
fn a_repeated_request_for_other_memory_or_of_another_kind_is_dropped() {
    let mut t = Rig::new();
    t.take(read(100, 0, 300));
    t.take(fetch_add(102, 0, 1));
    t.responses();
    let lost = Disposition::Drop(DropReason::LostReplay);
    assert_eq!(t.take(read(100, 8, 300)), lost);
    assert_eq!(t.take(read(100, 0, 301)), lost);
    assert_eq!(t.take(read(100, 0, 300).rkey(1)), lost);
    assert_eq!(t.take(read(102, 0, 8)), lost);
    assert_eq!(t.take(fetch_add(100, 0, 1)), lost);
    let write = request(Opcode::RC_ATOMIC_WRITE, 102).reth(16, 8).payload(8);
    assert_eq!(t.take(write), lost);
    t.take(request(Opcode::RC_ATOMIC_WRITE, 103).reth(16, 8).payload(8));
    t.responses();
    assert_eq!(t.take(fetch_add(103, 0, 1)), lost);
    assert_eq!(t.responses(), [""; 0]);
}

#[test]
fn a_repeated_read_for_what_has_not_been_answered_yet_changes_nothing() {
    let mut t = Rig::new();
    t.take(read(100, 0, 600));
    t.poll();
    assert_eq!(t.take(read(102, 512, 88)), Disposition::Duplicate);
    let trace = ["RC_READ_RESPONSE_MIDDLE 101 256B", "RC_READ_RESPONSE_LAST 102 ack msn=1 88B"];
    assert_eq!(t.responses(), trace);
}

#[test]
fn a_read_of_which_a_part_was_asked_for_again_gives_way_once_that_is_answered() {
    let mut t = Rig::new();
    t.take(read(100, 0, 1000));
    t.poll();
    assert_eq!(t.take(read(100, 0, 512)), Disposition::Duplicate);
    let trace =
        ["RC_READ_RESPONSE_FIRST 100 ack msn=1 256B", "RC_READ_RESPONSE_LAST 101 ack msn=1 256B"];
    assert_eq!(t.responses(), trace);
    for psn in 104..107 {
        assert_eq!(t.take(read(psn, 0, 8)), Disposition::Accepted);
        assert_eq!(t.responses().len(), 1);
    }
}

#[test]
fn a_duplicate_before_an_unanswered_read_is_acknowledged_by_its_response() {
    let mut t = Rig::new();
    t.take(write_only(100, 8));
    t.take(read(101, 0, 8));
    assert_eq!(t.take(write_only(100, 8)), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_ONLY 101 ack msn=2 8B"]);
}

#[test]
fn a_duplicate_takes_nothing_back_from_an_acknowledgement_or_nak_that_is_due() {
    let mut t = Rig::new();
    t.take(write_only(100, 8));
    t.take(read(101, 0, 8));
    t.responses();
    t.take(write_only(102, 8));
    t.take(write_only(100, 8));
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=3"]);
    t.take(write_only(104, 8));
    t.take(write_only(102, 8));
    assert_eq!(t.responses(), ["RC_ACK 103 nak PSN_SEQUENCE msn=3"]);
}

#[test]
fn a_duplicate_older_than_what_is_kept_is_dropped() {
    let mut t = Rig::new();
    for psn in 100..103 {
        t.take(fetch_add(psn, 0, 1));
        t.responses();
    }
    assert_eq!(t.take(fetch_add(100, 0, 1)), Disposition::Drop(DropReason::LostReplay));
    assert_eq!(t.take(fetch_add(101, 0, 1)), Disposition::Duplicate);
    assert_eq!(t.host.atomics, 3);
}

#[test]
fn a_smaller_number_of_answers_keeps_what_is_due_and_the_newest() {
    let mut t = Rig::new();
    t.take(fetch_add(100, 0, 1));
    t.take(fetch_add(101, 0, 1));
    t.responder.set_depth(1);
    assert_eq!(t.responses().len(), 2);
    assert_eq!(t.take(fetch_add(102, 0, 1)), Disposition::Accepted);
    t.responses();
    assert_eq!(t.take(fetch_add(101, 0, 1)), Disposition::Drop(DropReason::LostReplay));
    assert_eq!(t.take(fetch_add(102, 0, 1)), Disposition::Duplicate);
    assert_eq!(t.responses().len(), 1);
    t.responder.set_depth(2);
    assert_eq!(t.take(fetch_add(103, 0, 1)), Disposition::Accepted);
    assert_eq!(t.take(fetch_add(104, 0, 1)), Disposition::Accepted);
    t.refused(fetch_add(105, 0, 1), ErrorClass::TooManyReads);
}

#[test]
fn a_replay_whose_key_is_gone_is_refused_without_ending_the_connection() {
    let mut t = Rig::new();
    t.take(read(100, 0, 8));
    t.responses();
    t.host.key_valid = false;
    assert_eq!(t.take(read(100, 0, 8)), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_ACK 100 nak REMOTE_ACCESS msn=1"]);
    assert!(!t.responder.has_failed());
    assert!(t.host.failures.is_empty() && t.host.events.is_empty());
}
