//! The headers around RoCEv2: Ethernet, IPv4, IPv6, UDP. A whole frame of them is a
//! [`Frame`](crate::Frame).
//!
//! Owns what captures need: the pcapng writer puts these headers before packets that a UDP socket
//! carries without showing them, and tests take captures apart and put them together again, byte
//! for byte. Not on the data path. Limits: no VLAN tag, no IPv4 option, no IPv6 extension header,
//! no fragment; such frames are a [`ParseError::Field`](crate::ParseError::Field).

mod ethernet;
mod ip;
mod ipv4;
mod ipv6;
mod udp;

use core::net::Ipv6Addr;

pub use ethernet::{EtherType, Ethernet, MacAddr};
pub use ip::Ip;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use udp::Udp;

/// The UDP port of RoCEv2 (IBTA A17.3.1).
pub const ROCE_V2_PORT: u16 = 4791;
/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// The protocol number of ICMP of IPv4.
pub const PROTOCOL_ICMP: u8 = 1;
/// The protocol number of ICMP of IPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// The Internet checksum of `bytes` (RFC 1071). Over bytes that contain a right one it is 0.
pub fn checksum(bytes: &[u8]) -> u16 {
    fold(sum_words(bytes))
}

/// The checksum of a message of a protocol over IPv6: of the two addresses, the length, the
/// protocol and the message (RFC 8200, section 8.1). Over a message that contains a right one it is
/// 0. Messages are at most 65,535 bytes long.
pub fn transport_checksum(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, message: &[u8]) -> u16 {
    let len = u32::from(crate::error::saturate(message.len()));
    let pseudo_header =
        sum_words(&src.octets()) + sum_words(&dst.octets()) + len + u32::from(protocol);
    fold(pseudo_header + sum_words(message))
}

/// The Internet checksum's running sum (RFC 1071), not yet folded, over big-endian 16-bit words.
fn sum_words(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    sum + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

/// Folds a running sum into a checksum.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}
