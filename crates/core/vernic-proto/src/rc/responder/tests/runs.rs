//! Packets of a SEND that travel as one.

use super::*;
use crate::host::PullFault;

const FIRST: Opcode = Opcode::RC_SEND_FIRST;
const MIDDLE: Opcode = Opcode::RC_SEND_MIDDLE;
const LAST: Opcode = Opcode::RC_SEND_LAST;
const ONLY: Opcode = Opcode::RC_SEND_ONLY;

/// A run of `length` bytes at path MTU 256, from `psn` on.
fn run(length: u32) -> Option<Run> {
    Some(Run { length, packets: packet_count(length, MTU as u32) })
}

/// Its packet; what names its bytes is the host's affair.
fn head(opcode: Opcode, psn: u32) -> Request {
    request(opcode, psn).payload(36)
}

#[test]
fn runs_and_packets_make_one_message_and_each_takes_its_numbers() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    assert_eq!(t.take_run(head(FIRST, 100), run(1024)), Disposition::Accepted);
    assert_eq!(t.take(request(MIDDLE, 104).payload(MTU)), Disposition::Accepted);
    assert_eq!(t.take_run(head(MIDDLE, 105), run(512)), Disposition::Accepted);
    assert!(t.host.received.is_empty());
    let last = head(Opcode::RC_SEND_LAST_IMM, 107).imm(0xABCD).solicited();
    assert_eq!(t.take_run(last, run(1000)), Disposition::Accepted);
    let wc = t.host.received[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.tag, wc.solicited), (7, 2792, Tag::Imm(0xABCD), true));
    let offsets: Vec<_> = t.host.pulled.iter().map(|(at, run)| (*at, run.length)).collect();
    assert_eq!(offsets, [(0, 1024), (1280, 512), (1792, 1000)]);
    // The last of the four numbers of the last run.
    assert_eq!(t.responses(), ["RC_ACK 110 ack msn=1"]);
    t.host.post_recv(8, 5000);
    assert_eq!(t.take(send_only(111, 8)), Disposition::Accepted);
}

#[test]
fn a_whole_message_may_be_one_run_whose_numbers_wrap() {
    let mut t = Rig::from_psn(0xFF_FFFE);
    t.host.post_recv(7, 4097);
    let only = head(Opcode::RC_SEND_ONLY_INV, 0xFF_FFFE);
    let mut only = only;
    only.headers.ieth = Some(Ieth { rkey: RKEY });
    assert_eq!(t.take_run(only, run(4097)), Disposition::Accepted);
    assert_eq!(t.host.received[0].tag, Tag::Invalidated(RKEY));
    assert_eq!(t.responses(), ["RC_ACK 14 ack msn=1"]);
}

#[test]
fn a_run_without_receive_is_asked_for_again_and_taken_in_packets() {
    let mut t = Rig::new();
    assert_eq!(t.take_run(head(ONLY, 100), run(700)), Disposition::Rnr);
    assert_eq!(t.responses(), ["RC_ACK 100 rnr timer=12 msn=0"]);
    assert!(t.host.pulled.is_empty());
    t.host.post_recv(1, 700);
    t.take(request(FIRST, 100).payload(MTU));
    t.take(request(MIDDLE, 101).payload(MTU));
    t.take(request(LAST, 102).payload(188));
    assert_eq!(t.responses(), ["RC_ACK 102 ack msn=1"]);
    assert_eq!(t.host.received[0].byte_len, 700);
}

#[test]
fn a_run_behind_a_gap_is_nakked_and_one_that_was_taken_is_acknowledged_again() {
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    let gap = Disposition::Nak(ErrorClass::PsnSequence);
    assert_eq!(t.take_run(head(MIDDLE, 102), run(512)), gap);
    assert_eq!(t.take_run(head(FIRST, 100), run(512)), Disposition::Accepted);
    // The gap is what is missing still: numbers 102 and 103 were dropped.
    assert_eq!(t.responses(), ["RC_ACK 102 nak PSN_SEQUENCE msn=0"]);
    assert_eq!(t.take_run(head(FIRST, 100), run(512)), Disposition::Duplicate);
    assert_eq!(t.take(request(MIDDLE, 101).payload(MTU)), Disposition::Duplicate);
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=0"]);
    assert_eq!(t.host.pulled.len(), 1, "a duplicate is copied no more");
}

