//! Where packets go, and how.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::address::LocalAddr;

/// Intakes that a link knows at a time: as many as there may be processes. After that the oldest
/// gives way.
pub const MAX_INTAKES: usize = 1023;

/// Which intake a path leads to, in the [`SlotTable`](crate::SlotTable) that knows it: 1 to
/// [`MAX_INTAKES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntakeId(u16);

impl IntakeId {
    /// From the number; `None` for 0 and what is above [`MAX_INTAKES`].
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number as usize > MAX_INTAKES { None } else { Some(Self(number)) }
    }

    /// The one at place `index` of a list of [`MAX_INTAKES`] at most.
    pub(crate) const fn at(index: usize) -> Self {
        Self(index as u16 + 1)
    }

    /// The number.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Its place in `IntakeTable::copy_to`'s list.
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// Where packets go and how: all that a run has in common.
///
/// Small, `Copy`, and compared as plain integers: the batch compares one per packet. Addresses
/// are kept as 128-bit numbers, IPv4 as IPv4-mapped, which is also their form as a GID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxPath {
    src: u128,
    dst: u128,
    scope_id: u32,
    dst_port: u16,
    flow: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Number of the intake it leads to, or 0.
    intake: u16,
}

impl TxPath {
    /// Hop limit (TTL) of a path that names none: what Linux uses for its own packets.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// A path from the local address `src` to `dst`, flow 0, traffic class 0.
    ///
    /// A link-local IPv6 `dst` must carry its scope id (the index of the netdev); it then holds
    /// for `src` too. Both ends must be of one family, else the link refuses the packets and
    /// counts them as send errors.
    pub fn new(src: IpAddr, dst: SocketAddr) -> Self {
        let scope_id = match dst {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        Self {
            src: to_bits(src),
            dst: to_bits(dst.ip()),
            scope_id,
            dst_port: dst.port(),
            flow: 0,
            traffic_class: 0,
            hop_limit: Self::DEFAULT_HOP_LIMIT,
            intake: 0,
        }
    }

    /// The same path with another flow: a number that spreads traffic over source ports, for
    /// the sake of ECMP hashing in the network and of receive queues at the peer. The link maps
    /// it onto the source ports it has open; packets of one QP must keep one flow. See [`Slot::flow`](crate::host::Slot::flow).
    #[must_use]
    pub fn with_flow(mut self, flow: u16) -> Self {
        self.flow = flow;
        self
    }

    /// The same path with another traffic class (the whole TOS byte: DSCP in the upper six
    /// bits, ECN in the lower two; ECT(0) is 2).
    #[must_use]
    pub fn with_traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// The same path with another hop limit (TTL), 1 to 255.
    #[must_use]
    pub fn with_hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// The same path to another UDP port, and into what receives there.
    #[must_use]
    pub fn with_port(mut self, port: u16, intake: Option<IntakeId>) -> Self {
        self.dst_port = port;
        self.intake = intake.map_or(0, IntakeId::value);
        self
    }

    /// The local address that the packets come from.
    pub fn src(&self) -> IpAddr {
        from_bits(self.src)
    }

    /// The local address with its scope id, as [`Link::activate`](crate::Link::activate) takes it.
    pub fn local(&self) -> LocalAddr {
        LocalAddr::new(self.src(), self.scope_id)
    }

    /// Destination address and UDP port.
    pub fn dst(&self) -> SocketAddr {
        match from_bits(self.dst) {
            IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, self.dst_port)),
            IpAddr::V6(ip) => {
                SocketAddr::V6(SocketAddrV6::new(ip, self.dst_port, 0, self.scope_id))
            }
        }
    }

    /// Destination UDP port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        self.dst_port
    }

    /// The flow.
    pub fn flow(&self) -> u16 {
        self.flow
    }

    /// The traffic class (TOS byte).
    pub fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// The hop limit (TTL).
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Index of the netdev of link-local addresses, else 0.
    pub(crate) fn scope_id(&self) -> u32 {
        self.scope_id
    }

    /// Source and destination address as numbers: see [`address_of`](Self::address_of).
    #[inline]
    pub(crate) fn address_bits(&self) -> (u128, u128) {
        (self.src, self.dst)
    }

    /// The address that a number stands for.
    #[inline]
    pub(crate) fn address_of(bits: u128) -> IpAddr {
        from_bits(bits)
    }

    /// Whose intake it leads to, if that is known.
    #[inline]
    pub fn intake(&self) -> Option<IntakeId> {
        IntakeId::new(self.intake)
    }
}

impl std::fmt::Debug for TxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self} flow {}", self.flow)
    }
}

impl std::fmt::Display for TxPath {
    /// From where to where: `10.0.0.1->10.0.0.2:4791`, one word of a line in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}->{}", self.src(), self.dst())
    }
}

fn to_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn from_bits(bits: u128) -> IpAddr {
    let v6 = Ipv6Addr::from_bits(bits);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}
