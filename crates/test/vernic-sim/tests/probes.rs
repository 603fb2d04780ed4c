//! Scenarios of losses that no packet behind them reveals: each is found by a probe after a few
//! round trips of silence, not by the ACK timeout of 67 ms.

use vernic_sim::{PairConfig, RcPair, expect};
use vernic_wire::Psn;

/// Nanoseconds of the ACK timeout.
const TIMEOUT: u64 = 67_108_864;
/// The shortest silence before a probe, in nanoseconds.
const FLOOR: u64 = 250_000;

/// A pair that has measured its round trip with a WRITE, of number 0.
fn pair() -> RcPair {
    warm(PairConfig { timeout: 14, ..PairConfig::default() })
}

fn warm(config: PairConfig) -> RcPair {
    let mut t = RcPair::with(config);
    t.a.post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        A wc 0 Write Success"#]]);
    t
}

/// In the last run `probes` were sent, the last of them after `silences`, and everything was
/// repaired by then; the ACK timeout had no part in it.
#[track_caller]
fn repaired_by(t: &RcPair, probes: u64, silences: u64) {
    let counters = t.counters_a();
    assert_eq!((counters.tail_probes, counters.ack_timeouts), (probes, 0));
    let took = t.took_nanos();
    // Behind the probe, a few round trips of 2 us.
    assert!((silences * FLOOR..silences * FLOOR + 20_000).contains(&took), "{took} ns");
    assert!(t.memory_is_right());
}

#[test]
fn a_lost_last_packet_is_repeated_alone() {
    let mut t = pair();
    t.a.post_write(4 * 1024);
    t.wire.lose(Psn::new(4));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_LAST psn=4 LOST
        A->B WRITE_FIRST psn=1
        A->B WRITE_LAST psn=4
        B->A ACK psn=4 credits=0
        A wc 1 Write Success"#]]);
    repaired_by(&t, 1, 1);
    assert_eq!(t.counters_a().retransmitted_packets, 2);
}

#[test]
fn a_lost_tail_is_asked_for_by_the_oldest_and_the_newest_of_it() {
    let mut t = pair();
    t.a.post_write(5 * 1024);
    for psn in 2..=5 {
        t.wire.lose(Psn::new(psn));
    }
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1
        A->B WRITE_MIDDLE psn=2 LOST
        A->B WRITE_MIDDLE psn=3 LOST
        A->B WRITE_MIDDLE psn=4 LOST
        A->B WRITE_LAST psn=5 LOST
        A->B WRITE_FIRST psn=1
        A->B WRITE_LAST psn=5
        B->A NAK psn=2 seq
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        B->A ACK psn=4 credits=0
        A->B WRITE_LAST psn=5
        B->A ACK psn=5 credits=0
        A wc 1 Write Success"#]]);
    repaired_by(&t, 1, 1);
}

#[test]
fn a_lost_only_packet_is_repeated_once() {
    let mut t = pair();
    t.b.post_recv(64);
    t.a.post_send(64);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B SEND_ONLY psn=1 LOST
        A->B SEND_ONLY psn=1
        B recv 0 Success 64 bytes None
        B->A ACK psn=1 credits=0
        A wc 1 Send Success"#]]);
    repaired_by(&t, 1, 1);
    assert_eq!(t.counters_a().retransmitted_packets, 1);
}

#[test]
fn a_lost_ack_costs_a_duplicate_and_nothing_is_executed_twice() {
    let mut t = pair();
    t.b.post_recv(64);
    t.a.post_send(64);
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B SEND_ONLY psn=1
        B recv 0 Success 64 bytes None
        B->A ACK psn=1 credits=0 LOST
        A->B SEND_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 1 Send Success"#]]);
    repaired_by(&t, 1, 1);
    assert_eq!((t.counters_b().duplicates_received, t.counters_b().messages_received), (1, 2));
}

#[test]
fn the_lost_end_of_a_read_is_asked_for_again_and_no_more_than_it() {
    let mut t = pair();
    t.a.post_read(4 * 1024);
    t.wire.lose_response(Psn::new(3));
    t.wire.lose_response(Psn::new(4));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_FIRST psn=1
        B->A READ_RESPONSE_MIDDLE psn=2
        B->A READ_RESPONSE_MIDDLE psn=3 LOST
        B->A READ_RESPONSE_LAST psn=4 LOST
        A->B READ_REQUEST psn=3
        B->A READ_RESPONSE_FIRST psn=3
        B->A READ_RESPONSE_LAST psn=4
        A wc 1 Read Success"#]]);
    repaired_by(&t, 1, 1);
}

