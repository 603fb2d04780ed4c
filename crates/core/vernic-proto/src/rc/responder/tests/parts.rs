//! Parts of SENDs that travel without packets.

use super::*;
use crate::host::PullFault;
use crate::message::MessagePart;

/// A part in the middle of a message.
fn middle(psn: u32, length: u32) -> MessagePart {
    MessagePart {
        psn: Psn::new(psn),
        length,
        mtu: Mtu::B256,
        is_rendezvous: false,
        starts: false,
        ends: false,
        solicited: false,
        tag: Tag::None,
        srqn: None,
    }
}
pub(super) fn first(psn: u32, length: u32) -> MessagePart {
    MessagePart { starts: true, ..middle(psn, length) }
}
pub(super) fn last(psn: u32, length: u32) -> MessagePart {
    MessagePart { ends: true, ..middle(psn, length) }
}
pub(super) fn only(psn: u32, length: u32) -> MessagePart {
    MessagePart { starts: true, ends: true, ..middle(psn, length) }
}
fn rendezvous(part: MessagePart) -> MessagePart {
    MessagePart { is_rendezvous: true, ..part }
}

impl Rig {
    pub(super) fn take_part(&mut self, part: MessagePart) -> Disposition {
        let bytes: Vec<u8> = (0..part.length).map(|i| i as u8 ^ 0x5A).collect();
        let payload = if part.is_rendezvous { &[] } else { &bytes[..] };
        let cx = &mut context(self.service, &self.attr, &mut self.counters);
        self.responder.handle_message(cx, &part, payload, &mut self.host)
    }

    pub(super) fn refused_part(&mut self, part: MessagePart, class: ErrorClass) {
        assert_eq!(self.take_part(part), Disposition::Nak(class), "{part:?}");
    }
}

#[test]
fn parts_and_packets_make_one_message_and_each_takes_its_numbers() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    assert_eq!(t.take_part(first(100, 1024)), Disposition::Accepted);
    assert_eq!(t.take(request(Opcode::RC_SEND_MIDDLE, 104).payload(MTU)), Disposition::Accepted);
    assert_eq!(t.take_part(rendezvous(middle(105, 512))), Disposition::Accepted);
    assert!(t.host.received.is_empty());
    let end = MessagePart { tag: Tag::Imm(0xABCD), solicited: true, ..last(107, 1000) };
    assert_eq!(t.take_part(end), Disposition::Accepted);
    let wc = t.host.received[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.tag, wc.solicited), (7, 2792, Tag::Imm(0xABCD), true));
    assert_eq!(t.host.pulled, [(1280, 512)]);
    let expected = |at: usize, len: usize| (0..len).map(|i| (at + i) as u8 ^ 0x5A).collect();
    let placed: [Vec<u8>; 2] = [expected(0, 1024), expected(0, 1000)];
    assert_eq!(t.host.recv_buf[..1024], placed[0]);
    assert_eq!(t.host.recv_buf[1792..2792], placed[1]);
    // The last of the four numbers of the last part.
    assert_eq!(t.responses(), ["RC_ACK 110 ack msn=1"]);
    t.host.post_recv(8, 5000);
    assert_eq!(t.take(send_only(111, 8)), Disposition::Accepted);
}

#[test]
fn many_small_messages_are_answered_by_one_acknowledgement() {
    let mut t = Rig::new();
    for n in 0..20 {
        t.host.post_recv(n, 64);
        assert_eq!(t.take_part(only(100 + n as u32, n as u32 % 3)), Disposition::Accepted);
    }
    assert_eq!(t.host.received.len(), 20);
    assert_eq!(t.host.received[5].byte_len, 2);
    assert!(t.responder.owes_only_ack());
    assert_eq!(t.responses(), ["RC_ACK 119 ack msn=20"]);
}

/// The acknowledgement for a part to carry: the number and the MSN.
fn carried(t: &mut Rig) -> Option<(u32, u32)> {
    let cx = &mut context(t.service, &t.attr, &mut t.counters);
    let ack = t.responder.take_ack(cx, &mut t.host)?;
    assert!(matches!(ack.aeth.syndrome.decode(), AethCode::Ack { .. }));
    Some((ack.psn.value(), ack.aeth.msn))
}

