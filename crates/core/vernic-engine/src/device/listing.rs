//! The list of devices: one per usable netdev.

use std::iter::once;
use std::sync::Arc;

use vernic_io::infiniband::Adapter;
use vernic_io::netdev::{self, NetDev};
use vernic_io::{LinkPort, LocalAddr, NoPath, PortState};
use vernic_wire::{Mtu, PortNum};

use crate::config::{Config, TransportChoice};
use crate::device::gid::{GidEntry, GidTable, GidType};
use crate::device::infiniband;
use crate::device::transport::Transport;
use crate::error::OpenError;

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name: `vernic0`, `vernic1`..., the netdev of the default route first, `lo`
    /// last, and behind it devices without a usable address. For iWARP it is `viw0` beside
    /// `vernic0`, and so on.
    pub name: String,
    /// The number in the device's name.
    pub number: u32,
    /// Node GUID: made from the MAC address (EUI-64), or from the netdev's index if it has no MAC.
    pub node_guid: u64,
    /// Whether the netdev of port 1 is `lo`.
    pub loopback: bool,
    /// Whether the default route leaves through the netdev of port 1.
    pub default_route: bool,
    /// Port 1.
    pub port: PortInfo,
    /// Ports 2 and up. Devices that Vernic finds by themselves have one port; a caller of
    /// [`Context::open_over`](crate::Context::open_over) may give a device more.
    pub more_ports: Vec<PortInfo>,
    /// The transport of the device's queue pairs.
    pub transport: Transport,
}

/// A port of a device that can be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// The name of the port's netdev.
    pub netdev: String,
    /// The index of the port's netdev; 0 if it has none.
    pub netdev_index: u32,
    /// MTU of the netdev, bytes.
    pub netdev_mtu_bytes: u32,
    /// Largest path MTU that fits the netdev; `None` if not even 256 does.
    pub active_mtu: Option<Mtu>,
    /// Whether packets can pass.
    pub up: bool,
    /// The addresses of the netdev, in the order of the GID table.
    pub addresses: Vec<LocalAddr>,
    /// What a subnet manager has set up; `None` for a port that follows a netdev.
    pub link: Option<Arc<LinkPort>>,
    /// Whether the GID table has rows of RoCEv1 too: the netdev is an Ethernet, and this process
    /// may use packet sockets.
    pub has_roce_v1: bool,
}

impl DeviceInfo {
    pub(crate) fn new(number: u32, netdev: NetDev, may_use_v1: bool) -> Self {
        Self {
            name: Transport::Roce.rules().device_name(number),
            number,
            node_guid: node_guid(netdev.mac, netdev.index),
            loopback: netdev.loopback,
            default_route: netdev.default_route,
            port: PortInfo {
                active_mtu: netdev.ib_mtu(),
                netdev: netdev.name,
                netdev_index: netdev.index,
                netdev_mtu_bytes: netdev.mtu_bytes,
                up: netdev.running,
                addresses: netdev.addrs,
                link: None,
                has_roce_v1: netdev.mac.is_some() && may_use_v1,
            },
            more_ports: Vec::new(),
            transport: Transport::Roce,
        }
    }

    /// Describes the adapter of a fabric's host.
    fn of_adapter(adapter: Adapter) -> Self {
        let name = Transport::InfiniBand.rules().device_name(0);
        let mut ports =
            adapter.ports.into_iter().map(|port| PortInfo::of_link(&adapter.host, port));
        Self {
            name,
            number: 0,
            node_guid: adapter.guid.0,
            loopback: false,
            default_route: false,
            port: ports.next().unwrap_or_default(),
            more_ports: ports.collect(),
            transport: Transport::InfiniBand,
        }
    }

    /// Returns the ports of the device with their numbers, which count from 1 (IBTA 3.5.1).
    pub fn ports(&self) -> impl Iterator<Item = (PortNum, &PortInfo)> {
        (1..).map(PortNum).zip(once(&self.port).chain(&self.more_ports))
    }

    /// Refuses settings about packets for an iWARP device: the system's TCP carries its bytes.
    ///
    /// # Errors
    /// [`OpenError::NoPackets`], as when the device is opened with these settings.
    pub fn check_settings(&self, config: &Config) -> Result<(), OpenError> {
        self.transport.rules().check_settings(&self.name, config)
    }

    /// Returns the iWARP device beside this one: `viw0` beside `vernic0`.
    pub fn into_iwarp(self) -> Self {
        let transport = Transport::Iwarp;
        Self { name: transport.rules().device_name(self.number), transport, ..self }
    }

