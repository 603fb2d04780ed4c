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
    /// Bits that the addresses of its network have in common.
    pub prefix_len: u8,
    /// Scope id of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

/// Returns all interfaces of this network namespace that have a link-layer address, be it of no
/// bytes, in the order of the kernel.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    // SAFETY: the entry is alive, with an address that is as long as its family says.
    each(|name, entry| unsafe { add_entry(&mut found, name, entry) })?;
    Ok(found)
}

/// Returns the IP addresses of the interface `name`, of whatever kind it is: TUN devices have no
/// link-layer address.
pub fn addresses_of(name: &str) -> io::Result<Vec<InterfaceAddr>> {
    let mut found = Vec::new();
    each(|label, entry| {
        if device_of(label) == name {
            // SAFETY: the entry is alive, with an address that is as long as its family says.
            found.extend(unsafe { address_of(entry) });
        }
    })?;
    Ok(found)
}

/// Calls `take` with the name of each entry that has an address, and the entry, which is alive
/// during the call.
fn each(mut take: impl FnMut(&str, &libc::ifaddrs)) -> io::Result<()> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a place for the pointer that the call writes.
    super::check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: the entries form a list that ends with null, alive until `freeifaddrs`; each
        // has a name.
        let (this, name) = unsafe { (&*entry, CStr::from_ptr((*entry).ifa_name)) };
        if !this.ifa_addr.is_null() {
            take(&name.to_string_lossy(), this);
        }
        entry = this.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs` and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(())
}

/// The interface that a name is of: an IPv4 alias has its label (`eth0:1`) as its name.
fn device_of(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
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
    // SAFETY: as the caller promises.
    let Some(addr) = (unsafe { address_of(entry) }) else { return };
    if let Some(interface) = found.iter_mut().find(|i| i.name == device_of(name)) {
        interface.addrs.push(addr);
    }
}

/// The IP address of an entry, if it has one.
///
/// # Safety
/// The address of the entry must be alive and as long as its family says.
unsafe fn address_of(entry: &libc::ifaddrs) -> Option<InterfaceAddr> {
    // SAFETY: not null and alive, as the caller promises.
    let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
    // SAFETY: the netmask is null, or as long as its family says, which is the address's.
    let prefix_len = unsafe { prefix_len_of(entry.ifa_netmask, family) };
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in.
            let a = unsafe { std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>()) };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            Some(InterfaceAddr { ip: ip.into(), prefix_len, scope_id: 0 })
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6.
            let a =
                unsafe { std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in6>()) };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some(InterfaceAddr { ip: ip.into(), prefix_len, scope_id: a.sin6_scope_id })
        }
        _ => None,
    }
}

/// The bits that a netmask has; 0 if there is none.
///
/// # Safety
/// The mask must be null, or alive and as long as the family says.
unsafe fn prefix_len_of(mask: *const libc::sockaddr, family: i32) -> u8 {
    if mask.is_null() {
        return 0;
    }
    let bits = match family {
        libc::AF_INET => {
            // SAFETY: a mask of this family is a sockaddr_in.
            let mask = unsafe { std::ptr::read_unaligned(mask.cast::<libc::sockaddr_in>()) };
            mask.sin_addr.s_addr.count_ones()
        }
        libc::AF_INET6 => {
            // SAFETY: a mask of this family is a sockaddr_in6.
            let mask = unsafe { std::ptr::read_unaligned(mask.cast::<libc::sockaddr_in6>()) };
            u128::from_ne_bytes(mask.sin6_addr.s6_addr).count_ones()
        }
        _ => 0,
    };
    bits as u8
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
