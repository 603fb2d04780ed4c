//! Captures made by hand, each with a mistake or a fault of a network, and what is told of them.

mod common;

use common::{A, B, Scene, finding, kinds};
use vernic_explain::{Direction, MAX_STREAMS, Severity, Source, diagram, explain, svg, text};
use vernic_wire::cm::{CommId, Dreq, PortSpace, Rej, RejReason, RejectedMessage, Rep, Req, Rtu};
use vernic_wire::{
    Bth, CreditCode, Deth, Headers, NakCode, Opcode, Psn, Qkey, Qpn, RnrTimer, Syndrome,
};

/// SENDs of one packet each, all acknowledged.
fn sends(scene: &mut Scene, psns: std::ops::Range<u32>) {
    for psn in psns {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
        scene.answer(B, Syndrome::ack(CreditCode(5)), psn);
    }
}

#[test]
fn a_flow_without_faults_has_no_findings_and_its_messages_are_counted() {
    let mut scene = Scene::default();
    sends(&mut scene, 0xFF_FFFE..0x100_0000);
    sends(&mut scene, 0..2);
    scene.with_memory(A, Opcode::RC_WRITE_FIRST, 2, 5000, 2048);
    scene.packet(A, Opcode::RC_WRITE_MIDDLE, 3, 2048);
    scene.packet(A, Opcode::RC_WRITE_LAST, 4, 904);
    scene.ack(B, 4);
    scene.with_memory(A, Opcode::RC_READ_REQUEST, 5, 5000, 0);
    scene.packet(B, Opcode::RC_READ_RESPONSE_FIRST, 5, 2048);
    scene.packet(B, Opcode::RC_READ_RESPONSE_MIDDLE, 6, 2048);
    scene.packet(B, Opcode::RC_READ_RESPONSE_LAST, 7, 904);
    scene.with_memory(A, Opcode::RC_FETCH_ADD, 8, 8, 0);
    scene.ack(B, 8);
    let flow = scene.flow();
    assert_eq!(kinds(&flow), Vec::<&str>::new());
    assert_eq!((flow.a.qpn, flow.b.qpn), (Some(0xA1), Some(0xB2)));
    assert_eq!((flow.service.as_str(), flow.mtu_bytes), ("RC", Some(2048)));
    let messages: Vec<_> =
        flow.a_to_b.requests.messages.iter().map(|m| (m.kind, m.count, m.bytes)).collect();
    let expected = [("SEND", 4, 400), ("WRITE", 1, 5000), ("READ", 1, 5000), ("FETCH & ADD", 1, 0)];
    assert_eq!(messages, expected);
    assert_eq!(flow.b_to_a.answers.read_bytes, 5000);
    assert_eq!(flow.a_to_b.requests.missing, 0, "the READ takes three PSNs");
}

#[test]
fn receives_that_are_missing_are_told_with_their_timer() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..3);
    for _ in 0..2 {
        scene.packet(A, Opcode::RC_SEND_ONLY, 3, 100);
        scene.answer(B, Syndrome::rnr(RnrTimer::new(12)), 3);
        scene.wait_us(640);
    }
    sends(&mut scene, 3..6);
    let flow = scene.flow();
    assert_eq!(kinds(&flow), ["receiver_not_ready"]);
    let found = finding(&flow, "receiver_not_ready");
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(
        found.what,
        "B had no receive posted: 2 RNR NAKs (timer 640 us), A waits 1.28 ms for them"
    );
    assert!(found.advice.starts_with("post receives at B before A sends"), "{}", found.advice);
    assert_eq!(flow.a_to_b.requests.sent_again_after_rnr, 2);
    let silence = flow.longest_silence.unwrap();
    assert_eq!(silence.waited_for, "the timer of an RNR NAK");
}

