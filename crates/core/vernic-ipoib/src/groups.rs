//! Multicast groups of InfiniBand that we receive from or send to (RFC 4391, section 10), beside
//! the broadcast group.

use vernic_wire::Lid;
use vernic_wire::sa::JoinState;

use crate::output::Route;

/// Nanoseconds after which a group that we only send to is left if nothing was sent.
pub(crate) const UNUSED: u64 = 120_000_000_000;
/// Nanoseconds after which the SA is asked again for a group that it refused. The owner tells of
/// groups that are created, so this is for what the owner misses.
pub(crate) const PAUSE: u64 = 10_000_000_000;

/// How far a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupState {
    /// The SA was asked to let us join so.
    Asked(JoinState),
    /// We are a member so.
    Member(JoinState, Route),
    /// The SA refused.
    Absent,
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) state: GroupState,
    /// The host is to receive from it.
    pub(crate) is_wanted: bool,
    /// A packet was sent to it since the last look.
    pub(crate) is_used: bool,
    /// The LID by which we receive from it, once that is so.
    pub(crate) attached: Option<Lid>,
}

impl Group {
    pub(crate) const fn new(how: JoinState) -> Self {
        let is_wanted = how.contains(JoinState::FULL_MEMBER);
        Self { state: GroupState::Asked(how), is_wanted, is_used: false, attached: None }
    }
}
