//! Two ends that start up, and peers that do not follow the rules.

use vernic_wire::iwarp::{Crc32c, DepthCode, FpduHeader, Segment};

use super::*;

const T0: Time = Time(1_000_000_000);

fn config() -> StartupConfig {
    StartupConfig { timeout_ns: 1_000, reply_ns: 3_000, ..StartupConfig::default() }
}

/// Moves what `from` has to send to `to`, `chunk` bytes at a time.
fn pass(from: &mut Startup, to: &mut Startup, chunk: usize) {
    while !from.transmit().is_empty() {
        let len = chunk.min(from.transmit().len());
        let piece = from.transmit()[..len].to_vec();
        from.handle_sent(len);
        assert_eq!(to.handle_bytes(&piece), len);
    }
}

/// Both ends, after the responder has accepted.
fn pair(a: StartupConfig, b: StartupConfig, chunk: usize) -> (Startup, Startup) {
    let mut initiator = Startup::initiate(a, b"question", T0).unwrap();
    let mut responder = Startup::respond(b, T0);
    pass(&mut initiator, &mut responder, chunk);
    assert_eq!(responder.state(), StartupState::Asked);
    assert_eq!(responder.private(), b"question");
    responder.accept(&b, b"answer", T0).unwrap();
    assert_eq!(responder.agreed(), None);
    pass(&mut responder, &mut initiator, chunk);
    (initiator, responder)
}

fn agreed(a: StartupConfig, b: StartupConfig) -> (Agreed, Agreed) {
    let (initiator, responder) = pair(a, b, 1000);
    assert_eq!(initiator.private(), b"answer");
    (*initiator.agreed().unwrap(), *responder.agreed().unwrap())
}

#[test]
fn frames_cut_at_every_byte_lead_to_the_same_agreement() {
    let (whole, _) = pair(config(), config(), 1000);
    for chunk in 1..60 {
        let (initiator, responder) = pair(config(), config(), chunk);
        assert_eq!(initiator.agreed(), whole.agreed(), "by {chunk}");
        assert_eq!(responder.state(), StartupState::Agreed);
        assert_eq!((initiator.next_deadline(), responder.next_deadline()), (None, None));
    }
}

#[test]
fn one_end_that_wants_crcs_is_enough_and_markers_are_per_direction() {
    for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
        let (x, y) = agreed(
            StartupConfig { crc: a, markers: a, ..config() },
            StartupConfig { crc: b, markers: b, ..config() },
        );
        assert_eq!((x.crc, y.crc), (a || b, a || b));
        assert_eq!((x.rx_markers, y.tx_markers), (a, a));
        assert_eq!((x.tx_markers, y.rx_markers), (b, b));
        assert_eq!((x.role, y.role), (Role::Initiator, Role::Responder));
    }
}

#[test]
fn a_reply_says_whether_crcs_are_used_not_whether_its_sender_asked_for_them() {
    for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
        let with = |crc| StartupConfig { crc, ..config() };
        let (initiator, _) = pair(with(a), with(b), 1000);
        assert_eq!(initiator.peer().unwrap().crc, a || b);
    }
}

#[test]
fn depths_fit_each_other_after_the_negotiation() {
    for (ird, ord) in [(0, 0), (1, 16), (16, 1), (128, 128)] {
        let a = StartupConfig { ird, ord, ..config() };
        let b = StartupConfig { ird: 8, ord: 8, max_ird: 32, ..config() };
        let (x, y) = agreed(a, b);
        assert!(x.ord <= y.ird && y.ord <= x.ird, "{ird} {ord}: {x} and {y}");
        assert_eq!(x.ord, ord.min(32));
        assert_eq!(y.ord, 8.min(ird));
        assert_eq!(y.peer_depths, Some((DepthCode::of_depth(ird), DepthCode::of_depth(ord))));
        assert_eq!(x.peer_depths.map(|(ird, _)| ird.depth()), Some(Some(y.ird)));
    }
}

