//! The 40 bytes in front of a received datagram's payload (IBTA 11.4.1.2).
//!
//! For RoCEv2 (IBTA A17.4.5.2) they hold the IP header. Over IPv6 it takes all 40 bytes; over IPv4
//! the 20 bytes of the header follow 20 reserved ones. A UDP socket does not show the header, so it
//! is made again from what the socket reports; Identification and flow label are 0. Datagrams of
//! RoCEv1 have a GRH there, those of InfiniBand a GRH or nothing.

use vernic_io::RxPacket;
use vernic_wire::Grh;

/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Protocol number of UDP.
const UDP: u8 = 17;

/// Returns the GRH area of a datagram of RoCEv2.
pub(crate) fn area(packet: &RxPacket<'_>) -> [u8; Grh::LEN] {
    let meta = packet.meta;
    let udp_bytes = (packet.bytes.len() + UDP_LEN) as u16;
    let mut area = [0; Grh::LEN];
    let (src, dst) = (meta.src.gid(), meta.dst.gid());
    match (src.to_ipv4(), dst.to_ipv4()) {
        (Some(src), Some(dst)) => {
            let ip = &mut area[Grh::LEN - IPV4_LEN..];
            ip[0] = 0x45;
            ip[1] = meta.traffic_class;
            ip[2..4].copy_from_slice(&(udp_bytes + IPV4_LEN as u16).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = meta.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            area[0] = 0x60 | meta.traffic_class >> 4;
            area[1] = meta.traffic_class << 4;
            area[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
            area[6] = UDP;
            area[7] = meta.hop_limit;
            area[8..24].copy_from_slice(&src.0);
            area[24..40].copy_from_slice(&dst.0);
        }
    }
    area
}

/// Returns the GRH of a datagram that came with one: by an InfiniBand link, or by RoCEv1.
pub(crate) fn global(packet: &RxPacket<'_>) -> [u8; Grh::LEN] {
    let meta = packet.meta;
    let grh = Grh {
        version: 6,
        traffic_class: meta.traffic_class,
        flow_label: meta.flow_label,
        payload_length: packet.bytes.len() as u16,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: meta.hop_limit,
        sgid: meta.src.gid(),
        dgid: meta.dst.gid(),
    };
    let mut area = [0; Grh::LEN];
    grh.emit(&mut area);
    area
}

/// Returns the checksum of an IPv4 header (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded & 0xFFFF) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_io::udp::arrival;
    use vernic_io::{Icrc, RxMeta};

    #[test]
    fn an_ipv4_area_is_a_header_with_a_right_checksum_after_20_zeros() {
        let meta = RxMeta {
            traffic_class: 2,
            icrc: Icrc::Good,
            ..arrival("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap())
        };
        let packet = RxPacket { bytes: &[0; 100], meta: &meta, segment: 0 };
        let area = area(&packet);
        assert_eq!(area[..20], [0; 20]);
        assert_eq!((area[20], area[21], area[29]), (0x45, 2, 17));
        assert_eq!(u16::from_be_bytes([area[22], area[23]]), 128);
        assert_eq!(checksum(&area[20..]), 0, "sum over a whole header is all ones");
        assert_eq!(area[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}
