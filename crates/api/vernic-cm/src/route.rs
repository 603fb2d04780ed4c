//! The source address for a destination, by the system's own routing.
//!
//! A connected UDP socket knows the source address that the system chose, without sending anything.
//! The device is the one that has this address: the route decides the address, the address alone
//! decides the device.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use vernic_engine::Gate;
use vernic_io::{LocalAddr, ROCE_PORT};

use crate::error::Error;

/// The address that the system sends from to `dst`, with port 0.
///
/// # Errors
/// [`Error::Family`] and [`Error::Scope`] for addresses of different IP versions or without a
/// netdev, [`Error::NoRoute`].
pub(crate) fn source(src: Option<SocketAddr>, dst: SocketAddr) -> Result<SocketAddr, Error> {
    check_scope(dst)?;
    if let Some(src) = src {
        check_scope(src)?;
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(Error::Family { src, dst });
        }
    }
    let ask = || {
        let from = src.map_or_else(|| unspecified(dst), |src| with_port(src, 0));
        // No child inherits the socket.
        let _gate = Gate::enter();
        let socket = UdpSocket::bind(from)?;
        socket.connect(with_port(dst, ROCE_PORT))?;
        socket.local_addr()
    };
    let found = ask().map_err(|source| Error::NoRoute { src, dst, source })?;
    Ok(with_port(found, 0))
}

/// Refuses a link-local address that names no netdev.
///
/// # Errors
/// [`Error::Scope`].
pub(crate) fn check_scope(addr: SocketAddr) -> Result<(), Error> {
    match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(Error::Scope(addr))
        }
        _ => Ok(()),
    }
}

/// The wildcard address of the IP version of `like`.
pub(crate) fn unspecified(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0),
        SocketAddr::V6(v6) => {
            let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, scope))
        }
    }
}

/// The address with another port.
pub(crate) fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

/// The address in the form that devices use.
pub(crate) fn local(addr: SocketAddr) -> LocalAddr {
    let scope = match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    LocalAddr::new(addr.ip(), scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_an_own_address_is_that_address() {
        let home: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(source(None, home).unwrap(), with_port(home, 0));
        assert_eq!(source(Some(home), home).unwrap(), with_port(home, 0));
        // A wildcard destination means this host.
        assert_eq!(source(None, "0.0.0.0:7".parse().unwrap()).unwrap(), with_port(home, 0));
    }

    #[test]
    fn addresses_that_do_not_go_together_are_named() {
        let v6: SocketAddr = "[::1]:7".parse().unwrap();
        let error = source(Some(v6), "127.0.0.1:7".parse().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Family { .. }), "{error}");
        let near: SocketAddr = "[fe80::1]:7".parse().unwrap();
        let error = source(None, near).unwrap_err();
        assert!(error.to_string().contains("fe80::1") && error.errno() == libc::EINVAL, "{error}");
        let foreign: SocketAddr = "192.0.2.77:0".parse().unwrap();
        let error = source(Some(foreign), "127.0.0.1:7".parse().unwrap()).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    }
}
