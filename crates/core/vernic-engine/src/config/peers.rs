//! The setting `peers`: the addresses that a device exchanges packets with.
//!
//! Owns [`Peers`], a list of networks. An address is checked against the list when a path to it is
//! made, when a connection to it is begun or it requests one, and for each packet of a service
//! without connections. Packets to a connected queue pair need no check: they are dropped unless
//! they come from the queue pair's peer.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The largest number of networks in a list. Each check searches them one by one.
const MAX_PREFIXES: usize = 64;

/// A network: the addresses that begin with the first `bits` bits of `network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    network: IpAddr,
    bits: u8,
}

impl Prefix {
    fn contains(&self, ip: IpAddr) -> bool {
        masked(ip, self.bits) == Some(self.network)
    }
}

/// Returns the network of `bits` bits that contains the address; `None` if the address has fewer
/// bits.
fn masked(ip: IpAddr, bits: u8) -> Option<IpAddr> {
    let bits = u32::from(bits);
    Some(match ip {
        IpAddr::V4(ip) => {
            let low = 32_u32.checked_sub(bits)?;
            IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(low).unwrap_or(0)).into())
        }
        IpAddr::V6(ip) => {
            let low = 128_u32.checked_sub(bits)?;
            IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(low).unwrap_or(0)).into())
        }
    })
}

/// The networks that a device exchanges packets with; an empty list allows all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(Vec<Prefix>);

impl Peers {
    /// Whether the list is empty, so that all addresses are allowed.
    #[inline]
    pub fn is_everybody(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list allows this address.
    #[inline]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.is_everybody() || self.is_listed(ip)
    }

    fn is_listed(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|prefix| prefix.contains(ip))
    }

    /// Checks that the list allows this address.
    ///
    /// # Errors
    /// [`PeerRefused`] if the list does not allow it.
    pub fn check(&self, ip: IpAddr) -> Result<(), PeerRefused> {
        let peer = ip.to_canonical();
        if self.contains(peer) {
            Ok(())
        } else {
            Err(PeerRefused { peer, peers: self.to_string() })
        }
    }
}

/// The error for an address that the setting `peers` does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{peer} is outside of the setting peers (VERNIC_PEERS), which is {peers}: add it there, or its network, if this \
     device shall talk to it"
)]
pub struct PeerRefused {
    /// The address.
    pub peer: IpAddr,
    /// The value of the setting.
    pub peers: String,
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Prefix { network, bits }) in self.0.iter().enumerate() {
            write!(f, "{}{network}/{bits}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for Peers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let prefixes = words.map(prefix).collect::<Result<Vec<_>, _>>()?;
        match prefixes.len() {
            0..=MAX_PREFIXES => Ok(Self(prefixes)),
            many => Err(format!("{many} networks, at most {MAX_PREFIXES} can be given")),
        }
    }
}

/// Parses a network like `10.1.0.0/16`, or an address, which is a network by itself.
fn prefix(word: &str) -> Result<Prefix, String> {
    let (address, bits) = word.split_once('/').map_or((word, None), |(a, bits)| (a, Some(bits)));
    let network: IpAddr =
        address.parse().map_err(|_| format!("{word}: {address:?} is no IP address"))?;
    if network.to_canonical() != network {
        return Err(format!("{word}: write it as the IPv4 address {}", network.to_canonical()));
    }
    let most = if network.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| match bits.parse::<u8>() {
        Ok(bits) if bits <= most => Ok(bits),
        _ => Err(format!("{word}: the number of bits is 0 to {most}")),
    })?;
    match masked(network, bits) {
        Some(masked) if masked != network => {
            Err(format!("{word} has bits beyond the first {bits}: the network is {masked}/{bits}"))
        }
        _ => Ok(Prefix { network, bits }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(text: &str) -> Peers {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_has_the_hosts_of_its_networks_and_no_others() {
        let some = peers("10.1.0.0/16, 192.0.2.7 fd00::/8");
        for (ip, is_in) in [
            ("10.1.0.0", true),
            ("10.1.255.255", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("fd12:3456::1", true),
            ("fe80::1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(some.contains(ip.parse().unwrap()), is_in, "{ip}");
        }
        assert!(peers("").contains("8.8.8.8".parse().unwrap()), "no list is everybody");
        let all_v4 = peers("0.0.0.0/0");
        assert!(all_v4.contains("8.8.8.8".parse().unwrap()));
        assert!(!all_v4.contains("fd00::1".parse().unwrap()));
        assert!(peers("::/0").contains("fd00::1".parse().unwrap()));
    }

    #[test]
    fn a_wrong_network_is_named_with_what_is_wrong() {
        for (text, wrong) in [
            ("10.1.0.0/16,eth0", "eth0"),
            ("10.1.0.0/33", "0 to 32"),
            ("fd00::/x", "0 to 128"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("/8", "no IP address"),
        ] {
            let error = text.parse::<Peers>().unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        let many = vec!["10.0.0.1"; MAX_PREFIXES + 1].join(",");
        assert!(many.parse::<Peers>().unwrap_err().contains("65"));
    }

    #[test]
    fn a_list_reads_back_as_it_is_shown() {
        let some = peers("10.1.0.0/16 192.0.2.7,fd00::/8");
        assert_eq!(some.to_string(), "10.1.0.0/16, 192.0.2.7/32, fd00::/8");
        assert_eq!(peers(&some.to_string()), some);
        let error = some.check("8.8.8.8".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("8.8.8.8") && error.contains("VERNIC_PEERS"), "{error}");
        assert!(error.contains("10.1.0.0/16"), "{error}");
    }
}
