//! Any bytes as what an InfiniBand link carries, and as management datagrams of subnet
//! administration: nothing panics, and what a parser accepts is emitted as it was.
//!
//! Random bytes hardly ever have a right CRC, so that packets are read once more with the CRC made
//! right, and again with the length made right as well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::sa::{
    InformInfo, InformInfoRecord, McMemberRecord, NodeRecord, PathRecord, PortInfoRecord, SaHeader,
    SaMad, ServiceRecord,
};
use vernic_wire::{
    Erf, FlowControl, LinkError, LinkLimits, LinkPacket, Mtu, Packet, Rmpp, VirtualLane,
    link_packet, vcrc,
};

macro_rules! round_trip {
    ($bytes:ident: $($format:ty),*) => {
        $(
            if let Ok(value) = <$format>::parse($bytes) {
                let mut out = [0; <$format>::LEN];
                value.emit(&mut out);
                assert_eq!(out, $bytes[..<$format>::LEN]);
                assert!(!value.to_string().is_empty());
            } else {
                assert!($bytes.len() < <$format>::LEN);
            }
        )*
    };
}

fn read_packet(bytes: &[u8]) {
    let packet = match LinkPacket::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(!packet.to_string().is_empty());
    assert_eq!(packet.bytes(), bytes);
    assert_eq!(usize::from(packet.credit_blocks()), bytes.len().div_ceil(64));
    assert_eq!(packet.transport().is_none(), packet.is_raw());
    let _ = packet.transport().map(Packet::parse);
    let _ = packet.check_limits(LinkLimits { mtu: Mtu::B2048, data_lanes: 8 });
    // Finishing changes the lengths of the headers and the CRCs, and nothing in a right packet.
    let mut finished = bytes.to_vec();
    link_packet::finish(&mut finished).unwrap();
    let again = LinkPacket::parse(&finished).unwrap();
    assert!(again.has_right_icrc());
    let same_grh = again.grh() == packet.grh();
    assert_eq!(finished == bytes, same_grh && packet.has_right_icrc());
    for lane in 0..15 {
        let mut other = bytes.to_vec();
        link_packet::set_virtual_lane(&mut other, VirtualLane::new(lane));
        let other = LinkPacket::parse(&other).unwrap();
        assert_eq!(other.virtual_lane().value(), lane);
        assert_eq!(other.has_right_icrc(), packet.has_right_icrc());
    }
}

fn read_flow_control(bytes: &[u8]) {
    match FlowControl::parse(bytes) {
        Ok(packet) => {
            let mut out = [0; FlowControl::LEN];
            packet.emit(&mut out);
            assert_eq!(out, bytes);
            assert!(!packet.to_string().is_empty());
        }
        Err(error) => assert_eq!(error == LinkError::Crc, bytes.len() == FlowControl::LEN),
    }
}

fuzz_target!(|bytes: &[u8]| {
    round_trip!(bytes: Erf, Rmpp, SaHeader, SaMad, PathRecord, McMemberRecord, ServiceRecord);
    round_trip!(bytes: InformInfo, InformInfoRecord, NodeRecord, PortInfoRecord);
    read_packet(bytes);
    read_flow_control(bytes);
    if bytes.len() < 6 {
        return;
    }
    let mut right = bytes.to_vec();
    vcrc::stamp(&mut right);
    read_packet(&right);
    right[0] &= 0xF0;
    let words = ((right.len() - vcrc::LEN) / 4) as u16 & 0x7FF;
    let length = u16::from_be_bytes([right[4], right[5]]) & 0xF800 | words;
    right[4..6].copy_from_slice(&length.to_be_bytes());
    vcrc::stamp(&mut right);
    read_packet(&right);
    let mut flow_control = [0; FlowControl::LEN];
    flow_control.copy_from_slice(&bytes[..FlowControl::LEN]);
    vcrc::stamp(&mut flow_control);
    read_flow_control(&flow_control);
    assert!(FlowControl::parse(&flow_control).is_ok());
    let _ = link_packet::finish(&mut right);
});
