//! SENDs that leave as parts of messages.

use super::*;

/// Rendezvous of 4 to 16 packets of 256 bytes.
const LIMITS: RendezvousLimits = RendezvousLimits { min_bytes: 4 * MTU, max_bytes: 16 * MTU };

/// Bytes of a part that travels with its payload: two packets and a little more.
const ROOM: usize = 2 * MTU as usize + 100;

fn sender() -> Sender {
    let mut s = Sender::new();
    s.qp.set_messages(true);
    s
}

/// The same with [`LIMITS`].
fn offering() -> Sender {
    let mut s = sender();
    s.qp.set_rendezvous(Some(LIMITS));
    s
}

impl Sender {
    /// Everything that may leave now, parts of messages among the packets: `SEND`, the first
    /// number, and the payload with its length, `[` where a message starts and `]` where it ends.
    fn drain_all(&mut self) -> String {
        let mut out = String::new();
        loop {
            let is_next = self.qp.has_message();
            let mut buf = [0; ROOM];
            let sent = self.qp.poll_message(self.now, &mut self.host, &mut buf);
            assert!(is_next || sent.is_none());
            let Some((part, written)) = sent else {
                let packet = self.drain_one();
                // A local request may have been carried out, and a message follows it.
                if packet.is_empty() && !self.qp.has_message() {
                    return out;
                }
                out += &packet;
                continue;
            };
            let kind = if part.is_rendezvous { "at" } else { "of" };
            assert_eq!(written, if part.is_rendezvous { 8 } else { part.length as usize });
            let (start, end) =
                (if part.starts { "[" } else { "" }, if part.ends { "]" } else { "" });
            let queue = part.srqn.map_or(String::new(), |srqn| format!(" for {}", srqn.value()));
            let _ = write!(out, "SEND {start}{} {kind} {}{queue}{end}", part.psn, part.length);
            if part.tag != Tag::None {
                let _ = write!(out, " {:?}", part.tag);
            }
            out += if part.solicited { " solicited; " } else { "; " };
        }
    }

    /// One packet that may leave now.
    fn drain_one(&mut self) -> String {
        let mut buf = [0; 4500];
        let sent = self.qp.poll_request(self.now, &mut self.host, &mut buf);
        let Some(sent) = sent else { return String::new() };
        let packet = Packet::parse(&buf[..sent.len]).unwrap();
        format!("{} {}; ", packet.opcode(), packet.psn())
    }
}

#[test]
fn a_send_is_one_part_or_some_of_full_packets_and_each_takes_its_numbers() {
    let mut s = sender();
    s.post(SendOp::Send, 0);
    s.post_flags(SendOp::SendImm(7), 700, SendFlags::SIGNALED | SendFlags::SOLICITED);
    s.post(SendOp::SendInv(Rkey(0x99)), 2 * MTU);
    check(
        &s.drain_all(),
        expect![
            "SEND [0 of 0]; SEND [1 of 512; SEND 3 of 188] Imm(7) solicited; SEND [4 of 512] Invalidated(0x00000099);"
        ],
    );
    let counters = *s.qp.counters();
    assert_eq!((counters.tx_packets, counters.messages_sent), (6, 3));
    s.ack(3);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success;"]);
    s.ack(5);
    check(&s.log(), expect!["wc 3 Success;"]);
    assert_eq!(s.qp.packets_in_flight(), 0);
    assert!(!s.qp.wants_transmit() && s.qp.next_deadline().is_none());
}

fn ack(psn: u32, syndrome: Syndrome) -> PartAck {
    PartAck { psn: Psn::new(psn), aeth: Aeth { syndrome, msn: 0 } }
}

