//! Network devices: a list of them with their addresses and MTUs, and a watcher for changes.
//!
//! Owns nothing but the change watcher's socket. Called by the engine, when it lists devices and
//! builds GID tables, and again when the watcher is readable; never on the data path.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use vernic_sys::{self as sys, OwnFd};
use vernic_wire::{Gid, Mtu};

use crate::address::LocalAddr;
use crate::link::LinkError;

/// Bytes that headers may take of a netdev's MTU before the payload of one packet. They are IPv6
/// (40), UDP (8), and the longest transport headers with ICRC, rounded up as Linux does: 80.
pub const HEADER_ALLOWANCE_BYTES: u32 = 80;

/// Ethernet (`ARPHRD_ETHER`).
const HARDWARE_ETHERNET: u16 = 1;

/// One network device that can carry RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDev {
    /// Name, such as `eth0`.
    pub name: String,
    /// Index, from 1; stable while the device exists.
    pub index: u32,
    /// Ethernet address; `None` for `lo` and for devices without one (`tun`).
    pub mac: Option<[u8; 6]>,
    /// MTU of the device in bytes.
    pub mtu_bytes: u32,
    /// Whether packets can pass now: up, and with a carrier.
    pub running: bool,
    /// Whether the device is `lo`.
    pub loopback: bool,
    /// Whether a default route leaves through this device.
    pub default_route: bool,
    /// Addresses in the order of a GID table: link-local IPv6, other IPv6, IPv4.
    pub addrs: Vec<LocalAddr>,
}

impl NetDev {
    /// Returns the largest MTU of IBTA that fits (see [`ib_mtu`]).
    pub fn ib_mtu(&self) -> Option<Mtu> {
        ib_mtu(self.mtu_bytes)
    }

    /// Returns the GIDs of this device: one per address, IPv4 as IPv4-mapped.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.addrs.iter().map(|addr| Gid::from_ip(addr.ip))
    }
}

/// Returns the largest IBTA MTU, 256 to 4096, that a netdev MTU has room for beside
/// [`HEADER_ALLOWANCE_BYTES`]; `None` below 336 bytes.
pub fn ib_mtu(netdev_mtu_bytes: u32) -> Option<Mtu> {
    let room = netdev_mtu_bytes.checked_sub(HEADER_ALLOWANCE_BYTES)?;
    Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
}

/// The reason why the network devices could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct NetDevError {
    what: &'static str,
    source: io::Error,
}

/// Returns all devices that are up and have an address. Programs take the first: it is a device of
/// a default route, if one of those has an address that is valid beyond its own link. `lo` comes
/// last, but for devices whose addresses are not ready, or taken by others.
///
/// # Errors
/// When the operating system does not list its interfaces.
pub fn list() -> Result<Vec<NetDev>, NetDevError> {
    let fail = |what| move |source| NetDevError { what, source };
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
        .or_else(|_| sys::socket(libc::AF_INET6, libc::SOCK_DGRAM, 0))
        .map_err(fail("open a socket to ask for MTUs"))?;
    let interfaces = sys::interfaces().map_err(fail("list the network interfaces"))?;
    let defaults = default_route_devices();
    let is_up = |flags: u32| flags & libc::IFF_UP as u32 != 0;
    let mut devices: Vec<NetDev> = interfaces
        .into_iter()
        .filter(|i| is_up(i.flags) && !i.addrs.is_empty())
        .filter_map(|i| {
            // A device that vanished meanwhile has no MTU.
            let mtu_bytes = sys::mtu_of(socket.as_fd(), &i.name).ok()?;
            let mut addrs: Vec<LocalAddr> =
                i.addrs.iter().map(|a| LocalAddr::new(a.ip, a.scope_id)).collect();
            addrs.sort_by_key(|addr| rank(addr.ip));
            Some(NetDev {
                default_route: defaults.contains(&i.name),
                index: i.index,
                mac: i.mac.filter(|_| i.hardware == HARDWARE_ETHERNET),
                mtu_bytes,
                running: i.flags & libc::IFF_RUNNING as u32 != 0,
                loopback: i.flags & libc::IFF_LOOPBACK as u32 != 0,
                addrs,
                name: i.name,
            })
        })
        .collect();
    let unready = unready_addresses(&std::fs::read_to_string(IF_INET6).unwrap_or_default());
    devices.sort_by_key(|device| place(device, &unready));
    Ok(devices)
}

