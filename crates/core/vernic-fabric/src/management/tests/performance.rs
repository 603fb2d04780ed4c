use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::pma::{ClassPortInfo, DATA_AT, PmAttribute, PortCounters, PortCountersExtended};
use vernic_wire::smp::MadStatus;
use vernic_wire::{Lid, PortNum, Qpn};

use super::{ASKER, Asked};
use crate::attributes::PortCounters as Counters;
use crate::management::{Ingress, Route};

fn send(asked: &mut Asked, mad: &mut [u8; MAD_LEN]) -> Route {
    let ingress = Ingress { port: asked.port, slid: ASKER, queue_pair: Qpn::GSI, local: false };
    asked.agent.handle(&mut asked.node, ingress, mad, asked.now)
}

fn ask(
    asked: &mut Asked,
    method: Method,
    attribute: PmAttribute,
    emit: impl FnOnce(&mut [u8]),
) -> (MadStatus, [u8; MAD_LEN]) {
    let header = MadHeader {
        base_version: 1,
        mgmt_class: MgmtClass::PERFORMANCE,
        class_version: 1,
        method,
        transaction_id: 5,
        attribute_id: attribute.0,
        ..MadHeader::default()
    };
    let mut mad = [0; MAD_LEN];
    header.emit(&mut mad);
    emit(&mut mad[DATA_AT..]);
    assert_eq!(send(asked, &mut mad), Route::Lid(ASKER));
    let header = MadHeader::parse(&mad).unwrap();
    assert_eq!((header.method, header.transaction_id), (Method::GET_RESP, 5));
    (MadStatus(header.status), mad)
}

fn short(asked: &mut Asked, method: Method, counters: &PortCounters) -> PortCounters {
    let (status, mad) = ask(asked, method, PmAttribute::PORT_COUNTERS, |buf| counters.emit(buf));
    assert_eq!(status, MadStatus::OK);
    PortCounters::parse(&mad[DATA_AT..]).unwrap()
}

fn extended(
    asked: &mut Asked,
    method: Method,
    counters: &PortCountersExtended,
) -> PortCountersExtended {
    let attribute = PmAttribute::PORT_COUNTERS_EXTENDED;
    let (status, mad) = ask(asked, method, attribute, |buf| counters.emit(buf));
    assert_eq!(status, MadStatus::OK);
    PortCountersExtended::parse(&mad[DATA_AT..]).unwrap()
}

/// Counters with the values 1 to 21 in the order of PortCountersExtended, times a factor.
fn counting(factor: u64) -> Counters {
    Counters {
        xmit_data: factor,
        rcv_data: 2 * factor,
        xmit_packets: 3 * factor,
        rcv_packets: 4 * factor,
        unicast_xmit: 5 * factor,
        unicast_rcv: 6 * factor,
        multicast_xmit: 7 * factor,
        multicast_rcv: 8 * factor,
        symbol_errors: 9 * factor,
        link_recovers: 10 * factor,
        link_downed: 11 * factor,
        rcv_errors: 12 * factor,
        rcv_remote_physical: 13 * factor,
        rcv_switch_relay: 14 * factor,
        xmit_discards: 15 * factor,
        xmit_constraint: 16 * factor,
        rcv_constraint: 17 * factor,
        local_link_integrity: 18 * factor,
        buffer_overruns: 19 * factor,
        management_dropped: 20 * factor,
        xmit_wait: 21 * factor,
    }
}

fn switch(factor: u64) -> Asked {
    let mut asked = Asked::switch(3, 1);
    asked.node.ports[2].as_mut().unwrap().counters = counting(factor);
    asked
}

#[test]
fn the_agent_says_what_it_can_do() {
    let (status, mad) = ask(&mut switch(1), Method::GET, PmAttribute::CLASS_PORT_INFO, |_| ());
    assert_eq!(status, MadStatus::OK);
    let info = ClassPortInfo::parse(&mad[DATA_AT..]).unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 1));
    assert_eq!((info.capabilities, info.capabilities2), (0x1300, 2));
    assert_eq!((info.redirect_lid, info.redirect_pkey.0), (Lid(0), 0));
}

#[test]
fn short_counters_are_in_their_fields_and_stop_at_the_largest_value() {
    let of_port = PortCounters { port: PortNum(2), ..PortCounters::default() };
    let told = short(&mut switch(1), Method::GET, &of_port);
    let expected = PortCounters {
        symbol_errors: 9,
        link_recovers: 10,
        link_downed: 11,
        rcv_errors: 12,
        rcv_remote_physical: 13,
        rcv_switch_relay: 14,
        xmit_discards: 15,
        xmit_constraint: 16,
        rcv_constraint: 17,
        local_link_integrity: 15,
        buffer_overruns: 15,
        vl15_dropped: 20,
        xmit_data: 1,
        rcv_data: 2,
        xmit_packets: 3,
        rcv_packets: 4,
        xmit_wait: 21,
        ..of_port
    };
    assert_eq!(told, expected);
    let told = short(&mut switch(1 << 40), Method::GET, &of_port);
    let full = PortCounters {
        symbol_errors: u16::MAX,
        link_recovers: u8::MAX,
        link_downed: u8::MAX,
        rcv_errors: u16::MAX,
        rcv_remote_physical: u16::MAX,
        rcv_switch_relay: u16::MAX,
        xmit_discards: u16::MAX,
        xmit_constraint: u8::MAX,
        rcv_constraint: u8::MAX,
        vl15_dropped: u16::MAX,
        xmit_data: u32::MAX,
        rcv_data: u32::MAX,
        xmit_packets: u32::MAX,
        rcv_packets: u32::MAX,
        xmit_wait: u32::MAX,
        ..expected
    };
    assert_eq!(told, full);
}

