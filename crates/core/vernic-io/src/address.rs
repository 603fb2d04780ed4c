//! Addresses: those in packets, and those of this host.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use vernic_wire::Gid;

/// An address in a packet; the link layer decides which of the two kinds.
#[derive(Clone, Copy, Debug, Eq)]
pub enum Address {
    /// A GID: RoCEv2, and packets of InfiniBand with a GRH.
    Gid(Gid),
    /// A GID in a packet of RoCEv1: a queue pair takes packets of one version only.
    RoceV1(Gid),
    /// A local identifier: packets of InfiniBand within a subnet.
    Lid(u16),
    /// A local identifier of a port of this device. Its high bits are not part of the address: a
    /// subnet manager may change them at any time.
    OwnLid {
        /// The number of the port.
        port: u8,
        /// The low bits, which are the port's own to choose.
        path_bits: u8,
    },
}

impl Address {
    /// Returns the address as a GID. A LID, which has none, becomes `fe80::` and the LID, or
    /// `fe80::`, the port and the path bits, so that settings and logs that only have GIDs can name
    /// it.
    #[inline]
    pub fn gid(self) -> Gid {
        match self {
            Self::Gid(gid) | Self::RoceV1(gid) => gid,
            Self::Lid(lid) => {
                let [high, low] = lid.to_be_bytes();
                Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low])
            }
            Self::OwnLid { port, path_bits } => {
                Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, port, 0, path_bits])
            }
        }
    }

    /// Returns the address as an IP address, made from its [GID](Self::gid).
    #[inline]
    pub fn ip(self) -> IpAddr {
        self.gid().to_ip()
    }
}

/// Compares 128 bits at once where both are GIDs, since this is done for each packet.
impl PartialEq for Address {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gid(own), Self::Gid(other)) | (Self::RoceV1(own), Self::RoceV1(other)) => {
                u128::from_ne_bytes(own.0) == u128::from_ne_bytes(other.0)
            }
            (Self::Lid(own), Self::Lid(other)) => own == other,
            (
                Self::OwnLid { port: own_port, path_bits: own_bits },
                Self::OwnLid { port, path_bits },
            ) => (own_port, own_bits) == (port, path_bits),
            _ => false,
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self::Gid(Gid::from_ip(ip))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gid(gid) | Self::RoceV1(gid) => write!(f, "{}", gid.to_ip()),
            Self::Lid(lid) => write!(f, "LID {lid}"),
            Self::OwnLid { port, path_bits } => {
                write!(f, "the LID of port {port}, path bits {path_bits}")
            }
        }
    }
}

/// A local address, with the netdev index that makes a link-local IPv6 address complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The address.
    pub ip: IpAddr,
    /// Index of the netdev for a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

impl LocalAddr {
    /// Makes an address of an IP address and a scope id, which is kept only for link-local IPv6.
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let link_local = match ip {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        };
        Self { ip, scope_id: if link_local { scope_id } else { 0 } }
    }

    /// Returns the address with a port, as sockets take it.
    pub fn with_port(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, self.scope_id)),
        }
    }
}

impl From<IpAddr> for LocalAddr {
    fn from(ip: IpAddr) -> Self {
        Self::new(ip, 0)
    }
}

impl std::fmt::Display for LocalAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.scope_id {
            0 => write!(f, "{}", self.ip),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}
