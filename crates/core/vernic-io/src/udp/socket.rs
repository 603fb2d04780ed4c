//! Opening the sockets of a UDP link: which kinds there are, and the options of each.
//!
//! | kind | bound to | connected | shared with other processes |
//! |---|---|---|---|
//! | transmit | address : port >= 49152 | never (Identification!) | no |
//! | guard | any address : the port of a transmit socket | no | no |
//! | public | address : 4791 | no | yes, `SO_REUSEPORT`, same user |
//! | private | address : any port | no | no |
//! | steered | address : 4791 | to one peer's address and port | its bind, yes |
//! | group | multicast address : 4791 | no | yes |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use vernic_sys as sys;
use vernic_sys::OwnFd;

use crate::ROCE_PORT;
use crate::address::LocalAddr;
use crate::buffer;
use crate::link::LinkError;
use crate::udp::{UdpConfig, ecn, gro, holder, pmtu};

/// The first dynamic port (RFC 6335, section 6): source ports carry entropy from here up, as
/// IBTA A17.9.3 recommends.
const FIRST_SOURCE_PORT: u16 = 49_152;

/// Source ports to try before giving up.
const SOURCE_PORT_TRIES: u32 = 64;

fn new_socket(local: LocalAddr) -> Result<OwnFd, LinkError> {
    let family = if local.ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    sys::socket(family, libc::SOCK_DGRAM, 0)
        .and_then(|fd| {
            if !local.ip.is_ipv4() {
                sys::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            }
            Ok(fd)
        })
        .map_err(|source| LinkError::Os { what: "open a UDP socket", addr: local, source })
}

fn bind_error(local: LocalAddr, source: io::Error) -> LinkError {
    match source.raw_os_error() {
        Some(libc::EADDRNOTAVAIL | libc::ENODEV) => LinkError::NoSuchAddress { addr: local },
        _ => LinkError::Os { what: "bind a UDP socket", addr: local, source },
    }
}

/// A socket that packets are sent from.
#[derive(Debug)]
pub(crate) struct Transmitter {
    pub(crate) fd: OwnFd,
    pub(crate) port: u16,
    /// The socket that keeps the port from others: see [`guard`].
    _guard: Option<OwnFd>,
}

/// Opens a transmit socket. `seed` chooses the first port tried.
pub(crate) fn transmit(
    local: LocalAddr,
    config: &UdpConfig,
    seed: u32,
) -> Result<Transmitter, LinkError> {
    let fd = new_socket(local)?;
    let v4 = local.ip.is_ipv4();
    pmtu::forbid_fragments(fd.as_fd(), v4).map_err(|source| LinkError::Os {
        what: "forbid fragments (IP_MTU_DISCOVER)",
        addr: local,
        source,
    })?;
    ecn::set_send_defaults(fd.as_fd(), v4);
    buffer::set_send(fd.as_fd(), config.send_buffer_bytes);
    // No peer has a reason to send to this port; what arrives is not kept.
    let _ = sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    set_multicast_device(&fd, local);
    for i in 0..SOURCE_PORT_TRIES {
        // Steps of a large odd number visit ports far apart.
        let port = FIRST_SOURCE_PORT | (seed.wrapping_add(i.wrapping_mul(7919)) & 0x3FFF) as u16;
        let guard = match guard(local, port)? {
            Guard::Kept(guard) => Some(guard),
            Guard::Taken => continue,
            Guard::Forbidden => None,
        };
        match bind_beside(&fd, local.with_port(port), guard.as_ref()) {
            Ok(()) => return Ok(Transmitter { fd, port, _guard: guard }),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(bind_error(local, e)),
        }
    }
    Err(LinkError::TooMany { what: "source ports", limit: SOURCE_PORT_TRIES as usize })
}

/// The result of [`guard`].
enum Guard {
    Kept(OwnFd),
    /// A socket has the port, on some address.
    Taken,
    /// The system lets no process bind to all addresses.
    Forbidden,
}

