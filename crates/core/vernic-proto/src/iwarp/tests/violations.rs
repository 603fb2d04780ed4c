//! Every way to break the rules, and the exact Terminate that it earns; both ends' queues and
//! events.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicCode, AtomicRequest, AtomicResponse, Control, Crc32c, DdpHeader, Immediate, Msn,
    QueueNumber, RdmapOpcode, ReadRequest, Tagged, TermCode, Terminate, Untagged,
};

use super::pair::{REMOTE, config, wqe};
use super::raw::{Raw, fpdu, tagged, untagged};
use crate::error::{AccessCheck, Cause, WcStatus};
use crate::event::QpEvent;
use crate::iwarp::{Extensions, Role, Shutdown, StreamConfig, Violation};
use crate::state::QpState;
use crate::test_host::{BASE, RKEY};
use crate::wqe::SendOp;

use RdmapOpcode as Op;
use TermCode as T;

fn read(size: u32, stag: Rkey, offset: u64) -> Vec<u8> {
    let mut body = vec![0; ReadRequest::LEN];
    ReadRequest { size, source_stag: stag, source_offset: offset, ..Default::default() }
        .emit(&mut body);
    body
}

fn atomic(code: AtomicCode, stag: Rkey, offset: u64) -> Vec<u8> {
    let mut body = vec![0; AtomicRequest::LEN];
    AtomicRequest { code, stag, offset, ..Default::default() }.emit(&mut body);
    body
}

fn segment(header: impl Into<Header>, body: &[u8]) -> (DdpHeader, Vec<u8>) {
    (header.into().0, body.to_vec())
}

/// Either header, so that a table of cases reads well.
struct Header(DdpHeader);
impl From<Tagged> for Header {
    fn from(header: Tagged) -> Self {
        Self(DdpHeader::Tagged(header))
    }
}
impl From<Untagged> for Header {
    fn from(header: Untagged) -> Self {
        Self(DdpHeader::Untagged(header))
    }
}

fn with_version(header: impl Into<Header>, ddp: u8, rdmap: u8) -> DdpHeader {
    let mut header = header.into().0;
    let control: &mut Control = match &mut header {
        DdpHeader::Tagged(header) => &mut header.control,
        DdpHeader::Untagged(header) => &mut header.control,
    };
    (control.ddp_version, control.rdmap_version) = (ddp, rdmap);
    header
}

