//! Messages of data connections: attaching to a host, packets, groups, news of ports.
//!
//! | message | from | body |
//! |---|---|---|
//! | attach | program | slot u16 (0: any), host |
//! | attached | fabric | slot u16, adapter |
//! | packets | both | [`packets`](crate::packets) |
//! | join, leave | program | port u8, zero u8, MLID u16, MGID |
//! | port | fabric | a port, whenever something of it has changed |
//!
//! A connection request (REQ, SIDR_REQ) goes to the program that has claimed its service
//! ([`question`](crate::question)), or the host rejects it. Other messages of connection management
//! go to the slot in the high bits of the receiver's communication id.

use vernic_wire::{Gid, Lid, PortNum};

use crate::bytes::{Reader, Writer};
use crate::packets::{PACKETS, Packets};
use crate::report::{AdapterReport, PortReport};

const ATTACH: u8 = 0x11;
const ATTACHED: u8 = 0x12;
const JOIN: u8 = 0x13;
const LEAVE: u8 = 0x14;
const PORT: u8 = 0x15;

/// A group whose packets a program takes. The same group may be joined several times: each join has
/// its leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The port of the adapter.
    pub port: PortNum,
    /// The multicast LID.
    pub mlid: Lid,
    /// The group. All zeros takes packets to the LID without a GRH as well.
    pub mgid: Gid,
}

/// A message of a program.
#[derive(Clone, Copy, Debug)]
pub enum DataRequest<'a> {
    /// The first message.
    Attach {
        /// The slot that the program wants; `None`: any.
        slot: Option<u16>,
        /// The host.
        host: &'a str,
    },
    /// Packets to be sent.
    Packets(Packets<'a>),
    /// Takes packets of a group from now on.
    Join(Membership),
    /// Takes one join back.
    Leave(Membership),
}

impl<'a> DataRequest<'a> {
    /// Returns the message that attaches to a host.
    pub fn attach(slot: Option<u16>, host: &str) -> Vec<u8> {
        Writer::new(ATTACH).u16(slot.unwrap_or(0)).text(host).done()
    }
    /// Returns the message that joins a group.
    pub fn join(membership: Membership) -> Vec<u8> {
        membership.write(JOIN)
    }
    /// Returns the message that takes a join back.
    pub fn leave(membership: Membership) -> Vec<u8> {
        membership.write(LEAVE)
    }
    /// Reads a message; `None` if it is none of these.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        if message.first() == Some(&PACKETS) {
            return Packets::parse(message).map(Self::Packets);
        }
        let (kind, mut body) = Reader::new(message)?;
        match kind {
            ATTACH => {
                let slot = match body.u16()? {
                    0 => None,
                    slot => Some(slot),
                };
                let host = body.text()?;
                body.end(Self::Attach { slot, host })
            }
            JOIN => Membership::read(body).map(Self::Join),
            LEAVE => Membership::read(body).map(Self::Leave),
            _ => None,
        }
    }
}

impl Membership {
    fn write(self, kind: u8) -> Vec<u8> {
        Writer::new(kind).u8(self.port.0).u8(0).u16(self.mlid.0).bytes(&self.mgid.0).done()
    }
    fn read(mut from: Reader<'_>) -> Option<Self> {
        let port = PortNum(from.u8()?);
        let zero = from.u8()?;
        let membership = Self { port, mlid: Lid(from.u16()?), mgid: Gid(from.array()?) };
        from.end(membership).filter(|_| zero == 0)
    }
}

/// A message of the fabric process. Refusals are [`Refusal`](crate::Refusal).
#[derive(Clone, Debug)]
pub enum DataReport<'a> {
    /// The program is attached.
    Attached {
        /// The slot of the program: the high bits of its QPNs.
        slot: u16,
        /// The adapter.
        adapter: AdapterReport,
    },
    /// Packets that have arrived.
    Packets(Packets<'a>),
    /// Something of a port has changed.
    Port(PortReport),
}

impl<'a> DataReport<'a> {
    /// Returns the message that attaches a program.
    pub fn attached(slot: u16, adapter: &AdapterReport) -> Vec<u8> {
        adapter.write(Writer::new(ATTACHED).u16(slot)).done()
    }
    /// Returns the message about a port.
    pub fn port(port: &PortReport) -> Vec<u8> {
        port.write(Writer::new(PORT)).done()
    }
    /// Reads a message; `None` if it is none of these.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        if message.first() == Some(&PACKETS) {
            return Packets::parse(message).map(Self::Packets);
        }
        let (kind, mut body) = Reader::new(message)?;
        match kind {
            ATTACHED => {
                let slot = body.u16()?;
                let adapter = AdapterReport::read(&mut body)?;
                body.end(Self::Attached { slot, adapter })
            }
            PORT => {
                let port = PortReport::read(&mut body)?;
                body.end(Self::Port(port))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketBatch;
    use crate::report::tests::some_adapter;

    #[test]
    fn requests_are_read_as_they_were_written() {
        for slot in [None, Some(1), Some(crate::LAST_SLOT)] {
            let message = DataRequest::attach(slot, "h3");
            let Some(DataRequest::Attach { slot: read, host: "h3" }) = DataRequest::parse(&message)
            else {
                panic!("an attach")
            };
            assert_eq!(read, slot);
            for len in 0..message.len() {
                assert!(DataRequest::parse(&message[..len]).is_none());
            }
        }
        let group = Membership { port: PortNum(2), mlid: Lid(0xC003), mgid: Gid([0xFF; 16]) };
        let (join, leave) = (DataRequest::join(group), DataRequest::leave(group));
        assert!(
            matches!(DataRequest::parse(&join), Some(DataRequest::Join(read)) if read == group)
        );
        assert!(
            matches!(DataRequest::parse(&leave), Some(DataRequest::Leave(read)) if read == group)
        );
        assert!(DataRequest::parse(&[join.as_slice(), &[0]].concat()).is_none());
        let mut batch = PacketBatch::new();
        batch.push(PortNum(1), &[1; 30]);
        assert!(matches!(DataRequest::parse(batch.message()), Some(DataRequest::Packets(_))));
        assert!(DataReport::parse(&join).is_none() && DataRequest::parse(&[]).is_none());
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        let adapter = some_adapter();
        let message = DataReport::attached(7, &adapter);
        let Some(DataReport::Attached { slot: 7, adapter: read }) = DataReport::parse(&message)
        else {
            panic!("attached")
        };
        assert_eq!(read, adapter);
        for len in 0..message.len() {
            assert!(DataReport::parse(&message[..len]).is_none());
        }
        let message = DataReport::port(&adapter.ports[1]);
        let Some(DataReport::Port(port)) = DataReport::parse(&message) else { panic!("a port") };
        assert_eq!(port, adapter.ports[1]);
    }
}
