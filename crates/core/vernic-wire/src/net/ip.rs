//! IP header of either version.

use core::net::IpAddr;

use super::{Ipv4, Ipv6};

/// IP header of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// Version 4.
    V4(Ipv4),
    /// Version 6.
    V6(Ipv6),
}

impl Ip {
    /// Bytes on the wire: 20 or 40.
    pub const fn len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LEN,
            Self::V6(_) => Ipv6::LEN,
        }
    }
    /// Never: a header is not empty.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Ip::len`].
    pub fn emit(&self, buf: &mut [u8]) {
        match self {
            Self::V4(ip) => ip.emit(buf),
            Self::V6(ip) => ip.emit(buf),
        }
    }
    /// Source.
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.src),
            Self::V6(ip) => IpAddr::V6(ip.src),
        }
    }
    /// Destination.
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.dst),
            Self::V6(ip) => IpAddr::V6(ip.dst),
        }
    }
}