/// Takes a port on all addresses, so that no other user sends from it. Peers know us by our address
/// and port (the engine's `source.rs`). Binding to them alone does not keep others from sending
/// from them. A socket that has the same port on another address of the host, such as 127.0.0.2,
/// may name our address as a packet's source (`IP_PKTINFO`).
fn guard(local: LocalAddr, port: u16) -> Result<Guard, LinkError> {
    let fd = new_socket(local)?;
    let _ = sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    let any = match local.ip {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    match sys::bind(fd.as_fd(), &SocketAddr::new(any, port)) {
        Ok(()) => Ok(Guard::Kept(fd)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(Guard::Taken),
        Err(error) => {
            tracing::debug!(%local, port, %error, "other users may send from this port");
            Ok(Guard::Forbidden)
        }
    }
}

/// Binds a socket to a port that its guard has. Both share the port for the moment, which only
/// sockets of one user can.
fn bind_beside(fd: &OwnFd, addr: SocketAddr, guard: Option<&OwnFd>) -> io::Result<()> {
    let share = |shared| {
        [Some(fd), guard].into_iter().flatten().try_for_each(|fd| {
            sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, shared)
        })
    };
    if guard.is_none() {
        return sys::bind(fd.as_fd(), &addr);
    }
    share(1)?;
    let bound = sys::bind(fd.as_fd(), &addr);
    share(0)?;
    bound
}

/// Sends multicast through the device that has the address, whatever the routes say. Members on
/// this host receive it too (the system's default).
fn set_multicast_device(fd: &OwnFd, local: LocalAddr) {
    let _ = match local.ip {
        IpAddr::V4(ip) => {
            sys::set_option_bytes(fd.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &ip.octets())
        }
        IpAddr::V6(_) => {
            let Ok(index) = crate::netdev::index_of(local) else { return };
            let index = i32::try_from(index).unwrap_or(0);
            sys::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index)
        }
    };
}

fn set_receive_options(fd: &OwnFd, v4: bool, config: &UdpConfig) {
    let fd = fd.as_fd();
    buffer::set_receive(fd, config.receive_buffer_bytes);
    ecn::enable_receive(fd, v4);
    if config.offload {
        gro::enable(fd);
    }
    if !v4 {
        // rxe sends UDP checksum 0 over IPv6 too (RFC 6936 permits it to tunnels).
        let _ = sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
    }
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
}

/// Opens the socket for all packets to `local`, port 4791.
pub(crate) fn public(local: LocalAddr, config: &UdpConfig) -> Result<OwnFd, LinkError> {
    let fd = new_socket(local)?;
    share_port(&fd, local)?;
    set_receive_options(&fd, local.ip.is_ipv4(), config);
    match sys::bind(fd.as_fd(), &local.with_port(ROCE_PORT)) {
        Ok(()) => Ok(fd),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(holder::port_taken(local)),
        Err(e) => Err(bind_error(local, e)),
    }
}

fn share_port(fd: &OwnFd, local: LocalAddr) -> Result<(), LinkError> {
    sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(|source| {
        LinkError::Os { what: "share a port (SO_REUSEPORT)", addr: local, source }
    })
}

/// Opens a socket for peers on this host that are given its port; returns the socket with the port.
pub(crate) fn private(local: LocalAddr, config: &UdpConfig) -> Result<(OwnFd, u16), LinkError> {
    let fd = new_socket(local)?;
    set_receive_options(&fd, local.ip.is_ipv4(), config);
    sys::bind(fd.as_fd(), &local.with_port(0)).map_err(|e| bind_error(local, e))?;
    let port = sys::local_addr(fd.as_fd()).map_err(|e| bind_error(local, e))?.port();
    Ok((fd, port))
}

/// Opens a socket that takes all packets from `peer` to `local`, port 4791. The kernel prefers a
/// connected socket to an unconnected one when it looks for a receiver. For receiving only.
pub(crate) fn steered(
    local: LocalAddr,
    peer: &SocketAddr,
    config: &UdpConfig,
) -> Result<OwnFd, LinkError> {
    let fd = public(local, config)?;
    sys::connect(fd.as_fd(), peer).map_err(|source| LinkError::Os {
        what: "steer a flow",
        addr: local,
        source,
    })?;
    Ok(fd)
}

/// Checks that the kernel would send packets from `local` to the multicast address `group`: it
/// looks for a route when a socket is connected.
///
/// # Errors
/// [`LinkError::NoRoute`] if the kernel has no route; [`LinkError::Os`].
pub fn check_route(local: LocalAddr, group: IpAddr) -> Result<(), LinkError> {
    let fd = new_socket(local)?;
    set_multicast_device(&fd, local);
    sys::bind(fd.as_fd(), &local.with_port(0)).map_err(|e| bind_error(local, e))?;
    sys::connect(fd.as_fd(), &LocalAddr::from(group).with_port(ROCE_PORT)).map_err(|source| {
        match source.raw_os_error() {
            Some(libc::ENETUNREACH) => LinkError::NoRoute { addr: local, group },
            _ => LinkError::Os { what: "find a route to the multicast group", addr: local, source },
        }
    })
}

/// Opens a socket for packets to the multicast address `group` that arrive on netdev `ifindex`.
pub(crate) fn group(group: IpAddr, ifindex: u32, config: &UdpConfig) -> Result<OwnFd, LinkError> {
    let local = LocalAddr::new(group, ifindex);
    let fd = public(local, config)?;
    sys::set_membership(fd.as_fd(), group, ifindex, true).map_err(|source| LinkError::Os {
        what: "join the multicast group",
        addr: local,
        source,
    })?;
    Ok(fd)
}
