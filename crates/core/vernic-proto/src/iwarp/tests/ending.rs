//! How streams end: in order, over an error, by loss, by silence.

use vernic_wire::iwarp::{
    DdpHeader, RdmapOpcode as Op, ReadRequest, TermCode, Terminate, Untagged,
};

use super::pair::{Pair, REMOTE, config, modify, wqe};
use super::raw::{Raw, fpdu, tagged, untagged};
use crate::error::{Cause, WcStatus};
use crate::event::QpEvent;
use crate::iwarp::{Ending, MAX_FPDU, Role, RxNext, Shutdown, StartError, StreamConfig, StreamEnd};
use crate::qp::PostError;
use crate::state::{AttrMask, QpAttr, QpState};
use crate::test_host::RKEY;
use crate::time::Time;
use crate::wqe::{Remote, SendOp};

fn statuses(pair: &Pair, side: usize) -> Vec<(u64, WcStatus)> {
    pair.ends[side].host.sent.iter().map(|one| (one.wr_id, one.status)).collect()
}

#[test]
fn a_stream_is_closed_in_order_after_all_that_was_posted_before() {
    let mut pair = Pair::open();
    pair.ends[0].host.post_recv(50, 100);
    pair.post(0, 1, SendOp::Write(REMOTE), 2000);
    pair.post(0, 2, SendOp::Read(REMOTE), 600);
    let now = pair.now;
    {
        let end = &mut pair.ends[0];
        end.qp.close(now, &mut end.host);
        assert_eq!(end.qp.state(), QpState::Sqd);
        assert!(end.qp.is_draining());
    }
    pair.post(0, 3, SendOp::Write(REMOTE), 10);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.ends[0].shutdowns, [Shutdown::Write]);
    assert!(pair.ends[1].qp.peer_has_closed());
    assert_eq!(pair.ends[1].qp.state(), QpState::Rts);
    // The other end may still speak, and then closes, too.
    pair.post(1, 4, SendOp::Send, 50);
    pair.run();
    assert_eq!(pair.received(0)[0].wr_id, 50);
    let end = &mut pair.ends[1];
    modify(&mut end.qp, &mut end.host, QpState::Sqd, now);
    pair.run();
    for end in &pair.ends {
        assert_eq!((end.qp.state(), end.qp.next_deadline()), (QpState::Error, None));
        assert!(end.host.failures.is_empty() && end.host.events.is_empty());
        assert_eq!(end.host.flushed.len(), 1);
        assert_eq!(end.qp.rx_next(), RxNext::Nothing);
    }
    assert_eq!(pair.ends[1].shutdowns, [Shutdown::Close]);
    assert_eq!(pair.ends[0].shutdowns, [Shutdown::Write, Shutdown::Close]);
    assert_eq!(statuses(&pair, 0)[2], (3, WcStatus::Flushed));
}

#[test]
fn a_peer_that_never_closes_its_half_is_not_waited_for() {
    let mut raw = Raw::new();
    raw.qp.close(raw.now, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    let deadline = raw.qp.next_deadline().unwrap();
    assert_eq!(deadline, raw.now + 10_000);
    raw.qp.handle_timeout(deadline, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Close));
    assert_eq!((raw.qp.state(), raw.qp.poll_shutdown()), (QpState::Error, None));
}

#[test]
fn a_peer_that_takes_nothing_more_is_not_waited_for_and_is_abandoned() {
    // It closed its half, and the connection takes none of what this end still has to say.
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 10)).unwrap();
    let mut buf = vec![0; MAX_FPDU];
    assert!(raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf).is_some());
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!((raw.qp.state(), raw.qp.ending()), (QpState::Rts, Some(Ending::PeerClosed)));
    assert_eq!(raw.qp.next_deadline(), None);
    raw.qp.close(raw.now, &mut raw.host);
    let deadline = raw.qp.next_deadline().unwrap();
    assert_eq!(deadline, raw.now + 10_000);
    raw.qp.handle_timeout(deadline, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Abandon));
    assert_eq!((raw.qp.state(), raw.qp.ending()), (QpState::Error, Some(Ending::PeerClosed)));
    assert_eq!((raw.host.sent[0].status, raw.host.events.len()), (WcStatus::Flushed, 0));
    // One that stands still in the middle of an FPDU, likewise.
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 10)).unwrap();
    raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf);
    raw.receive(&[0, 100]);
    raw.qp.handle_timeout(raw.qp.next_deadline().unwrap(), &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Abandon));
    assert_eq!(raw.qp.ending(), Some(Ending::Lost(StreamEnd::Stalled)));
}

