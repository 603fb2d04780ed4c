use vernic_wire::mad::Method;
use vernic_wire::smp::{DATA_LEN, MadStatus, PortInfo, SmAttribute};
use vernic_wire::{Lid, Mtu, PortNum};

use super::Asked;
use crate::attributes::{LinkSpeed, LinkWidth, PhysicalState, PortAttributes, PortState};
use crate::management::PortChange;

fn attributes(asked: &mut Asked, port: usize) -> &mut PortAttributes {
    asked.node.ports[port].as_mut().unwrap()
}

#[test]
fn the_local_port_is_the_ingress_whichever_port_is_asked_about() {
    let mut switch = Asked::switch(8, 5);
    for port in 0..=8 {
        assert_eq!(switch.port_info(port).local_port, PortNum(5));
    }
    let mut adapter = Asked::adapter(2, 2);
    attributes(&mut adapter, 2).lid = Lid(22);
    let own = adapter.port_info(0);
    assert_eq!((own.lid, own.local_port), (Lid(22), PortNum(2)));
    let other = adapter.port_info(1);
    assert_eq!((other.lid, other.local_port), (Lid(0), PortNum(2)));
}

#[test]
fn an_adapter_takes_what_a_manager_writes() {
    let mut asked = Asked::adapter(1, 1);
    let written = PortInfo {
        m_key: 0x1234,
        gid_prefix: 0xFEC0_0000_0000_0001,
        lid: Lid(0x40),
        sm_lid: Lid(1),
        m_key_lease_s: 60,
        m_key_protection: 2,
        lmc: 3,
        neighbor_mtu: Mtu::B4096 as u8,
        sm_service_level: 5,
        operational_lanes: 4,
        high_limit: 10,
        link_down_default: 1,
        subnet_timeout: 20,
        physical_errors: 8,
        overrun_errors: 9,
        init_type: 3,
        ..asked.unchanged(0)
    };
    let (status, told) = asked.set_port_info(0, &written);
    assert_eq!(status, MadStatus::OK);
    assert_eq!(told, PortInfo { state: 2, physical_state: 5, ..written });
    asked.m_key = 0x1234;
    assert_eq!(asked.port_info(1), told);
    let port = attributes(&mut asked, 1);
    assert_eq!((port.operational_lanes, port.neighbor_mtu), (8, Mtu::B4096));
    assert_eq!(port.link_down_default, PhysicalState::Sleep);
}

#[test]
fn what_cannot_be_written_stays() {
    let mut asked = Asked::adapter(1, 1);
    let before = asked.port_info(0);
    let written = PortInfo {
        lid: Lid(5),
        capabilities: 0,
        capabilities2: 9,
        diag_code: 1,
        local_port: PortNum(9),
        width_supported: 1,
        width_active: 1,
        speed_supported: 1,
        speed_active: 1,
        lanes_supported: 1,
        high_cap: 1,
        low_cap: 1,
        mtu_cap: 1,
        init_type_reply: 1,
        stall_count: 1,
        head_of_queue_life: 1,
        enforces_inbound: true,
        enforces_outbound: true,
        guid_cap: 9,
        response_time: 1,
        max_credit_hint: 1,
        round_trip_latency: 1,
        extended_speed_supported: 1,
        ..asked.unchanged(0)
    };
    let (status, told) = asked.set_port_info(0, &written);
    assert_eq!((status, told), (MadStatus::OK, PortInfo { lid: Lid(5), ..before }));
}

