//! SEND and WRITE: receives, lengths, keys.

use vernic_wire::LocalRoute;

use super::*;

#[test]
fn a_send_of_three_packets_fills_one_receive() {
    let mut t = Rig::new();
    t.host.post_recv(7, 1000);
    t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
    t.take(request(Opcode::RC_SEND_MIDDLE, 101).payload(MTU));
    assert!(t.host.received.is_empty());
    t.take(request(Opcode::RC_SEND_LAST_IMM, 102).payload(10).imm(0xABCD).solicited());
    let completion = t.host.received[0];
    assert_eq!(
        completion,
        Completion {
            wr_id: 7,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: 522,
            tag: Tag::Imm(0xABCD),
            qpn: Qpn::new(0x11),
            src_qpn: Qpn::new(0x22),
            solicited: true,
            grh: false,
            route: LocalRoute::NONE,
            vendor_err: 0,
        }
    );
    assert_eq!(t.host.recv_buf[512..522], send_only(0, 10).payload[..]);
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=1"]);
}

#[test]
fn an_empty_send_completes_a_receive_without_memory() {
    let mut t = Rig::new();
    t.host.post_recv(1, 0);
    assert_eq!(t.take(send_only(100, 0)), Disposition::Accepted);
    assert_eq!((t.host.received[0].byte_len, t.host.received[0].tag), (0, Tag::None));
}

#[test]
fn a_send_without_receive_gets_one_rnr_nak_and_is_taken_when_it_comes_again() {
    let mut t = Rig::new();
    assert_eq!(t.take(send_only(100, 8)), Disposition::Rnr);
    assert_eq!(t.take(send_only(101, 8)), Disposition::Drop(DropReason::AheadOfNak));
    assert_eq!(t.responses(), ["RC_ACK 100 rnr timer=12 msn=0"]);
    t.host.post_recv(1, 8);
    t.host.post_recv(2, 8);
    assert_eq!(t.take(send_only(101, 8)), Disposition::Drop(DropReason::AheadOfNak));
    assert_eq!(t.take(send_only(100, 8)), Disposition::Accepted);
    assert_eq!(t.take(send_only(101, 8)), Disposition::Accepted);
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=2"]);
    assert_eq!(t.counters.rnr_naks_sent, 1);
}

#[test]
fn an_rnr_nak_that_has_not_left_is_forgotten_when_the_packet_is_taken_after_all() {
    let mut t = Rig::new();
    assert_eq!(t.take(send_only(100, 8)), Disposition::Rnr);
    t.host.post_recv(1, 8);
    assert_eq!(t.take(send_only(100, 8)), Disposition::Accepted);
    assert_eq!(t.responses(), ["RC_ACK 100 ack msn=1"]);
    assert_eq!(t.counters.rnr_naks_sent, 0);
}

#[test]
fn a_send_longer_than_the_receive_fails_at_the_packet_that_overflows() {
    let mut t = Rig::new();
    t.host.post_recv(1, 300);
    t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
    t.refused(request(Opcode::RC_SEND_LAST, 101).payload(45), ErrorClass::MessageLength);
    assert_eq!(t.host.received[0].status, WcStatus::LocalLength);
    assert_eq!(t.responses(), ["RC_ACK 101 nak INVALID_REQUEST msn=0"]);
}

#[test]
fn a_receive_with_an_invalid_scatter_list_is_the_responders_fault() {
    let mut t = Rig::new();
    t.host.post_recv(1, 300);
    t.host.recv_valid = false;
    t.refused(send_only(100, 8), ErrorClass::ReceiveMemory);
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
    assert_eq!(t.responses(), ["RC_ACK 100 nak REMOTE_OPERATIONAL msn=0"]);
}

#[test]
fn a_send_with_invalidate_invalidates_before_it_completes() {
    let mut t = Rig::new();
    t.host.post_recv(1, 300);
    let mut inv = request(Opcode::RC_SEND_ONLY_INV, 100).payload(8);
    inv.headers.ieth = Some(Ieth { rkey: RKEY });
    t.take(inv.clone());
    assert_eq!(t.host.invalidated, [RKEY]);
    assert_eq!(t.host.received[0].tag, Tag::Invalidated(RKEY));

    t.host.post_recv(2, 300);
    t.host.key_valid = false;
    inv.headers.bth.psn = Psn::new(101);
    t.refused(inv, ErrorClass::Invalidate);
    assert_eq!(t.host.received[1].status, WcStatus::LocalAccess);
    assert_eq!(t.responses(), ["RC_ACK 101 nak REMOTE_ACCESS msn=1"]);
}