#[test]
fn a_lost_read_request_behind_another_read_is_found() {
    let mut t = pair();
    t.a.post_read(2 * 1024).post_read(1024);
    t.wire.lose(Psn::new(3));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=1
        A->B READ_REQUEST psn=3 LOST
        B->A READ_RESPONSE_FIRST psn=1
        B->A READ_RESPONSE_LAST psn=2
        A wc 1 Read Success
        A->B READ_REQUEST psn=3
        B->A READ_RESPONSE_ONLY psn=3
        A wc 2 Read Success"#]]);
    repaired_by(&t, 1, 1);
}

#[test]
fn a_lost_atomic_response_is_replayed_and_the_atomic_not_executed_again() {
    let mut t = pair();
    t.a.post_fetch_add(5);
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B FETCH_ADD psn=1
        B->A ATOMIC_ACK psn=1 LOST
        A->B FETCH_ADD psn=1
        B->A ATOMIC_ACK psn=1
        A wc 1 FetchAdd Success"#]]);
    repaired_by(&t, 1, 1);
    assert_eq!(t.cell_b(), 5);
}

#[test]
fn a_repeated_packet_that_is_lost_again_is_found() {
    let mut t = pair();
    t.a.post_write(4 * 1024);
    t.wire.lose_times(Psn::new(2), 2);
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1
        A->B WRITE_MIDDLE psn=2 LOST
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_LAST psn=4
        B->A NAK psn=2 seq
        A->B WRITE_MIDDLE psn=2 LOST
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        B->A ACK psn=3 credits=0
        A->B WRITE_LAST psn=4
        B->A ACK psn=4 credits=0
        A wc 1 Write Success"#]]);
    repaired_by(&t, 1, 1);
}

#[test]
fn a_lost_nak_is_asked_for_again() {
    let mut t = pair();
    t.a.post_write(5 * 1024);
    t.wire.lose(Psn::new(2));
    t.wire.lose_response(Psn::new(2));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1
        A->B WRITE_MIDDLE psn=2 LOST
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        A->B WRITE_LAST psn=5
        B->A NAK psn=2 seq LOST
        A->B WRITE_FIRST psn=1
        A->B WRITE_LAST psn=5
        B->A ACK psn=1 credits=0
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_LAST psn=5
        B->A NAK psn=3 seq
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        B->A ACK psn=4 credits=0
        A->B WRITE_LAST psn=5
        B->A ACK psn=5 credits=0
        A wc 1 Write Success"#]]);
    // The answer to the first one is progress: packet 1 had not been acknowledged either.
    repaired_by(&t, 2, 2);
}

#[test]
fn a_lost_nak_of_the_oldest_packet_takes_one_probe() {
    let mut t = pair();
    t.a.post_write(5 * 1024);
    t.wire.lose(Psn::new(1));
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1 LOST
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        A->B WRITE_LAST psn=5
        B->A NAK psn=1 seq LOST
        A->B WRITE_FIRST psn=1
        A->B WRITE_LAST psn=5
        B->A NAK psn=2 seq
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        B->A ACK psn=4 credits=0
        A->B WRITE_LAST psn=5
        B->A ACK psn=5 credits=0
        A wc 1 Write Success"#]]);
    repaired_by(&t, 1, 1);
}

#[test]
fn probes_that_are_lost_are_repeated_after_twice_the_silence() {
    let mut t = pair();
    t.a.post_write(8);
    t.wire.lose_times(Psn::new(1), 3);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 1 Write Success"#]]);
    repaired_by(&t, 3, 7);
}

#[test]
fn on_a_long_path_four_round_trips_are_waited() {
    let mut t = warm(PairConfig { timeout: 14, delay: 500_000, ..PairConfig::default() });
    t.a.post_write(8);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A wc 1 Write Success"#]]);
    let took = t.took_nanos();
    assert!((5_000_000..5_010_000).contains(&took), "{took} ns");
    assert_eq!(t.counters_a().tail_probes, 1);
}

#[test]
fn probes_do_not_delay_the_ack_timeout_or_count_as_retries() {
    let mut t =
        warm(PairConfig { timeout: 8, retry_cnt: 1, delay: 1_000, ..PairConfig::default() });
    t.a.post_write(8);
    t.wire.lose_times(Psn::new(1), 99);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=1 LOST
        A wc 1 Write RetryExceeded"#]]);
    // Twice 1.05 ms: the first transmission and one retry.
    let took = t.took_nanos();
    assert_eq!((took, t.counters_a().ack_timeouts), (2 * (TIMEOUT >> 6), 2));
    expect!["no answer after 2 transmissions in 2097 us; it answered earlier: the process may have died, stalled or reset its queue pair, or a link went down"].assert_eq(&t.failure_a().unwrap_or_default());
}

