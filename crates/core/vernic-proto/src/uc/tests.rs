//! A UC queue pair behind the verbs' states: what it sends, and what it makes of broken messages.
//! Path MTU 256, first PSN 50 in both directions.

mod migration;
mod pace;
mod parts;

use vernic_wire::{Headers, Mtu, Opcode, PortNum, Qpn};

use super::*;
use crate::completion::{Tag, WcOpcode};
use crate::error::WcStatus;
use crate::qp::Qp;
use crate::state::{AttrMask, QpType};
use crate::test_host::{BASE, RKEY, TestHost, meta};
use crate::wqe::{MwBind, Remote, SendFlags, SendOp, SendWqe};
use vernic_wire::{Lkey, Rkey};

const REMOTE_WRITE: u32 = 1 << 1;
const NOW: Time = Time(0);

struct Rig {
    qp: Qp,
    host: TestHost,
}

impl Rig {
    const INIT: QpInit = QpInit {
        qpn: Qpn::new(0x11),
        qp_type: QpType::Uc,
        max_send_wr: 8,
        max_window: 1024,
        shared_rq: false,
    };

    /// A queue pair in RTS that sends to itself, so to speak: both PSNs are 50.
    fn new() -> Self {
        let mut t = Self { qp: Qp::new(Self::INIT), host: TestHost::new() };
        t.bring_up();
        t
    }

    fn bring_up(&mut self) {
        let mut attr = QpAttr {
            port: PortNum(1),
            access: REMOTE_WRITE,
            path_mtu: Mtu::B256,
            dest_qpn: Qpn::new(0x22),
            rq_psn: Psn::new(50),
            sq_psn: Psn::new(50),
            ..QpAttr::default()
        };
        attr.av.port = PortNum(1);
        use AttrMask as M;
        let to_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let to_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        for (state, mask) in
            [(QpState::Init, to_init), (QpState::Rtr, to_rtr), (QpState::Rts, M::SQ_PSN)]
        {
            let attr = QpAttr { state, ..attr };
            self.qp.modify(&attr, mask | M::STATE, NOW, &mut self.host).unwrap();
        }
    }

    fn modify(&mut self, state: QpState) {
        let attr = QpAttr { state, sqd_async_notify: true, ..QpAttr::default() };
        let mask = match state {
            QpState::Sqd => AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
            _ => AttrMask::STATE,
        };
        self.qp.modify(&attr, mask, NOW, &mut self.host).unwrap();
    }

    fn post(&mut self, wr_id: u64, op: SendOp, length: u32) {
        let flags = SendFlags::SIGNALED;
        self.qp.post_send(SendWqe { wr_id, op, flags, length, dest: None, srqn: None }).unwrap();
    }

    fn poll(&mut self) -> Option<Vec<u8>> {
        let mut buf = vec![0xEE; Headers::MAX_LEN + 256];
        let wanted = self.qp.wants_transmit();
        let sent = self.qp.poll_request(NOW, &mut self.host, &mut buf);
        assert!(wanted || sent.is_none());
        buf.truncate(sent?.len);
        Some(buf)
    }

    fn packets(&mut self) -> Vec<Vec<u8>> {
        core::iter::from_fn(|| self.poll()).collect()
    }

    fn take(&mut self, bytes: &[u8]) -> Disposition {
        self.take_at(NOW, bytes)
    }

    fn take_at(&mut self, now: Time, bytes: &[u8]) -> Disposition {
        let packet = Packet::parse(bytes).unwrap();
        self.qp.handle_packet(now, &packet, &meta(), &mut self.host)
    }
}

/// The packets of one message of a fresh sender.
fn message(op: SendOp, length: u32) -> Vec<Vec<u8>> {
    let mut t = Rig::new();
    t.post(1, op, length);
    t.packets()
}

fn with_psn(packet: &[u8], psn: u32) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    packet
}

fn remote(offset: u64) -> Remote {
    Remote { addr: BASE + offset, rkey: RKEY }
}

fn names(packets: &[Vec<u8>]) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).unwrap();
        format!("{} {} {}B", packet.opcode(), packet.psn(), packet.payload().len())
    };
    packets.iter().map(line).collect()
}

const DROPPED: Disposition = Disposition::Drop(DropReason::MessageBroken);

