//! What agents ask for and get: registrations, addresses, datagrams, errors.

use core::fmt;

use vernic_wire::mad::{MAD_LEN, MadAddress, MgmtClass};
use vernic_wire::{Qpn, RmppStatus};

/// Agent of a port: the high half of the transaction ids of what it asks, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AgentId(pub u32);

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an agent sends, and which requests it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Queue pair: [`Qpn::SMI`] or [`Qpn::GSI`].
    pub qpn: Qpn,
    /// Class; 0 for an agent that asks in any class and takes no requests.
    pub class: MgmtClass,
    /// Version of the class's formats.
    pub class_version: u8,
    /// Requests that it takes: bit n for method n; none for an agent that only asks.
    pub methods: u128,
    /// Vendor of the requests, in the classes 0x30 to 0x4F; 24 bits.
    pub oui: u32,
    /// Whether its transfers of several segments are cut and put together here. Else it sees
    /// each segment.
    pub rmpp: bool,
}

impl Registration {
    /// Returns the registration of a program, in the words of the kernel's interface: methods in
    /// words of 32 bits, the vendor in bytes. The queue pair is that of the class.
    pub fn of_user(
        class: MgmtClass,
        class_version: u8,
        methods: [u32; 4],
        oui: [u8; 3],
        rmpp: bool,
    ) -> Self {
        let words = (0..).zip(methods);
        let [a, b, c] = oui;
        Self {
            qpn: if class.is_subnet_management() { Qpn::SMI } else { Qpn::GSI },
            class,
            class_version,
            methods: words.map(|(at, word)| u128::from(word) << (32 * at)).sum(),
            oui: u32::from_be_bytes([0, a, b, c]),
            rmpp,
        }
    }
}

/// Datagram to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadTransmit {
    /// Queue pair that it comes from.
    pub qpn: Qpn,
    /// Destination.
    pub address: MadAddress,
    /// Whole datagram.
    pub mad: [u8; MAD_LEN],
}

/// What an agent gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Agent.
    pub agent: AgentId,
    /// Whether it came, or is the agent's own that nobody answered.
    pub outcome: Outcome,
    /// Source; for the agent's own datagram the destination.
    pub address: MadAddress,
    /// The datagram. A transfer of several segments is the whole first one and the data of the
    /// others. Of the agent's own datagram it is the common header alone.
    pub mad: Vec<u8>,
}

/// Why there is a [`Delivery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The datagram came from elsewhere.
    Received,
    /// The agent's own: it was not answered, or its segments were not, in the time that it had.
    TimedOut,
    /// The agent's own: the other end gave up its segments.
    Aborted(RmppStatus),
}

/// Bounds of what is kept for the agents of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentsConfig {
    /// High bits of the ids of all agents; those of the low `id_bits` are ignored.
    pub id_base: u32,
    /// How many low bits of an id count, 8 to 24.
    pub id_bits: u32,
    /// Agents.
    pub max_agents: usize,
    /// Datagrams of all agents that are to be sent or to be answered.
    pub max_sends: usize,
    /// Transfers that come in at the same time.
    pub max_receives: usize,
    /// Datagrams that one agent has not fetched.
    pub max_deliveries: usize,
    /// Bytes of each of the three.
    pub max_bytes: usize,
}

impl Default for AgentsConfig {
    /// Returns bounds that a subnet manager and the tools of a subnet of a thousand nodes do not
    /// meet: the path records of 648 hosts to each other are 27 MB in one transfer.
    fn default() -> Self {
        Self {
            id_base: 0,
            // An id is given again only after 16 million others.
            id_bits: 24,
            max_agents: 256,
            max_sends: 16_384,
            max_receives: 256,
            max_deliveries: 16_384,
            max_bytes: 64 << 20,
        }
    }
}

/// Why an agent was not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// The queue pair is not the class's.
    #[error(
        "{class} on QP {}: subnet management (classes 0x01 and 0x81) is of QP 0, all others of \
         QP 1", qpn.value()
    )]
    WrongQueuePair {
        /// Class.
        class: MgmtClass,
        /// Queue pair asked for.
        qpn: Qpn,
    },
    /// The class cannot have agents.
    #[error("{0}: agents are of the classes 0x01 to 0x4F and 0x81")]
    BadClass(MgmtClass),
    /// The version of the class is out of range.
    #[error("version {0} of a class: 0 to 7 are possible")]
    BadVersion(u8),
    /// The class has no RMPP header.
    #[error("{0} has no transfers of several segments (RMPP): register with RMPP version 0")]
    NoRmpp(MgmtClass),
    /// An agent of a vendor's class that names no vendor.
    #[error("{class} with OUI {oui:#x}: its datagrams name a vendor by 24 bits that are not 0")]
    BadOui {
        /// Class.
        class: MgmtClass,
        /// OUI asked for.
        oui: u32,
    },
    /// Another agent takes these requests.
    #[error(
        "agent {agent} takes method {method:#x} of {class} version {version} already: is another \
         program of this kind running on the host?"
    )]
    InUse {
        /// Agent that is there.
        agent: AgentId,
        /// First method that both want.
        method: u8,
        /// Class.
        class: MgmtClass,
        /// Version of the class.
        version: u8,
    },
    /// As many agents as may be are there.
    #[error("the port has {0} agents, which is the most: close programs that manage it")]
    TooMany(usize),
}

/// Why a datagram is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The agent does not exist.
    #[error("there is no agent {0}: it was not registered, or is unregistered")]
    NoAgent(AgentId),
    /// The datagram has no room for the headers of its class.
    #[error("a datagram of {have} bytes: {class} has headers of {need}")]
    TooShort {
        /// Class.
        class: MgmtClass,
        /// Bytes of the headers.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// The datagram does not fit one packet, and is no transfer.
    #[error(
        "a datagram of {have} bytes: without active RMPP of an agent that asked for it, 256 are \
         the most"
    )]
    TooLong {
        /// Bytes given.
        have: usize,
    },
    /// The class goes to another queue pair than the agent's.
    #[error("{class} from an agent of QP {}: only subnet management goes to QP 0", qpn.value())]
    WrongQueuePair {
        /// Class.
        class: MgmtClass,
        /// Queue pair of the agent.
        qpn: Qpn,
    },
    /// A datagram of this transaction is not done yet.
    #[error("transaction {tid:#x} of {class} is not done yet: count the id up for each request")]
    Duplicate {
        /// Class.
        class: MgmtClass,
        /// Transaction id.
        tid: u64,
    },
    /// Too much waits for an answer already.
    #[error(
        "{sends} datagrams of {bytes} bytes are on their way, which is the most that is kept: \
         wait for answers"
    )]
    TooMany {
        /// Datagrams.
        sends: usize,
        /// Bytes.
        bytes: usize,
    },
}