/// A segment that must not come to a stream that has just begun, with one receive of 100 bytes.
fn offences() -> Vec<((DdpHeader, Vec<u8>), TermCode)> {
    let send = |msn, offset, last| untagged(Op::SEND, msn, offset, last);
    let write = |stag, offset| tagged(Op::WRITE, stag, offset, true);
    let request = |op| untagged(op, 1, 0, true);
    let on_queue = |op, queue| Untagged { queue: QueueNumber(queue), ..untagged(op, 1, 0, true) };
    let end = BASE + 8192;
    vec![
        // DDP, tagged.
        (segment(write(Rkey(9), BASE), &[1; 8]), T::DDP_TAGGED_STAG),
        (segment(write(RKEY, end - 7), &[1; 8]), T::DDP_TAGGED_BOUNDS),
        (segment(write(RKEY, BASE - 1), &[1; 8]), T::DDP_TAGGED_BOUNDS),
        (segment(write(RKEY, u64::MAX - 3), &[1; 8]), T::DDP_TAGGED_WRAP),
        ((with_version(write(RKEY, BASE), 0, 1), vec![1; 8]), T::DDP_TAGGED_VERSION),
        ((with_version(write(RKEY, BASE), 2, 1), vec![]), T::DDP_TAGGED_VERSION),
        (segment(tagged(Op::READ_RESPONSE, Rkey(1), 0, true), &[1; 8]), T::DDP_TAGGED_STAG),
        // DDP, untagged.
        (segment(on_queue(Op::SEND, 4), &[1; 8]), T::DDP_UNTAGGED_QUEUE),
        (segment(on_queue(Op::SEND, u32::MAX), &[]), T::DDP_UNTAGGED_QUEUE),
        (segment(send(2, 0, true), &[1; 8]), T::DDP_UNTAGGED_MSN),
        (segment(send(0, 0, true), &[1; 8]), T::DDP_UNTAGGED_MSN),
        (segment(send(1, 4, true), &[1; 8]), T::DDP_UNTAGGED_OFFSET),
        (segment(send(1, 0, true), &[1; 101]), T::DDP_UNTAGGED_TOO_LONG),
        ((with_version(send(1, 0, true), 3, 1), vec![1; 8]), T::DDP_UNTAGGED_VERSION),
        (segment(untagged(Op::READ_REQUEST, 2, 0, true), &[0; 28]), T::DDP_UNTAGGED_MSN),
        (segment(untagged(Op::READ_REQUEST, 1, 4, true), &[0; 28]), T::DDP_UNTAGGED_OFFSET),
        (segment(request(Op::READ_REQUEST), &[0; 29]), T::DDP_UNTAGGED_TOO_LONG),
        (segment(request(Op::ATOMIC_REQUEST), &[0; 53]), T::DDP_UNTAGGED_TOO_LONG),
        (segment(request(Op::TERMINATE), &[0; 65]), T::DDP_UNTAGGED_TOO_LONG),
        (segment(untagged(Op::TERMINATE, 2, 0, true), &[0; 4]), T::DDP_UNTAGGED_MSN),
        (segment(request(Op::ATOMIC_RESPONSE), &[0; 12]), T::DDP_UNTAGGED_NO_BUFFER),
        // RDMAP, remote operation.
        ((with_version(send(1, 0, true), 1, 0), vec![1; 8]), T::RDMAP_VERSION),
        ((with_version(write(RKEY, BASE), 1, 2), vec![1; 8]), T::RDMAP_VERSION),
        (segment(untagged(Op(0xC), 1, 0, true), &[]), T::RDMAP_OPCODE),
        (segment(untagged(Op(0xF), 1, 0, true), &[]), T::RDMAP_OPCODE),
        (segment(untagged(Op::WRITE, 1, 0, true), &[]), T::RDMAP_OPCODE),
        (segment(tagged(Op::SEND, RKEY, BASE, true), &[]), T::RDMAP_OPCODE),
        (segment(on_queue(Op::SEND, 1), &[1; 8]), T::RDMAP_OPCODE),
        (segment(on_queue(Op::READ_REQUEST, 0), &[0; 28]), T::RDMAP_OPCODE),
        (segment(request(Op::ATOMIC_REQUEST), &atomic(AtomicCode(1), RKEY, BASE)), T::RDMAP_OPCODE),
        (
            segment(request(Op::ATOMIC_REQUEST), &atomic(AtomicCode::FETCH_ADD, RKEY, BASE + 4)),
            T::RDMAP_STREAM_CATASTROPHIC,
        ),
        (segment(request(Op::READ_REQUEST), &[0; 27]), T::RDMAP_OPERATION_OTHER),
        (segment(untagged(Op::READ_REQUEST, 1, 0, false), &[0; 28]), T::RDMAP_OPERATION_OTHER),
        (segment(request(Op::IMMEDIATE), &[0; 7]), T::RDMAP_OPERATION_OTHER),
        (segment(request(Op::IMMEDIATE), &[0; 9]), T::DDP_UNTAGGED_TOO_LONG),
        (segment(request(Op::TERMINATE), &[0; 3]), T::RDMAP_OPERATION_OTHER),
        // RDMAP, remote protection.
        (segment(request(Op::READ_REQUEST), &read(8, Rkey(9), BASE)), T::RDMAP_STAG),
        (segment(request(Op::READ_REQUEST), &read(8, RKEY, end - 7)), T::RDMAP_BOUNDS),
        (segment(request(Op::READ_REQUEST), &read(8, RKEY, u64::MAX)), T::RDMAP_WRAP),
        (
            segment(request(Op::ATOMIC_REQUEST), &atomic(AtomicCode::CMP_SWAP, Rkey(9), BASE)),
            T::RDMAP_STAG,
        ),
        (
            segment(Untagged { invalidate: Rkey(9), ..request(Op::SEND_INV) }, &[1; 8]),
            T::RDMAP_INVALIDATE,
        ),
    ]
}

#[test]
fn every_offence_earns_its_terminate_and_leaves_memory_alone() {
    offend(Role::Initiator);
}

/// MPA has validated the initiator's first FPDU, so a responder may speak (RFC 5044, 7.1.2).
#[test]
fn an_offence_that_comes_first_earns_its_terminate_of_a_responder_too() {
    offend(Role::Responder);
    // But not where MPA itself refuses it.
    let mut raw = Raw::with(|agreed| agreed.role = Role::Responder, config());
    let mut bytes = fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[1; 8]);
    bytes[10] ^= 1;
    raw.receive(&bytes);
    assert_eq!(raw.last_word(), None);
    assert_eq!(raw.qp.state(), QpState::Error);
}

