//! The list of devices: one per usable netdev.

use vernic_io::LocalAddr;
use vernic_io::netdev::{self, NetDev};
use vernic_wire::Mtu;

use crate::config::Config;
use crate::error::OpenError;
use crate::gid::{GidEntry, GidTable};

/// What carries the queue pairs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Packets of RoCEv2.
    #[default]
    Roce,
    /// Connections of TCP (RFC 5040).
    Iwarp,
}

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name: `vernic0`, `vernic1`..., the netdev of the default route first, `lo` last.
    pub name: String,
    /// The number in its name.
    pub number: u32,
    /// Its netdev's name.
    pub netdev: String,
    /// Its netdev's index.
    pub netdev_index: u32,
    /// Node GUID: from the MAC address (EUI-64), or from the index where there is none.
    pub node_guid: u64,
    /// MTU of the netdev, bytes.
    pub netdev_mtu_bytes: u32,
    /// Largest path MTU that fits it; `None` if not even 256 does.
    pub active_mtu: Option<Mtu>,
    /// Whether packets can pass.
    pub up: bool,
    /// Whether it is `lo`.
    pub loopback: bool,
    /// Whether the default route leaves through it.
    pub default_route: bool,
    /// Its addresses, in the order of the GID table.
    pub addresses: Vec<LocalAddr>,
    /// What carries its queue pairs.
    pub transport: Transport,
}

impl DeviceInfo {
    pub(crate) fn new(number: u32, netdev: NetDev) -> Self {
        Self {
            name: format!("vernic{number}"),
            number,
            node_guid: node_guid(netdev.mac, netdev.index),
            active_mtu: netdev.ib_mtu(),
            netdev: netdev.name,
            netdev_index: netdev.index,
            netdev_mtu_bytes: netdev.mtu_bytes,
            up: netdev.running,
            loopback: netdev.loopback,
            default_route: netdev.default_route,
            addresses: netdev.addrs,
            transport: Transport::Roce,
        }
    }

    /// The iWARP device beside this one: `viw0` beside `vernic0`.
    pub(crate) fn into_iwarp(self) -> Self {
        Self { name: format!("viw{}", self.number), transport: Transport::Iwarp, ..self }
    }

    /// The rows of the GID table that the device has when it is opened now. (A row stays empty while
    /// the system still checks its IPv6 address for duplicates.)
    pub fn gids(&self) -> Vec<GidEntry> {
        self.gid_table().iter().cloned().collect()
    }

    pub(crate) fn gid_table(&self) -> GidTable {
        let mut table = GidTable::default();
        table.update(self.netdev_index, &self.addresses);
        table
    }
}

/// Modified EUI-64 (RFC 4291, appendix A); without a MAC, a locally administered number.
fn node_guid(mac: Option<[u8; 6]>, index: u32) -> u64 {
    match mac {
        Some([a, b, c, d, e, f]) => u64::from_be_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f]),
        None => 0x0200_00FF_FE00_0000 | u64::from(index & 0xFF_FFFF),
    }
}

/// The devices of this machine: each netdev that is up and has an address.
///
/// # Errors
/// [`OpenError::NetDev`] if the system does not list its netdevs.
pub fn devices() -> Result<Vec<DeviceInfo>, OpenError> {
    let netdevs = netdev::list()?;
    Ok((0..).zip(netdevs).map(|(n, dev)| DeviceInfo::new(n, dev)).collect())
}

/// The devices that a program with these settings sees: all, or the one that they name.
///
/// # Errors
/// [`OpenError::NoSuchDevice`], [`OpenError::Unusable`] or [`OpenError::NoDevice`] if they name one
/// that is not there; [`OpenError::NetDev`].
pub fn configured_devices(config: &Config) -> Result<Vec<DeviceInfo>, OpenError> {
    match config.device.as_str() {
        "" => devices(),
        name => Ok(vec![choose(name)?]),
    }
}