#[test]
fn a_port_of_a_switch_has_its_link_and_nothing_of_the_node() {
    let mut asked = Asked::switch(4, 1);
    attributes(&mut asked, 0).lid = Lid(7);
    let before = asked.port_info(2);
    let of_node = (before.lid, before.capabilities, before.guid_cap, before.gid_prefix);
    assert_eq!(of_node, (Lid(0), 0, 0, 0));
    let written = PortInfo {
        lid: Lid(0xFFFF),
        lmc: 7,
        m_key: 5,
        neighbor_mtu: Mtu::B256 as u8,
        operational_lanes: 1,
        head_of_queue_life: 18,
        stall_count: 5,
        enforces_inbound: true,
        enforces_outbound: true,
        ..asked.unchanged(2)
    };
    let (status, told) = asked.set_port_info(2, &written);
    assert_eq!(status, MadStatus::OK);
    let expected = PortInfo {
        lid: Lid(0),
        lmc: 0,
        m_key: 0,
        state: before.state,
        physical_state: before.physical_state,
        ..written
    };
    assert_eq!(told, expected);
    let port = attributes(&mut asked, 2);
    assert!(port.enforces_inbound && port.enforces_outbound);
    assert_eq!((port.stall_count, port.head_of_queue_life), (5, 18));
}

#[test]
fn port_0_of_a_switch_has_lids_but_no_link() {
    let mut asked = Asked::switch(4, 1);
    let written = PortInfo {
        lid: Lid(9),
        sm_lid: Lid(1),
        neighbor_mtu: 0,
        high_limit: 77,
        ..asked.unchanged(0)
    };
    let (status, told) = asked.set_port_info(0, &written);
    assert_eq!(status, MadStatus::OK);
    assert_eq!((told.lid, told.sm_lid, told.high_limit), (Lid(9), Lid(1), 0));
    for bad in [
        PortInfo { state: PortState::Down as u8, ..written },
        PortInfo { physical_state: PhysicalState::Disabled as u8, ..written },
        PortInfo { lid: Lid(8), lmc: 1, ..written },
    ] {
        assert_eq!(asked.set_port_info(0, &bad).0, MadStatus::INVALID_FIELD);
    }
    let same = PortInfo { state: 4, physical_state: 5, ..written };
    assert_eq!(asked.set_port_info(0, &same).0, MadStatus::OK);
    assert_eq!(asked.node.changes, []);
}

#[test]
fn states_change_as_the_link_machine_allows() {
    use PhysicalState::{Disabled, Polling, Sleep};
    use PortState::{Active, Armed, Down, Init};
    let invalid = Err(MadStatus::INVALID_FIELD);
    let down = |physical| Ok(Some(PortChange::Down(physical)));
    let table = [
        // from, state written, physical state written, what happens
        (Init, 0, 0, Ok(None)),
        (Init, 1, 0, down(Polling)),
        (Active, 1, 0, down(Polling)),
        (Down, 1, 0, Ok(None)),
        (Init, 2, 0, invalid),
        (Init, 3, 0, Ok(Some(PortChange::Arm))),
        (Armed, 3, 0, Ok(None)),
        (Active, 3, 0, invalid),
        (Down, 3, 0, invalid),
        (Init, 4, 0, invalid),
        (Armed, 4, 0, Ok(Some(PortChange::Activate))),
        (Active, 4, 0, Ok(None)),
        (Down, 4, 0, invalid),
        (Init, 5, 0, invalid),
        (Active, 1, 1, down(Sleep)),
        (Active, 1, 2, down(Polling)),
        (Active, 1, 3, down(Disabled)),
        (Down, 0, 2, down(Polling)),
        (Active, 0, 3, down(Disabled)),
        (Active, 1, 4, invalid),
        (Active, 0, 5, invalid),
        (Armed, 4, 2, invalid),
        (Init, 3, 3, invalid),
    ];
    for (from, state, physical_state, outcome) in table {
        let case = format!("{from:?} {state} {physical_state}");
        let mut asked = Asked::switch(4, 1);
        attributes(&mut asked, 2).state = from;
        let written = PortInfo { state, physical_state, high_limit: 5, ..asked.port_info(2) };
        let (status, told) = asked.set_port_info(2, &written);
        let changes = match outcome {
            Ok(change) => {
                assert_eq!((status, told.high_limit), (MadStatus::OK, 5), "{case}");
                change.map(|change| (PortNum(2), change)).into_iter().collect()
            }
            Err(error) => {
                assert_eq!((status, told.high_limit), (error, 0), "{case}");
                vec![]
            }
        };
        assert_eq!(asked.node.changes, changes, "{case}");
        assert_eq!(told.state, attributes(&mut asked, 2).state as u8, "{case}");
    }
}

