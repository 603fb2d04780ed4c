//! Messages of interfaces of IP over InfiniBand: what an interface has, and where an IP address is.
//!
//! The process that owns an interface listens at a socket of its own ([`path`](crate::path)). A
//! program sends requests, and each has its answer, in order.
//!
//! | message | from | body |
//! |---|---|---|
//! | about | program | nothing |
//! | resolve | program | IP address |
//! | this interface | owner | adapter u64, port u8, P_Key u16, GID, MTU u32 (0: down); group behind a flag; count u16; IP addresses, each with the length of its prefix u8 |
//! | resolved | owner | hardware address, PathRecord |

use std::net::IpAddr;

use vernic_wire::ipoib::HardwareAddress;
use vernic_wire::sa::{McMemberRecord, PathRecord};
use vernic_wire::{Gid, Guid, Pkey, PortNum};

use crate::bytes::{Reader, Writer};
use crate::question::{member, path, write_member, write_path};

const ABOUT: u8 = 0x60;
const RESOLVE: u8 = 0x61;
const THIS_INTERFACE: u8 = 0x62;
const RESOLVED: u8 = 0x63;

/// Most addresses of an interface that are told.
pub const MAX_ADDRESSES: usize = 256;

/// An interface, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IpInterface {
    /// GUID of the adapter.
    pub guid: Guid,
    /// Port of the adapter.
    pub port: PortNum,
    /// The partition.
    pub pkey: Pkey,
    /// GID of the port.
    pub gid: Gid,
    /// The longest IP packet; `None` while the link is down.
    pub mtu: Option<u32>,
    /// IP addresses with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The broadcast group, while the link is up: it has the values of all other groups.
    pub group: Option<McMemberRecord>,
}

/// A request of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterfaceRequest {
    /// What the interface has.
    About,
    /// Where an IP address of the link is.
    Resolve(IpAddr),
}

impl InterfaceRequest {
    /// Returns the message.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::About => Writer::new(ABOUT).done(),
            Self::Resolve(ip) => Writer::new(RESOLVE).ip(Some(*ip)).done(),
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let request = match kind {
            ABOUT => Self::About,
            RESOLVE => Self::Resolve(body.ip()??),
            _ => return None,
        };
        body.end(request)
    }
}

/// An answer of the owner. Refusals are [`Refusal`](crate::Refusal).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InterfaceAnswer {
    /// The interface.
    Interface(IpInterface),
    /// Where an address is: the interface that has it, and the path to its port.
    Resolved(HardwareAddress, PathRecord),
}

impl InterfaceAnswer {
    /// Returns the message. Of the addresses, it has the first 256.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Interface(interface) => {
                let to = Writer::new(THIS_INTERFACE).u64(interface.guid.0);
                let to = to.u8(interface.port.0).u16(interface.pkey.0).bytes(&interface.gid.0);
                let to = to.u32(interface.mtu.unwrap_or(0)).u8(interface.group.is_some().into());
                let to = match &interface.group {
                    Some(group) => write_member(to, group),
                    None => to,
                };
                let addresses = &interface.addresses;
                let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
                let to = to.u16(addresses.len() as u16);
                addresses.iter().fold(to, |to, (ip, len)| to.ip(Some(*ip)).u8(*len)).done()
            }
            Self::Resolved(address, record) => {
                write_path(Writer::new(RESOLVED).bytes(&address.to_bytes()), record).done()
            }
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let answer = match kind {
            THIS_INTERFACE => Self::Interface(read_interface(&mut body)?),
            RESOLVED => {
                let address = HardwareAddress::from_bytes(&body.array()?);
                Self::Resolved(address, path(&mut body)?)
            }
            _ => return None,
        };
        body.end(answer)
    }
}

fn read_interface(body: &mut Reader<'_>) -> Option<IpInterface> {
    let (guid, port, pkey) = (Guid(body.u64()?), PortNum(body.u8()?), Pkey(body.u16()?));
    let gid = Gid(body.array()?);
    let mtu = Some(body.u32()?).filter(|mtu| *mtu != 0);
    let group = if body.boolean()? { Some(member(body)?) } else { None };
    let count = usize::from(body.u16()?);
    if count > MAX_ADDRESSES {
        return None;
    }
    let address = |body: &mut Reader<'_>| {
        let (ip, len) = (body.ip()??, body.u8()?);
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        (len <= bits).then_some((ip, len))
    };
    let addresses = (0..count).map(|_| address(body)).collect::<Option<_>>()?;
    Some(IpInterface { guid, port, pkey, gid, mtu, addresses, group })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::question::tests::{some_group, some_path};
    use vernic_wire::Qpn;

    pub(crate) fn some_interface() -> IpInterface {
        IpInterface {
            guid: Guid(0xABCD),
            port: PortNum(1),
            pkey: Pkey(0x8001),
            gid: Gid([3; 16]),
            mtu: Some(2044),
            addresses: vec![
                (IpAddr::from([10, 0, 0, 2]), 24),
                (IpAddr::from([0xFE80, 0, 0, 0, 0, 0, 0, 1_u16]), 64),
            ],
            group: Some(some_group()),
        }
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        for ip in [IpAddr::from([10, 0, 0, 2]), IpAddr::from([9_u16; 8])] {
            for request in [InterfaceRequest::About, InterfaceRequest::Resolve(ip)] {
                let message = request.emit();
                assert_eq!(InterfaceRequest::parse(&message), Some(request));
                for len in 0..message.len() {
                    assert_eq!(InterfaceRequest::parse(&message[..len]), None);
                }
                assert_eq!(InterfaceAnswer::parse(&message), None);
            }
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let down = IpInterface { mtu: None, group: None, addresses: vec![], ..some_interface() };
        let address = HardwareAddress::new(Qpn::new(0x4001), Gid([4; 16]));
        let answers = [
            InterfaceAnswer::Interface(some_interface()),
            InterfaceAnswer::Interface(down),
            InterfaceAnswer::Resolved(address, some_path()),
        ];
        for answer in answers {
            let message = answer.emit();
            assert_eq!(InterfaceAnswer::parse(&message), Some(answer));
            for len in 0..message.len() {
                assert_eq!(InterfaceAnswer::parse(&message[..len]), None);
            }
        }
    }

    #[test]
    fn addresses_are_bounded_and_their_prefixes_are_no_longer_than_they_are() {
        let address = (IpAddr::from([10, 0, 0, 2]), 24);
        let many = IpInterface { addresses: vec![address; 1000], ..some_interface() };
        let message = InterfaceAnswer::Interface(many).emit();
        let Some(InterfaceAnswer::Interface(read)) = InterfaceAnswer::parse(&message) else {
            panic!("an interface")
        };
        assert_eq!(read.addresses, vec![address; MAX_ADDRESSES]);
        let wrong = IpInterface { addresses: vec![(address.0, 33)], ..some_interface() };
        let message = InterfaceAnswer::Interface(wrong).emit();
        assert_eq!(InterfaceAnswer::parse(&message), None);
    }
}