    /// Returns the device's number behind `uverbs`. Each device of both transports has its own.
    pub fn uverbs(&self) -> u32 {
        self.transport.rules().uverbs(self.number)
    }

    /// Returns the rows of the GID table that the device has when it is opened now. (A row stays
    /// empty while the system still checks its IPv6 address for duplicates.) An iWARP device has
    /// one row, its MAC.
    pub fn gids(&self) -> Vec<GidEntry> {
        let by_address = || {
            let kind = self.transport.rules().gid_type();
            let tables = self.ports().map(|(number, port)| port.gid_table(number, kind));
            tables.flat_map(|table| table.iter().cloned().collect::<Vec<_>>()).collect()
        };
        self.transport.rules().gids(self.node_guid, self.port.netdev_index, &by_address)
    }
}

impl PortInfo {
    /// Describes a port that a subnet manager sets up. The place of a netdev's name has the name of
    /// the host.
    fn of_link(host: &str, port: LinkPort) -> Self {
        let mtu = port.active_mtu.unwrap_or(Mtu::B256);
        Self {
            netdev: host.to_owned(),
            netdev_index: 0,
            netdev_mtu_bytes: mtu.bytes(),
            active_mtu: Some(mtu),
            up: port.state == PortState::Active,
            addresses: port.gids.iter().map(|gid| LocalAddr::new(gid.to_ip(), 0)).collect(),
            link: Some(Arc::new(port)),
            has_roce_v1: false,
        }
    }

    /// Returns why the GID table has no rows of RoCEv1; `None` if it has.
    pub fn why_no_roce_v1(&self) -> Option<String> {
        if self.has_roce_v1 {
            return None;
        }
        let refusal = vernic_io::may_use_roce_v1().err();
        let number = refusal.map(|error| error.raw_os_error().unwrap_or_default());
        let reason = number.map(|number| NoPath::Frames(number).to_string());
        Some(reason.unwrap_or_else(|| "the netdev is no Ethernet".to_owned()))
    }

    /// Returns the GID table that the port has when the device is opened now.
    pub(crate) fn gid_table(&self, number: PortNum, kind: GidType) -> GidTable {
        let mut table = GidTable::new(number, kind, self.has_roce_v1);
        table.update(self.netdev_index, &self.addresses);
        table
    }
}

/// Returns the modified EUI-64 (RFC 4291, appendix A); without a MAC, a locally administered
/// number.
fn node_guid(mac: Option<[u8; 6]>, index: u32) -> u64 {
    match mac {
        Some([a, b, c, d, e, f]) => u64::from_be_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f]),
        None => 0x0200_00FF_FE00_0000 | u64::from(index & 0xFF_FFFF),
    }
}

/// Returns the devices of this machine: each netdev that is up and has an address.
///
/// # Errors
/// [`OpenError::NetDev`] if the system does not list its netdevs.
pub fn devices() -> Result<Vec<DeviceInfo>, OpenError> {
    let (netdevs, may_use_v1) = (netdev::list()?, vernic_io::may_use_roce_v1().is_ok());
    Ok((0..).zip(netdevs).map(|(n, dev)| DeviceInfo::new(n, dev, may_use_v1)).collect())
}

/// Returns the adapter of the fabric's host that the settings name.
///
/// # Errors
/// [`OpenError::Fabric`].
pub(crate) fn fabric_device(config: &Config) -> Result<DeviceInfo, OpenError> {
    infiniband::adapter(config).map(DeviceInfo::of_adapter)
}

/// Returns the devices that a program with these settings sees: all of the settings' transport, or
/// the device that the settings name.
///
/// # Errors
/// [`OpenError::NoSuchDevice`], [`OpenError::Unusable`] or [`OpenError::NoDevice`] if the settings
/// name a device that is not there; [`OpenError::NetDev`].
pub fn configured_devices(config: &Config) -> Result<Vec<DeviceInfo>, OpenError> {
    if infiniband::is_chosen(config) {
        return Ok(vec![fabric_device(config)?]);
    }
    if !config.device.is_empty() {
        return Ok(vec![choose_for(&config.device, config)?]);
    }
    let mut all = devices()?;
    let beside = all.iter().cloned().map(DeviceInfo::into_iwarp);
    match config.transport {
        TransportChoice::Roce => {}
        TransportChoice::Iwarp => all = beside.collect(),
        TransportChoice::Both => all.extend(beside.collect::<Vec<_>>()),
    }
    Ok(all)
}

