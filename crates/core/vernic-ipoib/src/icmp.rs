//! What the host hears of its packets that do not arrive: ICMP of IPv4 (RFC 792, RFC 1191) and of
//! IPv6 (RFC 4443). The source is the address that the packet was for: one of our own would be
//! refused by the host as forged.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::net::{Ipv4, Ipv6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, checksum, transport_checksum};

use crate::ip::IpPacket;

/// Why a packet does not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Nobody has the address.
    Unreachable,
    /// Longer than this.
    TooBig { mtu: u32 },
}

/// Bytes of an ICMP header.
const HEADER_LEN: usize = 8;
/// The longest error of IPv4, which every host takes.
const MAX_V4: usize = 576;
/// The longest error of IPv6: the least MTU.
const MAX_V6: usize = 1280;
const HOPS: u8 = 64;

/// The message that tells the sender of a packet; `None` where none may be sent.
pub(crate) fn error(packet: &IpPacket<'_>, why: Why) -> Option<Vec<u8>> {
    if packet.is_later_fragment || packet.dst.is_multicast() || packet.src.is_unspecified() {
        return None;
    }
    match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) if !dst.is_broadcast() => {
            error_v4(packet, src, dst, why)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => error_v6(packet, src, dst, why),
        _ => None,
    }
}

fn error_v4(packet: &IpPacket<'_>, src: Ipv4Addr, dst: Ipv4Addr, why: Why) -> Option<Vec<u8>> {
    // Errors about errors are never sent; of queries, echo request and reply are.
    if packet.protocol == PROTOCOL_ICMP && !matches!(packet.payload.first(), Some(0 | 8)) {
        return None;
    }
    let quoted = &packet.bytes[..packet.bytes.len().min(MAX_V4 - Ipv4::LEN - HEADER_LEN)];
    let mut icmp = match why {
        Why::Unreachable => vec![3, 1, 0, 0, 0, 0, 0, 0],
        Why::TooBig { mtu } => {
            let [high, low] = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
            vec![3, 4, 0, 0, 0, 0, high, low]
        }
    };
    icmp.extend_from_slice(quoted);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv4 {
        tos: 0,
        total_length: (Ipv4::LEN + icmp.len()) as u16,
        ident: 0,
        flags_and_offset: Ipv4::DF,
        ttl: HOPS,
        protocol: PROTOCOL_ICMP,
        checksum: 0,
        src: dst,
        dst: src,
    };
    ip.checksum = ip.computed_checksum();
    let mut bytes = vec![0; Ipv4::LEN];
    ip.emit(&mut bytes);
    bytes.extend_from_slice(&icmp);
    Some(bytes)
}

fn error_v6(packet: &IpPacket<'_>, src: Ipv6Addr, dst: Ipv6Addr, why: Why) -> Option<Vec<u8>> {
    // Types below 128 are errors.
    let is_error = packet.payload.first().is_none_or(|first| *first < 128);
    if packet.protocol == PROTOCOL_ICMPV6 && is_error {
        return None;
    }
    let quoted = &packet.bytes[..packet.bytes.len().min(MAX_V6 - Ipv6::LEN - HEADER_LEN)];
    let mut icmp = match why {
        Why::Unreachable => vec![1, 3, 0, 0, 0, 0, 0, 0],
        Why::TooBig { mtu } => [&[2, 0, 0, 0][..], &mtu.to_be_bytes()].concat(),
    };
    icmp.extend_from_slice(quoted);
    let sum = transport_checksum(dst, src, PROTOCOL_ICMPV6, &icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = Ipv6 {
        traffic_class: 0,
        flow_label: 0,
        payload_length: icmp.len() as u16,
        next_header: PROTOCOL_ICMPV6,
        hop_limit: HOPS,
        src: dst,
        dst: src,
    };
    let mut bytes = vec![0; Ipv6::LEN];
    ip.emit(&mut bytes);
    bytes.extend_from_slice(&icmp);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        bytes[9] = protocol;
        bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
        bytes[16..20].copy_from_slice(&dst);
        bytes.extend_from_slice(payload);
        bytes
    }
    fn error_of(bytes: &[u8], why: Why) -> Option<Vec<u8>> {
        error(&IpPacket::parse(bytes).unwrap(), why)
    }

    #[test]
    fn a_packet_of_ipv4_that_is_too_big_is_quoted_with_the_mtu() {
        let sent = v4(17, [10, 0, 0, 2], &[7; 3000]);
        let bytes = error_of(&sent, Why::TooBig { mtu: 2044 }).unwrap();
        let packet = IpPacket::parse(&bytes).unwrap();
        assert_eq!(packet.bytes.len(), MAX_V4);
        assert_eq!([packet.src.to_string(), packet.dst.to_string()], ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(checksum(packet.payload), 0);
        assert_eq!(packet.payload[..2], [3, 4]);
        assert_eq!(packet.payload[4..8], [0, 0, 7, 0xFC]);
        assert_eq!(packet.payload[8..], sent[..548]);
        let ip = Ipv4::parse(&bytes).unwrap();
        assert_eq!(ip.checksum, ip.computed_checksum());
    }

    #[test]
    fn a_packet_of_ipv6_has_its_checksum_over_the_addresses() {
        let mut sent = vec![0; 60];
        sent[0] = 0x60;
        sent[5] = 20;
        (sent[23], sent[39]) = (1, 2);
        for (why, first) in [(Why::Unreachable, [1, 3]), (Why::TooBig { mtu: 1500 }, [2, 0])] {
            let bytes = error_of(&sent, why).unwrap();
            let packet = IpPacket::parse(&bytes).unwrap();
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else { panic!() };
            assert_eq!([src.to_string(), dst.to_string()], ["::2", "::1"]);
            assert_eq!(transport_checksum(src, dst, PROTOCOL_ICMPV6, packet.payload), 0);
            assert_eq!((&packet.payload[..2], &packet.payload[8..]), (&first[..], &sent[..]));
        }
    }

    #[test]
    fn errors_groups_and_later_fragments_have_no_answer() {
        let why = Why::Unreachable;
        let one = [10, 0, 0, 2];
        assert!(error_of(&v4(PROTOCOL_ICMP, one, &[8, 0]), why).is_some());
        assert!(error_of(&v4(PROTOCOL_ICMP, one, &[3, 1]), why).is_none());
        assert!(error_of(&v4(17, [224, 0, 0, 9], &[]), why).is_none());
        assert!(error_of(&v4(17, [255; 4], &[]), why).is_none());
        let mut fragment = v4(17, one, &[]);
        fragment[7] = 1;
        assert!(error_of(&fragment, why).is_none());
    }
}
