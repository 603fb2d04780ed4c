//! Socket addresses of C: `struct sockaddr`, whose length follows from its family.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use vernic_cm::GidAddr;
use vernic_wire::{Gid, Pkey};

use crate::boundary::Failure;
use crate::pointer::Plain;

/// Bytes of `sockaddr_in`.
const IPV4_BYTES: usize = size_of::<libc::sockaddr_in>();
/// Bytes of `sockaddr_in6`.
const IPV6_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Bytes of `sockaddr_storage`: room for the address of any family.
pub(crate) const STORAGE_BYTES: usize = size_of::<libc::sockaddr_storage>();

/// `AF_IB`: GIDs and P_Keys of InfiniBand instead of IP.
pub(crate) const AF_IB: u16 = 27;
/// Bytes of `sockaddr_ib`.
pub(crate) const INFINIBAND_BYTES: usize = 48;

/// An address of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmAddr {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A GID, a partition and a port (`AF_IB`).
    Gid(GidAddr),
}

/// A `struct sockaddr *`, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct SockAddr(*mut libc::sockaddr);

// SAFETY: a pointer, whatever its bits are.
unsafe impl Plain for SockAddr {}

impl SockAddr {
    /// No address.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// An address whose owner C is, or becomes.
    pub(crate) fn told(address: *mut libc::sockaddr) -> Self {
        Self(address)
    }

    /// The address of the address.
    pub(crate) fn raw(self) -> *mut libc::sockaddr {
        self.0
    }

    /// What is there, of either kind; `None` for NULL.
    ///
    /// # Errors
    /// `EINVAL` for an address that is neither of IP nor of InfiniBand.
    pub(crate) fn read_any(self) -> Result<Option<CmAddr>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: every address starts with its family (contract of `pointer.rs`, 2).
        let family = unsafe { self.0.cast::<u16>().read_unaligned() };
        if family != AF_IB {
            return Ok(self.read()?.map(CmAddr::Ip));
        }
        let mut bytes = [0; INFINIBAND_BYTES];
        // SAFETY: so long is an address of this family (contract of `pointer.rs`, 2).
        unsafe {
            ptr::copy_nonoverlapping(self.0.cast(), bytes.as_mut_ptr(), bytes.len());
        }
        Ok(Some(CmAddr::Gid(infiniband(&bytes))))
    }

    /// What is there; `None` for NULL.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for an address of InfiniBand, `EINVAL` for another that is not of IP.
    pub(crate) fn read(self) -> Result<Option<SocketAddr>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: every address starts with its family (contract of `pointer.rs`, 2).
        let family = unsafe { self.0.cast::<u16>().read_unaligned() };
        match i32::from(family) {
            libc::AF_INET => {
                let mut bytes = [0; IPV4_BYTES];
                // SAFETY: so long is an address of this family (contract of `pointer.rs`, 2).
                unsafe {
                    ptr::copy_nonoverlapping(self.0.cast(), bytes.as_mut_ptr(), bytes.len());
                }
                Ok(Some(ipv4(&bytes)))
            }
            libc::AF_INET6 => {
                let mut bytes = [0; IPV6_BYTES];
                // SAFETY: as above.
                unsafe {
                    ptr::copy_nonoverlapping(self.0.cast(), bytes.as_mut_ptr(), bytes.len());
                }
                Ok(Some(ipv6(&bytes)))
            }
            _ if family == AF_IB => {
                let why = "an address of InfiniBand (AF_IB), where only IPv4 and IPv6 are possible";
                Err(Failure::new(libc::EAFNOSUPPORT, why))
            }
            _ => Err(Failure::invalid(format!("address family {family}: neither IPv4 nor IPv6"))),
        }
    }

    /// As [`read`](Self::read), of an address that has to be.
    ///
    /// # Errors
    /// `EINVAL` for NULL; as there.
    pub(crate) fn require(self, name: &'static str) -> Result<SocketAddr, Failure> {
        self.read()?.ok_or_else(|| Failure::null(name))
    }
}

impl SockAddr {
    /// A copy of so many bytes of an address of any family; none for NULL.
    ///
    /// # Errors
    /// `EINVAL` for more bytes than an address can have.
    pub(crate) fn copy(self, count: libc::socklen_t) -> Result<Vec<u8>, Failure> {
        let count = count as usize;
        if count > STORAGE_BYTES {
            return Err(Failure::invalid(format!("an address of {count} bytes")));
        }
        if self.0.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: the caller was told by C that so many are there (contract of `pointer.rs`, 2).
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), count) }.to_vec())
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

