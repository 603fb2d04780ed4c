//! IP packet as far as an interface looks at it: addresses, protocol, payload.

use std::net::IpAddr;

use vernic_wire::net::{EtherType, Ipv4, Ipv6};

/// IP packet without what may be behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpPacket<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// Time to live, hop limit.
    pub(crate) hops: u8,
    /// Protocol, next header.
    pub(crate) protocol: u8,
    /// All of it.
    pub(crate) bytes: &'a [u8],
    /// What follows the header.
    pub(crate) payload: &'a [u8],
    /// A fragment other than the first, so that the payload does not begin with a header.
    pub(crate) is_later_fragment: bool,
}

/// Bytes of a unit of an IPv4 header's length.
const WORD: usize = 4;
/// Bits of the fragment offset.
const OFFSET: u16 = 0x1FFF;

impl<'a> IpPacket<'a> {
    /// The packet at the start of `bytes`; `None` if they are none, or are cut short.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => None,
        }
    }
    fn parse_v4(bytes: &'a [u8]) -> Option<Self> {
        let ip = Ipv4::from_bytes(bytes.first_chunk()?);
        let header_len = usize::from(bytes[0] & 15) * WORD;
        let bytes = bytes.get(..usize::from(ip.total_length))?;
        if header_len < Ipv4::LEN {
            return None;
        }
        Some(Self {
            src: ip.src.into(),
            dst: ip.dst.into(),
            hops: ip.ttl,
            protocol: ip.protocol,
            bytes,
            payload: bytes.get(header_len..)?,
            is_later_fragment: ip.flags_and_offset & OFFSET != 0,
        })
    }
    fn parse_v6(bytes: &'a [u8]) -> Option<Self> {
        let ip = Ipv6::from_bytes(bytes.first_chunk()?);
        let bytes = bytes.get(..Ipv6::LEN + usize::from(ip.payload_length))?;
        Some(Self {
            src: ip.src.into(),
            dst: ip.dst.into(),
            hops: ip.hop_limit,
            protocol: ip.next_header,
            bytes,
            payload: &bytes[Ipv6::LEN..],
            is_later_fragment: false,
        })
    }
    pub(crate) const fn ethertype(&self) -> EtherType {
        match self.dst {
            IpAddr::V4(_) => EtherType::IPV4,
            IpAddr::V6(_) => EtherType::IPV6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_cut_to_what_their_header_says() {
        let mut v4 = [0; 32];
        v4[..4].copy_from_slice(&[0x46, 0, 0, 28]);
        v4[8..10].copy_from_slice(&[64, 17]);
        v4[16..20].copy_from_slice(&[10, 0, 0, 1]);
        let packet = IpPacket::parse(&v4).unwrap();
        assert_eq!((packet.bytes.len(), packet.payload.len()), (28, 4));
        assert_eq!((packet.hops, packet.protocol), (64, 17));
        assert_eq!(packet.dst, "10.0.0.1".parse::<IpAddr>().unwrap());
        let mut v6 = [0; 50];
        v6[0] = 0x60;
        v6[5] = 8;
        let packet = IpPacket::parse(&v6).unwrap();
        assert_eq!((packet.bytes.len(), packet.payload.len()), (48, 8));
    }

    #[test]
    fn lengths_that_cannot_be_are_no_packet() {
        let mut bytes = [0; 60];
        for (first, len) in [(0x45, 61), (0x45, 19), (0x44, 40), (0x4F, 59), (0x55, 40)] {
            bytes[0] = first;
            bytes[3] = len;
            assert!(IpPacket::parse(&bytes).is_none(), "{first:#x} {len}");
        }
        assert!(IpPacket::parse(&[]).is_none() && IpPacket::parse(&[0x60; 39]).is_none());
    }
}