#[test]
fn a_requester_that_gave_up_on_a_receiver_and_the_longest_timer_are_told() {
    let mut scene = Scene::default();
    scene.packet(A, Opcode::RC_SEND_ONLY, 3, 100);
    scene.answer(B, Syndrome::rnr(RnrTimer::new(0)), 3);
    let flow = scene.flow();
    let found = finding(&flow, "receiver_not_ready");
    assert_eq!(found.severity, Severity::Error);
    assert!(found.advice.contains("12 is 0.64 ms") && found.advice.contains("rnr_retry"));
}

#[test]
fn a_lost_packet_is_told_where_it_was_captured_before_the_loss() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..10);
    for psn in [10, 11, 12] {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
    }
    scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 10);
    for psn in [10, 11, 12] {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
    }
    scene.ack(B, 12);
    let flow = scene.flow();
    let requests = &flow.a_to_b.requests;
    assert_eq!((requests.sent_again, requests.sent_again_after_nak), (3, 1));
    assert_eq!(requests.messages[0].count, 13, "each message counts once");
    let found = finding(&flow, "sent_again");
    assert!(found.what.contains("3 packets of A sent again (18.75 %): once after a NAK, never"));
    assert_eq!(flow.b_to_a.answers.naks["PSN_SEQUENCE"], 1);
}

#[test]
fn a_packet_lost_before_the_capture_is_a_gap_that_is_filled() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..10);
    for psn in [11, 12] {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
    }
    scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 10);
    scene.packet(A, Opcode::RC_SEND_ONLY, 10, 100);
    scene.ack(B, 12);
    let flow = scene.flow();
    let requests = &flow.a_to_b.requests;
    assert_eq!((requests.repaired, requests.missing, requests.overtaken), (1, 0, 0));
    assert_eq!(requests.messages[0].count, 13);
    finding(&flow, "gaps");
    // Without a NAK it was only late.
    let mut scene = Scene::default();
    for psn in [0, 1, 3, 2, 4] {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
    }
    scene.ack(B, 4);
    assert_eq!(kinds(&scene.flow()), ["reordered"]);
}

#[test]
fn silence_is_told_with_the_end_that_was_waited_for() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..3);
    scene.packet(A, Opcode::RC_SEND_ONLY, 3, 100);
    scene.wait_us(67_000);
    scene.packet(A, Opcode::RC_SEND_ONLY, 3, 100);
    scene.ack(B, 3);
    let flow = scene.flow();
    assert_eq!(flow.a_to_b.requests.sent_again_after_silence, 1);
    assert_eq!(finding(&flow, "long_wait").what, "A waited 67.0 ms for an answer of B");
    assert_eq!(flow.longest_silence.unwrap().waited_for, "an answer of B");
}

#[test]
fn requests_without_any_answer_have_their_usual_causes_told() {
    let mut scene = Scene::default();
    for _ in 0..8 {
        scene.packet(A, Opcode::RC_SEND_ONLY, 3, 100);
        scene.wait_us(4000);
    }
    let flow = scene.flow();
    let found = finding(&flow, "no_answer");
    assert_eq!(found.severity, Severity::Error);
    assert!(found.what.starts_with("B answered none of 8 request packets of A in 28.0 ms"));
    assert!(found.advice.contains("UDP port 4791") && found.advice.contains("RTR"));
    assert_eq!(kinds(&flow), ["no_answer"]);
}

#[test]
fn a_psn_that_the_responder_does_not_expect_is_told() {
    let mut scene = Scene::default();
    for _ in 0..3 {
        scene.packet(A, Opcode::RC_SEND_ONLY, 5_000_000, 100);
        scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 77);
        scene.wait_us(5000);
    }
    let flow = scene.flow();
    let found = finding(&flow, "psn_mismatch");
    assert_eq!(found.what, "A begins with PSN 5000000, but B expects 77");
    assert!(found.advice.contains("rq_psn"));
}