#[test]
fn without_retries_or_without_a_timer_nothing_is_probed() {
    let config = PairConfig { timeout: 14, ..PairConfig::default() };
    let mut t = warm(PairConfig { retry_cnt: 0, ..config.clone() });
    t.a.post_write(8);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1 LOST
        A wc 1 Write RetryExceeded"#]]);
    assert_eq!(t.counters_a().retransmitted_packets, 0);
    let mut t = warm(PairConfig { timeout: 0, ..config });
    t.a.post_write(8).after(2 * TIMEOUT).post_write(8);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1 LOST
        A->B WRITE_ONLY psn=2
        B->A NAK psn=1 seq
        A->B WRITE_ONLY psn=1
        A->B WRITE_ONLY psn=2
        B->A ACK psn=2 credits=0
        A wc 1 Write Success
        A wc 2 Write Success"#]]);
    assert_eq!(t.counters_a().tail_probes, 0);
}

#[test]
fn a_receiver_that_is_not_ready_is_not_probed() {
    // Timer 31 is 491 ms.
    let mut t = warm(PairConfig { timeout: 14, min_rnr_timer: 31, ..PairConfig::default() });
    t.a.post_send(64);
    t.b.after(1_000_000).post_recv(64);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=1
        B->A RNR psn=1 timer=31
        A->B SEND_ONLY psn=1
        B recv 0 Success 64 bytes None
        B->A ACK psn=1 credits=0
        A wc 1 Send Success"#]]);
    assert_eq!(t.counters_a().tail_probes, 0);
}

#[test]
fn a_late_answer_costs_two_packets_and_not_a_window() {
    let mut t = pair();
    t.a.post_write(8 * 1024);
    // As late as can be: what the peer hears next is the probe.
    t.wire.lose_response(Psn::new(8));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=1
        A->B WRITE_MIDDLE psn=2
        A->B WRITE_MIDDLE psn=3
        A->B WRITE_MIDDLE psn=4
        A->B WRITE_MIDDLE psn=5
        A->B WRITE_MIDDLE psn=6
        A->B WRITE_MIDDLE psn=7
        A->B WRITE_LAST psn=8
        B->A ACK psn=8 credits=0 LOST
        A->B WRITE_FIRST psn=1
        A->B WRITE_LAST psn=8
        B->A ACK psn=8 credits=0
        A wc 1 Write Success"#]]);
    assert_eq!(t.counters_a().retransmitted_packets, 2);
    assert_eq!(t.counters_b().duplicates_received, 2);
}

#[test]
fn a_probe_of_an_xrc_connection_names_the_shared_queue() {
    let mut t = RcPair::with(PairConfig { timeout: 14, xrc: true, ..PairConfig::default() });
    t.b.queue(1).post_recv(4096);
    t.a.queue(1).post_send(2 * 1024);
    t.wire.lose(Psn::new(1));
    t.run(expect![[r#"
        A->B SEND_FIRST psn=0 srqn=2
        A->B SEND_LAST psn=1 srqn=2 LOST
        A->B SEND_FIRST psn=0 srqn=2
        A->B SEND_LAST psn=1 srqn=2
        B recv 0 Success 2048 bytes None
        B recv of queue 1
        B->A ACK psn=1
        A wc 0 Send Success"#]]);
    assert_eq!((t.counters_a().tail_probes, t.counters_a().ack_timeouts), (1, 0));
}

#[test]
fn a_path_that_becomes_longer_than_the_silence_is_measured_anew() {
    // The answer takes 400 us, and a probe comes after 250 us until that is known.
    let mut t = pair();
    t.set_delay(200_000);
    t.a.post_write(8).after(2_000_000).post_write(8).after(4_000_000).post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=1
        B->A ACK psn=1 credits=0
        A->B WRITE_ONLY psn=1
        A wc 1 Write Success
        B->A ACK psn=1 credits=0
        A->B WRITE_ONLY psn=2
        B->A ACK psn=2 credits=0
        A wc 2 Write Success
        A->B WRITE_ONLY psn=3
        B->A ACK psn=3 credits=0
        A wc 3 Write Success"#]]);
    assert_eq!((t.counters_a().tail_probes, t.counters_a().ack_timeouts), (1, 0));
}
