//! The next hop: whether the first machine on the route to an address is there.
//!
//! The system asks for the machine's hardware address (ARP, RFC 826; neighbour discovery, RFC 4861)
//! when a first packet is to go there. It keeps the answer in its neighbour table, which any
//! process may read by netlink. Owns nothing. Called by the connection manager when an address is
//! resolved, never on the data path.
//!
//! A next hop counts as missing only while a search is under way, or after one has failed. In all
//! other cases packets may go: routes to this host, devices without hardware addresses, a sandbox
//! without netlink, and Linux before 5.0, which cannot be asked for one entry.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use vernic_sys::{self as sys, OwnFd};
use vernic_wire::net::MacAddr;

use crate::address::LocalAddr;

/// The discard port (RFC 863), to which the datagram that begins a search goes. RoCE devices would
/// count an empty datagram to their own port as an error.
const DISCARD_PORT: u16 = 9;

/// The hop limit of the datagram: it may pass no router, since only the next hop is to get it.
const HOP_LIMIT: i32 = 1;

/// The state of a next hop, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopState {
    /// Packets may go: the hardware address is known, or none is needed, or nothing is known.
    Open,
    /// The next hop was asked for its hardware address, and has not answered.
    Asked,
    /// The next hop was asked as often as the system does (three times, a second apart, by
    /// default), and is not there.
    Absent,
}

/// A next hop that was asked for its hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    ip: IpAddr,
    /// Index of the network device behind which the next hop is.
    netdev: u32,
}

impl NextHop {
    /// Lets the system look for the next hop on the route to `peer`, if it has to. The route begins
    /// at `local`, an address of the network device with index `netdev`. `None` if packets may go.
    ///
    /// Asks the system once if the peer is a known neighbour, and sends nothing then. Else an empty
    /// datagram goes to the next hop. Never blocks.
    pub fn seek(local: LocalAddr, netdev: u32, peer: SocketAddr) -> Option<Self> {
        let ip = peer.ip();
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || ip == local.ip {
            return None;
        }
        let netlink = Netlink::new().ok()?;
        let direct = Self { ip, netdev };
        if netlink.is_known(direct)? {
            return None;
        }
        let hop = netlink.route(local, peer)?;
        if hop != direct && netlink.is_known(hop)? {
            return None;
        }
        send_nothing(local, peer).ok()?;
        // The next hop is not asked for now, though a datagram was sent. So the datagram took
        // another route than the system's tables say, and their entry for this hop proves nothing.
        (netlink.state(hop) == HopState::Asked).then_some(hop)
    }

    /// Returns the present state of the next hop. Asks the system; never blocks.
    pub fn state(self) -> HopState {
        Netlink::new().map_or(HopState::Open, |netlink| netlink.state(self))
    }
}

/// What is known of a neighbour's Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HardwareAddress {
    /// The address.
    Known(MacAddr),
    /// The neighbour was asked and has not answered, as far as is known.
    Asked,
    /// Packets to the address go to a router first, or nowhere.
    NotOnLink,
}

/// Returns the Ethernet address of `ip` on the network device with index `netdev`, and lets the
/// system ask for it, from `local`, if it is not known. Never blocks.
pub(crate) fn hardware_address(local: LocalAddr, netdev: u32, ip: IpAddr) -> HardwareAddress {
    let Ok(netlink) = Netlink::new() else { return HardwareAddress::NotOnLink };
    let hop = NextHop { ip, netdev };
    match netlink.neighbour(hop) {
        Ok((bits, Some(mac))) if is_usable(bits) => return HardwareAddress::Known(mac),
        Ok((bits, _)) if bits & libc::NUD_INCOMPLETE != 0 => return HardwareAddress::Asked,
        _ => {}
    }
    let peer = LocalAddr::new(ip, netdev).with_port(0);
    if netlink.route(local, peer) != Some(hop) {
        return HardwareAddress::NotOnLink;
    }
    // The answer to a refusal is the same: nothing is known.
    let _ = send_nothing(local, peer);
    HardwareAddress::Asked
}