#[test]
fn a_link_that_is_taken_down_goes_to_the_default_that_the_same_write_sets() {
    let mut asked = Asked::switch(4, 1);
    let written = PortInfo { state: 1, link_down_default: 1, ..asked.unchanged(3) };
    let (_, told) = asked.set_port_info(3, &written);
    assert_eq!((told.state, told.physical_state), (1, PhysicalState::Sleep as u8));
    assert_eq!(asked.node.changes, [(PortNum(3), PortChange::Down(PhysicalState::Sleep))]);
}

#[test]
fn a_field_out_of_range_refuses_the_whole() {
    let mut asked = Asked::adapter(1, 1);
    attributes(&mut asked, 1).lid = Lid(4);
    let good = PortInfo { lid: Lid(8), sm_lid: Lid(1), ..asked.unchanged(0) };
    let bad = [
        PortInfo { lid: Lid(0), ..good },
        PortInfo { lid: Lid(0xC000), ..good },
        PortInfo { lid: Lid(0xFFFF), ..good },
        PortInfo { lid: Lid(9), lmc: 1, ..good },
        PortInfo { lid: Lid(8), lmc: 4, ..good },
        PortInfo { sm_lid: Lid(0xC001), ..good },
        PortInfo { neighbor_mtu: 0, ..good },
        PortInfo { neighbor_mtu: 6, ..good },
        PortInfo { operational_lanes: 5, ..good },
        PortInfo { link_down_default: 3, ..good },
        PortInfo { width_enabled: 4, ..good },
        PortInfo { width_enabled: 16, ..good },
        PortInfo { speed_enabled: 8, ..good },
        PortInfo { extended_speed_enabled: 1, ..good },
        PortInfo { state: 2, ..good },
    ];
    for written in bad {
        let (status, told) = asked.set_port_info(0, &written);
        assert_eq!(status, MadStatus::INVALID_FIELD, "{written:?}");
        assert_eq!((told.lid, told.sm_lid), (Lid(4), Lid(0)), "{written:?}");
    }
    assert_eq!(asked.set_port_info(0, &good).0, MadStatus::OK);
    // A smaller packet than the other end could take is no error, a larger one is.
    attributes(&mut asked, 1).mtu_capability = Mtu::B1024;
    let written = PortInfo { neighbor_mtu: Mtu::B2048 as u8, ..good };
    assert_eq!(asked.set_port_info(0, &written).0, MadStatus::INVALID_FIELD);
}

#[test]
fn lids_end_below_the_multicast_lids() {
    let mut asked = Asked::adapter(1, 1);
    let good = asked.unchanged(0);
    let last = PortInfo { lid: Lid(0xBF80), lmc: 7, ..good };
    assert_eq!(asked.set_port_info(0, &last).0, MadStatus::OK);
    let alone = PortInfo { lid: Lid(0xBFFF), lmc: 0, ..good };
    assert_eq!(asked.set_port_info(0, &alone).0, MadStatus::OK);
}

#[test]
fn enabled_widths_and_speeds_are_some_or_all_of_the_supported_ones() {
    let mut asked = Asked::switch(4, 1);
    attributes(&mut asked, 2).speed = LinkSpeed::Edr;
    let before = asked.unchanged(2);
    assert_eq!((before.width_enabled, before.speed_enabled), (3, 7));
    assert_eq!(before.extended_speed_enabled, 3);
    let some = PortInfo { width_enabled: 1, speed_enabled: 3, extended_speed_enabled: 1, ..before };
    let (_, told) = asked.set_port_info(2, &some);
    let enabled =
        |info: &PortInfo| (info.width_enabled, info.speed_enabled, info.extended_speed_enabled);
    assert_eq!(enabled(&told), (1, 3, 1));
    assert_eq!(asked.agent.settings(PortNum(2)).unwrap().width_enabled, Some(1));
    let none = PortInfo { width_enabled: 0, speed_enabled: 0, extended_speed_enabled: 0, ..some };
    assert_eq!(enabled(&asked.set_port_info(2, &none).1), (1, 3, 1));
    let off = PortInfo { extended_speed_enabled: 30, ..none };
    assert_eq!(enabled(&asked.set_port_info(2, &off).1), (1, 3, 0));
    let all =
        PortInfo { width_enabled: 255, speed_enabled: 15, extended_speed_enabled: 31, ..some };
    assert_eq!(enabled(&asked.set_port_info(2, &all).1), (3, 7, 3));
}