/// Chooses a device by its name or that of its netdev; an empty name takes the first.
pub(crate) fn choose(name: &str) -> Result<DeviceInfo, OpenError> {
    let mut all = devices()?;
    if name.is_empty() && !all.is_empty() {
        return Ok(all.swap_remove(0));
    }
    if let Some(place) = all.iter().position(|device| device.name == name || device.netdev == name)
    {
        return Ok(all.swap_remove(place));
    }
    if let Some(netdev) = netdev::unusable()?.into_iter().find(|netdev| netdev.name == name) {
        return Err(OpenError::Unusable { netdev });
    }
    if all.is_empty() {
        return Err(no_device()?);
    }
    let present = listed(&all, |device| format!("({})", device.netdev));
    Err(OpenError::NoSuchDevice { name: name.to_owned(), present })
}

/// Chooses an iWARP device by its name or that of its netdev; an empty name takes the first.
pub(crate) fn choose_iwarp(name: &str) -> Result<DeviceInfo, OpenError> {
    let number = name.strip_prefix("viw").and_then(|number| number.parse::<u32>().ok());
    let beside = number.map_or(name.to_owned(), |number| format!("vernic{number}"));
    choose(&beside).map(DeviceInfo::into_iwarp)
}

/// The device that has an address. A link-local one that names no netdev is found on any.
///
/// # Errors
/// [`OpenError::NoSuchAddress`] with the addresses that there are, [`OpenError::NoDevice`],
/// [`OpenError::NetDev`].
pub fn device_with(address: impl Into<LocalAddr>) -> Result<DeviceInfo, OpenError> {
    let wanted = address.into();
    let mut all = devices()?;
    let is = |local: &LocalAddr| {
        local.ip == wanted.ip && (wanted.scope_id == 0 || wanted.scope_id == local.scope_id)
    };
    let has = |info: &DeviceInfo| info.addresses.iter().any(is);
    if let Some(place) = all.iter().position(has) {
        return Ok(all.swap_remove(place));
    }
    if all.is_empty() {
        return Err(no_device()?);
    }
    let addresses = |device: &DeviceInfo| {
        device.addresses.iter().map(|local| local.ip.to_string()).collect::<Vec<_>>().join(" ")
    };
    let present = listed(&all, |device| format!("({}): {}", device.netdev, addresses(device)));
    Err(OpenError::NoSuchAddress { address: wanted.ip, present })
}

/// The error for a machine without a device: it says what is in the way of each netdev.
pub fn no_device() -> Result<OpenError, OpenError> {
    let netdevs = netdev::unusable()?;
    let netdevs: Vec<String> = netdevs.iter().map(ToString::to_string).collect();
    let netdevs = match netdevs.is_empty() {
        true => "there is no netdev at all".to_owned(),
        false => netdevs.join(", "),
    };
    Ok(OpenError::NoDevice { netdevs })
}

/// The devices, each with what `tell` says of it.
fn listed(devices: &[DeviceInfo], tell: impl Fn(&DeviceInfo) -> String) -> String {
    let words: Vec<String> =
        devices.iter().map(|device| format!("{} {}", device.name, tell(device))).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let error = choose("mlx5_0").unwrap_err().to_string();
        assert!(error.contains("mlx5_0") && error.contains("vernic0"), "{error}");
    }

    #[test]
    fn an_unknown_address_is_answered_with_those_that_exist() {
        assert_eq!(device_with(IpAddr::from([127, 0, 0, 1])).unwrap().netdev, "lo");
        let error = device_with(IpAddr::from([192, 0, 2, 77])).unwrap_err().to_string();
        assert!(error.starts_with("no device has the address 192.0.2.77"), "{error}");
        assert!(error.contains("(lo): ") && error.contains("127.0.0.1"), "{error}");
    }

    #[test]
    fn a_program_sees_the_device_that_its_settings_name_and_no_other() {
        let all = configured_devices(&Config::default()).unwrap();
        assert_eq!(all, devices().unwrap());
        let lo = all.iter().find(|device| device.netdev == "lo").unwrap();
        for name in ["lo", &lo.name] {
            let config = Config { device: name.into(), ..Config::default() };
            assert_eq!(configured_devices(&config).unwrap(), std::slice::from_ref(lo));
        }
        let config = Config { device: "mlx5_0".into(), ..Config::default() };
        assert!(matches!(configured_devices(&config), Err(OpenError::NoSuchDevice { .. })));
    }

    #[test]
    fn guids_come_from_the_mac() {
        let guid = node_guid(Some([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]), 1);
        assert_eq!(guid, 0x0011_22FF_FE33_4455);
    }
}
