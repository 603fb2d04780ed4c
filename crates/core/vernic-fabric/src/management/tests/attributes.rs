use vernic_wire::mad::Method;
use vernic_wire::smp::{
    DATA_LEN, GuidInfo, LinearForwardingTable, MadStatus, MulticastForwardingTable,
    NodeDescription, NodeInfo, PkeyTable, SlToVlTable, SmAttribute, SwitchInfo, VlArbitrationTable,
};
use vernic_wire::{Guid, Lid, Pkey, PortNum, Qpn, VirtualLane};

use super::{Asked, smp};
use crate::attributes::Forwarding;
use crate::management::{DropReason, Ingress, ManagedNode, Route, data};

/// Bytes that no table has before it is written.
const PATTERN: [u8; DATA_LEN] = {
    let mut bytes = [0; DATA_LEN];
    let mut at = 0;
    while at < DATA_LEN {
        bytes[at] = at as u8 % 5;
        at += 1;
    }
    bytes
};

#[test]
fn node_info_tells_the_port_that_the_request_came_in_by() {
    let mut switch = Asked::switch(8, 5);
    switch.node.ports[0].as_mut().unwrap().tables.pkeys.truncate(5);
    let info = NodeInfo::parse(&switch.get(SmAttribute::NODE_INFO, 0)).unwrap();
    assert_eq!((info.node_type, info.ports), (NodeInfo::SWITCH, 8));
    assert_eq!((info.base_version, info.class_version), (1, 1));
    assert_eq!((info.node_guid, info.port_guid), (Guid(0x10), Guid(0x10)));
    assert_eq!((info.system_guid, info.local_port), (Guid(0x110), PortNum(5)));
    assert_eq!((info.partition_cap, info.vendor_id), (5, 0x1234));
    assert_eq!((info.device_id, info.revision), (0x5678, 9));
    let info = NodeInfo::parse(&Asked::adapter(2, 2).get(SmAttribute::NODE_INFO, 0)).unwrap();
    assert_eq!((info.node_type, info.ports), (NodeInfo::ADAPTER, 2));
    assert_eq!((info.node_guid, info.port_guid), (Guid(0x20), Guid(0x22)));
    assert_eq!(info.local_port, PortNum(2));
}

#[test]
fn the_description_is_told_and_cannot_be_written() {
    let mut asked = Asked::adapter(1, 1);
    let told = NodeDescription::parse(&asked.get(SmAttribute::NODE_DESCRIPTION, 0)).unwrap();
    assert_eq!(told.text(), "node 0x20");
    let (status, _) = asked.ask(Method::SET, SmAttribute::NODE_DESCRIPTION, 0, PATTERN);
    assert_eq!(status, MadStatus::ATTRIBUTE_NOT_SUPPORTED);
}

#[test]
fn switch_info_is_written_and_a_written_one_clears_the_change() {
    let mut asked = Asked::switch(8, 1);
    asked.node.forwarding.as_mut().unwrap().port_changed = true;
    let before = SwitchInfo::parse(&asked.get(SmAttribute::SWITCH_INFO, 0)).unwrap();
    assert_eq!((before.linear_cap, before.random_cap, before.multicast_cap), (0xC000, 0, 1024));
    assert!(before.port_changed && before.enforces_inbound && !before.enhanced_port_0);
    assert_eq!((before.enforcement_cap, before.multicast_top), (64, 0));
    let mut written = SwitchInfo {
        linear_top: Lid(48),
        life_time: 17,
        default_multicast_primary: 3,
        default_multicast_other: 0,
        port_changed: false,
        linear_cap: 7,
        ..before
    };
    let told = asked.set(SmAttribute::SWITCH_INFO, 0, data(|buf| written.emit(buf)));
    let told = SwitchInfo::parse(&told).unwrap();
    assert_eq!(told, SwitchInfo { port_changed: true, linear_cap: 0xC000, ..written });
    written.port_changed = true;
    let told = asked.set(SmAttribute::SWITCH_INFO, 0, data(|buf| written.emit(buf)));
    assert!(!SwitchInfo::parse(&told).unwrap().port_changed);
}

#[test]
fn switch_info_out_of_range_is_refused_as_a_whole() {
    let mut asked = Asked::switch(8, 1);
    let before = SwitchInfo::parse(&asked.get(SmAttribute::SWITCH_INFO, 0)).unwrap();
    let bad = [
        SwitchInfo { linear_top: Lid(0xC000), life_time: 3, ..before },
        SwitchInfo { default_multicast_primary: 9, life_time: 3, ..before },
        SwitchInfo { default_multicast_other: 254, life_time: 3, ..before },
    ];
    for info in bad {
        let bytes = data(|buf| info.emit(buf));
        let (status, told) = asked.ask(Method::SET, SmAttribute::SWITCH_INFO, 0, bytes);
        assert_eq!(status, MadStatus::INVALID_FIELD);
        assert_eq!(SwitchInfo::parse(&told).unwrap(), before);
    }
}

