//! ARP packet of IPoIB: 56 bytes, address resolution of IPv4 (RFC 826; RFC 4391, section 9.2).
//!
//! ```text
//!  byte   0..1       2..3       4          5          6..7
//!       +----------+----------+----------+----------+-----------+
//!       | hardware | protocol | hardware | protocol | operation |
//!       | type     | type     | length   | length   |           |
//!       +----------+----------+----------+----------+-----------+
//!         32         0x0800     20         4
//!  byte   8..27          28..31      32..51         52..55
//!       +--------------+-----------+--------------+-----------+
//!       | sender       | sender    | target       | target    |
//!       | hardware     | IP        | hardware     | IP        |
//!       +--------------+-----------+--------------+-----------+
//! ```

use core::fmt;
use core::net::Ipv4Addr;

use super::HardwareAddress;
use crate::ParseError;
use crate::error::head;
use crate::net::EtherType;

/// What an ARP packet is. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// Asks for a hardware address.
    pub const REQUEST: Self = Self(1);
    /// Tells one.
    pub const REPLY: Self = Self(2);
}

/// ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// What the packet is.
    pub operation: ArpOperation,
    /// Hardware address of the interface that sends.
    pub sender: HardwareAddress,
    /// IP address of that interface.
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the interface that is asked or told; zero where it is asked for.
    pub target: HardwareAddress,
    /// IP address of that interface.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Bytes on the wire.
    pub const LEN: usize = 56;
    /// Number of InfiniBand among the types of hardware.
    pub const HARDWARE_TYPE: u16 = 32;
    /// The fixed part: types and lengths.
    const HEAD: [u8; 6] = [
        (Self::HARDWARE_TYPE >> 8) as u8,
        Self::HARDWARE_TYPE as u8,
        (EtherType::IPV4.0 >> 8) as u8,
        EtherType::IPV4.0 as u8,
        HardwareAddress::LEN as u8,
        4,
    ];
    /// Names of the fields of the fixed part, each with where it begins and how many bytes it has.
    const HEAD_FIELDS: [(&'static str, usize, usize); 4] = [
        ("ARP hardware type", 0, 2),
        ("ARP protocol type", 2, 2),
        ("ARP hardware length", 4, 1),
        ("ARP protocol length", 5, 1),
    ];

    /// Reads the packet at the start of `bytes`; what follows is padding.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] if types and lengths are not those of IPv4
    /// over InfiniBand.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head(bytes)?;
        for (field, at, len) in Self::HEAD_FIELDS {
            if b[at..at + len] != Self::HEAD[at..at + len] {
                let value = b[at..at + len].iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte));
                return Err(ParseError::Field { field, value });
            }
        }
        let ip = |at: usize| Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]);
        Ok(Self {
            operation: ArpOperation(u16::from_be_bytes([b[6], b[7]])),
            sender: HardwareAddress::parse(&b[8..])?,
            sender_ip: ip(28),
            target: HardwareAddress::parse(&b[32..])?,
            target_ip: ip(52),
        })
    }
    /// Writes the packet at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let buf = &mut buf[..Self::LEN];
        buf[..6].copy_from_slice(&Self::HEAD);
        buf[6..8].copy_from_slice(&self.operation.0.to_be_bytes());
        self.sender.emit(&mut buf[8..]);
        buf[28..32].copy_from_slice(&self.sender_ip.octets());
        self.target.emit(&mut buf[32..]);
        buf[52..].copy_from_slice(&self.target_ip.octets());
    }
}

impl fmt::Display for Arp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sender, sender_ip, target_ip) = (self.sender, self.sender_ip, self.target_ip);
        match self.operation {
            ArpOperation::REQUEST => write!(f, "arp who has {target_ip} tell {sender_ip} {sender}"),
            ArpOperation::REPLY => write!(f, "arp {sender_ip} is at {sender}"),
            ArpOperation(other) => write!(f, "arp operation {other} of {sender_ip} {sender}"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    fn sample() -> [u8; Arp::LEN] {
        let mut bytes: [u8; Arp::LEN] = core::array::from_fn(|i| i as u8);
        bytes[..8].copy_from_slice(&[0, 32, 8, 0, 20, 4, 0, 1]);
        bytes
    }

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = sample();
        let arp = Arp::parse(&bytes).unwrap();
        assert_eq!(arp.operation, ArpOperation::REQUEST);
        assert_eq!(arp.sender, HardwareAddress::parse(&bytes[8..]).unwrap());
        assert_eq!(arp.sender_ip, Ipv4Addr::new(28, 29, 30, 31));
        assert_eq!(arp.target, HardwareAddress::parse(&bytes[32..]).unwrap());
        assert_eq!(arp.target_ip, Ipv4Addr::new(52, 53, 54, 55));
        let mut out = [0; Arp::LEN];
        arp.emit(&mut out);
        assert_eq!(out, bytes);
        let text = arp.to_string();
        assert!(
            text.starts_with("arp who has 52.53.54.55 tell 28.29.30.31 qpn=0x090a0b"),
            "{text}"
        );
    }

    #[test]
    fn other_types_and_lengths_are_named() {
        let cases = [
            (1, "ARP hardware type", 33),
            (2, "ARP protocol type", 0x0900),
            (4, "ARP hardware length", 21),
            (5, "ARP protocol length", 5),
        ];
        for (at, field, value) in cases {
            let mut bytes = sample();
            bytes[at] += 1;
            assert_eq!(Arp::parse(&bytes), Err(ParseError::Field { field, value }));
        }
        let error = ParseError::Truncated { need: 56, have: 55 };
        assert_eq!(Arp::parse(&[0; 55]), Err(error));
    }

    #[test]
    fn other_operations_are_kept() {
        let mut bytes = sample();
        bytes[7] = 9;
        let arp = Arp::parse(&bytes).unwrap();
        assert_eq!(arp.operation, ArpOperation(9));
        assert!(arp.to_string().starts_with("arp operation 9 of 28.29.30.31"));
    }
}
