//! The responder behind the states of its queue pair.

use vernic_wire::{PortNum, Srqn, Xrceth};

use super::*;
use crate::cx::QpInit;
use crate::error::PostError;
use crate::qp::Qp;
use crate::state::{AttrMask, QpType};
use crate::test_host::meta;
use crate::test_host::{FOREIGN_SRQN, SRQN};
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};

/// A queue pair in RTR that expects PSN 100.
fn ready_to_receive(host: &mut TestHost) -> Qp {
    let init = QpInit {
        qpn: Qpn::new(0x11),
        qp_type: QpType::Rc,
        max_send_wr: 4,
        max_window: 64,
        shared_rq: false,
    };
    let mut qp = Qp::new(init);
    let mut attr = QpAttr { port: PortNum(1), ..Rig::new().attr };
    attr.av.port = PortNum(1);
    use AttrMask as M;
    let to_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let to_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    for (state, mask) in [(QpState::Init, to_init), (QpState::Rtr, to_rtr)] {
        qp.modify(&QpAttr { state, ..attr }, mask | M::STATE, Time(0), host).unwrap();
    }
    qp
}

fn take(qp: &mut Qp, host: &mut TestHost, request: Request) -> Disposition {
    let bytes = packet_bytes(request.headers, &request.payload);
    qp.handle_packet(Time(0), &Packet::parse(&bytes).unwrap(), &meta(), host)
}

fn responses(qp: &mut Qp, host: &mut TestHost) -> Vec<String> {
    let mut buf = vec![0; Headers::MAX_LEN + MTU];
    let next = || qp.poll_response(Time(0), host, &mut buf).map(|sent| line(&buf[..sent.len]));
    core::iter::from_fn(next).collect()
}

#[test]
fn a_refusal_moves_to_error_flushes_and_still_leaves_behind_what_is_due() {
    let host = &mut TestHost::new();
    let mut qp = ready_to_receive(host);
    host.post_recv(1, 1000);
    take(&mut qp, host, read(100, 0, 8));
    take(&mut qp, host, request(Opcode::RC_SEND_FIRST, 101).payload(MTU));
    take(&mut qp, host, request(Opcode::RC_SEND_MIDDLE, 102).payload(1));
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(host.received[0].status, WcStatus::LocalLength);
    assert_eq!(host.flushed, [None]);
    assert_eq!(host.events, [QpEvent::CommEstablished, QpEvent::RequestError]);
    assert!(qp.wants_transmit());
    let trace = ["RC_READ_RESPONSE_ONLY 100 ack msn=1 8B", "RC_ACK 102 nak INVALID_REQUEST msn=1"];
    assert_eq!(responses(&mut qp, host), trace);
    assert!(!qp.wants_transmit());
    let late = take(&mut qp, host, write_only(102, 8));
    assert_eq!(late, Disposition::Drop(DropReason::BadState));
}

#[test]
fn a_read_that_fails_while_it_is_answered_moves_to_error_and_flushes_the_receive_in_progress() {
    let host = &mut TestHost::new();
    let mut qp = ready_to_receive(host);
    host.post_recv(1, 1000);
    take(&mut qp, host, read(100, 0, 8));
    take(&mut qp, host, request(Opcode::RC_SEND_FIRST, 101).payload(MTU));
    host.key_valid = false;
    assert_eq!(responses(&mut qp, host), ["RC_ACK 100 nak REMOTE_ACCESS msn=1"]);
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(host.flushed.len(), 1);
    assert_eq!(host.flushed[0].map(|recv| recv.wr_id), Some(1));
    assert_eq!(host.failures.len(), 1);
}

#[test]
fn a_read_due_before_a_refusal_that_fails_too_tells_no_second_failure() {
    let host = &mut TestHost::new();
    let mut qp = ready_to_receive(host);
    take(&mut qp, host, read(100, 0, 8));
    take(&mut qp, host, request(Opcode::RC_SEND_MIDDLE, 101).payload(MTU));
    host.key_valid = false;
    assert_eq!(responses(&mut qp, host), ["RC_ACK 100 nak REMOTE_ACCESS msn=1"]);
    assert_eq!((host.failures.len(), host.flushed.len()), (1, 1));
}

#[test]
fn the_application_entering_error_keeps_acknowledgements_and_gives_up_reads() {
    for (request, left) in [(write_only(100, 8), 1), (read(100, 0, 8), 0)] {
        let host = &mut TestHost::new();
        let mut qp = ready_to_receive(host);
        take(&mut qp, host, request);
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE, Time(0), host).unwrap();
        assert_eq!(responses(&mut qp, host).len(), left);
        assert!(host.failures.is_empty());
    }
}