/// Returns the transport of connections by IP address: that of the device that the settings name,
/// else that of the settings.
pub fn address_transport(config: &Config) -> Transport {
    match config.transport {
        _ if infiniband::is_chosen(config) => Transport::InfiniBand,
        _ if iwarp_number(&config.device).is_some() => Transport::Iwarp,
        TransportChoice::Iwarp => Transport::Iwarp,
        TransportChoice::Roce | TransportChoice::Both => Transport::Roce,
    }
}

/// Whether a peer's transport is searched for before a connection by IP address. It is if the
/// settings allow both transports, and name no device of one of them.
pub fn looks_for_transport(config: &Config) -> bool {
    let names_one =
        |prefix| config.device.strip_prefix(prefix).is_some_and(|n: &str| n.parse::<u32>().is_ok());
    config.transport == TransportChoice::Both
        && !infiniband::is_chosen(config)
        && !names_one("viw")
        && !names_one("vernic")
}

/// Returns the number in the name of an iWARP device.
fn iwarp_number(name: &str) -> Option<u32> {
    name.strip_prefix("viw")?.parse().ok()
}

/// Chooses a device by its name, or by its netdev's name and the settings' transport. An empty name
/// takes the first. An unknown name is answered with the devices of both transports.
pub(crate) fn choose_for(name: &str, config: &Config) -> Result<DeviceInfo, OpenError> {
    if infiniband::is_chosen(config) {
        return fabric_device(config);
    }
    let is_iwarp = iwarp_number(name).is_some();
    let found = match if is_iwarp { choose_iwarp(name) } else { choose(name) } {
        Err(OpenError::NoSuchDevice { name, .. }) => {
            let beside = |device: &DeviceInfo| device.clone().into_iwarp().name;
            let present = listed(&devices()?, |device| {
                format!("and {} ({})", beside(device), device.port.netdev)
            });
            return Err(OpenError::NoSuchDevice { name, present });
        }
        found => found?,
    };
    match config.transport {
        TransportChoice::Iwarp if found.name != name => Ok(found.into_iwarp()),
        _ => Ok(found),
    }
}

/// Chooses a device by its name or that of its netdev; an empty name takes the first device.
pub(crate) fn choose(name: &str) -> Result<DeviceInfo, OpenError> {
    let mut all = devices()?;
    if name.is_empty() && !all.is_empty() {
        return Ok(all.swap_remove(0));
    }
    if let Some(index) =
        all.iter().position(|device| device.name == name || device.port.netdev == name)
    {
        return Ok(all.swap_remove(index));
    }
    if let Some(netdev) = netdev::unusable()?.into_iter().find(|netdev| netdev.name == name) {
        return Err(OpenError::Unusable { netdev });
    }
    if all.is_empty() {
        return Err(no_device()?);
    }
    let present = listed(&all, |device| format!("({})", device.port.netdev));
    Err(OpenError::NoSuchDevice { name: name.to_owned(), present })
}

/// Chooses an iWARP device by its name or that of its netdev; an empty name takes the first device.
pub(crate) fn choose_iwarp(name: &str) -> Result<DeviceInfo, OpenError> {
    let beside = iwarp_number(name).map_or(name.to_owned(), |number| format!("vernic{number}"));
    match choose(&beside).map(DeviceInfo::into_iwarp) {
        Err(OpenError::NoSuchDevice { .. }) => {
            let all: Vec<_> = devices()?.into_iter().map(DeviceInfo::into_iwarp).collect();
            let present = listed(&all, |device| format!("({})", device.port.netdev));
            Err(OpenError::NoSuchDevice { name: name.to_owned(), present })
        }
        found => found,
    }
}

/// Returns the device that has an address. A link-local address without a netdev is found on any.
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
    let has = |info: &DeviceInfo| info.ports().any(|(_, port)| port.addresses.iter().any(is));
    if let Some(index) = all.iter().position(has) {
        return Ok(all.swap_remove(index));
    }
    if all.is_empty() {
        return Err(no_device()?);
    }
    let addresses = |device: &DeviceInfo| {
        device.port.addresses.iter().map(|local| local.ip.to_string()).collect::<Vec<_>>().join(" ")
    };
    let present = listed(&all, |device| format!("({}): {}", device.port.netdev, addresses(device)));
    Err(OpenError::NoSuchAddress { address: wanted.ip, present })
}

/// Returns the error for a machine without a device: it says for each netdev why it is unusable.
pub fn no_device() -> Result<OpenError, OpenError> {
    let netdevs = netdev::unusable()?;
    let netdevs: Vec<String> = netdevs.iter().map(ToString::to_string).collect();
    let netdevs = match netdevs.is_empty() {
        true => "there is no netdev at all".to_owned(),
        false => netdevs.join(", "),
    };
    Ok(OpenError::NoDevice { netdevs })
}