#[test]
fn a_later_psn_that_the_responder_expects_is_told_near_and_far() {
    for (first, expected) in [(100, 120), (100, 5000), (0xFF_FFF0, 4), (1, 5_000_000)] {
        let mut scene = Scene::default();
        for _ in 0..3 {
            // To B these are duplicates.
            scene.packet(A, Opcode::RC_SEND_ONLY, first, 100);
            scene.ack(B, expected - 1);
            scene.wait_us(5000);
        }
        let flow = scene.flow();
        let found = finding(&flow, "psn_mismatch");
        assert_eq!(found.what, format!("A begins with PSN {first}, but B expects {expected}"));
    }
}

#[test]
fn an_earlier_psn_that_the_responder_expects_is_told_though_it_is_near() {
    let mut scene = Scene::default();
    for _ in 0..3 {
        scene.packet(A, Opcode::RC_SEND_ONLY, 100, 100);
        scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 77);
        scene.wait_us(5000);
    }
    let found = finding(&scene.flow(), "psn_mismatch").what.clone();
    assert_eq!(found, "A begins with PSN 100, but B expects 77");
}

#[test]
fn a_capture_that_lacks_the_beginning_or_the_end_tells_of_no_other_psn() {
    // What B acknowledges first went before the capture, and the last ACK is of a packet that the
    // capture lacks.
    let mut scene = Scene::default();
    scene.ack(B, 99);
    for psn in 100..104 {
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
        scene.ack(B, psn);
    }
    scene.packet(A, Opcode::RC_SEND_ONLY, 103, 100);
    scene.ack(B, 110);
    assert!(!kinds(&scene.flow()).contains(&"psn_mismatch"));
}

#[test]
fn refusals_name_the_message_and_what_to_check() {
    let refused = |scene: &mut Scene, code, psn| {
        scene.answer(B, Syndrome::nak(code), psn);
        let flow = scene.flow();
        let found = flow.findings.iter().find(|f| f.severity == Severity::Error).unwrap().clone();
        (found.kind, found.what, found.advice)
    };
    let mut scene = Scene::default();
    scene.with_memory(A, Opcode::RC_WRITE_ONLY, 7, 64, 64);
    let (kind, what, advice) = refused(&mut scene, NakCode::REMOTE_ACCESS, 7);
    assert_eq!(kind, "remote_access");
    assert_eq!(
        what,
        "B refused a WRITE of 64 bytes at 0x1000 with R_Key 0x00000077 of A, PSN 7: \
         remote access error (1 NAK)"
    );
    assert!(advice.contains("rights") && advice.contains("protection domain"));
    let mut scene = Scene::default();
    scene.packet(A, Opcode::RC_SEND_ONLY, 7, 640);
    let (kind, what, advice) = refused(&mut scene, NakCode::INVALID_REQUEST, 7);
    assert_eq!(kind, "invalid_request");
    assert!(what.contains("a SEND of 640 bytes or more"), "{what}");
    assert!(advice.contains("longer than the receive") && advice.contains("MTUs"));
    let mut scene = Scene::default();
    scene.with_memory(A, Opcode::RC_READ_REQUEST, 7, 64, 0);
    let (_, _, advice) = refused(&mut scene, NakCode::INVALID_REQUEST, 7);
    assert!(advice.contains("max_dest_rd_atomic"), "{advice}");
    let mut scene = Scene::default();
    scene.packet(A, Opcode::RC_SEND_ONLY, 7, 640);
    assert_eq!(refused(&mut scene, NakCode::REMOTE_OPERATIONAL, 7).0, "remote_operational");
}

