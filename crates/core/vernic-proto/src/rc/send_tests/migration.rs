//! Path migration of RC, as requester and as responder.

use vernic_wire::{Pkey, PortNum};

use super::*;

const TIMEOUT: u64 = 4_194_304;
const ALT: AttrMask = AttrMask::ALT_PATH;
const STATE: AttrMask = AttrMask::PATH_MIG_STATE;
/// The partition of the alternate path.
const OTHER: Pkey = Pkey(0x8002);

/// Asks for a state, with an alternate path by port 2 in the attributes if `mask` names it.
fn set(s: &mut Sender, to: PathMigState, mask: AttrMask) -> Result<(), ModifyError> {
    let mut attr = QpAttr {
        path_mig_state: to,
        alt_port: PortNum(2),
        alt_pkey_index: 5,
        alt_timeout: AckTimeout::new(8),
        ..*s.qp.attr()
    };
    attr.alt_av.flow_label = 7;
    s.qp.modify(&attr, mask, s.now, &mut s.host)?;
    if mask.contains(ALT) {
        s.qp.set_alternate_pkey(OTHER);
    }
    Ok(())
}

fn state(s: &Sender) -> PathMigState {
    s.qp.attr().path_mig_state
}

/// A packet of the peer, in the partition of the alternate path if it is to have come by that.
fn packet_of(opcode: Opcode, psn: u32, migreq: bool, pkey: Pkey) -> Headers {
    let mut bth = Bth::new(opcode, Qpn::new(0x11), Psn::new(psn));
    (bth.migreq, bth.pkey) = (migreq, pkey);
    let mut headers = Headers::new(bth);
    headers.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
    headers
}

fn ack(s: &mut Sender, psn: u32, migreq: bool) {
    s.answer(packet_of(Opcode::RC_ACK, psn, migreq, Pkey::DEFAULT), &[]);
}

/// A WRITE of nothing that came by other addresses than those of the path.
fn write_by_other_path(s: &mut Sender, by_alternate: bool, migreq: bool, pkey: Pkey) -> bool {
    let mut headers = packet_of(Opcode::RC_WRITE_ONLY, 0, migreq, pkey);
    (headers.aeth, headers.reth) = (None, Some(Default::default()));
    let mut buf = [0; 100];
    let len = headers.emit(&mut buf);
    let packet = Packet::parse(&buf[..len]).unwrap();
    s.qp.follows(s.now, &packet, by_alternate, &mut s.host)
}

/// Armed, with two requests in flight and nothing logged.
fn armed() -> Sender {
    let mut s = Sender::new();
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    s.post(SendOp::Send, 1);
    s.drain();
    ack(&mut s, 0, false);
    assert_eq!(state(&s), PathMigState::Armed);
    s.post(SendOp::Send, 1);
    s.post(SendOp::Send, 1);
    s.drain();
    s.log();
    s
}

/// MigReq of the next request that leaves.
fn migreq(s: &mut Sender) -> bool {
    let mut buf = [0; 4500];
    let sent = s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    Packet::parse(&buf[..sent.len]).unwrap().bth().migreq
}

#[test]
fn migreq_is_clear_until_the_queue_pair_has_migrated_and_arms_the_peer_alone() {
    let mut s = Sender::new();
    for _ in 0..3 {
        s.post(SendOp::Send, 1);
    }
    assert!(migreq(&mut s));
    ack(&mut s, 0, false);
    assert_eq!(state(&s), PathMigState::Migrated);
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    assert!(!migreq(&mut s));
    ack(&mut s, 1, true);
    assert_eq!(state(&s), PathMigState::Rearm);
    ack(&mut s, 1, false);
    assert_eq!(state(&s), PathMigState::Armed);
    assert!(!migreq(&mut s));
    // The application takes the alternate path itself, and needs no event to know it.
    s.log();
    set(&mut s, PathMigState::Migrated, STATE).unwrap();
    check(&s.log(), expect!["path;"]);
    assert!(migreq(&mut s), "sent again by the new path");
    assert_eq!(s.qp.attr().port, PortNum(2));
}

