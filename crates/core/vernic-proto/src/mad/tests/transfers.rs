//! Messages of several segments.

use super::*;
use vernic_wire::RmppStatus;

const TABLE: u128 = 1 << Method::GET_TABLE.0;

/// A asks for a table, and B has the request: both agents, and the id of the transaction.
fn asked(pair: &mut Pair, timeout_ms: u32) -> (AgentId, AgentId, u64) {
    let asker = pair.register(A, &sa(0));
    let server = pair.register(B, &sa(TABLE));
    let request = mad(header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, 7));
    pair.send(A, asker, &request, timeout_ms);
    pair.settle(&mut arrives);
    let asked = pair.expect(B, server);
    pair.sent.clear();
    (asker, server, header_of(&asked.mad).transaction_id)
}

/// Numbers of the segments, or what else was sent.
fn kinds(sent: &[MadTransmit]) -> Vec<String> {
    sent.iter().map(|sent| rmpp_of(&sent.mad).to_string()).collect()
}

/// What the receiver gets of a message: its headers are those of the first segment.
fn assert_same(got: &[u8], sent: &[u8]) {
    assert_eq!(got.len(), sent.len());
    assert_eq!((&got[..24], &got[36..]), (&sent[..24], &sent[36..]));
    assert_eq!(rmpp_of(got).data1, 1);
}

#[test]
fn a_table_comes_in_segments_and_is_given_as_one() {
    let mut pair = Pair::new();
    let (asker, server, tid) = asked(&mut pair, 60_000);
    let table = message(Method::GET_TABLE_RESP, tid, 450);
    pair.send(B, server, &table, 0);
    pair.run(&mut arrives);
    assert_same(&pair.expect(A, asker).mad, &table);
    assert_eq!(
        kinds(&pair.sent),
        [
            "DATA segment=1 first len=510",
            "ACK segment=1 window=65",
            "DATA segment=2 len=0",
            "DATA segment=3 last len=70",
            "ACK segment=3 window=65",
        ]
    );
    // An ACK has the method without the response bit, for the agent that takes the requests.
    assert_eq!(header_of(&pair.sent[1].mad).method, Method::GET_TABLE);
    assert_eq!((pair.drops.len(), pair.take(B, server)), (0, None));
}

#[test]
fn tables_of_any_length_arrive() {
    for data in [0, 1, 199, 200, 201, 400, 64 * 200, 65 * 200, 66 * 200 + 7, 200_000] {
        let mut pair = Pair::new();
        let (asker, server, tid) = asked(&mut pair, 60_000);
        let table = message(Method::GET_TABLE_RESP, tid, data);
        pair.send(B, server, &table, 0);
        pair.run(&mut arrives);
        assert_same(&pair.expect(A, asker).mad, &table);
        let acks = pair.sent.iter().filter(|sent| rmpp_of(&sent.mad).kind == RmppType::ACK);
        let segments = data.div_ceil(200).max(1);
        assert!(acks.count() <= 2 + segments / 64, "{data} bytes");
    }
}

#[test]
fn a_lost_segment_is_sent_again_behind_the_last_ack() {
    for lost in 1..=5 {
        let mut pair = Pair::new();
        let (asker, server, tid) = asked(&mut pair, 60_000);
        let table = message(Method::GET_TABLE_RESP, tid, 900);
        pair.send(B, server, &table, 0);
        let mut once = true;
        pair.run(&mut |sent| {
            let rmpp = rmpp_of(&sent.mad);
            let is_it = once && rmpp.kind == RmppType::DATA && rmpp.data1 == lost;
            once &= !is_it;
            if is_it { Fate::Lost } else { Fate::Arrives }
        });
        assert_same(&pair.expect(A, asker).mad, &table);
        assert_eq!((pair.take(A, asker), pair.take(B, server)), (None, None));
    }
}

#[test]
fn a_lost_ack_is_sent_again_also_when_all_is_there() {
    for lost in [1, 5] {
        let mut pair = Pair::new();
        let (asker, server, tid) = asked(&mut pair, 60_000);
        let table = message(Method::GET_TABLE_RESP, tid, 900);
        pair.send(B, server, &table, 0);
        let mut once = true;
        pair.run(&mut |sent| {
            let rmpp = rmpp_of(&sent.mad);
            let is_it = once && rmpp.kind == RmppType::ACK && rmpp.data1 == lost;
            once &= !is_it;
            if is_it { Fate::Lost } else { Fate::Arrives }
        });
        assert!(!once);
        assert_same(&pair.expect(A, asker).mad, &table);
        assert_eq!((pair.take(A, asker), pair.take(B, server)), (None, None));
    }
}

