//! A UD queue pair behind the verbs' states. Q_Key 0x1111, first PSN 9, port MTU 1024.

use vernic_wire::{Headers, Mtu, PortNum, Qkey, Qpn};

use super::*;
use crate::completion::Tag;
use crate::error::{PostError, WcStatus};
use crate::qp::Qp;
use crate::state::{AttrMask, QpState, QpType};
use crate::test_host::{TestHost, meta};
use crate::time::Time;
use crate::wqe::{SendFlags, SendOp, SendWqe, UdDest};

const NOW: Time = Time(0);
const QKEY: Qkey = Qkey(0x1111);

struct Rig {
    qp: Qp,
    host: TestHost,
}

impl Rig {
    fn new() -> Self {
        let init = QpInit {
            qpn: Qpn::new(0x11),
            qp_type: QpType::Ud,
            max_send_wr: 4,
            max_window: 1,
            shared_rq: false,
        };
        let mut t = Self { qp: Qp::new(init), host: TestHost::new() };
        t.qp.set_port_mtu(Mtu::B1024);
        let attr =
            QpAttr { port: PortNum(1), qkey: QKEY, sq_psn: Psn::new(9), ..QpAttr::default() };
        use AttrMask as M;
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ] {
            t.qp.modify(&QpAttr { state, ..attr }, mask | M::STATE, NOW, &mut t.host).unwrap();
        }
        t
    }

    fn post(&mut self, op: SendOp, length: u32, qkey: Qkey) -> Result<u32, PostError> {
        let dest = Some(UdDest { ah: 5, qpn: Qpn::new(0x33), qkey });
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        self.qp.post_send(SendWqe { wr_id: 1, op, flags, length, dest, srqn: None })
    }

    fn poll(&mut self) -> Option<(Option<u32>, Vec<u8>)> {
        let mut buf = vec![0xEE; Headers::MAX_LEN + 1024];
        let sent = self.qp.poll_request(NOW, &mut self.host, &mut buf)?;
        buf.truncate(sent.len);
        Some((sent.ah, buf))
    }

    fn take(&mut self, bytes: &[u8], grh: Option<[u8; 40]>) -> Disposition {
        let packet = Packet::parse(bytes).unwrap();
        let meta = RxMeta { grh, ..meta() };
        self.qp.handle_packet(NOW, &packet, &meta, &mut self.host)
    }
}

fn datagram(op: SendOp, length: u32, qkey: Qkey) -> Vec<u8> {
    let mut t = Rig::new();
    t.post(op, length, qkey).unwrap();
    t.poll().unwrap().1
}

#[test]
fn a_datagram_goes_to_its_own_destination_and_completes_at_once() {
    let mut t = Rig::new();
    t.post(SendOp::SendImm(6), 10, Qkey(7)).unwrap();
    t.post(SendOp::Send, 1024, Qkey(7)).unwrap();
    let (ah, bytes) = t.poll().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(ah, Some(5));
    assert_eq!((packet.dest_qpn(), packet.psn()), (Qpn::new(0x33), Psn::new(9)));
    let deth = packet.deth().unwrap();
    assert_eq!((deth.qkey, deth.src_qpn), (Qkey(7), Qpn::new(0x11)));
    assert_eq!(packet.payload(), &t.host.send_buf[..10]);
    assert_eq!(t.host.sent.len(), 1);
    let (_, bytes) = t.poll().unwrap();
    assert_eq!(Packet::parse(&bytes).unwrap().psn(), Psn::new(10));
    assert_eq!(t.host.sent[1].status, WcStatus::Success);
}

#[test]
fn a_queue_key_with_the_top_bit_stands_for_the_queue_pairs_own() {
    let bytes = datagram(SendOp::Send, 4, Qkey(0x8000_0007));
    assert_eq!(Packet::parse(&bytes).unwrap().deth().unwrap().qkey, QKEY);
}

#[test]
fn a_datagram_longer_than_the_mtu_cannot_be_posted() {
    let mut t = Rig::new();
    let refused = Err(PostError::Length { length: 1025, limit: 1024 });
    assert_eq!(t.post(SendOp::Send, 1025, QKEY), refused);
}

