//! tshark as the judge of IP over InfiniBand: ARP, Neighbor Discovery and IP in datagrams of a
//! link, in a file of ERF records.
//!
//! Needs `tshark`, as `tshark.rs` does.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::ipoib::{
    Arp, ArpOperation, ConnectedModes, Encapsulation, HardwareAddress, NeighborFlags, NeighborKind,
    NeighborMessage, Scope, USUAL_QKEY, broadcast_group, group_of,
};
use vernic_wire::net::{EtherType, Ipv4, Ipv6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, checksum};
use vernic_wire::{
    Bth, Deth, Erf, ErfTimestamp, ErfType, Gid, Grh, Headers, Lrh, Opcode, Pkey, Psn, Qpn, icrc,
    link_packet, vcrc,
};

const OURS: HardwareAddress = HardwareAddress {
    modes: ConnectedModes::RC,
    qpn: Qpn::new(0x12_3456),
    gid: Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
};
const THEIRS: HardwareAddress = HardwareAddress {
    modes: ConnectedModes::empty(),
    qpn: Qpn::new(0x65_4321),
    gid: Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13, 14, 15, 16]),
};
const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const SRC: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 1, 2, 3, 4);
const DST: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 5, 6, 7, 8);

type Fields = Vec<(&'static str, String)>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A datagram to `dgid` with `payload` behind its encapsulation, as on a link.
fn datagram(ethertype: EtherType, dgid: Gid, payload: &[u8]) -> Vec<u8> {
    let (mut headers, multicast) = (
        Headers::new(Bth::new(Opcode::UD_SEND_ONLY, THEIRS.qpn, Psn::new(1))),
        dgid.is_multicast(),
    );
    headers.bth.pad = (payload.len() as u8).wrapping_neg() & 3;
    headers.deth = Some(Deth::new(USUAL_QKEY, OURS.qpn));
    if multicast {
        headers.bth.dest_qpn = Qpn::MULTICAST;
    }
    let lrh = Lrh {
        virtual_lane: 0,
        version: 0,
        service_level: 0,
        reserved2: 0,
        next_header: Lrh::NEXT_GRH,
        dlid: if multicast { 0xC001 } else { 2 },
        reserved5: 0,
        packet_length: 0,
        slid: 1,
    };
    let grh = Grh {
        version: 6,
        traffic_class: 0,
        flow_label: 0,
        payload_length: 0,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: 0,
        sgid: OURS.gid,
        dgid,
    };
    let mut bytes = vec![0; Lrh::LEN + Grh::LEN + headers.len() + Encapsulation::LEN];
    lrh.emit(&mut bytes);
    grh.emit(&mut bytes[Lrh::LEN..]);
    headers.emit(&mut bytes[Lrh::LEN + Grh::LEN..]);
    let at = bytes.len() - Encapsulation::LEN;
    Encapsulation::new(ethertype).emit(&mut bytes[at..]);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad) + icrc::LEN + vcrc::LEN, 0);
    link_packet::finish(&mut bytes).unwrap();
    bytes
}

fn arp(operation: ArpOperation) -> (Vec<u8>, Fields) {
    let target = if operation == ArpOperation::REPLY { THEIRS } else { HardwareAddress::default() };
    let packet = Arp { operation, sender: OURS, sender_ip: IPS[0], target, target_ip: IPS[1] };
    let mut bytes = [0; Arp::LEN];
    packet.emit(&mut bytes);
    let dgid = match operation {
        ArpOperation::REQUEST => broadcast_group(Pkey::DEFAULT, Scope::LINK_LOCAL),
        _ => THEIRS.gid,
    };
    let fields = vec![
        ("arp.hw.type", "32".to_owned()),
        ("arp.proto.type", "0x0800".to_owned()),
        ("arp.hw.size", "20".to_owned()),
        ("arp.proto.size", "4".to_owned()),
        ("arp.opcode", operation.0.to_string()),
        ("arp.src.hw", hex(&OURS.to_bytes())),
        ("arp.src.proto_ipv4", IPS[0].to_string()),
        ("arp.dst.hw", hex(&target.to_bytes())),
        ("arp.dst.proto_ipv4", IPS[1].to_string()),
        ("infiniband.deth.q_key", "2843".to_owned()),
        ("infiniband.grh.dgid", dgid.to_string()),
    ];
    (datagram(EtherType::ARP, dgid, &bytes), fields)
}

