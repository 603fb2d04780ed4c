//! The agent of performance management: what ports have counted (IBTA chapter 16).
//!
//! Port 255 is all external ports: read, the sums; written, each. A write sets the selected
//! counters to the values that it has, which are zeros in practice.

use vernic_wire::PortNum;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method};
use vernic_wire::pma::{
    CLASS_VERSION, ClassPortInfo, DATA_AT, PmAttribute, PortCounters, PortCountersExtended,
};
use vernic_wire::smp::MadStatus;

use super::{Ingress, ManagedNode, Route, answer_route};
use crate::attributes::PortCounters as Counters;

/// The port that stands for all external ones.
const ALL_PORTS: PortNum = PortNum(255);

/// Turns a request into its answer.
pub(super) fn handle(
    node: &mut dyn ManagedNode,
    ingress: Ingress,
    mad: &mut [u8; MAD_LEN],
) -> Route {
    let (head, body) = mad.split_at_mut(DATA_AT);
    let Ok(mut header) = MadHeader::parse(head) else { return Route::Done };
    if header.method.is_response() {
        return Route::Local;
    }
    let versions = (header.base_version, header.class_version);
    let status = match header.method {
        _ if versions != (MadHeader::BASE_VERSION, CLASS_VERSION) => MadStatus::BAD_VERSION,
        Method::GET => read(node, PmAttribute(header.attribute_id), body),
        Method::SET => write(node, PmAttribute(header.attribute_id), body),
        _ => MadStatus::METHOD_NOT_SUPPORTED,
    };
    header.method = Method::GET_RESP;
    header.status = status.0;
    header.emit(head);
    answer_route(ingress)
}

fn read(node: &dyn ManagedNode, attribute: PmAttribute, body: &mut [u8]) -> MadStatus {
    let port = PortNum(body[1]);
    match attribute {
        PmAttribute::CLASS_PORT_INFO => {
            body.fill(0);
            class_port_info().emit(body);
        }
        PmAttribute::PORT_COUNTERS => {
            let Some(counters) = counters(node, port) else { return MadStatus::INVALID_FIELD };
            body.fill(0);
            short(port, &counters).emit(body);
        }
        PmAttribute::PORT_COUNTERS_EXTENDED => {
            let Some(counters) = counters(node, port) else { return MadStatus::INVALID_FIELD };
            body.fill(0);
            extended(port, &counters).emit(body);
        }
        _ => return MadStatus::ATTRIBUTE_NOT_SUPPORTED,
    }
    MadStatus::OK
}

fn write(node: &mut dyn ManagedNode, attribute: PmAttribute, body: &mut [u8]) -> MadStatus {
    let port = PortNum(body[1]);
    let written = match attribute {
        PmAttribute::PORT_COUNTERS => PortCounters::parse(body).map(|w| of_short(&w)),
        PmAttribute::PORT_COUNTERS_EXTENDED => {
            PortCountersExtended::parse(body).map(|w| of_extended(&w))
        }
        _ => return MadStatus::ATTRIBUTE_NOT_SUPPORTED,
    };
    let Ok(written) = written else { return MadStatus::INVALID_FIELD };
    let ports = match port {
        ALL_PORTS => 1..=node.attributes().ports,
        PortNum(port) => port..=port,
    };
    for number in ports {
        let Some(port) = node.port_mut(PortNum(number)) else { return MadStatus::INVALID_FIELD };
        for (counter, value) in all(&mut port.counters).into_iter().zip(written) {
            *counter = value.unwrap_or(*counter);
        }
    }
    read(node, attribute, body)
}

fn class_port_info() -> ClassPortInfo {
    let mut info = ClassPortInfo::from_bytes(&[0; ClassPortInfo::LEN]);
    info.base_version = MadHeader::BASE_VERSION;
    info.class_version = CLASS_VERSION;
    info.capabilities = ClassPortInfo::PERFORMANCE_ALL_PORTS
        | ClassPortInfo::PERFORMANCE_EXTENDED_WIDTH
        | ClassPortInfo::PERFORMANCE_XMIT_WAIT;
    info.capabilities2 = ClassPortInfo::PERFORMANCE2_EXTENDED_ERRORS;
    info.response_time = RESPONSE_TIME;
    info
}

/// Longest time to an answer: 4.096 us times 2 to the power of this, about 1 s, as adapters say.
const RESPONSE_TIME: u8 = 18;

/// Counters of a port, or the sums of all.
fn counters(node: &dyn ManagedNode, port: PortNum) -> Option<Counters> {
    if port != ALL_PORTS {
        return Some(node.port(port)?.counters);
    }
    let mut sums = Counters::default();
    for number in 1..=node.attributes().ports {
        let mut counters = node.port(PortNum(number))?.counters;
        for (sum, counter) in all(&mut sums).into_iter().zip(all(&mut counters)) {
            *sum = sum.saturating_add(*counter);
        }
    }
    Some(sums)
}

/// How many counters a port has.
const COUNTERS: usize = 21;
/// Counters of packets, which come first in [`all`]; counters of errors follow.
const PACKET_COUNTERS: usize = 8;
/// Counters of errors that PortCounters selects by bits 0 to 11.
const SHORT_ERRORS: usize = 12;

