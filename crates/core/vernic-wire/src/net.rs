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

pub use ethernet::{EtherType, Ethernet, MacAddr};
pub use ip::Ip;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use udp::Udp;

/// The UDP port of RoCEv2 (IBTA A17.3.1).
pub const ROCE_V2_PORT: u16 = 4791;
/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

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
