//! What waits for what: depths, fences, turns, the start of the stream.

use vernic_wire::iwarp::{DdpHeader, Msn, RdmapOpcode, ReadRequest};

use super::pair::{Pair, REMOTE, config, wqe};
use super::raw::{Raw, segments, tagged, untagged};
use crate::error::WcStatus;
use crate::iwarp::{Agreed, Ending, Role, RtrSet, StreamConfig, StreamEnd};
use crate::state::QpState;
use crate::test_host::{BASE, RKEY};
use crate::wqe::{SendFlags, SendOp, SendWqe};

fn opcodes(bytes: &[u8]) -> Vec<RdmapOpcode> {
    segments(bytes).iter().map(|(header, _)| header.control().opcode).collect()
}

#[test]
fn reads_and_atomics_beyond_the_agreed_depth_wait_and_so_does_what_is_behind_them() {
    let mut pair = Pair::open();
    for id in 0..3 {
        pair.post(0, id, SendOp::Read(REMOTE), 10);
    }
    pair.post(0, 3, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8);
    pair.post(0, 4, SendOp::Write(REMOTE), 8);
    while pair.ends[0].transmit(pair.now) {}
    let read = RdmapOpcode::READ_REQUEST;
    assert_eq!(opcodes(&pair.ends[0].wire), [read, read]);
    pair.run();
    assert_eq!(pair.sent(0), [0, 1, 2, 3, 4]);
}

#[test]
fn a_promised_ready_to_receive_indication_is_not_waited_for_without_end() {
    let stream = StreamConfig { rtr_wait_ns: 500, ..config() };
    let promised = |agreed: &mut Agreed| {
        (agreed.role, agreed.rtr) = (Role::Responder, RtrSet::WRITE);
    };
    // It has nothing to say, and nobody posts anything.
    let mut silent = Raw::with(promised, stream);
    assert!(silent.sent().is_empty());
    let deadline = silent.qp.next_deadline().unwrap();
    assert_eq!(deadline, silent.now + 500);
    silent.qp.handle_timeout(deadline, &mut silent.host);
    assert_eq!(silent.qp.ending(), Some(Ending::Lost(StreamEnd::Stalled)));
    assert_eq!(silent.qp.state(), QpState::Error);
    // The first FPDU keeps the promise.
    let mut kept = Raw::with(promised, stream);
    assert!(kept.sent().is_empty());
    kept.tagged(tagged(RdmapOpcode::WRITE, RKEY, 0, true), b"");
    assert_eq!((kept.qp.next_deadline(), kept.qp.state()), (None, QpState::Rts));
}

#[test]
fn a_fence_waits_for_reads_and_for_nothing_else() {
    let mut pair = Pair::open();
    pair.post(0, 0, SendOp::Read(REMOTE), 10);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    pair.ends[0].qp.post_send(SendWqe { flags, ..wqe(1, SendOp::Write(REMOTE), 8) }).unwrap();
    while pair.ends[0].transmit(pair.now) {}
    assert_eq!(opcodes(&pair.ends[0].wire), [RdmapOpcode::READ_REQUEST]);
    assert!(!pair.ends[0].qp.wants_transmit());
    pair.run();
    assert_eq!(pair.sent(0), [0, 1]);
}

#[test]
fn a_write_behind_a_read_completes_after_it_although_it_is_done_before() {
    let mut pair = Pair::open();
    pair.post(0, 0, SendOp::Read(REMOTE), 10);
    pair.post(0, 1, SendOp::Write(REMOTE), 8);
    while pair.ends[0].transmit(pair.now) {}
    assert_eq!(pair.ends[0].wire.len() as u64, 52 + 28);
    assert!(pair.sent(0).is_empty());
    pair.run();
    assert_eq!(pair.sent(0), [0, 1]);
}

#[test]
fn a_send_completes_when_the_connection_has_taken_its_last_byte() {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Send, 600)).unwrap();
    let mut buf = vec![0; 1000];
    let mut total = 0;
    while let Some(len) = raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf) {
        total += len as u64;
    }
    assert_eq!(raw.qp.committed(), total);
    raw.qp.handle_sent(raw.now, total - 1, &mut raw.host);
    assert!(raw.host.sent.is_empty());
    raw.qp.handle_sent(raw.now, total, &mut raw.host);
    assert_eq!(raw.host.sent[0].status, WcStatus::Success);
}

#[test]
fn a_responder_says_nothing_before_the_first_fpdu() {
    let mut pair = Pair::new();
    pair.post(1, 7, SendOp::Write(REMOTE), 8);
    pair.run();
    assert!(!pair.ends[1].qp.is_established() && pair.sent(1).is_empty());
    assert!(!pair.ends[1].qp.wants_transmit());
    pair.greet();
    assert!(pair.ends[1].qp.is_established());
    assert_eq!(pair.sent(1), [7]);
}

