//! The seam of congestion control: what a controller is told and when, and that it is obeyed.

use std::sync::{Arc, Mutex};

use super::*;
use crate::congestion::{Acked, Congestion, Sent, Tally};

/// What the controller answers, and what it was told.
#[derive(Debug, Default)]
struct Script {
    window: u32,
    not_before: Option<Time>,
    /// Each packet keeps the next one back for so many nanoseconds.
    gap: u64,
    told: String,
}

/// A controller that does as its script says.
#[derive(Clone, Debug, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    fn with(window: u32) -> Self {
        let scripted = Self::default();
        scripted.change(|script| script.window = window);
        scripted
    }
    fn change(&self, f: impl FnOnce(&mut Script)) {
        f(&mut self.0.lock().unwrap());
    }
    /// What was told since the last time.
    fn told(&self) -> String {
        std::mem::take(&mut self.0.lock().unwrap().told)
    }
    fn note(&self, now: Time, what: std::fmt::Arguments<'_>) {
        self.change(|script| {
            let _ = write!(script.told, "{} {what}; ", now.nanos());
        });
    }
}

impl Congestion for Scripted {
    fn reset(&mut self) {
        self.change(|script| script.told.push_str("reset; "));
    }
    fn on_sent(&mut self, now: Time, sent: Sent) {
        let Sent { packets, bytes, again } = sent;
        self.note(now, format_args!("sent {packets} {bytes}{}", if again { " again" } else { "" }));
        self.change(|script| {
            if script.gap != 0 {
                script.not_before = Some(now + script.gap);
            }
        });
    }
    fn on_ack(&mut self, now: Time, acked: Acked) {
        let Acked { packets, limited, round_trip } = acked;
        let limited = if limited { " limited" } else { "" };
        self.note(now, format_args!("ack {packets} {round_trip:?}{limited}"));
    }
    fn on_loss(&mut self, now: Time) {
        self.note(now, format_args!("loss"));
    }
    fn on_mark(&mut self, now: Time, kind: Kind) {
        self.note(now, format_args!("mark {kind:?}"));
    }
    fn on_cnp(&mut self, now: Time) {
        self.note(now, format_args!("cnp"));
    }
    fn on_silence(&mut self, now: Time) {
        self.note(now, format_args!("silence"));
    }
    fn on_contention(&mut self, _: bool) {
        unreachable!("a queue pair's own controller is told of no other queue pair");
    }
    fn window(&self) -> u32 {
        self.0.lock().unwrap().window
    }
    fn not_before(&self) -> Option<Time> {
        self.0.lock().unwrap().not_before
    }
}

fn start(controller: &Scripted) -> Sender {
    let qp = Qp::with_congestion(INIT, Box::new(controller.clone()));
    let s = Sender::connect(qp, |_| {});
    controller.told();
    s
}

/// A congestion notification packet: a BTH and 16 bytes of nothing.
fn cnp(s: &mut Sender) -> Disposition {
    let bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
    s.answer(Headers::new(bth), &[0; 16])
}

#[test]
fn the_next_packet_asks_for_an_acknowledgement_where_the_owner_wants_it() {
    let mut s = start(&Scripted::with(64));
    s.post(SendOp::Send, 6 * MTU);
    let mut buf = [0; 4500];
    let mut poll = |s: &mut Sender| {
        let sent = s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
        Packet::parse(&buf[..sent.len]).unwrap().ack_req()
    };
    assert!(!poll(&mut s));
    s.qp.ask_ack();
    assert_eq!([poll(&mut s), poll(&mut s), poll(&mut s)], [true, false, false]);
}

#[test]
fn a_controller_is_told_of_packets_answers_losses_and_silence() {
    let c = Scripted::with(4);
    let mut s = start(&c);
    s.post(SendOp::Send, 3 * MTU);
    s.drain();
    check(&c.told(), expect!["0 sent 1 268; 0 sent 1 268; 0 sent 1 268;"]);
    s.pass(1_000);
    s.ack(0);
    check(&c.told(), expect!["1000 ack 1 Some(1000) limited;"]);
    s.nak(2, NakCode::PSN_SEQUENCE);
    check(&c.told(), expect!["1000 ack 1 None limited; 1000 loss;"]);
    s.drain();
    check(&c.told(), expect!["1000 sent 1 268 again;"]);
    s.pass(AckTimeout::new(10).nanos().unwrap());
    s.drain();
    check(&c.told(), expect!["4195304 silence; 4195304 sent 1 268 again;"]);
    s.ack(2);
    s.post(read_at(0), 2 * MTU);
    s.drain();
    check(&c.told(), expect!["4195304 ack 1 None; 4195304 sent 2 540;"]);
    check(&s.log(), expect!["wc 1 Success;"]);
    s.modify(QpState::Reset, AttrMask::STATE, 0).unwrap();
    check(&c.told(), expect!["reset;"]);
}

