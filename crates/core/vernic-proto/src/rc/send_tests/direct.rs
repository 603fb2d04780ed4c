//! Requests that the owner carries out itself, among those that take packets.

use super::*;

fn write(addr: u64) -> SendOp {
    SendOp::Write(Remote { addr, rkey: Rkey(9) })
}

/// Where the next request stands, and what it waits for.
fn turn(s: &Sender) -> Option<(u64, u32, After)> {
    s.qp.next_direct().map(|direct| (direct.remote.addr, direct.done, direct.after))
}

fn finish(s: &mut Sender) {
    s.qp.finish_direct(s.now, &mut s.host);
}

/// To SQD, which says when it is drained, or back.
fn set_draining(s: &mut Sender, draining: bool) {
    let state = if draining { QpState::Sqd } else { QpState::Rts };
    let attr = QpAttr { state, sqd_async_notify: draining, ..*s.qp.attr() };
    let notify = AttrMask::EN_SQD_ASYNC_NOTIFY;
    let mask = AttrMask::STATE | if draining { notify } else { AttrMask::empty() };
    s.qp.modify(&attr, mask, s.now, &mut s.host).unwrap();
}

#[test]
fn a_request_carried_out_directly_completes_and_takes_no_sequence_number() {
    let mut s = Sender::new();
    s.post(write(0x1000), 3 * MTU);
    let remote = Remote { addr: 0x1000, rkey: Rkey(9) };
    let expected = Direct {
        op: DirectOp::Write,
        remote,
        length: 3 * MTU,
        slot: 0,
        done: 0,
        after: After::Nothing,
    };
    assert_eq!(s.qp.next_direct(), Some(expected));
    finish(&mut s);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!((s.qp.counters().messages_sent, s.qp.counters().tx_packets), (1, 0));
    assert!(!s.qp.wants_transmit() && s.qp.next_deadline().is_none());
    s.post(SendOp::Send, 1);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!;"]);
    s.ack(0);
    check(&s.log(), expect!["wc 2 Success;"]);
}

#[test]
fn writes_reads_and_aligned_atomics_can_be_direct_and_nothing_else() {
    let remote = Remote { addr: 0x1000, rkey: Rkey(9) };
    let odd = Remote { addr: 0x1004, ..remote };
    let atomic = |remote| SendOp::FetchAdd { remote, add: 5 };
    let swap = SendOp::CmpSwap { remote, compare: 1, swap: 2 };
    let direct = |op, length| {
        let mut s = Sender::new();
        s.post(op, length);
        s.qp.next_direct().map(|direct| (direct.op, direct.length))
    };
    assert_eq!(direct(write(0), 1), Some((DirectOp::Write, 1)));
    assert_eq!(direct(read_at(0), 9), Some((DirectOp::Read, 9)));
    assert_eq!(direct(atomic(remote), 8), Some((DirectOp::Atomic(AtomicOp::FetchAdd(5)), 8)));
    let both = AtomicOp::CmpSwap { compare: 1, swap: 2 };
    assert_eq!(direct(swap, 8), Some((DirectOp::Atomic(both), 8)));
    // The responder says what is wrong with these, or needs to hear of them.
    assert_eq!(direct(atomic(odd), 8), None);
    assert_eq!(direct(write(0), 0), None);
    assert_eq!(direct(read_at(0), 0), None);
    assert_eq!(direct(SendOp::WriteImm(remote, 7), 8), None);
    assert_eq!(direct(SendOp::AtomicWrite(remote), 8), None);
    assert_eq!(direct(SendOp::Flush { remote, placement: 1, selectivity: 0 }, 8), None);
    assert_eq!(direct(SendOp::Send, 8), None);
    assert_eq!(direct(SendOp::LocalInv(Rkey(5)), 0), None);
}

#[test]
fn what_was_sent_before_is_acknowledged_first() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.post(write(0x1000), 1);
    assert_eq!(turn(&s), None);
    let mut buf = [0; 4500];
    s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    assert_eq!(turn(&s), Some((0x1000, 0, After::Other)));
    // It is not its turn: nothing happens.
    finish(&mut s);
    s.qp.direct_progress(1);
    check(&s.log(), expect![""]);
    s.ack(0);
    assert_eq!(turn(&s), Some((0x1000, 0, After::Nothing)));
    s.post(write(0x2000), 1);
    s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    assert_eq!(turn(&s), Some((0x2000, 0, After::OneSided)));
    s.ack(1);
    finish(&mut s);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
}