/// Returns the sort key of a device in the list.
fn place(device: &NetDev, unready: &[(u32, Ipv6Addr)]) -> impl Ord + use<> {
    let is_ready = |addr: &&LocalAddr| match addr.ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !unready.contains(&(device.index, ip)),
    };
    let is_far = |addr: &LocalAddr| rank(addr.ip) > 0;
    let is_usable = device.addrs.iter().any(|addr| is_ready(&addr));
    let reaches_far = device.addrs.iter().filter(is_ready).any(is_far);
    (!is_usable, device.loopback, !reaches_far, !device.default_route, device.index)
}

/// The kernel's table of IPv6 addresses.
const IF_INET6: &str = "/proc/thread-self/net/if_inet6";

/// Returns device and address of each line of [`IF_INET6`] (address, index, prefix length, scope,
/// flags, device) that cannot be bound to. Either it is not confirmed yet that the address is free
/// (RFC 4862), or another host has it.
fn unready_addresses(text: &str) -> Vec<(u32, Ipv6Addr)> {
    let unready = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(4)?, 16).ok()?;
        let may_be_used = flags & libc::IFA_F_OPTIMISTIC != 0;
        let is_unready = flags & libc::IFA_F_DADFAILED != 0
            || flags & libc::IFA_F_TENTATIVE != 0 && !may_be_used;
        let ip = Ipv6Addr::from(u128::from_str_radix(fields[0], 16).ok()?);
        let index = u32::from_str_radix(fields[1], 16).ok()?;
        is_unready.then_some((index, ip))
    };
    text.lines().filter_map(unready).collect()
}

/// The reason why a network device is not in [`list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The device is down.
    Down,
    /// The device is up and has no IP address.
    NoAddress,
}

/// A network device that cannot carry RDMA as it is. Its `Display` gives the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Name, such as `eth0`.
    pub name: String,
    /// The reason.
    pub obstacle: Obstacle,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.obstacle {
            Obstacle::Down => write!(f, "{name} is down (`ip link set {name} up`)"),
            Obstacle::NoAddress => {
                write!(f, "{name} has no IP address (`ip address add ADDRESS dev {name}`)")
            }
        }
    }
}

/// Returns the devices that [`list`] leaves out. For the error when no device is left, or the one
/// asked for is not there.
///
/// # Errors
/// When the operating system does not list its interfaces.
pub fn unusable() -> Result<Vec<Unusable>, NetDevError> {
    let fail = |source| NetDevError { what: "list the network interfaces", source };
    let left_out = |i: sys::Interface| {
        let up = i.flags & libc::IFF_UP as u32 != 0;
        let obstacle = if up { Obstacle::NoAddress } else { Obstacle::Down };
        (!up || i.addrs.is_empty()).then_some(Unusable { name: i.name, obstacle })
    };
    Ok(sys::interfaces().map_err(fail)?.into_iter().filter_map(left_out).collect())
}

/// Whether there is a device of this index, in any state.
///
/// # Errors
/// When the operating system does not list its interfaces.
pub fn exists(index: u32) -> Result<bool, NetDevError> {
    let fail = |source| NetDevError { what: "list the network interfaces", source };
    Ok(sys::interfaces().map_err(fail)?.iter().any(|i| i.index == index))
}

/// Returns the rank of an address in a GID table: link-local IPv6, other IPv6, IPv4.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 0,
        IpAddr::V6(_) => 1,
        IpAddr::V4(_) => 2,
    }
}

/// Returns the index of the device that has `local`. All of 127.0.0.0/8 belongs to `lo`.
pub(crate) fn index_of(local: LocalAddr) -> Result<u32, LinkError> {
    let interfaces = sys::interfaces().map_err(|source| LinkError::Os {
        what: "list the network interfaces",
        addr: local,
        source,
    })?;
    let has = |i: &&sys::Interface| {
        i.addrs.iter().any(|a| LocalAddr::new(a.ip, a.scope_id) == local)
            || local.ip.is_loopback() && i.flags & libc::IFF_LOOPBACK as u32 != 0
    };
    let found = interfaces.iter().find(has).map(|i| i.index);
    found.ok_or(LinkError::NoSuchAddress { addr: local })
}