#[test]
fn depths_that_are_not_negotiated_stay_as_they_are() {
    let a =
        StartupConfig { negotiate_depths: false, rtr: RtrSet::WRITE, ird: 3, ord: 99, ..config() };
    let b = StartupConfig { ird: 8, ord: 8, ..config() };
    let (x, y) = agreed(a, b);
    assert_eq!((x.ird, x.ord), (3, 99));
    assert_eq!((y.ird, y.ord), (8, 8));
    let any = DepthCode::NOT_NEGOTIATED;
    assert_eq!((x.peer_depths, y.peer_depths), (Some((any, any)), Some((any, any))));
}

#[test]
fn revision_one_has_no_depths_and_all_the_room_for_private_data() {
    let a = StartupConfig { revision: 1, ..config() };
    let (x, y) = agreed(a, config());
    assert_eq!((x.revision, y.revision), (1, 1));
    assert_eq!((x.peer_depths, y.peer_depths), (None, None));
    assert!(Startup::initiate(a, &[1; 512], T0).is_ok());
    let error = Startup::initiate(a, &[1; 513], T0).unwrap_err();
    assert_eq!(error, StartupError::PrivateTooLong { len: 513, limit: 512 });
    let error = Startup::initiate(config(), &[1; 509], T0).unwrap_err();
    assert_eq!(error, StartupError::PrivateTooLong { len: 509, limit: 508 });
}

#[test]
fn all_the_private_data_that_fits_arrives() {
    let mut initiator = Startup::initiate(config(), &[7; 508], T0).unwrap();
    let mut responder = Startup::respond(config(), T0);
    pass(&mut initiator, &mut responder, 100);
    assert_eq!(responder.private(), [7; 508]);
    let error = responder.accept(&config(), &[8; 509], T0).unwrap_err();
    assert_eq!(error, StartupError::PrivateTooLong { len: 509, limit: 508 });
    responder.accept(&config(), &[8; 508], T0).unwrap();
    pass(&mut responder, &mut initiator, 100);
    assert_eq!(initiator.private(), [8; 508]);
}

#[test]
fn peers_without_client_and_server_agree_upon_one_indication() {
    for ours in [RtrSet::SEND, RtrSet::WRITE, RtrSet::READ, RtrSet::all()] {
        let a = StartupConfig { rtr: ours, ..config() };
        let (x, y) = agreed(a, config());
        assert_eq!(x.rtr.bits().count_ones(), 1);
        assert!(ours.contains(x.rtr) && y.rtr.contains(x.rtr));
    }
    let (x, y) = agreed(config(), config());
    assert_eq!((x.rtr, y.rtr), (RtrSet::empty(), RtrSet::empty()));
}

#[test]
fn an_indication_by_read_makes_room_for_one_read() {
    let a = StartupConfig { rtr: RtrSet::READ, ird: 0, ord: 0, ..config() };
    let (x, y) = agreed(a, StartupConfig { ird: 0, ord: 0, ..config() });
    // The initiator says so; its application has none all the same.
    assert_eq!((x.rtr, y.ird, x.ord), (RtrSet::READ, 1, 0));
    assert_eq!(y.peer_depths, Some((DepthCode::of_depth(0), DepthCode::of_depth(1))));
}

/// The one FPDU that a stream consists of, as the code of its Terminate.
fn terminate_in(bytes: &[u8]) -> TermCode {
    let fpdu = FpduHeader::parse(bytes).unwrap();
    assert_eq!(fpdu.fpdu_len(), bytes.len());
    let (covered, crc) = bytes.split_last_chunk().unwrap();
    assert_eq!(Crc32c::of(covered), *crc);
    let segment = Segment::parse(&bytes[2..2 + usize::from(fpdu.ulpdu_len)]).unwrap();
    Terminate::parse(segment.body).unwrap().code
}

