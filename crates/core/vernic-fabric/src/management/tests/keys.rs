use vernic_wire::PortNum;
use vernic_wire::mad::{Method, MgmtClass};
use vernic_wire::smp::{MadStatus, PortInfo, SmAttribute, Smp};

use super::{Asked, smp};
use crate::Time;
use crate::management::{DropReason, Route};

const KEY: u64 = 0x1122_3344_5566_7788;
const SECOND: u64 = 1_000_000_000;
const DROPPED: Route = Route::Drop(DropReason::ManagementKey);

fn protected(level: u8) -> Asked {
    let mut asked = Asked::adapter(2, 1);
    let port = asked.node.ports[1].as_mut().unwrap();
    (port.m_key, port.m_key_protection) = (KEY, level);
    asked
}

fn request(method: Method, m_key: u64) -> Smp {
    let request = smp(MgmtClass::SUBNET_LID_ROUTED, method, SmAttribute::PORT_INFO, 0);
    Smp { m_key, ..request }
}

fn violations(asked: &Asked) -> u16 {
    asked.node.ports[1].as_ref().unwrap().m_key_violations
}

#[test]
fn each_level_protects_what_the_table_says() {
    for level in 0..=3 {
        let mut asked = protected(level);
        let mut get = request(Method::GET, 1);
        let route = asked.send(&mut get);
        let shown = PortInfo::from_bytes(&get.data).m_key;
        match level {
            0 => assert_eq!(shown, KEY),
            1 => assert_eq!((route, shown), (Route::Lid(super::ASKER), 0)),
            _ => assert_eq!(route, DROPPED),
        }
        let before = violations(&asked);
        assert_eq!(before, u16::from(level >= 2));
        for method in [Method::SET, Method::TRAP_REPRESS] {
            assert_eq!(asked.send(&mut request(method, 1)), DROPPED);
        }
        assert_eq!(violations(&asked), before + 2);
        assert_eq!(asked.agent.dropped(DropReason::ManagementKey), u64::from(before) + 2);
        let mut right = request(Method::GET, KEY);
        asked.send(&mut right);
        assert_eq!(PortInfo::from_bytes(&right.data).m_key, KEY);
    }
}

#[test]
fn a_key_of_zero_protects_nothing() {
    let mut asked = protected(3);
    asked.node.ports[1].as_mut().unwrap().m_key = 0;
    assert_eq!(asked.send(&mut request(Method::GET, 99)), Route::Lid(super::ASKER));
}

#[test]
fn a_lease_ends_the_protection_but_not_the_key() {
    let mut asked = protected(2);
    asked.node.ports[1].as_mut().unwrap().m_key_lease_s = 3;
    assert_eq!(asked.agent.next_deadline(), None);
    asked.send(&mut request(Method::GET, 1));
    asked.now = Time(SECOND);
    asked.send(&mut request(Method::GET, 2));
    // From the first wrong key on.
    assert_eq!(asked.agent.next_deadline(), Some(Time(3 * SECOND)));
    asked.now = Time(3 * SECOND - 1);
    assert_eq!(asked.send(&mut request(Method::GET, 1)), DROPPED);
    asked.now = Time(3 * SECOND);
    let mut get = request(Method::GET, 1);
    assert_eq!(asked.send(&mut get), Route::Lid(super::ASKER));
    let info = PortInfo::from_bytes(&get.data);
    assert_eq!((info.m_key, info.m_key_protection), (KEY, 0));
    assert_eq!(asked.send(&mut request(Method::SET, 1)), DROPPED);
}

#[test]
fn the_right_key_stops_the_lease() {
    let mut asked = protected(2);
    asked.node.ports[1].as_mut().unwrap().m_key_lease_s = 3;
    asked.send(&mut request(Method::GET, 1));
    asked.send(&mut request(Method::GET, KEY));
    assert_eq!(asked.agent.next_deadline(), None);
    asked.agent.handle_timeout(&mut asked.node, Time(10 * SECOND));
    assert_eq!(asked.node.ports[1].as_ref().unwrap().m_key_protection, 2);
}

#[test]
fn a_timeout_ends_a_lease_without_a_packet() {
    let mut asked = protected(2);
    asked.node.ports[1].as_mut().unwrap().m_key_lease_s = 1;
    asked.send(&mut request(Method::SET, 1));
    asked.agent.handle_timeout(&mut asked.node, Time(SECOND));
    assert_eq!(asked.node.ports[1].as_ref().unwrap().m_key_protection, 0);
    assert_eq!(asked.agent.next_deadline(), None);
}

#[test]
fn the_key_of_another_port_of_the_adapter_counts_too() {
    let mut asked = protected(0);
    asked.port = PortNum(2);
    let mut set = request(Method::SET, 0);
    set.header.attribute_modifier = 1;
    assert_eq!(asked.send(&mut set), DROPPED);
    assert_eq!(violations(&asked), 1);
    set.m_key = KEY;
    assert_eq!(asked.send(&mut set), Route::Lid(super::ASKER));
}

#[test]
fn the_key_of_a_switch_is_that_of_port_0() {
    let mut asked = Asked::switch(4, 3);
    asked.node.ports[0].as_mut().unwrap().m_key = KEY;
    asked.node.ports[3].as_mut().unwrap().m_key = 5;
    assert_eq!(asked.send(&mut request(Method::SET, 5)), DROPPED);
    asked.m_key = KEY;
    let info = asked.unchanged(3);
    assert_eq!(asked.set_port_info(3, &info).0, MadStatus::OK);
}

#[test]
fn violations_stop_at_their_largest_value_and_a_written_zero_clears_them() {
    let mut asked = protected(0);
    asked.node.ports[1].as_mut().unwrap().m_key_violations = u16::MAX;
    asked.send(&mut request(Method::SET, 1));
    assert_eq!(violations(&asked), u16::MAX);
    asked.m_key = KEY;
    let info = PortInfo { m_key_violations: 1, ..asked.unchanged(0) };
    assert_eq!(asked.set_port_info(0, &info).1.m_key_violations, u16::MAX);
    let info = PortInfo { m_key_violations: 0, ..info };
    assert_eq!(asked.set_port_info(0, &info).1.m_key_violations, 0);
}
