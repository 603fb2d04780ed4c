//! Groups: which we join, what the SA says of them, and sending to them (RFC 4391, section 10).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::ipoib::{broadcast_group, group_of};
use vernic_wire::sa::{JoinState, McMemberRecord};
use vernic_wire::{Gid, Qpn};

use super::send::Step;
use super::{Due, Interface, NANOS_PER_SECOND};
use crate::Time;
use crate::addresses::solicited_node;
use crate::counters::DropReason;
use crate::groups::{self, Group, GroupState};
use crate::link::{LinkState, join_of};
use crate::output::{Request, Route};
use crate::waiting::WaitsFor;

/// All systems of IPv4, which every host is a member of and no report names.
const ALL_SYSTEMS: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
/// All nodes of IPv6, the same.
const ALL_NODES: IpAddr = IpAddr::V6(Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1));

impl Interface {
    /// Takes the SA's answer to a [`Request::Join`], or what a membership has become since: other
    /// values, or none any more. `None`: the SA refused, or did not answer.
    pub fn handle_joined(&mut self, now: Time, mgid: Gid, answer: Option<McMemberRecord>) {
        if mgid == broadcast_group(self.config.pkey, self.config.scope) {
            return self.handle_link_joined(now, answer);
        }
        let Some(group) = self.groups.get(&mgid).copied() else { return };
        let how = match group.state {
            GroupState::Asked(how) | GroupState::Member(how, _) => how,
            GroupState::Absent => return,
        };
        match answer {
            Some(record) => self.become_member(now, mgid, how, &record),
            None => self.lose_group(now, mgid),
        }
    }

    fn handle_link_joined(&mut self, now: Time, answer: Option<McMemberRecord>) {
        match (answer, self.link.state) {
            (_, LinkState::Down) => {}
            (Some(record), _) => {
                self.timers.cancel(Due::Link);
                self.go_up(record);
            }
            (None, state) => {
                if matches!(state, LinkState::Up(_)) {
                    self.go_down();
                }
                let pause = self.link.refused(&self.config) * NANOS_PER_SECOND;
                self.timers.set(Due::Link, now + pause);
            }
        }
    }