#[test]
fn an_initiator_without_a_common_indication_says_so_in_a_terminate() {
    let a = StartupConfig { rtr: RtrSet::SEND, ..config() };
    let (initiator, responder) = pair(a, StartupConfig { rtr: RtrSet::WRITE, ..config() }, 1000);
    // The responder names what it takes instead, and cannot know.
    assert_eq!(responder.agreed().unwrap().rtr, RtrSet::WRITE);
    let error = StartupError::NoRtr { ours: RtrSet::SEND, theirs: RtrSet::WRITE };
    assert_eq!(initiator.state(), StartupState::Failed(error));
    assert_eq!(terminate_in(initiator.transmit()), TermCode::MPA_RTR);
}

#[test]
fn an_initiator_without_room_for_reads_says_so_in_a_terminate() {
    let a = StartupConfig { ird: 2, max_ird: 4, ..config() };
    let mut initiator = Startup::initiate(a, &[], T0).unwrap();
    let mut reply = frame::write(
        MpaStart { crc: true, ..initiator.head(MpaKey::Reply, 2) },
        Some(&MpaEnhanced { ord: DepthCode::new(9), ..MpaEnhanced::default() }),
        &[],
    );
    reply.extend([1, 2, 3]);
    assert_eq!(initiator.handle_bytes(&reply), 24);
    let error = StartupError::Depth { needed: 9, limit: 4 };
    assert_eq!(initiator.state(), StartupState::Failed(error));
    assert_eq!(terminate_in(initiator.transmit()), TermCode::MPA_IRD);
}

#[test]
fn a_rejection_arrives_with_its_private_data() {
    for revision in [1, 2] {
        let a = StartupConfig { revision, ..config() };
        let mut initiator = Startup::initiate(a, &[], T0).unwrap();
        let mut responder = Startup::respond(config(), T0);
        pass(&mut initiator, &mut responder, 1000);
        responder.reject(b"no", T0).unwrap();
        assert_eq!(responder.state(), StartupState::Replying);
        pass(&mut responder, &mut initiator, 1);
        assert_eq!(responder.state(), StartupState::Rejected);
        assert_eq!(initiator.state(), StartupState::Rejected);
        assert_eq!((initiator.private(), initiator.agreed()), (&b"no"[..], None));
    }
}

#[test]
fn two_initiators_and_other_protocols_are_found_out_at_the_first_wrong_byte() {
    let request = frame::write(Startup::respond(config(), T0).head(MpaKey::Request, 1), None, &[]);
    let mut initiator = Startup::initiate(config(), &[], T0).unwrap();
    // "MPA ID Re" is common to both keys.
    assert_eq!(initiator.handle_bytes(&request[..9]), 9);
    assert_eq!(initiator.state(), StartupState::Waiting);
    initiator.handle_bytes(&request[9..10]);
    let error = StartupError::Key { expected: MpaKey::Reply };
    assert_eq!(initiator.state(), StartupState::Failed(error));
    let mut responder = Startup::respond(config(), T0);
    responder.handle_bytes(b"G");
    let error = StartupError::Key { expected: MpaKey::Request };
    assert_eq!(responder.state(), StartupState::Failed(error));
}

/// What a responder makes of a request with this head.
fn answer_to(start: MpaStart) -> StartupState {
    let mut bytes = vec![0; MpaStart::LEN + usize::from(start.private_len)];
    start.emit(&mut bytes);
    let mut responder = Startup::respond(config(), T0);
    responder.handle_bytes(&bytes);
    responder.state()
}

