//! Registrations: who wants which, and what of it is set.

use std::collections::BTreeMap;

use vernic_wire::Gid;
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, ServiceRecord};

use super::params::{SaUser, ServiceKey};

/// What is registered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    Group(Gid),
    /// Service id, GID, P_Key.
    Service(u64, Gid, u16),
    /// Number of the notices.
    Notices(u16),
}

impl Key {
    pub(super) const fn of_service(key: &ServiceKey) -> Self {
        Self::Service(key.service_id.0, key.gid, key.pkey.0)
    }
}

/// What one user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Member(McMemberRecord, MemberComponents),
    Service(ServiceRecord),
    Notices,
}

/// The one way of registering that services and subscriptions have; groups have several.
pub(super) const PLAIN: JoinState = JoinState::FULL_MEMBER;

/// A request that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnderWay {
    pub(super) what: Change,
    /// All was forgotten since: what it says of the state does not count.
    pub(super) is_stale: bool,
}

/// A change of what is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Set(JoinState),
    Unset(JoinState),
}

/// A registration.
#[derive(Debug)]
pub(super) struct Registration {
    /// What each user wants in which way, and whether it knows that it has it.
    pub(super) users: BTreeMap<(SaUser, u8), (Wish, bool)>,
    /// In which ways it is set.
    pub(super) set: JoinState,
    pub(super) under_way: Option<UnderWay>,
    /// The group, as it was last told.
    pub(super) group: Option<McMemberRecord>,
}

impl Registration {
    pub(super) const fn new() -> Self {
        Self { users: BTreeMap::new(), set: JoinState::empty(), under_way: None, group: None }
    }
    /// In which ways somebody wants it.
    pub(super) fn wanted(&self) -> JoinState {
        let all = self.users.keys();
        all.fold(JoinState::empty(), |sum, (_, how)| sum | JoinState::from_bits_truncate(*how))
    }
    /// What is to be changed next.
    pub(super) fn next_change(&self) -> Option<Change> {
        let wanted = self.wanted();
        let missing = wanted.difference(self.set).iter().next();
        let excess = self.set.difference(wanted);
        match missing {
            Some(how) => Some(Change::Set(how)),
            None if !excess.is_empty() => Some(Change::Unset(excess)),
            None => None,
        }
    }
    /// The wish for a way that says most: one of them may create the group.
    pub(super) fn wish_for(&self, how: JoinState) -> Option<Wish> {
        let wishes = self.users.iter().filter(|((_, bits), _)| *bits == how.bits());
        let says = |wish: &Wish| match wish {
            Wish::Member(_, components) => components.bits().count_ones(),
            _ => 0,
        };
        wishes.map(|(_, (wish, _))| *wish).max_by_key(says)
    }
    /// Users that want it in that way.
    pub(super) fn users_of(&self, how: JoinState) -> Vec<SaUser> {
        let users = self.users.keys().filter(|(_, bits)| *bits == how.bits());
        users.map(|(user, _)| *user).collect()
    }
}