#[test]
fn a_part_carries_the_acknowledgement_that_is_all_there_is_to_answer() {
    let mut t = Rig::new();
    assert_eq!(carried(&mut t), None);
    for n in 0..2 {
        t.host.post_recv(n, 64);
        t.take_part(only(100 + n as u32, 8));
    }
    assert_eq!(carried(&mut t), Some((101, 2)));
    assert_eq!((carried(&mut t), t.responses().len()), (None, 0), "once");
    assert_eq!(t.counters.acks_sent, 1);
    // A READ is answered first, and the acknowledgement follows its answer.
    t.take(read(102, 0, 8));
    t.host.post_recv(2, 64);
    t.take_part(only(103, 8));
    assert_eq!(carried(&mut t), None);
    assert_eq!(t.responses().len(), 2);
    // No refusal is carried.
    t.take_part(only(104, 8));
    assert_eq!(carried(&mut t), None);
    assert_eq!(t.responses(), ["RC_ACK 104 rnr timer=12 msn=4"]);
}

#[test]
fn a_part_may_be_a_whole_message_whose_numbers_wrap() {
    let mut t = Rig::from_psn(0xFF_FFFE);
    t.host.post_recv(7, 4097);
    let part = MessagePart { tag: Tag::Invalidated(RKEY), ..only(0xFF_FFFE, 4097) };
    assert_eq!(t.take_part(rendezvous(part)), Disposition::Accepted);
    assert_eq!(t.host.received[0].tag, Tag::Invalidated(RKEY));
    assert_eq!(t.host.invalidated, [RKEY]);
    assert_eq!(t.responses(), ["RC_ACK 14 ack msn=1"]);
}

#[test]
fn a_part_without_receive_is_asked_for_again_and_taken_in_packets() {
    let mut t = Rig::new();
    assert_eq!(t.take_part(rendezvous(only(100, 700))), Disposition::Rnr);
    assert_eq!(t.responses(), ["RC_ACK 100 rnr timer=12 msn=0"]);
    assert!(t.host.pulled.is_empty());
    t.host.post_recv(1, 700);
    t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
    t.take(request(Opcode::RC_SEND_MIDDLE, 101).payload(MTU));
    t.take(request(Opcode::RC_SEND_LAST, 102).payload(188));
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=1"]);
    assert_eq!(t.host.received[0].byte_len, 700);
}

#[test]
fn a_part_behind_a_gap_is_nakked_and_one_that_was_taken_is_acknowledged_again() {
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    t.refused_part(middle(102, 512), ErrorClass::PsnSequence);
    assert_eq!(t.take_part(first(100, 512)), Disposition::Accepted);
    // The gap is what is missing still: numbers 102 and 103 were dropped.
    assert_eq!(t.responses(), ["RC_ACK 102 nak PSN_SEQUENCE msn=0"]);
    let placed = t.host.recv_buf.clone();
    t.host.recv_buf.fill(0);
    assert_eq!(t.take_part(first(100, 512)), Disposition::Duplicate);
    let again = request(Opcode::RC_SEND_MIDDLE, 101).payload(MTU);
    assert_eq!(t.take(again), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=0"]);
    assert_ne!(t.host.recv_buf, placed, "a duplicate is placed once more");
}

#[test]
fn what_cannot_be_copied_is_asked_for_in_packets_into_the_same_receive() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.pull = Err(PullFault::Unreachable);
    t.refused_part(rendezvous(first(100, 512)), ErrorClass::PsnSequence);
    let ahead = Disposition::Drop(DropReason::AheadOfNak);
    assert_eq!(t.take_part(rendezvous(last(102, 512))), ahead);
    assert_eq!(t.responses(), ["RC_ACK 100 nak PSN_SEQUENCE msn=0"]);
    assert_eq!(t.host.pulled.len(), 1);
    t.take(request(Opcode::RC_SEND_FIRST, 100).payload(MTU));
    t.take(request(Opcode::RC_SEND_LAST, 101).payload(10));
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=1"]);
    assert_eq!((t.host.received[0].wr_id, t.host.received[0].byte_len), (7, 266));
    assert!(t.host.failures.is_empty());
}

#[test]
fn what_was_taken_back_is_as_if_it_had_never_come() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.pull = Err(PullFault::Withdrawn);
    let gone = Disposition::Drop(DropReason::RendezvousWithdrawn);
    assert_eq!(t.take_part(rendezvous(only(100, 512))), gone);
    assert_eq!(t.responses(), [""; 0]);
    assert!(t.host.received.is_empty());
    assert_eq!(t.take(send_only(102, 1)), Disposition::Nak(ErrorClass::PsnSequence));
    assert_eq!(t.responses(), ["RC_ACK 100 nak PSN_SEQUENCE msn=0"]);
}

