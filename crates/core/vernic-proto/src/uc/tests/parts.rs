//! SENDs that travel as parts of messages.

use super::*;
use crate::message::{MessagePart, RendezvousLimits};

/// Bytes of payload that a part may have here: two packets and a little more.
const ROOM: usize = 2 * 256 + 100;

/// A part of one SEND.
fn only(psn: u32, length: u32) -> MessagePart {
    MessagePart {
        psn: Psn::new(psn),
        length,
        mtu: Mtu::B256,
        is_rendezvous: false,
        starts: true,
        ends: true,
        solicited: false,
        tag: Tag::None,
        srqn: None,
    }
}
fn first(psn: u32, length: u32) -> MessagePart {
    MessagePart { ends: false, ..only(psn, length) }
}
fn middle(psn: u32, length: u32) -> MessagePart {
    MessagePart { starts: false, ..first(psn, length) }
}
fn last(psn: u32, length: u32) -> MessagePart {
    MessagePart { starts: false, ..only(psn, length) }
}

fn rig() -> Rig {
    let mut t = Rig::new();
    t.qp.set_messages(true);
    t
}

impl Rig {
    fn poll_part(&mut self) -> Option<MessagePart> {
        let is_next = self.qp.has_message();
        let mut buf = [0; ROOM];
        let sent = self.qp.poll_message(NOW, &mut self.host, &mut buf);
        assert!(is_next || sent.is_none());
        let (part, written) = sent?;
        assert_eq!(written, part.length as usize);
        Some(part)
    }

    fn take_part(&mut self, part: MessagePart) -> Disposition {
        let payload: Vec<u8> = (0..part.length).map(|i| i as u8 ^ 0x5A).collect();
        let payload = if part.is_rendezvous { &[] } else { &payload[..] };
        self.qp.handle_message(NOW, &part, payload, &mut self.host)
    }

    fn received(&self) -> Vec<(u64, u32)> {
        self.host.received.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect()
    }
}

#[test]
fn sends_leave_as_parts_and_complete_with_the_last_one_and_writes_take_packets() {
    let mut t = rig();
    t.qp.set_rendezvous(Some(RendezvousLimits { min_bytes: 1, max_bytes: 4096 }));
    t.post(1, SendOp::SendImm(7), 1000);
    t.post(2, SendOp::Write(remote(0)), 8);
    t.post(3, SendOp::LocalInv(Rkey(5)), 0);
    t.post(4, SendOp::Send, 0);
    assert_eq!(t.qp.next_send_bytes(), 0, "no rendezvous");
    assert_eq!(t.poll(), None, "a part is next");
    assert_eq!(t.poll_part(), Some(first(50, 512)));
    assert!(t.host.sent.is_empty());
    assert_eq!(t.poll_part(), Some(MessagePart { tag: Tag::Imm(7), ..last(52, 488) }));
    assert_eq!((t.host.sent[0].wr_id, t.host.sent[0].status), (1, WcStatus::Success));
    assert_eq!(t.poll_part(), None);
    assert_eq!(names(&t.packets()), ["UC_WRITE_ONLY 54 8B"]);
    assert_eq!(t.host.sent.len(), 3, "the local operation, too");
    assert_eq!(t.poll_part(), Some(only(55, 0)));
    let counters = t.qp.counters();
    assert_eq!((counters.tx_packets, counters.messages_sent), (6, 3));
    assert!(t.qp.has_sent_all() && !t.qp.wants_transmit());
    // A message that began in packets goes on in parts, and the other way round.
    t.qp.set_messages(false);
    t.post(5, SendOp::Send, 1024);
    t.poll();
    t.qp.set_messages(true);
    assert_eq!(t.poll_part(), Some(middle(57, 512)));
    t.qp.set_messages(false);
    assert_eq!(names(&t.packets()), ["UC_SEND_LAST 59 256B"]);
}

#[test]
fn a_part_that_cannot_be_read_stops_the_send_queue_as_a_packet_does() {
    let mut t = rig();
    t.post(1, SendOp::Send, 8);
    t.post(2, SendOp::Send, 8);
    t.poll_part();
    t.host.send_valid = false;
    assert_eq!(t.poll_part(), None);
    assert_eq!(t.qp.state(), QpState::Sqe);
    assert_eq!(t.host.sent[1].status, WcStatus::LocalProtection);
    t.host.send_valid = true;
    t.modify(QpState::Rts);
    t.post(3, SendOp::Send, 8);
    assert_eq!(t.poll_part(), Some(only(51, 8)));
}