#[test]
fn a_repeated_packet_is_waited_for_as_well() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.post(write(0x1000), 1);
    s.nak(0, NakCode::PSN_SEQUENCE);
    assert_eq!(turn(&s), None);
    let delay = RnrTimer::new(12);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!; RC_WRITE_ONLY 1!;"]);
    s.post(write(0x2000), 1);
    s.aeth(0, 0, Syndrome::rnr(delay));
    assert_eq!(turn(&s), None);
    s.pass(delay.nanos());
    check(&s.drain(), expect!["RC_SEND_ONLY 0!; RC_WRITE_ONLY 1!; RC_WRITE_ONLY 2!;"]);
    s.ack(2);
    s.post(write(0x3000), 1);
    assert_eq!(turn(&s), Some((0x3000, 0, After::Nothing)));
}

#[test]
fn nothing_leaves_before_a_begun_request_is_finished() {
    let mut s = Sender::new();
    s.post(write(0x1000), 4 * MTU);
    s.post(SendOp::Send, 1);
    s.qp.direct_progress(MTU);
    assert_eq!(turn(&s), Some((0x1000, MTU, After::Nothing)));
    assert!(s.qp.wants_requests());
    check(&s.drain(), expect![""]);
    // More than there is counts as all of it.
    s.qp.direct_progress(u32::MAX);
    assert_eq!(turn(&s), Some((0x1000, 4 * MTU, After::Nothing)));
    check(&s.drain(), expect![""]);
    finish(&mut s);
    check(&s.log(), expect!["wc 1 Success;"]);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!;"]);
}

#[test]
fn a_refused_request_takes_packets_from_its_beginning() {
    let mut s = Sender::new();
    s.post(read_at(0x1000), 2 * MTU);
    s.qp.direct_progress(MTU + 1);
    s.qp.refuse_direct();
    assert_eq!(turn(&s), None);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x1000+512];"]);
    s.read_response(0, Position::First, 256);
    s.read_response(1, Position::Last, 256);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.host.responses, [(0, 0, 256), (0, 256, 256)]);
}

#[test]
fn a_refused_request_that_was_not_begun_may_be_asked_for_again() {
    let mut s = Sender::new();
    s.post(write(0x1000), 1);
    s.qp.refuse_direct();
    assert_eq!(turn(&s), Some((0x1000, 0, After::Nothing)));
    set_draining(&mut s, true);
    s.qp.refuse_direct();
    check(&s.drain(), expect![""]);
    set_draining(&mut s, false);
    check(&s.drain(), expect!["RC_WRITE_ONLY 0!;"]);
}

#[test]
fn only_signaled_requests_complete_and_a_fence_is_open() {
    let mut s = Sender::new();
    s.post_flags(write(0), 1, SendFlags::empty());
    s.post_flags(read_at(0), 1, SendFlags::SIGNALED | SendFlags::FENCE);
    finish(&mut s);
    check(&s.log(), expect![""]);
    finish(&mut s);
    check(&s.log(), expect!["wc 2 Success;"]);
}

#[test]
fn a_fenced_request_waits_for_reads_under_way() {
    let mut s = Sender::new();
    s.post(read_at(0), 12);
    s.drain();
    s.post_flags(write(0x1000), 1, SendFlags::SIGNALED | SendFlags::FENCE);
    assert_eq!(turn(&s), Some((0x1000, 0, After::OneSided)));
    s.read_response(0, Position::Only, 12);
    assert_eq!(turn(&s), Some((0x1000, 0, After::Nothing)));
}

#[test]
fn sqd_finishes_a_begun_request_and_holds_the_next() {
    let mut s = Sender::new();
    s.post(write(0x1000), 2 * MTU);
    s.post(write(0x2000), 1);
    s.qp.direct_progress(MTU);
    set_draining(&mut s, true);
    assert!(s.qp.is_draining());
    assert_eq!(turn(&s), Some((0x1000, MTU, After::Nothing)));
    finish(&mut s);
    check(&s.log(), expect!["wc 1 Success; event SqDrained;"]);
    assert!(!s.qp.is_draining());
    assert_eq!(turn(&s), None);
    finish(&mut s);
    check(&s.log(), expect![""]);
    set_draining(&mut s, false);
    assert_eq!(turn(&s), Some((0x2000, 0, After::Nothing)));
}

#[test]
fn sqd_sends_a_begun_request_that_takes_packets_after_all() {
    let mut s = Sender::new();
    s.post(write(0x1000), 2 * MTU);
    s.post(SendOp::Send, 1);
    s.qp.direct_progress(MTU);
    set_draining(&mut s, true);
    s.qp.refuse_direct();
    assert!(s.qp.is_draining());
    check(&s.drain(), expect!["RC_WRITE_FIRST 0; RC_WRITE_LAST 1!;"]);
    s.ack(1);
    check(&s.log(), expect!["wc 1 Success; event SqDrained;"]);
}

