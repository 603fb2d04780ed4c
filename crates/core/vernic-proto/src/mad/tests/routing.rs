//! Who gets which datagram, and what happens when there is no answer.

use super::*;
use crate::mad::{RegisterError, SendError};

fn performance(methods: u128) -> Registration {
    Registration {
        qpn: Qpn::GSI,
        class: MgmtClass::PERFORMANCE,
        class_version: 1,
        methods,
        oui: 0,
        rmpp: false,
    }
}

fn vendor(oui: u32) -> Registration {
    Registration { class: MgmtClass(0x32), methods: methods(&[Method::GET]), oui, ..performance(0) }
}

const GET: u128 = 1 << Method::GET.0;

#[test]
fn an_answer_reaches_the_agent_that_asked_and_a_request_the_one_that_takes_it() {
    let mut pair = Pair::new();
    let other = pair.register(A, &performance(0));
    let asker = pair.register(A, &performance(0));
    let taker = pair.register(B, &performance(GET));
    let request = mad(header(MgmtClass::PERFORMANCE, Method::GET, 0x1_0000_0007));
    pair.send(A, asker, &request, 100);
    pair.settle(&mut arrives);
    let asked = pair.expect(B, taker);
    // The high half of the id is the asker's.
    let tid = u64::from(asker.0) << 32 | 7;
    assert_eq!(header_of(&asked.mad).transaction_id, tid);
    assert_eq!((asked.address.lid, asked.address.qpn), (lid(A), Qpn::GSI));
    let answer = mad(header(MgmtClass::PERFORMANCE, Method::GET_RESP, tid));
    pair.send(B, taker, &answer, 0);
    pair.run(&mut arrives);
    assert_eq!(pair.expect(A, asker).mad, answer);
    assert_eq!((pair.take(A, other), pair.take(A, asker)), (None, None));
    // Nothing is left that waits.
    assert_eq!((pair.sent.len(), pair.now), (2, Time(0)));
}

#[test]
fn an_answer_is_taken_once_and_only_from_the_asked_class() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &performance(0));
    let taker = pair.register(B, &performance(GET));
    pair.send(A, asker, &mad(header(MgmtClass::PERFORMANCE, Method::GET, 7)), 100);
    pair.settle(&mut arrives);
    let tid = header_of(&pair.expect(B, taker).mad).transaction_id;
    let answer = mad(header(MgmtClass::PERFORMANCE, Method::GET_RESP, tid));
    let source = MadAddress { lid: lid(B), ..to(A) };
    let mut handle =
        |mad: &[u8]| pair.ports[A].handle_mad(Time(0), Qpn::GSI, source, mad.try_into().unwrap());
    let wrong = mad(header(MgmtClass::DEVICE, Method::GET_RESP, tid));
    assert_eq!(handle(&wrong), Err(MadDrop::Unasked));
    assert_eq!(handle(&answer), Ok(()));
    assert_eq!(handle(&answer), Err(MadDrop::Unasked));
    assert_eq!(pair.ports[A].counters().dropped[MadDrop::Unasked as usize], 2);
}

#[test]
fn a_request_is_repeated_and_given_back_when_nobody_answers() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &performance(0));
    let request = mad(header(MgmtClass::PERFORMANCE, Method::GET, 7));
    pair.send(A, asker, &request, 100);
    pair.run(&mut |_| Fate::Lost);
    assert_eq!((pair.sent.len(), pair.now), (4, Time(400 * MS)));
    assert!(pair.sent.iter().all(|sent| sent == &pair.sent[0]));
    let back = pair.take(A, asker).unwrap();
    assert_eq!(back.outcome, Outcome::TimedOut);
    assert_eq!((back.mad.len(), back.address), (MadHeader::LEN, to(B)));
    assert_eq!(header_of(&back.mad).transaction_id, u64::from(asker.0) << 32 | 7);
    // Its transaction id is free again.
    pair.send(A, asker, &request, 100);
}

#[test]
fn a_datagram_without_timeout_is_sent_once_and_forgotten() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &performance(0));
    let request = mad(header(MgmtClass::PERFORMANCE, Method::SEND, 7));
    pair.send(A, asker, &request, 0);
    pair.run(&mut |_| Fate::Lost);
    assert_eq!((pair.sent.len(), pair.take(A, asker)), (1, None));
}