/// All counters, in the order of PortCountersExtended.
fn all(c: &mut Counters) -> [&mut u64; COUNTERS] {
    [
        &mut c.xmit_data,
        &mut c.rcv_data,
        &mut c.xmit_packets,
        &mut c.rcv_packets,
        &mut c.unicast_xmit,
        &mut c.unicast_rcv,
        &mut c.multicast_xmit,
        &mut c.multicast_rcv,
        &mut c.symbol_errors,
        &mut c.link_recovers,
        &mut c.link_downed,
        &mut c.rcv_errors,
        &mut c.rcv_remote_physical,
        &mut c.rcv_switch_relay,
        &mut c.xmit_discards,
        &mut c.xmit_constraint,
        &mut c.rcv_constraint,
        &mut c.local_link_integrity,
        &mut c.buffer_overruns,
        &mut c.management_dropped,
        &mut c.xmit_wait,
    ]
}

/// Whether a bit of a field that selects counters is set.
const fn selects(select: u32, bit: usize) -> bool {
    select >> bit & 1 != 0
}

/// The values that PortCounters writes, in the order of [`all`].
fn of_short(w: &PortCounters) -> [Option<u64>; COUNTERS] {
    let mut values = [None; COUNTERS];
    let select = u32::from(w.select);
    let errors = [
        u64::from(w.symbol_errors),
        u64::from(w.link_recovers),
        u64::from(w.link_downed),
        u64::from(w.rcv_errors),
        u64::from(w.rcv_remote_physical),
        u64::from(w.rcv_switch_relay),
        u64::from(w.xmit_discards),
        u64::from(w.xmit_constraint),
        u64::from(w.rcv_constraint),
        u64::from(w.local_link_integrity),
        u64::from(w.buffer_overruns),
        u64::from(w.vl15_dropped),
    ];
    for (bit, value) in errors.into_iter().enumerate() {
        values[PACKET_COUNTERS + bit] = selects(select, bit).then_some(value);
    }
    let packets = [w.xmit_data, w.rcv_data, w.xmit_packets, w.rcv_packets];
    for (at, value) in packets.into_iter().enumerate() {
        values[at] = selects(select, SHORT_ERRORS + at).then_some(value.into());
    }
    values[COUNTERS - 1] = selects(u32::from(w.select2), 0).then_some(w.xmit_wait.into());
    values
}

/// The values that PortCountersExtended writes, in the order of [`all`].
fn of_extended(w: &PortCountersExtended) -> [Option<u64>; COUNTERS] {
    let values = [
        w.xmit_data,
        w.rcv_data,
        w.xmit_packets,
        w.rcv_packets,
        w.unicast_xmit,
        w.unicast_rcv,
        w.multicast_xmit,
        w.multicast_rcv,
        w.symbol_errors,
        w.link_recovers,
        w.link_downed,
        w.rcv_errors,
        w.rcv_remote_physical,
        w.rcv_switch_relay,
        w.xmit_discards,
        w.xmit_constraint,
        w.rcv_constraint,
        w.local_link_integrity,
        w.buffer_overruns,
        w.vl15_dropped,
        w.xmit_wait,
    ];
    core::array::from_fn(|at| {
        let is_selected = match at.checked_sub(PACKET_COUNTERS) {
            None => selects(u32::from(w.select), at),
            Some(bit) => selects(w.select2, bit),
        };
        is_selected.then_some(values[at])
    })
}

/// PortCounters: each counter stops at the largest value of its field.
fn short(port: PortNum, c: &Counters) -> PortCounters {
    let short8 = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
    let short16 = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
    let short32 = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    PortCounters {
        port,
        symbol_errors: short16(c.symbol_errors),
        link_recovers: short8(c.link_recovers),
        link_downed: short8(c.link_downed),
        rcv_errors: short16(c.rcv_errors),
        rcv_remote_physical: short16(c.rcv_remote_physical),
        rcv_switch_relay: short16(c.rcv_switch_relay),
        xmit_discards: short16(c.xmit_discards),
        xmit_constraint: short8(c.xmit_constraint),
        rcv_constraint: short8(c.rcv_constraint),
        // Four bits each.
        local_link_integrity: short8(c.local_link_integrity).min(15),
        buffer_overruns: short8(c.buffer_overruns).min(15),
        vl15_dropped: short16(c.management_dropped),
        xmit_data: short32(c.xmit_data),
        rcv_data: short32(c.rcv_data),
        xmit_packets: short32(c.xmit_packets),
        rcv_packets: short32(c.rcv_packets),
        xmit_wait: short32(c.xmit_wait),
        ..PortCounters::default()
    }
}

fn extended(port: PortNum, c: &Counters) -> PortCountersExtended {
    PortCountersExtended {
        port,
        xmit_data: c.xmit_data,
        rcv_data: c.rcv_data,
        xmit_packets: c.xmit_packets,
        rcv_packets: c.rcv_packets,
        unicast_xmit: c.unicast_xmit,
        unicast_rcv: c.unicast_rcv,
        multicast_xmit: c.multicast_xmit,
        multicast_rcv: c.multicast_rcv,
        symbol_errors: c.symbol_errors,
        link_recovers: c.link_recovers,
        link_downed: c.link_downed,
        rcv_errors: c.rcv_errors,
        rcv_remote_physical: c.rcv_remote_physical,
        rcv_switch_relay: c.rcv_switch_relay,
        xmit_discards: c.xmit_discards,
        xmit_constraint: c.xmit_constraint,
        rcv_constraint: c.rcv_constraint,
        local_link_integrity: c.local_link_integrity,
        buffer_overruns: c.buffer_overruns,
        vl15_dropped: c.management_dropped,
        xmit_wait: c.xmit_wait,
        ..PortCountersExtended::default()
    }
}