#[test]
fn what_cannot_be_copied_is_asked_for_in_packets_into_the_same_receive() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.pull = Err(PullFault::Unreachable);
    let missed = Disposition::Nak(ErrorClass::PsnSequence);
    assert_eq!(t.take_run(head(FIRST, 100), run(512)), missed);
    let ahead = Disposition::Drop(DropReason::AheadOfNak);
    assert_eq!(t.take_run(head(LAST, 102), run(512)), ahead);
    assert_eq!(t.responses(), ["RC_ACK 100 nak PSN_SEQUENCE msn=0"]);
    assert_eq!(t.host.pulled.len(), 1);
    t.take(request(FIRST, 100).payload(MTU));
    t.take(request(LAST, 101).payload(10));
    assert_eq!(t.responses(), ["RC_ACK 101 ack msn=1"]);
    assert_eq!((t.host.received[0].wr_id, t.host.received[0].byte_len), (7, 266));
    assert!(t.host.failures.is_empty());
}

#[test]
fn what_was_taken_back_is_as_if_it_had_never_come() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    t.host.pull = Err(PullFault::Withdrawn);
    let gone = Disposition::Drop(DropReason::RunWithdrawn);
    assert_eq!(t.take_run(head(ONLY, 100), run(512)), gone);
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
    t.take_run(head(ONLY, 100), run(512));
    assert_eq!(t.take(write_only(100, 8)), Disposition::Accepted);
    assert!(t.host.received.is_empty());
    assert_eq!(t.take(send_only(101, 1)), Disposition::Accepted);
    assert_eq!((t.host.received[0].wr_id, t.host.received[0].byte_len), (7, 1));
}

#[test]
fn a_receive_with_an_invalid_list_fails_as_with_packets() {
    let mut t = Rig::new();
    t.host.post_recv(7, 5000);
    let fault = AccessFault { check: AccessCheck::KeyStale, key: 1, addr: 0, len: 0 };
    t.host.pull = Err(PullFault::Local(fault));
    let refused = Disposition::Nak(ErrorClass::ReceiveMemory);
    assert_eq!(t.take_run(head(ONLY, 100), run(512)), refused);
    assert_eq!(t.failure(), (ErrorClass::ReceiveMemory, Some(AccessCheck::KeyStale)));
    assert_eq!(t.host.received[0].status, WcStatus::LocalProtection);
}

#[test]
fn lengths_that_do_not_fit_are_refused_as_those_of_packets_and_nothing_is_copied() {
    let length = |opcode, run: Option<Run>, capacity| {
        let mut t = Rig::new();
        t.host.post_recv(1, capacity);
        let disposition = t.take_run(head(opcode, 100), run);
        assert_eq!(t.host.pulled.is_empty(), disposition != Disposition::Accepted);
        disposition
    };
    let refused = |class| Disposition::Nak(class);
    assert_eq!(length(ONLY, run(700), 700), Disposition::Accepted);
    assert_eq!(length(ONLY, run(700), 699), refused(ErrorClass::MessageLength));
    assert_eq!(length(FIRST, run(768), 767), refused(ErrorClass::MessageLength));
    let of = |length, packets| Some(Run { length, packets });
    for (opcode, run) in [
        // Not the last of a message, and not full.
        (FIRST, of(700, 3)),
        (FIRST, of(512, 3)),
        (FIRST, of(0, 0)),
        // More or fewer packets than the bytes need: another path MTU, say.
        (ONLY, of(700, 2)),
        (ONLY, of(700, 4)),
        (ONLY, of(0, 1)),
        (ONLY, of(u32::MAX, u32::MAX)),
        (FIRST, of(u32::MAX, u32::MAX)),
    ] {
        assert_eq!(length(opcode, run, u64::MAX), refused(ErrorClass::PacketLength), "{run:?}");
    }
    let most = (crate::MAX_MESSAGE + 256, u64::MAX);
    assert_eq!(length(FIRST, run(most.0), most.1), refused(ErrorClass::MessageLength));
}

#[test]
fn a_run_in_the_wrong_place_of_a_message_is_refused() {
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    t.refused_run(head(LAST, 100), ErrorClass::OpcodeSequence);
    let mut t = Rig::new();
    t.host.post_recv(1, 5000);
    t.take_run(head(FIRST, 100), run(512));
    t.refused_run(head(FIRST, 102), ErrorClass::OpcodeSequence);
}

impl Rig {
    fn refused_run(&mut self, request: Request, class: ErrorClass) {
        assert_eq!(self.take_run(request, run(512)), Disposition::Nak(class));
    }
}
