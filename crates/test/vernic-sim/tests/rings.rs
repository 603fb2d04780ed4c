//! Scenarios of queue pairs of two processes of one host: SENDs as parts of messages (`=>` is a
//! ring, `->` the network), and what happens when a ring comes, breaks, or its reader ends.

use vernic_proto::QpState;
use vernic_sim::{PairConfig, RcPair, expect};

fn pair() -> RcPair {
    RcPair::with(PairConfig { rings: true, ..PairConfig::default() })
}

/// SENDs of 2 KiB and more are copied by the receiver.
fn rendezvous() -> RcPair {
    RcPair::with(PairConfig { rings: true, rendezvous: Some(2048), ..PairConfig::default() })
}

#[test]
fn sends_travel_without_packets_and_the_rest_in_packets() {
    let mut t = pair();
    t.b.post_recv(4096).post_recv(64).post_recv(64);
    t.a.post_send(3 * 1024).post_write(2 * 1024).solicited().post_send_imm(5, 77);
    t.a.post_read(64).post_send_inv(0);
    t.run(expect![[r#"
        A=>B PART psn=0..2 3072 bytes
        A=>B WRITE_FIRST psn=3
        A=>B WRITE_LAST psn=4
        A=>B PART psn=5 5 bytes
        A=>B READ_REQUEST psn=6
        A=>B PART psn=7 0 bytes
        B recv 0 Success 3072 bytes None
        B recv 1 Success 5 bytes Imm(77)
        B recv 2 Success 0 bytes Invalidated(0x0000077d)
        B=>A READ_RESPONSE_ONLY psn=6
        B=>A ACK psn=7 credits=0
        A wc 0 Send Success
        A wc 1 Write Success
        A wc 2 Send Success
        A wc 3 Read Success
        A wc 4 Send Success"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn a_long_send_is_some_parts() {
    let mut t =
        RcPair::with(PairConfig { rings: true, part: 2 * 1024 + 500, ..PairConfig::default() });
    t.b.post_recv(8192);
    t.a.post_send_imm(5 * 1024 + 1, 9);
    t.run(expect![[r#"
        A=>B PART_FIRST psn=0..1 2048 bytes
        A=>B PART_MIDDLE psn=2..3 2048 bytes
        A=>B PART_LAST psn=4..5 1025 bytes
        B recv 0 Success 5121 bytes Imm(9)
        B=>A ACK psn=5 credits=0
        A wc 0 Send Success"#]]);
}

#[test]
fn parts_are_not_held_back_by_the_window() {
    let mut t = RcPair::with(PairConfig { rings: true, window: 1, ..PairConfig::default() });
    t.b.post_recv(4096).post_recv(4096);
    t.a.post_send(3 * 1024).post_send(3 * 1024).post_write(8);
    t.run(expect![[r#"
        A=>B PART psn=0..2 3072 bytes
        A=>B PART psn=3..5 3072 bytes
        B recv 0 Success 3072 bytes None
        B recv 1 Success 3072 bytes None
        B=>A ACK psn=5 credits=0
        A wc 0 Send Success
        A wc 1 Send Success
        A=>B WRITE_ONLY psn=6
        B=>A ACK psn=6 credits=0
        A wc 2 Write Success"#]]);
}

#[test]
fn a_receiver_that_is_not_ready_gets_the_message_again_in_packets() {
    let mut t = RcPair::with(PairConfig { rings: true, shared_rq: true, ..PairConfig::default() });
    t.a.post_send(2 * 1024).post_send(8);
    t.b.after(5_000).post_recv(4096).post_recv(64);
    t.run(expect![[r#"
        A=>B PART psn=0..1 2048 bytes
        A=>B PART psn=2 8 bytes
        B=>A RNR psn=0 timer=1
        A=>B SEND_FIRST psn=0
        A=>B SEND_LAST psn=1
        A=>B SEND_ONLY psn=2
        B recv 0 Success 2048 bytes None
        B recv 1 Success 8 bytes None
        B=>A ACK psn=2
        A wc 0 Send Success
        A wc 1 Send Success"#]]);
    assert_eq!(t.counters_a().rnr_naks_received, 1);
}

#[test]
fn a_message_longer_than_the_receive_fails_both_ends() {
    let mut t = pair();
    t.b.post_recv(1000);
    t.a.post_send(1001).post_send(8);
    t.run(expect![[r#"
        A=>B PART psn=0 1001 bytes
        A=>B PART psn=1 8 bytes
        B recv 0 LocalLength 0 bytes None
        B event RequestError
        B=>A NAK psn=0 INVALID_REQUEST
        A wc 0 Send RemoteInvalidRequest
        A wc 1 Send Flushed"#]]);
    assert_eq!(t.states(), (QpState::Error, QpState::Error));
}

#[test]
fn a_receive_with_bad_memory_is_the_responders_fault() {
    let mut t = rendezvous();
    t.b.post_broken_recv(4096);
    t.a.post_send(4096);
    t.run(expect![[r#"
        A=>B RENDEZVOUS psn=0..3 4096 bytes
        B recv 0 LocalProtection 0 bytes None
        B event Fatal
        B=>A NAK psn=0 REMOTE_OPERATIONAL
        A wc 0 Send RemoteOperation"#]]);
}

#[test]
fn bad_local_memory_fails_in_its_turn() {
    let mut t = RcPair::with(PairConfig { rings: true, part: 1024, ..PairConfig::default() });
    t.b.post_recv(64).post_recv(4096);
    t.a.post_send(8).broken_at(1024).post_send(2048).post_send(8);
    t.run(expect![[r#"
        A=>B PART psn=0 8 bytes
        A=>B PART_FIRST psn=1 1024 bytes
        B recv 0 Success 8 bytes None
        B=>A ACK psn=1 credits=0
        A wc 0 Send Success
        A wc 1 Send LocalProtection
        A wc 2 Send Flushed"#]]);
}

#[test]
fn sqd_finishes_what_was_started_and_starts_nothing() {
    let mut t = pair();
    t.b.post_recv(64).post_recv(64);
    t.a.post_send(8).after(100).modify(QpState::Sqd).post_send(8);
    t.run(expect![[r#"
        A=>B PART psn=0 8 bytes
        A -> Sqd
        B recv 0 Success 8 bytes None
        B=>A ACK psn=0 credits=1
        A wc 0 Send Success
        A event SqDrained"#]]);
    t.a.modify(QpState::Rts);
    t.run(expect![[r#"
        A -> Rts
        A=>B PART psn=1 8 bytes
        B recv 1 Success 8 bytes None
        B=>A ACK psn=1 credits=0
        A wc 1 Send Success"#]]);
}

#[test]
fn large_payload_is_copied_by_the_receiver() {
    let mut t = rendezvous();
    t.b.post_recv(1 << 16).post_recv(64);
    t.a.post_send_imm(60_000, 5).post_send(8);
    t.run(expect![[r#"
        A=>B RENDEZVOUS psn=0..58 60000 bytes
        A=>B PART psn=59 8 bytes
        B recv 0 Success 60000 bytes Imm(5)
        B recv 1 Success 8 bytes None
        B=>A ACK psn=59 credits=0
        A wc 0 Send Success
        A wc 1 Send Success"#]]);
}

#[test]
fn payload_that_cannot_be_copied_comes_in_packets_and_costs_no_retry() {
    let mut t = RcPair::with(PairConfig {
        rings: true,
        rendezvous: Some(2048),
        retry_cnt: 0,
        ..PairConfig::default()
    });
    t.b.post_recv(4096).post_recv(64).cannot_reach(1);
    t.a.post_send(3 * 1024).post_send(8);
    t.run(expect![[r#"
        A=>B RENDEZVOUS psn=0..2 3072 bytes
        A=>B PART psn=3 8 bytes
        B=>A NAK psn=0 seq
        A=>B SEND_FIRST psn=0
        A=>B SEND_MIDDLE psn=1
        A=>B SEND_LAST psn=2
        A=>B SEND_ONLY psn=3
        B recv 0 Success 3072 bytes None
        B recv 1 Success 8 bytes None
        B=>A ACK psn=3 credits=0
        A wc 0 Send Success
        A wc 1 Send Success"#]]);
    assert_eq!((t.counters_a().ack_timeouts, t.counters_a().retransmitted_packets), (0, 4));
}

#[test]
fn the_first_request_after_the_answers_of_the_network_goes_through_a_new_ring() {
    let mut t = RcPair::default();
    t.b.post_recv(64).post_recv(64).post_recv(64);
    t.a.post_send(8).after(500).join_rings().post_send(8).post_send(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 Success 8 bytes None
        B->A ACK psn=0 credits=2
        A wc 0 Send Success
        A=>B PART psn=1 8 bytes
        A=>B PART psn=2 8 bytes
        B recv 1 Success 8 bytes None
        B recv 2 Success 8 bytes None
        B=>A ACK psn=2 credits=0
        A wc 1 Send Success
        A wc 2 Send Success"#]]);
}

#[test]
fn what_a_lost_ring_swallowed_is_missed_and_comes_in_packets() {
    let mut t = pair();
    t.b.post_recv(4096).post_recv(4096).post_recv(64);
    t.a.post_send(2 * 1024).post_send(2 * 1024).after(500).lose_rings(1).post_send(8);
    t.run(expect![[r#"
        A=>B PART psn=0..1 2048 bytes
        A=>B PART psn=2..3 2048 bytes
        B recv 0 Success 2048 bytes None
        B->A ACK psn=1 credits=2
        A->B SEND_ONLY psn=4
        A wc 0 Send Success
        B->A NAK psn=2 seq
        A->B SEND_FIRST psn=2
        A->B SEND_LAST psn=3
        B recv 1 Success 2048 bytes None
        B->A ACK psn=3 credits=1
        A wc 1 Send Success
        A->B SEND_ONLY psn=4
        B recv 2 Success 8 bytes None
        B->A ACK psn=4 credits=0
        A wc 2 Send Success"#]]);
    assert_eq!(t.counters_b().sequence_naks_sent, 1);
}

#[test]
fn a_lost_ring_with_nothing_behind_it_is_noticed_by_the_timeout() {
    let mut t = pair();
    t.b.post_recv(4096);
    t.a.post_send(2 * 1024).after(500).lose_rings(0);
    t.run(expect![[r#"
        A=>B PART psn=0..1 2048 bytes
        A->B SEND_FIRST psn=0
        A->B SEND_LAST psn=1
        B recv 0 Success 2048 bytes None
        B->A ACK psn=1 credits=0
        A wc 0 Send Success"#]]);
    assert_eq!(t.counters_a().ack_timeouts, 1);
}

#[test]
fn what_a_process_wrote_before_its_end_is_received_and_then_its_peer_fails() {
    let mut t = rendezvous();
    t.b.post_recv(64).post_recv(4096).post_recv(64).post_send(8);
    t.a.post_recv(64);
    t.a.after(2_500).post_send(8).post_send(4096).post_send(8).after(2_700).die(2);
    t.run(expect![[r#"
        B=>A PART psn=1000 8 bytes
        A recv 0 Success 8 bytes None
        A=>B ACK psn=1000 credits=0
        B wc 0 Send Success
        A=>B PART psn=0 8 bytes
        A=>B RENDEZVOUS psn=1..4 4096 bytes
        A=>B PART psn=5 8 bytes
        A -> Reset
        B recv 0 Success 8 bytes None
        B event Fatal
        B->A ACK psn=0 credits=0"#]]);
    assert_eq!(t.states(), (QpState::Reset, QpState::Error));
}