#[test]
fn error_flushes_a_begun_request_and_reset_forgets_it() {
    let mut s = Sender::new();
    s.post(write(0x1000), 2 * MTU);
    s.post(SendOp::Send, 1);
    s.qp.direct_progress(MTU);
    s.modify(QpState::Error, AttrMask::STATE, 0).unwrap();
    check(&s.log(), expect!["wc 1 Flushed; wc 2 Flushed;"]);
    assert_eq!(turn(&s), None);
    assert!(!s.qp.wants_requests());
    finish(&mut s);
    check(&s.log(), expect![""]);

    let mut s = Sender::new();
    s.post(write(0x1000), 2 * MTU);
    s.qp.direct_progress(MTU);
    s.modify(QpState::Reset, AttrMask::STATE, 0).unwrap();
    assert!(!s.qp.wants_requests() && s.qp.next_direct().is_none());
}

#[test]
fn local_memory_that_refuses_is_found_by_the_packets() {
    let mut s = Sender::new();
    s.host.fail_gather = true;
    s.post(write(0x1000), 2 * MTU);
    s.qp.direct_progress(MTU);
    s.qp.refuse_direct();
    check(&s.drain(), expect![""]);
    assert!(s.log().ends_with("wc 1 LocalProtection; "));
}

/// Address and slot of each request behind the next one.
fn behind(s: &Sender) -> Vec<(u64, u32)> {
    s.qp.directs_behind().map(|direct| (direct.remote.addr, direct.slot)).collect()
}

#[test]
fn the_look_ahead_ends_before_the_first_request_that_takes_packets() {
    let mut s = Sender::new();
    assert_eq!(behind(&s), []);
    s.post(write(0x1000), 8);
    assert_eq!(behind(&s), [], "nothing is behind the only request");
    s.post(write(0x2000), 3 * MTU);
    s.post_flags(read_at(0x3000), 8, SendFlags::SIGNALED | SendFlags::FENCE);
    s.post(SendOp::Send, 1);
    s.post(write(0x4000), 8);
    assert_eq!(behind(&s), [(0x2000, 1), (0x3000, 2)]);
    let next = s.qp.directs_behind().next().unwrap();
    assert_eq!((next.op, next.length, next.done), (DirectOp::Write, 3 * MTU, 0));
    assert_eq!(next.after, After::Nothing);
    // What is ahead is what comes, one after the other.
    for rest in [&[(0x2000, 1), (0x3000, 2)][..], &[(0x3000, 2)], &[]] {
        assert_eq!(behind(&s), rest);
        finish(&mut s);
    }
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
    assert_eq!(turn(&s), None);
    assert_eq!(behind(&s), [], "a SEND is next");
    check(&s.drain(), expect!["RC_SEND_ONLY 0!; RC_WRITE_ONLY 1!;"]);
}

#[test]
fn nothing_is_ahead_behind_a_request_that_waits_or_that_sqd_finishes() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.post(write(0x1000), 2 * MTU);
    s.post(write(0x2000), 1);
    assert_eq!(turn(&s), Some((0x1000, 0, After::Other)));
    assert_eq!(behind(&s), []);
    s.ack(0);
    assert_eq!(behind(&s), [(0x2000, 2)]);
    // Begun, it is still the next request; those behind it are not begun.
    s.qp.direct_progress(MTU);
    assert_eq!(behind(&s), [(0x2000, 2)]);
    set_draining(&mut s, true);
    assert_eq!(turn(&s), Some((0x1000, MTU, After::Nothing)));
    assert_eq!(behind(&s), []);
    finish(&mut s);
    assert_eq!(behind(&s), []);
    set_draining(&mut s, false);
    assert_eq!(turn(&s), Some((0x2000, 0, After::Nothing)));
    s.modify(QpState::Error, AttrMask::STATE, 0).unwrap();
    assert_eq!(behind(&s), []);
}

#[test]
fn an_xrc_request_takes_packets() {
    let init = QpInit {
        qpn: Qpn::new(0x11),
        qp_type: QpType::XrcIni,
        max_send_wr: 4,
        max_window: 16,
        shared_rq: true,
    };
    let mut s = Sender::of(init, |_| {});
    let srqn = Some(Srqn::new(3));
    let (op, flags) = (write(0), SendFlags::SIGNALED);
    s.qp.post_send(SendWqe { wr_id: 1, op, flags, length: 8, dest: None, srqn }).unwrap();
    assert_eq!(turn(&s), None);
}