/// `sockaddr_in`: family, port, address.
fn ipv4(bytes: &[u8; IPV4_BYTES]) -> SocketAddr {
    let port = u16::from_be_bytes(part(bytes, 2));
    SocketAddrV4::new(Ipv4Addr::from(part::<4>(bytes, 4)), port).into()
}

/// `sockaddr_in6`: family, port, flow information, address, scope.
fn ipv6(bytes: &[u8; IPV6_BYTES]) -> SocketAddr {
    let port = u16::from_be_bytes(part(bytes, 2));
    let flow = u32::from_be_bytes(part(bytes, 4));
    let scope = u32::from_ne_bytes(part(bytes, 24));
    SocketAddrV6::new(Ipv6Addr::from(part::<16>(bytes, 8)), port, flow, scope).into()
}

/// `sockaddr_ib`: family, P_Key, flow information, GID, service id, its mask, scope.
fn infiniband(bytes: &[u8; INFINIBAND_BYTES]) -> GidAddr {
    let service = u64::from_be_bytes(part(bytes, 24));
    GidAddr {
        gid: Gid(part(bytes, 8)),
        port: service as u16,
        pkey: Pkey(u16::from_be_bytes(part(bytes, 2))),
    }
}

/// An address of InfiniBand as C has it: `service` is the port's service id.
pub(crate) fn infiniband_bytes(address: GidAddr, service: u64) -> [u8; STORAGE_BYTES] {
    let mut bytes = [0; STORAGE_BYTES];
    bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.pkey.value().to_be_bytes());
    bytes[8..24].copy_from_slice(&address.gid.0);
    bytes[24..32].copy_from_slice(&service.to_be_bytes());
    bytes[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
    bytes
}

/// An address as C has it, and how many of the bytes it takes.
pub(crate) fn to_bytes(address: SocketAddr) -> ([u8; STORAGE_BYTES], usize) {
    let mut bytes = [0; STORAGE_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, length) = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (libc::AF_INET, IPV4_BYTES)
        }
        SocketAddr::V6(v6) => {
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (libc::AF_INET6, IPV6_BYTES)
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_c_are_read_as_they_were_written() {
        for text in ["192.0.2.1:7471", "[2001:db8::1]:1", "0.0.0.0:0", "[::]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes = to_bytes(address).0;
            assert_eq!(SockAddr(bytes.as_mut_ptr().cast()).read().unwrap(), Some(address));
        }
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 7, 3);
        let mut bytes = to_bytes(scoped.into()).0;
        assert_eq!(SockAddr(bytes.as_mut_ptr().cast()).read().unwrap(), Some(scoped.into()));
    }

    #[test]
    fn addresses_of_infiniband_are_read_as_they_were_written() {
        let gid = Gid::from_ip("fe80::2:c903:1".parse::<Ipv6Addr>().unwrap().into());
        let address = GidAddr { gid, port: 7471, pkey: Pkey(0x8001) };
        let mut bytes = infiniband_bytes(address, 0x0106_1D2F);
        let read = SockAddr(bytes.as_mut_ptr().cast()).read_any().unwrap();
        assert_eq!(read, Some(CmAddr::Gid(address)));
        let ip: SocketAddr = "192.0.2.1:7471".parse().unwrap();
        let mut bytes = to_bytes(ip).0;
        let read = SockAddr(bytes.as_mut_ptr().cast()).read_any().unwrap();
        assert_eq!(read, Some(CmAddr::Ip(ip)));
    }

    #[test]
    fn a_family_other_than_ip_is_an_error_and_null_is_no_address() {
        for (family, errno) in [(0, libc::EINVAL), (1, libc::EINVAL), (27, libc::EAFNOSUPPORT)] {
            let mut bytes = [0_u8; STORAGE_BYTES];
            bytes[0] = family;
            let failure = SockAddr(bytes.as_mut_ptr().cast()).read().unwrap_err();
            assert_eq!(failure.errno, errno, "family {family}");
        }
        assert_eq!(SockAddr::NULL.read().unwrap(), None);
        assert_eq!(SockAddr::NULL.require("x").unwrap_err().errno, libc::EINVAL);
    }
}
