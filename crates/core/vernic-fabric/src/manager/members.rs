//! Multicast groups and their members (IBTA 15.2.5.17).

use std::collections::BTreeMap;

use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, SaStatus, Selected, Selector};
use vernic_wire::{Gid, Guid, Lid, Mtu, Pkey, Qkey, ServiceLevel};

use super::map::{End, Map};
use super::query;
use crate::attributes::Forwarding;

/// Members of a group at most.
const MOST_MEMBERS: usize = 1 << 16;
/// Returns the broadcast group of IPoIB in a partition (RFC 4391, 4), which always exists.
const fn broadcast(pkey: Pkey) -> Gid {
    let [high, low] = pkey.0.to_be_bytes();
    Gid([0xFF, 0x12, 0x40, 0x1B, high, low, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF])
}
/// The Q_Key of these groups (RFC 4391, 4, leaves the choice; all use this one).
const BROADCAST_QKEY: Qkey = Qkey(0x0B1B);
/// Codes of 2,048 bytes, of 10 Gb/s, and of 1 s.
const GROUP_MTU: u8 = Mtu::B2048 as u8;
const GROUP_RATE: u8 = 3;
const GROUP_LIFE: u8 = 18;
/// What a group needs to be made (IBTA 15.2.5.17.3).
const NEEDED: MemberComponents = MemberComponents::QKEY
    .union(MemberComponents::TRAFFIC_CLASS)
    .union(MemberComponents::PKEY)
    .union(MemberComponents::SERVICE_LEVEL)
    .union(MemberComponents::FLOW_LABEL);

/// A group.
#[derive(Clone, Debug)]
struct Group {
    record: McMemberRecord,
    members: BTreeMap<Guid, JoinState>,
    /// Whether it stays without members.
    is_kept: bool,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Members {
    groups: BTreeMap<Gid, Group>,
    /// Groups made since ever.
    made: u64,
    /// Blocks of forwarding tables that have had an entry.
    pub(super) blocks_written: usize,
}

/// What a join or a leave has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    /// The answer.
    pub(super) record: McMemberRecord,
    /// The group that was made, or ended.
    pub(super) made: bool,
    pub(super) ended: bool,
}

