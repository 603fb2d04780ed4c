//! Private network namespaces: the places where cases run.
//!
//! Three namespaces: one with `lo` alone, and two with a veth pair between them that has addresses
//! of both IP versions. Made once, removed when [`Network`] is dropped.

use std::path::Path;
use std::time::{Duration, Instant};

use super::fabric::{self, Fabric};
use crate::Result;
use crate::shell::run;

/// Addresses of the veth pair's ends, server first.
const IPV4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const IPV6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// Beginning of the namespaces' names, before the process id.
pub(crate) const PREFIX: &str = "vernic-";

/// Path MTU of every place: what a netdev MTU of 9000 and that of `lo` have room for.
pub(super) const MTU: u64 = 4096;

/// MTU of the veth pair, bytes: room for the largest path MTU.
const NETDEV_MTU: u64 = 9000;
const _: () = assert!(NETDEV_MTU > MTU + 100, "headers of a packet need about 100 bytes");

/// How long the veth pair may take to come up.
const LINK_UP: Duration = Duration::from_secs(10);

/// Where server and client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Both in one namespace, over 127.0.0.1.
    Loopback,
    /// In two namespaces, over a veth pair, IPv4.
    Ipv4,
    /// The same over IPv6.
    Ipv6,
    /// Ethernet frames of RoCEv1, over the same pair.
    Ethernet,
    /// As `Loopback`, and one packet in a hundred is lost.
    Loss,
    /// As `Loopback`, through memory that both processes share.
    Memory,
    /// Two hosts of a fabric, by LID.
    InfiniBand,
}

impl Place {
    /// Every place.
    pub(super) const ALL: [Self; 7] = [
        Self::Loopback,
        Self::Ipv4,
        Self::Ipv6,
        Self::Ethernet,
        Self::Loss,
        Self::Memory,
        Self::InfiniBand,
    ];

    /// Places whose addresses are IP addresses.
    pub(super) const BY_IP: [Self; 6] =
        [Self::Loopback, Self::Ipv4, Self::Ipv6, Self::Ethernet, Self::Loss, Self::Memory];

    /// The word for it in names of cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Ethernet => "ethernet",
            Self::Loss => "loss",
            Self::Memory => "memory",
            Self::InfiniBand => "infiniband",
        }
    }

    /// What it is, in words.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Loopback => "two processes of one host, 127.0.0.1, by UDP",
            Self::Ipv4 => "a veth pair between two network namespaces, IPv4",
            Self::Ipv6 => "the same pair, IPv6",
            Self::Ethernet => "the same pair, RoCEv1",
            Self::Loss => "127.0.0.1 with 1 % of the packets lost",
            Self::Memory => "two processes of one host, through shared memory",
            Self::InfiniBand => {
                "two hosts of an InfiniBand fabric, three switches apart, by LID or by IP address; OpenSM \
                 manages it"
            }
        }
    }

    /// Options of `vernic run` for the server (0) and the client (1). Each side loses other
    /// packets.
    pub(super) fn around(self, side: usize) -> &'static [&'static str] {
        match (self, side) {
            (Self::Loss, 0) => &["--loss", "0.01", "--seed", "1"],
            (Self::Loss, _) => &["--loss", "0.01", "--seed", "2"],
            (Self::Memory, _) => &["--set", "same_host=on"],
            (Self::Ethernet, _) => &["--set", "roce=v1"],
            (Self::InfiniBand, 0) => fabric::SERVER,
            (Self::InfiniBand, _) => fabric::CLIENT,
            _ => &["--set", "same_host=off"],
        }
    }

    /// The server's address for the programs' own TCP connection: some listen on IPv4 only.
    pub(super) fn server(self) -> &'static str {
        match self {
            Self::Loopback | Self::Loss | Self::Memory => "127.0.0.1",
            Self::InfiniBand => fabric::ADDRESSES[0],
            Self::Ipv4 | Self::Ipv6 | Self::Ethernet => IPV4[0],
        }
    }

    /// Returns the version of RoCE of a side's GID.
    fn version(self) -> &'static str {
        if self == Self::Ethernet { "RoCEv1" } else { "RoCEv2" }
    }

    /// The address of a side's GID; of a fabric's host, that of its IP interface.
    pub(super) fn address(self, side: usize) -> &'static str {
        match self {
            Self::Loopback | Self::Loss | Self::Memory => "127.0.0.1",
            Self::InfiniBand => fabric::ADDRESSES[side],
            Self::Ipv4 | Self::Ethernet => IPV4[side],
            Self::Ipv6 => IPV6[side],
        }
    }
}

/// The namespaces, removed at the end.
pub(super) struct Network {
    names: [String; 5],
    /// GID index of each side, by place.
    gids: Vec<[u64; 2]>,
    fabric: Option<Fabric>,
}

