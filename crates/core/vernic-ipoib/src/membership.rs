//! Which IP groups the host joins and leaves, as its own IGMP and MLD messages tell: a device that
//! carries bare IP packets has no other way to say so (RFC 2236, RFC 3376, RFC 2710, RFC 3810).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::net::PROTOCOL_ICMPV6;

use crate::ip::IpPacket;

const PROTOCOL_IGMP: u8 = 2;
/// Next header of hop-by-hop options, which MLD messages have: the router alert.
const HOP_BY_HOP: u8 = 0;
/// Bytes of a unit of an extension header's length, beyond the first.
const EXTENSION_UNIT: usize = 8;

/// A group, and whether the host is a member from now on.
pub(crate) type Change = (IpAddr, bool);

/// The changes that a packet of the host tells. Those of other packets are none.
pub(crate) fn changes(packet: &IpPacket<'_>) -> Vec<Change> {
    if packet.is_later_fragment {
        return Vec::new();
    }
    let found = match (packet.dst, packet.protocol) {
        (IpAddr::V4(_), PROTOCOL_IGMP) => igmp(packet.payload),
        (IpAddr::V6(_), HOP_BY_HOP) => behind_options(packet.payload).and_then(mld),
        _ => None,
    };
    found.unwrap_or_default()
}

/// The message behind hop-by-hop options, if it is of ICMPv6.
fn behind_options(payload: &[u8]) -> Option<&[u8]> {
    let [next, units, ..] = *payload else { return None };
    let len = (usize::from(units) + 1) * EXTENSION_UNIT;
    (next == PROTOCOL_ICMPV6).then(|| payload.get(len..)).flatten()
}

fn igmp(message: &[u8]) -> Option<Vec<Change>> {
    let group = |bytes: &[u8]| Some(IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)));
    match *message.first()? {
        // Reports of versions 1 and 2, and the message of version 2 on leaving.
        0x12 | 0x16 => Some(vec![(group(message.get(4..)?)?, true)]),
        0x17 => Some(vec![(group(message.get(4..)?)?, false)]),
        0x22 => Some(records::<4>(message, |bytes| IpAddr::V4(Ipv4Addr::from(bytes)))),
        _ => None,
    }
}

fn mld(message: &[u8]) -> Option<Vec<Change>> {
    let group = |bytes: &[u8]| Some(IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)));
    match *message.first()? {
        131 => Some(vec![(group(message.get(8..)?)?, true)]),
        132 => Some(vec![(group(message.get(8..)?)?, false)]),
        143 => Some(records::<16>(message, |bytes| IpAddr::V6(Ipv6Addr::from(bytes)))),
        _ => None,
    }
}

/// The records of a report of IGMPv3 or MLDv2, which differ by the length of addresses. Records end
/// where the message does, whatever their count says.
fn records<const N: usize>(message: &[u8], address: impl Fn([u8; N]) -> IpAddr) -> Vec<Change> {
    let mut changes = Vec::new();
    let count = message.get(6..8).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let mut rest = message.get(8..).unwrap_or_default();
    for _ in 0..count {
        let [kind, extra_words, high, low, ..] = *rest else { break };
        let Some(group) = rest[4..].first_chunk::<N>() else { break };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        // Including no source is leaving; excluding any, or including some, is being a member.
        let change = match kind {
            1 | 3 => Some(sources > 0),
            2 | 4 | 5 => Some(true),
            _ => None,
        };
        changes.extend(change.map(|is_member| (address(*group), is_member)));
        let len = 4 + N + sources * N + usize::from(extra_words) * 4;
        rest = rest.get(len..).unwrap_or_default();
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
    fn of_igmp(message: &[u8]) -> Vec<Change> {
        let mut bytes = vec![0; 20];
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 20 + message.len() as u8]);
        bytes[9] = PROTOCOL_IGMP;
        bytes.extend_from_slice(message);
        changes(&IpPacket::parse(&bytes).unwrap())
    }
    fn of_mld(message: &[u8]) -> Vec<Change> {
        let mut bytes = vec![0; 40];
        bytes[0] = 0x60;
        bytes[5] = 8 + message.len() as u8;
        bytes[6] = HOP_BY_HOP;
        bytes.extend_from_slice(&[PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 0, 0]);
        bytes.extend_from_slice(message);
        changes(&IpPacket::parse(&bytes).unwrap())
    }

    #[test]
    fn reports_of_all_versions_of_igmp_are_read() {
        let group = [239, 1, 2, 3];
        let message = |kind| [&[kind, 0, 0, 0][..], &group].concat();
        assert_eq!(of_igmp(&message(0x16)), [(ip("239.1.2.3"), true)]);
        assert_eq!(of_igmp(&message(0x12)), [(ip("239.1.2.3"), true)]);
        assert_eq!(of_igmp(&message(0x17)), [(ip("239.1.2.3"), false)]);
        assert_eq!(of_igmp(&message(0x11)), []);
        // To exclude nothing; to include nothing; to include one source more.
        let v3 = [
            &[0x22, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0][..],
            &group,
            &[3, 0, 0, 0, 239, 1, 2, 4, 5, 0, 0, 1, 239, 1, 2, 5, 10, 0, 0, 1],
        ];
        let expected = [(ip("239.1.2.3"), true), (ip("239.1.2.4"), false), (ip("239.1.2.5"), true)];
        assert_eq!(of_igmp(&v3.concat()), expected);
    }

    #[test]
    fn reports_of_both_versions_of_mld_are_read() {
        let group: Ipv6Addr = "ff05::1:3".parse().unwrap();
        let message = |kind| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat();
        assert_eq!(of_mld(&message(131)), [(group.into(), true)]);
        assert_eq!(of_mld(&message(132)), [(group.into(), false)]);
        let v2 = [&[143, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0][..], &group.octets()].concat();
        assert_eq!(of_mld(&v2), [(group.into(), false)]);
    }

    #[test]
    fn reports_that_are_cut_short_end_where_they_end() {
        let v3 = [0x22, 0, 0, 0, 0, 0, 0xFF, 0xFF, 4, 0xFF, 0xFF, 0xFF, 239, 1, 2, 3, 9, 9];
        assert_eq!(of_igmp(&v3), [(ip("239.1.2.3"), true)]);
        for len in 0..16 {
            assert_eq!(of_igmp(&v3[..len]), [], "{len}");
        }
        assert_eq!(of_mld(&[131, 0, 0, 0, 0, 0, 0, 0, 0xFF]), []);
    }
}