#[test]
fn closing_waits_no_longer_for_a_peer_that_takes_nothing_than_for_one_that_does_not_close() {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 10)).unwrap();
    let mut buf = vec![0; MAX_FPDU];
    let len = raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf).unwrap();
    raw.qp.close(raw.now, &mut raw.host);
    assert_eq!(raw.qp.next_deadline(), Some(raw.now + 10_000));
    // It takes a byte: there is time anew, for what it does not take next.
    let later = raw.now + 9_000;
    raw.qp.handle_sent(later, 1, &mut raw.host);
    assert!(len > 1);
    assert_eq!(raw.qp.next_deadline(), Some(later + 10_000));
    raw.qp.handle_timeout(later + 10_000, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Abandon));
    assert_eq!(raw.qp.state(), QpState::Error);
    assert_eq!((raw.host.sent[0].status, raw.host.events.len()), (WcStatus::Flushed, 0));
}

#[test]
fn a_peer_that_takes_a_byte_now_and_then_does_not_prolong_a_closing_without_end() {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 400)).unwrap();
    let mut buf = vec![0; MAX_FPDU];
    let len = raw.qp.poll_transmit(raw.now, &mut raw.host, &mut buf).unwrap();
    raw.qp.close(raw.now, &mut raw.host);
    let end = raw.now + 25_000;
    for taken in 1.. {
        assert!(taken < len as u64);
        let now = raw.now + taken * 5_000;
        // It also says something each time.
        raw.qp.handle_sent(now, taken, &mut raw.host);
        let empty = fpdu(&DdpHeader::Tagged(tagged(Op::WRITE, RKEY, 0, true)), &[]);
        raw.qp.handle_bytes(now, &empty, &mut raw.host);
        let deadline = raw.qp.next_deadline().unwrap();
        assert!(deadline <= end);
        if deadline <= now + 5_000 {
            raw.qp.handle_timeout(deadline, &mut raw.host);
            break;
        }
    }
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Abandon));
    assert_eq!(raw.qp.state(), QpState::Error);
}

#[test]
fn a_refused_write_is_told_to_both_ends() {
    let mut pair = Pair::open();
    pair.ends[0].host.post_recv(9, 10);
    let nowhere = Remote { addr: 0, rkey: RKEY };
    pair.post(0, 1, SendOp::Write(nowhere), 2000);
    pair.post(0, 2, SendOp::Read(REMOTE), 10);
    pair.run();
    // The WRITE had left when it was found to be wrong; what was outstanding is flushed.
    assert_eq!(statuses(&pair, 0)[1], (2, WcStatus::Flushed));
    let code = TermCode::DDP_TAGGED_BOUNDS;
    let cause = pair.ends[0].host.failures[0].cause;
    assert_eq!(cause, Cause::Terminated { code, asked: None });
    assert_eq!(pair.ends[0].host.events, [QpEvent::Fatal]);
    assert_eq!(pair.ends[1].host.events, [QpEvent::AccessError]);
    for end in &pair.ends {
        assert_eq!((end.qp.state(), end.host.failures.len()), (QpState::Error, 1));
        assert_eq!(end.shutdowns.last(), Some(&Shutdown::Close));
        assert_eq!(end.qp.next_deadline(), None);
    }
}

#[test]
fn a_refused_read_fails_with_its_own_status_and_what_it_asked_for() {
    let mut pair = Pair::open();
    let nowhere = Remote { addr: 0, rkey: RKEY };
    pair.post(0, 1, SendOp::Read(REMOTE), 600);
    pair.post(0, 2, SendOp::Read(nowhere), 10);
    pair.post(0, 3, SendOp::Write(REMOTE), 10);
    pair.run();
    let (flushed, refused) = (WcStatus::Flushed, WcStatus::RemoteAccess);
    // The first one's answer was not sent any more.
    assert_eq!(statuses(&pair, 0), [(1, flushed), (2, refused), (3, flushed)]);
    let Cause::Terminated { code, asked: Some(asked) } = pair.ends[0].host.failures[0].cause else {
        panic!("{:?}", pair.ends[0].host.failures)
    };
    assert_eq!((code, asked.remote, asked.length), (TermCode::RDMAP_BOUNDS, nowhere, 10));
    assert_eq!(pair.ends[0].host.failures[0].wr_id, Some(2));
}