impl Network {
    /// Makes them; needs root.
    pub(super) fn new(vernic: &str) -> Result<Self> {
        remove_left_over()?;
        let names = ["lo", "a", "b", "h1", "h8"];
        let names = names.map(|name| format!("{PREFIX}{}-{name}", std::process::id()));
        let mut network = Self { names, gids: Vec::new(), fabric: None };
        let [lo, a, b, ..] = &network.names;
        make(lo)?;
        make_pair([a, b], |side| {
            [format!("{}/24", IPV4[side]), format!("{}/64 nodad", IPV6[side])].to_vec()
        })?;
        for place in Place::BY_IP {
            let index = |side| {
                let (namespace, address) = (network.namespace(place, side), place.address(side));
                row_index(namespace, vernic, address, place.version())
            };
            let pair = [index(0)?, index(1)?];
            network.gids.push(pair);
        }
        Ok(network)
    }

    /// Starts the fabric, if it does not run yet. Its logs go to the folder `logs`.
    pub(super) fn start_fabric(&mut self, vernic: &Path, logs: &Path) -> Result {
        if self.fabric.is_none() {
            self.fabric = Some(Fabric::start(vernic, logs)?);
            // Programs that meet by TCP or UDP before they use RDMA name one address for both.
            let [.., server, client] = &self.names;
            make_pair([server, client], |side| {
                [format!("{}/24", fabric::ADDRESSES[side])].to_vec()
            })?;
        }
        Ok(())
    }

    /// The fabric, if it runs.
    pub(super) fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    /// The folder of the fabric's socket, if it runs.
    pub(super) fn fabric_folder(&self) -> Option<&Path> {
        self.fabric.as_ref().map(Fabric::folder)
    }

    /// The namespace of a side.
    pub(super) fn namespace(&self, place: Place, side: usize) -> &str {
        match place {
            Place::Loopback | Place::Loss | Place::Memory => &self.names[0],
            Place::Ipv4 | Place::Ipv6 | Place::Ethernet => &self.names[1 + side],
            Place::InfiniBand => &self.names[3 + side],
        }
    }

    /// The index of a side's GID in its device's table; `None` where LIDs say where packets go.
    pub(super) fn gid(&self, place: Place, side: usize) -> Option<u64> {
        self.gids.get(place as usize).map(|sides| sides[side])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // It may be one that was not made.
            run(&format!("ip netns del {name}")).succeeds();
        }
    }
}

/// The index of an address's GID in the table of a namespace's first device, which is asked for it.
pub(crate) fn gid_index(namespace: &str, vernic: &str, address: &str) -> Result<u64> {
    row_index(namespace, vernic, address, "RoCEv2")
}

/// Returns the index of an address's GID of this version of RoCE.
fn row_index(namespace: &str, vernic: &str, address: &str, version: &str) -> Result<u64> {
    let line = format!("ip netns exec {namespace} {vernic} info vernic0 --json");
    let text = run(&line).env("VERNIC_CONFIG", "/dev/null").output()?;
    let info: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| format!("`{line}`: {e}"))?;
    let rows = info[0]["gids"].as_array().into_iter().flatten();
    let is_it = |row: &&serde_json::Value| row["ip"] == address && row["type"] == version;
    let mut index = rows.filter(is_it).filter_map(|row| row["index"].as_u64());
    index.next().ok_or_else(|| format!("vernic0 has no GID of {version} for {address}:\n{text}"))
}

/// Removes namespaces of processes that were killed before they could.
pub(crate) fn remove_left_over() -> Result {
    let list = run("ip netns list").output()?;
    for name in list.lines().filter_map(|line| line.split_whitespace().next()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            ip(&format!("netns del {name}"))?;
        }
    }
    Ok(())
}

/// Makes a namespace.
fn make(name: &str) -> Result {
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} link set lo up"))
}

/// Makes two namespaces with a veth pair between them, whose ends have these addresses.
fn make_pair(names: [&str; 2], addresses: impl Fn(usize) -> Vec<String>) -> Result {
    names.into_iter().try_for_each(make)?;
    let [one, other] = names.map(|name| format!("mtu {NETDEV_MTU} netns {name}"));
    ip(&format!("link add veth0 {one} type veth peer name veth0 {other}"))?;
    for (side, name) in names.into_iter().enumerate() {
        // A link-local address would come later, and may change the order of GIDs.
        ip(&format!("-n {name} link set veth0 addrgenmode none"))?;
        for address in addresses(side) {
            ip(&format!("-n {name} addr add dev veth0 {address}"))?;
        }
        ip(&format!("-n {name} link set veth0 up"))?;
    }
    names.into_iter().try_for_each(wait_for_link)
}

/// Waits until the veth is up: the kernel takes up to a second to say so after both ends are, and a
/// port is down until then.
fn wait_for_link(namespace: &str) -> Result {
    let begun = Instant::now();
    loop {
        let link = run(&format!("ip -n {namespace} -oneline link show veth0")).output()?;
        if link.contains(" state UP ") {
            return Ok(());
        }
        if begun.elapsed() > LINK_UP {
            return Err(format!("veth0 of {namespace} does not come up:\n{link}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ip(words: &str) -> Result {
    run(&format!("ip {words}")).output().map(drop)
}
