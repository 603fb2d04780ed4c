//! Scenarios of RC queue pairs: each reads as the trace of what was sent and completed.

use vernic_proto::QpState;
use vernic_sim::{PairConfig, RcPair, expect};
use vernic_wire::{Mtu, Psn};

#[test]
fn lost_first_packet_of_a_send_is_nakked_and_resent() {
    let mut t = RcPair::default();
    t.b.post_recv(4096);
    t.a.post_send(3 * 1024);
    t.wire.lose(Psn::new(0));
    t.run(expect![[r#"
        A->B SEND_FIRST psn=0 LOST
        A->B SEND_MIDDLE psn=1
        A->B SEND_LAST psn=2
        B->A NAK psn=0 seq
        A->B SEND_FIRST psn=0
        A->B SEND_MIDDLE psn=1
        B->A ACK psn=1 credits=0
        A->B SEND_LAST psn=2
        B recv 0 Success 3072 bytes None
        B->A ACK psn=2 credits=0
        A wc 0 Send Success"#]]);
}

#[test]
fn lost_middle_packet_of_a_write_is_nakked_once_and_resent() {
    let mut t = RcPair::default();
    t.a.post_write(4 * 1024);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=0
        A->B WRITE_MIDDLE psn=1 LOST
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_LAST psn=3
        B->A NAK psn=1 seq
        A->B WRITE_MIDDLE psn=1
        A->B WRITE_MIDDLE psn=2
        B->A ACK psn=2 credits=0
        A->B WRITE_LAST psn=3
        B->A ACK psn=3 credits=0
        A wc 0 Write Success"#]]);
    assert!(t.memory_is_right());
    assert_eq!(t.counters_b().sequence_naks_sent, 1);
}

#[test]
fn lost_last_packet_of_a_send_waits_for_the_timeout() {
    let mut t = RcPair::default();
    t.b.post_recv(4096);
    t.a.post_send(2 * 1024);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B SEND_FIRST psn=0
        A->B SEND_LAST psn=1 LOST
        A->B SEND_FIRST psn=0
        A->B SEND_LAST psn=1
        B recv 0 Success 2048 bytes None
        B->A ACK psn=1 credits=0
        A wc 0 Send Success"#]]);
    assert_eq!(t.counters_a().ack_timeouts, 1);
}

#[test]
fn lost_ack_makes_a_duplicate_that_is_acknowledged_again_and_not_executed() {
    let mut t = RcPair::default();
    t.b.post_recv(64);
    t.a.post_send(64);
    t.wire.lose_response(Psn::new(0));
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 Success 64 bytes None
        B->A ACK psn=0 credits=0 LOST
        A->B SEND_ONLY psn=0
        B->A ACK psn=0 credits=0
        A wc 0 Send Success"#]]);
    assert_eq!(t.counters_b().duplicates_received, 1);
    assert_eq!(t.counters_b().messages_received, 1);
}

#[test]
fn lost_read_request_is_repeated_after_the_timeout() {
    let mut t = RcPair::default();
    t.a.post_read(64);
    t.wire.lose(Psn::new(0));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0 LOST
        A->B READ_REQUEST psn=0
        B->A READ_RESPONSE_ONLY psn=0
        A wc 0 Read Success"#]]);
}

#[test]
fn lost_read_response_is_asked_for_again_from_where_it_broke_off() {
    let mut t = RcPair::default();
    t.a.post_read(4 * 1024);
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        B->A READ_RESPONSE_FIRST psn=0
        B->A READ_RESPONSE_MIDDLE psn=1 LOST
        B->A READ_RESPONSE_MIDDLE psn=2
        B->A READ_RESPONSE_LAST psn=3
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_FIRST psn=1
        B->A READ_RESPONSE_MIDDLE psn=2
        B->A READ_RESPONSE_LAST psn=3
        A wc 0 Read Success"#]]);
    assert_eq!((t.counters_a().implied_naks, t.counters_a().ack_timeouts), (1, 0));
}

#[test]
fn lost_last_read_response_is_asked_for_alone() {
    let mut t = RcPair::default();
    t.a.post_read(3 * 1024);
    t.wire.lose_response(Psn::new(2));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        B->A READ_RESPONSE_FIRST psn=0
        B->A READ_RESPONSE_MIDDLE psn=1
        B->A READ_RESPONSE_LAST psn=2 LOST
        A->B READ_REQUEST psn=2
        B->A READ_RESPONSE_ONLY psn=2
        A wc 0 Read Success"#]]);
}

#[test]
fn lost_atomic_response_is_replayed_and_the_atomic_not_executed_twice() {
    let mut t = RcPair::default();
    t.a.post_fetch_add(5);
    t.wire.lose_response(Psn::new(0));
    t.run(expect![[r#"
        A->B FETCH_ADD psn=0
        B->A ATOMIC_ACK psn=0 LOST
        A->B FETCH_ADD psn=0
        B->A ATOMIC_ACK psn=0
        A wc 0 FetchAdd Success"#]]);
    assert_eq!(t.cell_b(), 5);
}

#[test]
fn duplicated_atomic_request_is_executed_once() {
    let mut t = RcPair::default();
    t.a.post_fetch_add(5);
    t.wire.duplicate(Psn::new(0));
    t.run(expect![[r#"
        A->B FETCH_ADD psn=0 TWICE
        B->A ATOMIC_ACK psn=0
        B->A ATOMIC_ACK psn=0
        A wc 0 FetchAdd Success"#]]);
    assert_eq!(t.cell_b(), 5);
}

#[test]
fn receiver_not_ready_is_waited_out() {
    let mut t = RcPair::default();
    t.a.post_send(64);
    t.b.after(15_000).post_recv(64);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B->A RNR psn=0 timer=1
        A->B SEND_ONLY psn=0
        B->A RNR psn=0 timer=1
        A->B SEND_ONLY psn=0
        B recv 0 Success 64 bytes None
        B->A ACK psn=0 credits=0
        A wc 0 Send Success"#]]);
    assert_eq!(t.counters_a().rnr_naks_received, 2);
}

#[test]
fn receiver_never_ready_exceeds_the_retries_and_says_so() {
    let mut t = RcPair::with(PairConfig { rnr_retry: 1, ..PairConfig::default() });
    t.a.post_send(64).post_write(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        A->B WRITE_ONLY psn=1
        B->A RNR psn=0 timer=1
        A->B SEND_ONLY psn=0
        A->B WRITE_ONLY psn=1
        B->A RNR psn=0 timer=1
        A wc 0 Send RnrRetryExceeded
        A wc 1 Write Flushed"#]]);
    expect!["the peer had no receive posted, 2 times in a row, asking for 10 us each; post receives earlier or raise rnr_retry (7 = for ever)"].assert_eq(&t.failure_a().unwrap_or_default());
}

#[test]
fn a_dead_peer_exceeds_the_retries_and_the_cause_says_why() {
    let mut t = RcPair::default();
    t.a.post_write(8).post_write(8);
    t.wire.lose_times(Psn::new(0), 9);
    t.wire.lose_times(Psn::new(1), 9);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=1 LOST
        A wc 0 Write RetryExceeded
        A wc 1 Write Flushed"#]]);
    expect!["no answer after 4 transmissions in 262 us; it never answered: wrong address, GID index, QPN or PSN, peer not in RTR, or a link that is down"].assert_eq(&t.failure_a().unwrap_or_default());
    assert_eq!(t.states(), (QpState::Error, QpState::Rts));
}

#[test]
fn a_refused_key_fails_both_ends_and_writes_nothing() {
    let mut t = RcPair::default();
    t.b.post_recv(64).post_send(8);
    t.a.post_recv(64);
    t.a.post_write(8).denied().post_write(64).post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=1
        A->B WRITE_ONLY psn=2
        B->A SEND_ONLY psn=1000
        B event AccessError
        B wc 0 Send Flushed
        A recv 0 Success 8 bytes None
        B->A NAK psn=1 REMOTE_ACCESS
        A->B ACK psn=1000 credits=0
        A wc 0 Write Success
        A wc 1 Write RemoteAccess
        A wc 2 Write Flushed"#]]);
    assert_eq!(t.states(), (QpState::Error, QpState::Error));
    assert!(t.memory_is_right());
}

#[test]
fn a_message_longer_than_the_receive_fails_both_ends() {
    let mut t = RcPair::default();
    t.b.post_recv(1000);
    t.a.post_send(1001);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 LocalLength 0 bytes None
        B event RequestError
        B->A NAK psn=0 INVALID_REQUEST
        A wc 0 Send RemoteInvalidRequest"#]]);
}

#[test]
fn a_receive_with_bad_memory_is_the_responders_fault() {
    let mut t = RcPair::default();
    t.b.post_broken_recv(64);
    t.a.post_send(64);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 LocalProtection 0 bytes None
        B event Fatal
        B->A NAK psn=0 REMOTE_OPERATIONAL
        A wc 0 Send RemoteOperation"#]]);
}

#[test]
fn bad_local_memory_fails_in_its_turn() {
    let mut t = RcPair::default();
    t.a.post_write(8).broken_at(1024).post_write(2048).post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A->B WRITE_FIRST psn=1
        B->A ACK psn=1 credits=0
        A wc 0 Write Success
        A wc 1 Write LocalProtection
        A wc 2 Write Flushed"#]]);
}

#[test]
fn sequence_numbers_wrap() {
    let mut t =
        RcPair::with(PairConfig { psn: 0xFF_FFFE, mtu: Mtu::B256, ..PairConfig::default() });
    t.a.post_write(4 * 256).post_read(3 * 256);
    t.wire.lose(Psn::new(0));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=16777214
        A->B WRITE_MIDDLE psn=16777215
        A->B WRITE_MIDDLE psn=0 LOST
        A->B WRITE_LAST psn=1
        A->B READ_REQUEST psn=2
        B->A NAK psn=0 seq
        A->B WRITE_MIDDLE psn=0
        A->B WRITE_LAST psn=1
        B->A ACK psn=1 credits=0
        A wc 0 Write Success
        A->B READ_REQUEST psn=2
        B->A READ_RESPONSE_FIRST psn=2
        B->A READ_RESPONSE_MIDDLE psn=3
        B->A READ_RESPONSE_LAST psn=4
        A wc 1 Read Success"#]]);
}

#[test]
fn a_fence_waits_for_the_read_before_it() {
    let mut t = RcPair::default();
    t.a.post_read(64).fenced().post_write(8);
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        B->A READ_RESPONSE_ONLY psn=0
        A wc 0 Read Success
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 1 Write Success"#]]);
}

#[test]
fn without_a_fence_a_write_follows_the_read_at_once() {
    let mut t = RcPair::default();
    t.a.post_read(64).post_write(8);
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        A->B WRITE_ONLY psn=1
        B->A READ_RESPONSE_ONLY psn=0
        B->A ACK psn=1 credits=0
        A wc 0 Read Success
        A wc 1 Write Success"#]]);
}

#[test]
fn acknowledgements_of_a_burst_are_one() {
    let mut t = RcPair::default();
    t.a.post_write(8).post_write(8).post_write(8).post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=1
        A->B WRITE_ONLY psn=2
        A->B WRITE_ONLY psn=3
        B->A ACK psn=3 credits=0
        A wc 0 Write Success
        A wc 1 Write Success
        A wc 2 Write Success
        A wc 3 Write Success"#]]);
}

#[test]
fn a_read_response_acknowledges_the_write_before_it() {
    let mut t = RcPair::default();
    t.a.post_write(8).post_read(8);
    t.wire.lose_response(Psn::new(0));
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_ONLY psn=1
        A wc 0 Write Success
        A wc 1 Read Success"#]]);
}

#[test]
fn sqd_finishes_what_was_started_and_starts_nothing() {
    let mut t = RcPair::default();
    t.a.post_write(8).after(100).modify(QpState::Sqd).post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A -> Sqd
        B->A ACK psn=0 credits=0
        A wc 0 Write Success
        A event SqDrained"#]]);
    t.a.modify(QpState::Rts);
    t.run(expect![[r#"
        A -> Rts
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 1 Write Success"#]]);
}

#[test]
fn credits_hold_back_a_send_until_the_peer_has_a_receive() {
    let mut t = RcPair::default();
    t.b.post_recv(64);
    t.a.post_send(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 Success 8 bytes None
        B->A ACK psn=0 credits=0
        A wc 0 Send Success"#]]);
    t.a.post_send(8).post_send(8);
    t.b.post_recv(64).post_recv(64);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=1
        B recv 1 Success 8 bytes None
        B->A ACK psn=1 credits=1
        A wc 1 Send Success
        A->B SEND_ONLY psn=2
        B recv 2 Success 8 bytes None
        B->A ACK psn=2 credits=0
        A wc 2 Send Success"#]]);
}

#[test]
fn a_shared_receive_queue_reports_no_credits() {
    let mut t = RcPair::with(PairConfig { shared_rq: true, ..PairConfig::default() });
    t.b.post_recv(64);
    t.a.post_send_imm(8, 77);
    t.run(expect![[r#"
        A->B SEND_ONLY_IMM psn=0
        B recv 0 Success 8 bytes Imm(77)
        B->A ACK psn=0
        A wc 0 Send Success"#]]);
}

#[test]
fn the_read_depth_is_kept() {
    let mut t = RcPair::with(PairConfig { max_rd_atomic: 1, ..PairConfig::default() });
    t.a.post_read(8).post_fetch_add(1).post_read(8);
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        B->A READ_RESPONSE_ONLY psn=0
        A wc 0 Read Success
        A->B FETCH_ADD psn=1
        B->A ATOMIC_ACK psn=1
        A wc 1 FetchAdd Success
        A->B READ_REQUEST psn=2
        B->A READ_RESPONSE_ONLY psn=2
        A wc 2 Read Success"#]]);
}

#[test]
fn a_key_that_ends_between_two_packets_stops_the_write() {
    let mut t = RcPair::with(PairConfig { window: 1, ..PairConfig::default() });
    t.a.post_write(3 * 1024);
    t.b.after(2_500).revoke_write_key();
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=0
        B->A ACK psn=0 credits=0
        A->B WRITE_MIDDLE psn=1
        B event AccessError
        B->A NAK psn=1 REMOTE_ACCESS
        A wc 0 Write RemoteAccess"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn local_operations_complete_in_their_turn() {
    let mut t = RcPair::default();
    t.a.post_write(8).post_bind_mw().post_local_inv().post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 0 Write Success
        A wc 1 BindMw Success
        A wc 2 LocalInv Success
        A wc 3 Write Success"#]]);
}

#[test]
fn forcing_the_error_state_flushes_both_queues() {
    let mut t = RcPair::default();
    t.a.post_recv(64).post_recv(64).post_write(8).post_write(8).modify(QpState::Error);
    t.run(expect![[r#"
        A -> Error
        A wc 0 Write Flushed
        A wc 1 Write Flushed"#]]);
}

#[test]
fn invalidate_immediate_flush_and_atomic_write_arrive_as_such() {
    let mut t = RcPair::default();
    t.b.post_recv(64).post_recv(64);
    t.a.post_write_imm(16, 5)
        .solicited()
        .post_send_inv(16)
        .post_flush(64)
        .post_atomic_write()
        .post_cmp_swap(0, 9);
    t.run(expect![[r#"
        A->B WRITE_ONLY_IMM psn=0
        A->B SEND_ONLY_INV psn=1
        A->B FLUSH psn=2
        A->B ATOMIC_WRITE psn=3
        A->B CMP_SWAP psn=4
        B recv 0 Success 16 bytes Imm(5)
        B recv 1 Success 16 bytes Invalidated(0x0000077d)
        B->A READ_RESPONSE_ONLY psn=2
        B->A READ_RESPONSE_ONLY psn=3
        B->A ATOMIC_ACK psn=4
        A wc 0 Write Success
        A wc 1 Send Success
        A wc 2 Flush Success
        A wc 3 AtomicWrite Success
        A wc 4 CmpSwap Success"#]]);
    assert_eq!(t.cell_b(), 9);
}

#[test]
fn a_copy_that_is_taken_ends_the_rnr_delay() {
    // Timer 31 is 491 ms; the copy comes when the receive is there.
    let mut t = RcPair::with(PairConfig { min_rnr_timer: 31, ..PairConfig::default() });
    t.a.post_send(64).post_read(64);
    t.b.after(20_000).post_recv(64);
    t.wire.duplicate_after(Psn::new(0), 30_000);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0 TWICE
        A->B READ_REQUEST psn=1
        B->A RNR psn=0 timer=31
        B recv 0 Success 64 bytes None
        B->A ACK psn=0 credits=0
        A wc 0 Send Success
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_ONLY psn=1
        A wc 1 Read Success"#]]);
    assert!(t.nanos() < 10_000_000);
}

#[test]
fn a_failed_local_operation_waits_for_what_was_sent_before_it() {
    let mut t = RcPair::default();
    t.a.post_write(8).broken_at(0).post_bind_mw().post_write(8);
    t.wire.lose(Psn::new(0));
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        A wc 0 Write Success
        A wc 1 BindMw MwBind
        A wc 2 Write Flushed"#]]);
}

#[test]
fn a_failed_local_operation_behind_others_fails_at_once() {
    let mut t = RcPair::default();
    t.a.unsignaled().post_local_inv().broken_at(0).post_bind_mw().post_write(8);
    t.run(expect![[r#"
        A wc 1 BindMw MwBind
        A wc 2 Write Flushed"#]]);
    assert_eq!(t.states().0, QpState::Error);
}

#[test]
fn beyond_its_credits_a_send_goes_alone_as_a_probe() {
    let mut t = RcPair::default();
    t.b.post_recv(64).post_recv(64);
    t.a.post_send(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0
        B recv 0 Success 8 bytes None
        B->A ACK psn=0 credits=1
        A wc 0 Send Success"#]]);
    t.a.post_send(8).post_send(8).post_send(8);
    t.b.after(30_000).post_recv(64).post_recv(64);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=1
        B recv 1 Success 8 bytes None
        B->A ACK psn=1 credits=0
        A wc 1 Send Success
        A->B SEND_ONLY psn=2
        B->A RNR psn=2 timer=1
        A->B SEND_ONLY psn=2
        B->A RNR psn=2 timer=1
        A->B SEND_ONLY psn=2
        B->A RNR psn=2 timer=1
        A->B SEND_ONLY psn=2
        B recv 2 Success 8 bytes None
        B->A ACK psn=2 credits=1
        A wc 2 Send Success
        A->B SEND_ONLY psn=3
        B recv 3 Success 8 bytes None
        B->A ACK psn=3 credits=0
        A wc 3 Send Success"#]]);
}

#[test]
fn a_local_operation_completes_at_once_though_a_packet_follows() {
    let mut t = RcPair::default();
    t.a.post_local_inv().post_write(8);
    t.run(expect![[r#"
        A wc 0 LocalInv Success
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        A wc 1 Write Success"#]]);
}
