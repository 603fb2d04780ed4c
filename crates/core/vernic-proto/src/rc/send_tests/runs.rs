//! Packets of SENDs that travel as one.

use super::*;

/// Runs of 4 to 16 packets of 256 bytes. The window begins with 128 packets.
const LIMITS: RunLimits = RunLimits { min_bytes: 4 * MTU, max_bytes: 16 * MTU };

fn sender() -> Sender {
    let mut s = Sender::new();
    s.qp.set_runs(Some(LIMITS));
    s
}

#[test]
fn a_long_send_leaves_in_runs_and_the_rest_of_it_in_packets() {
    let mut s = sender();
    s.post(SendOp::SendImm(7), 34 * MTU + 1);
    check(
        &s.drain(),
        expect![
            "RC_SEND_FIRST 0x16!; RC_SEND_MIDDLE 16x16!; RC_SEND_MIDDLE 32; RC_SEND_MIDDLE 33; RC_SEND_LAST_IMM 34!;"
        ],
    );
    let run = Run { length: 16 * MTU, packets: 16 };
    assert_eq!(s.host.named, [(0, 0, run), (0, 16 * MTU, run)]);
    let counters = *s.qp.counters();
    assert_eq!((counters.tx_packets, counters.messages_sent), (35, 1));
    s.ack(15);
    check(&s.log(), expect![""]);
    s.ack(34);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.qp.packets_in_flight(), 0);
}

#[test]
fn a_run_may_be_a_whole_message_that_ends_in_the_middle_of_a_packet() {
    let mut s = sender();
    for length in [4 * MTU, 4 * MTU - 1, 10 * MTU + 1, 16 * MTU] {
        s.post_flags(SendOp::Send, length, SendFlags::SIGNALED | SendFlags::SOLICITED);
    }
    check(
        &s.drain(),
        expect![
            "RC_SEND_ONLY 0x4!; RC_SEND_FIRST 4; RC_SEND_MIDDLE 5; RC_SEND_MIDDLE 6; RC_SEND_LAST 7!; RC_SEND_ONLY 8x11!; RC_SEND_ONLY 19x16!;"
        ],
    );
    s.ack(34);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success; wc 4 Success;"]);
}

#[test]
fn only_sends_travel_so_and_only_while_it_is_permitted() {
    let mut s = sender();
    s.post(SendOp::Write(Remote { addr: 0, rkey: Rkey(9) }), 5 * MTU);
    assert_eq!(s.qp.next_send_bytes(), 0);
    assert!(!s.drain().contains('x'));
    s.qp.set_runs(None);
    s.post(SendOp::Send, 5 * MTU);
    assert_eq!(s.qp.next_send_bytes(), 5 * MTU);
    assert!(!s.drain().contains('x'));
    // Nor on another service.
    let init = QpInit {
        qpn: Qpn::new(0x11),
        qp_type: QpType::XrcIni,
        max_send_wr: 4,
        max_window: 1024,
        shared_rq: true,
    };
    let mut s = Sender::of(init, |attr| attr.max_dest_rd_atomic = 0);
    s.qp.set_runs(Some(LIMITS));
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let srqn = Some(Srqn::new(3));
    let wqe = SendWqe { wr_id: 1, op, flags, length: 8 * MTU, dest: None, srqn };
    s.qp.post_send(wqe).unwrap();
    let sent = s.drain();
    assert!(sent.contains("XRC_SEND_FIRST") && !sent.contains('x'), "{sent}");
}

#[test]
fn what_cannot_be_named_travels_in_packets() {
    let mut s = sender();
    s.host.unnamed = true;
    s.post(SendOp::Send, 5 * MTU);
    check(
        &s.drain(),
        expect![
            "RC_SEND_FIRST 0; RC_SEND_MIDDLE 1; RC_SEND_MIDDLE 2; RC_SEND_MIDDLE 3; RC_SEND_LAST 4!;"
        ],
    );
    let mut s = sender();
    s.host.fail_gather = true;
    s.post(SendOp::Send, 5 * MTU);
    check(&s.drain(), expect![""]);
    assert!(s.log().ends_with("wc 1 LocalProtection; "));
}

#[test]
fn what_is_sent_again_travels_in_packets_and_what_follows_it_does_not() {
    let mut s = sender();
    s.post(SendOp::Send, 20 * MTU);
    s.post(SendOp::Send, 4 * MTU);
    s.drain();
    // One that has no receive, a gap behind the fourth packet, silence.
    s.aeth(0, 0, Syndrome::rnr(RnrTimer::new(1)));
    s.pass(20_000_000);
    let again = s.drain();
    assert!(!again.contains('x') && again.starts_with("RC_SEND_FIRST 0; "), "{again}");
    s.nak(4, NakCode::PSN_SEQUENCE);
    let again = s.drain();
    assert!(!again.contains('x') && again.starts_with("RC_SEND_MIDDLE 4; "), "{again}");
    s.ack(20);
    s.post(SendOp::Send, 4 * MTU);
    check(&s.drain(), expect!["RC_SEND_ONLY 24x4!;"]);
    s.ack(27);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
}

#[test]
fn a_peer_that_cannot_copy_costs_no_retry_but_once() {
    let mut s = Sender::with(|attr| attr.retry_cnt = 0);
    s.qp.set_runs(Some(LIMITS));
    s.post(SendOp::Send, 20 * MTU);
    s.drain();
    s.ack(15);
    let window = |s: &Sender| s.qp.packets_in_flight();
    assert_eq!(window(&s), 4);
    s.post(SendOp::Send, 8 * MTU);
    check(&s.drain(), expect!["RC_SEND_ONLY 20x8!;"]);
    s.nak(20, NakCode::PSN_SEQUENCE);
    assert_eq!(s.qp.state(), QpState::Rts);
    assert!(s.drain().starts_with("RC_SEND_FIRST 20; RC_SEND_MIDDLE 21; "));
    // As packets they can be lost.
    s.nak(22, NakCode::PSN_SEQUENCE);
    assert_eq!(s.qp.state(), QpState::Error);
    assert!(s.log().contains("wc 2 RetryExceeded; "));
}

#[test]
fn a_run_takes_half_of_the_window_and_waits_for_room() {
    let mut s = sender();
    s.qp.set_runs(Some(RunLimits { max_bytes: 1000 * MTU, ..LIMITS }));
    s.post(SendOp::Send, 300 * MTU);
    check(&s.drain(), expect!["RC_SEND_FIRST 0x64!; RC_SEND_MIDDLE 64x64!;"]);
    assert!(!s.qp.wants_requests());
    s.ack(63);
    assert!(s.qp.wants_requests());
    assert!(s.drain().starts_with("RC_SEND_MIDDLE 128x"));
}

#[test]
fn a_silent_peer_is_asked_with_packets() {
    let mut s = sender();
    s.post(SendOp::Send, 16 * MTU);
    s.drain();
    s.pass(2_000_000);
    check(&s.drain(), expect!["RC_SEND_FIRST 0!; RC_SEND_LAST 15!;"]);
}