/// Lists the devices, each with the text that `tell` returns for it.
fn listed(devices: &[DeviceInfo], tell: impl Fn(&DeviceInfo) -> String) -> String {
    let words: Vec<String> =
        devices.iter().map(|device| format!("{} {}", device.name, tell(device))).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::GidType;

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let error = choose("mlx5_0").unwrap_err().to_string();
        assert!(error.contains("mlx5_0") && error.contains("vernic0"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_devices_of_both_transports() {
        for name in ["mlx5_0", "viw77", "vernic77"] {
            let error = choose_for(name, &Config::default()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("vernic0 and viw0 ("), "{error}");
        }
    }

    #[test]
    fn an_unknown_iwarp_device_is_answered_with_those_of_iwarp() {
        let error = choose_iwarp("viw77").unwrap_err().to_string();
        assert!(error.contains("\"viw77\"") && error.contains("viw0 ("), "{error}");
        assert!(!error.contains("vernic"), "{error}");
    }

    #[test]
    fn an_unknown_address_is_answered_with_those_that_exist() {
        assert_eq!(device_with(IpAddr::from([127, 0, 0, 1])).unwrap().port.netdev, "lo");
        let error = device_with(IpAddr::from([192, 0, 2, 77])).unwrap_err().to_string();
        assert!(error.starts_with("no device has the address 192.0.2.77"), "{error}");
        assert!(error.contains("(lo): ") && error.contains("127.0.0.1"), "{error}");
    }

    #[test]
    fn a_program_sees_the_device_that_its_settings_name_and_no_other() {
        let all = configured_devices(&Config::default()).unwrap();
        assert_eq!(all, devices().unwrap());
        let lo = all.iter().find(|device| device.port.netdev == "lo").unwrap();
        for name in ["lo", &lo.name] {
            let config = Config { device: name.into(), ..Config::default() };
            assert_eq!(configured_devices(&config).unwrap(), std::slice::from_ref(lo));
        }
        let config = Config { device: "mlx5_0".into(), ..Config::default() };
        assert!(matches!(configured_devices(&config), Err(OpenError::NoSuchDevice { .. })));
    }

    #[test]
    fn the_transport_of_the_settings_decides_which_devices_there_are() {
        let names = |transport, device: &str| {
            let config = Config { transport, device: device.into(), ..Config::default() };
            let all = configured_devices(&config).unwrap();
            let names = all.into_iter().map(|device| (device.name, device.transport));
            (names.collect(), address_transport(&config))
        };
        type Seen = (Vec<(String, Transport)>, Transport);
        let (roce, by_address): Seen = names(TransportChoice::Roce, "");
        let lo = roce.len() - 1;
        assert_eq!((roce[lo].0.clone(), by_address), (format!("vernic{lo}"), Transport::Roce));
        let (iwarp, by_address): Seen = names(TransportChoice::Iwarp, "");
        assert_eq!(iwarp.len(), roce.len());
        let viw = (format!("viw{lo}"), Transport::Iwarp);
        assert_eq!((&iwarp[lo], by_address), (&viw, Transport::Iwarp));
        let (both, by_address): Seen = names(TransportChoice::Both, "");
        assert_eq!((both, by_address), ([roce, iwarp].concat(), Transport::Roce));
        // A device's name precedes the settings' transport; a netdev has a device of each
        // transport.
        assert_eq!(names(TransportChoice::Roce, &viw.0), (vec![viw.clone()], Transport::Iwarp));
        assert_eq!(names(TransportChoice::Iwarp, "lo").0, [viw]);
        let vernic = (format!("vernic{lo}"), Transport::Roce);
        assert_eq!(names(TransportChoice::Iwarp, &vernic.0).0, [vernic]);
    }

    #[test]
    fn the_gid_of_an_iwarp_device_is_its_mac() {
        let mut info = devices().unwrap().swap_remove(0).into_iwarp();
        info.node_guid = node_guid(Some([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]), 1);
        let gids = info.gids();
        assert_eq!((gids.len(), gids[0].index, gids[0].kind), (1, 0, GidType::Mac));
        let mac = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(gids[0].gid.0, mac);
    }

    #[test]
    fn guids_come_from_the_mac() {
        let guid = node_guid(Some([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]), 1);
        assert_eq!(guid, 0x0011_22FF_FE33_4455);
    }
}