#[test]
fn a_carried_acknowledgement_means_what_the_packet_means() {
    let mut s = sender();
    let good = Syndrome::ack(CreditCode::INVALID);
    for _ in 0..3 {
        s.post(SendOp::Send, 8);
    }
    s.drain_all();
    let take = |s: &mut Sender, ack| s.qp.handle_ack(s.now, ack, &mut s.host);
    assert_eq!(take(&mut s, ack(1, good)), Disposition::Accepted);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success;"]);
    assert_eq!(take(&mut s, ack(0, good)), Disposition::Duplicate);
    let ahead = Disposition::Drop(DropReason::StaleResponse);
    assert_eq!(take(&mut s, ack(3, good)), ahead, "not sent yet");
    for syndrome in [Syndrome::nak(NakCode::REMOTE_ACCESS), Syndrome::rnr(RnrTimer::new(1))] {
        assert_eq!(take(&mut s, ack(2, syndrome)), Disposition::Drop(DropReason::Malformed));
    }
    check(&s.log(), expect![""]);
    assert_eq!(take(&mut s, ack(2, good)), Disposition::Accepted);
    check(&s.log(), expect!["wc 3 Success;"]);
    let counters = *s.qp.counters();
    assert_eq!((counters.acks_received, counters.duplicates_received), (3, 1));
    assert!(s.qp.next_deadline().is_none());
    // A READ in front whose answer has not come was lost.
    s.post(read_at(0), 8);
    s.post(SendOp::Send, 8);
    s.drain_all();
    assert_eq!(take(&mut s, ack(4, good)), Disposition::Accepted);
    assert_eq!(s.qp.counters().implied_naks, 1);
}

#[test]
fn long_payload_is_named_and_the_rest_of_it_travels() {
    let mut s = offering();
    s.post(SendOp::Send, 34 * MTU + 1);
    s.post(SendOp::Send, 16 * MTU);
    s.post(SendOp::Send, 4 * MTU - 1);
    check(
        &s.drain_all(),
        expect![
            "SEND [0 at 4096; SEND 16 at 4096; SEND 32 of 513]; SEND [35 at 4096]; SEND [51 of 512; SEND 53 of 511];"
        ],
    );
    assert_eq!(s.host.named, [(0, 0, 4096), (0, 4096, 4096), (1, 0, 4096)]);
    s.ack(54);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
}

#[test]
fn only_sends_leave_so_in_their_turn_and_only_while_it_is_permitted() {
    let mut s = sender();
    let remote = Remote { addr: 0, rkey: Rkey(9) };
    s.post(SendOp::Send, 8);
    s.post(SendOp::Write(remote), 2 * MTU);
    s.post(SendOp::LocalInv(Rkey(3)), 0);
    s.post(SendOp::Send, 8);
    s.post(read_at(0), 8);
    s.post_flags(SendOp::Send, 8, SendFlags::FENCE);
    check(
        &s.drain_all(),
        expect![
            "SEND [0 of 8]; RC_WRITE_FIRST 1; RC_WRITE_LAST 2; SEND [3 of 8]; RC_READ_REQUEST 4;"
        ],
    );
    s.read_response(4, Position::Only, 8);
    check(&s.drain_all(), expect!["SEND [5 of 8];"]);
    s.qp.set_messages(false);
    s.post(SendOp::Send, 8);
    assert_eq!(s.qp.next_send_bytes(), 8);
    check(&s.drain_all(), expect!["RC_SEND_ONLY 6;"]);
}

#[test]
fn a_send_of_xrc_names_its_shared_receive_queue_in_each_part() {
    let init = QpInit { qp_type: QpType::XrcIni, max_send_wr: 4, shared_rq: true, ..INIT };
    let mut s = Sender::of(init, |attr| attr.max_dest_rd_atomic = 0);
    s.qp.set_messages(true);
    s.qp.set_rendezvous(Some(LIMITS));
    let (op, flags, srqn) = (SendOp::Send, SendFlags::SIGNALED, Some(Srqn::new(3)));
    let length = 17 * MTU;
    s.qp.post_send(SendWqe { wr_id: 1, op, flags, length, dest: None, srqn }).unwrap();
    check(&s.drain_all(), expect!["SEND [0 at 4096 for 3; SEND 16 of 256 for 3];"]);
}

#[test]
fn a_local_request_in_front_does_not_hide_the_message_behind_it() {
    let mut s = sender();
    s.post(SendOp::LocalInv(Rkey(3)), 0);
    s.post(SendOp::Send, 8);
    assert!(!s.qp.has_message() && s.qp.wants_requests());
    assert_eq!(s.drain_one(), "");
    assert!(s.qp.has_message());
    check(&s.drain_all(), expect!["SEND [0 of 8];"]);
}

