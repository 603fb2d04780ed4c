//! Scenarios of a peer that is silent and known to be there, and of the floor of the ACK timer.

use vernic_sim::{PairConfig, RcPair, expect};
use vernic_wire::Psn;

/// Nanoseconds of an ACK timeout of exponent 4, the default of a pair.
const TIMEOUT: u64 = 65_536;

#[test]
fn a_peer_that_is_known_to_be_there_may_be_silent_for_longer_than_all_retries_take() {
    // 0.4 s and more, while four transmissions are over after 262 us.
    let mut t = RcPair::with(PairConfig { delay: 100_000_000, ..PairConfig::default() });
    t.a_is_patient(30_000_000_000);
    t.a.post_write(8);
    t.wire.lose_times(Psn::new(0), 8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=0
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        B->A ACK psn=0 credits=0
        B->A ACK psn=0 credits=0
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        A wc 0 Write Success
        B->A ACK psn=0 credits=0"#]]);
    assert_eq!(t.counters_a().ack_timeouts, 0);
    assert!(t.counters_a().patient_timeouts > 4);
    assert!(t.memory_is_right());
}

#[test]
fn patience_with_a_peer_that_is_there_ends_and_the_retries_follow() {
    let mut t = RcPair::default();
    t.a_is_patient(500_000_000);
    t.a.post_write(8);
    t.wire.lose_times(Psn::new(0), 9999);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A->B WRITE_ONLY psn=0 LOST
        A wc 0 Write RetryExceeded"#]]);
    assert_eq!(t.counters_a().ack_timeouts, 4);
    let took = t.took_nanos();
    assert!((500_000_000..800_000_000).contains(&took), "{took} ns");
}

#[test]
fn a_floor_above_the_timeout_gives_a_slow_peer_its_time() {
    // The answer comes after ten timeouts, when four transmissions would be over.
    let mut t = RcPair::with(PairConfig { delay: 5 * TIMEOUT, ..PairConfig::default() });
    t.set_ack_floor_of_a(20 * TIMEOUT);
    t.a.post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0
        B->A ACK psn=0 credits=0
        A->B WRITE_ONLY psn=0
        A wc 0 Write Success
        B->A ACK psn=0 credits=0"#]]);
    let counters = t.counters_a();
    assert_eq!((counters.ack_timeouts, counters.tail_probes), (0, 1));
    assert!(t.memory_is_right());
}