#[test]
fn malformed_requests_are_refused_each_for_its_reason() {
    let good = Startup::respond(config(), T0).head(MpaKey::Request, 1);
    assert_eq!(answer_to(good), StartupState::Asked);
    let error = StartupError::Revision { revision: 3, limit: 2 };
    assert_eq!(answer_to(MpaStart { revision: 3, ..good }), StartupState::Failed(error));
    let error = StartupError::Revision { revision: 0, limit: 2 };
    assert_eq!(answer_to(MpaStart { revision: 0, ..good }), StartupState::Failed(error));
    let error = StartupError::PrivateLength { len: 513 };
    assert_eq!(answer_to(MpaStart { private_len: 513, ..good }), StartupState::Failed(error));
    let enhanced = MpaStart { enhanced: true, revision: 2, private_len: 3, ..good };
    let error = StartupError::NoEnhancedData { len: 3 };
    assert_eq!(answer_to(enhanced), StartupState::Failed(error));
    let of_one = MpaStart { enhanced: true, revision: 1, private_len: 4, ..good };
    assert!(matches!(answer_to(of_one), StartupState::Failed(StartupError::Revision { .. })));
    // Reserved bits, and the bit of a reply, mean nothing.
    let odd = MpaStart { reserved: 0xF, rejected: true, ..good };
    assert_eq!(answer_to(odd), StartupState::Asked);
}

#[test]
fn a_request_of_revision_zero_is_answered_with_revision_one_before_the_end() {
    let good = Startup::respond(config(), T0).head(MpaKey::Request, 0);
    let mut bytes = [0; MpaStart::LEN];
    good.emit(&mut bytes);
    let mut responder = Startup::respond(config(), T0);
    assert_eq!(responder.handle_bytes(&bytes), MpaStart::LEN);
    let error = StartupError::Revision { revision: 0, limit: 2 };
    assert_eq!(responder.state(), StartupState::Failed(error));
    let reply = MpaStart::parse(responder.transmit()).unwrap();
    assert_eq!((reply.key, reply.revision, reply.rejected), (MpaKey::Reply, 1, true));
    assert_eq!(responder.transmit().len(), MpaStart::LEN);
    responder.handle_sent(MpaStart::LEN);
    assert!(responder.transmit().is_empty());
    // A revision that is too new, and a reply that is too old, get the end alone.
    MpaStart { revision: 3, ..good }.emit(&mut bytes);
    let mut responder = Startup::respond(config(), T0);
    responder.handle_bytes(&bytes);
    assert!(responder.transmit().is_empty());
    MpaStart { key: MpaKey::Reply, ..good }.emit(&mut bytes);
    let mut initiator = Startup::initiate(config(), &[], T0).unwrap();
    initiator.handle_bytes(&bytes);
    assert_eq!(initiator.state(), StartupState::Failed(error));
    assert!(initiator.transmit().is_empty());
}

#[test]
fn an_end_that_gives_up_after_the_agreement_says_so_in_a_terminate() {
    let (mut initiator, mut responder) = pair(config(), config(), 1000);
    for end in [&mut initiator, &mut responder] {
        end.abort();
        assert_eq!(end.state(), StartupState::Failed(StartupError::Local));
        assert_eq!(terminate_in(end.transmit()), TermCode::MPA_LOCAL);
        assert_eq!(end.agreed(), None);
    }
    // Peers of revision 1 know no such code.
    let (mut initiator, _) = pair(StartupConfig { revision: 1, ..config() }, config(), 1000);
    initiator.abort();
    assert_eq!(initiator.state(), StartupState::Failed(StartupError::Local));
    assert!(initiator.transmit().is_empty());
}

#[test]
fn an_end_that_gives_up_before_the_agreement_is_silent() {
    let mut initiator = Startup::initiate(config(), &[], T0).unwrap();
    let mut responder = Startup::respond(config(), T0);
    pass(&mut initiator, &mut responder, 1000);
    responder.accept(&config(), &[], T0).unwrap();
    responder.handle_sent(3);
    for end in [&mut initiator, &mut responder] {
        end.abort();
        assert_eq!(end.state(), StartupState::Failed(StartupError::Local));
        assert!(end.transmit().is_empty());
        assert_eq!(end.next_deadline(), None);
    }
    // What has failed already keeps its reason.
    let mut responder = Startup::respond(config(), T0);
    responder.handle_bytes(b"G");
    responder.abort();
    let error = StartupError::Key { expected: MpaKey::Request };
    assert_eq!(responder.state(), StartupState::Failed(error));
}

