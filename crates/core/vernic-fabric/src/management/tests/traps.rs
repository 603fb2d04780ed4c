use vernic_wire::mad::{Method, MgmtClass};
use vernic_wire::smp::{
    BadKey, BadManagementKey, BadPkeyAtSwitch, Change, LinkState, Notice, NoticeKind, PortInfo,
    SmAttribute, Smp, SwitchInfo, TrapNumber,
};
use vernic_wire::{Gid, Lid, Pkey, PortNum, Qpn, ServiceLevel};

use super::{Asked, directed, smp};
use crate::Time;
use crate::attributes::PortState;
use crate::management::traps::{CAPACITY, MAX_SENDS};
use crate::management::{DropReason, Route, Trap};

/// Nanoseconds of the subnet timeout that the test ports have: exponent 18.
const TIMEOUT: u64 = 4096 << 18;

fn managed(mut asked: Asked) -> Asked {
    for port in asked.node.ports.iter_mut().flatten() {
        (port.lid, port.sm_lid) = (Lid(4), Lid(1));
        port.sm_service_level = ServiceLevel::new(2);
    }
    asked
}

fn poll(asked: &mut Asked) -> Option<Trap> {
    asked.agent.poll_trap(&asked.node, asked.now)
}

fn notice(trap: &Trap) -> Notice {
    Notice::parse(&Smp::from_bytes(&trap.mad).data).unwrap()
}

fn repress(asked: &mut Asked, trap: &Trap) -> Route {
    let mut repress =
        smp(MgmtClass::SUBNET_LID_ROUTED, Method::TRAP_REPRESS, SmAttribute::NOTICE, 0);
    repress.header.transaction_id = Smp::from_bytes(&trap.mad).header.transaction_id;
    asked.send(&mut repress)
}

#[test]
fn a_link_that_changes_is_told_until_the_manager_represses_it() {
    let mut asked = managed(Asked::switch(4, 1));
    asked.agent.handle_link_change(&mut asked.node, Time(5));
    let info = SwitchInfo::parse(&asked.get(SmAttribute::SWITCH_INFO, 0)).unwrap();
    assert!(info.port_changed);
    assert_eq!(asked.agent.next_deadline(), Some(Time(5)));
    asked.now = Time(5);
    let trap = poll(&mut asked).unwrap();
    assert_eq!((trap.port, trap.dlid, trap.service_level.value()), (PortNum(0), Lid(1), 2));
    let sent = Smp::from_bytes(&trap.mad);
    assert_eq!(sent.header.mgmt_class, MgmtClass::SUBNET_LID_ROUTED);
    assert_eq!((sent.header.method, sent.attribute()), (Method::TRAP, SmAttribute::NOTICE));
    let told = notice(&trap);
    assert_eq!((told.generic, told.kind, told.producer), (true, NoticeKind::URGENT, 2));
    assert_eq!((told.number, told.issuer), (TrapNumber::LINK_STATE, Lid(4)));
    assert_eq!(LinkState::from_details(&told.details).lid, Lid(4));
    // Again after the subnet timeout, and not before.
    assert_eq!(asked.agent.next_deadline(), Some(Time(5 + TIMEOUT)));
    asked.now = Time(4 + TIMEOUT);
    assert_eq!(poll(&mut asked), None);
    asked.now = Time(5 + TIMEOUT);
    assert_eq!(poll(&mut asked), Some(trap));
    assert_eq!(repress(&mut asked, &trap), Route::Done);
    assert_eq!((asked.agent.next_deadline(), asked.agent.lost_traps()), (None, 0));
}

#[test]
fn a_repress_of_another_trap_changes_nothing() {
    let mut asked = managed(Asked::switch(4, 1));
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    let mut other = poll(&mut asked).unwrap();
    other.mad[15] ^= 1;
    repress(&mut asked, &other);
    assert!(asked.agent.next_deadline().is_some());
}

#[test]
fn a_manager_that_does_not_answer_is_given_up() {
    let mut asked = managed(Asked::switch(4, 1));
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    for _ in 0..MAX_SENDS {
        assert!(poll(&mut asked).is_some());
        asked.now = asked.agent.next_deadline().unwrap();
    }
    assert_eq!(poll(&mut asked), None);
    assert_eq!((asked.agent.next_deadline(), asked.agent.lost_traps()), (None, 1));
}

#[test]
fn a_change_after_a_trap_is_told_anew() {
    let mut asked = managed(Asked::switch(4, 1));
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    let first = poll(&mut asked).unwrap();
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    // The manager's TrapRepress is about the first.
    repress(&mut asked, &first);
    asked.now = asked.agent.next_deadline().unwrap();
    let second = poll(&mut asked).unwrap();
    assert_ne!(second.mad[..16], first.mad[..16]);
    repress(&mut asked, &second);
    assert_eq!(asked.agent.next_deadline(), None);
}

#[test]
fn a_change_that_is_told_anew_takes_the_place_of_the_former_trap() {
    let mut asked = managed(Asked::switch(4, 1));
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    poll(&mut asked).unwrap();
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    asked.now = asked.agent.next_deadline().unwrap();
    let second = poll(&mut asked).unwrap();
    repress(&mut asked, &second);
    assert_eq!(asked.agent.next_deadline(), None);
}