#[test]
fn a_receive_begins_with_the_forty_bytes_of_the_grh_area() {
    let mut t = Rig::new();
    t.host.post_recv(3, 140);
    let bytes = datagram(SendOp::SendImm(6), 100, QKEY);
    assert_eq!(t.take(&bytes, Some([0xAB; 40])), Disposition::Accepted);
    assert_eq!(t.host.recv_buf[..40], [0xAB; 40]);
    assert_eq!(t.host.recv_buf[40..140], t.host.send_buf[..100]);
    let completion = t.host.received[0];
    assert_eq!((completion.wr_id, completion.byte_len, completion.tag), (3, 140, Tag::Imm(6)));
    assert_eq!((completion.src_qpn, completion.route.service_level), (Qpn::new(0x11), 0xA));
    assert!(completion.grh && completion.solicited);
}

#[test]
fn without_a_header_the_grh_area_is_zeroed() {
    let mut t = Rig::new();
    t.host.recv_buf.fill(0xFF);
    t.host.post_recv(3, 40);
    t.take(&datagram(SendOp::Send, 0, QKEY), None);
    assert_eq!(t.host.recv_buf[..41], [[0; 40].as_slice(), &[0xFF]].concat());
    assert_eq!((t.host.received[0].byte_len, t.host.received[0].grh), (40, false));
}

#[test]
fn each_datagram_takes_a_receive_of_its_own() {
    let mut t = Rig::new();
    t.host.post_recv(3, 140);
    t.host.post_recv(4, 140);
    let bytes = datagram(SendOp::Send, 8, QKEY);
    t.take(&bytes, None);
    t.take(&bytes, None);
    let ids: Vec<_> = t.host.received.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, [3, 4]);
}

#[test]
fn a_wrong_queue_key_takes_no_receive() {
    let mut t = Rig::new();
    t.host.post_recv(3, 140);
    let bytes = datagram(SendOp::Send, 8, Qkey(2));
    assert_eq!(t.take(&bytes, None), Disposition::Drop(DropReason::Qkey));
    assert_eq!(t.host.recvs.len(), 1);
}

#[test]
fn a_datagram_without_receive_is_dropped() {
    let mut t = Rig::new();
    let bytes = datagram(SendOp::Send, 8, QKEY);
    assert_eq!(t.take(&bytes, None), Disposition::Drop(DropReason::NoReceive));
}

#[test]
fn a_datagram_too_long_for_the_receive_is_dropped_and_the_receive_waits_for_the_next() {
    let mut t = Rig::new();
    t.host.post_recv(3, 139);
    let dropped = Disposition::Drop(DropReason::Length);
    assert_eq!(t.take(&datagram(SendOp::Send, 100, QKEY), None), dropped);
    assert_eq!(t.take(&datagram(SendOp::Send, 99, QKEY), None), Disposition::Accepted);
    assert_eq!((t.host.received.len(), t.host.received[0].wr_id), (1, 3));
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn an_invalid_receive_moves_the_queue_pair_to_error() {
    let mut t = Rig::new();
    t.host.post_recv(3, 140);
    t.host.recv_valid = false;
    t.take(&datagram(SendOp::Send, 8, QKEY), None);
    assert_eq!(t.qp.state(), QpState::Error);
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
}

#[test]
fn a_local_error_moves_to_sqe_where_datagrams_still_arrive() {
    let mut t = Rig::new();
    t.post(SendOp::Send, 8, QKEY).unwrap();
    t.host.send_valid = false;
    assert!(t.poll().is_none());
    assert_eq!(t.qp.state(), QpState::Sqe);
    assert_eq!(t.host.sent[0].status, WcStatus::LocalProtection);
    t.host.post_recv(3, 140);
    assert_eq!(t.take(&datagram(SendOp::Send, 8, QKEY), None), Disposition::Accepted);
    t.post(SendOp::Send, 8, QKEY).unwrap();
    assert!(t.poll().is_none());
    assert_eq!(t.host.sent[1].status, WcStatus::Flushed);
}