#[test]
fn each_speed_width_and_number_of_lanes_has_its_code() {
    let mut asked = Asked::switch(4, 1);
    let speeds = [
        (LinkSpeed::Sdr, (1, 1, 0, 0)),
        (LinkSpeed::Ddr, (3, 2, 0, 0)),
        (LinkSpeed::Qdr, (7, 4, 0, 0)),
        (LinkSpeed::Fdr, (7, 4, 1, 1)),
        (LinkSpeed::Edr, (7, 4, 3, 2)),
    ];
    for (speed, expected) in speeds {
        attributes(&mut asked, 1).speed = speed;
        let info = asked.port_info(1);
        let told = (
            info.speed_supported,
            info.speed_active,
            info.extended_speed_supported,
            info.extended_speed_active,
        );
        assert_eq!(told, expected, "{speed:?}");
    }
    for (width, supported) in
        [(LinkWidth::X1, 1), (LinkWidth::X4, 3), (LinkWidth::X8, 7), (LinkWidth::X12, 15)]
    {
        attributes(&mut asked, 1).width = width;
        let info = asked.port_info(1);
        assert_eq!((info.width_active, info.width_supported), (width as u8, supported));
    }
    for (lanes, code) in [(1, 1), (2, 2), (4, 3), (8, 4), (15, 5)] {
        attributes(&mut asked, 1).lanes_supported = lanes;
        let written = PortInfo { operational_lanes: code, ..asked.unchanged(1) };
        let (_, told) = asked.set_port_info(1, &written);
        assert_eq!((told.lanes_supported, told.operational_lanes), (code, code));
        assert_eq!(attributes(&mut asked, 1).operational_lanes, lanes);
    }
}

#[test]
fn clients_are_told_to_register_anew_and_the_bit_reads_as_zero() {
    let mut asked = Asked::adapter(1, 1);
    let written = PortInfo { client_reregister: true, ..asked.unchanged(0) };
    assert!(asked.set_port_info(0, &written).1.client_reregister);
    assert!(attributes(&mut asked, 1).client_reregister);
    assert!(!asked.port_info(0).client_reregister);
    // The owner clears it when the clients know.
    attributes(&mut asked, 1).client_reregister = false;
    attributes(&mut asked, 1).capabilities &= !PortInfo::CAPABILITY_CLIENT_REREGISTER;
    assert!(!asked.set_port_info(0, &written).1.client_reregister);
    assert!(!attributes(&mut asked, 1).client_reregister);
}

#[test]
fn written_zeros_clear_violations_and_other_values_do_not() {
    let mut asked = Asked::adapter(1, 1);
    let port = attributes(&mut asked, 1);
    (port.p_key_violations, port.q_key_violations) = (3, 4);
    let written = PortInfo { p_key_violations: 9, q_key_violations: 0, ..asked.unchanged(0) };
    let (_, told) = asked.set_port_info(0, &written);
    assert_eq!((told.p_key_violations, told.q_key_violations), (3, 0));
    let written = PortInfo { p_key_violations: 0, ..written };
    assert_eq!(asked.set_port_info(0, &written).1.p_key_violations, 0);
}

#[test]
fn the_bit_of_extended_speeds_in_the_modifier_is_no_port() {
    let mut asked = Asked::switch(4, 3);
    let plain = asked.get(SmAttribute::PORT_INFO, 2);
    assert_eq!(asked.get(SmAttribute::PORT_INFO, 1 << 31 | 2), plain);
    let bad = asked.ask(Method::GET, SmAttribute::PORT_INFO, 1 << 30 | 2, [0; DATA_LEN]);
    assert_eq!(bad.0, MadStatus::INVALID_FIELD);
}
