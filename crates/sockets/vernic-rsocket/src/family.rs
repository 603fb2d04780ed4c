//! IP version of a socket's addresses, and IPv4 mapped into IPv6.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::Error;

/// IP version of a socket's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`; IPv4 is mapped into it, as for sockets of the system.
    V6,
}

impl Family {
    /// The wildcard address, and no port.
    pub(crate) fn any(self) -> SocketAddr {
        let ip: IpAddr = match self {
            Self::V4 => [0_u8; 4].into(),
            Self::V6 => [0_u16; 8].into(),
        };
        SocketAddr::new(ip, 0)
    }

    /// An address of the user's, without the mapping.
    ///
    /// # Errors
    /// [`Error::Family`] for one of the other version.
    pub(crate) fn inwards(self, addr: SocketAddr) -> Result<SocketAddr, Error> {
        match (self, addr) {
            (Self::V4, SocketAddr::V4(_)) | (Self::V6, SocketAddr::V6(_)) => Ok(unmapped(addr)),
            _ => Err(Error::Family(addr)),
        }
    }

    /// An address as the user sees it.
    pub(crate) fn outwards(self, addr: SocketAddr) -> SocketAddr {
        match (self, addr) {
            (Self::V6, SocketAddr::V4(v4)) => {
                let ip = match v4.ip().is_unspecified() {
                    true => Ipv6Addr::UNSPECIFIED,
                    false => v4.ip().to_ipv6_mapped(),
                };
                SocketAddrV6::new(ip, v4.port(), 0, 0).into()
            }
            _ => addr,
        }
    }
}

/// An address without the mapping of IPv4 into IPv6.
pub(crate) fn unmapped(addr: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = addr else { return addr };
    match v6.ip().to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(v4.into(), v6.port()),
        None => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_ipv6_see_ipv4_mapped() {
        let v4: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:7".parse().unwrap();
        assert_eq!(Family::V6.inwards(mapped).unwrap(), v4);
        assert_eq!(Family::V6.outwards(v4), mapped);
        assert_eq!(Family::V4.outwards(v4), v4);
        assert_eq!(Family::V6.outwards(Family::V4.any()), Family::V6.any());
    }

    #[test]
    fn addresses_of_the_other_version_are_refused() {
        let error = Family::V4.inwards("[::1]:7".parse().unwrap()).unwrap_err();
        assert_eq!(error.errno(), libc::EAFNOSUPPORT);
        assert!(Family::V6.inwards("127.0.0.1:7".parse().unwrap()).is_err());
    }
}