#[test]
fn partitions_damage_and_congestion_are_told() {
    let mut scene = Scene::default();
    scene.pkey = Some(0x8001);
    scene.packet(A, Opcode::RC_SEND_ONLY, 0, 100);
    scene.pkey = Some(0x8002);
    scene.ack(B, 0);
    assert_eq!(kinds(&scene.flow()), ["pkey_mismatch"]);

    let mut scene = Scene::default();
    sends(&mut scene, 0..5);
    scene.has_wrong_icrc = true;
    scene.packet(A, Opcode::RC_SEND_ONLY, 5, 100);
    assert!(finding(&scene.flow(), "wrong_icrc").what.starts_with("1 packet of A"));
    assert_eq!(scene.report().wrong_icrc_packets, 1);

    let mut scene = Scene::default();
    scene.is_marked = true;
    scene.packet(A, Opcode::RC_SEND_ONLY, 0, 100);
    scene.is_marked = false;
    scene.packet(B, Opcode::CNP, 0, 16);
    scene.ack(B, 0);
    let flow = scene.flow();
    let found = finding(&flow, "congestion");
    assert_eq!(found.what, "congestion: 1 packet of A marked by a switch (ECN), 1 CNP by B");
    assert_eq!(flow.service, "RC");
}

#[test]
fn a_small_mtu_is_told_where_messages_are_long() {
    let mut scene = Scene::default();
    scene.with_memory(A, Opcode::RC_WRITE_FIRST, 0, 10_240, 1024);
    for psn in 1..9 {
        scene.packet(A, Opcode::RC_WRITE_MIDDLE, psn, 1024);
    }
    scene.packet(A, Opcode::RC_WRITE_LAST, 9, 1024);
    scene.ack(B, 9);
    let flow = scene.flow();
    assert_eq!(finding(&flow, "small_mtu").what, "path MTU 1024, messages of up to 10.2 kB");
}

#[test]
fn a_message_whose_first_packet_was_missing_does_not_make_the_one_before_longer() {
    let mut scene = Scene::default();
    for message in 0..3 {
        let psns = message * 8..message * 8 + 8;
        if message != 1 {
            scene.with_memory(A, Opcode::RC_WRITE_FIRST, psns.start, 8192, 1024);
        }
        for psn in psns.start + 1..psns.end - 1 {
            scene.packet(A, Opcode::RC_WRITE_MIDDLE, psn, 1024);
        }
        scene.packet(A, Opcode::RC_WRITE_LAST, psns.end - 1, 1024);
    }
    scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 8);
    scene.with_memory(A, Opcode::RC_WRITE_FIRST, 8, 8192, 1024);
    scene.answer(B, Syndrome::nak(NakCode::REMOTE_ACCESS), 16);
    let flow = scene.flow();
    assert_eq!(flow.a_to_b.requests.messages[0].count, 3);
    assert!(!kinds(&flow).contains(&"small_mtu"), "8 KiB are not many packets");
    assert!(finding(&flow, "remote_access").what.contains("a WRITE of 8192 bytes at 0x1000"));
}

fn req() -> Req {
    Req {
        local_comm_id: CommId(1),
        local_qpn: A.qpn(),
        service_id: PortSpace::TCP.service_id(7174),
        starting_psn: Psn::new(500),
        path_mtu: 3,
        ..Req::default()
    }
}

fn rep() -> Rep {
    Rep {
        local_comm_id: CommId(9),
        remote_comm_id: CommId(1),
        local_qpn: B.qpn(),
        starting_psn: Psn::new(900),
        ..Rep::default()
    }
}

#[test]
fn a_connection_gives_a_flow_its_ends_and_its_path() {
    let mut scene = Scene::default();
    scene.cm(A, req());
    scene.wait_us(1000);
    scene.cm(B, rep());
    let (local, remote) = (CommId(1), CommId(9));
    scene.cm(A, Rtu { local_comm_id: local, remote_comm_id: remote, ..Rtu::default() });
    // The passive side sends alone.
    scene.packet(B, Opcode::RC_SEND_ONLY, 500, 100);
    scene.ack(A, 500);
    let remote_qpn = A.qpn();
    scene.cm(
        B,
        Dreq { local_comm_id: remote, remote_comm_id: local, remote_qpn, ..Dreq::default() },
    );
    let flow = scene.flow();
    assert_eq!(kinds(&flow), Vec::<&str>::new());
    assert_eq!((flow.a.qpn, flow.b.qpn), (Some(0xA1), Some(0xB2)));
    let connection = flow.connection.as_ref().unwrap();
    assert_eq!(connection.service_id, "tcp:7174");
    assert_eq!((connection.reply_ns, connection.disconnected_by), (Some(1_001_000), Some("B")));
    assert_eq!(flow.mtu_bytes, Some(1024));
    assert_eq!(flow.b_to_a.requests.messages[0].count, 1);
    let labels: Vec<_> = flow.arrows.iter().map(|arrow| arrow.label.as_str()).collect();
    let expected =
        ["CM REQ", "CM REP", "CM RTU", "SEND Only, PSN 500, 100 B", "ACK, PSN 500", "CM DREQ"];
    assert_eq!(labels, expected);
}

