//! The host of an InfiniBand fabric that the settings name, and its IP interfaces.
//!
//! Owns nothing: `vernic fabric ipoib` has the interfaces, and the fabric process has the client of
//! subnet administration. An address of an interface decides the port and the partition; the
//! interface's owner finds the port that has another address of its link. See docs/ipoib.md.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use vernic_attach::{AddressQuestion, IpInterface, interfaces};
use vernic_engine::Config;
use vernic_wire::Guid;

use crate::device::Device;
use crate::error::Error;

/// A host of a fabric.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    pub(crate) name: String,
    pub(crate) host: String,
}

/// Whether `ip` is in the network of an address.
fn is_in((address, prefix_len): (IpAddr, u8), ip: IpAddr) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, Ipv4Addr::BITS),
        IpAddr::V6(ip) => (ip.to_bits(), Ipv6Addr::BITS),
    };
    let ((own, len), (other, _)) = (bits(address), bits(ip));
    let differ = u128::BITS - u32::from(prefix_len).min(len);
    address.is_ipv4() == ip.is_ipv4() && (own ^ other).checked_shr(differ).unwrap_or(0) == 0
}

impl Fabric {
    /// Returns the host that the settings name, if they name one.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let (name, host) = (config.fabric.clone(), config.host.clone());
        (!name.is_empty()).then_some(Self { name, host })
    }

    fn interfaces(&self, device: &Device) -> Result<Vec<IpInterface>, Error> {
        Ok(interfaces(&self.name, Guid(device.context.info().node_guid))?)
    }

    fn no_interface(&self, wanted: String, all: &[IpInterface]) -> Error {
        let addresses = all.iter().flat_map(|one| &one.addresses);
        let present: Vec<_> = addresses.map(|(ip, len)| format!("{ip}/{len}")).collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        let (fabric, host) = (self.name.clone(), self.host.clone());
        Error::NoInterface { fabric, host, wanted, present }
    }

    /// Returns the interface with an address.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Fabric`].
    pub(crate) fn with_address(&self, device: &Device, ip: IpAddr) -> Result<IpInterface, Error> {
        let mut all = self.interfaces(device)?;
        let has = |one: &IpInterface| one.addresses.iter().any(|(own, _)| *own == ip);
        match all.iter().position(has) {
            Some(at) => Ok(all.swap_remove(at)),
            None => Err(self.no_interface(format!("with address {ip}"), &all)),
        }
    }

    /// Returns the interface that leads to `dst`, and its address there: the one with `src`, or the
    /// one with the longest prefix of `dst`. A wildcard destination means the host itself, and a
    /// group is on every link.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Fabric`].
    pub(crate) fn towards(
        &self,
        device: &Device,
        src: Option<IpAddr>,
        dst: IpAddr,
    ) -> Result<(IpInterface, IpAddr), Error> {
        if let Some(src) = src {
            return Ok((self.with_address(device, src)?, src));
        }
        let all = self.interfaces(device)?;
        let any = dst.is_unspecified() || dst.is_multicast();
        let mut best: Option<(u8, &IpInterface, IpAddr)> = None;
        for interface in &all {
            for &(own, len) in &interface.addresses {
                let leads =
                    if any { own.is_ipv4() == dst.is_ipv4() } else { is_in((own, len), dst) };
                let rank = if own == dst { u8::MAX } else { len };
                if leads && best.is_none_or(|(other, ..)| !any && rank > other) {
                    best = Some((rank, interface, own));
                }
            }
        }
        match best {
            Some((_, interface, own)) => Ok((interface.clone(), own)),
            None => Err(self.no_interface(format!("in the network of {dst}"), &all)),
        }
    }

    /// Asks the owner of an interface where an address is.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub(crate) fn ask(
        &self,
        interface: &IpInterface,
        dst: SocketAddr,
    ) -> Result<AddressQuestion, Error> {
        Ok(AddressQuestion::ask(&self.name, interface, dst.ip())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        let is_in =
            |own: &str, len, ip: &str| is_in((own.parse().unwrap(), len), ip.parse().unwrap());
        assert!(is_in("10.0.0.1", 24, "10.0.0.77") && !is_in("10.0.0.1", 24, "10.0.1.1"));
        assert!(is_in("10.0.0.1", 32, "10.0.0.1") && !is_in("10.0.0.1", 32, "10.0.0.2"));
        assert!(is_in("10.0.0.1", 0, "192.0.2.1") && !is_in("10.0.0.1", 0, "::1"));
        assert!(is_in("fd00::1", 64, "fd00::2") && !is_in("fd00::1", 128, "fd00::2"));
    }
}
