//! Answers that overtake each other while a response is missing.

use std::sync::Arc;

use super::*;

/// An end with one retry that keeps responses, and has asked for two times 8 bytes around a SEND.
fn sender() -> Sender {
    let mut s = Sender::with(|a| a.retry_cnt = 1);
    s.qp.set_keeping(Some(Keeping { packets: 64, budget: Arc::new(KeepBudget::new(1 << 20)) }));
    s.post(read_at(0x1000), 8);
    s.post(SendOp::Send, 1);
    s.post(read_at(0x2000), 8);
    let sent = "RC_READ_REQUEST 0 [0x1000+8]; RC_SEND_ONLY 1; RC_READ_REQUEST 2 [0x2000+8]; ";
    assert_eq!(s.drain().replace('!', ""), sent);
    s
}

/// What has ended well once the missing response has come, for which nothing is asked again.
fn finish(s: &mut Sender) -> String {
    s.read_response(0, Position::Only, 8);
    check(&s.drain(), expect![""]);
    s.log()
}

#[test]
fn a_nak_that_an_ack_has_overtaken_is_no_second_loss() {
    let mut s = sender();
    assert_eq!(s.ack(1), Disposition::Drop(DropReason::ResponseAhead));
    s.pass(1_000_000);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x1000+8];"]);
    assert_eq!(
        s.nak(0, NakCode::PSN_SEQUENCE),
        Disposition::Drop(DropReason::StaleResponse),
        "the peer has told that it has 0 and 1",
    );
    check(&s.drain(), expect![""]);
    check(&finish(&mut s), expect!["wc 1 Success; wc 2 Success;"]);
    s.read_response(2, Position::Only, 8);
    check(&s.log(), expect!["wc 3 Success;"]);
}

#[test]
fn a_nak_that_a_response_has_overtaken_is_no_second_loss() {
    let mut s = sender();
    assert_eq!(s.read_response(2, Position::Only, 8), Disposition::Kept);
    s.pass(1_000_000);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x1000+8];"]);
    for late in 0..2 {
        let disposition = s.nak(late, NakCode::PSN_SEQUENCE);
        assert_eq!(disposition, Disposition::Drop(DropReason::StaleResponse));
    }
    check(&s.drain(), expect![""]);
    // The response that was kept follows behind the SEND that it acknowledges.
    check(&finish(&mut s), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
    assert_eq!(s.host.responses, [(0, 0, 8), (2, 0, 8)]);
    assert_eq!(s.qp.counters().retransmitted_packets, 1, "the first READ");
}

#[test]
fn what_was_not_asked_for_again_yet_is_no_loss() {
    let mut s = Sender::with(|a| (a.retry_cnt, a.max_rd_atomic) = (1, 4));
    s.qp.set_keeping(Some(Keeping { packets: 64, budget: Arc::new(KeepBudget::new(1 << 20)) }));
    for at in 1..=3 {
        s.post(read_at(0x1000 * at), 8);
    }
    s.drain();
    s.nak(0, NakCode::PSN_SEQUENCE);
    let mut buf = [0; 4500];
    s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    // Responses to what was sent before it went back.
    s.read_response(2, Position::Only, 8);
    s.read_response(0, Position::Only, 8);
    check(&s.drain(), expect!["RC_READ_REQUEST 1 [0x2000+8]; RC_READ_REQUEST 2 [0x3000+8];"]);
    assert_eq!(s.qp.counters().implied_naks, 0);
    s.read_response(1, Position::Only, 8);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
}
