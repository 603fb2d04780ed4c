//! Messages of management connections: which hosts there are, opening a port, registering agents.
//!
//! Requests and answers alternate on the connection. Opening a port brings a second connection, as
//! a file of the answer: datagrams travel there in both directions, and nothing else. So its
//! descriptor is readable exactly when there is a datagram.
//!
//! | message | from | body |
//! |---|---|---|
//! | hosts | program | index of the first u32 |
//! | these hosts | fabric | number of all u32, count u16, names |
//! | adapter | program | host |
//! | this adapter | fabric | adapter |
//! | open | program | port u8, QP0 u8, host |
//! | register | program | class, version, RMPP version, flags u8; OUI; zero u8; methods 4 times u32 |
//! | registered | fabric | agent u32 |
//! | unregister | program | agent u32 |
//! | issm | program | on u8 |
//! | done | fabric | nothing |

use vernic_wire::PortNum;
use vernic_wire::mad::MgmtClass;

use crate::bytes::{Reader, Writer};
use crate::report::AdapterReport;

const HOSTS: u8 = 0x20;
const THESE_HOSTS: u8 = 0x21;
const ADAPTER: u8 = 0x22;
const THIS_ADAPTER: u8 = 0x23;
const OPEN: u8 = 0x24;
const REGISTER: u8 = 0x25;
const REGISTERED: u8 = 0x26;
const UNREGISTER: u8 = 0x27;
const ISSM: u8 = 0x28;
const DONE: u8 = 0x29;

/// Bytes of names in one answer, so that it is no longer than a message.
const MAX_NAMES: usize = 48 * 1024;

/// The number of an agent at an open port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AgentId(pub u32);

/// Flag of a registration: the agent does RMPP itself.
const OWN_RMPP: u8 = 1;

/// What an agent takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registration {
    /// Class of its datagrams.
    pub class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// Version of RMPP; 0 if the agent's datagrams are single ones, or the agent does RMPP itself.
    pub rmpp_version: u8,
    /// Flags. Bit 0: the agent does RMPP itself.
    pub flags: u8,
    /// For a class of a vendor (0x30 to 0x4F): which vendor.
    pub oui: [u8; 3],
    /// Methods whose requests the agent takes, a bit each. Without any it only gets answers.
    pub methods: [u32; 4],
}

impl Registration {
    /// Whether transfers of several segments are put together before the agent has them.
    pub const fn wants_rmpp(&self) -> bool {
        self.rmpp_version != 0 && self.flags & OWN_RMPP == 0
    }
}

/// A request of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadRequest<'a> {
    /// Asks for names of hosts.
    Hosts {
        /// The index of the first, from 0.
        from: u32,
    },
    /// Asks for an adapter.
    Adapter {
        /// The host.
        host: &'a str,
    },
    /// Opens a port. Once per connection.
    Open {
        /// The host.
        host: &'a str,
        /// The port.
        port: PortNum,
        /// Whether agents of subnet management (QP0) may be registered.
        subnet_management: bool,
    },
    /// Registers an agent at the open port.
    Register(Registration),
    /// Ends an agent.
    Unregister(AgentId),
    /// Says in the capabilities of the port that there is a subnet manager, or that there is none.
    Issm(bool),
}

impl<'a> MadRequest<'a> {
    /// Returns the message.
    pub fn emit(&self) -> Vec<u8> {
        match *self {
            Self::Hosts { from } => Writer::new(HOSTS).u32(from).done(),
            Self::Adapter { host } => Writer::new(ADAPTER).text(host).done(),
            Self::Open { host, port, subnet_management } => {
                Writer::new(OPEN).u8(port.0).u8(subnet_management.into()).text(host).done()
            }
            Self::Register(r) => {
                let to = Writer::new(REGISTER).u8(r.class.0).u8(r.class_version);
                let to = to.u8(r.rmpp_version).u8(r.flags).bytes(&r.oui).u8(0);
                r.methods.iter().fold(to, |to, word| to.u32(*word)).done()
            }
            Self::Unregister(agent) => Writer::new(UNREGISTER).u32(agent.0).done(),
            Self::Issm(on) => Writer::new(ISSM).u8(on.into()).done(),
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let request = match kind {
            HOSTS => Self::Hosts { from: body.u32()? },
            ADAPTER => Self::Adapter { host: body.text()? },
            OPEN => {
                let (port, subnet_management) = (PortNum(body.u8()?), body.boolean()?);
                Self::Open { host: body.text()?, port, subnet_management }
            }
            REGISTER => {
                let (class, class_version) = (MgmtClass(body.u8()?), body.u8()?);
                let (rmpp_version, flags, oui) = (body.u8()?, body.u8()?, body.array()?);
                body.u8().filter(|zero| *zero == 0)?;
                let methods = [body.u32()?, body.u32()?, body.u32()?, body.u32()?];
                let registration =
                    Registration { class, class_version, rmpp_version, flags, oui, methods };
                Self::Register(registration)
            }
            UNREGISTER => Self::Unregister(AgentId(body.u32()?)),
            ISSM => Self::Issm(body.boolean()?),
            _ => return None,
        };
        body.end(request)
    }
}

/// An answer of the fabric process. Refusals are [`Refusal`](crate::Refusal).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MadAnswer {
    /// Names of hosts, from the index that was asked for.
    Hosts {
        /// How many there are in all.
        total: u32,
        /// Some of them: as many as a message holds.
        names: Vec<String>,
    },
    /// An adapter.
    Adapter(Box<AdapterReport>),
    /// The number of a new agent.
    Registered(AgentId),
    /// What was asked for is done.
    Done,
}

