//! READ, atomics, ATOMIC WRITE and FLUSH.

use super::*;

#[test]
fn a_read_is_answered_with_the_bytes_and_pad_of_zeros() {
    let mut t = Rig::new();
    t.take(read(100, 3, 5));
    let bytes = t.poll().unwrap();
    assert_eq!(line(&bytes), "RC_READ_RESPONSE_ONLY 100 ack msn=1 5B");
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.payload(), &t.host.memory[3..8]);
    assert_eq!(packet.padding(), [0, 0, 0]);
}

#[test]
fn an_acknowledgement_waits_for_the_read_before_it_and_is_implied_by_one_behind_it() {
    let mut t = Rig::new();
    t.take(write_only(100, 8));
    t.take(read(101, 0, 300));
    t.take(write_only(103, 8));
    t.take(write_only(104, 8));
    let trace = [
        "RC_READ_RESPONSE_FIRST 101 ack msn=2 256B",
        "RC_READ_RESPONSE_LAST 102 ack msn=2 44B",
        "RC_ACK 104 ack msn=4",
    ];
    assert_eq!(t.responses(), trace);
}

#[test]
fn more_reads_at_once_than_agreed_are_refused_after_the_answers_due() {
    let mut t = Rig::new();
    t.take(read(100, 0, 8));
    t.take(read(101, 0, 8));
    t.refused(read(102, 0, 8), ErrorClass::TooManyReads);
    t.attr.state = QpState::Error;
    t.responder.halt();
    let trace = [
        "RC_READ_RESPONSE_ONLY 100 ack msn=1 8B",
        "RC_READ_RESPONSE_ONLY 101 ack msn=2 8B",
        "RC_ACK 102 nak INVALID_REQUEST msn=2",
    ];
    assert_eq!(t.responses(), trace);
}

#[test]
fn answered_reads_make_room_for_further_ones() {
    let mut t = Rig::new();
    for psn in 100..120 {
        assert_eq!(t.take(read(psn, 0, 8)), Disposition::Accepted);
        assert_eq!(t.responses().len(), 1);
    }
}

#[test]
fn without_read_depth_reads_and_atomics_are_refused() {
    for request in [read(100, 0, 8), fetch_add(100, 0, 1)] {
        let mut t = Rig::new();
        t.attr.max_dest_rd_atomic = 0;
        t.responder.reset(&t.attr, false);
        t.refused(request, ErrorClass::TooManyReads);
    }
}

#[test]
fn a_read_beyond_two_gibibytes_is_refused() {
    let mut t = Rig::new();
    t.refused(read(100, 0, 1 << 31 | 1), ErrorClass::MessageLength);
}

#[test]
fn a_read_that_takes_half_of_all_sequence_numbers_is_refused() {
    let half = 1 << 23;
    let mut t = Rig::new();
    t.refused(read(100, 0, half * MTU as u32), ErrorClass::MessageLength);
    let mut t = Rig::new();
    t.refused(read(100, 0, (half - 1) * MTU as u32 + 1), ErrorClass::MessageLength);
    let mut t = Rig::new();
    t.refused(read(100, 0, (half - 1) * MTU as u32), ErrorClass::RemoteAccess);
}

#[test]
fn a_key_that_becomes_invalid_while_a_read_is_answered_ends_the_connection() {
    let mut t = Rig::new();
    t.take(read(100, 0, 600));
    t.take(write_only(103, 8));
    assert!(t.poll().is_some());
    assert!(!t.responder.has_failed());
    t.host.key_valid = false;
    assert_eq!(t.responses(), ["RC_ACK 101 nak REMOTE_ACCESS msn=2"]);
    assert!(t.responder.has_failed());
    assert_eq!(t.failure(), (ErrorClass::RemoteAccess, Some(AccessCheck::KeyStale)));
    assert_eq!(t.host.events, [QpEvent::AccessError]);
}

#[test]
fn atomics_return_the_old_value_and_are_carried_out_once() {
    let mut t = Rig::new();
    t.host.memory[8..16].copy_from_slice(&40u64.to_ne_bytes());
    t.take(fetch_add(100, 8, 2));
    assert_eq!(t.responses(), ["RC_ATOMIC_ACK 100 ack msn=1 original=0x28"]);
    assert_eq!(t.take(fetch_add(100, 8, 2)), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_ATOMIC_ACK 100 ack msn=1 original=0x28"]);
    let mut swap = request(Opcode::RC_CMP_SWAP, 101);
    swap.headers.atomic =
        Some(AtomicEth { addr: BASE + 8, rkey: RKEY, swap_or_add: 7, compare: 42 });
    t.take(swap);
    assert_eq!(t.responses(), ["RC_ATOMIC_ACK 101 ack msn=2 original=0x2a"]);
    assert_eq!(t.host.memory[8..16], 7u64.to_ne_bytes());
    assert_eq!(t.host.atomics, 2);
}

#[test]
fn misaligned_atomics_are_refused() {
    let write = request(Opcode::RC_ATOMIC_WRITE, 100).reth(12, 8).payload(8);
    for request in [fetch_add(100, 12, 1), write] {
        let mut t = Rig::new();
        t.refused(request, ErrorClass::Misaligned);
        assert_eq!(t.failure().1, Some(AccessCheck::Alignment));
        assert_eq!(t.host.atomics, 0);
    }
}

#[test]
fn an_atomic_write_stores_eight_bytes_and_is_answered_with_an_empty_response() {
    let mut t = Rig::new();
    let write = request(Opcode::RC_ATOMIC_WRITE, 100).reth(16, 8).payload(8);
    t.take(write.clone());
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_ONLY 100 ack msn=1"]);
    assert_eq!(t.host.memory[16..24], write.payload[..]);
    assert_eq!(t.take(write.clone()), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_ONLY 100 ack msn=1"]);
    assert_eq!(t.host.atomics, 1);
    let wrong = request(Opcode::RC_ATOMIC_WRITE, 101).reth(16, 0).payload(8);
    t.refused(wrong, ErrorClass::PacketLength);
}

#[test]
fn a_flush_asks_for_each_placement_and_for_a_whole_region_as_zero_bytes() {
    let mut t = Rig::new();
    t.take(flush(100, 3, Selectivity::RANGE));
    t.take(flush(101, 1, Selectivity::MR));
    let trace = ["RC_READ_RESPONSE_ONLY 100 ack msn=1", "RC_READ_RESPONSE_ONLY 101 ack msn=2"];
    assert_eq!(t.responses(), trace);
    let expected = [
        (BASE + 64, 128, RemoteAccess::FlushGlobal),
        (BASE + 64, 128, RemoteAccess::FlushPersistent),
        (0, 0, RemoteAccess::FlushGlobal),
    ];
    assert_eq!(t.host.flushes, expected);
}

#[test]
fn a_flush_of_an_unknown_kind_is_refused() {
    for (placement, selectivity) in
        [(0, Selectivity::RANGE), (4, Selectivity::RANGE), (1, Selectivity(2))]
    {
        let mut t = Rig::new();
        t.refused(flush(100, placement, selectivity), ErrorClass::UnsupportedOpcode);
    }
}