#[test]
fn each_bit_of_the_selection_clears_one_counter() {
    let order: [fn(&mut Counters) -> &mut u64; 17] = [
        |c| &mut c.symbol_errors,
        |c| &mut c.link_recovers,
        |c| &mut c.link_downed,
        |c| &mut c.rcv_errors,
        |c| &mut c.rcv_remote_physical,
        |c| &mut c.rcv_switch_relay,
        |c| &mut c.xmit_discards,
        |c| &mut c.xmit_constraint,
        |c| &mut c.rcv_constraint,
        |c| &mut c.local_link_integrity,
        |c| &mut c.buffer_overruns,
        |c| &mut c.management_dropped,
        |c| &mut c.xmit_data,
        |c| &mut c.rcv_data,
        |c| &mut c.xmit_packets,
        |c| &mut c.rcv_packets,
        |c| &mut c.xmit_wait,
    ];
    for (bit, field) in order.into_iter().enumerate() {
        let mut asked = switch(1);
        let written = PortCounters {
            port: PortNum(2),
            select: 1_u16.checked_shl(bit as u32).unwrap_or(0),
            select2: u8::from(bit == 16),
            ..PortCounters::default()
        };
        short(&mut asked, Method::SET, &written);
        let mut expected = counting(1);
        *field(&mut expected) = 0;
        assert_eq!(asked.node.ports[2].as_ref().unwrap().counters, expected, "bit {bit}");
    }
}

#[test]
fn extended_counters_have_all_bits_and_are_selected_in_two_fields() {
    let mut asked = switch(1 << 40);
    let of_port = PortCountersExtended { port: PortNum(2), ..PortCountersExtended::default() };
    let told = extended(&mut asked, Method::GET, &of_port);
    let values = [told.xmit_data, told.multicast_rcv, told.symbol_errors, told.vl15_dropped];
    assert_eq!(values, [1, 8, 9, 20].map(|value: u64| value << 40));
    assert_eq!((told.xmit_wait, told.qp1_dropped), (21 << 40, 0));
    let written = PortCountersExtended { select: 0x80, select2: 0x1001, rcv_data: 5, ..of_port };
    let told = extended(&mut asked, Method::SET, &written);
    assert_eq!((told.multicast_rcv, told.symbol_errors, told.xmit_wait), (0, 0, 0));
    assert_eq!((told.rcv_data, told.multicast_xmit), (2 << 40, 7 << 40));
    assert_eq!(told.vl15_dropped, 20 << 40);
    let written = PortCountersExtended { select: 2, rcv_data: 5, ..of_port };
    assert_eq!(extended(&mut asked, Method::SET, &written).rcv_data, 5);
}

#[test]
fn port_255_is_all_external_ports() {
    let mut asked = switch(1);
    asked.node.ports[0].as_mut().unwrap().counters = counting(100);
    asked.node.ports[1].as_mut().unwrap().counters = counting(10);
    let of_all = PortCountersExtended { port: PortNum(255), ..PortCountersExtended::default() };
    let told = extended(&mut asked, Method::GET, &of_all);
    assert_eq!((told.xmit_data, told.xmit_wait), (11, 231));
    asked.node.ports[3].as_mut().unwrap().counters.xmit_data = u64::MAX;
    assert_eq!(extended(&mut asked, Method::GET, &of_all).xmit_data, u64::MAX);
    let written = PortCountersExtended { select: 0xFF, select2: 0x3FFF, ..of_all };
    extended(&mut asked, Method::SET, &written);
    for port in 1..=3 {
        assert_eq!(asked.node.ports[port].as_ref().unwrap().counters, Counters::default());
    }
    assert_eq!(asked.node.ports[0].as_ref().unwrap().counters, counting(100));
}

#[test]
fn ports_attributes_methods_and_versions_that_are_not_there_have_their_status() {
    let mut asked = switch(1);
    let port = |port| PortCounters { port: PortNum(port), ..PortCounters::default() };
    for method in [Method::GET, Method::SET] {
        for attribute in [PmAttribute::PORT_COUNTERS, PmAttribute::PORT_COUNTERS_EXTENDED] {
            let (status, _) = ask(&mut asked, method, attribute, |buf| port(4).emit(buf));
            assert_eq!(status, MadStatus::INVALID_FIELD);
        }
        let (status, _) = ask(&mut asked, method, PmAttribute(0x15), |_| ());
        assert_eq!(status, MadStatus::ATTRIBUTE_NOT_SUPPORTED);
    }
    let (status, _) = ask(&mut asked, Method::SET, PmAttribute::CLASS_PORT_INFO, |_| ());
    assert_eq!(status, MadStatus::ATTRIBUTE_NOT_SUPPORTED);
    let (status, _) = ask(&mut asked, Method::TRAP, PmAttribute::PORT_COUNTERS, |_| ());
    assert_eq!(status, MadStatus::METHOD_NOT_SUPPORTED);
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 4, 2, 1]);
    assert_eq!(send(&mut asked, &mut mad), Route::Lid(ASKER));
    assert_eq!(MadStatus(u16::from_be_bytes([mad[4], mad[5]])), MadStatus::BAD_VERSION);
}

#[test]
fn answers_of_other_agents_go_to_the_clients_of_the_node() {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 4, 1, 0x81]);
    assert_eq!(send(&mut switch(1), &mut mad), Route::Local);
}
