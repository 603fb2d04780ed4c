//! States and orders of events, with an agent that only notes its calls.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_proto::cm::{EventKind as CmEvent, Unanswered};
use vernic_wire::cm::{CmService, CmaHeader, RejReason, RejectedMessage, Rep, Req};
use vernic_wire::{Mtu, Psn, Qpn};

use crate::sync::lock;
use crate::testing::{Lab, PEER_PSN};
use crate::{AttrMask, CommEstablished, Config, ConnParam, EventKind, QpAttr, QpState, State};

fn own_qp() -> ConnParam<'static> {
    ConnParam { qp_num: Some(Qpn::new(7)), ..ConnParam::default() }
}

fn rejected(reason: RejReason) -> CmEvent {
    let (info, private_data) = (Box::default(), Box::default());
    CmEvent::Rejected { reason, message: RejectedMessage::REQ, info, private_data }
}

pub(crate) fn reply(qpn: u32) -> CmEvent {
    let rep = Rep { local_qpn: Qpn::new(qpn), starting_psn: Psn::new(5), ..Rep::default() };
    CmEvent::Reply { rep: Box::new(rep) }
}

fn established() -> CmEvent {
    CmEvent::Established { private_data: Box::default() }
}

pub(crate) fn disconnect_request() -> CmEvent {
    CmEvent::DisconnectRequest { private_data: Box::default() }
}

/// Waits until another thread has refused.
fn await_refusal(lab: &Lab, refusal: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    while lab.agent.asked() != [refusal] {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
}

#[test]
fn a_listener_claims_its_port_when_the_program_names_it_and_gives_it_back_once() {
    let lab = Lab::new();
    let id = lab.id();
    id.bind_addr("127.0.0.1:7471".parse().unwrap()).unwrap();
    assert_eq!(lab.agent.asked(), ["reserve tcp"]);
    id.listen(0).unwrap();
    assert_eq!(lab.agent.asked(), ["listen 1024"]);
    assert_eq!(id.listen(1).unwrap_err().errno(), libc::EINVAL);
    id.destroy();
    assert_eq!(lab.agent.asked(), ["stop"]);
    let bound = lab.id();
    bound.bind_addr("127.0.0.1:7471".parse().unwrap()).unwrap();
    drop(bound);
    assert_eq!(lab.agent.asked(), ["reserve tcp", "release tcp"]);
    // No other process asks for a port that was chosen here, so there is nothing to claim.
    lab.id().bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    assert!(lab.agent.asked().is_empty());
}

#[test]
fn a_request_that_is_over_before_it_is_taken_is_told_in_order() {
    let lab = Lab::new();
    let listener = lab.listener();
    lab.request(4, "127.0.0.1:99");
    lab.tell(4, rejected(RejReason::TIMEOUT));
    let request = lab.channel.try_next().unwrap();
    assert_eq!(lab.agent.asked(), ["taken 4"]);
    let event = lab.channel.try_next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 4));
    assert!(Arc::ptr_eq(&event.id, &request.id) && event.listen_id.is_none());
    assert!(Arc::ptr_eq(request.listen_id.as_ref().unwrap(), &listener));
    assert_eq!(request.id.accept(&own_qp()).unwrap_err().errno(), libc::EINVAL);
    assert!(lab.agent.asked().is_empty());
}

#[test]
fn requests_that_are_over_still_wait_in_the_backlog_until_they_are_taken() {
    let lab = Lab::new();
    let _listener = lab.listener();
    for conn in 1..=3 {
        lab.request(conn, "127.0.0.1:99");
        lab.tell(conn, rejected(RejReason::TIMEOUT));
    }
    lab.request(4, "127.0.0.1:99");
    await_refusal(&lab, "ignore 4");
    let taken = lab.kinds();
    assert_eq!(taken.iter().filter(|kind| **kind == EventKind::ConnectRequest).count(), 3);
    lab.request(5, "127.0.0.1:99");
    assert_eq!(lab.kinds(), [EventKind::ConnectRequest]);
}

#[test]
fn requests_of_another_transport_than_the_listeners_are_refused() {
    let lab = Lab::new();
    let _listener = lab.listener();
    let mut data = [0; 92];
    CmaHeader::new(99, [127, 0, 0, 1].into(), [127, 0, 0, 1].into()).emit(&mut data);
    let req = Req { private_data: data.into(), transport: CmService::UC, ..Req::default() };
    lab.raw_request(1, req);
    await_refusal(&lab, "reject(8) 1");
    assert!(lab.kinds().is_empty());
}

#[test]
fn requests_for_a_larger_path_mtu_than_the_ports_are_refused_with_that() {
    let mut config = Config::default();
    config.set("mtu", "1024").unwrap();
    let lab = Lab::with(config);
    let _listener = lab.listener();
    let home = IpAddr::from([127, 0, 0, 1]);
    let mut data = [0; 92];
    CmaHeader::new(99, home, home).emit(&mut data);
    let ask = |conn, mtu: Mtu| {
        let path_mtu = mtu as u8;
        lab.raw_request(conn, Req { private_data: data.into(), path_mtu, ..Req::default() });
    };
    ask(1, Mtu::B2048);
    await_refusal(&lab, &format!("reject(26, [{}]) 1", Mtu::B1024 as u8));
    assert!(lab.kinds().is_empty());
    ask(2, Mtu::B1024);
    assert_eq!(lab.kinds(), [EventKind::ConnectRequest]);
}