#[test]
fn draining_finishes_the_parts_of_a_message_and_starts_none() {
    let mut t = rig();
    t.post(1, SendOp::Send, 600 + 256);
    t.post(2, SendOp::Send, 8);
    t.poll_part();
    t.modify(QpState::Sqd);
    assert_eq!(t.poll_part(), Some(last(52, 344)));
    assert_eq!(t.host.events, [QpEvent::SqDrained]);
    assert!(!t.qp.has_message());
    assert_eq!(t.poll_part(), None);
}

#[test]
fn parts_and_packets_make_one_message() {
    let mut t = Rig::new();
    t.host.post_recv(9, 2000);
    let packets = message(SendOp::Send, 600);
    assert_eq!(t.take_part(first(50, 512)), Disposition::Accepted);
    assert_eq!(t.take(&with_psn(&packets[1], 52)), Disposition::Accepted);
    let end = MessagePart { tag: Tag::Imm(3), solicited: true, ..last(53, 300) };
    assert_eq!(t.take_part(end), Disposition::Accepted);
    let wc = t.host.received[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.tag, wc.solicited), (9, 1068, Tag::Imm(3), true));
    assert_eq!((wc.src_qpn, wc.opcode), (Qpn::new(0x22), WcOpcode::Recv));
    assert_eq!(t.host.recv_buf[768..1068], (0..300).map(|i| i as u8 ^ 0x5A).collect::<Vec<_>>());
    // The last part stood for two packets.
    t.host.post_recv(10, 8);
    assert_eq!(t.take(&with_psn(&message(SendOp::Send, 8)[0], 55)), Disposition::Accepted);
    assert_eq!(t.received(), [(9, 1068), (10, 8)]);
    assert!(!t.qp.wants_transmit());
}

#[test]
fn a_gap_drops_the_message_and_its_receive_serves_the_next() {
    let mut t = Rig::new();
    t.host.post_recv(9, 2000);
    assert_eq!(t.take_part(first(50, 512)), Disposition::Accepted);
    assert_eq!(t.take_part(last(53, 8)), DROPPED);
    assert_eq!(t.take_part(last(54, 8)), DROPPED);
    // A start is taken whatever its number is, also in the midst of a message.
    assert_eq!(t.take_part(first(70, 256)), Disposition::Accepted);
    assert_eq!(t.take_part(only(71, 20)), Disposition::Accepted);
    assert_eq!(t.received(), [(9, 20)]);
}

#[test]
fn parts_without_receive_or_longer_than_it_are_dropped() {
    let mut t = Rig::new();
    assert_eq!(t.take_part(first(50, 256)), Disposition::Drop(DropReason::NoReceive));
    assert_eq!(t.take_part(last(51, 8)), DROPPED);
    t.host.post_recv(9, 300);
    assert_eq!(t.take_part(first(52, 256)), Disposition::Accepted);
    let length = Disposition::Drop(DropReason::Length);
    assert_eq!(t.take_part(last(53, 45)), length);
    assert_eq!(t.take_part(only(54, 301)), length);
    // Lengths and path MTUs that no packets have.
    assert_eq!(t.take_part(first(56, 255)), length);
    assert_eq!(t.take_part(MessagePart { mtu: Mtu::B512, ..only(57, 300) }), length);
    assert_eq!(t.take_part(only(58, 300)), Disposition::Accepted);
    assert_eq!(t.received(), [(9, 300)]);
}

#[test]
fn what_no_sender_of_this_service_writes_is_dropped_and_changes_nothing() {
    let mut t = Rig::new();
    t.host.post_recv(9, 2000);
    assert_eq!(t.take_part(first(50, 256)), Disposition::Accepted);
    let part = last(51, 8);
    for (part, reason) in [
        (MessagePart { is_rendezvous: true, ..part }, DropReason::RendezvousRefused),
        (MessagePart { srqn: Some(vernic_wire::Srqn::new(1)), ..part }, DropReason::WrongService),
        (MessagePart { tag: Tag::Invalidated(RKEY), ..part }, DropReason::Malformed),
    ] {
        assert_eq!(t.take_part(part), Disposition::Drop(reason));
    }
    let cut = t.qp.handle_message(NOW, &part, &[1; 7], &mut t.host);
    assert_eq!(cut, Disposition::Drop(DropReason::Malformed));
    assert_eq!(t.take_part(part), Disposition::Accepted);
    assert_eq!(t.received(), [(9, 264)]);
}

#[test]
fn an_invalid_receive_moves_the_queue_pair_to_error_as_for_a_packet() {
    let mut t = Rig::new();
    t.host.post_recv(9, 300);
    t.host.recv_valid = false;
    t.take_part(only(50, 8));
    assert_eq!(t.qp.state(), QpState::Error);
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
    assert_eq!((t.host.events.len(), t.host.failures.len(), t.host.flushed.len()), (1, 1, 1));
    assert_eq!(t.take_part(only(51, 8)), Disposition::Drop(DropReason::BadState));
}