#[test]
fn what_cannot_be_named_travels_and_what_cannot_be_read_fails_in_its_turn() {
    let mut s = offering();
    s.host.unnamed = true;
    s.post(SendOp::Send, 5 * MTU);
    check(&s.drain_all(), expect!["SEND [0 of 512; SEND 2 of 512; SEND 4 of 256];"]);
    s.host.fail_gather = true;
    s.post(SendOp::Send, 8);
    check(&s.drain_all(), expect![""]);
    assert!(!s.qp.has_message() && !s.qp.wants_requests(), "it waits for those before it");
    check(&s.log(), expect![""]);
    s.ack(4);
    check(&s.drain_all(), expect![""]);
    assert!(s.log().ends_with("wc 2 LocalProtection; "));
}

#[test]
fn no_window_limits_messages_and_their_acknowledgements_do_not_open_it() {
    // Packets of one long WRITE that leave at once.
    let window = |s: &mut Sender| {
        s.post(SendOp::Write(Remote { addr: 0, rkey: Rkey(9) }), 4000 * MTU);
        s.drain().matches(';').count()
    };
    let init = QpInit { max_send_wr: 4096, ..INIT };
    let at_first = window(&mut Sender::of(init, |_| {}));
    let mut s = Sender::of(init, |_| {});
    s.qp.set_messages(true);
    for _ in 0..4000 {
        s.post(SendOp::Send, 8);
    }
    assert_eq!(s.drain_all().matches("SEND [").count(), 4000);
    s.ack(999);
    s.ack(3999);
    assert_eq!(window(&mut s), at_first);
}

#[test]
fn what_is_sent_again_travels_in_packets_and_what_follows_it_does_not() {
    let mut s = offering();
    s.post(SendOp::Send, 20 * MTU);
    s.post(SendOp::Send, 4 * MTU);
    s.drain_all();
    // One that has no receive, a gap behind the fourth packet.
    s.aeth(0, 0, Syndrome::rnr(RnrTimer::new(1)));
    assert!(!s.qp.has_message() && s.drain_all().is_empty());
    s.pass(20_000_000);
    let again = s.drain_all();
    assert!(!again.contains("SEND [") && again.starts_with("RC_SEND_FIRST 0; "), "{again}");
    s.nak(4, NakCode::PSN_SEQUENCE);
    let again = s.drain_all();
    assert!(!again.contains("SEND [") && again.starts_with("RC_SEND_MIDDLE 4; "), "{again}");
    s.ack(20);
    s.post(SendOp::Send, 4 * MTU);
    check(&s.drain_all(), expect!["SEND [24 at 1024];"]);
    s.ack(27);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success; wc 3 Success;"]);
}

#[test]
fn a_peer_that_cannot_copy_costs_no_retry_but_once() {
    let mut s = Sender::with(|attr| attr.retry_cnt = 0);
    s.qp.set_messages(true);
    s.qp.set_rendezvous(Some(LIMITS));
    s.post(SendOp::Send, 20 * MTU);
    s.drain_all();
    s.ack(15);
    assert_eq!(s.qp.packets_in_flight(), 4);
    s.post(SendOp::Send, 8 * MTU);
    check(&s.drain_all(), expect!["SEND [20 at 2048];"]);
    s.nak(20, NakCode::PSN_SEQUENCE);
    assert_eq!(s.qp.state(), QpState::Rts);
    assert!(s.drain_all().starts_with("RC_SEND_FIRST 20; RC_SEND_MIDDLE 21; "));
    // As packets they can be lost.
    s.nak(22, NakCode::PSN_SEQUENCE);
    assert_eq!(s.qp.state(), QpState::Error);
    assert!(s.log().contains("wc 2 RetryExceeded; "));
}

#[test]
fn a_silent_peer_is_asked_with_packets() {
    let mut s = offering();
    s.post(SendOp::Send, 16 * MTU);
    s.drain_all();
    s.pass(2_000_000);
    assert!(!s.qp.has_message());
    check(&s.drain_all(), expect!["RC_SEND_FIRST 0; RC_SEND_LAST 15;"]);
}

