//! Scenarios of XRC connections (IBTA A14): A is the initiator, B the target with two shared
//! queues.

use vernic_proto::QpState;
use vernic_sim::{PairConfig, RcPair, expect};
use vernic_wire::Psn;

fn pair() -> RcPair {
    RcPair::with(PairConfig { xrc: true, ..PairConfig::default() })
}

#[test]
fn one_connection_feeds_two_shared_queues() {
    let mut t = pair();
    t.b.queue(0).post_recv(64).post_recv(64).queue(1).post_recv(4096);
    t.a.queue(1).post_send(2 * 1024).queue(0).post_send_imm(5, 0xABC).post_write_imm(9, 0xDEF);
    t.a.queue(1).post_read(2 * 1024).queue(0).post_fetch_add(3);
    t.run(expect![[r#"
        A->B SEND_FIRST psn=0 srqn=2
        A->B SEND_LAST psn=1 srqn=2
        A->B SEND_ONLY_IMM psn=2 srqn=1
        A->B WRITE_ONLY_IMM psn=3 srqn=1
        A->B READ_REQUEST psn=4 srqn=2
        A->B FETCH_ADD psn=6 srqn=1
        B recv 2 Success 2048 bytes None
        B recv of queue 1
        B recv 0 Success 5 bytes Imm(2748)
        B recv of queue 0
        B recv 1 Success 9 bytes Imm(3567)
        B recv of queue 0
        B->A READ_RESPONSE_FIRST psn=4
        B->A READ_RESPONSE_LAST psn=5
        B->A ATOMIC_ACK psn=6
        A wc 0 Send Success
        A wc 1 Send Success
        A wc 2 Write Success
        A wc 3 Read Success
        A wc 4 FetchAdd Success"#]]);
    assert_eq!(t.cell_b(), 3);
    assert!(t.memory_is_right());
}

#[test]
fn losses_are_repaired_as_on_rc() {
    let mut t = pair();
    t.b.queue(1).post_recv(4096);
    t.a.queue(1).post_send(3 * 1024).post_read(100);
    t.wire.lose(Psn::new(1));
    t.wire.lose_response(Psn::new(3));
    t.run(expect![[r#"
        A->B SEND_FIRST psn=0 srqn=2
        A->B SEND_MIDDLE psn=1 srqn=2 LOST
        A->B SEND_LAST psn=2 srqn=2
        A->B READ_REQUEST psn=3 srqn=2
        B->A NAK psn=1 seq
        A->B SEND_MIDDLE psn=1 srqn=2
        A->B SEND_LAST psn=2 srqn=2
        B recv 0 Success 3072 bytes None
        B recv of queue 1
        B->A ACK psn=2
        A wc 0 Send Success
        A->B READ_REQUEST psn=3 srqn=2
        B->A READ_RESPONSE_ONLY psn=3 LOST
        A->B READ_REQUEST psn=3 srqn=2
        B->A READ_RESPONSE_ONLY psn=3
        A wc 1 Read Success"#]]);
}

#[test]
fn an_empty_queue_holds_back_everything_behind_it_until_it_has_a_receive() {
    let mut t = pair();
    t.b.queue(0).post_recv(64).after(15_000).queue(1).post_recv(64);
    t.a.queue(1).post_send(8).queue(0).post_send(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0 srqn=2
        A->B SEND_ONLY psn=1 srqn=1
        B->A RNR psn=0 timer=1
        A->B SEND_ONLY psn=0 srqn=2
        A->B SEND_ONLY psn=1 srqn=1
        B->A RNR psn=0 timer=1
        A->B SEND_ONLY psn=0 srqn=2
        A->B SEND_ONLY psn=1 srqn=1
        B recv 1 Success 8 bytes None
        B recv of queue 1
        B recv 0 Success 8 bytes None
        B recv of queue 0
        B->A ACK psn=1
        A wc 0 Send Success
        A wc 1 Send Success"#]]);
}

#[test]
fn a_queue_that_does_not_exist_ends_the_connection() {
    let mut t = pair();
    t.b.post_recv(64);
    t.a.to_unknown_queue().post_send(8).post_send(8);
    t.run(expect![[r#"
        A->B SEND_ONLY psn=0 srqn=16777215
        A->B SEND_ONLY psn=1 srqn=1
        B event RequestError
        B event LastWqeReached
        B->A NAK psn=0 INVALID_REQUEST
        A wc 0 Send RemoteInvalidRequest
        A wc 1 Send Flushed"#]]);
    assert_eq!(t.states(), (QpState::Error, QpState::Error));
}

#[test]
fn a_queue_of_another_domain_ends_the_connection() {
    let mut t = pair();
    t.a.to_foreign_queue().post_write(8);
    t.run(expect![[r#"
        A->B WRITE_ONLY psn=0 srqn=119
        B event AccessError
        B event LastWqeReached
        B->A NAK psn=0 REMOTE_ACCESS
        A wc 0 Write RemoteAccess"#]]);
    assert_eq!(t.states(), (QpState::Error, QpState::Error));
    assert!(t.memory_is_right());
}

#[test]
fn within_one_host_each_part_is_for_the_queue_that_it_names() {
    let mut t = RcPair::with(PairConfig { xrc: true, rings: true, ..PairConfig::default() });
    t.b.queue(0).post_recv(64).queue(1).post_recv(4096);
    t.a.queue(1).post_send(2 * 1024).queue(0).post_send_imm(5, 0xABC).post_write(8);
    t.run(expect![[r#"
        A=>B PART psn=0..1 2048 bytes srqn=2
        A=>B PART psn=2 5 bytes srqn=1
        A=>B WRITE_ONLY psn=3 srqn=1
        B recv 1 Success 2048 bytes None
        B recv of queue 1
        B recv 0 Success 5 bytes Imm(2748)
        B recv of queue 0
        B=>A ACK psn=3
        A wc 0 Send Success
        A wc 1 Send Success
        A wc 2 Write Success"#]]);
    assert!(t.memory_is_right());
}

#[test]
fn within_one_host_an_empty_queue_gets_the_message_again_in_packets() {
    let mut t = RcPair::with(PairConfig { xrc: true, rings: true, ..PairConfig::default() });
    t.b.queue(0).post_recv(64);
    t.a.queue(1).post_send(8).queue(0).post_send(8);
    t.b.after(5_000).queue(1).post_recv(64);
    t.run(expect![[r#"
        A=>B PART psn=0 8 bytes srqn=2
        A=>B PART psn=1 8 bytes srqn=1
        B=>A RNR psn=0 timer=1
        A=>B SEND_ONLY psn=0 srqn=2
        A=>B SEND_ONLY psn=1 srqn=1
        B recv 1 Success 8 bytes None
        B recv of queue 1
        B recv 0 Success 8 bytes None
        B recv of queue 0
        B=>A ACK psn=1
        A wc 0 Send Success
        A wc 1 Send Success"#]]);
}
