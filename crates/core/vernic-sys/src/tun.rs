//! TUN devices: netdevs of the kernel whose IP packets a process reads and writes; and what is set
//! on a netdev by its name.

use std::ffi::{CStr, c_short};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check;

/// A TUN device without packet information: what is read and written is bare IP packets, one each
/// time. The netdev is gone when this is dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
}

impl Tun {
    /// Makes the device `name`; an empty name lets the kernel choose one (`tun0`). Reading never
    /// waits.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` in the user namespace of this network namespace, `EBUSY` if
    /// there is a device of that name that another process has, `ENOENT` without `/dev/net/tun`.
    pub fn open(name: &str) -> io::Result<Self> {
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let fd = check(unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) })?;
        // SAFETY: the descriptor is new, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut request = named(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
        // SAFETY: TUNSETIFF reads the name and the flags, and writes the name, all in `request`.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        // SAFETY: the kernel has ended the name with a 0.
        let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
        Ok(Self { fd, name: name.to_string_lossy().into_owned() })
    }
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Reads the next packet that the host sends, and returns its length; longer ones are cut.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the call writes at most `buf.len()` bytes to `buf`.
        let len = unsafe { libc::read(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }
    /// Gives the host a packet.
    ///
    /// # Errors
    /// `EIO` while the device is down; `EINVAL` of what is no IP packet.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        // SAFETY: the call reads `packet.len()` bytes of `packet`.
        let len = unsafe { libc::write(self.fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
        if len < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
    /// Sets the MTU, in bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut request = named(&self.name)?;
        request.ifr_ifru.ifru_mtu = mtu as i32;
        ask(libc::SIOCSIFMTU as _, &mut request)
    }
    /// Brings the device up.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&self) -> io::Result<()> {
        let mut request = named(&self.name)?;
        ask(libc::SIOCGIFFLAGS as _, &mut request)?;
        // SAFETY: the call has written this variant.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as c_short;
        ask(libc::SIOCSIFFLAGS as _, &mut request)
    }
    /// Gives the device an IP address, beside those of IPv6 that it has, or in place of the one of
    /// IPv4 that it has.
    ///
    /// # Errors
    /// What the kernel says; `InvalidInput` if the prefix is longer than the address.
    pub fn set_address(&self, ip: IpAddr, prefix_len: u8) -> io::Result<()> {
        match ip {
            IpAddr::V4(ip) if prefix_len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
                for (what, ip) in
                    [(libc::SIOCSIFADDR, ip), (libc::SIOCSIFNETMASK, Ipv4Addr::from_bits(mask))]
                {
                    let mut request = named(&self.name)?;
                    request.ifr_ifru.ifru_addr = address_v4(ip);
                    ask(what as _, &mut request)?;
                }
                Ok(())
            }
            IpAddr::V6(ip) if prefix_len <= 128 => {
                let mut request = named(&self.name)?;
                ask(libc::SIOCGIFINDEX as _, &mut request)?;
                let request = AddressV6 {
                    address: ip.octets(),
                    prefix_len: u32::from(prefix_len),
                    // SAFETY: the call has written this variant.
                    index: unsafe { request.ifr_ifru.ifru_ifindex },
                };
                let socket = socket(libc::AF_INET6)?;
                // SAFETY: with a socket of IPv6, SIOCSIFADDR reads an in6_ifreq, which has this
                // layout.
                let result = unsafe {
                    libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &raw const request)
                };
                check(result).map(drop)
            }
            _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kernel's `in6_ifreq`.
#[repr(C)]
struct AddressV6 {
    address: [u8; 16],
    prefix_len: u32,
    index: i32,
}

/// A request about the interface of that name.
fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays 0: the end of the name.
    let room = request.ifr_name.len() - 1;
    if name.len() > room || name.contains('\0') {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn address_v4(ip: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: a sockaddr of zeros is valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::AF_INET as libc::sa_family_t;
    // A sockaddr_in has the port in the first two bytes, and then the address.
    for (to, from) in address.sa_data[2..6].iter_mut().zip(ip.octets()) {
        *to = from as libc::c_char;
    }
    address
}

fn socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Asks the kernel about the interface that the request names, or sets what it says.
fn ask(what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    let socket = socket(libc::AF_INET)?;
    // SAFETY: all requests of this file read and write an ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut *request) }).map(drop)
}