#[test]
fn the_queue_is_bounded_and_traps_leave_one_in_a_timeout() {
    let mut asked = managed(Asked::adapter(1, 1));
    for flags in 0..100 {
        asked.agent.handle_node_change(&asked.node, PortNum(1), flags, asked.now);
    }
    assert_eq!(asked.agent.lost_traps(), 100 - CAPACITY as u64);
    let mut told = Vec::new();
    for _ in 0..CAPACITY {
        told.push(Change::from_details(&notice(&poll(&mut asked).unwrap()).details).flags);
        assert_eq!(poll(&mut asked), None);
        asked.now = asked.agent.next_deadline().unwrap();
    }
    assert_eq!(told, (0..CAPACITY as u16).collect::<Vec<_>>());
    assert_eq!(asked.now, Time(CAPACITY as u64 * TIMEOUT));
}

#[test]
fn a_wrong_key_is_told_with_the_way_that_the_packet_came() {
    let mut asked = managed(Asked::switch(4, 3));
    asked.node.ports[0].as_mut().unwrap().m_key = 5;
    let mut set = directed(&[1, 2], Method::SET, SmAttribute::PORT_INFO, 7);
    set.set_hop_pointer(2);
    (set.return_path[1], set.m_key) = (9, 6);
    assert_eq!(asked.send(&mut set), Route::Drop(DropReason::ManagementKey));
    let told = notice(&poll(&mut asked).unwrap());
    assert_eq!((told.kind, told.number), (NoticeKind::SECURITY, TrapNumber::BAD_M_KEY));
    let bad = BadManagementKey::from_details(&told.details);
    assert_eq!((bad.m_key, bad.method, bad.modifier), (6, Method::SET.0, 7));
    assert_eq!((bad.attribute, bad.lid), (SmAttribute::PORT_INFO.0, super::ASKER));
    let (hops, ports) = bad.path.unwrap();
    assert_eq!((hops, &ports[..3]), (2, &[9, 3, 0][..]));
}

#[test]
fn changes_and_wrong_keys_of_packets_have_their_traps() {
    let bad = BadKey {
        from: Lid(8),
        to: Lid(4),
        key: 0x8001,
        service_level: ServiceLevel::new(1),
        from_qp: Qpn::new(2),
        to_qp: Qpn::new(3),
        from_gid: Gid::ZERO,
        to_gid: Gid::ZERO,
    };
    let at_switch = BadPkeyAtSwitch {
        valid: 3,
        from: Lid(8),
        to: Lid(4),
        pkey: Pkey(0x8001),
        service_level: ServiceLevel::new(1),
        from_qp: Qpn::new(2),
        to_qp: Qpn::new(3),
        from_gid: Gid::ZERO,
        to_gid: Gid::ZERO,
        switch: Lid(4),
        port: PortNum(2),
    };
    let mut adapter = managed(Asked::adapter(2, 2));
    let Asked { node, agent, now, .. } = &mut adapter;
    agent.handle_bad_pkey(node, PortNum(2), &bad, *now);
    agent.handle_bad_qkey(node, PortNum(2), &bad, *now);
    agent.handle_node_change(node, PortNum(2), Change::DESCRIPTION, *now);
    let mut numbers = Vec::new();
    while numbers.len() < 3 {
        let trap = poll(&mut adapter).unwrap();
        assert_eq!(trap.port, PortNum(2));
        let told = notice(&trap);
        assert_eq!(told.producer, 1);
        numbers.push(told.number);
        if told.number == TrapNumber::CHANGE {
            let change = Change::from_details(&told.details);
            assert_eq!(change.flags, Change::DESCRIPTION);
            assert_eq!(change.capabilities, crate::management::Agent::CAPABILITIES);
        } else {
            assert_eq!(BadKey::from_details(&told.details), bad);
        }
        adapter.now = adapter.agent.next_deadline().unwrap();
    }
    let all = [TrapNumber::BAD_P_KEY, TrapNumber::BAD_Q_KEY, TrapNumber::CHANGE];
    assert_eq!(numbers, all);
    let mut switch = managed(Asked::switch(4, 1));
    let Asked { node, agent, now, .. } = &mut switch;
    agent.handle_bad_pkey_at_switch(node, &at_switch, *now);
    let told = notice(&poll(&mut switch).unwrap());
    assert_eq!(told.number, TrapNumber::BAD_P_KEY_AT_SWITCH);
    assert_eq!(BadPkeyAtSwitch::from_details(&told.details), at_switch);
}

#[test]
fn nobody_is_told_where_no_manager_is_known_or_traps_are_not_a_capability() {
    let mut asked = Asked::switch(4, 1);
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    assert_eq!(asked.agent.next_deadline(), None);
    let mut asked = managed(asked);
    asked.node.ports[0].as_mut().unwrap().capabilities &= !PortInfo::CAPABILITY_TRAPS;
    asked.agent.handle_link_change(&mut asked.node, asked.now);
    assert_eq!(asked.agent.next_deadline(), None);
}

#[test]
fn an_adapter_without_a_link_forgets_its_traps() {
    let mut asked = managed(Asked::adapter(1, 1));
    asked.agent.handle_node_change(&asked.node, PortNum(1), 0, asked.now);
    asked.node.ports[1].as_mut().unwrap().state = PortState::Down;
    assert_eq!(poll(&mut asked), None);
    assert_eq!((asked.agent.next_deadline(), asked.agent.lost_traps()), (None, 1));
}

#[test]
fn traps_and_answers_of_others_go_to_the_manager_of_the_node() {
    let mut asked = Asked::adapter(1, 1);
    for method in [Method::TRAP, Method::GET_RESP, Method(0x87)] {
        let class = MgmtClass::SUBNET_LID_ROUTED;
        let mut smp = smp(class, method, SmAttribute::NOTICE, 0);
        assert_eq!(asked.send(&mut smp), Route::Local);
    }
}
