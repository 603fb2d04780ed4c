//! What comes ahead of a gap is kept, and handled in its turn.

use super::*;
use Disposition::{Accepted, Kept};
use vernic_wire::KeptMap;

const GAP: Disposition = Disposition::Nak(ErrorClass::PsnSequence);

#[test]
fn what_was_kept_is_handled_when_the_gap_closes_and_acknowledged_at_once() {
    let mut t = Rig::new();
    let budget = t.keep(8, 10_000);
    assert_eq!(t.take(write_only(101, 8)), GAP);
    assert_eq!(t.responses(), ["RC_ACK 100 nak PSN_SEQUENCE msn=0"]);
    assert_eq!(t.take(write_only(102, 8).without_ack_req()), Kept);
    assert!(budget.left() < 10_000);
    assert_eq!(t.take_kept(), []);
    assert_eq!(t.responses(), [""; 0]);
    // It did not ask, and hears all the same: it need not send the others again.
    assert_eq!(t.take(write_only(100, 8).without_ack_req()), Accepted);
    assert_eq!(t.take_kept(), [Accepted, Accepted]);
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=3"]);
    assert_eq!((t.counters.packets_kept, t.counters.kept_packets_handled), (2, 2));
    assert_eq!(t.counters.messages_received, 3);
    assert_eq!(budget.left(), 10_000);
}

#[test]
fn a_message_with_gaps_is_put_together_in_order() {
    let mut t = Rig::new();
    t.keep(8, 10_000);
    t.host.post_recv(1, 4096);
    let whole = send_only(0, 3 * MTU + 5).payload;
    let piece = |psn: u32, opcode, range: std::ops::Range<usize>| {
        let mut piece = request(opcode, psn);
        piece.payload = whole[range].to_vec();
        piece
    };
    let last = piece(103, Opcode::RC_SEND_LAST, 3 * MTU..whole.len());
    assert_eq!(t.take(last), GAP);
    assert_eq!(t.take(piece(101, Opcode::RC_SEND_MIDDLE, MTU..2 * MTU)), Kept);
    assert_eq!(t.take(piece(100, Opcode::RC_SEND_FIRST, 0..MTU)), Accepted);
    assert_eq!(t.take_kept(), [Accepted]);
    assert!(t.host.received.is_empty());
    assert_eq!(t.take(piece(102, Opcode::RC_SEND_MIDDLE, 2 * MTU..3 * MTU)), Accepted);
    assert_eq!(t.take_kept(), [Accepted]);
    assert_eq!(t.host.received[0].byte_len as usize, whole.len());
    assert_eq!(t.host.recv_buf[..whole.len()], whole);
}

#[test]
fn the_next_gap_is_reported_when_something_new_comes_behind_it() {
    let mut t = Rig::new();
    t.keep(8, 10_000);
    assert_eq!(t.take(write_only(101, 8)), GAP);
    assert_eq!(t.take(write_only(103, 8)), Kept);
    t.responses();
    assert_eq!(t.take(write_only(100, 8)), Accepted);
    assert_eq!(t.take_kept(), [Accepted]);
    // A peer that goes back sends the next missing one anyway.
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=2"]);
    assert_eq!(t.take(write_only(101, 8)), Disposition::Duplicate);
    assert_eq!(t.take(write_only(104, 8)), GAP);
    t.take_kept();
    assert_eq!(t.take(write_only(102, 8)), Accepted);
    assert_eq!(t.take_kept(), [Accepted, Accepted]);
    assert_eq!(t.counters.messages_received, 5);
}

#[test]
fn each_number_is_kept_once_and_the_first_copy_counts() {
    let mut t = Rig::new();
    t.keep(8, 10_000);
    t.take(write_only(102, 8));
    assert_eq!(t.take(write_only(101, 4)), Kept);
    assert_eq!(t.take(write_only(101, 8)), Disposition::Drop(DropReason::AheadOfNak));
    t.take(write_only(100, 0));
    assert_eq!(t.take_kept(), [Accepted, Accepted]);
    assert_eq!(t.counters.messages_received, 3);
}

#[test]
fn what_is_too_far_ahead_or_has_no_room_is_dropped() {
    let mut t = Rig::new();
    let budget = t.keep(3, 100);
    assert_eq!(t.take(write_only(102, 8)), GAP);
    assert_eq!(t.take(write_only(104, 8)), Disposition::Drop(DropReason::NoKeepRoom));
    assert_eq!(t.take(write_only(101, 100)), Disposition::Drop(DropReason::NoKeepRoom));
    assert_eq!(t.take(write_only(103, 8)), Kept);
    t.take(write_only(100, 8));
    assert_eq!(t.take_kept(), []);
    t.take(write_only(101, 8));
    assert_eq!(t.take_kept(), [Accepted, Accepted]);
    assert_eq!(budget.left(), 100);
}

#[test]
fn a_packet_that_may_be_of_a_stranger_is_not_kept() {
    let mut t = Rig::new();
    t.keep(8, 10_000);
    t.take(write_only(102, 8));
    let Request { headers, payload } = write_only(101, 8);
    let bytes = packet_bytes(headers, &payload);
    let packet = Packet::parse(&bytes).unwrap();
    let cx = &mut context(t.service, &t.attr, &mut t.counters);
    let disposition = t.responder.handle_request(cx, &packet, false, &mut t.host);
    assert_eq!(disposition, Disposition::Drop(DropReason::AheadOfNak));
    t.take(write_only(100, 8));
    assert_eq!(t.take_kept(), []);
}