#[test]
fn guid_info_has_the_guid_of_the_port_which_cannot_be_written() {
    let mut asked = Asked::adapter(2, 2);
    let mut written = GuidInfo { guids: [Guid(0); 8] };
    written.guids[0] = Guid(99);
    let told = asked.set(SmAttribute::GUID_INFO, 0, data(|buf| written.emit(buf)));
    assert_eq!(GuidInfo::parse(&told).unwrap().guids[0], Guid(0x22));
    written.guids[1] = Guid(5);
    let bytes = data(|buf| written.emit(buf));
    let (status, _) = asked.ask(Method::SET, SmAttribute::GUID_INFO, 0, bytes);
    assert_eq!(status, MadStatus::INVALID_FIELD);
    let told = GuidInfo::parse(&Asked::switch(4, 3).get(SmAttribute::GUID_INFO, 0)).unwrap();
    assert_eq!(told.guids[..2], [Guid(0x10), Guid(0)]);
}

#[test]
fn partition_keys_are_written_in_blocks_of_the_ingress_or_of_the_named_port() {
    let mut asked = Asked::adapter(2, 2);
    assert_eq!(asked.set(SmAttribute::PKEY_TABLE, 1, PATTERN), PATTERN);
    let keys = &asked.node.ports[2].as_ref().unwrap().tables.pkeys;
    assert_eq!((keys[0], keys[33]), (Pkey::DEFAULT, Pkey(0x0203)));
    assert_eq!(asked.node.ports[1].as_ref().unwrap().tables.pkeys[33], Pkey(0));
    let mut asked = Asked::switch(4, 1);
    assert_eq!(asked.set(SmAttribute::PKEY_TABLE, 3 << 16, PATTERN), PATTERN);
    let told = PkeyTable::parse(&asked.get(SmAttribute::PKEY_TABLE, 0)).unwrap();
    assert_eq!(told.keys[..2], [Pkey::DEFAULT, Pkey(0)]);
    assert_eq!(asked.node.ports[3].as_ref().unwrap().tables.pkeys[0], Pkey(0x0001));
}

#[test]
fn a_table_shorter_than_a_block_keeps_its_length() {
    let mut asked = Asked::adapter(1, 1);
    asked.node.ports[1].as_mut().unwrap().tables.pkeys.truncate(3);
    let (status, told) = asked.ask(Method::SET, SmAttribute::PKEY_TABLE, 0, PATTERN);
    assert_eq!(status, MadStatus::OK);
    assert_eq!(told[..6], PATTERN[..6]);
    assert_eq!(told[6..], [0; DATA_LEN - 6]);
    assert_eq!(asked.node.ports[1].as_ref().unwrap().tables.pkeys.len(), 3);
}

#[test]
fn lanes_of_service_levels_are_written_by_input_and_output_port() {
    let mut row = [0; DATA_LEN];
    row[..8].copy_from_slice(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]);
    let mut asked = Asked::switch(4, 1);
    assert_eq!(asked.set(SmAttribute::SL_TO_VL, 2 << 8 | 3, row), row);
    let lanes = &asked.node.ports[3].as_ref().unwrap().tables.lanes;
    assert_eq!((lanes[2][15], lanes[1][15]), (VirtualLane::new(15), VirtualLane::new(0)));
    let mut asked = Asked::adapter(1, 1);
    let told = SlToVlTable::parse(&asked.set(SmAttribute::SL_TO_VL, 0x0101, row)).unwrap();
    assert_eq!(told.lanes[9].value(), 9);
}

#[test]
fn arbitration_is_written_in_halves_of_low_and_high_priority() {
    let mut asked = Asked::switch(4, 1);
    let (low, high) = (1 << 16 | 2, 4 << 16 | 2);
    // Tables of 8 and of 40 entries.
    let told = asked.set(SmAttribute::VL_ARBITRATION, low, PATTERN);
    assert_eq!((&told[..16], &told[16..18]), (&PATTERN[..16], &[0, 0][..]));
    let told = asked.set(SmAttribute::VL_ARBITRATION, high, PATTERN);
    assert_eq!((&told[..16], &told[16..18]), (&PATTERN[..16], &[0, 0][..]));
    let tables = &asked.node.ports[2].as_ref().unwrap().tables;
    assert_eq!((tables.low.len(), tables.high.len()), (8, 40));
    assert_eq!((tables.low[1].lane.value(), tables.low[1].weight), (2, 3));
    assert_eq!((tables.high[33].lane.value(), tables.high[33].weight), (2, 3));
    assert_eq!(tables.high[1].weight, 4);
    let mut asked = Asked::adapter(1, 1);
    asked.set(SmAttribute::VL_ARBITRATION, 1 << 16 | 1, PATTERN);
    let told = asked.get(SmAttribute::VL_ARBITRATION, 1 << 16);
    assert_eq!(VlArbitrationTable::parse(&told).unwrap().entries[1], (2, 3));
}