#[test]
fn packet_lengths_are_those_of_their_positions() {
    let send = |opcode, len| {
        let mut t = Rig::new();
        t.host.post_recv(1, 8192);
        if !Opcode::info(opcode).position.starts() {
            t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
            t.take(request(opcode, 101).payload(len))
        } else {
            t.take(request(opcode, 100).payload(len))
        }
    };
    let wrong = Disposition::Nak(ErrorClass::PacketLength);
    assert_eq!(send(Opcode::RC_SEND_FIRST, MTU - 1), wrong);
    assert_eq!(send(Opcode::RC_SEND_FIRST, MTU + 1), wrong);
    assert_eq!(send(Opcode::RC_SEND_MIDDLE, MTU - 4), wrong);
    assert_eq!(send(Opcode::RC_SEND_LAST, 0), wrong);
    assert_eq!(send(Opcode::RC_SEND_LAST, MTU + 1), wrong);
    assert_eq!(send(Opcode::RC_SEND_ONLY, MTU + 1), wrong);
    for (opcode, len) in [
        (Opcode::RC_SEND_FIRST, MTU),
        (Opcode::RC_SEND_MIDDLE, MTU),
        (Opcode::RC_SEND_LAST, 1),
        (Opcode::RC_SEND_LAST, MTU),
        (Opcode::RC_SEND_ONLY, 0),
        (Opcode::RC_SEND_ONLY, MTU),
    ] {
        assert_eq!(send(opcode, len), Disposition::Accepted, "{opcode} {len}");
    }
}

#[test]
fn a_payload_that_the_opcode_forbids_is_refused_and_nothing_carried_out() {
    let atomic_write = |len| request(Opcode::RC_ATOMIC_WRITE, 100).reth(0, 8).payload(len);
    for wrong in [
        atomic_write(0),
        atomic_write(4),
        atomic_write(12),
        fetch_add(100, 0, 1).payload(8),
        read(100, 0, 16).payload(4),
        flush(100, 1, Selectivity::RANGE).payload(4),
    ] {
        let mut t = Rig::new();
        let before = t.host.memory.clone();
        t.refused(wrong, ErrorClass::PacketLength);
        assert_eq!(t.responses(), ["RC_ACK 100 nak INVALID_REQUEST msn=0"]);
        assert_eq!((t.host.memory == before, t.host.atomics), (true, 0));
        assert!(t.host.flushes.is_empty());
    }
}

#[test]
fn a_write_of_three_packets_lands_at_its_address_and_takes_no_receive() {
    let mut t = Rig::new();
    t.host.post_recv(1, 300);
    t.take(request(Opcode::RC_WRITE_FIRST, 100).reth(1000, 520).payload(MTU));
    t.take(request(Opcode::RC_WRITE_MIDDLE, 101).payload(MTU));
    t.take(request(Opcode::RC_WRITE_LAST, 102).payload(8));
    assert_eq!(t.host.memory[1000..1256], send_only(0, 256).payload[..]);
    assert_eq!(t.host.memory[1512..1520], send_only(0, 8).payload[..]);
    assert_eq!((t.host.recvs.len(), t.host.received.len()), (1, 0));
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=1"]);
}

#[test]
fn a_write_with_immediate_reports_the_length_of_the_whole_message() {
    let mut t = Rig::new();
    t.host.post_recv(9, 0);
    t.take(request(Opcode::RC_WRITE_FIRST, 100).reth(0, 300).payload(MTU));
    assert_eq!(t.host.recvs.len(), 1);
    t.take(request(Opcode::RC_WRITE_LAST_IMM, 101).payload(44).imm(5));
    let completion = t.host.received[0];
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RecvWriteImm, 300));
    assert_eq!((completion.tag, completion.wr_id), (Tag::Imm(5), 9));
}

