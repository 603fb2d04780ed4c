//! Our IP addresses, which other addresses are on the link, and routers to the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP address of the interface, with the bits that all addresses of its link have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits in common; more than an address has count as all.
    pub prefix_len: u8,
}

/// A router on the link, and what is behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gateway {
    /// The addresses behind it: those that begin as this one.
    pub to: Address,
    /// The router.
    pub via: IpAddr,
}

/// Where a packet goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    /// To all of an IP group.
    Group(IpAddr),
    /// To one address of the link.
    Neighbor(IpAddr),
    /// Nowhere.
    Nowhere,
}

/// Longest prefix of networks that have a broadcast address.
const MAX_BROADCAST_PREFIX: u8 = 30;

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    own: Vec<Address>,
    gateways: Vec<Gateway>,
}

impl Addresses {
    pub(crate) fn set_own(&mut self, own: &[Address]) {
        self.own = own.to_vec();
    }
    /// Sets the routers; of several for a destination the one with the longest prefix is taken.
    pub(crate) fn set_gateways(&mut self, gateways: &[Gateway]) {
        self.gateways = gateways.to_vec();
        self.gateways.sort_by_key(|gateway| std::cmp::Reverse(gateway.to.prefix_len));
    }
    pub(crate) fn own(&self) -> &[Address] {
        &self.own
    }
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }
    /// The address that others hear from us when we ask for `ip`: one of the same network, or else
    /// any of the same version.
    pub(crate) fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let same_network = self.own.iter().find(|own| own.has(ip));
        let same_version = || self.own.iter().find(|own| own.ip.is_ipv4() == ip.is_ipv4());
        same_network.or_else(same_version).map(|own| own.ip)
    }
    pub(crate) fn hop(&self, dst: IpAddr) -> Hop {
        let broadcast = IpAddr::V4(Ipv4Addr::BROADCAST);
        if dst.is_multicast() || dst == broadcast {
            return Hop::Group(dst);
        }
        if self.own.iter().any(|own| own.broadcast() == Some(dst)) {
            return Hop::Group(broadcast);
        }
        if self.is_own(dst) {
            return Hop::Nowhere;
        }
        if self.own.iter().any(|own| own.has(dst)) {
            return Hop::Neighbor(dst);
        }
        let gateway = self.gateways.iter().find(|gateway| gateway.to.has(dst));
        gateway.map_or(Hop::Nowhere, |gateway| Hop::Neighbor(gateway.via))
    }
}

impl Address {
    /// Whether an address begins as this one does.
    fn has(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let mask = mask(self.prefix_len, 32) as u32;
                (own.to_bits() ^ ip.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                (own.to_bits() ^ ip.to_bits()) & mask(self.prefix_len, 128) == 0
            }
            _ => false,
        }
    }
    /// The address of all of the network.
    fn broadcast(&self) -> Option<IpAddr> {
        let IpAddr::V4(own) = self.ip else { return None };
        let host = !(mask(self.prefix_len, 32) as u32);
        let has_one = self.prefix_len <= MAX_BROADCAST_PREFIX;
        has_one.then(|| IpAddr::V4(Ipv4Addr::from_bits(own.to_bits() | host)))
    }
}

/// The first `len` of `bits` bits, in the low bits of the result.
fn mask(len: u8, bits: u32) -> u128 {
    let low = u32::from(len).min(bits);
    let ones = u128::MAX >> (128 - bits);
    if low == 0 { 0 } else { ones & (u128::MAX << (bits - low)) }
}

/// The group on which an IPv6 address is asked for (RFC 4291, section 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(a), u16::from_be_bytes([b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
    fn address(text: &str) -> Address {
        let (address, len) = text.split_once('/').unwrap();
        Address { ip: ip(address), prefix_len: len.parse().unwrap() }
    }
    fn sample() -> Addresses {
        let mut addresses = Addresses::default();
        let own = ["10.0.0.5/24", "10.9.0.1/31", "fe80::5/64", "2001:db8::5/64"].map(address);
        addresses.set_own(&own);
        let gateway = |to, via| Gateway { to: address(to), via: ip(via) };
        let gateways = [gateway("0.0.0.0/0", "10.0.0.1"), gateway("192.168.0.0/16", "10.0.0.2")];
        addresses.set_gateways(&gateways);
        addresses
    }

    #[test]
    fn addresses_of_the_link_are_neighbors_and_the_rest_is_behind_the_nearest_router() {
        let addresses = sample();
        let hops = [
            ("10.0.0.7", Hop::Neighbor(ip("10.0.0.7"))),
            ("10.9.0.0", Hop::Neighbor(ip("10.9.0.0"))),
            ("8.8.8.8", Hop::Neighbor(ip("10.0.0.1"))),
            ("192.168.3.4", Hop::Neighbor(ip("10.0.0.2"))),
            ("fe80::9", Hop::Neighbor(ip("fe80::9"))),
            ("2001:db9::1", Hop::Nowhere),
            ("10.0.0.5", Hop::Nowhere),
        ];
        for (dst, hop) in hops {
            assert_eq!(addresses.hop(ip(dst)), hop, "{dst}");
        }
    }

    #[test]
    fn all_broadcast_addresses_are_one_group() {
        let addresses = sample();
        let broadcast = Hop::Group(ip("255.255.255.255"));
        for dst in ["255.255.255.255", "10.0.0.255"] {
            assert_eq!(addresses.hop(ip(dst)), broadcast, "{dst}");
        }
        assert_eq!(addresses.hop(ip("224.0.0.5")), Hop::Group(ip("224.0.0.5")));
        // A network of two addresses has none.
        assert_eq!(addresses.hop(ip("10.9.0.1")), Hop::Nowhere);
    }

    #[test]
    fn the_source_is_of_the_network_that_is_asked() {
        let addresses = sample();
        let source = |dst| addresses.source_for(ip(dst)).unwrap().to_string();
        assert_eq!(source("10.9.0.0"), "10.9.0.1");
        assert_eq!(source("8.8.8.8"), "10.0.0.5");
        assert_eq!(source("2001:db8::9"), "2001:db8::5");
        assert_eq!(Addresses::default().source_for(ip("10.0.0.1")), None);
    }

    #[test]
    fn prefixes_longer_than_addresses_are_one_address() {
        let one = Address { ip: ip("10.0.0.1"), prefix_len: 200 };
        assert!(one.has(ip("10.0.0.1")) && !one.has(ip("10.0.0.0")) && one.broadcast().is_none());
        assert!(address("::/0").has(ip("1::")) && !address("::/0").has(ip("1.1.1.1")));
    }

    #[test]
    fn an_ipv6_address_is_asked_for_on_the_group_of_its_last_bytes() {
        let group = solicited_node("2001:db8::1234:56ab:cdef".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ffab:cdef");
    }
}