#[test]
fn an_armed_requester_changes_its_path_when_its_retries_are_used_up() {
    let mut s = armed();
    for _ in 0..3 {
        s.pass(TIMEOUT);
        s.drain();
    }
    check(&s.log(), expect![""]);
    s.pass(TIMEOUT);
    check(&s.log(), expect!["path; event PathMigrated;"]);
    let attr = *s.qp.attr();
    assert_eq!((attr.state, attr.path_mig_state), (QpState::Rts, PathMigState::Migrated));
    assert_eq!((attr.port, attr.pkey_index, attr.av.flow_label), (PortNum(2), 5, 7));
    assert_eq!((attr.timeout, attr.alt_port), (AckTimeout::new(8), PortNum(0)));
    assert_eq!(s.qp.pkey(), OTHER);
    check(&s.drain(), expect!["RC_SEND_ONLY 1!; RC_SEND_ONLY 2!;"]);
    // Patience begins anew, with the timeout of the new path.
    for _ in 0..3 {
        s.pass(TIMEOUT / 4);
        check(&s.drain(), expect!["RC_SEND_ONLY 1!; RC_SEND_ONLY 2!;"]);
    }
    s.answer(packet_of(Opcode::RC_ACK, 2, true, OTHER), &[]);
    check(&s.log(), expect!["wc 2 Success; wc 3 Success;"]);
}

#[test]
fn without_an_armed_alternate_path_retries_end_as_ever() {
    let mut s = Sender::new();
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    s.post(SendOp::Send, 1);
    for _ in 0..4 {
        s.drain();
        s.pass(TIMEOUT);
    }
    assert!(s.log().contains("wc 1 RetryExceeded"), "not armed yet");
    let mut s = armed();
    for _ in 0..8 {
        s.drain();
        s.pass(TIMEOUT);
    }
    assert!(s.log().contains("wc 2 RetryExceeded"), "after the alternate path there is none");
    assert_eq!(s.qp.state(), QpState::Error);
}

#[test]
fn a_port_that_is_down_is_left_at_once_for_another_one() {
    let mut s = armed();
    s.qp.leave_port(s.now, &mut s.host);
    check(&s.log(), expect!["path; event PathMigrated;"]);
    check(&s.drain(), expect!["RC_SEND_ONLY 1!; RC_SEND_ONLY 2!;"]);
    s.qp.leave_port(s.now, &mut s.host);
    check(&s.log(), expect![""]);
}

#[test]
fn an_rnr_delay_goes_on_over_a_migration() {
    let mut s = armed();
    s.aeth(1, 0, Syndrome::rnr(RnrTimer::new(20)));
    s.log();
    assert!(write_by_other_path(&mut s, true, true, OTHER));
    check(&s.drain(), expect![""]);
    s.pass(RnrTimer::new(20).nanos());
    check(&s.drain(), expect!["RC_SEND_ONLY 1!; RC_SEND_ONLY 2!;"]);
}

#[test]
fn a_responder_follows_a_request_by_the_alternate_path() {
    for state_before in [PathMigState::Rearm, PathMigState::Armed] {
        let mut s = armed();
        if state_before == PathMigState::Rearm {
            set(&mut s, PathMigState::Rearm, STATE).unwrap();
        }
        // Neither what was on its way before the peer migrated, nor another partition.
        assert!(!write_by_other_path(&mut s, true, false, OTHER));
        assert!(!write_by_other_path(&mut s, true, true, Pkey::DEFAULT));
        assert_eq!((state(&s), s.log().as_str()), (state_before, ""));
        assert!(write_by_other_path(&mut s, true, true, OTHER));
        check(&s.log(), expect!["path; event PathMigrated;"]);
        assert_eq!((state(&s), s.qp.attr().port), (PathMigState::Migrated, PortNum(2)));
        check(&s.drain(), expect!["RC_SEND_ONLY 1!; RC_SEND_ONLY 2!;"]);
        assert!(!write_by_other_path(&mut s, true, true, OTHER), "there is one path again");
    }
}

#[test]
fn a_peer_that_migrates_to_another_path_is_told_once_for_each_alternate_path() {
    let mut s = armed();
    assert!(!write_by_other_path(&mut s, false, true, OTHER));
    assert!(!write_by_other_path(&mut s, false, true, OTHER));
    check(&s.log(), expect!["event PathMigrationFailed;"]);
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    assert!(!write_by_other_path(&mut s, false, true, OTHER));
    ack(&mut s, 1, true);
    check(&s.log(), expect!["wc 2 Success;"]);
    ack(&mut s, 1, false);
    ack(&mut s, 2, true);
    ack(&mut s, 2, true);
    check(&s.log(), expect!["event PathMigrationFailed; wc 3 Success;"]);
    assert_eq!(state(&s), PathMigState::Armed);
}