#[test]
fn credits_hold_for_messages_too_and_end_where_the_peer_has_no_receive() {
    let mut s = sender();
    for _ in 0..6 {
        s.post(SendOp::Send, 8);
    }
    let mut buf = [0; ROOM];
    assert!(s.qp.poll_message(s.now, &mut s.host, &mut buf).is_some());
    // One message was taken, and there are receives for two more.
    s.aeth(0, 1, Syndrome::ack(CreditCode::at_most(2)));
    check(&s.drain_all(), expect!["SEND [1 of 8]; SEND [2 of 8];"]);
    // The peer gave the second one to somebody else.
    s.aeth(2, 2, Syndrome::rnr(RnrTimer::new(1)));
    s.pass(20_000_000);
    check(&s.drain_all(), expect!["RC_SEND_ONLY 2;"]);
    s.aeth(2, 3, Syndrome::ack(CreditCode::at_most(2)));
    check(&s.drain_all(), expect!["SEND [3 of 8]; SEND [4 of 8];"]);
}

#[test]
fn sqd_holds_new_messages_back_and_lets_the_begun_one_end() {
    let mut s = sender();
    s.post(SendOp::Send, 4 * MTU);
    s.post(SendOp::Send, 8);
    let mut buf = [0; ROOM];
    assert!(s.qp.poll_message(s.now, &mut s.host, &mut buf).is_some());
    s.modify(QpState::Sqd, AttrMask::STATE, 2).unwrap();
    check(&s.drain_all(), expect!["SEND 2 of 512];"]);
    s.ack(3);
    assert!(!s.qp.is_draining());
    s.modify(QpState::Rts, AttrMask::STATE, 2).unwrap();
    check(&s.drain_all(), expect!["SEND [4 of 8];"]);
}

#[test]
fn error_flushes_messages_in_flight_and_behind() {
    let mut s = sender();
    for _ in 0..3 {
        s.post(SendOp::Send, 8);
    }
    let mut buf = [0; ROOM];
    assert!(s.qp.poll_message(s.now, &mut s.host, &mut buf).is_some());
    s.modify(QpState::Error, AttrMask::STATE, 2).unwrap();
    check(&s.log(), expect!["wc 1 Flushed; wc 2 Flushed; wc 3 Flushed;"]);
    assert!(!s.qp.has_message() && s.qp.poll_message(s.now, &mut s.host, &mut buf).is_none());
}

#[test]
fn a_send_through_memory_looks_for_a_receive_before_the_first_delay_is_over() {
    let mut s = sender();
    s.post(SendOp::Send, 8);
    check(&s.drain_all(), expect!["SEND [0 of 8];"]);
    let delay = RnrTimer::new(12);
    let mut looks = Vec::new();
    // Two retries are granted; the third NAK that counts is the end.
    for _ in 0..16 {
        s.aeth(0, 0, Syndrome::rnr(delay));
        if s.qp.state() == QpState::Error {
            break;
        }
        check(&s.drain_all(), expect![""]);
        let due = s.qp.next_deadline().unwrap();
        looks.push(due.since(s.now) / 1000);
        s.pass(due.since(s.now));
        assert!(!s.drain_all().is_empty());
    }
    // 640 us in all, and then as long again.
    assert_eq!(looks, [10, 20, 40, 80, 160, 320, 10, 640]);
    assert!(s.log().contains("3 times in a row, asking for 640 us each"));
}

#[test]
fn by_the_wire_a_delay_that_began_in_memory_is_waited_for_in_full() {
    let mut s = sender();
    s.post(SendOp::Send, 8);
    s.drain_all();
    let delay = RnrTimer::new(12);
    s.aeth(0, 0, Syndrome::rnr(delay));
    s.pass(5_000);
    s.qp.set_messages(false);
    s.pass(delay.nanos() - 5_001);
    check(&s.drain(), expect![""]);
    s.pass(1);
    assert!(!s.drain().is_empty());
}