#[test]
fn an_initiator_takes_fpdus_before_it_has_sent_one() {
    // siw's responder begins to send at once.
    let mut raw = Raw::new();
    raw.host.post_recv(4, 100);
    raw.untagged(untagged(RdmapOpcode::SEND, 1, 0, true), &[5; 10]);
    assert_eq!(raw.host.received[0].byte_len, 10);
}

#[test]
fn an_indication_comes_first_and_disturbs_no_work_request() {
    for rtr in [RtrSet::SEND, RtrSet::WRITE, RtrSet::READ] {
        let change = |agreed: &mut crate::iwarp::Agreed| {
            agreed.rtr = if agreed.role == Role::Initiator { rtr } else { RtrSet::all() };
        };
        let mut pair = Pair::with(change, config());
        pair.ends[1].host.post_recv(1, 100);
        pair.ends[0].host.post_recv(2, 100);
        pair.post(1, 3, SendOp::Send, 10);
        pair.run();
        assert!(pair.ends[1].qp.is_established(), "{rtr:?}");
        assert!(pair.received(1).is_empty() && pair.sent(0).is_empty());
        assert_eq!((pair.sent(1), pair.received(0).len()), (vec![3], 1));
        // What follows is numbered on from it.
        pair.post(0, 4, SendOp::Send, 20);
        pair.post(0, 5, SendOp::Read(REMOTE), 20);
        pair.run();
        assert_eq!((pair.sent(0), pair.received(1)[0].byte_len), (vec![4, 5], 20));
    }
}

#[test]
fn an_empty_send_takes_a_receive_where_no_indication_by_send_is_agreed() {
    let mut pair = Pair::new();
    pair.ends[1].host.post_recv(1, 100);
    pair.post(0, 4, SendOp::Send, 0);
    pair.run();
    assert_eq!(pair.received(1)[0].wr_id, 1);
}

#[test]
fn answers_and_requests_take_turns_and_messages_are_not_mixed() {
    let mut raw = Raw::new();
    let read = |msn, size| {
        let request =
            ReadRequest { size, source_stag: RKEY, source_offset: BASE, ..Default::default() };
        let mut body = [0; ReadRequest::LEN];
        request.emit(&mut body);
        (untagged(RdmapOpcode::READ_REQUEST, msn, 0, true), body)
    };
    for msn in 1..=2 {
        let (header, body) = read(msn, 1000);
        raw.untagged(header, &body);
        raw.qp.post_send(wqe(u64::from(msn), SendOp::Write(REMOTE), 1000)).unwrap();
    }
    let sent = raw.sent();
    let messages: Vec<_> = sent
        .chunk_by(|(a, _), (b, _)| a.control().opcode == b.control().opcode)
        .map(|message| {
            assert!(message[..message.len() - 1].iter().all(|(h, _)| !h.control().last));
            assert!(message.last().unwrap().0.control().last);
            message[0].0.control().opcode
        })
        .collect();
    let (write, response) = (RdmapOpcode::WRITE, RdmapOpcode::READ_RESPONSE);
    assert_eq!(messages, [write, response, write, response]);
}

#[test]
fn segments_of_a_message_fit_a_tcp_segment_or_the_limit_of_large_ones() {
    for (large_fpdus, most) in [(false, 500), (true, 2000)] {
        let mut raw = Raw::with(|_| {}, StreamConfig { large_fpdus, ..config() });
        raw.qp.post_send(wqe(1, SendOp::Send, 2000)).unwrap();
        let sent = raw.sent();
        let mut offset = 0;
        for (header, body) in &sent {
            let DdpHeader::Untagged(header) = header else { panic!("{header}") };
            assert_eq!((header.msn, header.offset), (Msn(1), offset));
            assert!(body.len() <= most);
            offset += body.len() as u32;
            assert_eq!(header.control.last, offset == 2000);
        }
        assert_eq!(offset, 2000);
        assert_eq!(sent.len(), if large_fpdus { 1 } else { 5 });
    }
}

#[test]
fn an_fpdu_that_is_not_taken_is_given_again_and_its_payload_is_where_it_says() {
    let mut raw = Raw::with(|agreed| agreed.crc = false, config());
    assert!(!raw.qp.copies_payload());
    raw.qp.post_send(wqe(1, SendOp::Send, 600)).unwrap();
    let first = raw.qp.poll_fpdu(raw.now, &mut raw.host).unwrap();
    let again = raw.qp.poll_fpdu(raw.now, &mut raw.host).unwrap();
    assert_eq!((first.head(), first.source()), (again.head(), again.source()));
    raw.qp.commit_fpdu(&first);
    let second = raw.qp.poll_fpdu(raw.now, &mut raw.host).unwrap();
    let crate::iwarp::Source::Send { slot: 0, offset } = second.source() else {
        panic!("{:?}", second.source())
    };
    assert_eq!((offset, offset + second.payload_len()), (first.payload_len(), 600));
}