#[test]
fn a_request_whose_acceptance_failed_can_be_rejected() {
    let lab = Lab::new();
    let _listener = lab.listener();
    for (conn, agent_refuses) in [(1, true), (2, false)] {
        lab.request(conn, "127.0.0.1:99");
        let id = lab.channel.try_next().unwrap().id.clone();
        // The queue pair cannot be brought up, or the peer has given up.
        let qp = lab.qp();
        id.attach_qp(qp.clone()).unwrap();
        if !agent_refuses {
            let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
            qp.modify(&attr, AttrMask::STATE).unwrap();
        }
        *lock(&lab.agent.refuses) = agent_refuses;
        assert_eq!(id.accept(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
        *lock(&lab.agent.refuses) = false;
        lab.agent.asked();
        id.reject(b"sorry").unwrap();
        assert_eq!(lab.agent.asked(), [format!("reject(28) {conn}")]);
    }
}

#[test]
fn requests_in_the_name_of_another_address_are_refused() {
    let lab = Lab::new();
    let _listener = lab.listener();
    lab.request(1, "127.0.0.2:99");
    await_refusal(&lab, "reject(12) 1");
    let home = IpAddr::from([127, 0, 0, 1]);
    let away = IpAddr::from([127, 0, 0, 2]);
    let header = CmaHeader::new(99, home, home);
    for (n, wrong) in
        [CmaHeader { dst: away, ..header }, CmaHeader { version: 1, ..header }].iter().enumerate()
    {
        let mut data = [0; 92];
        wrong.emit(&mut data);
        lab.raw_request(2 + n as u32, Req { private_data: data.into(), ..Req::default() });
        await_refusal(&lab, &format!("reject(12) {}", 2 + n));
    }
    assert!(lab.kinds().is_empty());
}

#[test]
fn requests_that_nobody_took_are_refused_with_their_listener_and_leave_nothing() {
    let lab = Lab::new();
    let listener = lab.listener();
    for conn in 1..=3 {
        lab.request(conn, "127.0.0.1:99");
    }
    lab.tell(2, CmEvent::HalfOpenDropped);
    let taken = lab.channel.try_next().unwrap().id.clone();
    lab.agent.asked();
    listener.destroy();
    assert_eq!(lab.agent.asked(), ["stop", "destroy 2", "destroy 3"]);
    assert_eq!(lab.kinds(), []);
    taken.destroy();
    assert_eq!(lab.agent.asked(), ["destroy 1"]);
    assert_eq!(lab.channel.shared.registry.sizes(), (0, 0, 0));
}

#[test]
fn an_event_that_overtakes_the_call_that_makes_its_connection_is_not_lost() {
    let lab = Lab::new();
    let registry = &lab.channel.shared.registry;
    let expecting = registry.expect();
    lab.tell(1, rejected(RejReason::INVALID_SERVICE_ID));
    let id = lab.connecting();
    drop(expecting);
    assert_eq!(lab.kinds(), [EventKind::Rejected]);
    drop(id);
    // Events of connections that no call expects are dropped.
    lab.tell(2, established());
    let _expecting = registry.expect();
    registry.bind_conn(lab.id().events.key, other_device(), conn(2));
    assert_eq!(lab.kinds(), []);
}

fn other_device() -> crate::key::DeviceKey {
    crate::key::DeviceKey { netdev: 1, transport: vernic_engine::Transport::Roce }
}

fn conn(n: u32) -> vernic_proto::cm::ConnId {
    vernic_proto::cm::ConnId(vernic_wire::cm::CommId(n), 0)
}

#[test]
fn requests_without_addresses_are_refused_without_anybody_taking_them() {
    let lab = Lab::new();
    let _listener = lab.listener();
    lab.raw_request(5, Req::default());
    await_refusal(&lab, "reject(8) 5");
    assert_eq!(lab.kinds(), []);
}

#[test]
fn a_queue_pair_that_cannot_be_brought_up_ends_the_connection_on_both_sides_and_is_told_once() {
    let lab = Lab::new();
    let id = lab.id();
    id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), Duration::ZERO).unwrap();
    id.resolve_route(Duration::ZERO).unwrap();
    let qp = lab.qp();
    id.attach_qp(qp.clone()).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    lab.kinds();
    lab.agent.asked();
    // The program has put the queue pair into Error meanwhile.
    let (mut attr, mask) = id.init_qp_attr(QpState::Init).unwrap();
    attr.state = QpState::Error;
    qp.modify(&attr, mask & vernic_engine::AttrMask::STATE).unwrap();
    lab.tell(1, reply(9));
    let event = lab.channel.try_next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::ConnectError, -libc::EINVAL));
    assert_eq!(lab.agent.asked(), ["reject(28) 1"]);
    lab.tell(1, CmEvent::Disconnected);
    lab.tell(1, rejected(RejReason::CONSUMER));
    assert_eq!(lab.kinds(), []);
}