#[test]
fn marks_and_notifications_reach_the_controller_and_are_counted() {
    let c = Scripted::with(4);
    let mut s = start(&c);
    s.post(SendOp::Send, 1);
    s.drain();
    c.told();
    let mut ack = Headers::new(Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(0)));
    ack.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
    assert_eq!(s.answer_marked(ack, &[], 3), Disposition::Accepted);
    check(&c.told(), expect!["0 mark Ack; 0 ack 1 Some(0);"]);
    assert_eq!(cnp(&mut s), Disposition::Drop(DropReason::Cnp));
    check(&c.told(), expect!["0 cnp;"]);
    let counters = s.qp.counters();
    assert_eq!((counters.ecn_marked_received, counters.cnps_received), (1, 1));
    assert_eq!(counters.rx_packets, 1, "a notification is no packet of the sequence");
}

#[test]
fn a_storm_of_notifications_neither_stops_the_default_controller_nor_paces_it() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 8 * MTU);
    for _ in 0..100 {
        assert_eq!(cnp(&mut s), Disposition::Drop(DropReason::Cnp));
        s.pass(1_000);
    }
    assert!(s.qp.wants_transmit() && s.qp.next_deadline().is_none());
    assert_eq!(s.drain().matches(';').count(), 8);
    assert_eq!(s.qp.counters().cnps_received, 100);
}

/// What leaves for the peer of its own.
fn responses(s: &mut Sender) -> Vec<Vec<u8>> {
    let mut buf = [0; 4500];
    let mut out = Vec::new();
    while let Some(t) = s.qp.poll_response(s.now, &mut s.host, &mut buf) {
        out.push(buf[..t.len].to_vec());
    }
    assert!(!s.qp.wants_responses());
    out
}

/// An acknowledgement with the mark, of what was acknowledged before.
fn marked(s: &mut Sender) {
    let mut ack = Headers::new(Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(0)));
    ack.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
    s.answer_marked(ack, &[], 3);
}

#[test]
fn the_sender_of_marked_packets_is_told_once_in_an_interval() {
    let mut s = Sender::new();
    assert_eq!(responses(&mut s), [[0; 0]; 0]);
    marked(&mut s);
    marked(&mut s);
    assert!(s.qp.wants_responses() && !s.qp.owes_only_ack());
    let sent = responses(&mut s);
    let [cnp] = &sent[..] else { panic!("{sent:?}") };
    let packet = Packet::parse(cnp).unwrap();
    let bth = packet.bth();
    assert_eq!((bth.opcode, bth.dest_qpn, bth.psn), (Opcode::CNP, Qpn::new(0x22), Psn::new(0)));
    assert!(bth.becn && !bth.fecn && !bth.ack_req);
    assert_eq!(packet.payload(), [0; 16]);
    s.pass(49_999);
    marked(&mut s);
    assert_eq!(responses(&mut s).len(), 0);
    s.pass(1);
    marked(&mut s);
    assert_eq!(responses(&mut s).len(), 1);
    assert_eq!((s.qp.counters().cnps_sent, s.qp.counters().ecn_marked_received), (2, 4));
}

#[test]
fn a_queue_pair_that_ends_owes_no_notification() {
    for state in [QpState::Error, QpState::Reset] {
        let mut s = Sender::new();
        marked(&mut s);
        s.modify(state, AttrMask::STATE, 0).unwrap();
        assert!(!s.qp.wants_responses());
        assert_eq!(responses(&mut s).len(), 0);
    }
}

#[test]
fn dcqcn_spaces_packets_after_a_notification() {
    let text = "dcqcn,rate_to_set_on_first_cnp=8,rpg_min_dec_fac=100,pacing_quantum=0";
    let mut s = Sender::connect(Qp::with_algorithm(INIT, text.parse().unwrap()), |_| {});
    s.post(SendOp::Send, 2 * MTU);
    check(&s.drain(), expect!["RC_SEND_FIRST 0; RC_SEND_LAST 1!;"]);
    cnp(&mut s);
    s.post(SendOp::Send, 3 * MTU);
    // 268 bytes at a byte each microsecond.
    check(&s.drain(), expect!["RC_SEND_FIRST 2!;"]);
    assert_eq!(s.qp.next_deadline(), Some(Time(268_000)));
    s.pass(268_000);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 3!;"]);
}

#[test]
fn a_window_that_closes_keeps_packets_back_until_an_answer_opens_it() {
    let c = Scripted::with(2);
    let mut s = start(&c);
    s.post(SendOp::Send, 6 * MTU);
    check(&s.drain(), expect!["RC_SEND_FIRST 0!; RC_SEND_MIDDLE 1!;"]);
    assert!(!s.qp.wants_transmit());
    // The narrowest window is a packet, whatever a controller says, and the widest that of the
    // queue pair.
    c.change(|script| script.window = 0);
    s.ack(0);
    check(&s.drain(), expect![""]);
    s.ack(1);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 2!;"]);
    c.change(|script| script.window = u32::MAX);
    s.ack(2);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 3; RC_SEND_MIDDLE 4; RC_SEND_LAST 5!;"]);
}