#[test]
fn a_kept_send_without_receive_gets_rnr_nak_and_what_is_behind_it_comes_again() {
    let mut t = Rig::new();
    let budget = t.keep(8, 10_000);
    t.take(send_only(101, 8));
    assert_eq!(t.take(write_only(102, 8)), Kept);
    t.responses();
    assert_eq!(t.take(write_only(100, 8)), Accepted);
    assert_eq!(t.take_kept(), [Disposition::Rnr]);
    assert_eq!(t.responses(), ["RC_ACK 101 rnr timer=12 msn=1"]);
    assert_eq!(budget.left(), 10_000);
    // Until there is a receive, nothing is kept: all of it comes again.
    t.host.post_recv(1, 8);
    assert_eq!(t.take(write_only(102, 8)), Disposition::Drop(DropReason::AheadOfNak));
    assert_eq!(t.take(send_only(101, 8)), Accepted);
    assert_eq!(t.take(write_only(103, 8)), GAP);
    assert_eq!(t.take(write_only(102, 8)), Accepted);
    assert_eq!(t.take_kept(), [Accepted]);
}

#[test]
fn rights_are_checked_when_a_packet_is_handled_not_when_it_comes() {
    let mut t = Rig::new();
    let budget = t.keep(8, 10_000);
    t.take(write_only(101, 8));
    t.take(write_only(102, 8));
    t.host.key_valid = false;
    t.take(write_only(100, 0));
    let class = ErrorClass::RemoteAccess;
    let kept = t.responder.take_kept().unwrap();
    let packet = Packet::parse(kept.bytes()).unwrap();
    let cx = &mut context(t.service, &t.attr, &mut t.counters);
    let disposition = t.responder.handle_kept(cx, &packet, &mut t.host);
    assert_eq!(disposition, Disposition::Nak(class));
    t.responder.halt();
    drop(kept);
    assert_eq!(budget.left(), 10_000);
}

#[test]
fn reads_and_atomics_that_were_kept_are_carried_out_once_and_answered_in_order() {
    let mut t = Rig::new();
    t.keep(8, 10_000);
    t.take(read(101, 0, 600));
    assert_eq!(t.take(fetch_add(104, 0, 1)), Kept);
    t.responses();
    t.take(write_only(100, 8));
    assert_eq!(t.take_kept(), [Accepted, Accepted]);
    assert_eq!(t.host.atomics, 1);
    let lines = t.responses();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].starts_with("RC_READ_RESPONSE_FIRST 101"), "{lines:?}");
    assert!(lines[3].starts_with("RC_ATOMIC_ACK 104"), "{lines:?}");
}

#[test]
fn a_reset_forgets_what_was_kept_and_keeps_on_keeping() {
    let mut t = Rig::new();
    let budget = t.keep(8, 10_000);
    t.take(write_only(101, 8));
    t.responder.forget();
    assert_eq!(budget.left(), 10_000);
    t.responder.reset(&t.attr, false);
    t.take(write_only(100, 8));
    assert_eq!(t.take_kept(), []);
    t.take(write_only(102, 8));
    t.take(write_only(101, 8));
    assert_eq!(t.take_kept(), [Accepted]);
}

/// The map that the next response carries.
fn map_of(t: &mut Rig) -> KeptMap {
    let bytes = t.poll().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.aeth().unwrap().syndrome, Syndrome::nak(NakCode::PSN_SEQUENCE));
    KeptMap::parse(packet.payload())
}

fn asking(mut request: Request) -> Request {
    request.headers.bth.reserved7 = Bth::ASKS_KEPT;
    request
}

#[test]
fn who_asks_is_told_what_is_kept_with_each_new_gap_and_each_ack_request() {
    let mut t = Rig::new();
    t.keep(64, 10_000);
    assert_eq!(t.take(asking(write_only(102, 8)).without_ack_req()), GAP);
    let map = map_of(&mut t);
    assert!(map.has(2) && map.count() == 1, "{map}");
    // Nothing new, and not asked for.
    assert_eq!(t.take(asking(write_only(103, 8)).without_ack_req()), Kept);
    assert_eq!(t.responses(), [""; 0]);
    // Another packet is missing.
    assert_eq!(t.take(asking(write_only(105, 8)).without_ack_req()), Kept);
    assert_eq!(map_of(&mut t).count(), 3);
    assert_eq!(t.take(asking(write_only(106, 8))), Kept);
    assert_eq!(map_of(&mut t).newest(), 6);
    // A copy asks too: the first answer may be lost.
    t.take(asking(write_only(106, 8)));
    assert_eq!(map_of(&mut t).newest(), 6);
    t.take(asking(write_only(101, 8)));
    assert_eq!(map_of(&mut t).count(), 5);
    // The gap closes to the next one, which is told at once.
    t.take(asking(write_only(100, 8)).without_ack_req());
    assert_eq!(t.take_kept(), [Accepted, Accepted, Accepted]);
    let map = map_of(&mut t);
    assert!(map.has(1) && map.has(2) && map.newest() == 2, "{map}");
    assert_eq!(t.take(asking(write_only(107, 8))), Kept);
}

#[test]
fn a_map_is_no_longer_than_the_path_mtu() {
    let mut t = Rig::new();
    t.keep(4096, 1_000_000);
    // The path MTU of the tests is 256 bytes.
    t.take(asking(write_only(100 + 2048, 8)));
    assert_eq!(map_of(&mut t).newest(), 2048);
    t.take(asking(write_only(100 + 2049, 8)));
    assert_eq!(map_of(&mut t).newest(), 2048);
}

#[test]
fn who_does_not_ask_is_told_nothing_that_the_standard_has_not() {
    let mut t = Rig::new();
    t.keep(64, 10_000);
    t.take(write_only(101, 8));
    assert_eq!(t.responses(), ["RC_ACK 100 nak PSN_SEQUENCE msn=0"]);
    t.take(write_only(103, 8));
    assert_eq!(t.responses(), [""; 0]);
}
