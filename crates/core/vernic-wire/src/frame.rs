//! A whole Ethernet frame that carries UDP.
//!
//! ```text
//!   +----------+--------------+-----+---------------------------+---------+
//!   | Ethernet | IPv4 or IPv6 | UDP | payload (RoCEv2: to ICRC) | trailer |
//!   +----------+--------------+-----+---------------------------+---------+
//!     14         20 or 40       8                                 what Ethernet added, usually 0
//! ```

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::ParseError;
use crate::error::saturate;
use crate::icrc::{IcrcFlow, Verdict};
use crate::net::{EtherType, Ethernet, Ip, Ipv4, Ipv6, MacAddr, PROTOCOL_UDP, ROCE_V2_PORT, Udp};

/// A frame: its headers as reprs, its payload and trailer as slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Link header.
    pub ethernet: Ethernet,
    /// Network header.
    pub ip: Ip,
    /// UDP header.
    pub udp: Udp,
    /// UDP payload; for RoCEv2 from the BTH to the ICRC.
    pub payload: &'a [u8],
    /// What follows the IP packet.
    pub trailer: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Addresses that frames are given which never were on an Ethernet.
    pub const NO_MAC: MacAddr = MacAddr([0; 6]);
    /// TTL and hop limit of frames that [`Frame::new`] makes.
    pub const TTL: u8 = 64;

    /// The frame that a UDP socket sends for `payload`: DF and Identification `ident` over IPv4, no
    /// UDP checksum over IPv4, a right one over IPv6; `tos` is DSCP and ECN. A mix of an IPv4 and
    /// an IPv6 address is taken as IPv6 with the former mapped. Lengths stop at 65,535: longer
    /// payloads do not exist.
    pub fn new(src: SocketAddr, dst: SocketAddr, tos: u8, ident: u16, payload: &'a [u8]) -> Self {
        let length = saturate(Udp::LEN + payload.len());
        let mut udp = Udp { sport: src.port(), dport: dst.port(), length, checksum: 0 };
        let (ip, ethertype) = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = Ipv4 {
                    tos,
                    total_length: saturate(Ipv4::LEN + Udp::LEN + payload.len()),
                    ident,
                    flags_and_offset: Ipv4::DF,
                    ttl: Self::TTL,
                    protocol: PROTOCOL_UDP,
                    checksum: 0,
                    src,
                    dst,
                };
                ip.checksum = ip.computed_checksum();
                (Ip::V4(ip), EtherType::IPV4)
            }
            (src, dst) => {
                let (src, dst) = (crate::icrc::to_ipv6(src), crate::icrc::to_ipv6(dst));
                udp.checksum = udp.computed_checksum(src, dst, payload);
                let ip = Ipv6 {
                    traffic_class: tos,
                    flow_label: 0,
                    payload_length: length,
                    next_header: PROTOCOL_UDP,
                    hop_limit: Self::TTL,
                    src,
                    dst,
                };
                (Ip::V6(ip), EtherType::IPV6)
            }
        };
        let ethernet = Ethernet { dst: Self::NO_MAC, src: Self::NO_MAC, ethertype };
        Self { ethernet, ip, udp, payload, trailer: &[] }
    }

    /// Takes a frame apart.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] where headers are cut short or a length says more than there is;
    /// [`ParseError::Field`] where the frame does not carry UDP over plain IP, or the lengths of IP
    /// and UDP disagree.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let ethernet = Ethernet::parse(frame)?;
        let packet = &frame[Ethernet::LEN..];
        let (ip, protocol, packet_len) = match ethernet.ethertype {
            EtherType::IPV4 => {
                let ip = Ipv4::parse(packet)?;
                if ip.flags_and_offset & !Ipv4::DF != 0 {
                    let (field, value) = ("IPv4 fragment", ip.flags_and_offset);
                    return Err(ParseError::Field { field, value });
                }
                (Ip::V4(ip), ip.protocol, usize::from(ip.total_length))
            }
            EtherType::IPV6 => {
                let ip = Ipv6::parse(packet)?;
                (Ip::V6(ip), ip.next_header, Ipv6::LEN + usize::from(ip.payload_length))
            }
            EtherType(value) => return Err(ParseError::Field { field: "EtherType", value }),
        };
        if protocol != PROTOCOL_UDP {
            let (field, value) = ("IP protocol", u16::from(protocol));
            return Err(ParseError::Field { field, value });
        }
        let Some((packet, trailer)) = packet.split_at_checked(packet_len) else {
            return Err(ParseError::truncated(packet_len, packet.len()));
        };
        let datagram = packet.get(ip.len()..).unwrap_or_default();
        let udp = Udp::parse(datagram)?;
        if usize::from(udp.length) != datagram.len() {
            return Err(ParseError::Field { field: "UDP length", value: udp.length });
        }
        Ok(Self { ethernet, ip, udp, payload: &datagram[Udp::LEN..], trailer })
    }

    /// Bytes of the headers: 42 or 62.
    pub const fn header_len(&self) -> usize {
        Ethernet::LEN + self.ip.len() + Udp::LEN
    }

    /// Writes the headers only, and returns their length, for writers that have the payload
    /// elsewhere.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Frame::header_len`].
    pub fn emit_headers(&self, buf: &mut [u8]) -> usize {
        self.ethernet.emit(buf);
        self.ip.emit(&mut buf[Ethernet::LEN..]);
        self.udp.emit(&mut buf[Ethernet::LEN + self.ip.len()..]);
        self.header_len()
    }

    /// Writes the frame, and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than headers, payload and trailer.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let at = self.emit_headers(buf);
        let end = at + self.payload.len();
        buf[at..end].copy_from_slice(self.payload);
        buf[end..end + self.trailer.len()].copy_from_slice(self.trailer);
        end + self.trailer.len()
    }

    /// Whether the frame is to the port of RoCEv2.
    pub const fn is_roce_v2(&self) -> bool {
        self.udp.dport == ROCE_V2_PORT
    }
    /// Identification, or 0 over IPv6.
    pub const fn ident(&self) -> u16 {
        match &self.ip {
            Ip::V4(ip) => ip.ident,
            Ip::V6(_) => 0,
        }
    }
    /// The flow that the frame belongs to.
    pub fn flow(&self) -> IcrcFlow {
        IcrcFlow::new(self.ip.src(), self.ip.dst(), self.udp.sport, self.udp.dport)
    }
    /// Compares the last 4 bytes of the payload with the ICRC of the frame, Identification
    /// included.
    pub fn check_icrc(&self) -> Verdict {
        self.flow().check(self.ident(), self.payload)
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ip {
            Ip::V4(ip) => write!(f, "{ip} {}", self.udp),
            Ip::V6(ip) => write!(f, "{ip} {}", self.udp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: [u8; 5] = *b"hello";

    fn made(src: &str, dst: &str) -> Frame<'static> {
        Frame::new(src.parse().unwrap(), dst.parse().unwrap(), 2, 7, &PAYLOAD)
    }

    #[test]
    fn frames_of_both_versions_round_trip() {
        for (src, dst, len) in [
            ("10.0.0.1:49152", "10.0.0.2:4791", 47),
            ("[fe80::1]:49152", "[fe80::2]:4791", 67),
            ("[::ffff:10.0.0.1]:49152", "[::ffff:10.0.0.2]:4791", 47),
        ] {
            let frame = made(src, dst);
            let mut bytes = [0xEE; 80];
            assert_eq!(frame.emit(&mut bytes), len);
            assert_eq!(Frame::parse(&bytes[..len]), Ok(frame));
            let padded = Frame::parse(&bytes).unwrap();
            assert_eq!((padded.payload, padded.trailer), (&PAYLOAD[..], &bytes[len..]));
            assert!(frame.is_roce_v2());
        }
    }

    #[test]
    fn every_cut_frame_is_truncated() {
        let mut bytes = [0; 80];
        let len = made("10.0.0.1:49152", "10.0.0.2:4791").emit(&mut bytes);
        for cut in 0..len {
            let error = Frame::parse(&bytes[..cut]).unwrap_err();
            assert!(matches!(error, ParseError::Truncated { .. }), "{cut}: {error}");
        }
    }

    #[test]
    fn what_is_not_udp_over_plain_ip_is_named() {
        let mut bytes = [0; 80];
        let len = made("10.0.0.1:49152", "10.0.0.2:4791").emit(&mut bytes);
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Frame::parse(&bytes[..len]).unwrap_err()
        };
        assert_eq!(with(12, 0x81), ParseError::Field { field: "EtherType", value: 0x8100 });
        assert_eq!(with(20, 0x60), ParseError::Field { field: "IPv4 fragment", value: 0x6000 });
        assert_eq!(with(23, 6), ParseError::Field { field: "IP protocol", value: 6 });
        assert_eq!(with(39, 99), ParseError::Field { field: "UDP length", value: 99 });
        assert_eq!(with(17, 21), ParseError::Truncated { need: 8, have: 1 });
        assert_eq!(with(17, 4), ParseError::Truncated { need: 8, have: 0 });
    }
}