/// Returns the names of the devices that default routes leave through.
fn default_route_devices() -> Vec<String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut names = default_routes_v4(&read("/proc/thread-self/net/route"));
    names.extend(default_routes_v6(&read("/proc/thread-self/net/ipv6_route")));
    names
}

/// Parses lines of `/proc/net/route`: device, destination, gateway, flags, three counts, mask.
fn default_routes_v4(text: &str) -> Vec<String> {
    let default_of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let zero = |at: usize| fields.get(at).is_some_and(|f| *f == "00000000");
        (zero(1) && zero(7)).then(|| fields[0].to_owned())
    };
    text.lines().skip(1).filter_map(default_of).collect()
}

/// Parses lines of `/proc/net/ipv6_route`: destination, its prefix length, ..., device last. The
/// kernel lists its reject route, on `lo`, the same way.
fn default_routes_v6(text: &str) -> Vec<String> {
    let default_of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let any = fields.first().is_some_and(|f| f.len() == 32 && f.bytes().all(|b| b == b'0'));
        let device = *fields.get(9)?;
        (any && fields[1] == "00" && device != "lo").then(|| device.to_owned())
    };
    text.lines().filter_map(default_of).collect()
}

/// A watcher for changes to devices, addresses and routes.
///
/// Sleep on its descriptor together with those of the links; when it is readable, ask
/// [`has_changed`](Self::has_changed) and [`list`] again.
#[derive(Debug)]
pub struct ChangeWatcher(OwnFd);

/// Most messages read in one call; what is left keeps the descriptor readable.
const MAX_CHANGES: usize = 256;

impl ChangeWatcher {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the system has no netlink (a sandbox may refuse it): then poll [`list`] instead.
    pub fn new() -> Result<Self, NetDevError> {
        let fail = |source| NetDevError { what: "listen for network changes", source };
        sys::route_monitor().map(Self).map_err(fail)
    }

    /// Returns the descriptor to sleep on (for reading). Owned by the watcher: for polling only.
    pub fn poll_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Whether anything changed since the last call. Never blocks. If there were too many changes
    /// for the kernel to keep, that counts as a change.
    pub fn has_changed(&self) -> bool {
        let mut changed = false;
        let mut buf = [0; 8192];
        for _ in 0..MAX_CHANGES {
            match sys::read(self.0.as_fd(), &mut buf) {
                Ok(_) => changed = true,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(_) => break,
            }
        }
        changed
    }
}

/// Returns the addresses of this host, as its interfaces have them.
///
/// # Errors
/// When the operating system does not list its interfaces.
pub fn addresses() -> std::io::Result<impl Iterator<Item = IpAddr>> {
    let all = sys::interfaces()?;
    Ok(all.into_iter().flat_map(|interface| interface.addrs).map(|addr| addr.ip))
}

