//! The numbers of RDMA, each with its own type: no bare integer crosses a crate border.
//!
//! Owns the newtypes that packets, queue pairs and memory keys are named by. Every constructor
//! either masks to the field's width or rejects; no value of these types can be out of range.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Packet sequence number: 24 bits, wraps (IBTA 9.7.1).
///
/// There is no `Ord`: on a circle "less" depends on a reference point. Use [`Psn::distance_from`]
/// or [`Psn::is_before`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Number of distinct values.
    pub const MODULUS: u32 = 1 << 24;
    /// Half the circle: the widest window in which "before" and "after" are unambiguous.
    pub const HALF: u32 = 1 << 23;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::MODULUS - 1))
    }
    /// The value, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
    /// `self + n`, wrapping.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// `self - n`, wrapping.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// The successor.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }
    /// Steps forward from `origin` to `self`, 0 to 2^24 - 1.
    pub const fn distance_from(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0) & (Self::MODULUS - 1)
    }
    /// Signed shortest way from `origin` to `self`: negative if `self` lies in the half before it.
    pub const fn offset_from(self, origin: Self) -> i32 {
        let d = self.distance_from(origin);
        if d < Self::HALF { d as i32 } else { d as i32 - Self::MODULUS as i32 }
    }
    /// Whether `self` lies in the half circle before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.offset_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Queue pair number: 24 bits. 0 is SMI, 1 is GSI, 0xFFFFFF addresses a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management interface.
    pub const SMI: Self = Self(0);
    /// General services interface: connection management datagrams.
    pub const GSI: Self = Self(1);
    /// Destination of a multicast packet.
    pub const MULTICAST: Self = Self(0xFF_FFFF);

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xFF_FFFF)
    }
    /// The value, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Number of an XRC shared receive queue: 24 bits (IBTA annex A14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Srqn(u32);

impl Srqn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xFF_FFFF)
    }
    /// The value, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

macro_rules! plain_number {
    ($(#[$doc:meta])* $name:ident($int:ty), $format:literal) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// The value.
            pub const fn value(self) -> $int {
                self.0
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

plain_number!(
    /// Key that a remote peer presents to reach memory (IBTA 10.6.3).
    Rkey(u32), "{:#010x}"
);
plain_number!(
    /// Key that a local work request presents to reach memory (IBTA 10.6.3).
    Lkey(u32), "{:#010x}"
);
plain_number!(
    /// Queue key of datagram services. With the top bit set in a work request the QP's own is sent.
    Qkey(u32), "{:#010x}"
);
plain_number!(
    /// Port of a device, from 1.
    PortNum(u8), "{}"
);

plain_number!(
    /// Globally unique identifier: EUI-64 of a node, a system of nodes or a port (IBTA 4.1.1).
    #[derive(PartialOrd, Ord)]
    Guid(u64), "{:#018x}"
);

/// Local identifier: the address of a port, or of a group, within a subnet (IBTA 4.1.3).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// No LID was assigned yet.
    pub const RESERVED: Self = Self(0);
    /// Permissive: the port that a packet comes to takes it (subnet management by directed route).
    pub const PERMISSIVE: Self = Self(0xFFFF);
    /// The first of the multicast LIDs; the last unicast LID is one below.
    pub const FIRST_MULTICAST: Self = Self(0xC000);

    /// The value.
    pub const fn value(self) -> u16 {
        self.0
    }
    /// Whether the LID is of one port: 0x0001 to 0xBFFF.
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < Self::FIRST_MULTICAST.0
    }
    /// Whether the LID is of a multicast group: 0xC000 to 0xFFFE.
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::FIRST_MULTICAST.0 && self.0 != Self::PERMISSIVE.0
    }
}
impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}
impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Service level, 0 to 15: what a packet asks of the fabric (IBTA 7.6.5).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ServiceLevel(u8);

impl ServiceLevel {
    /// How many there are.
    pub const COUNT: usize = 16;

    /// Keeps the low 4 bits.
    pub const fn new(value: u8) -> Self {
        Self(value & 15)
    }
    /// The value.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// Virtual lane of a link, 0 to 15 (IBTA 7.5).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VirtualLane(u8);

impl VirtualLane {
    /// The lane of subnet management: without flow control, before all others.
    pub const MANAGEMENT: Self = Self(15);
    /// How many there are, the lane of subnet management included.
    pub const COUNT: usize = 16;

