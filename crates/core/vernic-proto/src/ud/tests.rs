//! A UD queue pair behind the verbs' states. Q_Key 0x1111, first PSN 9, port MTU 1024.

use vernic_wire::{Headers, Mtu, PortNum, Qkey, Qpn};

use super::*;
use crate::completion::Tag;
use crate::error::{PostError, WcStatus};
use crate::qp::Qp;
use crate::rate::RateLimit;
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
        self.post_at(0, op, length, qkey)
    }

    /// Posts a datagram with a static rate in Mb/s.
    fn post_at(
        &mut self,
        rate_mbps: u32,
        op: SendOp,
        length: u32,
        qkey: Qkey,
    ) -> Result<u32, PostError> {
        let dest = Some(UdDest { ah: 5, qpn: Qpn::new(0x33), qkey, rate_mbps });
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

impl Rig {
    /// Datagrams of 1,000 bytes of payload that leave now at a static rate in Mb/s, of 300.
    fn leave_at(&mut self, mbps: u32) -> usize {
        (0..300)
            .take_while(|_| {
                self.post_at(mbps, SendOp::Send, 1000, QKEY).is_ok() && self.poll().is_some()
            })
            .count()
    }
}

#[test]
fn each_datagram_pays_at_the_static_rate_of_its_own_destination() {
    let mut t = Rig::new();
    assert_eq!(t.leave_at(0), 300);
    assert_eq!(t.qp.next_deadline(), None);
    t.qp.handle_timeout(Time(10_000_000_000), &mut t.host);
    // 2.5 Gb/s: 1,020 bytes take 3.264 us, so 100 us are full with the 31st; 2 ms are made up for
    // at the beginning of time, which is not yet.
    let slow = t.leave_at(2_500);
    assert_eq!(slow, 31);
    let at = t.qp.next_deadline().unwrap();
    assert_eq!(at, Time(31 * 3_264));
    assert!(!t.qp.wants_requests());
    t.qp.handle_timeout(at, &mut t.host);
    assert!(t.qp.wants_requests() && t.qp.next_deadline().is_none());
}

#[test]
fn a_datagram_through_memory_has_no_static_rate() {
    let mut t = Rig::new();
    t.qp.set_messages(true);
    assert_eq!(t.leave_at(2_500), 300);
    t.qp.set_messages(false);
    assert_eq!(t.leave_at(2_500), 31);
}

#[test]
fn the_limit_of_a_queue_pair_holds_for_datagrams_whichever_way_they_go() {
    for is_near in [false, true] {
        let mut t = Rig::new();
        let attr = QpAttr { rate_limit: RateLimit::kbps(10_000), ..*t.qp.attr() };
        t.qp.modify(&attr, AttrMask::RATE_LIMIT, NOW, &mut t.host).unwrap();
        t.qp.set_messages(is_near);
        let mut now = NOW;
        let mut bytes = 0;
        for _ in 0..1000 {
            let _ = t.post(SendOp::Send, 1000, QKEY);
            let mut buf = vec![0; Headers::MAX_LEN + 1024];
            if let Some(sent) = t.qp.poll_request(now, &mut t.host, &mut buf) {
                bytes += sent.len as u64;
            }
            now = t.qp.next_deadline().unwrap_or(now);
            t.qp.handle_timeout(now, &mut t.host);
        }
        let expected = now.nanos() / 800;
        assert!(bytes.abs_diff(expected) * 50 <= expected, "{bytes} bytes in {now:?}");
    }
}

#[test]
fn notifications_leave_datagrams_alone() {
    let mut t = Rig::new();
    let bth = vernic_wire::Bth::new(vernic_wire::Opcode::CNP, Qpn::new(0x11), Psn::new(0));
    let mut buf = [0; 64];
    let len = Headers::new(bth).emit(&mut buf);
    t.take(&buf[..len + 16], None);
    assert_eq!((t.qp.counters().cnps_received, t.qp.next_deadline()), (1, None));
    assert_eq!(t.leave_at(0), 300);
}