#[test]
fn connections_that_do_not_come_about_are_told() {
    let mut scene = Scene::default();
    scene.cm(A, req());
    scene.cm(A, req());
    let flow = scene.flow();
    let found = finding(&flow, "no_reply");
    assert_eq!(found.what, "B did not answer the REQ of A for tcp:7174, which was sent twice");
    let reason = RejReason::INVALID_SERVICE_ID;
    let message = RejectedMessage::REQ;
    scene.cm(B, Rej { remote_comm_id: CommId(1), message, reason, ..Rej::default() });
    let flow = scene.flow();
    let found = finding(&flow, "rejected");
    assert!(found.what.starts_with("B rejected the connection of A to tcp:7174: 8 (invalid"));
    assert!(found.advice.starts_with("start the server first"));
}

#[test]
fn a_first_psn_that_is_not_that_of_the_connection_is_told() {
    let mut scene = Scene::default();
    scene.cm(A, req());
    scene.cm(B, rep());
    scene.packet(A, Opcode::RC_SEND_ONLY, 8_000_000, 100);
    let flow = scene.flow();
    assert_eq!(finding(&flow, "psn_mismatch").what, "A begins with PSN 8000000, but B expects 900");
}

#[test]
fn packets_that_a_file_has_twice_count_once_and_those_that_do_not_arrive_are_told() {
    let mut scene = Scene::default();
    for psn in 0..50 {
        scene.direction = Direction::Out;
        scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
        if psn % 10 != 7 {
            scene.direction = Direction::In;
            scene.packet(A, Opcode::RC_SEND_ONLY, psn, 100);
        }
        scene.direction = Direction::Out;
        scene.ack(B, psn);
        scene.direction = Direction::In;
        scene.ack(B, psn);
    }
    let flow = scene.flow();
    assert_eq!((flow.a_to_b.packets, flow.b_to_a.packets), (50, 50));
    assert_eq!((flow.a_to_b.lost_packets, flow.b_to_a.lost_packets), (5, 0));
    let found = finding(&flow, "lost_on_the_way");
    assert_eq!(found.what, "5 packets left A and did not arrive at B, 45 did");
    assert!(flow.arrows.iter().any(|arrow| arrow.label == "did not arrive, PSN 7"));
}

#[test]
fn captures_of_both_ends_are_merged_by_time_and_tell_what_was_lost_in_between() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..40);
    let at_a = scene.pcap(0, |_| true);
    // Every second frame is an ACK; the tenth SEND does not arrive.
    let at_b = scene.pcap(300, |at| at != 18);
    let source = |name: &str, file| Source { name: name.into(), reader: file };
    let report = explain(vec![source("a", &at_a[..]), source("b", &at_b[..])]).unwrap();
    let frames: Vec<_> = report.files.iter().map(|file| file.frames).collect();
    assert_eq!((frames, report.packets), (vec![80, 79], 159));
    let [flow] = &report.flows[..] else { panic!("{}", text(&report)) };
    assert_eq!((flow.a_to_b.packets, flow.b_to_a.packets), (40, 40));
    assert_eq!((flow.a_to_b.lost_packets, flow.b_to_a.lost_packets), (1, 0));
    assert_eq!(kinds(flow), ["lost_on_the_way"]);
}