#[test]
fn a_receive_that_was_taken_for_it_waits_for_a_message_that_takes_one() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.pull = Err(PullFault::Withdrawn);
    t.take_part(rendezvous(only(100, 512)));
    assert_eq!(t.take(write_only(100, 8)), Disposition::Accepted);
    assert!(t.host.received.is_empty());
    assert_eq!(t.take_part(only(101, 1)), Disposition::Accepted);
    assert_eq!((t.host.received[0].wr_id, t.host.received[0].byte_len), (7, 1));
}

#[test]
fn a_receive_with_an_invalid_list_fails_as_with_packets() {
    let stale = (ErrorClass::ReceiveMemory, Some(AccessCheck::KeyStale));
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    let fault = AccessFault { check: AccessCheck::KeyStale, key: 1, addr: 0, len: 0 };
    t.host.pull = Err(PullFault::Local(fault));
    t.refused_part(rendezvous(only(100, 512)), ErrorClass::ReceiveMemory);
    assert_eq!(t.failure(), stale);
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.recv_valid = false;
    t.refused_part(only(100, 512), ErrorClass::ReceiveMemory);
    assert_eq!(t.failure(), stale);
    assert_eq!(t.responses(), ["RC_ACK 100 nak REMOTE_OPERATIONAL msn=0"]);
}

#[test]
fn a_key_that_cannot_be_invalidated_refuses_the_message() {
    let mut t = Rig::new();
    t.host.post_recv(7, 64);
    let part = MessagePart { tag: Tag::Invalidated(Rkey(1)), ..only(100, 8) };
    t.refused_part(part, ErrorClass::Invalidate);
    assert_ne!(t.host.received[0].status, WcStatus::Success);
}

#[test]
fn lengths_that_do_not_fit_are_refused_as_those_of_packets_and_nothing_is_copied() {
    let taken = |part: MessagePart, capacity| {
        let mut t = Rig::new();
        t.host.post_recv(1, capacity);
        let disposition = t.take_part(rendezvous(part));
        assert_eq!(t.host.pulled.is_empty(), disposition != Disposition::Accepted);
        disposition
    };
    let refused = Disposition::Nak;
    assert_eq!(taken(only(100, 700), 700), Disposition::Accepted);
    assert_eq!(taken(only(100, 700), 699), refused(ErrorClass::MessageLength));
    assert_eq!(taken(first(100, 768), 767), refused(ErrorClass::MessageLength));
    assert_eq!(taken(only(100, 0), 0), Disposition::Accepted);
    // Not the last of a message, and not full.
    for length in [700, 1, 0, u32::MAX] {
        let disposition = taken(first(100, length), u64::MAX);
        assert_eq!(disposition, refused(ErrorClass::PacketLength), "{length}");
    }
    let most = crate::MAX_MESSAGE + MTU as u32;
    assert_eq!(taken(first(100, most), u64::MAX), refused(ErrorClass::MessageLength));
    // More or fewer packets than at the path MTU of this end.
    for (length, mtu, fits) in
        [(700, Mtu::B512, false), (700, Mtu::B1024, false), (200, Mtu::B4096, true)]
    {
        let disposition = taken(MessagePart { mtu, ..only(100, length) }, u64::MAX);
        let expected = if fits { Disposition::Accepted } else { refused(ErrorClass::PacketLength) };
        assert_eq!(disposition, expected, "{length} bytes at {mtu:?}");
    }
    // The last of several, and empty.
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    t.take_part(first(100, 256));
    t.refused_part(last(101, 0), ErrorClass::PacketLength);
}

#[test]
fn a_part_in_the_wrong_place_of_a_message_is_refused() {
    let wrong = |before: &[MessagePart], part: MessagePart| {
        let mut t = Rig::new();
        t.host.post_recv(1, 5000);
        before.iter().for_each(|&part| assert_eq!(t.take_part(part), Disposition::Accepted));
        t.refused_part(part, ErrorClass::OpcodeSequence);
    };
    wrong(&[], last(100, 8));
    wrong(&[], middle(100, 256));
    wrong(&[first(100, 512)], first(102, 512));
    wrong(&[first(100, 512)], only(102, 512));
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    let write = request(Opcode::RC_WRITE_FIRST, 100).reth(0, 300).payload(MTU);
    assert_eq!(t.take(write), Disposition::Accepted);
    t.refused_part(only(101, 8), ErrorClass::OpcodeSequence);
}