fn offend(role: Role) {
    for ((header, body), code) in offences() {
        let mut raw = Raw::with(|agreed| agreed.role = role, config());
        raw.host.post_recv(4, 100);
        raw.host.post_recv(5, 100);
        let memory = raw.host.memory.clone();
        raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 8)).ok();
        let bytes = fpdu(&header, &body);
        // What comes behind it is dropped, and consumed.
        let behind = [bytes.clone(), vec![1; 50]].concat();
        assert_eq!(raw.receive(&behind), behind.len());
        assert_eq!(raw.host.memory, memory, "{header}");
        let Some(terminate) = raw.last_word() else { panic!("{header}: no Terminate") };
        assert_eq!(terminate.code, code, "{header}");
        // Figure 10 of RFC 5040: the DDP header with all errors of DDP and RDMAP that the peer
        // made.
        assert_eq!(terminate.ddp, Some(header), "{code}");
        assert_eq!(usize::from(terminate.segment_len), header.len() + body.len());
        assert!(terminate.length_valid);
        // And the READ request with those that it earned by what it asked for.
        let protection = (code.layer, code.error_type) == (0, 1);
        let is_read = protection && header.control().opcode == Op::READ_REQUEST;
        assert_eq!(terminate.read, is_read.then(|| ReadRequest::parse(&body).unwrap()), "{code}");
        assert_eq!(raw.qp.state(), QpState::Error);
        assert_eq!(raw.host.failures.len(), 1, "{code}");
        assert!(matches!(raw.host.failures[0].cause, Cause::Violation { .. }), "{code}");
        assert_eq!(raw.host.events.len(), 1, "{code}");
        assert_eq!(
            raw.host.sent.iter().map(|one| one.status).collect::<Vec<_>>(),
            [WcStatus::Flushed]
        );
        // The receive in progress fails, or is flushed with the others; none is lost.
        let ended = raw.host.received.len() + raw.host.flushed.iter().flatten().count();
        assert_eq!(ended + raw.host.recvs.len(), 2, "{code}");
        assert_eq!(raw.host.flushed.len(), 1);
        assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    }
}

#[test]
fn a_write_to_memory_that_grants_nothing_is_an_access_violation_of_ddp() {
    let mut raw = Raw::new();
    let attr = crate::state::QpAttr { access: 0, ..*raw.qp.attr() };
    let mask = crate::state::AttrMask::ACCESS_FLAGS;
    raw.qp.modify(&attr, mask, raw.now, &mut raw.host).unwrap();
    raw.tagged(tagged(Op::WRITE, RKEY, BASE, true), &[1; 8]);
    assert_eq!(raw.last_word().unwrap().code, T::DDP_TAGGED_STAG);
    let Cause::Violation { fault: Some(fault), .. } = raw.host.failures[0].cause else { panic!() };
    assert_eq!((fault.check, fault.len), (AccessCheck::QpRights, 8));
    assert_eq!(raw.host.events, [QpEvent::AccessError]);
}

#[test]
fn empty_writes_and_reads_need_no_key() {
    let mut raw = Raw::new();
    raw.tagged(tagged(Op::WRITE, Rkey(0xDEAD), u64::MAX, true), &[]);
    raw.untagged(untagged(Op::READ_REQUEST, 1, 0, true), &read(0, Rkey(0xDEAD), u64::MAX));
    let sent = raw.sent();
    assert_eq!((sent.len(), sent[0].1.len()), (1, 0));
    assert_eq!(sent[0].0.control(), &Control::new(Op::READ_RESPONSE, true));
    assert!(raw.host.failures.is_empty());
}

#[test]
fn errors_of_mpa_carry_no_headers() {
    let mut raw = Raw::new();
    let mut bytes = fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[1; 8]);
    bytes[10] ^= 1;
    raw.receive(&bytes);
    assert_eq!(raw.last_word(), Some(Terminate::new(T::MPA_CRC)));
    let mut raw = Raw::with(|agreed| agreed.rx_markers = true, config());
    raw.host.post_recv(4, 100);
    let mut bytes = vec![0, 0, 0, 8];
    bytes.extend(fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[1; 8]));
    let at = bytes.len() - 4;
    let crc = Crc32c::of(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc);
    raw.receive(&bytes);
    assert_eq!(raw.last_word(), Some(Terminate::new(T::MPA_MARKER)));
}

