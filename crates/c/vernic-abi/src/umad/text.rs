//! Names of what datagrams have in their headers, and prints of them.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

use super::address::from_c;
use crate::boundary;
use crate::layout::umad::{ib_mad_addr, ib_user_mad};
use crate::pointer::{Bytes, In, Text};

/// Classes (IBTA 13.4.4).
const SUBNET: [u8; 2] = [0x01, 0x81];
const ADMINISTRATION: u8 = 0x03;

fn class(class: u8) -> &'static CStr {
    match class {
        0x01 => c"Subnet management, by LID",
        0x81 => c"Subnet management, directed route",
        0x03 => c"Subnet administration",
        0x04 => c"Performance management",
        0x05 => c"Baseboard management",
        0x06 => c"Device management",
        0x07 => c"Communication management",
        0x08 => c"SNMP tunnelling",
        0x10 => c"Device administration",
        0x11 => c"Boot management",
        0x12 => c"BIS",
        0x21 => c"Congestion control",
        0x09..=0x0F | 0x30..=0x4F => c"Vendor",
        _ => c"<unknown>",
    }
}

fn method(class: u8, method: u8) -> &'static CStr {
    let is_administration = class == ADMINISTRATION;
    match method {
        0x01 => c"Get",
        0x02 => c"Set",
        0x03 => c"Send",
        0x05 => c"Trap",
        0x06 => c"Report",
        0x07 => c"TrapRepress",
        0x81 => c"GetResp",
        0x86 => c"ReportResp",
        0x12 if is_administration => c"GetTable",
        0x13 if is_administration => c"GetTraceTable",
        0x14 if is_administration => c"GetMulti",
        0x15 if is_administration => c"Delete",
        0x92 if is_administration => c"GetTableResp",
        0x94 if is_administration => c"GetMultiResp",
        0x95 if is_administration => c"DeleteResp",
        _ => c"<unknown>",
    }
}

fn attribute(class: u8, attribute: u16) -> &'static CStr {
    let is_subnet = SUBNET.contains(&class);
    match attribute {
        0x01 => c"ClassPortInfo",
        0x02 => c"Notice",
        0x03 => c"InformInfo",
        0x10 if is_subnet => c"NodeDescription",
        0x11 if is_subnet => c"NodeInfo",
        0x12 if is_subnet => c"SwitchInfo",
        0x14 if is_subnet => c"GUIDInfo",
        0x15 if is_subnet => c"PortInfo",
        0x16 if is_subnet => c"P_KeyTable",
        0x17 if is_subnet => c"SLtoVLMappingTable",
        0x18 if is_subnet => c"VLArbitrationTable",
        0x19 if is_subnet => c"LinearForwardingTable",
        0x1B if is_subnet => c"MulticastForwardingTable",
        0x20 if is_subnet => c"SMInfo",
        0x11 if class == ADMINISTRATION => c"NodeRecord",
        0x12 if class == ADMINISTRATION => c"PortInfoRecord",
        0x20 if class == ADMINISTRATION => c"LinkRecord",
        0x31 if class == ADMINISTRATION => c"ServiceRecord",
        0x35 if class == ADMINISTRATION => c"PathRecord",
        0x38 if class == ADMINISTRATION => c"MCMemberRecord",
        0xF3 if class == ADMINISTRATION => c"InformInfoRecord",
        0x12 if class == 0x04 => c"PortCounters",
        0x1D if class == 0x04 => c"PortCountersExtended",
        _ => c"<unknown>",
    }
}

/// Statuses that all classes have (IBTA 13.4.7).
fn common_status(status: u16) -> &'static CStr {
    match status & 0x1F {
        0 => c"Success",
        status if status & 1 != 0 => c"Busy",
        status if status & 2 != 0 => c"Redirection required",
        status => match status >> 2 & 7 {
            1 => c"Bad version",
            2 => c"Method not supported",
            3 => c"Method and attribute not supported together",
            7 => c"Invalid field in attribute or modifier",
            _ => c"<unknown>",
        },
    }
}

/// Statuses of subnet administration (IBTA 15.2.4).
fn administration_status(status: u16) -> &'static CStr {
    match status >> 8 {
        0 => c"Success",
        1 => c"No resources",
        2 => c"Request invalid",
        3 => c"No records",
        4 => c"Too many records",
        5 => c"Invalid GID",
        6 => c"Insufficient components",
        7 => c"Request denied",
        _ => c"<unknown>",
    }
}

/// `umad_class_str`.
pub(crate) extern "C" fn umad_class_str(number: u8) -> Text {
    Text::of(class(number))
}

/// `umad_method_str`.
pub(crate) extern "C" fn umad_method_str(class: u8, number: u8) -> Text {
    Text::of(method(class, number))
}

/// `umad_attribute_str`: the attribute's number is big-endian.
pub(crate) extern "C" fn umad_attribute_str(class: u8, number: u16) -> Text {
    Text::of(attribute(class, u16::from_be(number)))
}

/// `umad_common_mad_status_str`: the status is big-endian.
pub(crate) extern "C" fn umad_common_mad_status_str(status: u16) -> Text {
    Text::of(common_status(u16::from_be(status)))
}

/// `umad_sa_mad_status_str`: the status is big-endian.
pub(crate) extern "C" fn umad_sa_mad_status_str(status: u16) -> Text {
    Text::of(administration_status(u16::from_be(status)))
}

/// What `umad_debug` was told. This library's own lines are asked for by `VERNIC_LOG`.
static LEVEL: AtomicI32 = AtomicI32::new(0);

/// `umad_debug`: sets a level, unless it is negative; the level.
pub(crate) extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

/// `umad_addr_dump`: an address, to standard error.
pub(crate) extern "C" fn umad_addr_dump(addr: In<ib_mad_addr>) {
    boundary::nothing("umad_addr_dump", || {
        print_address(&addr.require("the address")?);
        Ok(())
    });
}

/// `umad_dump`: header and datagram, to standard error.
pub(crate) extern "C" fn umad_dump(umad: In<ib_user_mad>) {
    boundary::nothing("umad_dump", || {
        let header = umad.require("the datagram")?;
        let ib_user_mad { agent_id, status, timeout_ms, retries, length, addr } = header;
        eprintln!(
            "agent {agent_id} status {status} timeout {timeout_ms} ms retries {retries} \
             length {length}"
        );
        print_address(&addr);
        let mad = Bytes::told(umad.raw().wrapping_add(1).cast());
        for (line, bytes) in mad.slice(256).chunks(16).enumerate() {
            let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{:3}: {}", 16 * line, bytes.join(" "));
        }
        Ok(())
    });
}

fn print_address(addr: &ib_mad_addr) {
    let address = from_c(addr);
    eprintln!(
        "qpn {} qkey {:#x} lid {} sl {} path bits {} P_Key index {}",
        address.qpn.value(),
        address.qkey.0,
        address.lid.0,
        address.service_level.value(),
        address.path_bits,
        address.pkey_index
    );
    if let Some(grh) = address.grh {
        eprintln!(
            "gid {} index {} flow label {:#x} hop limit {} traffic class {}",
            grh.gid, grh.gid_index, grh.flow_label, grh.hop_limit, grh.traffic_class
        );
    }
}