#[test]
fn a_message_is_cut_by_the_mtu_and_completes_with_its_last_packet() {
    let mut t = Rig::new();
    t.post(1, SendOp::SendImm(7), 600);
    t.post(2, SendOp::Write(remote(0)), 0);
    t.poll();
    t.poll();
    assert!(t.host.sent.is_empty());
    t.poll();
    assert_eq!((t.host.sent[0].wr_id, t.host.sent[0].status), (1, WcStatus::Success));
    assert_eq!(names(&t.packets()), ["UC_WRITE_ONLY 53 0B"]);
    assert_eq!(t.host.sent[1].opcode, WcOpcode::Write);
    assert_eq!(t.qp.send_room(), 8);
    assert_eq!(
        names(&message(SendOp::SendImm(7), 600)),
        ["UC_SEND_FIRST 50 256B", "UC_SEND_MIDDLE 51 256B", "UC_SEND_LAST_IMM 52 88B"]
    );
}

#[test]
fn a_whole_message_fills_a_receive() {
    let mut t = Rig::new();
    t.host.post_recv(9, 600);
    for packet in message(SendOp::SendImm(7), 600) {
        assert_eq!(t.take(&packet), Disposition::Accepted);
    }
    let completion = t.host.received[0];
    assert_eq!((completion.wr_id, completion.byte_len, completion.tag), (9, 600, Tag::Imm(7)));
    assert_eq!(completion.src_qpn, Qpn::new(0x22));
    assert_eq!(t.host.recv_buf[..600], t.host.send_buf[..600]);
    assert!(!t.qp.wants_transmit());
}

#[test]
fn a_whole_write_lands_and_reports_its_length_with_immediate() {
    let mut t = Rig::new();
    t.host.post_recv(9, 0);
    for packet in message(SendOp::WriteImm(remote(16), 3), 300) {
        t.take(&packet);
    }
    assert_eq!(t.host.memory[16..316], t.host.send_buf[..300]);
    let completion = t.host.received[0];
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RecvWriteImm, 300));
}

#[test]
fn a_message_with_a_lost_packet_is_dropped_and_its_receive_serves_the_next() {
    let mut t = Rig::new();
    t.host.post_recv(9, 600);
    let packets = message(SendOp::Send, 600);
    assert_eq!(t.take(&packets[0]), Disposition::Accepted);
    assert_eq!(t.take(&packets[2]), DROPPED);
    assert!(t.host.received.is_empty());
    let next = with_psn(&message(SendOp::Send, 20)[0], 53);
    assert_eq!(t.take(&next), Disposition::Accepted);
    assert_eq!((t.host.received[0].wr_id, t.host.received[0].byte_len), (9, 20));
}

#[test]
fn the_rest_of_a_message_that_lost_its_first_packet_is_dropped() {
    let mut t = Rig::new();
    t.host.post_recv(9, 600);
    let packets = message(SendOp::Send, 600);
    assert_eq!(t.take(&packets[1]), DROPPED);
    assert_eq!(t.take(&packets[2]), DROPPED);
    assert_eq!(t.host.recvs.len(), 1);
}

#[test]
fn a_lost_last_packet_is_noticed_at_the_next_first_one() {
    let mut t = Rig::new();
    t.host.post_recv(9, 600);
    let packets = message(SendOp::Send, 600);
    t.take(&packets[0]);
    t.take(&packets[1]);
    for (packet, psn) in packets.iter().zip(53..) {
        assert_eq!(t.take(&with_psn(packet, psn)), Disposition::Accepted);
    }
    assert_eq!((t.host.received.len(), t.host.received[0].byte_len), (1, 600));
}

#[test]
fn a_receive_kept_from_a_broken_message_is_not_taken_by_a_plain_write() {
    let mut t = Rig::new();
    t.host.post_recv(9, 600);
    t.take(&message(SendOp::Send, 600)[0]);
    let write = with_psn(&message(SendOp::Write(remote(0)), 8)[0], 51);
    assert_eq!(t.take(&write), Disposition::Accepted);
    assert!(t.host.received.is_empty());
    t.modify(QpState::Error);
    assert_eq!(t.host.flushed[0].map(|recv| recv.wr_id), Some(9));
}

#[test]
fn a_message_longer_than_the_receive_is_dropped_and_the_receive_kept() {
    let mut t = Rig::new();
    t.host.post_recv(9, 300);
    let packets = message(SendOp::Send, 600);
    t.take(&packets[0]);
    assert_eq!(t.take(&packets[1]), Disposition::Drop(DropReason::Length));
    assert_eq!(t.take(&packets[2]), DROPPED);
    assert_eq!(t.take(&with_psn(&message(SendOp::Send, 8)[0], 53)), Disposition::Accepted);
    assert_eq!(t.host.received[0].byte_len, 8);
}

