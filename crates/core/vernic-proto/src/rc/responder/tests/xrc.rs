//! XRC targets: each request names its shared receive queue (IBTA A14).

use super::parts::{first, last, only};
use super::*;
use crate::error::ErrorClass;
use crate::message::MessagePart;
use crate::test_host::{FOREIGN_SRQN, SRQN};
use vernic_wire::{Srqn, Xrceth};

fn rig() -> Rig {
    Rig { service: Service::Xrc, ..Rig::new() }
}

fn naming(srqn: Srqn, opcode: Opcode, psn: u32) -> Request {
    let mut request = request(opcode, psn);
    request.headers.xrceth = Some(Xrceth::new(srqn));
    request
}

#[test]
fn every_request_is_for_the_queue_that_it_names_and_is_answered_with_xrc_opcodes() {
    let mut t = rig();
    t.host.post_recv(1, 1000);
    t.host.post_recv(2, 1000);
    t.take(naming(SRQN, Opcode::XRC_SEND_FIRST, 100).payload(MTU));
    t.take(naming(SRQN, Opcode::XRC_SEND_LAST_IMM, 101).payload(9).imm(7));
    t.take(naming(SRQN, Opcode::XRC_WRITE_ONLY_IMM, 102).reth(0, 20).payload(20).imm(8));
    t.take(naming(SRQN, Opcode::XRC_READ_REQUEST, 103).reth(0, 300));
    let mut add = naming(SRQN, Opcode::XRC_FETCH_ADD, 105);
    add.headers.atomic =
        Some(AtomicEth { addr: BASE + 512, rkey: RKEY, swap_or_add: 1, compare: 0 });
    t.take(add);
    let got: Vec<_> = t.host.received.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(got, [(1, WcOpcode::Recv, 265), (2, WcOpcode::RecvWriteImm, 20)]);
    assert_eq!(t.host.received[0].qpn, Qpn::new(0x11), "the target's number, not the queue's");
    let original = u64::from_ne_bytes(t.host.memory[512..520].try_into().unwrap()) - 1;
    assert_eq!(
        t.responses(),
        [
            "XRC_READ_RESPONSE_FIRST 103 ack msn=3 256B".to_owned(),
            "XRC_READ_RESPONSE_LAST 104 ack msn=3 44B".to_owned(),
            format!("XRC_ATOMIC_ACK 105 ack msn=4 original={original:#018x}"),
        ]
    );
    // Once for each request packet, and again for each packet of the READ's answer.
    assert_eq!(t.host.selected, [SRQN; 7]);
}

#[test]
fn an_unknown_queue_and_one_of_another_domain_are_refused_before_anything_happens() {
    for (srqn, class, nak) in [
        (Srqn::new(0x99), ErrorClass::SrqUnknown, "INVALID_REQUEST"),
        (FOREIGN_SRQN, ErrorClass::XrcDomain, "REMOTE_ACCESS"),
    ] {
        for request in [
            naming(srqn, Opcode::XRC_SEND_ONLY, 100).payload(8),
            naming(srqn, Opcode::XRC_WRITE_ONLY, 100).reth(0, 8).payload(8),
            naming(srqn, Opcode::XRC_READ_REQUEST, 100).reth(0, 8),
        ] {
            let mut t = rig();
            t.host.post_recv(1, 1000);
            let before = t.host.memory.clone();
            t.refused(request, class);
            assert_eq!(t.responses(), [format!("XRC_ACK 100 nak {nak} msn=0")]);
            assert_eq!((t.host.recvs.len(), t.host.received.len()), (1, 0));
            assert_eq!(t.host.memory, before);
        }
    }
}

#[test]
fn a_message_stays_with_the_queue_of_its_first_packet() {
    let mut t = rig();
    t.host.post_recv(1, 1000);
    t.take(naming(SRQN, Opcode::XRC_SEND_FIRST, 100).payload(MTU));
    t.refused(naming(FOREIGN_SRQN, Opcode::XRC_SEND_LAST, 101).payload(8), ErrorClass::SrqUnknown);
    assert_eq!(t.host.received[0].status, WcStatus::RemoteInvalidRequest);
    assert_eq!(t.responses(), ["XRC_ACK 101 nak INVALID_REQUEST msn=0"]);
}

#[test]
fn without_a_receive_in_that_queue_the_peer_is_asked_to_come_back() {
    let mut t = rig();
    assert_eq!(t.take(naming(SRQN, Opcode::XRC_SEND_ONLY, 100).payload(8)), Disposition::Rnr);
    assert_eq!(t.responses(), ["XRC_ACK 100 rnr timer=12 msn=0"]);
    t.host.post_recv(1, 8);
    t.take(naming(SRQN, Opcode::XRC_SEND_ONLY, 100).payload(8));
    assert_eq!(t.host.received.len(), 1);
}

#[test]
fn a_read_whose_queue_is_gone_when_it_is_answered_is_refused() {
    let mut t = rig();
    t.take(naming(SRQN, Opcode::XRC_READ_REQUEST, 100).reth(0, 8));
    t.host.srq_gone = true;
    assert_eq!(t.responses(), ["XRC_ACK 100 nak REMOTE_ACCESS msn=1"]);
    assert_eq!(t.failure(), (ErrorClass::RemoteAccess, Some(AccessCheck::Srq)));
}

#[test]
fn each_part_of_a_message_is_for_the_queue_that_its_first_one_names() {
    let of = |srqn, part| MessagePart { srqn: Some(srqn), ..part };
    let mut t = rig();
    assert_eq!(t.take_part(of(SRQN, only(100, 8))), Disposition::Rnr);
    assert_eq!(t.responses(), ["XRC_ACK 100 rnr timer=12 msn=0"]);
    t.host.post_recv(1, 1000);
    // Parts and packets make one message.
    assert_eq!(t.take_part(of(SRQN, first(100, 512))), Disposition::Accepted);
    let packet = naming(SRQN, Opcode::XRC_SEND_MIDDLE, 102).payload(MTU);
    assert_eq!(t.take(packet), Disposition::Accepted);
    assert_eq!(t.take_part(of(SRQN, last(103, 8))), Disposition::Accepted);
    assert_eq!(t.host.received[0].byte_len, 776);
    assert_eq!(t.responses(), ["XRC_ACK 103 ack msn=1"]);

    t.host.post_recv(2, 1000);
    assert_eq!(t.take_part(of(SRQN, first(104, 256))), Disposition::Accepted);
    t.refused_part(of(FOREIGN_SRQN, last(105, 8)), ErrorClass::SrqUnknown);
    assert_eq!(t.host.received[1].status, WcStatus::RemoteInvalidRequest);
}

#[test]
fn parts_for_an_unknown_queue_and_for_one_of_another_domain_are_refused() {
    for (srqn, class) in
        [(Srqn::new(0x99), ErrorClass::SrqUnknown), (FOREIGN_SRQN, ErrorClass::XrcDomain)]
    {
        let mut t = rig();
        t.host.post_recv(1, 1000);
        t.refused_part(MessagePart { srqn: Some(srqn), ..only(100, 8) }, class);
        assert_eq!((t.host.recvs.len(), t.host.received.len()), (1, 0));
    }
}