#[test]
fn a_message_without_a_receive_ends_the_stream_or_waits_for_one() {
    let send = fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[7; 8]);
    let mut raw = Raw::new();
    raw.receive(&send);
    assert_eq!(raw.last_word().unwrap().code, T::DDP_UNTAGGED_NO_BUFFER);
    let patient = StreamConfig { recv_wait_ns: 500, ..config() };
    let mut raw = Raw::with(|_| {}, patient);
    assert_eq!(raw.receive(&send), 0);
    assert_eq!(raw.qp.next_deadline(), Some(raw.now + 500));
    raw.host.post_recv(3, 100);
    assert_eq!(raw.receive(&send), send.len());
    assert_eq!((raw.host.received[0].wr_id, raw.qp.next_deadline()), (3, None));
    let mut raw = Raw::with(|_| {}, patient);
    assert_eq!(raw.receive(&send), 0);
    raw.now = raw.now + 500;
    raw.qp.handle_timeout(raw.now, &mut raw.host);
    assert_eq!(raw.qp.state(), QpState::Rts);
    raw.receive(&send);
    assert_eq!(raw.last_word().unwrap().code, T::DDP_UNTAGGED_NO_BUFFER);
}

#[test]
fn more_reads_at_once_than_agreed_find_no_buffer() {
    let mut raw = Raw::new();
    for msn in 1..=3 {
        raw.untagged(untagged(Op::READ_REQUEST, msn, 0, true), &read(8, RKEY, BASE));
    }
    let terminate = raw.last_word().unwrap();
    assert_eq!(terminate.code, T::DDP_UNTAGGED_NO_BUFFER);
    let DdpHeader::Untagged(header) = terminate.ddp.unwrap() else { panic!() };
    assert_eq!((header.queue, header.msn), (QueueNumber::READ_REQUEST, Msn(3)));
}

#[test]
fn extensions_that_are_not_accepted_are_unexpected_opcodes() {
    let plain = StreamConfig { accepts: Extensions::empty(), ..config() };
    let of_atomic = atomic(AtomicCode::FETCH_ADD, RKEY, BASE);
    for (op, body) in [(Op::ATOMIC_REQUEST, of_atomic), (Op::IMMEDIATE, vec![0; Immediate::LEN])] {
        let mut raw = Raw::with(|_| {}, plain);
        raw.host.post_recv(1, 100);
        raw.untagged(untagged(op, 1, 0, true), &body);
        assert_eq!(raw.last_word().unwrap().code, T::RDMAP_OPCODE, "{op}");
    }
}

#[test]
fn messages_of_one_sequence_are_not_mixed() {
    let mut raw = Raw::new();
    raw.host.post_recv(1, 100);
    raw.untagged(untagged(Op::SEND, 1, 0, false), &[1; 8]);
    raw.tagged(tagged(Op::WRITE, RKEY, BASE, true), &[1; 8]);
    assert_eq!(raw.last_word().unwrap().code, T::RDMAP_OPCODE);
    let mut raw = Raw::new();
    raw.host.post_recv(1, 100);
    raw.tagged(tagged(Op::WRITE, RKEY, BASE, false), &[1; 8]);
    raw.untagged(untagged(Op::SEND, 1, 0, true), &[1; 8]);
    assert_eq!(raw.last_word().unwrap().code, T::RDMAP_OPCODE);
    let mut raw = Raw::new();
    raw.host.post_recv(1, 100);
    raw.untagged(untagged(Op::SEND, 1, 0, false), &[1; 8]);
    raw.untagged(untagged(Op::SEND_SE, 1, 8, true), &[1; 8]);
    assert_eq!(raw.last_word().unwrap().code, T::RDMAP_OPCODE);
    let mut raw = Raw::new();
    raw.tagged(tagged(Op::WRITE, RKEY, BASE, false), &[1; 8]);
    raw.tagged(tagged(Op::WRITE, Rkey(8), BASE + 8, true), &[1; 8]);
    assert_eq!(raw.last_word().unwrap().code, T::DDP_TAGGED_STAG);
}

/// One that has asked for 20 bytes, and the number that the answer must carry.
fn asking(op: SendOp) -> (Raw, Rkey) {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(7, op, 20)).unwrap();
    let sent = raw.sent();
    let sink = ReadRequest::parse(&sent[0].1).map_or(Rkey(0), |request| request.sink_stag);
    (raw, sink)
}