    /// Keeps the low 4 bits.
    pub const fn new(value: u8) -> Self {
        Self(value & 15)
    }
    /// The value.
    pub const fn value(self) -> u8 {
        self.0
    }
    /// Whether the lane is that of subnet management.
    pub const fn is_management(self) -> bool {
        self.0 == 15
    }
}

/// Partition key: 15 bits of partition and, on top, full (1) or limited (0) membership.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xFFFF);

    /// The value.
    pub const fn value(self) -> u16 {
        self.0
    }
    /// Returns the key of a full member of this partition.
    #[must_use]
    pub const fn to_full(self) -> Self {
        Self(self.0 | 0x8000)
    }
    /// Whether two members may talk: same partition, and not both limited (IBTA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7FFF == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}
impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}
impl fmt::Debug for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}
impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Path MTU: payload bytes of one packet. Discriminants are the field's encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }
    /// From the field's encoding, 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }
    /// From payload bytes: 256, 512, 1024, 2048 or 4096.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Local ACK timeout exponent, 0 to 31: 4.096 us * 2^n; 0 waits for ever (IBTA 9.7.6.1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Never time out.
    pub const INFINITE: Self = Self(0);

    /// The low 5 bits of `exponent`.
    pub const fn new(exponent: u8) -> Self {
        Self(exponent & 31)
    }
    /// The exponent, 0 to 31.
    pub const fn exponent(self) -> u8 {
        self.0
    }
    /// Nanoseconds, or `None` for never.
    pub const fn nanos(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(4096 << self.0) }
    }
}

/// RNR NAK timer code, 0 to 31 (IBTA 9.7.5.2.8, table 45). Code 0 is the longest: 655.36 ms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Delays in units of 10 us, by code.
    const UNITS_10US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }
    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }
    /// The delay in nanoseconds.
    pub const fn nanos(self) -> u64 {
        Self::UNITS_10US[self.0 as usize] as u64 * 10_000
    }
}

/// Global identifier: 128 bits, for RoCEv2 an IPv6 address or an IPv4-mapped one (IBTA A17.3.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: an empty entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an IP address; IPv4 becomes `::ffff:a.b.c.d`.
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
    /// The IP address that the GID stands for; `::ffff:a.b.c.d` gives IPv4.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }
    /// The IPv4 address of an IPv4-mapped GID.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
    /// Whether this is the empty entry.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
    /// A multicast group: IPv6 `ff00::/8`, or IPv4-mapped 224.0.0.0/4.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_windows_hold_over_the_wrap() {
        let last = Psn::new(0xFF_FFFF);
        assert_eq!(last.next(), Psn::new(0));
        assert!(last.is_before(Psn::new(0)));
        assert!(!Psn::new(0).is_before(last));
        assert_eq!(Psn::new(2).distance_from(Psn::new(0xFF_FFFE)), 4);
        assert_eq!(Psn::new(0xFF_FFFE).offset_from(Psn::new(2)), -4);
        assert_eq!(Psn::new(0).offset_from(Psn::new(Psn::HALF)), -(Psn::HALF as i32));
    }

    #[test]
    fn rnr_timer_rows_are_those_of_the_standard() {
        assert_eq!(RnrTimer::new(0).nanos(), 655_360_000);
        assert_eq!(RnrTimer::new(1).nanos(), 10_000);
        assert_eq!(RnrTimer::new(12).nanos(), 640_000);
        assert_eq!(RnrTimer::new(25).nanos(), 61_440_000);
        assert_eq!(RnrTimer::new(31).nanos(), 491_520_000);
    }

    #[test]
    fn limited_members_of_a_partition_do_not_match_each_other() {
        assert!(Pkey(0xFFFF).matches(Pkey(0x7FFF)));
        assert!(!Pkey(0x7FFF).matches(Pkey(0x7FFF)));
        assert!(!Pkey(0x8001).matches(Pkey(0x8002)));
    }

    #[test]
    fn mtu_encodings_agree() {
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu as u8), Some(mtu));
            assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
        }
        assert_eq!(Mtu::B1024.bytes(), 1024);
    }

    #[test]
    fn gids_map_to_addresses_and_back() {
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        assert_eq!(Gid::from_ip(v4).0[10..12], [0xFF, 0xFF]);
        assert!(Gid::from_ip("230.1.2.3".parse().unwrap()).is_multicast());
    }
}