/// Sends an empty datagram that goes no further than to the next hop.
fn send_nothing(local: LocalAddr, peer: SocketAddr) -> io::Result<()> {
    let (family, level, option) = match peer {
        SocketAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_IP, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    };
    let socket = sys::socket(family, libc::SOCK_DGRAM, 0)?;
    sys::set_option(socket.as_fd(), level, option, HOP_LIMIT)?;
    sys::bind(socket.as_fd(), &local.with_port(0))?;
    let mut to = peer;
    to.set_port(DISCARD_PORT);
    sys::connect(socket.as_fd(), &to)?;
    sys::send(socket.as_fd(), &[]).map(drop)
}

/// Bytes of `struct nlmsghdr`: length, type, flags, sequence number, port.
const HEADER_LEN: usize = 16;
/// Bytes of `struct ndmsg`, and of `struct rtmsg`.
const BODY_LEN: usize = 12;
/// The longest answer: far more than one entry or route with its attributes.
const MAX_ANSWER: usize = 4096;

/// A netlink socket, by which the system's tables are read.
#[derive(Debug)]
struct Netlink(OwnFd);

impl Netlink {
    fn new() -> io::Result<Self> {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE).map(Self)
    }

    /// Whether packets may go to a neighbour without asking for its hardware address. `None` if the
    /// system does not say.
    fn is_known(&self, hop: NextHop) -> Option<bool> {
        match self.neighbour(hop) {
            Ok((bits, _)) => Some(is_usable(bits)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Some(false),
            Err(_) => None,
        }
    }

    fn state(&self, hop: NextHop) -> HopState {
        self.neighbour(hop).map_or(HopState::Open, |(bits, _)| state_of(bits))
    }

    /// Returns the state (`NUD_...`) of an entry of the neighbour table, and its Ethernet address;
    /// `ENOENT` where there is none.
    fn neighbour(&self, hop: NextHop) -> io::Result<(u16, Option<MacAddr>)> {
        // struct ndmsg: family, padding (3), device (4), state (2), flags, type.
        let mut body = [0; BODY_LEN];
        body[0] = family(hop.ip);
        body[4..8].copy_from_slice(&hop.netdev.to_ne_bytes());
        let mut request = Request::new(libc::RTM_GETNEIGH, &body);
        request.add(libc::NDA_DST, &octets(hop.ip));
        let answer = self.ask(request, libc::RTM_NEWNEIGH)?;
        let body = answer.get(..BODY_LEN).ok_or(io::ErrorKind::InvalidData)?;
        Ok((u16::from_ne_bytes([body[8], body[9]]), mac_in(&answer)))
    }

    /// Returns the next hop to `peer`; `None` if there is none that would have to be asked for.
    fn route(&self, local: LocalAddr, peer: SocketAddr) -> Option<NextHop> {
        // struct rtmsg: family, lengths of destination and source in bits, ..., type, flags (4).
        let mut body = [0; BODY_LEN];
        let (to, from) = (octets(peer.ip()), octets(local.ip));
        (body[0], body[1], body[2]) = (family(peer.ip()), bits(&to), bits(&from));
        let mut request = Request::new(libc::RTM_GETROUTE, &body);
        request.add(libc::RTA_DST, &to);
        request.add(libc::RTA_SRC, &from);
        if let SocketAddr::V6(v6) = peer
            && v6.scope_id() != 0
        {
            request.add(libc::RTA_OIF, &v6.scope_id().to_ne_bytes());
        }
        next_hop(&self.ask(request, libc::RTM_NEWROUTE).ok()?, peer.ip())
    }

    /// Sends a request, and returns the answer behind its header.
    fn ask(&self, request: Request, kind: u16) -> io::Result<Vec<u8>> {
        sys::write(self.0.as_fd(), &request.into_bytes())?;
        // The kernel answers during the request.
        let mut bytes = vec![0; MAX_ANSWER];
        let len = sys::read(self.0.as_fd(), &mut bytes)?;
        bytes.truncate(len);
        answer(&bytes, kind).map(<[u8]>::to_vec)
    }
}