#[test]
fn a_connection_that_is_ended_from_both_sides_is_told_once() {
    let lab = Lab::new();
    let id = lab.connecting();
    lab.tell(1, reply(9));
    assert_eq!(lab.kinds(), [EventKind::ConnectResponse]);
    id.establish().unwrap();
    assert_eq!(lab.agent.asked(), ["ready 1"]);
    lab.tell(1, disconnect_request());
    lab.tell(1, CmEvent::Disconnected);
    lab.tell(1, CmEvent::TimewaitExit);
    assert_eq!(lab.kinds(), [EventKind::Disconnected, EventKind::TimewaitExit]);
    assert_eq!(id.state(), State::Disconnect);
}

#[test]
fn silence_is_unreachable_with_the_errno_of_a_timeout() {
    let lab = Lab::new();
    let _id = lab.connecting();
    lab.tell(1, CmEvent::Unreachable { which: Unanswered::Req });
    let event = lab.channel.try_next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, -libc::ETIMEDOUT));
}

#[test]
fn a_disconnection_that_nobody_answers_has_the_errno_of_a_timeout() {
    let lab = Lab::new();
    let id = lab.connecting();
    lab.tell(1, reply(9));
    assert_eq!(lab.kinds(), [EventKind::ConnectResponse]);
    id.establish().unwrap();
    id.disconnect().unwrap();
    lab.tell(1, CmEvent::Unreachable { which: Unanswered::Dreq });
    lab.tell(1, CmEvent::TimewaitExit);
    let event = lab.channel.try_next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Disconnected, -libc::ETIMEDOUT));
    assert_eq!(lab.kinds(), [EventKind::TimewaitExit]);
}

#[test]
fn notifying_is_for_those_who_have_accepted() {
    let lab = Lab::new();
    let _listener = lab.listener();
    lab.request(4, "127.0.0.1:99");
    let id = lab.channel.try_next().unwrap().id.clone();
    assert_eq!(id.notify(CommEstablished).unwrap_err().errno(), libc::EINVAL);
    id.accept(&own_qp()).unwrap();
    id.notify(CommEstablished).unwrap();
    assert_eq!(lab.agent.asked(), ["taken 4", "accept 4", "notify 4"]);
    lab.tell(4, established());
    assert_eq!(lab.kinds(), [EventKind::Established]);
}

#[test]
fn an_answer_that_comes_too_late_leaves_the_request_unanswered_and_says_so() {
    let lab = Lab::new();
    let _listener = lab.listener();
    lab.request(4, "127.0.0.1:99");
    let id = lab.channel.try_next().unwrap().id.clone();
    *crate::sync::lock(&lab.agent.refuses) = true;
    let error = id.accept(&own_qp()).unwrap_err();
    assert!(error.errno() == libc::EINVAL && error.to_string().contains("has ended"), "{error}");
    assert_eq!(id.reject(&[]).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn more_reads_and_atomics_than_the_device_has_are_refused_and_as_many_as_possible_are_granted() {
    let lab = Lab::new();
    let _listener = lab.listener();
    let mut req = Req { initiator_depth: 200, responder_resources: 4, ..Req::default() };
    let mut data = [0; 92];
    let home = "127.0.0.1".parse().unwrap();
    vernic_wire::cm::CmaHeader::new(1, home, home).emit(&mut data);
    req.private_data = data.into();
    lab.raw_request(4, req);
    let id = lab.channel.try_next().unwrap().id.clone();
    let many = ConnParam { responder_resources: 129, ..own_qp() };
    let error = id.accept(&many).unwrap_err();
    assert!(error.to_string().contains("responder_resources is 129"), "{error}");
    id.accept(&own_qp()).unwrap();
    let (rtr, _) = id.init_qp_attr(QpState::Rtr).unwrap();
    let (rts, _) = id.init_qp_attr(QpState::Rts).unwrap();
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (128, 4));
}

#[test]
fn each_side_starts_with_the_psn_that_the_other_asks_for() {
    let lab = Lab::new();
    let psns = |id: &crate::Id| {
        let (rtr, _) = id.init_qp_attr(QpState::Rtr).unwrap();
        let (rts, _) = id.init_qp_attr(QpState::Rts).unwrap();
        (Some(rtr.rq_psn), rts.sq_psn)
    };
    let asked_for = || *lab.agent.starting_psn.lock().unwrap();
    let active = lab.connecting();
    lab.tell(1, reply(9));
    assert_eq!(lab.kinds(), [EventKind::ConnectResponse]);
    assert_eq!(psns(&active), (asked_for(), Psn::new(5)));
    let _listener = lab.listener();
    lab.request(4, "127.0.0.1:99");
    let passive = lab.channel.try_next().unwrap().id.clone();
    passive.accept(&own_qp()).unwrap();
    assert_eq!(psns(&passive), (asked_for(), PEER_PSN));
}