#[test]
fn get_and_set_that_no_agent_takes_are_answered_with_a_status() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &performance(0));
    pair.register(B, &performance(GET));
    for method in [Method::SET, Method::SEND] {
        pair.send(A, asker, &mad(header(MgmtClass::PERFORMANCE, method, 7)), 100);
        pair.settle(&mut arrives);
    }
    let answer = pair.expect(A, asker);
    let header = header_of(&answer.mad);
    assert_eq!((header.method, header.status), (Method::GET_RESP, 0x0C));
    assert_eq!(pair.take(A, asker), None);
    assert_eq!(pair.drops, [MadDrop::NoAgent; 2]);
    assert_eq!(pair.sent[1].address.qkey, Qkey(0x8001_0000));
}

#[test]
fn a_directed_route_answer_says_that_it_returns() {
    let mut port = Agents::new(AgentsConfig::default());
    let mut bytes = [0; MAD_LEN];
    header(MgmtClass::SUBNET_DIRECTED_ROUTE, Method::GET, 7).emit(&mut bytes);
    let source = MadAddress { lid: Lid::PERMISSIVE, ..MadAddress::default() };
    let taken = port.handle_mad(Time(0), Qpn::SMI, source, &bytes);
    assert_eq!(taken, Err(MadDrop::NoAgent));
    let answer = port.poll_transmit(Time(0)).unwrap();
    assert_eq!(header_of(&answer.mad).status, 0x800C);
    assert_eq!((answer.qpn, answer.address.qkey), (Qpn::SMI, Qkey(0)));
}

#[test]
fn vendors_are_told_apart_by_their_oui() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &vendor(0x1405));
    let first = pair.register(B, &vendor(0x1405));
    let second = pair.register(B, &vendor(0x2C9));
    let mut request = mad(header(MgmtClass(0x32), Method::GET, 7));
    for (tid, oui, taker) in [(1, [0, 0x14, 5], first), (2, [0, 2, 0xC9], second)] {
        request[15] = tid;
        request[37..40].copy_from_slice(&oui);
        pair.send(A, asker, &request, 0);
        pair.settle(&mut arrives);
        assert_eq!(pair.expect(B, taker).mad[15], tid);
    }
    let registered = pair.ports[B].register(&vendor(0x1405));
    let (class, version) = (MgmtClass(0x32), 1);
    let in_use = RegisterError::InUse { agent: first, method: 1, class, version };
    assert_eq!(registered, Err(in_use));
}

#[test]
fn one_agent_takes_a_method_until_it_is_unregistered() {
    let mut port = Agents::new(AgentsConfig::default());
    let first = port.register(&performance(GET)).unwrap();
    assert!(port.register(&performance(1 << Method::SET.0)).is_ok());
    let again = port.register(&performance(GET));
    assert!(matches!(again, Err(RegisterError::InUse { agent, .. }) if agent == first));
    assert!(again.unwrap_err().to_string().contains("another program"));
    let next_version = Registration { class_version: 2, ..performance(GET) };
    assert!(port.register(&next_version).is_ok());
    assert!(port.unregister(first) && !port.unregister(first));
    let second = port.register(&performance(GET)).unwrap();
    assert_ne!(first, second);
    let request = mad(header(MgmtClass::PERFORMANCE, Method::GET, 7));
    let sent = port.send(first, to(B), &request, 100, 0);
    assert_eq!(sent, Err(SendError::NoAgent(first)));
}