impl MadAnswer {
    /// Returns the message. Names that do not fit into it are left out: they are asked for next.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Hosts { total, names } => {
                let mut bytes = 0;
                let fits = |name: &&String| {
                    bytes += 2 + name.len();
                    bytes <= MAX_NAMES
                };
                let names: Vec<_> = names.iter().take_while(fits).collect();
                let to = Writer::new(THESE_HOSTS).u32(*total).u16(names.len() as u16);
                names.iter().fold(to, |to, name| to.text(name)).done()
            }
            Self::Adapter(adapter) => adapter.write(Writer::new(THIS_ADAPTER)).done(),
            Self::Registered(agent) => Writer::new(REGISTERED).u32(agent.0).done(),
            Self::Done => Writer::new(DONE).done(),
        }
    }
    /// Reads a message; `None` if it is none of these.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (kind, mut body) = Reader::new(message)?;
        let answer = match kind {
            THESE_HOSTS => {
                let (total, count) = (body.u32()?, body.u16()?);
                let names = (0..count).map(|_| body.text().map(str::to_owned));
                Self::Hosts { total, names: names.collect::<Option<_>>()? }
            }
            THIS_ADAPTER => Self::Adapter(Box::new(AdapterReport::read(&mut body)?)),
            REGISTERED => Self::Registered(AgentId(body.u32()?)),
            DONE => Self::Done,
            _ => return None,
        };
        body.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::some_adapter;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let registration = Registration {
            class: MgmtClass::SUBNET_ADMIN,
            class_version: 2,
            rmpp_version: 1,
            flags: 1,
            oui: [1, 2, 3],
            methods: [1, 2, 3, u32::MAX],
        };
        let requests = [
            MadRequest::Hosts { from: 70_000 },
            MadRequest::Adapter { host: "h1" },
            MadRequest::Open { host: "h1", port: PortNum(1), subnet_management: true },
            MadRequest::Register(registration),
            MadRequest::Unregister(AgentId(9)),
            MadRequest::Issm(true),
            MadRequest::Issm(false),
        ];
        for request in requests {
            let message = request.emit();
            assert_eq!(MadRequest::parse(&message), Some(request));
            for len in 0..message.len() {
                assert_eq!(MadRequest::parse(&message[..len]), None, "{request:?}");
            }
            assert_eq!(MadRequest::parse(&[message.as_slice(), &[0]].concat()), None);
            assert_eq!(MadAnswer::parse(&message), None);
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let answers = [
            MadAnswer::Hosts { total: 3, names: vec!["h1".to_owned(), "h2".to_owned()] },
            MadAnswer::Hosts { total: 0, names: Vec::new() },
            MadAnswer::Adapter(Box::new(some_adapter())),
            MadAnswer::Registered(AgentId(1)),
            MadAnswer::Done,
        ];
        for answer in answers {
            let message = answer.emit();
            assert_eq!(MadAnswer::parse(&message), Some(answer));
            for len in 0..message.len() {
                assert_eq!(MadAnswer::parse(&message[..len]), None);
            }
        }
    }

    #[test]
    fn names_that_do_not_fit_into_one_answer_are_left_for_the_next() {
        let names = vec!["n".repeat(64); 2000];
        let message = MadAnswer::Hosts { total: 2000, names }.emit();
        assert!(message.len() <= crate::MAX_MESSAGE);
        let Some(MadAnswer::Hosts { total: 2000, names }) = MadAnswer::parse(&message) else {
            panic!("hosts")
        };
        assert_eq!(names.len(), MAX_NAMES / 66);
    }
}