#[test]
fn an_fpdu_that_does_not_fit_the_rest_of_a_segment_begins_another() {
    let mut raw = Raw::new();
    for (id, length) in [(1, 400), (2, 200), (3, 200)] {
        raw.qp.post_send(wqe(id, SendOp::Send, length)).unwrap();
    }
    let mut begins = Vec::new();
    while let Some(fpdu) = raw.qp.poll_fpdu(raw.now, &mut raw.host) {
        begins.push((fpdu.payload_len(), fpdu.starts_segment()));
        raw.qp.commit_fpdu(&fpdu);
    }
    assert_eq!(begins, [(400, false), (200, true), (200, false)]);
    raw.qp.begin_batch();
    raw.qp.post_send(wqe(4, SendOp::Send, 200)).unwrap();
    assert!(!raw.qp.poll_fpdu(raw.now, &mut raw.host).unwrap().starts_segment());
}

#[test]
fn an_answer_may_interrupt_a_send_of_the_peer() {
    let mut raw = Raw::new();
    raw.host.post_recv(1, 100);
    raw.qp.post_send(wqe(9, SendOp::Read(REMOTE), 20)).unwrap();
    let sent = raw.sent();
    let sink = ReadRequest::parse(&sent[0].1).unwrap().sink_stag;
    raw.untagged(untagged(RdmapOpcode::SEND, 1, 0, false), &[1; 30]);
    raw.tagged(tagged(RdmapOpcode::READ_RESPONSE, sink, 0, false), &[2; 10]);
    raw.untagged(untagged(RdmapOpcode::SEND, 1, 30, true), &[1; 30]);
    raw.tagged(tagged(RdmapOpcode::READ_RESPONSE, sink, 10, true), &[2; 10]);
    assert_eq!(raw.host.received[0].byte_len, 60);
    assert_eq!((raw.host.sent[0].wr_id, raw.host.sent[0].status), (9, WcStatus::Success));
}

#[test]
fn an_initiator_that_hears_nothing_repeats_its_empty_write_a_few_times() {
    let repeats = StreamConfig { rtr_repeat_ns: 100, ..config() };
    let rtr = |agreed: &mut Agreed| agreed.rtr = RtrSet::WRITE;
    let mut pair = Pair::with(rtr, repeats);
    let mut at = Vec::new();
    let start = pair.now;
    for _ in 0..1000 {
        let end = &mut pair.ends[0];
        while end.transmit(pair.now) {
            at.push(pair.now.since(start));
        }
        let Some(due) = end.qp.next_deadline() else { break };
        pair.now = due;
        end.qp.handle_timeout(due, &mut end.host);
    }
    assert_eq!(at, [0, 100, 500, 2_100, 8_500]);
    // The peer takes them all for what they are.
    pair.run();
    assert!(pair.ends[1].qp.is_established());
    pair.ends[0].host.post_recv(1, 100);
    pair.post(1, 2, SendOp::Send, 50);
    pair.run();
    assert_eq!(pair.received(0)[0].wr_id, 1);
    // One that hears something does not.
    let mut pair = Pair::with(rtr, repeats);
    pair.run();
    pair.ends[0].host.post_recv(1, 100);
    pair.post(1, 2, SendOp::Send, 50);
    pair.run();
    assert_eq!(pair.ends[0].qp.next_deadline(), None);
}

#[test]
fn a_responder_that_waits_in_vain_for_the_first_word_speaks_at_last_if_it_is_told_to() {
    for (fence_ns, rtr) in [(100, RtrSet::empty()), (0, RtrSet::empty()), (100, RtrSet::WRITE)] {
        let stream = StreamConfig { fence_ns, rtr_wait_ns: 0, ..config() };
        let mut pair = Pair::with(|agreed| agreed.rtr = rtr, stream);
        pair.ends[0].host.post_recv(1, 100);
        let now = pair.now;
        let responder = &mut pair.ends[1];
        responder.qp.post_send(wqe(2, SendOp::Send, 50)).unwrap();
        assert!(!responder.transmit(now), "nothing before its time");
        let speaks = fence_ns > 0 && rtr.is_empty();
        assert_eq!(responder.qp.next_deadline(), speaks.then(|| now + fence_ns));
        if speaks {
            responder.qp.handle_timeout(now + fence_ns, &mut responder.host);
            assert_eq!(responder.qp.next_deadline(), None);
            pair.run();
            assert_eq!(pair.received(0)[0].wr_id, 1);
        }
    }
}