#[test]
fn a_write_with_immediate_without_receive_stores_nothing_of_its_last_packet() {
    let mut t = Rig::new();
    let before = t.host.memory.clone();
    let write = request(Opcode::RC_WRITE_ONLY_IMM, 100).reth(0, 8).payload(8).imm(5);
    assert_eq!(t.take(write.clone()), Disposition::Rnr);
    assert_eq!(t.host.memory, before);
    t.host.post_recv(1, 0);
    assert_eq!(t.take(write), Disposition::Accepted);
}

#[test]
fn bytes_of_a_write_must_sum_to_what_its_reth_announced() {
    let refuse = |packets: &[Request]| {
        let mut t = Rig::new();
        let (last, before) = packets.split_last().unwrap();
        for packet in before {
            assert_eq!(t.take(packet.clone()), Disposition::Accepted);
        }
        t.refused(last.clone(), ErrorClass::MessageLength);
    };
    let first = |length| request(Opcode::RC_WRITE_FIRST, 100).reth(0, length).payload(MTU);
    let middle = request(Opcode::RC_WRITE_MIDDLE, 101).payload(MTU);
    let last = |len| request(Opcode::RC_WRITE_LAST, 101).payload(len);
    refuse(&[request(Opcode::RC_WRITE_ONLY, 100).reth(0, 9).payload(8)]);
    refuse(&[request(Opcode::RC_WRITE_ONLY, 100).reth(0, 7).payload(8)]);
    refuse(&[first(256)]);
    refuse(&[first(1 << 31 | 1)]);
    refuse(&[first(512), middle]);
    refuse(&[first(300), last(43)]);
    refuse(&[first(300), last(45)]);
}

#[test]
fn a_write_is_checked_whole_at_its_first_packet() {
    let mut t = Rig::new();
    let before = t.host.memory.clone();
    t.refused(
        request(Opcode::RC_WRITE_FIRST, 100).reth(8000, 300).payload(MTU),
        ErrorClass::RemoteAccess,
    );
    assert_eq!(t.host.memory, before);
    assert_eq!(t.failure(), (ErrorClass::RemoteAccess, Some(AccessCheck::Bounds)));
    assert_eq!(t.host.events, [QpEvent::AccessError]);
    assert_eq!(t.responses(), ["RC_ACK 100 nak REMOTE_ACCESS msn=0"]);
}

#[test]
fn a_key_that_becomes_invalid_inside_a_write_stops_it() {
    let mut t = Rig::new();
    t.take(request(Opcode::RC_WRITE_FIRST, 100).reth(0, 300).payload(MTU));
    t.host.key_valid = false;
    t.refused(request(Opcode::RC_WRITE_LAST, 101).payload(44), ErrorClass::RemoteAccess);
    assert_eq!(t.responses(), ["RC_ACK 101 nak REMOTE_ACCESS msn=0"]);
}

#[test]
fn zero_bytes_need_no_key() {
    let mut t = Rig::new();
    assert_eq!(t.take(write_only(100, 0).rkey(0)), Disposition::Accepted);
    assert_eq!(t.take(read(101, 0, 0).rkey(0)), Disposition::Accepted);
    assert_eq!(t.responses(), ["RC_READ_RESPONSE_ONLY 101 ack msn=2"]);
}

#[test]
fn what_the_queue_pair_does_not_grant_is_an_invalid_request_whatever_the_region_says() {
    for (request, right) in [
        (write_only(100, 8), 1 << 1),
        (read(100, 0, 8), 1 << 2),
        (fetch_add(100, 0, 1), 1 << 3),
        (flush(100, 1, Selectivity::RANGE), 1 << 8),
        (flush(100, 3, Selectivity::RANGE), 1 << 9),
    ] {
        let mut t = Rig::new();
        t.attr.access = ALL_RIGHTS & !right;
        t.refused(request.rkey(0), ErrorClass::UnsupportedOpcode);
        let expected = (ErrorClass::UnsupportedOpcode, Some(AccessCheck::QpRights));
        assert_eq!(t.failure(), expected);
        assert_eq!(t.responses(), ["RC_ACK 100 nak INVALID_REQUEST msn=0"]);
    }
}
