//! Addresses of this host.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A local address, with the netdev index that makes a link-local IPv6 address complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The address.
    pub ip: IpAddr,
    /// Index of the netdev for a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

impl LocalAddr {
    /// An address and a scope id, which is kept only where it means something.
    pub fn new(ip: IpAddr, scope_id: u32) -> Self {
        let link_local = match ip {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        };
        Self { ip, scope_id: if link_local { scope_id } else { 0 } }
    }

    /// With a port, as sockets take it.
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
