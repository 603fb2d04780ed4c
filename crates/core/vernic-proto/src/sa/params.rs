//! What users ask for and get: names, questions, answers, errors.

use vernic_wire::cm::ServiceId;
use vernic_wire::sa::{JoinState, McMemberRecord, PathRecord, SaHeader, SaStatus};
use vernic_wire::smp::{MadStatus, Notice, TrapNumber};
use vernic_wire::{Gid, Lid, Pkey, ServiceLevel};

use crate::mad::MadAddress;

/// A program that uses the client. The owner gives out the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SaUser(pub u64);

/// A question, as the owner names it; the answer has the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The port, as subnet management has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SaPort {
    /// Whether its link is active.
    pub is_active: bool,
    /// LID of the subnet manager, where subnet administration is.
    pub sm_lid: Lid,
    /// Service level to it.
    pub sm_sl: ServiceLevel,
}

/// What a path is asked for by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathQuery {
    /// Where it begins: a GID of the port.
    pub sgid: Gid,
    /// Where it ends.
    pub dgid: Gid,
    /// The partition.
    pub pkey: Pkey,
    /// The service that it is for, if that matters.
    pub service_id: Option<ServiceId>,
    /// The service level that it must have, if that matters.
    pub service_level: Option<ServiceLevel>,
    /// The traffic class that it must have, if that matters.
    pub traffic_class: Option<u8>,
}

impl PathQuery {
    /// Returns the question for any path between two ports.
    pub const fn new(sgid: Gid, dgid: Gid, pkey: Pkey) -> Self {
        Self { sgid, dgid, pkey, service_id: None, service_level: None, traffic_class: None }
    }
}

/// What tells a service from others: one port may offer each in each partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServiceKey {
    /// The service.
    pub service_id: ServiceId,
    /// The port.
    pub gid: Gid,
    /// The partition.
    pub pkey: Pkey,
}

/// Records that match a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaTable {
    header: SaHeader,
    bytes: Vec<u8>,
}

impl SaTable {
    pub(super) const fn new(header: SaHeader, bytes: Vec<u8>) -> Self {
        Self { header, bytes }
    }
    /// Yields the records, each with the padding up to the next.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.header.records(&self.bytes)
    }
}

/// A datagram for the agent to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaSend {
    /// Destination.
    pub address: MadAddress,
    /// All of it.
    pub mad: Vec<u8>,
    /// How long an answer may take, in milliseconds; 0: there is none.
    pub timeout_ms: u32,
    /// How often it is repeated.
    pub retries: u32,
}

/// Why there is no answer, or no registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SaError {
    /// Nobody answers at the LID of the subnet manager.
    #[error("no subnet manager answers at LID {}", .0.value())]
    Unanswered(Lid),
    /// The port at the LID of the subnet manager answers, and has no subnet administration.
    #[error("no subnet manager answers at LID {}: the port there says that it has none", .0.value())]
    NoAdministration(Lid),
    /// There is nobody to ask.
    #[error("the port is down, or no subnet manager has set it up")]
    NoManager,
    /// Subnet administration refused.
    #[error("subnet administration refused: {0}")]
    Refused(SaStatus),
    /// The datagram was not understood.
    #[error("subnet administration did not understand the request: {0}")]
    NotUnderstood(MadStatus),
    /// The answer is shorter than what it answers needs, or of something else.
    #[error("the answer of subnet administration is malformed")]
    Malformed,
    /// There are too many questions or registrations.
    #[error("the port has {0} questions or registrations at subnet administration, the most")]
    TooMany(usize),
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SaEvent {
    /// The answer to [`SaClient::query_path`](super::SaClient::query_path).
    Path {
        /// Name of the question.
        ticket: Ticket,
        /// The path, or why there is none.
        answer: Result<PathRecord, SaError>,
    },
    /// The answer to [`SaClient::query_table`](super::SaClient::query_table).
    Table {
        /// Name of the question.
        ticket: Ticket,
        /// The records, or why there are none.
        answer: Result<SaTable, SaError>,
    },
    /// The user is a member of a group, or the group has other values than before.
    Joined {
        /// User.
        user: SaUser,
        /// The group, and how the user takes part.
        record: McMemberRecord,
    },
    /// The user is no member of a group so: it was refused, or its membership has ended.
    NotJoined {
        /// User.
        user: SaUser,
        /// The group.
        mgid: Gid,
        /// How the user took part, or wanted to.
        how: JoinState,
        /// Why.
        error: SaError,
    },
    /// What became of a service that the user offers.
    Service {
        /// User.
        user: SaUser,
        /// The service.
        key: ServiceKey,
        /// Whether it is registered. After an error the user no longer offers it.
        answer: Result<(), SaError>,
    },
    /// What became of a subscription of the user.
    Subscription {
        /// User.
        user: SaUser,
        /// Notices that it is for.
        number: TrapNumber,
        /// Whether notices will come. After an error the user is no longer subscribed.
        answer: Result<(), SaError>,
    },
    /// A notice that the user has subscribed to.
    Notice {
        /// User.
        user: SaUser,
        /// The notice.
        notice: Notice,
    },
}

/// Bounds and times of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaConfig {
    /// Questions that wait for an answer.
    pub max_questions: usize,
    /// Registrations of all users.
    pub max_registrations: usize,
    /// Paths that are kept.
    pub max_paths: usize,
    /// How long a path may be used without asking again, in seconds.
    pub path_life_s: u64,
    /// How long an answer may take, in milliseconds.
    pub timeout_ms: u32,
    /// How often a request is repeated.
    pub retries: u32,
}

impl Default for SaConfig {
    /// Returns bounds that a host in touch with a subnet of a thousand others does not meet.
    fn default() -> Self {
        Self {
            max_questions: 4096,
            max_registrations: 16_384,
            max_paths: 4096,
            // As long as a subnet manager takes to look at a subnet again without being told to.
            path_life_s: 600,
            // A manager that routes hundreds of nodes does not answer for a second or two.
            timeout_ms: 1000,
            retries: 5,
        }
    }
}

impl SaEvent {
    /// Returns the user that the event is for; of questions, only their owner knows.
    pub const fn user(&self) -> Option<SaUser> {
        match self {
            Self::Path { .. } | Self::Table { .. } => None,
            Self::Joined { user, .. }
            | Self::NotJoined { user, .. }
            | Self::Service { user, .. }
            | Self::Subscription { user, .. }
            | Self::Notice { user, .. } => Some(*user),
        }
    }
}