#[test]
fn a_peer_that_migrates_to_a_path_with_the_same_addresses_is_followed() {
    let mut s = armed();
    s.host.is_alike = true;
    ack(&mut s, 1, true);
    check(&s.log(), expect!["path; event PathMigrated; wc 2 Success;"]);
    check(&s.drain(), expect!["RC_SEND_ONLY 2!;"]);
}

#[test]
fn states_that_an_application_cannot_ask_for_are_explained() {
    let mut s = Sender::new();
    let refusal = |s: &mut Sender, to, mask| {
        let error = set(s, to, mask).unwrap_err();
        assert_eq!(s.qp.attr().alt_av.flow_label, if s.qp.attr().has_alternate() { 7 } else { 0 });
        error.to_string()
    };
    check(
        &refusal(&mut s, PathMigState::Rearm, STATE),
        expect![[
            r#"path migration cannot go from Migrated to Rearm: no alternate path is loaded; name ALT_PATH as well"#
        ]],
    );
    check(
        &refusal(&mut s, PathMigState::Armed, ALT | STATE),
        expect![[
            r#"path migration cannot go from Migrated to Armed: only a packet of the peer arms it; ask for Rearm"#
        ]],
    );
    let mut s = armed();
    check(
        &refusal(&mut s, PathMigState::Migrated, ALT),
        expect![[
            r#"path migration cannot go from Armed to Armed: the alternate path is in use by both ends; ask for Rearm to load another one"#
        ]],
    );
    set(&mut s, PathMigState::Rearm, STATE).unwrap();
    set(&mut s, PathMigState::Migrated, STATE).unwrap();
    check(&s.log(), expect![""]);
    assert_eq!(s.qp.attr().port, PortNum(1), "not armed: the path stays");
    s.modify(QpState::Reset, AttrMask::STATE, 0).unwrap();
    assert!(!s.qp.attr().has_alternate());
}

#[test]
fn a_queue_pair_that_was_asked_for_rearm_sends_packets_alone() {
    let mut s = Sender::new();
    s.qp.set_messages(true);
    s.post(SendOp::Send, 1);
    assert!(s.qp.has_message());
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    assert!(!s.qp.has_message());
    // The owner says it at each turn.
    s.qp.set_messages(true);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!;"]);
    s.ack(0);
    s.post(read_at(0), 1);
    assert!(s.qp.next_direct().is_none());
}

#[test]
fn a_write_that_was_begun_without_packets_begins_anew_in_packets() {
    let mut s = Sender::new();
    s.post(SendOp::Write(Remote::default()), 2 * MTU);
    s.qp.direct_progress(MTU);
    set(&mut s, PathMigState::Rearm, ALT | STATE).unwrap();
    check(&s.drain(), expect!["RC_WRITE_FIRST 0; RC_WRITE_LAST 1!;"]);
}

#[test]
fn the_static_rate_of_the_alternate_path_holds_from_the_migration_on() {
    let mut s = Sender::new();
    let mut attr =
        QpAttr { alt_port: PortNum(2), path_mig_state: PathMigState::Rearm, ..*s.qp.attr() };
    attr.alt_av.static_rate = vernic_wire::StaticRate(2);
    s.qp.modify(&attr, ALT | STATE, s.now, &mut s.host).unwrap();
    (0..12).for_each(|_| s.post(SendOp::Send, 64 * MTU));
    let mut all = 0;
    let windows = [0; 3].map(|_| {
        let sent = s.drain().matches(';').count();
        all += sent as u32;
        ack(&mut s, all - 1, false);
        sent
    });
    assert_eq!(windows, [32, 64, 128]);
    set(&mut s, PathMigState::Migrated, STATE).unwrap();
    // 100 us of 2.5 Gb/s.
    let sent = s.drain().matches(';').count();
    assert!((110..=120).contains(&sent), "{sent}");
}
