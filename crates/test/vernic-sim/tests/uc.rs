//! Scenarios of UC connections between two processes of one host: SENDs as parts of messages (`=>`
//! is a ring, `->` the network).

use vernic_proto::QpState;
use vernic_sim::{PairConfig, RcPair, expect};

fn pair() -> RcPair {
    RcPair::with(PairConfig { uc: true, rings: true, part: 2 * 1024, ..PairConfig::default() })
}

#[test]
fn sends_travel_without_packets_and_writes_in_packets_and_nothing_is_answered() {
    let mut t = pair();
    t.b.post_recv(4096).post_recv(64);
    t.a.post_send(3 * 1024).post_write(2 * 1024).solicited().post_send_imm(5, 77);
    t.run(expect![[r#"
        A=>B PART_FIRST psn=0..1 2048 bytes
        A wc 0 Send Success
        A=>B PART_LAST psn=2 1024 bytes
        A=>B WRITE_FIRST psn=3
        A wc 1 Write Success
        A=>B WRITE_LAST psn=4
        A wc 2 Send Success
        A=>B PART psn=5 5 bytes
        B recv 0 Success 3072 bytes None
        B recv 1 Success 5 bytes Imm(77)"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn what_finds_no_receive_or_a_short_one_is_dropped_and_the_next_takes_its_place() {
    let mut t = pair();
    t.a.post_send(8).after(5_000).post_send(3 * 1024).post_send(8);
    t.b.after(3_000).post_recv(1000);
    t.run(expect![[r#"
        A wc 0 Send Success
        A=>B PART psn=0 8 bytes
        A=>B PART_FIRST psn=1..2 2048 bytes
        A wc 1 Send Success
        A=>B PART_LAST psn=3 1024 bytes
        A wc 2 Send Success
        A=>B PART psn=4 8 bytes
        B recv 0 Success 8 bytes None"#]]);
    assert_eq!(t.states(), (QpState::Rts, QpState::Rts));
}

#[test]
fn a_ring_that_breaks_in_a_message_loses_that_message_alone() {
    let mut t = pair();
    t.b.post_recv(8192).post_recv(64);
    t.a.post_send(5 * 1024).after(500).lose_rings(1).post_send(8);
    t.run(expect![[r#"
        A=>B PART_FIRST psn=0..1 2048 bytes
        A=>B PART_MIDDLE psn=2..3 2048 bytes
        A wc 0 Send Success
        A=>B PART_LAST psn=4 1024 bytes
        A wc 1 Send Success
        A->B SEND_ONLY psn=5
        B recv 0 Success 8 bytes None"#]]);
}

#[test]
fn a_connection_goes_over_to_a_new_ring_when_nothing_is_in_the_air() {
    let mut t = RcPair::with(PairConfig { uc: true, ..PairConfig::default() });
    t.b.post_recv(64).post_recv(64).post_recv(64);
    t.a.post_send(8).after(500).join_rings().post_send(8).after(2_000).post_send(8);
    t.run(expect![[r#"
        A wc 0 Send Success
        A->B SEND_ONLY psn=0
        A wc 1 Send Success
        A->B SEND_ONLY psn=1
        B recv 0 Success 8 bytes None
        B recv 1 Success 8 bytes None
        A wc 2 Send Success
        A=>B PART psn=2 8 bytes
        B recv 2 Success 8 bytes None"#]]);
}