#[test]
fn the_lane_of_subnet_management_does_not_take_part_in_arbitration() {
    let mut asked = Asked::switch(4, 1);
    let before = asked.get(SmAttribute::VL_ARBITRATION, 1 << 16 | 2);
    let mut bad = PATTERN;
    bad[..2].copy_from_slice(&[15, 1]);
    let (status, told) = asked.ask(Method::SET, SmAttribute::VL_ARBITRATION, 1 << 16 | 2, bad);
    assert_eq!((status, told), (MadStatus::INVALID_FIELD, before));
    bad[1] = 0;
    asked.set(SmAttribute::VL_ARBITRATION, 1 << 16 | 2, bad);
}

#[test]
fn linear_tables_are_written_in_blocks_of_64() {
    let mut asked = Asked::switch(4, 1);
    let last = (Forwarding::LINEAR_LIDS / 64 - 1) as u32;
    assert_eq!(asked.set(SmAttribute::LINEAR_FORWARDING, last, PATTERN), PATTERN);
    let table = &asked.node.forwarding.as_ref().unwrap().linear;
    assert_eq!((table[0xBFFF], table[0xBFBF]), (63 % 5, 255));
    let mut bad = PATTERN;
    bad[63] = 5;
    let (status, told) = asked.ask(Method::SET, SmAttribute::LINEAR_FORWARDING, 0, bad);
    let told = LinearForwardingTable::parse(&told).unwrap();
    assert_eq!((status, told.ports), (MadStatus::INVALID_FIELD, [255; 64]));
    let wide = asked.node.forwarding_mut().unwrap();
    wide.linear.truncate(70);
    let told = asked.get(SmAttribute::LINEAR_FORWARDING, 1);
    assert_eq!(told, [255; 64]);
}

#[test]
fn multicast_tables_are_written_in_blocks_of_32_groups_and_16_ports() {
    let mut asked = Asked::switch(36, 1);
    let ones = [0xFF; DATA_LEN];
    let modifier = |position: u32, block| position << 28 | block;
    asked.set(SmAttribute::MULTICAST_FORWARDING, modifier(1, 31), ones);
    let group = |asked: &Asked, at: usize| asked.node.forwarding.as_ref().unwrap().multicast[at];
    assert_eq!(group(&asked, 1023)[..3], [0, 0xFFFF, 0]);
    assert_eq!(group(&asked, 991), [0; 16]);
    // Ports 32 to 36 exist.
    let told = asked.set(SmAttribute::MULTICAST_FORWARDING, modifier(2, 0), ones);
    assert_eq!(MulticastForwardingTable::parse(&told).unwrap().ports, [0x1F; 32]);
    assert_eq!(group(&asked, 31)[..3], [0, 0, 0x1F]);
}

#[test]
fn modifiers_out_of_range_are_refused() {
    use SmAttribute as A;
    let at_switch = [
        (A::GUID_INFO, 1),
        (A::PORT_INFO, 5),
        (A::PORT_INFO, 0x100),
        (A::PKEY_TABLE, 2),
        (A::PKEY_TABLE, 5 << 16),
        (A::PKEY_TABLE, 0x0100_0000),
        (A::SL_TO_VL, 5 << 8 | 1),
        (A::SL_TO_VL, 1 << 8 | 5),
        (A::SL_TO_VL, 1 << 16),
        (A::VL_ARBITRATION, 1),
        (A::VL_ARBITRATION, 5 << 16 | 1),
        (A::VL_ARBITRATION, 1 << 16 | 5),
        // The table of low priority has 8 entries.
        (A::VL_ARBITRATION, 2 << 16 | 1),
        (A::LINEAR_FORWARDING, 768),
        (A::LINEAR_FORWARDING, u32::MAX),
        (A::MULTICAST_FORWARDING, 32),
        (A::MULTICAST_FORWARDING, 1 << 28),
        (A::MULTICAST_FORWARDING, 1 << 27),
    ];
    let at_adapter = [
        (A::GUID_INFO, 1),
        (A::PORT_INFO, 3),
        (A::PKEY_TABLE, 2),
        (A::VL_ARBITRATION, 0),
        (A::VL_ARBITRATION, 2 << 16),
    ];
    let mut switch = Asked::switch(4, 1);
    let mut adapter = Asked::adapter(2, 1);
    let cases = at_switch.iter().map(|case| (true, case));
    for (is_switch, &(attribute, modifier)) in cases.chain(at_adapter.iter().map(|c| (false, c))) {
        let asked = if is_switch { &mut switch } else { &mut adapter };
        for method in [Method::GET, Method::SET] {
            let (status, told) = asked.ask(method, attribute, modifier, PATTERN);
            assert_eq!(status, MadStatus::INVALID_FIELD, "{attribute} {modifier:#x}");
            assert_eq!(told, PATTERN);
        }
    }
}