#[test]
fn registrations_that_cannot_be_are_refused_with_their_reason() {
    let mut port = Agents::new(AgentsConfig::default());
    let mut refused = |registration: Registration| port.register(&registration).unwrap_err();
    let smi = Registration { qpn: Qpn::SMI, ..performance(GET) };
    assert!(matches!(refused(smi), RegisterError::WrongQueuePair { .. }));
    let smp = Registration { class: MgmtClass::SUBNET_LID_ROUTED, ..performance(GET) };
    assert!(matches!(refused(smp), RegisterError::WrongQueuePair { .. }));
    let class = Registration { class: MgmtClass(0x60), ..performance(GET) };
    assert_eq!(refused(class), RegisterError::BadClass(MgmtClass(0x60)));
    let none = Registration { class: MgmtClass(0), ..performance(GET) };
    assert_eq!(refused(none), RegisterError::BadClass(MgmtClass(0)));
    let version = Registration { class_version: 8, ..performance(GET) };
    assert_eq!(refused(version), RegisterError::BadVersion(8));
    let rmpp = Registration { rmpp: true, ..performance(GET) };
    assert_eq!(refused(rmpp), RegisterError::NoRmpp(MgmtClass::PERFORMANCE));
    assert!(matches!(refused(vendor(0)), RegisterError::BadOui { .. }));
    assert!(matches!(refused(vendor(1 << 24)), RegisterError::BadOui { .. }));
    assert!(port.register(&Registration { class: MgmtClass(0), ..performance(0) }).is_ok());
}

#[test]
fn an_agent_of_one_queue_pair_hears_nothing_of_the_other() {
    let mut port = Agents::new(AgentsConfig::default());
    let agent = port.register(&performance(GET)).unwrap();
    let tid = u64::from(agent.0) << 32;
    let mut handle = |class, qpn, base_version| {
        let mut bytes = [0; MAD_LEN];
        let header = header(class, Method::GET_RESP, tid);
        MadHeader { base_version, ..header }.emit(&mut bytes);
        port.handle_mad(Time(0), qpn, to(B), &bytes).unwrap_err()
    };
    assert_eq!(handle(MgmtClass::PERFORMANCE, Qpn::SMI, 1), MadDrop::WrongQueuePair);
    assert_eq!(handle(MgmtClass::SUBNET_LID_ROUTED, Qpn::GSI, 1), MadDrop::WrongQueuePair);
    assert_eq!(handle(MgmtClass::SUBNET_LID_ROUTED, Qpn::SMI, 1), MadDrop::Unasked);
    assert_eq!(handle(MgmtClass::PERFORMANCE, Qpn::GSI, 2), MadDrop::BadVersion);
    let smp = mad(header(MgmtClass::SUBNET_LID_ROUTED, Method::GET, 7));
    let sent = port.send(agent, to(B), &smp, 0, 0);
    assert!(matches!(sent, Err(SendError::WrongQueuePair { .. })));
}

#[test]
fn a_transaction_is_not_sent_twice_at_a_time() {
    let mut port = Agents::new(AgentsConfig::default());
    let agent = port.register(&performance(GET)).unwrap();
    let request = mad(header(MgmtClass::PERFORMANCE, Method::GET, 7));
    assert_eq!(port.send(agent, to(B), &request, 100, 0), Ok(()));
    let again = port.send(agent, to(B), &request, 100, 0);
    assert!(matches!(again, Err(SendError::Duplicate { .. })));
    // Answers are told apart by where they go, since their ids are the askers'.
    let answer = mad(header(MgmtClass::PERFORMANCE, Method::GET_RESP, 7));
    assert_eq!(port.send(agent, to(A), &answer, 0, 0), Ok(()));
    assert_eq!(port.send(agent, to(B), &answer, 0, 0), Ok(()));
    assert!(port.send(agent, to(B), &answer, 0, 0).is_err());
}

#[test]
fn a_port_can_ask_itself() {
    let mut pair = Pair::new();
    let asker = pair.register(A, &performance(0));
    let taker = pair.register(A, &performance(GET));
    let request = mad(header(MgmtClass::PERFORMANCE, Method::GET, 7));
    pair.ports[A].send(asker, to(A), &request, 100, 0).unwrap();
    pair.settle(&mut arrives);
    let tid = header_of(&pair.expect(A, taker).mad).transaction_id;
    let answer = mad(header(MgmtClass::PERFORMANCE, Method::GET_RESP, tid));
    pair.ports[A].send(taker, to(A), &answer, 0, 0).unwrap();
    pair.run(&mut arrives);
    assert_eq!(pair.expect(A, asker).mad, answer);
}