/// A netlink message to be sent.
#[derive(Debug)]
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, body: &[u8; BODY_LEN]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend(body);
        Self(bytes)
    }

    /// Appends an attribute: its length with these four bytes, its type, its value. All values are
    /// multiples of four bytes, since the next attribute must begin at such a multiple.
    fn add(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
    }

    fn into_bytes(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Returns the bytes behind the header of an answer of this type.
///
/// # Errors
/// The error that the system answers instead; [`InvalidData`](io::ErrorKind::InvalidData).
fn answer(bytes: &[u8], kind: u16) -> io::Result<&[u8]> {
    let header = bytes.get(..HEADER_LEN).ok_or(io::ErrorKind::InvalidData)?;
    let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let body = bytes.get(HEADER_LEN..len).ok_or(io::ErrorKind::InvalidData)?;
    let found = u16::from_ne_bytes([header[4], header[5]]);
    if found == libc::NLMSG_ERROR as u16
        && let Some(&error) = body.first_chunk()
    {
        return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error).saturating_neg()));
    }
    if found == kind { Ok(body) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Returns the next hop of the route to `to` in an answer. `None` if packets go to no other
/// machine, or the route does not say where.
fn next_hop(route: &[u8], to: IpAddr) -> Option<NextHop> {
    if *route.get(7)? != libc::RTN_UNICAST {
        return None;
    }
    let mut hop = NextHop { ip: to, netdev: 0 };
    let mut rest = route.get(BODY_LEN..)?;
    // Each round takes four bytes at least.
    while let Some((len, kind)) = attribute(rest) {
        let value = rest.get(4..len)?;
        match kind {
            libc::RTA_OIF => hop.netdev = u32::from_ne_bytes(value.try_into().ok()?),
            libc::RTA_GATEWAY => hop.ip = address(value)?,
            // struct rtvia, of a gateway of the other IP version: family (2), address.
            libc::RTA_VIA => hop.ip = address(value.get(2..)?)?,
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    (hop.netdev != 0).then_some(hop)
}

/// Returns the Ethernet address in an answer about a neighbour.
fn mac_in(neighbour: &[u8]) -> Option<MacAddr> {
    let mut rest = neighbour.get(BODY_LEN..)?;
    // Each round takes four bytes at least.
    while let Some((len, kind)) = attribute(rest) {
        if kind == libc::NDA_LLADDR {
            return Some(MacAddr(rest.get(4..len)?.try_into().ok()?));
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    None
}

/// Returns the length, with its four bytes of header, and the type of the attribute that `bytes`
/// begin with.
fn attribute(bytes: &[u8]) -> Option<(usize, u16)> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    let len = usize::from(u16::from_ne_bytes([a, b]));
    (len >= 4).then_some((len, u16::from_ne_bytes([c, d])))
}

/// Whether packets go to a neighbour in this state at once.
fn is_usable(bits: u16) -> bool {
    let usable = libc::NUD_REACHABLE
        | libc::NUD_STALE
        | libc::NUD_DELAY
        | libc::NUD_PROBE
        | libc::NUD_PERMANENT
        | libc::NUD_NOARP;
    bits & usable != 0
}

fn state_of(bits: u16) -> HopState {
    match bits {
        libc::NUD_INCOMPLETE => HopState::Asked,
        libc::NUD_FAILED => HopState::Absent,
        _ => HopState::Open,
    }
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        _ => None,
    }
}

/// Returns the length of an address in bits.
fn bits(octets: &[u8]) -> u8 {
    octets.len() as u8 * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Makes an answer about a route: its type, and its attributes.
    fn route(kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = [0; BODY_LEN];
        body[7] = kind;
        let mut message = Request::new(libc::RTM_NEWROUTE, &body);
        attributes.iter().for_each(|(kind, value)| message.add(*kind, value));
        message.into_bytes()
    }

    fn hop_of(bytes: &[u8], to: &str) -> Option<NextHop> {
        next_hop(answer(bytes, libc::RTM_NEWROUTE).unwrap(), ip(to))
    }

    #[test]
    fn the_next_hop_is_the_gateway_or_the_peer_itself() {
        let netdev = 7u32;
        let device = (libc::RTA_OIF, &netdev.to_ne_bytes()[..]);
        let by = |more: &[(u16, &[u8])]| hop_of(&route(libc::RTN_UNICAST, more), "192.0.2.9");
        let hop = |text| Some(NextHop { ip: ip(text), netdev });
        assert_eq!(by(&[device]), hop("192.0.2.9"));
        assert_eq!(by(&[device, (libc::RTA_GATEWAY, &[10, 0, 0, 1])]), hop("10.0.0.1"));
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        via.extend(octets(ip("fe80::1")));
        // As the kernel pads it.
        let mut message = route(libc::RTN_UNICAST, &[device]);
        message.extend((4 + via.len() as u16).to_ne_bytes());
        message.extend(libc::RTA_VIA.to_ne_bytes());
        message.extend(via);
        message.extend([0; 2]);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(hop_of(&message, "192.0.2.9"), hop("fe80::1"));
        // The route names neither a gateway nor a device.
        assert_eq!(by(&[]), None);
    }

    #[test]
    fn only_routes_to_one_other_machine_have_a_next_hop() {
        let device = (libc::RTA_OIF, &1u32.to_ne_bytes()[..]);
        for kind in [libc::RTN_LOCAL, libc::RTN_BROADCAST, libc::RTN_MULTICAST] {
            assert_eq!(hop_of(&route(kind, &[device]), "192.0.2.9"), None);
        }
    }

    #[test]
    fn answers_that_are_cut_short_are_refused() {
        let device = (libc::RTA_OIF, &1u32.to_ne_bytes()[..]);
        let whole = route(libc::RTN_UNICAST, &[device]);
        for len in 0..whole.len() {
            assert!(answer(&whole[..len], libc::RTM_NEWROUTE).is_err(), "{len}");
        }
        for len in 0..whole.len() - HEADER_LEN {
            assert_eq!(next_hop(&whole[HEADER_LEN..][..len], ip("192.0.2.9")), None, "{len}");
        }
        // An attribute whose length is too large, and one whose length is less than its header.
        let mut long = whole.clone();
        long[HEADER_LEN + BODY_LEN..][..2].copy_from_slice(&99u16.to_ne_bytes());
        assert_eq!(hop_of(&long, "192.0.2.9"), None);
        let mut short = whole.clone();
        short[HEADER_LEN + BODY_LEN..][..2].copy_from_slice(&3u16.to_ne_bytes());
        assert_eq!(hop_of(&short, "192.0.2.9"), None);
        assert!(answer(&whole, libc::RTM_NEWNEIGH).is_err());
    }

    #[test]
    fn a_refusal_of_the_system_is_its_error() {
        let mut body = [0; BODY_LEN];
        body[..4].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        let bytes = Request::new(libc::NLMSG_ERROR as u16, &body).into_bytes();
        let error = answer(&bytes, libc::RTM_NEWNEIGH).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_neighbour_is_waited_for_while_it_is_asked_and_absent_when_that_failed() {
        let known = [
            libc::NUD_REACHABLE,
            libc::NUD_STALE,
            libc::NUD_DELAY,
            libc::NUD_PROBE,
            libc::NUD_PERMANENT,
            libc::NUD_NOARP,
        ];
        for bits in known {
            assert_eq!((is_usable(bits), state_of(bits)), (true, HopState::Open), "{bits:#x}");
        }
        let states = [libc::NUD_INCOMPLETE, libc::NUD_FAILED, libc::NUD_NONE]
            .map(|bits| (is_usable(bits), state_of(bits)));
        let expected = [HopState::Asked, HopState::Absent, HopState::Open];
        assert_eq!(states, expected.map(|state| (false, state)));
    }

    #[test]
    fn nobody_is_looked_for_on_this_host_or_in_a_group() {
        let lo = LocalAddr::from(ip("127.0.0.1"));
        for peer in ["127.0.0.1:7", "127.9.9.9:7", "0.0.0.0:7", "224.0.0.9:7"] {
            assert_eq!(NextHop::seek(lo, 1, peer.parse().unwrap()), None, "{peer}");
        }
        // The system's answers about an address of its own, and about a neighbour that was never
        // asked for.
        let Ok(netlink) = Netlink::new() else {
            println!("skipped: no netlink here");
            return;
        };
        assert_eq!(netlink.route(lo, "127.0.0.1:7".parse().unwrap()), None);
        assert_eq!(NextHop { ip: ip("192.0.2.77"), netdev: 1 }.state(), HopState::Open);
    }
}
