//! Messages of questions: what a program asks of a port of its host or of the host itself, each
//! over a connection of its own.
//!
//! A connection carries one question. The life of the connection is that of what was asked for: its
//! end withdraws the question, leaves the group, or gives up the claim.
//!
//! | message | from | body |
//! |---|---|---|
//! | path | program | port, GIDs, P_Key; service id and traffic class behind a flag each; host |
//! | group | program | port, zero u8, component mask u64, MCMemberRecord, host |
//! | service | program | slot u16, service id u64, IP address, host |
//! | notices | program | port, host |
//! | this path | fabric | PathRecord |
//! | this group | fabric | MCMemberRecord, whenever the port is a member of another group than before |
//! | claimed | fabric | nothing |
//! | this notice | fabric | Notice (IBTA 13.4.8.2), whenever there is one |
//!
//! Records are as subnet administration has them (IBTA 15.2.5), with the high byte first. The
//! fabric process asks subnet administration for all programs of a port, as one client
//! (`vernic_proto::sa`).

use std::net::IpAddr;

use vernic_wire::cm::ServiceId;
use vernic_wire::sa::{McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::smp::Notice;
use vernic_wire::{Gid, Pkey, PortNum};

use crate::bytes::{Reader, Writer};

const PATH: u8 = 0x50;
const GROUP: u8 = 0x51;
const SERVICE: u8 = 0x52;
const THIS_PATH: u8 = 0x53;
const THIS_GROUP: u8 = 0x54;
const CLAIMED: u8 = 0x55;
const NOTICES: u8 = 0x56;
const THIS_NOTICE: u8 = 0x57;

/// What a path is asked for by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathAsked {
    /// Where it begins: a GID of the port.
    pub sgid: Gid,
    /// Where it ends.
    pub dgid: Gid,
    /// The partition.
    pub pkey: Pkey,
    /// The service that the path is for, if that matters.
    pub service: Option<ServiceId>,
    /// The traffic class that it must have, if that matters.
    pub traffic_class: Option<u8>,
}

/// A question of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question<'a> {
    /// A path from a port of the host.
    Path {
        /// The host.
        host: &'a str,
        /// The port.
        port: PortNum,
        /// What is known of the path.
        query: PathAsked,
    },
    /// Membership of a port of the host in a group.
    Group {
        /// The host.
        host: &'a str,
        /// The port.
        port: PortNum,
        /// What is known of the group, and how the port is to take part.
        record: McMemberRecord,
        /// Which fields of the record count.
        components: MemberComponents,
    },
    /// Connection requests for a service are to come to a program.
    Service {
        /// The host.
        host: &'a str,
        /// The slot of the program.
        slot: u16,
        /// The service.
        service: ServiceId,
        /// Only requests of `rdma_cm` to this IP address; `None`: all requests.
        address: Option<IpAddr>,
    },
    /// Notices of ports that come and go (64, 65), and of groups (66, 67).
    Notices {
        /// The host.
        host: &'a str,
        /// The port that subscribes to them.
        port: PortNum,
    },
}

impl<'a> Question<'a> {
    /// Returns the message.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Path { host, port, query } => {
                let to = Writer::new(PATH).u8(port.0).bytes(&query.sgid.0).bytes(&query.dgid.0);
                let to = to.u16(query.pkey.0).u8(query.service.is_some().into());
                let to = to.u64(query.service.unwrap_or_default().0);
                let to = to.u8(query.traffic_class.is_some().into());
                to.u8(query.traffic_class.unwrap_or(0)).text(host).done()
            }
            Self::Group { host, port, record, components } => {
                let mut bytes = [0; McMemberRecord::LEN];
                record.emit(&mut bytes);
                let to = Writer::new(GROUP).u8(port.0).u8(0).u64(components.bits());
                to.bytes(&bytes).text(host).done()
            }
            Self::Service { host, slot, service, address } => {
                let to = Writer::new(SERVICE).u16(*slot).u64(service.0).ip(*address);
                to.text(host).done()
            }
            Self::Notices { host, port } => Writer::new(NOTICES).u8(port.0).text(host).done(),
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let question = match kind {
            PATH => {
                let (port, sgid) = (PortNum(body.u8()?), Gid(body.array()?));
                let (dgid, pkey) = (Gid(body.array()?), Pkey(body.u16()?));
                let service = flagged(body.boolean()?, body.u64()?)?.map(ServiceId);
                let traffic_class = flagged(body.boolean()?, body.u8()?)?;
                let query = PathAsked { sgid, dgid, pkey, service, traffic_class };
                Self::Path { host: body.text()?, port, query }
            }
            GROUP => {
                let port = PortNum(body.u8()?);
                body.u8().filter(|zero| *zero == 0)?;
                let components = MemberComponents::from_bits(body.u64()?)?;
                let record = member(&mut body)?;
                Self::Group { host: body.text()?, port, record, components }
            }
            SERVICE => {
                let (slot, service) = (body.u16()?, ServiceId(body.u64()?));
                let address = body.ip()?;
                Self::Service { host: body.text()?, slot, service, address }
            }
            NOTICES => {
                let port = PortNum(body.u8()?);
                Self::Notices { host: body.text()?, port }
            }
            _ => return None,
        };
        body.end(question)
    }
}

