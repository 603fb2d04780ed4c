//! Multicast group of an IP group: 16 bytes, a GID (RFC 4391, section 4).
//!
//! ```text
//!  byte   0      1            2..3        4..5    6..15
//!       +------+------------+-----------+-------+----------+
//!       | 0xFF | 0001 scope | signature | P_Key | group    |
//!       +------+------------+-----------+-------+----------+
//!         8      4    4       16          16      80 bits
//! ```
//! The signature is 0x401B of IPv4, with the low 28 bits of the address as group, and 0x601B of
//! IPv6, with the low 80 bits. The broadcast group of a link is that of 255.255.255.255: all ones
//! in the low 32 bits.

use core::net::{IpAddr, Ipv4Addr};

use crate::{Gid, Pkey};

const SIGNATURE_V4: u16 = 0x401B;
const SIGNATURE_V6: u16 = 0x601B;
/// Flag of groups that are not permanently assigned: all of IPoIB.
const TRANSIENT: u8 = 1;
/// Bits of an IPv4 group that its address has beside the class.
const GROUP_BITS_V4: u32 = 0x0FFF_FFFF;

/// How far a group reaches, 4 bits (RFC 4291, section 2.7). All groups of a link reach as far as
/// its broadcast group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Scope(u8);

impl Scope {
    /// One port.
    pub const INTERFACE_LOCAL: Self = Self(1);
    /// The subnet: what links of IPoIB usually have.
    pub const LINK_LOCAL: Self = Self(2);

    /// Keeps the low 4 bits.
    pub const fn new(value: u8) -> Self {
        Self(value & 15)
    }
    /// The value.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::LINK_LOCAL
    }
}

/// Returns the multicast group of an IP group, or of the broadcast address 255.255.255.255;
/// `None` of an address that is neither. The P_Key is made that of a full member.
pub fn group_of(ip: IpAddr, pkey: Pkey, scope: Scope) -> Option<Gid> {
    match ip {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(broadcast_group(pkey, scope)),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let mut gid = prefix(SIGNATURE_V4, pkey, scope);
            gid.0[12..].copy_from_slice(&(ip.to_bits() & GROUP_BITS_V4).to_be_bytes());
            Some(gid)
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let mut gid = prefix(SIGNATURE_V6, pkey, scope);
            gid.0[6..].copy_from_slice(&ip.octets()[6..]);
            Some(gid)
        }
        _ => None,
    }
}

/// Returns the broadcast group of a link. The P_Key is made that of a full member.
pub fn broadcast_group(pkey: Pkey, scope: Scope) -> Gid {
    let mut gid = prefix(SIGNATURE_V4, pkey, scope);
    gid.0[12..].fill(0xFF);
    gid
}

/// Returns the partition and the scope that the group of an IP group has in it; `None` of other
/// groups.
pub fn partition_of(gid: Gid) -> Option<(Pkey, Scope)> {
    let b = gid.0;
    let signature = u16::from_be_bytes([b[2], b[3]]);
    let is_ours = b[0] == 0xFF
        && b[1] >> 4 == TRANSIENT
        && (signature == SIGNATURE_V4 || signature == SIGNATURE_V6);
    is_ours.then(|| (Pkey(u16::from_be_bytes([b[4], b[5]])), Scope::new(b[1])))
}

fn prefix(signature: u16, pkey: Pkey, scope: Scope) -> Gid {
    let mut gid = Gid::ZERO;
    gid.0[0] = 0xFF;
    gid.0[1] = TRANSIENT << 4 | scope.value();
    gid.0[2..4].copy_from_slice(&signature.to_be_bytes());
    gid.0[4..6].copy_from_slice(&pkey.to_full().0.to_be_bytes());
    gid
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    fn of(ip: &str, pkey: u16, scope: Scope) -> Option<std::string::String> {
        group_of(ip.parse().unwrap(), Pkey(pkey), scope).map(|gid| gid.to_string())
    }

    #[test]
    fn the_examples_of_the_rfc_hold() {
        let of = |ip| of(ip, 0x8000, Scope::LINK_LOCAL).unwrap();
        assert_eq!(of("224.0.0.2"), "ff12:401b:8000::2");
        assert_eq!(of("ff02::2"), "ff12:601b:8000::2");
    }

    #[test]
    fn low_bits_of_the_address_are_the_group() {
        let of = |ip, scope| of(ip, 0x8001, scope).unwrap();
        assert_eq!(of("239.255.1.2", Scope::new(5)), "ff15:401b:8001::fff:102");
        let long = "ff0e:1111:2222:3333:4444:5555:6666:7777";
        assert_eq!(of(long, Scope::LINK_LOCAL), "ff12:601b:8001:3333:4444:5555:6666:7777");
    }

    #[test]
    fn broadcast_is_all_ones_in_the_partition_of_full_members() {
        let scope = Scope::LINK_LOCAL;
        assert_eq!(of("255.255.255.255", 0x7FFF, scope).unwrap(), "ff12:401b:ffff::ffff:ffff");
        let group = broadcast_group(Pkey(0x0001), scope);
        assert_eq!(group.to_string(), "ff12:401b:8001::ffff:ffff");
    }

    #[test]
    fn addresses_of_one_interface_have_no_group() {
        for ip in ["10.0.0.1", "10.255.255.255", "fe80::1", "240.0.0.1"] {
            assert_eq!(of(ip, 0xFFFF, Scope::LINK_LOCAL), None, "{ip}");
        }
    }

    #[test]
    fn a_group_tells_its_partition() {
        let group = group_of("224.1.2.3".parse().unwrap(), Pkey(0x8005), Scope::new(8)).unwrap();
        assert_eq!(partition_of(group), Some((Pkey(0x8005), Scope::new(8))));
        let mut other = group;
        other.0[2] = 0x41;
        assert_eq!(partition_of(other), None);
        other = group;
        other.0[1] = 0x02;
        assert_eq!(partition_of(other), None);
    }
}