#[test]
fn a_message_without_receive_is_dropped() {
    let mut t = Rig::new();
    let packets = message(SendOp::Send, 600);
    assert_eq!(t.take(&packets[0]), Disposition::Drop(DropReason::NoReceive));
    assert_eq!(t.take(&packets[1]), DROPPED);
    let write = with_psn(&message(SendOp::WriteImm(remote(0), 1), 8)[0], 52);
    assert_eq!(t.take(&write), Disposition::Drop(DropReason::NoReceive));
    assert!(!t.qp.wants_transmit());
}

#[test]
fn a_write_that_memory_or_queue_pair_refuse_is_dropped() {
    let refused = Disposition::Drop(DropReason::AccessRefused);
    let mut t = Rig::new();
    assert_eq!(t.take(&message(SendOp::Write(remote(8000)), 300)[0]), refused);
    let mut t = Rig::new();
    let attr = QpAttr { access: 0, ..QpAttr::default() };
    t.qp.modify(&attr, AttrMask::ACCESS_FLAGS, NOW, &mut t.host).unwrap();
    assert_eq!(t.take(&message(SendOp::Write(remote(0)), 8)[0]), refused);
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn an_invalid_receive_moves_the_queue_pair_to_error() {
    let mut t = Rig::new();
    t.host.post_recv(9, 300);
    t.host.recv_valid = false;
    t.take(&message(SendOp::Send, 8)[0]);
    assert_eq!(t.qp.state(), QpState::Error);
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
    assert_eq!((t.host.events.len(), t.host.failures.len(), t.host.flushed.len()), (1, 1, 1));
}

#[test]
fn a_local_error_moves_to_sqe_flushes_and_can_be_recovered_from() {
    let mut t = Rig::new();
    t.post(1, SendOp::Send, 8);
    t.post(2, SendOp::Send, 300);
    t.post(3, SendOp::Send, 8);
    t.poll();
    t.poll();
    t.host.send_valid = false;
    assert_eq!(t.poll(), None);
    assert_eq!(t.qp.state(), QpState::Sqe);
    let outcome: Vec<_> = t.host.sent.iter().map(|c| (c.wr_id, c.status)).collect();
    use WcStatus::{Flushed, LocalProtection, Success};
    assert_eq!(outcome, [(1, Success), (2, LocalProtection), (3, Flushed)]);
    let failure = t.host.failures[0];
    assert_eq!((failure.wr_id, failure.psn), (Some(2), Psn::new(52)));
    assert!(matches!(failure.cause, Cause::LocalMemory(f) if f.check == AccessCheck::KeyStale));
    t.host.send_valid = true;
    t.modify(QpState::Rts);
    t.post(4, SendOp::Send, 8);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 52 8B"]);
}

#[test]
fn draining_finishes_the_message_that_was_begun_and_holds_the_next() {
    let mut t = Rig::new();
    t.post(1, SendOp::Send, 300);
    t.post(2, SendOp::Send, 8);
    t.poll();
    t.modify(QpState::Sqd);
    assert!(t.host.events.is_empty() && t.qp.is_draining());
    assert_eq!(names(&t.packets()), ["UC_SEND_LAST 51 44B"]);
    assert_eq!(t.host.events, [QpEvent::SqDrained]);
    t.modify(QpState::Rts);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 52 8B"]);
}

#[test]
fn an_error_while_draining_leaves_nothing_held_after_recovery() {
    let mut t = Rig::new();
    t.post(1, SendOp::Send, 300);
    t.poll();
    t.modify(QpState::Sqd);
    t.host.send_valid = false;
    assert_eq!(t.poll(), None);
    assert_eq!(t.qp.state(), QpState::Sqe);
    t.host.send_valid = true;
    t.modify(QpState::Rts);
    t.post(2, SendOp::Send, 8);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 51 8B"]);
}

#[test]
fn after_a_reset_completions_name_the_requests_posted_since() {
    let mut t = Rig::new();
    t.post(1, SendOp::Send, 8);
    t.packets();
    t.modify(QpState::Reset);
    t.bring_up();
    t.post(2, SendOp::Send, 16);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 50 16B"]);
    let ids: Vec<_> = t.host.sent.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn local_operations_are_carried_out_in_their_turn() {
    let mut t = Rig::new();
    let (mw, new_rkey, mr) = (Rkey(1), Rkey(2), Lkey(3));
    let bind = MwBind { mw, new_rkey, mr, addr: 0, length: 8, access: 0 };
    t.post(1, SendOp::BindMw(bind), 0);
    t.post(2, SendOp::Send, 8);
    t.post(3, SendOp::LocalInv(Rkey(2)), 0);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 50 8B"]);
    let done: Vec<_> = t.host.sent.iter().map(|c| (c.wr_id, c.opcode)).collect();
    assert_eq!(done, [(1, WcOpcode::BindMw), (2, WcOpcode::Send), (3, WcOpcode::LocalInv)]);
}

#[test]
fn operations_that_need_an_answer_do_not_exist() {
    let mut t = Rig::new();
    for op in [SendOp::Read(remote(0)), SendOp::SendInv(RKEY), SendOp::AtomicWrite(remote(0))] {
        let wqe =
            SendWqe { wr_id: 1, op, flags: SendFlags::empty(), length: 8, dest: None, srqn: None };
        assert!(t.qp.post_send(wqe).is_err());
    }
    assert_eq!(Opcode::UC_SEND_ONLY.info().service, Service::Uc);
}

#[test]
fn a_write_can_be_carried_out_directly_between_messages() {
    let mut t = Rig::new();
    t.post(1, SendOp::Send, 1);
    t.post(2, SendOp::Write(remote(0)), 300);
    t.post(3, SendOp::Send, 1);
    assert_eq!(t.qp.next_direct(), None);
    t.poll().unwrap();
    t.qp.direct_progress(1);
    assert!(t.qp.wants_requests() && t.poll().is_none());
    t.modify(QpState::Sqd);
    assert!(t.qp.is_draining());
    t.qp.finish_direct(NOW, &mut t.host);
    assert_eq!(t.host.events, [QpEvent::SqDrained]);
    assert_eq!(t.qp.next_direct(), None);
    t.modify(QpState::Rts);
    assert_eq!(names(&t.packets()), ["UC_SEND_ONLY 51 1B"]);
    let done: Vec<_> = t.host.sent.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [1, 2, 3].map(|id| (id, WcStatus::Success)));
}

#[test]
fn a_write_that_is_refused_takes_packets_though_the_queue_drains() {
    let mut t = Rig::new();
    t.post(1, SendOp::Write(remote(0)), 300);
    t.post(2, SendOp::Send, 1);
    t.qp.direct_progress(256);
    t.modify(QpState::Sqd);
    t.qp.refuse_direct();
    assert_eq!(names(&t.packets()), ["UC_WRITE_FIRST 50 256B", "UC_WRITE_LAST 51 44B"]);
    assert_eq!(t.host.events, [QpEvent::SqDrained]);
}

#[test]
fn flushing_forgets_a_begun_write() {
    let mut t = Rig::new();
    t.post(1, SendOp::Write(remote(0)), 300);
    t.qp.direct_progress(256);
    t.modify(QpState::Error);
    assert_eq!(t.host.sent[0].status, WcStatus::Flushed);
    assert!(t.qp.next_direct().is_none() && !t.qp.wants_requests());
}

#[test]
fn keys_that_are_tried_one_after_another_end_the_connection() {
    let mut t = Rig::new();
    t.host.post_recv(1, 100);
    let second = 1_000_000_000;
    let guess = |n: u32| {
        let remote = Remote { rkey: Rkey(n), ..remote(0) };
        message(SendOp::Write(remote), 8).swap_remove(0)
    };
    let refused = Disposition::Drop(DropReason::AccessRefused);
    // As many as are forgiven, then a second of rest, and as many again; what is refused for its
    // range or its rights is no guess.
    for round in 0..2 {
        for n in 0..u64::from(FORGIVEN_KEYS) {
            assert_eq!(t.take_at(Time(round * second + n), &guess(n as u32)), refused);
            let beyond = Remote { addr: BASE + (1 << 20), rkey: RKEY };
            let beyond = message(SendOp::Write(beyond), 8).swap_remove(0);
            assert_eq!(t.take_at(Time(round * second + n), &beyond), refused);
        }
        assert_eq!(t.qp.state(), QpState::Rts);
    }
    let last = t.take_at(Time(2 * second - 1), &guess(99));
    assert_eq!(last, Disposition::Nak(ErrorClass::RemoteAccess));
    assert_eq!(t.qp.state(), QpState::Error);
    assert_eq!(t.host.events, [QpEvent::AccessError]);
    assert_eq!(t.host.failures[0].cause.vendor_err() >> 16, 8);
    assert_eq!(t.host.flushed.len(), 1);
}