#[test]
fn answers_that_do_not_fit_the_question_fail_it_and_end_the_stream() {
    let cases: [(Rkey, u64, usize, TermCode); 4] = [
        (Rkey(1), 4, 16, T::DDP_TAGGED_BOUNDS),
        (Rkey(1), 0, 21, T::DDP_TAGGED_BOUNDS),
        (Rkey(1), 0, 19, T::RDMAP_OPERATION_OTHER),
        (Rkey(2), 0, 20, T::DDP_TAGGED_STAG),
    ];
    for (stag, offset, len, code) in cases {
        let (mut raw, sink) = asking(SendOp::Read(REMOTE));
        assert_eq!(sink, Rkey(1));
        raw.tagged(tagged(Op::READ_RESPONSE, stag, offset, true), &vec![1; len]);
        assert_eq!(raw.last_word().unwrap().code, code);
        let status = raw.host.sent[0].status;
        let wanted = if stag == sink { WcStatus::BadResponse } else { WcStatus::Flushed };
        assert_eq!(status, wanted, "{code}");
    }
    let (mut raw, _) = asking(SendOp::FetchAdd { remote: REMOTE, add: 1 });
    let mut body = [0; AtomicResponse::LEN];
    AtomicResponse { request_id: 99, original: 0 }.emit(&mut body);
    raw.untagged(untagged(Op::ATOMIC_RESPONSE, 1, 0, true), &body);
    assert_eq!(raw.last_word().unwrap().code, T::RDMAP_OPCODE);
    assert_eq!(raw.host.sent[0].status, WcStatus::BadResponse);
}

#[test]
fn an_answer_for_memory_that_is_gone_fails_the_request_that_asked() {
    let (mut raw, sink) = asking(SendOp::Read(REMOTE));
    raw.host.response_valid = false;
    raw.tagged(tagged(Op::READ_RESPONSE, sink, 0, true), &[1; 20]);
    assert_eq!(raw.last_word(), Some(Terminate::new(T::RDMAP_LOCAL)));
    assert_eq!(raw.host.sent[0].status, WcStatus::LocalProtection);
    assert!(matches!(raw.host.failures[0].cause, Cause::LocalMemory(_)));
}

#[test]
fn a_receive_whose_memory_is_gone_fails_with_it() {
    let mut raw = Raw::new();
    raw.host.post_recv(3, 100);
    raw.host.recv_valid = false;
    raw.untagged(untagged(Op::SEND, 1, 0, true), &[1; 20]);
    assert_eq!(raw.last_word(), Some(Terminate::new(T::RDMAP_LOCAL)));
    let completion = raw.host.received[0];
    assert_eq!((completion.wr_id, completion.status), (3, WcStatus::LocalProtection));
    assert_eq!(raw.host.events, [QpEvent::Fatal]);
}

#[test]
fn a_read_whose_memory_goes_away_half_answered_says_where_it_stopped() {
    let mut raw = Raw::new();
    raw.untagged(untagged(Op::READ_REQUEST, 1, 0, true), &read(1000, RKEY, BASE + 100));
    let mut buf = vec![0; 2000];
    raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf).unwrap();
    raw.host.key_valid = false;
    let terminate = raw.last_word().unwrap();
    assert_eq!(terminate.code, T::RDMAP_STAG);
    let left = terminate.read.unwrap();
    let sent = u64::from(1000 - left.size);
    assert!(sent > 400, "{left}");
    assert_eq!((left.sink_offset, left.source_offset), (sent, BASE + 100 + sent));
    assert_eq!(terminate.segment_len, 46);
    let violation = Violation::RemoteStag;
    assert!(
        matches!(raw.host.failures[0].cause, Cause::Violation { violation: v, .. } if v == violation)
    );
}

#[test]
fn local_memory_that_is_gone_fails_its_request_after_those_before_it() {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 20)).unwrap();
    raw.qp.post_send(wqe(2, SendOp::Send, 20)).unwrap();
    raw.qp.post_send(wqe(3, SendOp::Send, 20)).unwrap();
    raw.host.send_valid = false;
    let sent = raw.sent();
    let sink = ReadRequest::parse(&sent[0].1).unwrap().sink_stag;
    assert!(sent.len() == 1 && raw.host.sent.is_empty() && !raw.qp.wants_transmit());
    raw.tagged(tagged(Op::READ_RESPONSE, sink, 0, true), &[1; 20]);
    assert_eq!(raw.last_word(), Some(Terminate::new(T::RDMAP_LOCAL)));
    let ended: Vec<_> = raw.host.sent.iter().map(|one| (one.wr_id, one.status)).collect();
    let (good, gone) = (WcStatus::Success, WcStatus::LocalProtection);
    assert_eq!(ended, [(1, good), (2, gone), (3, WcStatus::Flushed)]);
}