#[test]
fn a_queue_pair_that_was_reset_remembers_nothing() {
    let host = &mut TestHost::new();
    let mut qp = ready_to_receive(host);
    host.post_recv(1, 1000);
    take(&mut qp, host, read(100, 0, 8));
    take(&mut qp, host, request(Opcode::RC_SEND_FIRST, 101).payload(MTU));
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, Time(0), host).unwrap();
    assert!(!qp.wants_transmit());
    assert_eq!(responses(&mut qp, host), [""; 0]);
    assert!(host.flushed.is_empty() && host.received.is_empty());
}

/// An XRC queue pair in RTS that expects and sends from PSN 100.
fn xrc(qp_type: QpType, host: &mut TestHost) -> Qp {
    let init = QpInit {
        qpn: Qpn::new(0x11),
        qp_type,
        max_send_wr: 4,
        max_window: 64,
        shared_rq: qp_type == QpType::XrcTgt,
    };
    let mut qp = Qp::new(init);
    let mut attr =
        QpAttr { port: PortNum(1), sq_psn: Psn::new(100), max_rd_atomic: 2, ..Rig::new().attr };
    attr.av.port = PortNum(1);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mask = crate::transition::required(qp_type, qp.state(), state).unwrap();
        qp.modify(&QpAttr { state, ..attr }, mask | AttrMask::STATE, Time(0), host).unwrap();
    }
    qp
}

fn xrc_send(srqn: Option<Srqn>) -> SendWqe {
    let (flags, op) = (SendFlags::SIGNALED, SendOp::Send);
    SendWqe { wr_id: 1, op, flags, length: 300, dest: None, srqn }
}

#[test]
fn an_xrc_initiator_names_the_queue_in_every_packet_and_takes_no_request() {
    let host = &mut TestHost::new();
    let mut qp = xrc(QpType::XrcIni, host);
    assert_eq!(qp.post_send(xrc_send(None)), Err(PostError::NoSrqn));
    qp.post_send(xrc_send(Some(SRQN))).unwrap();
    let remote = Remote { addr: BASE, rkey: RKEY };
    qp.post_send(SendWqe { op: SendOp::Read(remote), length: 8, ..xrc_send(Some(FOREIGN_SRQN)) })
        .unwrap();
    let mut buf = vec![0; Headers::MAX_LEN + MTU];
    let mut sent = Vec::new();
    while let Some(packet) = qp.poll_request(Time(0), host, &mut buf) {
        let packet = Packet::parse(&buf[..packet.len]).unwrap();
        sent.push((packet.opcode(), packet.xrceth().unwrap()));
    }
    assert_eq!(
        sent,
        [
            (Opcode::XRC_SEND_FIRST, Xrceth::new(SRQN)),
            (Opcode::XRC_SEND_LAST, Xrceth::new(SRQN)),
            (Opcode::XRC_READ_REQUEST, Xrceth::new(FOREIGN_SRQN)),
        ]
    );
    let mut request = request(Opcode::XRC_SEND_ONLY, 100).payload(8);
    request.headers.xrceth = Some(Xrceth::new(SRQN));
    let refused = Disposition::Drop(DropReason::WrongService);
    assert_eq!(take(&mut qp, host, request), refused);
    let mut ack = self::request(Opcode::XRC_ACK, 101);
    ack.headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    assert_eq!(take(&mut qp, host, ack), Disposition::Accepted);
    assert_eq!(host.sent.len(), 1);
    let mut rc = self::request(Opcode::RC_ACK, 102);
    rc.headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 2 });
    assert_eq!(take(&mut qp, host, rc), refused, "RC is another service");
}

#[test]
fn an_xrc_target_sends_nothing_takes_no_response_and_says_when_it_is_done_with_its_queues() {
    let host = &mut TestHost::new();
    let mut qp = xrc(QpType::XrcTgt, host);
    assert_eq!(qp.post_send(xrc_send(Some(SRQN))), Err(PostError::NoSendQueue));
    let mut ack = request(Opcode::XRC_ACK, 100);
    ack.headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    assert_eq!(take(&mut qp, host, ack), Disposition::Drop(DropReason::WrongService));
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, Time(0), host).unwrap();
    assert_eq!(host.events, [QpEvent::LastWqeReached]);
}