/// Returns a value if its flag says that there is one; without it, the value must be 0.
fn flagged<T: Default + PartialEq>(is_there: bool, value: T) -> Option<Option<T>> {
    match is_there {
        true => Some(Some(value)),
        false => (value == T::default()).then_some(None),
    }
}

/// Reads a record of a group.
pub(crate) fn member(from: &mut Reader<'_>) -> Option<McMemberRecord> {
    McMemberRecord::parse(&from.array::<{ McMemberRecord::LEN }>()?).ok()
}

/// Reads a path.
pub(crate) fn path(from: &mut Reader<'_>) -> Option<PathRecord> {
    PathRecord::parse(&from.array::<{ PathRecord::LEN }>()?).ok()
}

/// Writes a record of a group.
pub(crate) fn write_member(to: Writer, record: &McMemberRecord) -> Writer {
    let mut bytes = [0; McMemberRecord::LEN];
    record.emit(&mut bytes);
    to.bytes(&bytes)
}

/// Writes a path.
pub(crate) fn write_path(to: Writer, record: &PathRecord) -> Writer {
    let mut bytes = [0; PathRecord::LEN];
    record.emit(&mut bytes);
    to.bytes(&bytes)
}

/// An answer of the fabric process. Refusals are [`Refusal`](crate::Refusal).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The path.
    Path(PathRecord),
    /// The group that the port is a member of.
    Group(McMemberRecord),
    /// The service is claimed.
    Claimed,
    /// A notice.
    Notice(Notice),
}

impl Answer {
    /// Returns the message.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Path(record) => write_path(Writer::new(THIS_PATH), record).done(),
            Self::Group(record) => write_member(Writer::new(THIS_GROUP), record).done(),
            Self::Claimed => Writer::new(CLAIMED).done(),
            Self::Notice(notice) => {
                let mut bytes = [0; Notice::LEN];
                notice.emit(&mut bytes);
                Writer::new(THIS_NOTICE).bytes(&bytes).done()
            }
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let answer = match kind {
            THIS_PATH => Self::Path(path(&mut body)?),
            THIS_GROUP => Self::Group(member(&mut body)?),
            CLAIMED => Self::Claimed,
            THIS_NOTICE => Self::Notice(Notice::parse(&body.array::<{ Notice::LEN }>()?).ok()?),
            _ => return None,
        };
        body.end(answer)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use vernic_wire::Lid;

    pub(crate) fn some_path() -> PathRecord {
        let (dgid, sgid) = (Gid([1; 16]), Gid([2; 16]));
        PathRecord { dgid, sgid, dlid: Lid(7), slid: Lid(8), ..PathRecord::default() }
    }
    pub(crate) fn some_group() -> McMemberRecord {
        McMemberRecord { mgid: Gid([0xFF; 16]), mlid: Lid(0xC001), ..McMemberRecord::default() }
    }

    #[test]
    fn questions_are_read_as_they_were_written() {
        let query = PathAsked {
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            pkey: Pkey(0x8001),
            service: None,
            traffic_class: None,
        };
        let with = PathAsked { service: Some(ServiceId(9)), traffic_class: Some(3), ..query };
        let (host, port) = ("h1", PortNum(2));
        let (components, record) = (MemberComponents::MGID, some_group());
        let service = |address| Question::Service { host, slot: 5, service: ServiceId(8), address };
        let questions = [
            Question::Path { host, port, query },
            Question::Path { host, port, query: with },
            Question::Group { host, port, record, components },
            service(None),
            service(Some(IpAddr::from([10, 0, 0, 1]))),
            service(Some(IpAddr::from([7_u16; 8]))),
            Question::Notices { host, port },
        ];
        for question in questions {
            let message = question.emit();
            assert_eq!(Question::parse(&message), Some(question));
            for len in 0..message.len() {
                assert_eq!(Question::parse(&message[..len]), None, "{question:?}");
            }
            assert_eq!(Question::parse(&[message.as_slice(), &[0]].concat()), None);
            assert_eq!(Answer::parse(&message), None);
        }
    }

    #[test]
    fn values_that_a_flag_denies_are_refused() {
        let question = Question::Service {
            host: "h1",
            slot: 5,
            service: ServiceId(8),
            address: Some(IpAddr::from([10, 0, 0, 1])),
        };
        let message = question.emit();
        // The version of the address; a byte before an IPv4 address.
        for (at, value) in [(14, 0), (14, 5), (15, 1)] {
            let mut bad = message.clone();
            bad[at] = value;
            assert_eq!(Question::parse(&bad), None, "{at}");
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let notice = Notice::from_bytes(&std::array::from_fn(|at| at as u8));
        for answer in [
            Answer::Path(some_path()),
            Answer::Group(some_group()),
            Answer::Claimed,
            Answer::Notice(notice),
        ] {
            let message = answer.emit();
            assert_eq!(Answer::parse(&message), Some(answer));
            for len in 0..message.len() {
                assert_eq!(Answer::parse(&message[..len]), None);
            }
        }
    }
}