fn neighbor(kind: NeighborKind) -> (Vec<u8>, Fields) {
    let advertises = kind == NeighborKind::Advertisement;
    let solicited_node = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF07, 8);
    let (dst, target) = if advertises { (DST, SRC) } else { (solicited_node, DST) };
    let flags = match kind {
        NeighborKind::Advertisement => NeighborFlags::SOLICITED | NeighborFlags::OVERRIDE,
        NeighborKind::Solicitation => NeighborFlags::empty(),
    };
    let message = NeighborMessage { kind, flags, target, address: Some(OURS) };
    let ip = Ipv6 {
        traffic_class: 0,
        flow_label: 0,
        payload_length: message.len() as u16,
        next_header: PROTOCOL_ICMPV6,
        hop_limit: NeighborMessage::HOP_LIMIT,
        src: SRC,
        dst,
    };
    let mut bytes = vec![0; Ipv6::LEN + message.len()];
    ip.emit(&mut bytes);
    message.emit(SRC, dst, &mut bytes[Ipv6::LEN..]);
    let scope = Scope::LINK_LOCAL;
    let dgid = group_of(IpAddr::V6(dst), Pkey::DEFAULT, scope).unwrap_or(THEIRS.gid);
    let (kind, target_field) = match kind {
        NeighborKind::Solicitation => ("135", "icmpv6.nd.ns.target_address"),
        NeighborKind::Advertisement => ("136", "icmpv6.nd.na.target_address"),
    };
    let fields = vec![
        ("ipv6.src", SRC.to_string()),
        ("ipv6.dst", dst.to_string()),
        ("icmpv6.type", kind.to_owned()),
        ("icmpv6.checksum.status", "1".to_owned()),
        ("icmpv6.opt.length", "3".to_owned()),
        (target_field, target.to_string()),
        ("infiniband.grh.dgid", dgid.to_string()),
    ];
    (datagram(EtherType::IPV6, dgid, &bytes), fields)
}

fn ping() -> (Vec<u8>, Fields) {
    let mut echo = [8, 0, 0, 0, 0, 1, 0, 2, 9, 9, 9];
    let sum = checksum(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv4 {
        tos: 0,
        total_length: (Ipv4::LEN + echo.len()) as u16,
        ident: 7,
        flags_and_offset: 0,
        ttl: 64,
        protocol: PROTOCOL_ICMP,
        checksum: 0,
        src: IPS[0],
        dst: IPS[1],
    };
    ip.checksum = ip.computed_checksum();
    let mut bytes = vec![0; Ipv4::LEN];
    ip.emit(&mut bytes);
    bytes.extend_from_slice(&echo);
    let fields = vec![
        ("ip.src", IPS[0].to_string()),
        ("ip.dst", IPS[1].to_string()),
        ("icmp.type", "8".to_owned()),
        ("icmp.checksum.status", "1".to_owned()),
    ];
    (datagram(EtherType::IPV4, THEIRS.gid, &bytes), fields)
}

#[test]
fn datagrams_of_a_link_read_as_written() {
    let records = [
        arp(ArpOperation::REQUEST),
        arp(ArpOperation::REPLY),
        neighbor(NeighborKind::Solicitation),
        neighbor(NeighborKind::Advertisement),
        ping(),
    ];
    let mut file = Vec::new();
    for (packet, _) in &records {
        let header = Erf::new(ErfType::INFINIBAND, ErfTimestamp::default(), packet.len()).unwrap();
        let at = file.len();
        file.resize(at + usize::from(header.record_len), 0);
        header.emit_record(packet, &mut file[at..]);
    }
    let mut names = vec!["_ws.malformed"];
    names.extend(records.iter().flat_map(|(_, fields)| fields.iter().map(|(name, _)| *name)));
    names.sort_unstable();
    names.dedup();
    let options = ["-o", "infiniband.identify_payload:TRUE"];
    let Some(rows) = common::dissect_file("ipoib.erf", &file, &options, &names) else { return };
    assert_eq!(rows.len(), records.len());
    for (index, ((_, fields), row)) in records.iter().zip(&rows).enumerate() {
        let text = |name| &row[names.iter().position(|known| *known == name).unwrap()][..];
        assert_eq!(text("_ws.malformed"), "", "record {index}");
        for (name, value) in fields {
            let (read, value) = (text(name), &value[..]);
            let same = match (common::number(read), common::number(value)) {
                (Some(read), Some(value)) => read == value,
                _ => read == value,
            };
            assert!(same, "record {index}: {name} reads {read}, not {value}");
        }
    }
}
