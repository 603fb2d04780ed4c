//! The responder behind the states of its queue pair.

use vernic_wire::PortNum;

use super::*;
use crate::qp::{Qp, QpInit};
use crate::state::AttrMask;

/// A queue pair in RTR that expects PSN 100.
fn ready_to_receive(host: &mut TestHost) -> Qp {
    let init = QpInit {
        qpn: Qpn::new(0x11),
        service: Service::Rc,
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