#[test]
fn a_transfer_that_is_never_acknowledged_is_given_back() {
    let mut pair = Pair::new();
    let (_, server, tid) = asked(&mut pair, 60_000);
    let table = message(Method::GET_TABLE_RESP, tid, 900);
    pair.send(B, server, &table, 0);
    pair.run(&mut |sent| match rmpp_of(&sent.mad).kind {
        RmppType::ACK => Fate::Lost,
        _ => Fate::Arrives,
    });
    let back = pair.take(B, server).unwrap();
    assert_eq!((back.outcome, back.mad.len()), (Outcome::TimedOut, MadHeader::LEN));
    assert_eq!(pair.ports[B].counters().retries, 3);
    // The receiver gave up as well, and said so.
    assert_eq!(pair.ports[A].counters().stalled, 1);
    let abort = Rmpp::end(RmppType::ABORT, RmppStatus::TOTAL_TIME_TOO_LONG);
    assert!(pair.sent.iter().any(|sent| rmpp_of(&sent.mad) == abort));
}

#[test]
fn a_request_in_segments_is_answered_in_segments() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &sa(0));
    let server = pair.register(B, &sa(methods(&[Method::GET_MULTI])));
    let request = message(Method::GET_MULTI, 7, 1000);
    pair.send(A, asker, &request, 1000);
    pair.settle(&mut arrives);
    let got = pair.expect(B, server);
    let tid = header_of(&got.mad).transaction_id;
    assert_eq!(got.mad[56..], request[56..]);
    // The last ACK of the request is answered by the one that turns the direction.
    assert_eq!(rmpp_of(&pair.sent.last().unwrap().mad), Rmpp::ack(0, 1));
    let table = message(Method::GET_MULTI_RESP, tid, 700);
    pair.send(B, server, &table, 0);
    pair.run(&mut arrives);
    assert_same(&pair.expect(A, asker).mad, &table);
    assert_eq!((pair.take(A, asker), pair.take(B, server)), (None, None));
}

#[test]
fn the_answer_may_take_longer_than_its_first_segment() {
    let mut pair = Pair::new();
    let (asker, server, tid) = asked(&mut pair, 3000);
    let table = message(Method::GET_TABLE_RESP, tid, 20_000);
    pair.send(B, server, &table, 0);
    let mut count = 0;
    // One in six is lost, each time for 2 s, while the request may wait for 4 times 3 s.
    pair.run(&mut |_| {
        count += 1;
        if count % 6 == 0 { Fate::Lost } else { Fate::Arrives }
    });
    assert!(pair.now > Time(12_000 * MS));
    assert_same(&pair.expect(A, asker).mad, &table);
}

#[test]
fn an_agent_that_makes_its_own_transfers_sees_each_segment() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &Registration { rmpp: false, ..sa(0) });
    let server = pair.register(B, &sa(TABLE));
    pair.send(A, asker, &mad(header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, 7)), 1000);
    pair.settle(&mut arrives);
    let tid = header_of(&pair.expect(B, server).mad).transaction_id;
    let table = message(Method::GET_TABLE_RESP, tid, 450);
    pair.send(B, server, &table, 0);
    pair.settle(&mut arrives);
    let first = pair.expect(A, asker);
    assert_eq!((first.mad.len(), rmpp_of(&first.mad).data1), (256, 1));
    let mut ack = first.mad;
    header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, tid).emit(&mut ack);
    Rmpp::ack(1, 3).emit(&mut ack[24..]);
    // Its id is the asker's own, so nothing changes in it.
    pair.send(A, asker, &ack, 0);
    pair.settle(&mut arrives);
    assert_eq!(rmpp_of(&pair.expect(A, asker).mad).data1, 2);
    assert_eq!(rmpp_of(&pair.expect(A, asker).mad).data1, 3);
}

#[test]
fn an_abort_ends_a_transfer_on_both_sides() {
    let mut pair = Pair::new();
    let (asker, server, tid) = asked(&mut pair, 60_000);
    pair.send(B, server, &message(Method::GET_TABLE_RESP, tid, 450), 0);
    pair.settle(&mut |sent| match rmpp_of(&sent.mad).data1 {
        3 => Fate::Lost,
        _ => Fate::Arrives,
    });
    // The receiver's, to the sender.
    let mut abort = [0; MAD_LEN];
    header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, tid).emit(&mut abort);
    Rmpp::end(RmppType::ABORT, RmppStatus::UNSPECIFIED).emit(&mut abort[24..]);
    let source = MadAddress { lid: lid(A), ..to(B) };
    pair.ports[B].handle_mad(pair.now, Qpn::GSI, source, &abort).unwrap();
    let ended = pair.take(B, server).unwrap();
    assert_eq!(ended.outcome, Outcome::Aborted(RmppStatus::UNSPECIFIED));
    // The sender's, to the receiver.
    header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE_RESP, tid).emit(&mut abort);
    let source = MadAddress { lid: lid(B), ..to(A) };
    pair.ports[A].handle_mad(pair.now, Qpn::GSI, source, &abort).unwrap();
    let again = pair.ports[A].handle_mad(pair.now, Qpn::GSI, source, &abort);
    assert_eq!(again, Err(MadDrop::NoTransfer));
    pair.run(&mut arrives);
    assert_eq!(pair.take(A, asker).unwrap().outcome, Outcome::TimedOut);
}