#[test]
fn a_length_that_is_too_large_is_refused_before_the_data_comes() {
    let good = Startup::respond(config(), T0).head(MpaKey::Request, 1);
    let mut bytes = [0; MpaStart::LEN];
    MpaStart { private_len: u16::MAX, ..good }.emit(&mut bytes);
    let mut responder = Startup::respond(config(), T0);
    responder.handle_bytes(&bytes);
    assert!(matches!(
        responder.state(),
        StartupState::Failed(StartupError::PrivateLength { len: u16::MAX })
    ));
}

#[test]
fn a_peer_that_sends_byte_by_byte_runs_out_of_time() {
    let mut initiator = Startup::initiate(config(), &[0; 100], T0).unwrap();
    let bytes = initiator.transmit().to_vec();
    let mut responder = Startup::respond(config(), T0);
    for (at, byte) in bytes.iter().enumerate().take(90) {
        let now = T0 + 10 * at as u64;
        responder.handle_bytes(&[*byte]);
        responder.handle_timeout(now);
        assert_eq!(responder.state(), StartupState::Waiting, "byte {at}");
    }
    assert_eq!(responder.next_deadline(), Some(T0 + 1_000));
    responder.handle_timeout(T0 + 1_000);
    assert_eq!(responder.state(), StartupState::Failed(StartupError::TimedOut));
    // The one that asks waits for what an application decides.
    assert_eq!(initiator.next_deadline(), Some(T0 + 3_000));
    initiator.handle_timeout(T0 + 2_999);
    assert_eq!(initiator.state(), StartupState::Waiting);
    initiator.handle_timeout(T0 + 3_000);
    assert_eq!(initiator.state(), StartupState::Failed(StartupError::TimedOut));
}

#[test]
fn the_application_may_think_as_long_as_it_likes_and_the_peer_not() {
    let mut initiator = Startup::initiate(config(), &[], T0).unwrap();
    let mut responder = Startup::respond(config(), T0);
    pass(&mut initiator, &mut responder, 1000);
    assert_eq!(responder.next_deadline(), None);
    let later = T0 + 1_000_000;
    responder.accept(&config(), &[], later).unwrap();
    assert_eq!(responder.next_deadline(), Some(later + 1_000));
    responder.handle_timeout(later + 1_000);
    assert_eq!(responder.state(), StartupState::Failed(StartupError::TimedOut));
    assert!(responder.transmit().is_empty());
}

#[test]
fn an_unenhanced_answer_to_an_enhanced_question_is_refused() {
    let mut initiator = Startup::initiate(config(), &[], T0).unwrap();
    let reply = frame::write(initiator.head(MpaKey::Reply, 1), None, &[]);
    initiator.handle_bytes(&reply);
    assert_eq!(initiator.state(), StartupState::Failed(StartupError::NotEnhanced));
}

#[test]
fn a_connection_that_ends_early_fails_and_one_that_ends_late_does_not() {
    let mut responder = Startup::respond(config(), T0);
    responder.handle_end(StreamEnd::Reset);
    let error = StartupError::Ended(StreamEnd::Reset);
    assert_eq!(responder.state(), StartupState::Failed(error));
    let (mut initiator, _) = pair(config(), config(), 1000);
    initiator.handle_end(StreamEnd::Closed);
    assert_eq!(initiator.state(), StartupState::Agreed);
}

#[test]
fn bytes_behind_the_frame_are_left_to_the_first_fpdu() {
    let initiator = Startup::initiate(config(), b"x", T0).unwrap();
    let mut bytes = initiator.transmit().to_vec();
    let len = bytes.len();
    bytes.extend([0xEE; 40]);
    let mut responder = Startup::respond(config(), T0);
    assert_eq!(responder.handle_bytes(&bytes), len);
    assert_eq!(responder.handle_bytes(&bytes[len..]), 0);
}
