//! Service ids: what a REQ and a SIDR_REQ ask for, 64 bits.
//!
//! For connections by IP address the id is made of a port space and a port (IBTA annex A11, the IP
//! addressing annex):
//!
//! ```text
//!  byte   0..3    4   5           6..7
//!       +-------+---+-----------+------+
//!       |   0   | 1 | protocol  | port |
//!       +-------+---+-----------+------+
//!                 port space
//! ```

use core::fmt;

/// Names a service of a host. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

/// Port space of rdma_cm: the upper half of a port's name. The values are those of
/// `rdma_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// IP over InfiniBand: datagrams that share its multicast groups.
    pub const IPOIB: Self = Self(0x0002);
    /// Connected queue pairs, by IP address.
    pub const TCP: Self = Self(0x0106);
    /// Datagram queue pairs, by IP address.
    pub const UDP: Self = Self(0x0111);
    /// Either, by service ids of one's own.
    pub const IB: Self = Self(0x013F);

    /// Name, or `None` if nobody defined the value.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::IPOIB => Some("ipoib"),
            Self::TCP => Some("tcp"),
            Self::UDP => Some("udp"),
            Self::IB => Some("ib"),
            _ => None,
        }
    }
    /// The service id of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId((self.0 as u64) << 16 | port as u64)
    }
}

impl ServiceId {
    /// The value.
    pub const fn value(self) -> u64 {
        self.0
    }
    /// The port space, if it is one of the four that are defined.
    pub const fn port_space(self) -> Option<PortSpace> {
        let space = PortSpace((self.0 >> 16) as u16);
        if self.0 >> 32 == 0 && space.name().is_some() { Some(space) } else { None }
    }
    /// The port, if there is a [`port_space`](Self::port_space).
    pub const fn port(self) -> Option<u16> {
        match self.port_space() {
            Some(_) => Some(self.0 as u16),
            None => None,
        }
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "port space {:#06x}", self.0),
        }
    }
}
impl fmt::Debug for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port_space(), self.port()) {
            (Some(space), Some(port)) => write!(f, "{space}:{port}"),
            _ => write!(f, "{:#018x}", self.0),
        }
    }
}
impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn ports_are_services_and_back() {
        let service = PortSpace::TCP.service_id(7174);
        assert_eq!(service, ServiceId(0x0106_1C06));
        assert_eq!((service.port_space(), service.port()), (Some(PortSpace::TCP), Some(7174)));
        assert_eq!(service.to_string(), "tcp:7174");
    }

    #[test]
    fn services_that_are_no_ports_have_none() {
        for other in [0x0001_0000_0106_1C06, 0x0107_0000, 0] {
            assert_eq!(ServiceId(other).port_space(), None);
            assert_eq!(ServiceId(other).port(), None);
        }
        assert_eq!(ServiceId(1).to_string(), "0x0000000000000001");
    }
}