    fn become_member(&mut self, now: Time, mgid: Gid, how: JoinState, record: &McMemberRecord) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        let route = Route::of_group(record);
        group.state = GroupState::Member(how, route);
        let receives = how.contains(JoinState::FULL_MEMBER);
        if receives && group.attached != Some(record.mlid) {
            if let Some(mlid) = group.attached.replace(record.mlid) {
                self.requests.push_back(Request::Detach { mgid, mlid });
            }
            self.requests.push_back(Request::Attach { mgid, mlid: record.mlid });
        }
        let is_wanted = group.is_wanted;
        match receives {
            true => self.timers.cancel(Due::Group(mgid)),
            false => self.timers.set(Due::Group(mgid), now + groups::UNUSED),
        }
        let destination = self.datagram(route, Qpn::MULTICAST);
        let frames = self.waiting.take(WaitsFor::Group(mgid));
        self.release(frames, |_, _| Step::Send(destination));
        if receives && !is_wanted {
            self.leave(mgid);
        } else if is_wanted && !receives {
            self.join(mgid, JoinState::FULL_MEMBER);
        }
    }

    /// The SA has no such group, or no longer. Packets go to the routers, if they are for more than
    /// this link.
    fn lose_group(&mut self, now: Time, mgid: Gid) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        group.state = GroupState::Absent;
        if let Some(mlid) = group.attached.take() {
            self.requests.push_back(Request::Detach { mgid, mlid });
        }
        self.timers.set(Due::Group(mgid), now + groups::PAUSE);
        let frames = self.waiting.take(WaitsFor::Group(mgid));
        self.release(frames, |machine, frame| match frame.ip {
            Some(ip) => machine.step_to_routers(ip),
            None => Step::Drop(DropReason::NoGroup),
        });
    }

    /// The SA has told that a group was created: it is asked for again where it was missing.
    pub fn handle_group_created(&mut self, mgid: Gid) {
        let Some(group) = self.groups.get(&mgid) else { return };
        if group.state == GroupState::Absent {
            let how = self.how_to_join(mgid);
            self.join(mgid, how);
        }
    }
    /// The SA has told that a group was deleted: nobody receives from it.
    pub fn handle_group_deleted(&mut self, now: Time, mgid: Gid) {
        let Some(group) = self.groups.get(&mgid) else { return };
        if matches!(group.state, GroupState::Member(how, _) if how != JoinState::FULL_MEMBER) {
            self.lose_group(now, mgid);
        }
    }

    fn how_to_join(&self, mgid: Gid) -> JoinState {
        match self.groups.get(&mgid) {
            Some(group) if group.is_wanted => JoinState::FULL_MEMBER,
            _ => JoinState::SEND_ONLY_NON_MEMBER,
        }
    }

    fn join(&mut self, mgid: Gid, how: JoinState) {
        let Some(broadcast) = self.link.group() else { return };
        let (record, components) = join_of(mgid, how, broadcast);
        self.groups.entry(mgid).or_insert(Group::new(how)).state = GroupState::Asked(how);
        self.timers.cancel(Due::Group(mgid));
        self.requests.push_back(Request::Join { record, components });
    }

    /// Leaves a group that we are a member of, and forgets it.
    fn leave(&mut self, mgid: Gid) {
        let Some(group) = self.groups.remove(&mgid) else { return };
        self.timers.cancel(Due::Group(mgid));
        if let Some(mlid) = group.attached {
            self.requests.push_back(Request::Detach { mgid, mlid });
        }
        if let (GroupState::Member(how, _), Some(broadcast)) = (group.state, self.link.group()) {
            let (record, _) = join_of(mgid, how, broadcast);
            self.requests.push_back(Request::Leave { record });
        }
    }

    pub(super) fn group_is_due(&mut self, now: Time, mgid: Gid) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        let was_used = std::mem::take(&mut group.is_used);
        match group.state {
            GroupState::Absent if group.is_wanted => self.join(mgid, JoinState::FULL_MEMBER),
            // The next packet asks again.
            GroupState::Absent => {
                self.groups.remove(&mgid);
            }
            GroupState::Member(..) if was_used => {
                self.timers.set(Due::Group(mgid), now + groups::UNUSED);
            }
            GroupState::Member(..) => self.leave(mgid),
            GroupState::Asked(_) => {}
        }
    }

    /// Joins the groups that we are to receive from, and leaves the others.
    pub(super) fn sync_groups(&mut self) {
        if self.link.group().is_none() {
            return;
        }
        let own = self.addresses.own().iter().filter_map(|address| match address.ip {
            IpAddr::V6(ip) => Some(IpAddr::V6(solicited_node(ip))),
            IpAddr::V4(_) => None,
        });
        let ips = [ALL_SYSTEMS, ALL_NODES].into_iter().chain(own).chain(self.host_groups.clone());
        let (pkey, scope) = (self.config.pkey, self.config.scope);
        let wanted: BTreeSet<_> = ips.filter_map(|ip| group_of(ip, pkey, scope)).collect();
        let had: Vec<_> = self.groups.keys().copied().collect();
        for mgid in had {
            self.want(mgid, wanted.contains(&mgid));
        }
        for mgid in wanted {
            if self.groups.contains_key(&mgid) {
                continue;
            }
            match self.groups.len() < self.config.max_groups {
                true => self.join(mgid, JoinState::FULL_MEMBER),
                false => self.counters.note_drop(DropReason::NoRoom),
            }
        }
    }

    /// Changes whether we are to receive from a group.
    fn want(&mut self, mgid: Gid, is_wanted: bool) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        if std::mem::replace(&mut group.is_wanted, is_wanted) == is_wanted {
            return;
        }
        match (group.state, is_wanted) {
            (GroupState::Member(how, _), true) if how != JoinState::FULL_MEMBER => {
                self.join(mgid, JoinState::FULL_MEMBER);
            }
            (GroupState::Member(..), false) => self.leave(mgid),
            (GroupState::Absent, true) => self.join(mgid, JoinState::FULL_MEMBER),
            // The answer to what was asked decides.
            _ => {}
        }
    }

    /// To an IP group, or to all of the link.
    pub(super) fn step_to_group(&mut self, group: IpAddr) -> Step {
        match self.step_to_one_group(group) {
            Step::Drop(DropReason::NoGroup) => self.step_to_routers(group),
            step => step,
        }
    }

    /// To the routers of the link, for a group that has no member on it.
    fn step_to_routers(&mut self, group: IpAddr) -> Step {
        match routers_for(group) {
            Some(routers) => self.step_to_one_group(routers),
            None => Step::Drop(DropReason::NoGroup),
        }
    }

    fn step_to_one_group(&mut self, ip: IpAddr) -> Step {
        let Some(mgid) = group_of(ip, self.config.pkey, self.config.scope) else {
            return Step::Drop(DropReason::NoGroup);
        };
        if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return match self.link.route() {
                Some(route) => Step::Send(self.datagram(route, Qpn::MULTICAST)),
                None => Step::Drop(DropReason::LinkDown),
            };
        }
        let has_room = self.groups.len() < self.config.max_groups;
        let Some(group) = self.groups.get_mut(&mgid) else {
            if !has_room {
                return Step::Drop(DropReason::NoRoom);
            }
            self.join(mgid, JoinState::SEND_ONLY_NON_MEMBER);
            return Step::Wait(WaitsFor::Group(mgid));
        };
        group.is_used = true;
        match group.state {
            GroupState::Asked(_) => Step::Wait(WaitsFor::Group(mgid)),
            GroupState::Absent => Step::Drop(DropReason::NoGroup),
            GroupState::Member(_, route) => Step::Send(self.datagram(route, Qpn::MULTICAST)),
        }
    }
}

/// The group of routers that takes packets to a group without members on the link; `None` if the
/// group ends at the link, or is that of the routers.
fn routers_for(group: IpAddr) -> Option<IpAddr> {
    match group {
        IpAddr::V4(ip) if ip.octets()[..3] != [224, 0, 0] => {
            Some(Ipv4Addr::new(224, 0, 0, 2).into())
        }
        IpAddr::V6(ip) if ip.octets()[1] & 15 > 2 => {
            Some(Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 2).into())
        }
        _ => None,
    }
}