#[test]
fn a_window_that_shrinks_below_what_asks_no_answer_lets_one_more_packet_ask() {
    let c = Scripted::with(64);
    c.change(|script| script.gap = 1);
    let mut s = start(&c);
    s.post(SendOp::Send, 5 * MTU);
    check(&s.drain(), expect!["RC_SEND_FIRST 0;"]);
    c.change(|script| (script.window, script.gap, script.not_before) = (1, 0, None));
    s.pass(1);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 1!;"]);
    s.ack(1);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 2!;"]);
    assert_eq!(s.qp.counters().retransmitted_packets, 0);
}

#[test]
fn nothing_leaves_before_the_time_that_the_controller_names() {
    let c = Scripted::with(64);
    c.change(|script| (script.gap, script.not_before) = (500, Some(Time(0))));
    let mut s = start(&c);
    s.post(SendOp::Send, 3 * MTU);
    // Each asks for an answer: the next may be long in coming.
    check(&s.drain(), expect!["RC_SEND_FIRST 0!;"]);
    for (packet, at) in [("RC_SEND_MIDDLE 1!; ", 500), ("RC_SEND_LAST 2!; ", 1_000)] {
        assert!(!s.qp.wants_transmit());
        assert_eq!(s.qp.next_deadline(), Some(Time(at)));
        s.pass(499);
        assert_eq!(s.drain(), "");
        s.pass(1);
        assert!(s.qp.wants_transmit());
        assert_eq!(s.drain(), packet);
    }
    s.ack(2);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.qp.counters().ack_timeouts, 0);
}

#[test]
fn a_notification_may_delay_what_follows_and_error_ends_the_delay() {
    let c = Scripted::with(64);
    let mut s = start(&c);
    c.change(|script| script.not_before = Some(Time(7_000)));
    cnp(&mut s);
    s.post(SendOp::Send, 1);
    assert!(!s.qp.wants_transmit());
    assert_eq!(s.qp.next_deadline(), Some(Time(7_000)));
    s.modify(QpState::Error, AttrMask::STATE, 2).unwrap();
    assert_eq!(s.qp.next_deadline(), None);
    check(&s.log(), expect!["wc 1 Flushed;"]);
}

#[test]
fn notifications_of_another_partition_or_for_an_unconnected_queue_pair_change_nothing() {
    let c = Scripted::with(64);
    let mut s = start(&c);
    let mut bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
    bth.pkey = vernic_wire::Pkey(0x8001);
    let refused = s.answer(Headers::new(bth), &[0; 16]);
    assert_eq!(refused, Disposition::Drop(DropReason::Pkey));
    s.modify(QpState::Error, AttrMask::STATE, 2).unwrap();
    assert_eq!(cnp(&mut s), Disposition::Drop(DropReason::Cnp));
    check(&c.told(), expect![""]);
    assert_eq!(s.qp.counters().cnps_received, 1);
}

#[test]
fn a_shared_controller_hears_of_a_queue_pair_what_its_own_controller_hears() {
    let (own, shared) = (Scripted::with(4), Scripted::with(64));
    let mut s = start(&own);
    let mut told = Tally::default();
    // What reached either of them, the queue pair's own first.
    let mut heard = |s: &Sender, limited| {
        let tally = *s.qp.tally().unwrap();
        tally.pass_on(&mut told, &mut shared.clone(), limited, s.now);
        assert!(!tally.has_signs_since(&told));
        [own.told(), shared.told()]
    };
    s.post(SendOp::Send, 3 * MTU);
    s.drain();
    let [own_heard, shared_heard] = heard(&s, false);
    check(&own_heard, expect!["0 sent 1 268; 0 sent 1 268; 0 sent 1 268;"]);
    check(&shared_heard, expect!["0 sent 3 804;"]);
    s.pass(1_000);
    s.ack(0);
    s.nak(2, NakCode::PSN_SEQUENCE);
    let [own_heard, shared_heard] = heard(&s, true);
    check(
        &own_heard,
        expect!["1000 ack 1 Some(1000) limited; 1000 ack 1 None limited; 1000 loss;"],
    );
    check(&shared_heard, expect!["1000 ack 2 Some(1000) limited; 1000 loss;"]);
    // A packet again, and a new one, in one turn.
    s.post(read_at(0), 2 * MTU);
    s.drain();
    let [own_heard, shared_heard] = heard(&s, false);
    check(&own_heard, expect!["1000 sent 1 268 again; 1000 sent 2 540;"]);
    check(&shared_heard, expect!["1000 sent 1 268 again; 1000 sent 2 540;"]);
    cnp(&mut s);
    let mut response = Headers::new(Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(2)));
    response.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
    s.answer_marked(response, &[], 3);
    s.pass(AckTimeout::new(10).nanos().unwrap());
    let [own_heard, shared_heard] = heard(&s, false);
    check(
        &own_heard,
        expect!["1000 cnp; 1000 mark Ack; 1000 ack 1 None limited; 4195304 silence;"],
    );
    // Marks on acknowledgements say nothing of the path to the peer.
    check(&shared_heard, expect!["4195304 ack 1 None; 4195304 silence; 4195304 cnp;"]);
    // What was heard is not told twice, nor is it unheard by a reset.
    s.modify(QpState::Reset, AttrMask::STATE, 0).unwrap();
    assert_eq!(heard(&s, false), ["reset; ", ""]);
}
