//! Network interfaces and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// One interface as `getifaddrs` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Index, from 1.
    pub index: u32,
    /// Link-layer address; `None` if it is not 6 bytes long.
    pub mac: Option<[u8; 6]>,
    /// `IFF_*` flags.
    pub flags: u32,
    /// Hardware type (`ARPHRD_*`).
    pub hardware: u16,
    /// IP addresses, in the order of the kernel.
    pub addrs: Vec<InterfaceAddr>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddr {
    /// The address.
    pub ip: IpAddr,
    /// Scope id of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

/// Returns all interfaces of this network namespace, in the order of the kernel.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a place for the pointer that the call writes.
    super::check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut found: Vec<Interface> = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: the entries form a list that ends with null, alive until `freeifaddrs`; each
        // has a name, and an address or null; the address is as long as its family says.
        unsafe {
            let this = &*entry;
            let name = CStr::from_ptr(this.ifa_name).to_string_lossy();
            if !this.ifa_addr.is_null() {
                add_entry(&mut found, &name, this);
            }
            entry = this.ifa_next;
        }
    }
    // SAFETY: `list` came from `getifaddrs` and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Adds the interface, or the address, of one entry.
///
/// # Safety
/// The address of the entry must be alive and as long as its family says.
unsafe fn add_entry(found: &mut Vec<Interface>, name: &str, entry: &libc::ifaddrs) {
    // SAFETY: not null and alive, as the caller promises.
    let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
    if family == libc::AF_PACKET {
        // SAFETY: an address of this family is a sockaddr_ll.
        let link = unsafe { std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_ll>()) };
        let mac = (link.sll_halen == 6).then(|| {
            let a = link.sll_addr;
            [a[0], a[1], a[2], a[3], a[4], a[5]]
        });
        found.push(Interface {
            name: name.to_owned(),
            index: link.sll_ifindex as u32,
            mac,
            flags: entry.ifa_flags,
            hardware: link.sll_hatype,
            addrs: Vec::new(),
        });
        return;
    }
    let addr = match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in.
            let a = unsafe { std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>()) };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            InterfaceAddr { ip: ip.into(), scope_id: 0 }
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6.
            let a =
                unsafe { std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in6>()) };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            InterfaceAddr { ip: ip.into(), scope_id: a.sin6_scope_id }
        }
        _ => return,
    };
    // An IPv4 alias has its label (`eth0:1`) as its name.
    let device = name.split(':').next().unwrap_or(name);
    if let Some(interface) = found.iter_mut().find(|i| i.name == device) {
        interface.addrs.push(addr);
    }
}

/// Returns the MTU in bytes of the interface `name`, asked for through any socket.
pub fn mtu_of(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: an ifreq of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays 0: the end of the name.
    let room = request.ifr_name.len() - 1;
    if name.len() > room {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU, both in `request`.
    super::check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: the call has written this variant.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as u32)
}