#[test]
fn what_an_adapter_lacks_is_not_supported_there() {
    let mut adapter = Asked::adapter(1, 1);
    let of_switches = [
        SmAttribute::SWITCH_INFO,
        SmAttribute::LINEAR_FORWARDING,
        SmAttribute::MULTICAST_FORWARDING,
    ];
    let of_nobody = [SmAttribute::NOTICE, SmAttribute::SM_INFO, SmAttribute(0x1A), SmAttribute(0)];
    for attribute in of_switches.into_iter().chain(of_nobody) {
        for method in [Method::GET, Method::SET] {
            let (status, _) = adapter.ask(method, attribute, 0, PATTERN);
            assert_eq!(status, MadStatus::ATTRIBUTE_NOT_SUPPORTED, "{attribute}");
        }
    }
}

#[test]
fn other_versions_and_methods_are_answered_with_their_status() {
    let mut asked = Asked::switch(4, 1);
    let get = || {
        let class = vernic_wire::mad::MgmtClass::SUBNET_LID_ROUTED;
        smp(class, Method::GET, SmAttribute::NODE_INFO, 0)
    };
    let mut smp = get();
    smp.header.class_version = 2;
    assert_eq!(asked.send(&mut smp), Route::Lid(super::ASKER));
    assert_eq!(smp.status(), MadStatus::BAD_VERSION);
    let mut smp = get();
    smp.header.base_version = 2;
    asked.send(&mut smp);
    assert_eq!(smp.status(), MadStatus::BAD_VERSION);
    let (status, _) = asked.ask(Method(0x14), SmAttribute::NODE_INFO, 0, PATTERN);
    assert_eq!(status, MadStatus::METHOD_NOT_SUPPORTED);
}

#[test]
fn datagrams_of_other_classes_queue_pairs_and_ports_are_dropped_and_counted() {
    let mut asked = Asked::switch(4, 1);
    let mut send = |class: u8, queue_pair, port| {
        let ingress = Ingress { port: PortNum(port), slid: Lid(3), queue_pair, local: false };
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, class, 1, 1]);
        asked.agent.handle(&mut asked.node, ingress, &mut mad, asked.now)
    };
    assert_eq!(send(0x07, Qpn::GSI, 1), Route::Drop(DropReason::Class));
    assert_eq!(send(0x01, Qpn::GSI, 1), Route::Drop(DropReason::QueuePair));
    assert_eq!(send(0x81, Qpn::GSI, 1), Route::Drop(DropReason::QueuePair));
    assert_eq!(send(0x04, Qpn::SMI, 1), Route::Drop(DropReason::QueuePair));
    assert_eq!(send(0x01, Qpn::SMI, 5), Route::Drop(DropReason::NoSuchPort));
    assert_eq!(asked.agent.dropped(DropReason::QueuePair), 3);
    assert_eq!(asked.agent.dropped(DropReason::Class), 1);
}

#[test]
fn answers_go_back_the_way_that_the_request_came() {
    let mut asked = Asked::adapter(1, 1);
    let mut route = |slid, local| {
        let ingress = Ingress { port: PortNum(1), slid, queue_pair: Qpn::SMI, local };
        let class = vernic_wire::mad::MgmtClass::SUBNET_LID_ROUTED;
        let mut mad = [0; 256];
        smp(class, Method::GET, SmAttribute::NODE_INFO, 0).emit(&mut mad);
        asked.agent.handle(&mut asked.node, ingress, &mut mad, asked.now)
    };
    assert_eq!(route(Lid(3), false), Route::Lid(Lid(3)));
    assert_eq!(route(Lid::PERMISSIVE, false), Route::Port(PortNum(1)));
    assert_eq!(route(Lid(0), false), Route::Port(PortNum(1)));
    assert_eq!(route(Lid(3), true), Route::Local);
}