/// Whether `ip` is an address of this host, as its interfaces have them; all of 127.0.0.0/8 is.
pub fn is_local(ip: IpAddr) -> bool {
    let loopback = matches!(ip, IpAddr::V4(v4) if v4.is_loopback() && v4 != Ipv4Addr::UNSPECIFIED);
    loopback
        || sys::interfaces().is_ok_and(|all| all.iter().any(|i| i.addrs.iter().any(|a| a.ip == ip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_leaves_room_for_headers() {
        let mtus = [1500, 4176, 4175, 65_536, 9000, 336, 335, 0].map(ib_mtu);
        let bytes = mtus.map(|mtu| mtu.map_or(0, Mtu::bytes));
        assert_eq!(bytes, [1024, 4096, 2048, 4096, 4096, 256, 0, 0]);
    }

    #[test]
    fn the_loopback_device_is_listed_last_with_its_addresses() {
        let devices = list().unwrap();
        let Some(lo) = devices.iter().find(|d| d.loopback) else {
            println!("skipped: lo is down here");
            return;
        };
        assert!(lo.addrs.contains(&LocalAddr::from(IpAddr::V4(Ipv4Addr::LOCALHOST))));
        assert_eq!(lo.mac, None);
        assert!(!lo.default_route);
        let unready = unready_addresses(&std::fs::read_to_string(IF_INET6).unwrap_or_default());
        let behind = devices.iter().skip_while(|device| *device != lo).skip(1);
        assert!(behind.into_iter().all(|device| place(device, &unready) > place(lo, &unready)));
        assert_eq!(index_of(lo.addrs[0]).unwrap(), lo.index);
        assert!(is_local([127, 9, 9, 9].into()));
        assert!(!is_local([192, 0, 2, 1].into()));
    }

    #[test]
    fn a_device_without_a_usable_address_comes_behind_those_that_have_one() {
        let netdev = |index, name: &str, addrs: &[&str]| NetDev {
            name: name.into(),
            index,
            mac: None,
            mtu_bytes: 1500,
            running: true,
            loopback: name == "lo",
            default_route: name == "default",
            addrs: addrs.iter().map(|ip| LocalAddr::from(ip.parse::<IpAddr>().unwrap())).collect(),
        };
        let table = "fe800000000000000000000000000002 02 40 20 c0 tentative\n\
                     fe800000000000000000000000000003 03 40 20 88 failed\n\
                     20010db8000000000000000000000004 04 40 00 44 optimistic\n\
                     fe800000000000000000000000000005 05 40 20 80 link\nrubbish\nff 1 1\n";
        let unready = unready_addresses(table);
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert_eq!(unready, [(2, ip("fe80::2")), (3, ip("fe80::3"))]);
        let mut all = [
            netdev(1, "lo", &["::1", "127.0.0.1"]),
            netdev(2, "tentative", &["fe80::2"]),
            netdev(3, "failed", &["fe80::3"]),
            netdev(4, "optimistic", &["2001:db8::4"]),
            netdev(5, "link", &["fe80::5"]),
            netdev(6, "plain", &["fe80::2", "10.0.0.6"]),
            netdev(7, "default", &["10.0.0.7"]),
        ];
        all.sort_by_key(|device| place(device, &unready));
        let names: Vec<_> = all.iter().map(|device| device.name.as_str()).collect();
        let expected = ["default", "optimistic", "plain", "link", "lo", "tentative", "failed"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_device_that_cannot_be_used_is_named_with_what_helps() {
        let text = |obstacle| Unusable { name: "eth1".into(), obstacle }.to_string();
        assert_eq!(text(Obstacle::Down), "eth1 is down (`ip link set eth1 up`)");
        assert!(text(Obstacle::NoAddress).contains("ip address add ADDRESS dev eth1"));
        let names: Vec<String> = list().unwrap().into_iter().map(|dev| dev.name).collect();
        assert!(unusable().unwrap().iter().all(|dev| !names.contains(&dev.name)));
    }

    #[test]
    fn gid_candidates_have_the_order_of_the_kernel() {
        let mut ips: Vec<IpAddr> = ["10.0.0.1", "2001:db8::1", "fe80::1", "10.0.0.2"]
            .into_iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        ips.sort_by_key(|&ip| rank(ip));
        let text: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        assert_eq!(text, ["fe80::1", "2001:db8::1", "10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn default_routes_are_read_from_the_tables_of_the_kernel() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
                  eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\n\
                  eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
                  vpn\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\nrubbish\n";
        assert_eq!(default_routes_v4(v4), ["eth0"]);
        let zero = "0".repeat(32);
        let line = |prefix, device| {
            format!("{zero} {prefix} {zero} 00 {zero} 00000400 1 0 00000003 {device}\n")
        };
        let v6 = line("00", "eth0") + &line("80", "eth1") + &line("00", "lo") + "rubbish\n";
        assert_eq!(default_routes_v6(&v6), ["eth0"]);
    }

    #[test]
    fn a_watcher_that_nothing_happened_to_reports_no_change() {
        let Ok(watcher) = ChangeWatcher::new() else {
            println!("skipped: no netlink here");
            return;
        };
        assert!(watcher.poll_fd() >= 0);
        // Another process may change its network at any time; only the call itself is tested.
        let _ = watcher.has_changed();
    }
}