#[test]
fn an_application_that_enters_error_tells_its_peer() {
    let mut pair = Pair::open();
    pair.ends[0].host.post_recv(9, 10);
    pair.post(0, 1, SendOp::Read(REMOTE), 600);
    let now = pair.now;
    let end = &mut pair.ends[0];
    end.transmit(now);
    modify(&mut end.qp, &mut end.host, QpState::Error, now);
    assert_eq!((end.host.flushed.len(), end.host.sent[0].status), (1, WcStatus::Flushed));
    // What is posted in Error is flushed as well.
    end.qp.post_send(wqe(2, SendOp::Send, 10)).unwrap();
    pair.run();
    assert_eq!(pair.sent(0), [1, 2]);
    assert!(pair.ends[0].host.failures.is_empty());
    let Cause::Terminated { code, .. } = pair.ends[1].host.failures[0].cause else { panic!() };
    assert_eq!(code, TermCode::RDMAP_LOCAL);
}

#[test]
fn a_terminate_that_both_ends_send_at_once_ends_both() {
    let mut pair = Pair::open();
    let now = pair.now;
    for end in &mut pair.ends {
        modify(&mut end.qp, &mut end.host, QpState::Error, now);
        assert!(end.transmit(now));
    }
    pair.run();
    for end in &pair.ends {
        assert_eq!(end.shutdowns.last(), Some(&Shutdown::Close));
        assert!(end.host.failures.is_empty());
    }
}

#[test]
fn after_the_last_word_input_is_read_and_dropped_until_the_peer_closes() {
    let mut raw = Raw::new();
    raw.receive(&fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 9, 0, true)), &[]));
    assert_eq!(raw.qp.rx_next(), RxNext::Discard);
    assert_eq!(raw.receive(&[7; 1000]), 1000);
    assert!(raw.last_word().is_some());
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Close));
    assert_eq!(raw.host.failures.len(), 1);
}

#[test]
fn a_responder_that_may_not_speak_yet_closes_without_a_terminate() {
    let mut raw = Raw::with(|agreed| agreed.role = Role::Responder, config());
    let attr = QpAttr { state: QpState::Error, ..*raw.qp.attr() };
    raw.qp.modify(&attr, AttrMask::STATE, raw.now, &mut raw.host).unwrap();
    assert!(raw.sent().is_empty());
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
}

#[test]
fn a_reset_fails_what_is_in_flight_and_is_told_once() {
    for end in [StreamEnd::Reset, StreamEnd::TimedOut] {
        let mut raw = Raw::new();
        raw.host.post_recv(5, 100);
        raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 10)).unwrap();
        raw.sent();
        raw.qp.handle_end(raw.now, end, 0, &mut raw.host);
        raw.qp.handle_end(raw.now, end, 0, &mut raw.host);
        assert_eq!(raw.host.failures.len(), 1);
        assert_eq!(raw.host.failures[0].cause, Cause::ConnectionLost(end));
        assert_eq!((raw.host.sent.len(), raw.host.flushed.len()), (1, 1));
        assert_eq!(raw.host.events, [QpEvent::Fatal]);
        assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Close));
    }
}

#[test]
fn an_end_within_an_fpdu_or_with_reads_in_flight_is_a_loss() {
    let send = fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[1; 8]);
    let mut raw = Raw::new();
    let consumed = raw.receive(&send[..10]);
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 10 - consumed, &mut raw.host);
    assert_eq!(raw.host.failures[0].cause, Cause::ConnectionLost(StreamEnd::Closed));
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 10)).unwrap();
    raw.sent();
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!(raw.host.failures.len(), 1);
    // A READ that is posted afterwards could never be answered either.
    let mut raw = Raw::new();
    raw.qp.handle_end(raw.now, StreamEnd::Closed, 0, &mut raw.host);
    assert_eq!(raw.qp.state(), QpState::Rts);
    raw.qp.post_send(wqe(1, SendOp::Write(REMOTE), 10)).unwrap();
    raw.qp.post_send(wqe(2, SendOp::Read(REMOTE), 10)).unwrap();
    raw.sent();
    let ended: Vec<_> = raw.host.sent.iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(ended.last(), Some(&(2, WcStatus::Flushed)));
    assert_eq!(raw.host.failures.len(), 1);
}