impl Members {
    /// Makes the broadcast groups of partitions, by the P_Keys of full members and service levels.
    pub(super) fn new(partitions: impl Iterator<Item = (Pkey, ServiceLevel)>) -> Self {
        let of = |(mlid, (pkey, service_level))| {
            let record = McMemberRecord {
                mgid: broadcast(pkey),
                qkey: BROADCAST_QKEY,
                mlid: Lid(mlid),
                mtu: Selected::exactly(GROUP_MTU),
                pkey,
                service_level,
                rate: Selected::exactly(GROUP_RATE),
                life_time: Selected::exactly(GROUP_LIFE),
                scope: 2,
                ..McMemberRecord::default()
            };
            (record.mgid, Group { record, members: BTreeMap::new(), is_kept: true })
        };
        let groups = (Lid::FIRST_MULTICAST.0..).zip(partitions).map(of);
        Self { groups: groups.collect(), made: 0, blocks_written: 0 }
    }
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }
    /// Returns the record of a group, without a member.
    pub(super) fn group(&self, mgid: Gid) -> Option<&McMemberRecord> {
        self.groups.get(&mgid).map(|group| &group.record)
    }
    /// Returns the records of all members, and of groups without one.
    pub(super) fn records(&self, prefix: u64) -> impl Iterator<Item = McMemberRecord> + '_ {
        self.groups.values().flat_map(move |group| {
            let of = move |(guid, state): (&Guid, &JoinState)| McMemberRecord {
                port_gid: super::map::gid(prefix, *guid),
                join_state: *state,
                ..group.record
            };
            let alone = group.members.is_empty().then_some(group.record);
            group.members.iter().map(of).chain(alone)
        })
    }
    /// Lets a port take part in a group, which is made if it does not exist. `is_member` says
    /// whether the port, and the one that asks, are members of a partition (IBTA 15.2.5.17.2).
    ///
    /// # Errors
    /// Why not.
    pub(super) fn join(
        &mut self,
        asked: &McMemberRecord,
        mask: MemberComponents,
        guid: Guid,
        is_member: impl Fn(Pkey) -> bool,
    ) -> Result<Done, SaStatus> {
        if asked.join_state.is_empty() || !mask.contains(MemberComponents::JOIN_STATE) {
            return Err(SaStatus::INSUFFICIENT_COMPONENTS);
        }
        let has_mgid = mask.contains(MemberComponents::MGID) && !asked.mgid.is_zero();
        if has_mgid && !asked.mgid.is_multicast() {
            return Err(SaStatus::REQUEST_INVALID);
        }
        let known = has_mgid && self.groups.contains_key(&asked.mgid);
        let mgid = match known {
            true => {
                let group = self.groups.get(&asked.mgid).ok_or(SaStatus::REQUEST_INVALID)?;
                agrees(asked, mask, &group.record)?;
                if !is_member(group.record.pkey) {
                    return Err(SaStatus::REQUEST_INVALID);
                }
                asked.mgid
            }
            false if mask.contains(NEEDED) && !is_member(asked.pkey) => {
                return Err(SaStatus::REQUEST_INVALID);
            }
            false => self.make(asked, mask, has_mgid)?,
        };
        let group = self.groups.get_mut(&mgid).ok_or(SaStatus::NO_RESOURCES)?;
        if group.members.len() >= MOST_MEMBERS && !group.members.contains_key(&guid) {
            return Err(SaStatus::NO_RESOURCES);
        }
        let state = group.members.entry(guid).or_default();
        *state |= asked.join_state;
        let record =
            McMemberRecord { port_gid: asked.port_gid, join_state: *state, ..group.record };
        Ok(Done { record, made: !known, ended: false })
    }
    fn make(
        &mut self,
        asked: &McMemberRecord,
        mask: MemberComponents,
        has_mgid: bool,
    ) -> Result<Gid, SaStatus> {
        if !mask.contains(NEEDED) {
            return Err(SaStatus::INSUFFICIENT_COMPONENTS);
        }
        let used: Vec<_> = self.groups.values().map(|group| group.record.mlid).collect();
        let mut free =
            (0..Forwarding::MULTICAST_LIDS as u16).map(|at| Lid(Lid::FIRST_MULTICAST.0 + at));
        let mlid = free.find(|lid| !used.contains(lid)).ok_or(SaStatus::NO_RESOURCES)?;
        self.made += 1;
        let mgid = if has_mgid {
            asked.mgid
        } else {
            // A transient group of the subnet, with the mark of the IB specification.
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&[0xFF, 0x12, 0xA0, 0x1B]);
            bytes[8..].copy_from_slice(&self.made.to_be_bytes());
            Gid(bytes)
        };
        let value = |has, selected: Selected, default| {
            let is_exact = has && selected.selector == Selector::EXACTLY;
            Selected::exactly(if is_exact { selected.value } else { default })
        };
        let record = McMemberRecord {
            mgid,
            port_gid: Gid::ZERO,
            mlid,
            mtu: value(mask.contains(MemberComponents::MTU), asked.mtu, GROUP_MTU),
            rate: value(mask.contains(MemberComponents::RATE), asked.rate, GROUP_RATE),
            life_time: Selected::exactly(GROUP_LIFE),
            scope: mgid.0[1] & 15,
            join_state: JoinState::empty(),
            proxy_join: false,
            reserved49: 0,
            reserved50: 0,
            ..*asked
        };
        self.groups.insert(mgid, Group { record, members: BTreeMap::new(), is_kept: false });
        Ok(mgid)
    }
    /// Lets a port leave a group, with the states that the request has.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn leave(
        &mut self,
        asked: &McMemberRecord,
        mask: MemberComponents,
        guid: Guid,
    ) -> Result<Done, SaStatus> {
        if !mask.contains(MemberComponents::MGID | MemberComponents::JOIN_STATE) {
            return Err(SaStatus::INSUFFICIENT_COMPONENTS);
        }
        let group = self.groups.get_mut(&asked.mgid).ok_or(SaStatus::REQUEST_INVALID)?;
        let state = group.members.get_mut(&guid).ok_or(SaStatus::REQUEST_INVALID)?;
        *state -= asked.join_state;
        let record =
            McMemberRecord { port_gid: asked.port_gid, join_state: *state, ..group.record };
        if state.is_empty() {
            group.members.remove(&guid);
        }
        let keeps = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
        let ended = !group.is_kept && !group.members.values().any(|state| state.intersects(keeps));
        if ended {
            self.groups.remove(&asked.mgid);
        }
        Ok(Done { record, made: false, ended })
    }
    /// Ends the membership of ports that are gone, or no members of the group's partition any more.
    pub(super) fn retain(&mut self, may_stay: impl Fn(Guid, Pkey) -> bool) {
        self.groups.retain(|_, group| {
            group.members.retain(|guid, _| may_stay(*guid, group.record.pkey));
            group.is_kept || !group.members.is_empty()
        });
    }
    /// Returns each group's place in the forwarding tables, the ports that receive, and those that
    /// only send.
    pub(super) fn trees<'a>(
        &'a self,
        map: &'a Map,
    ) -> impl Iterator<Item = (usize, Vec<End>, Vec<End>)> + 'a {
        self.groups.values().map(|group| {
            let index = usize::from(group.record.mlid.0 - Lid::FIRST_MULTICAST.0);
            let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
            let (mut receivers, mut senders) = (Vec::new(), Vec::new());
            for (guid, state) in &group.members {
                let Some((end, _)) = map.by_port_guid(*guid) else { continue };
                let list = if state.intersects(receives) { &mut receivers } else { &mut senders };
                list.push(end);
            }
            (index, receivers, senders)
        })
    }
}

/// Checks that a request to join a group wants none that the group is not.
fn agrees(
    asked: &McMemberRecord,
    mask: MemberComponents,
    group: &McMemberRecord,
) -> Result<(), SaStatus> {
    let has = |component| mask.contains(component);
    let selects = |selector, value, wanted: Selected, is: Selected| {
        !has(selector) || !has(value) || query::satisfies(wanted, is.value)
    };
    let agrees = (!has(MemberComponents::QKEY) || asked.qkey == group.qkey)
        && (!has(MemberComponents::PKEY)
            || asked.pkey.value() & 0x7FFF == group.pkey.value() & 0x7FFF)
        && selects(MemberComponents::MTU_SELECTOR, MemberComponents::MTU, asked.mtu, group.mtu)
        && selects(MemberComponents::RATE_SELECTOR, MemberComponents::RATE, asked.rate, group.rate);
    if agrees { Ok(()) } else { Err(SaStatus::REQUEST_INVALID) }
}