#[test]
fn flows_beyond_the_most_that_are_followed_are_counted() {
    let mut scene = Scene::default();
    let streams = MAX_STREAMS as u32 + 10;
    for qpn in 0..streams {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(16 + qpn), Psn::new(0));
        scene.headers(A, Headers::new(bth), 4);
    }
    let report = scene.report();
    assert_eq!((report.flow_count, report.packets_not_followed), (MAX_STREAMS, 10));
    assert!(text(&report).contains("10 packets of further flows counted only"));
}

#[test]
fn answers_are_known_by_their_psn_though_there_are_datagrams_between_the_same_ends() {
    let mut scene = Scene::default();
    for psn in [100, 101] {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(0x33), Psn::new(psn));
        let mut headers = Headers::new(bth);
        headers.deth = Some(Deth::new(Qkey(1), Qpn::new(0x44)));
        scene.headers(A, headers, 64);
    }
    sends(&mut scene, 5000..5003);
    let report = scene.report();
    let rc = report.flows.iter().find(|flow| flow.service == "RC").unwrap();
    assert_eq!((rc.a_to_b.packets, rc.b_to_a.packets, report.flows.len()), (3, 3, 2));
    assert_eq!(rc.longest_silence.as_ref().unwrap().waited_for, "an answer of B");
    let ud = report.flows.iter().find(|flow| flow.service == "UD").unwrap();
    assert_eq!((ud.a.qpn, ud.b.qpn), (Some(0x44), Some(0x33)));
}

#[test]
fn what_needs_attention_comes_first_and_can_be_chosen() {
    let mut scene = Scene::default();
    sends(&mut scene, 0..100);
    let mut report = scene.report();
    assert_eq!((report.flow_count, report.attention_count), (1, 0));
    report.keep(Some(B.qpn()), None);
    assert_eq!(report.flows.len(), 1);
    report.keep(Some(vernic_wire::Qpn::new(5)), None);
    assert_eq!(report.flows.len(), 0);
    assert!(text(&report).contains("1 flow, 0 in need of attention, of which 0 are shown"));
}

#[test]
fn words_and_pictures_show_the_same() {
    let mut scene = Scene::default();
    scene.with_memory(A, Opcode::RC_WRITE_FIRST, 4, 16 * 1024, 1024);
    for psn in 5..19 {
        scene.packet(A, Opcode::RC_WRITE_MIDDLE, psn, 1024);
    }
    scene.packet(A, Opcode::RC_WRITE_LAST, 19, 1024);
    scene.answer(B, Syndrome::nak(NakCode::PSN_SEQUENCE), 7);
    scene.packet(A, Opcode::RC_WRITE_MIDDLE, 7, 1024);
    scene.ack(B, 19);
    let report = scene.report();
    let words = text(&report);
    for part in [
        "[1] RC  A 10.0.0.1 QP 0xa1  B 10.0.0.2 QP 0xb2  from 0 ns for 18.0 us, MTU 1024\n",
        "    A -> B  1 WRITE (16.4 kB), 1 sent again in 17 packets, 7.28 Gbit/s\n",
        "    B -> A  1 ACK, 1 NAK PSN_SEQUENCE in 2 packets\n",
        "  ! 1 packet of A sent again (5.88 %): once after a NAK, never after silence;",
    ] {
        assert!(words.contains(part), "no {part:?} in\n{words}");
    }
    let picture = diagram(&report.flows[0]);
    for part in [
        "WRITE Middle x 14, PSN 5..18, 14.3 kB",
        "<================== NAK PSN_SEQUENCE, PSN 7 ====================|",
        "=== WRITE Middle, PSN 7, 1.02 kB, sent again ===",
    ] {
        assert!(picture.contains(part), "no {part:?} in\n{picture}");
    }
    let drawing = svg(&report.flows);
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    assert!(drawing.contains("WRITE Middle x 14, PSN 5..18, 14.3 kB"));
    assert_eq!(drawing.matches("<text").count(), 3 + 2 * report.flows[0].arrows.len());
}
