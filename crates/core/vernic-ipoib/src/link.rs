//! The broadcast group: whether the link is up, and what its members have in common (RFC 4391,
//! sections 4.1 and 5).

use vernic_wire::ipoib::{Encapsulation, broadcast_group};
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, Selected, Selector};
use vernic_wire::{Gid, Mtu};

use crate::config::Config;
use crate::output::Route;

/// Longest pause between two tries to join, in seconds: how long it takes to notice a partition
/// that an administrator has just set up.
const MAX_PAUSE_S: u64 = 16;
/// The components that a group is created with, beside those that every join has.
const NEW: MemberComponents = MemberComponents::QKEY
    .union(MemberComponents::MTU_SELECTOR)
    .union(MemberComponents::MTU)
    .union(MemberComponents::TRAFFIC_CLASS)
    .union(MemberComponents::RATE_SELECTOR)
    .union(MemberComponents::RATE)
    .union(MemberComponents::SERVICE_LEVEL)
    .union(MemberComponents::FLOW_LABEL)
    .union(MemberComponents::HOP_LIMIT);
/// The components that every join has.
const JOIN: MemberComponents = MemberComponents::MGID
    .union(MemberComponents::PORT_GID)
    .union(MemberComponents::PKEY)
    .union(MemberComponents::JOIN_STATE);

/// State of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum LinkState {
    /// The port is down.
    #[default]
    Down,
    /// The SA was asked for the broadcast group.
    Asked,
    /// The SA refused, and is asked again when the pause is over.
    Pause,
    /// We are a member.
    Up(McMemberRecord),
}

#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// How often the SA refused since the port came up.
    refusals: u32,
}

impl Link {
    /// The group's record, if the link is up.
    pub(crate) const fn group(&self) -> Option<&McMemberRecord> {
        match &self.state {
            LinkState::Up(record) => Some(record),
            _ => None,
        }
    }
    /// The longest IP packet of a datagram.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.group().map(mtu_of)
    }
    /// The broadcast group's route.
    pub(crate) fn route(&self) -> Option<Route> {
        self.group().map(Route::of_group)
    }
    /// Asks for the broadcast group: with what it is to be like, every second time, where the
    /// owner wants one created.
    pub(crate) fn ask(&mut self, config: &Config) -> (McMemberRecord, MemberComponents) {
        self.state = LinkState::Asked;
        let record = McMemberRecord {
            mgid: broadcast_group(config.pkey, config.scope),
            port_gid: config.gid,
            pkey: config.pkey.to_full(),
            join_state: JoinState::FULL_MEMBER,
            scope: config.scope.value(),
            ..McMemberRecord::default()
        };
        match config.new_group {
            Some(new) if self.refusals % 2 == 1 => {
                let record = McMemberRecord {
                    qkey: new.qkey,
                    mtu: Selected::exactly(new.mtu as u8),
                    rate: Selected::exactly(new.rate),
                    service_level: new.service_level,
                    ..record
                };
                (record, JOIN | NEW)
            }
            _ => (record, JOIN),
        }
    }
    /// Notes that the SA refused; returns how many seconds to wait.
    pub(crate) fn refused(&mut self, config: &Config) -> u64 {
        self.state = LinkState::Pause;
        let doubled = 1_u64.checked_shl(self.refusals).unwrap_or(MAX_PAUSE_S).min(MAX_PAUSE_S);
        self.refusals = self.refusals.saturating_add(1);
        // The group is to be created, then: at once.
        let creates = config.new_group.is_some() && self.refusals % 2 == 1;
        if creates { 0 } else { doubled }
    }
    pub(crate) const fn joined(&mut self, record: McMemberRecord) {
        self.state = LinkState::Up(record);
        self.refusals = 0;
    }
}

/// A join of another group of the link. A full member creates it where there is none, with the
/// values of the broadcast group (RFC 4391, section 10).
pub(crate) fn join_of(
    mgid: Gid,
    how: JoinState,
    broadcast: &McMemberRecord,
) -> (McMemberRecord, MemberComponents) {
    let (mtu, rate) = (Selected::exactly(broadcast.mtu.value), broadcast.rate.value);
    let rate = Selected { selector: Selector::EXACTLY, value: rate };
    let record = McMemberRecord { mgid, mtu, rate, join_state: how, ..*broadcast };
    let components = if how == JoinState::FULL_MEMBER { JOIN | NEW } else { JOIN };
    (record, components)
}

/// The longest IP packet of a datagram to members of a group. Codes that are none count as the
/// least MTU.
pub(crate) fn mtu_of(group: &McMemberRecord) -> u32 {
    Mtu::from_code(group.mtu.value).unwrap_or(Mtu::B256).bytes() - Encapsulation::LEN as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NewGroup;
    use vernic_wire::ipoib::USUAL_QKEY;
    use vernic_wire::{Lid, Qpn, ServiceLevel};

    #[test]
    fn pauses_grow_to_sixteen_seconds() {
        let config = Config::new(Gid::ZERO, Lid(1), Qpn::new(2));
        let mut link = Link::default();
        let pauses: Vec<_> = (0..80).map(|_| link.refused(&config)).collect();
        assert_eq!(pauses[..6], [1, 2, 4, 8, 16, 16]);
        assert_eq!(pauses[79], 16);
        link.joined(McMemberRecord::default());
        assert_eq!((link.refused(&config), link.mtu()), (1, None));
    }

    #[test]
    fn a_group_that_is_to_be_created_is_asked_for_first() {
        let (mtu, rate, service_level) = (Mtu::B2048, 3, ServiceLevel::new(1));
        let new = NewGroup { qkey: USUAL_QKEY, mtu, rate, service_level };
        let config = Config::new(Gid::ZERO, Lid(1), Qpn::new(2));
        let config = Config { new_group: Some(new), ..config };
        let mut link = Link::default();
        assert_eq!(link.ask(&config).1, JOIN);
        assert_eq!(link.refused(&config), 0);
        let (record, components) = link.ask(&config);
        assert_eq!((record.qkey, record.mtu), (USUAL_QKEY, Selected::exactly(4)));
        assert_eq!(components, JOIN | NEW);
        assert_eq!(link.refused(&config), 2);
        assert_eq!(link.ask(&config).1, JOIN);
    }
}
