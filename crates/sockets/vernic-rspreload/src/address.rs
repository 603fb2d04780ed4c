//! Addresses as programs give and get them.

use std::ffi::c_int;
use std::ptr;

use libc::{sockaddr, socklen_t};

use crate::rdmacm;
use crate::real::next;

/// An address of IPv4 or IPv6, in the form of the system.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) bytes: [u8; size_of::<libc::sockaddr_storage>()],
    pub(crate) length: libc::socklen_t,
}

impl Address {
    /// A copy of an address of IP; `None` for another, or one that is too short.
    pub(crate) fn read(address: *const sockaddr, length: socklen_t) -> Option<Self> {
        let mut copy = Self { bytes: [0; size_of::<libc::sockaddr_storage>()], length };
        let count = length as usize;
        if address.is_null() || count < size_of::<libc::sockaddr_in>() || count > copy.bytes.len() {
            return None;
        }
        // SAFETY: the contract: so many bytes are there.
        unsafe { ptr::copy_nonoverlapping(address.cast(), copy.bytes.as_mut_ptr(), count) };
        let family = c_int::from(u16::from_ne_bytes([copy.bytes[0], copy.bytes[1]]));
        matches!(family, libc::AF_INET | libc::AF_INET6).then_some(copy)
    }

    /// The wildcard address.
    pub(crate) fn any(domain: c_int) -> Self {
        let mut any = Self { bytes: [0; size_of::<libc::sockaddr_storage>()], length: 0 };
        any.bytes[..2].copy_from_slice(&(domain as u16).to_ne_bytes());
        any.length = match domain {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        } as socklen_t;
        any
    }

    /// The own address of a socket over RDMA.
    pub(crate) fn of_rsocket(number: c_int) -> Option<Self> {
        // SAFETY: `told` has room for every address.
        Self::told(|place, length| unsafe { rdmacm::rgetsockname(number, place, length) })
    }

    /// The address of its peer, if it is or was connected.
    pub(crate) fn of_peer(number: c_int) -> Option<Self> {
        // SAFETY: as above.
        Self::told(|place, length| unsafe { rdmacm::rgetpeername(number, place, length) })
    }

    /// An address that `call` fills in, which returns 0 if there is one.
    fn told(call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Option<Self> {
        let mut told = Self { bytes: [0; size_of::<libc::sockaddr_storage>()], length: 0 };
        told.length = told.bytes.len() as socklen_t;
        let result = call(told.bytes.as_mut_ptr().cast(), &raw mut told.length);
        (result == 0).then_some(told)
    }

    pub(crate) fn raw(&self) -> *const sockaddr {
        self.bytes.as_ptr().cast()
    }

    pub(crate) fn port(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    pub(crate) fn with_port(mut self, port: u16) -> Self {
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// The wildcard address of the same version, with the same port.
    pub(crate) fn anywhere(&self) -> Self {
        let family = c_int::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]));
        Self::any(family).with_port(self.port())
    }

    /// The own address of a socket of the system, or with `peer` the other's.
    pub(crate) fn of_tcp(fd: c_int, peer: bool) -> Option<Self> {
        // SAFETY: as above.
        Self::told(|place, length| unsafe {
            match peer {
                true => next::getpeername(fd, place, length),
                false => next::getsockname(fd, place, length),
            }
        })
    }
}
