//! What an interface is told at its start: its port, its partition, its mode, its limits.

use vernic_wire::ipoib::{CONNECTED_MTU, ConnectedModes, Encapsulation, HardwareAddress, Scope};
use vernic_wire::{Gid, Lid, Mtu, Pkey, Qkey, Qpn, ServiceLevel};

/// How an interface sends to others that take connections. It receives by both ways in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// By datagrams only.
    #[default]
    Datagram,
    /// By reliable connections where there are any (RFC 4755).
    Connected,
}

/// What a broadcast group is created with where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewGroup {
    /// Q_Key of the group.
    pub qkey: Qkey,
    /// MTU of the group.
    pub mtu: Mtu,
    /// Code of the group's rate (IBTA 15.2.5).
    pub rate: u8,
    /// Service level of the group.
    pub service_level: ServiceLevel,
}

/// Configuration of an [`Interface`](crate::Interface).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The port's GID.
    pub gid: Gid,
    /// The port's LID, by which multicast packets of our own are told.
    pub lid: Lid,
    /// The interface's queue pair of datagrams.
    pub qpn: Qpn,
    /// The partition. All groups are those of its full members.
    pub pkey: Pkey,
    /// How far the link reaches.
    pub scope: Scope,
    /// How the interface sends.
    pub mode: Mode,
    /// The longest message that connections bring, encapsulation included; `None` if the owner
    /// takes no connections.
    pub receive_mtu: Option<u32>,
    /// What the broadcast group is created with if the SA says that there is none; `None`: it is
    /// waited for.
    pub new_group: Option<NewGroup>,
    /// IP addresses whose hardware address is known or asked for. One more, and the one that is
    /// due first is forgotten.
    pub max_neighbors: usize,
    /// Multicast groups of InfiniBand, joined or sent to.
    pub max_groups: usize,
    /// Connections. Beyond, requests are refused and datagrams sent.
    pub max_connections: usize,
    /// Packets that wait for an answer.
    pub max_waiting: usize,
    /// Bytes of these.
    pub max_waiting_bytes: usize,
}

impl Config {
    /// Returns the configuration of a port and a queue pair, with everything else as usual: the
    /// default partition of one subnet, datagrams, and connections that are taken.
    pub const fn new(gid: Gid, lid: Lid, qpn: Qpn) -> Self {
        Self {
            gid,
            lid,
            qpn,
            pkey: Pkey::DEFAULT,
            scope: Scope::LINK_LOCAL,
            mode: Mode::Datagram,
            receive_mtu: Some(CONNECTED_MTU as u32 + Encapsulation::LEN as u32),
            new_group: None,
            // A subnet of 1,024 hosts, all in touch with each other, fits.
            max_neighbors: 1024,
            max_groups: 1024,
            max_connections: 1024,
            max_waiting: 256,
            // 64 of the longest.
            max_waiting_bytes: 4 << 20,
        }
    }
    /// Returns the hardware address of the interface.
    pub const fn address(&self) -> HardwareAddress {
        let modes = match self.receive_mtu {
            Some(_) => ConnectedModes::RC,
            None => ConnectedModes::empty(),
        };
        HardwareAddress { modes, qpn: self.qpn, gid: self.gid }
    }
}