#[test]
fn a_peer_that_stands_still_within_an_fpdu_is_given_up() {
    let send = fpdu(&DdpHeader::Untagged(untagged(Op::SEND, 1, 0, true)), &[1; 8]);
    let mut raw = Raw::new();
    raw.host.post_recv(1, 100);
    raw.receive(&send[..10]);
    assert_eq!(raw.qp.next_deadline(), Some(raw.now + 1_000));
    raw.receive(&send);
    assert_eq!(raw.qp.next_deadline(), None);
    raw.receive(&send[..10]);
    raw.qp.handle_timeout(raw.now + 999, &mut raw.host);
    assert_eq!(raw.qp.state(), QpState::Rts);
    raw.qp.handle_timeout(raw.now + 1_000, &mut raw.host);
    assert_eq!(raw.host.failures[0].cause, Cause::ConnectionLost(StreamEnd::Stalled));
    let mut raw = Raw::with(|_| {}, StreamConfig { stall_ns: 0, ..config() });
    raw.receive(&send[..10]);
    assert_eq!(raw.qp.next_deadline(), None);
}

#[test]
fn a_malformed_terminate_is_answered_and_does_no_harm() {
    let mut raw = Raw::new();
    // It announces a DDP header that it does not have.
    let body = [0x01, 0, 0x40, 0, 0, 8];
    raw.untagged(untagged(Op::TERMINATE, 1, 0, true), &body);
    assert_eq!(raw.last_word().unwrap().code, TermCode::RDMAP_OPERATION_OTHER);
}

#[test]
fn a_terminate_that_names_nothing_we_sent_fails_nothing_by_name() {
    let mut raw = Raw::new();
    raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 10)).unwrap();
    let sent = raw.sent();
    let DdpHeader::Untagged(ours) = sent[0].0 else { panic!() };
    let header = Untagged { msn: vernic_wire::iwarp::Msn(77), ..ours };
    let mut body = [0; Terminate::MAX_LEN];
    let terminate = Terminate {
        segment_len: 46,
        length_valid: true,
        ddp: Some(DdpHeader::Untagged(header)),
        read: Some(ReadRequest::default()),
        ..Terminate::new(TermCode::RDMAP_STAG)
    };
    let len = terminate.emit(&mut body);
    raw.untagged(untagged(Op::TERMINATE, 1, 0, true), &body[..len]);
    assert_eq!((raw.host.sent[0].status, raw.host.failures[0].wr_id), (WcStatus::Flushed, None));
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Write));
    assert!(raw.sent().is_empty());
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_can_start_again() {
    let mut raw = Raw::new();
    let agreed = super::pair::agreed(Role::Initiator);
    assert_eq!(raw.qp.start(&agreed, config()), Err(StartError::HasStream));
    raw.qp.post_send(wqe(1, SendOp::Read(REMOTE), 10)).unwrap();
    raw.sent();
    modify(&mut raw.qp, &mut raw.host, QpState::Reset, raw.now);
    assert_eq!(raw.qp.poll_shutdown(), Some(Shutdown::Reset));
    assert!(raw.host.sent.is_empty() && raw.host.flushed.is_empty());
    assert_eq!(raw.qp.post_send(wqe(2, SendOp::Send, 1)), Err(PostError::State(QpState::Reset)));
    assert_eq!(raw.qp.start(&agreed, config()), Err(StartError::State(QpState::Reset)));
    modify(&mut raw.qp, &mut raw.host, QpState::Init, raw.now);
    raw.qp.start(&agreed, config()).unwrap();
    raw.qp.post_send(wqe(3, SendOp::Write(REMOTE), 10)).unwrap();
    raw.sent();
    assert_eq!(raw.host.sent[0].wr_id, 3);
}

#[test]
fn without_a_stream_error_flushes_what_was_posted() {
    let mut raw = Raw::new();
    modify(&mut raw.qp, &mut raw.host, QpState::Reset, raw.now);
    modify(&mut raw.qp, &mut raw.host, QpState::Init, raw.now);
    modify(&mut raw.qp, &mut raw.host, QpState::Rtr, raw.now);
    modify(&mut raw.qp, &mut raw.host, QpState::Rts, raw.now);
    raw.qp.post_send(wqe(1, SendOp::Send, 10)).unwrap();
    assert!(!raw.qp.wants_transmit());
    modify(&mut raw.qp, &mut raw.host, QpState::Error, Time(0));
    assert_eq!(raw.host.sent[0].status, WcStatus::Flushed);
}
