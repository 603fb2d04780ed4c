//! Selective repeat: which packets two peers that keep what comes ahead of a gap send again, and
//! how fast messages get through a network that loses packets or changes their order.

use vernic_sim::{PairConfig, RcPair, expect};
use vernic_wire::Psn;

const MS: u64 = 1_000_000;

/// A pair of which A has seen that B keeps: packet 1 of 120 was lost before, and what left again
/// was no more than the window after that loss.
fn pair() -> RcPair {
    let mut t = RcPair::with(PairConfig { timeout: 14, keeps: true, ..PairConfig::default() });
    t.a.post_write(120 * 1024);
    t.wire.lose(Psn::new(1));
    t.run_untold();
    t
}

#[test]
fn going_back_ends_when_the_peer_shows_that_it_has_kept_the_rest() {
    let t = pair();
    assert_eq!(t.counters_a().retransmitted_packets, 30);
    assert_eq!((t.counters_b().packets_kept, t.counters_b().kept_packets_handled), (30, 30));
    assert_eq!(t.counters_b().sequence_naks_sent, 1);
    assert!(t.memory_is_right());
}

#[test]
fn a_peer_that_has_shown_that_it_keeps_is_sent_what_it_misses_alone() {
    let mut t = pair();
    t.a.post_write(8 * 1024);
    t.wire.lose(Psn::new(122));
    t.wire.lose(Psn::new(124));
    t.run(expect![[r#"
        A->B WRITE_FIRST psn=120
        A->B WRITE_MIDDLE psn=121
        A->B WRITE_MIDDLE psn=122 LOST
        A->B WRITE_MIDDLE psn=123
        A->B WRITE_MIDDLE psn=124 LOST
        A->B WRITE_MIDDLE psn=125
        A->B WRITE_MIDDLE psn=126
        A->B WRITE_LAST psn=127
        B->A NAK psn=122 seq
        A->B WRITE_MIDDLE psn=122
        A->B WRITE_MIDDLE psn=124
        B->A ACK psn=127 credits=0
        A wc 1 Write Success"#]]);
    assert_eq!(t.counters_a().retransmitted_packets, 30 + 2);
    assert!(t.memory_is_right());
}

#[test]
fn a_repeated_packet_that_is_lost_again_is_missed_by_what_was_sent_later() {
    let mut t = pair();
    t.a.post_write(180 * 1024);
    t.wire.lose_times(Psn::new(122), 2);
    t.run_untold();
    let counters = t.counters_a();
    assert_eq!((counters.tail_probes, counters.ack_timeouts), (0, 0));
    assert_eq!(counters.retransmitted_packets, 30 + 2);
    assert!(t.memory_is_right());
}

/// Virtual microseconds that 80 SENDs of 64 KiB take, 40 at a time, at 1 Gbit/s, and how many of
/// their packets were repeated.
fn time_of_sends(config: PairConfig) -> (u64, u64) {
    time_of(false, config)
}

/// Time of so many SENDs or READs, likewise.
fn time_of(are_reads: bool, config: PairConfig) -> (u64, u64) {
    let config =
        PairConfig { timeout: 14, retry_cnt: 7, window: 1024, ns_per_kib: 8_192, ..config };
    let mut t = RcPair::with(config);
    let mut nanos = 0;
    for _ in 0..2 {
        for _ in 0..40 {
            if are_reads {
                t.a.post_read(1 << 16);
            } else {
                t.b.post_recv(1 << 16);
                t.a.post_send(1 << 16);
            }
        }
        t.run_untold();
        nanos += t.took_nanos();
    }
    assert!(t.failure_a().is_none() && t.memory_is_right());
    (nanos / 1000, t.counters_a().retransmitted_packets)
}

#[test]
fn losses_cost_the_packets_that_were_lost() {
    let lossy = PairConfig { loss: 50_000, delay: 5 * MS, ..PairConfig::default() };
    let (without, all) = time_of_sends(lossy.clone());
    let (with, few) = time_of_sends(PairConfig { keeps: true, ..lossy });
    // 5 % of 5120, and of what repeats these; with the window that was sent again at first.
    assert!((256..700).contains(&few) && all > 4000, "{few}, {all}");
    assert!(with * 5 < without * 2, "{with} us, {without} us");
}

#[test]
fn a_lost_response_is_asked_for_again_and_what_follows_it_is_kept() {
    let mut t = RcPair::with(PairConfig { timeout: 14, keeps: true, ..PairConfig::default() });
    t.a.post_read(3 * 1024);
    t.a.post_read(2 * 1024);
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        A->B READ_REQUEST psn=3
        B->A READ_RESPONSE_FIRST psn=0
        B->A READ_RESPONSE_MIDDLE psn=1 LOST
        B->A READ_RESPONSE_LAST psn=2
        B->A READ_RESPONSE_FIRST psn=3
        B->A READ_RESPONSE_LAST psn=4
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_FIRST psn=1
        B->A READ_RESPONSE_LAST psn=2
        A wc 0 Read Success
        A wc 1 Read Success"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn what_follows_a_lost_response_and_was_acknowledged_is_not_sent_again() {
    let mut t = RcPair::with(PairConfig { timeout: 14, keeps: true, ..PairConfig::default() });
    t.a.post_read(3 * 1024);
    t.a.post_write(1024);
    t.wire.lose_response(Psn::new(1));
    t.run(expect![[r#"
        A->B READ_REQUEST psn=0
        A->B WRITE_ONLY psn=3
        B->A READ_RESPONSE_FIRST psn=0
        B->A READ_RESPONSE_MIDDLE psn=1 LOST
        B->A READ_RESPONSE_LAST psn=2
        B->A ACK psn=3 credits=0
        A->B READ_REQUEST psn=1
        B->A READ_RESPONSE_FIRST psn=1
        B->A READ_RESPONSE_LAST psn=2
        A wc 0 Read Success
        A wc 1 Write Success"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn reads_bear_losses_and_changes_of_order() {
    let lossy = PairConfig { loss: 50_000, delay: 5 * MS, ..PairConfig::default() };
    let unsteady = PairConfig { delay: 15 * MS, spread: 10 * MS, ..PairConfig::default() };
    for (path, times) in [(lossy, 5), (unsteady, 20)] {
        let (without, all) = time_of(true, path.clone());
        let (with, few) = time_of(true, PairConfig { keeps: true, ..path });
        assert!(few * 2 < all, "{few}, {all}");
        assert!(with * times < without * 4, "{with} us, {without} us");
    }
}

#[test]
fn a_network_that_changes_the_order_is_borne_once_it_is_known() {
    let steady = PairConfig { delay: 20 * MS, keeps: true, ..PairConfig::default() };
    let unsteady = PairConfig { delay: 15 * MS, spread: 10 * MS, ..steady.clone() };
    let (best, _) = time_of_sends(steady);
    let (with, few) = time_of_sends(unsteady.clone());
    let (without, _) = time_of_sends(PairConfig { keeps: false, ..unsteady });
    assert!(few < 400, "{few}");
    assert!(with < best * 4 && with * 8 < without, "{best} us, {with} us, {without} us");
}
