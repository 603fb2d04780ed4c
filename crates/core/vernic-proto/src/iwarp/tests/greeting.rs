//! How an initiator leaves a peer that may not be in full operation yet.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{DdpHeader, RdmapOpcode as Op, ReadRequest, TermCode};

use super::pair::{Pair, REMOTE, agreed, config, modify, wqe};
use super::raw::{Raw, segments, tagged, untagged};
use crate::error::WcStatus;
use crate::iwarp::{Agreed, Ending, Greeting, Role, RtrSet, Shutdown, StreamConfig, StreamEnd};
use crate::state::QpState;
use crate::time::Time;
use crate::wqe::SendOp;

fn by_read(agreed: &mut Agreed) {
    agreed.rtr = RtrSet::READ;
}

/// One that has said its first word, and the number that the answer carries.
fn greeted() -> (Raw, Rkey) {
    let mut raw = Raw::with(by_read, config());
    // Nothing came behind the start-up.
    raw.receive(&[]);
    assert!(raw.qp.is_unheard());
    let sent = raw.sent();
    assert_eq!((sent.len(), sent[0].0.control().opcode), (1, Op::READ_REQUEST));
    let stag = ReadRequest::parse(&sent[0].1).unwrap().sink_stag;
    (raw, stag)
}

fn answer(raw: &mut Raw, stag: Rkey) {
    raw.tagged(tagged(Op::READ_RESPONSE, stag, 0, true), &[]);
}

#[test]
fn a_stream_is_not_closed_before_the_peer_has_answered_the_first_word() {
    let (mut raw, stag) = greeted();
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 10)).unwrap();
    raw.sent();
    assert_eq!(raw.host.sent[0].status, WcStatus::Success);
    raw.qp.close(raw.now, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), None);
    answer(&mut raw, stag);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    assert!(!raw.qp.is_unheard());
    // Nor is one waited for without end.
    let (mut raw, _) = greeted();
    raw.qp.close(raw.now, &mut raw.host);
    assert_eq!(raw.qp.next_deadline(), Some(raw.now + 10_000));
    raw.qp.handle_timeout(raw.now + 10_000, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Close));
}

#[test]
fn the_last_word_comes_after_the_answer_to_the_first_or_after_a_while() {
    for is_answered in [true, false] {
        let (mut raw, stag) = greeted();
        modify(&mut raw.qp, &mut raw.host, QpState::Error, raw.now);
        assert!(raw.sent().is_empty() && !raw.qp.wants_transmit());
        assert_eq!(raw.qp.next_deadline(), Some(raw.now + 4_000));
        if is_answered {
            answer(&mut raw, stag);
        } else {
            raw.now = raw.now + 4_000;
            raw.qp.handle_timeout(raw.now, &mut raw.host);
        }
        assert!(raw.qp.wants_transmit());
        assert_eq!(raw.last_word().unwrap().code, TermCode::RDMAP_LOCAL);
        assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    }
    // Before the first word it is not said either.
    let mut raw = Raw::with(by_read, config());
    modify(&mut raw.qp, &mut raw.host, QpState::Error, Time(0));
    let sent = raw.sent();
    assert_eq!((sent.len(), sent[0].0.control().opcode), (1, Op::READ_REQUEST));
}

#[test]
fn a_peer_that_speaks_nonsense_hears_so_though_it_has_not_answered() {
    let (mut raw, _) = greeted();
    raw.untagged(untagged(Op::SEND, 9, 0, true), &[]);
    assert_eq!(raw.last_word().unwrap().code, TermCode::DDP_UNTAGGED_MSN);
}

#[test]
fn a_peer_is_reminded_until_it_answers_whatever_else_it_says() {
    let repeats = StreamConfig { rtr_repeat_ns: 100, rtr_answer_ns: 1 << 40, ..config() };
    for dies in [false, true] {
        let mut raw = Raw::with(by_read, repeats);
        raw.host.post_recv(7, 10);
        let (mut said, mut stag) = (Vec::new(), Rkey(0));
        while said.len() < 3 {
            for (header, body) in raw.sent() {
                said.push((raw.now.since(Time(5_000)), header.control().opcode));
                if let Ok(request) = ReadRequest::parse(&body) {
                    stag = request.sink_stag;
                }
            }
            match said.len() {
                1 if dies => modify(&mut raw.qp, &mut raw.host, QpState::Error, raw.now),
                1 => raw.untagged(untagged(Op::SEND, 1, 0, true), &[]),
                _ => {}
            }
            if said.len() < 3 {
                raw.now = raw.qp.next_deadline().unwrap();
                raw.qp.handle_timeout(raw.now, &mut raw.host);
            }
        }
        assert_eq!(said, [(0, Op::READ_REQUEST), (100, Op::WRITE), (500, Op::WRITE)]);
        answer(&mut raw, stag);
        let left: Vec<_> = raw.sent().iter().map(|(header, _)| header.control().opcode).collect();
        assert_eq!(left, if dies { vec![Op::TERMINATE] } else { vec![] });
        assert_eq!(raw.qp.next_deadline().is_some(), dies, "it lingers, or has all the time");
    }
}

#[test]
fn a_peer_that_closes_before_it_answers_closes_in_order() {
    let (mut raw, _) = greeted();
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!((raw.qp.state(), raw.qp.ending()), (QpState::Rts, Some(Ending::PeerClosed)));
    assert!(raw.host.failures.is_empty());
    raw.qp.close(raw.now, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Close));
    // One that still owes an answer to a request does not.
    let (mut raw, _) = greeted();
    raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 10)).unwrap();
    raw.sent();
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!(raw.qp.ending(), Some(Ending::Lost(StreamEnd::Closed)));
}

#[test]
fn an_initiator_with_no_queue_pair_says_the_same_as_one_with() {
    let mut agreed = agreed(Role::Initiator);
    by_read(&mut agreed);
    let greeting = Greeting::of(&agreed).unwrap();
    let mut raw = Raw::with(by_read, StreamConfig { rtr_repeat_ns: 100, ..config() });
    assert_eq!(segments(&greeting.first), raw.sent());
    raw.qp.handle_timeout(raw.now + 100, &mut raw.host);
    let again = raw.sent();
    assert_eq!(segments(&greeting.again), again);
    let DdpHeader::Tagged(header) = again[0].0 else { panic!() };
    assert_eq!((header.control.opcode, again[0].1.len()), (Op::WRITE, 0));
    // Others have nothing to say that would be answered, or do not know where they are in the
    // stream.
    let not = [
        Agreed { role: Role::Responder, ..agreed },
        Agreed { rtr: RtrSet::WRITE, ..agreed },
        Agreed { rtr: RtrSet::empty(), ..agreed },
        Agreed { tx_markers: true, ..agreed },
    ];
    assert!(not.iter().all(|agreed| Greeting::of(agreed).is_none()));
}

#[test]
fn two_ends_that_agree_upon_a_read_are_open_when_it_is_answered() {
    let mut pair = Pair::with(by_read, config());
    pair.ends[0].host.post_recv(1, 10);
    pair.run();
    assert!(pair.ends.iter().all(|end| !end.qp.is_unheard() && end.qp.next_deadline().is_none()));
    pair.post(1, 2, SendOp::Send, 10);
    pair.run();
    assert_eq!(pair.received(0)[0].wr_id, 1);
}
